// Two-shot all-reduce: each rank sums its part of all inputs, and stores the sum to all ranks.
// check-ranks: --args "x:f32[1024],out:f32[1024],flags:u32[64]=0" --reference {folder}/sum.py
// check-ranks: --call "all_reduce<world_size>(x_ranks, out_ranks, flags_ranks, rank, call + 1, stream)"
// MISTAKE: the flag behind the stores is relaxed, and may be seen before them.
#include "signals.cuh"

template <int N>
__global__ void two_shot(Peers<float, N> x, Peers<float, N> out, Peers<unsigned, N> flags, int rank, unsigned epoch) {
  meet<N>(flags, rank, 0, epoch);
  for (int i = threadIdx.x; i < 1024 / N; i += blockDim.x) {
    const int at = rank * (1024 / N) + i;
    float sum = 0;
    for (int peer = 0; peer < N; ++peer) sum += x[peer][at];
    for (int peer = 0; peer < N; ++peer) out[peer][at] = sum;
  }
  __syncthreads();
  if (threadIdx.x < N) {
#ifdef MISTAKE
    store_relaxed(flags[threadIdx.x] + N + rank, epoch);
#else
    store_release(flags[threadIdx.x] + N + rank, epoch);
#endif
    wait(flags[rank] + N + threadIdx.x, epoch);
  }
}

// The sums are used on the same stream, by a kernel that finds them in order.
template <int N>
void all_reduce(float* const* x, float* const* out, unsigned* const* flags, int rank, unsigned epoch, cudaStream_t stream) {
  two_shot<N><<<1, 128, 0, stream>>>(peers<N>(x), peers<N>(out), peers<N>(flags), rank, epoch);
}
