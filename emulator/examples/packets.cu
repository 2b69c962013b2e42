// All-reduce by packets of 16 bytes, two values and two flags each, in two buffers by turns.
// check-ranks: --args "x:f32[256],out:f32[256],packets:u32[4096]=0" --reference {folder}/sum.py --calls 4
// check-ranks: --call "all_reduce<world_size>(x, out, packets_ranks, rank, call + 1, stream)"
// MISTAKE: there is one buffer, and a rank that is ahead overwrites packets that a slower one waits for.
#include "signals.cuh"

__device__ void store_packet(unsigned* to, float a, float b, unsigned flag) {
  asm volatile("st.volatile.global.v4.u32 [%0], {%1, %3, %2, %3};" ::"l"(to), "r"(__float_as_uint(a)), "r"(__float_as_uint(b)), "r"(flag) : "memory");
}
__device__ float2 wait_packet(const unsigned* from, unsigned flag) {
  unsigned a, b, first, second;
  do {
    asm volatile("ld.volatile.global.v4.u32 {%0, %2, %1, %3}, [%4];" : "=r"(a), "=r"(b), "=r"(first), "=r"(second) : "l"(from) : "memory");
  } while (first != flag || second != flag);
  return {__uint_as_float(a), __uint_as_float(b)};
}

template <int N>
__global__ void by_packets(const float* x, float* out, Peers<unsigned, N> packets, int rank, unsigned epoch) {
#ifdef MISTAKE
  const int buffer = 0;
#else
  const int buffer = epoch % 2 * 2048;
#endif
  const int pair = threadIdx.x;
  for (int peer = 0; peer < N; ++peer) store_packet(packets[peer] + buffer + (rank * 128 + pair) * 4, x[2 * pair], x[2 * pair + 1], epoch);
  float2 sum{0, 0};
  for (int peer = 0; peer < N; ++peer) {
    const float2 found = wait_packet(packets[rank] + buffer + (peer * 128 + pair) * 4, epoch);
    sum.x += found.x;
    sum.y += found.y;
  }
  out[2 * pair] = sum.x;
  out[2 * pair + 1] = sum.y;
}

template <int N>
void all_reduce(const float* x, float* out, unsigned* const* packets, int rank, unsigned epoch, cudaStream_t stream) {
  by_packets<N><<<1, 128, 0, stream>>>(x, out, peers<N>(packets), rank, epoch);
}
