// All-gather by the LL protocol: words of 8 bytes with 4 bytes of data and the flag, stored as a whole.
// check-ranks: --args "x:u32[256],out:u32[world_size,256],words:u64[2048]=0" --reference {folder}/gather.py
// check-ranks: --call "all_gather<world_size>(x, out, words_ranks, rank, call + 1, stream)" --calls 3
// MISTAKE: the flag is the same in each call, so that words of the call before count as new ones.
#include "signals.cuh"

__device__ void store_word(unsigned long long* to, unsigned data, unsigned flag) {
  asm volatile("st.volatile.global.v2.u32 [%0], {%1, %2};" ::"l"(to), "r"(data), "r"(flag) : "memory");
}
__device__ unsigned wait_word(const unsigned long long* from, unsigned flag) {
  unsigned data, found;
  do {
    asm volatile("ld.volatile.global.v2.u32 {%0, %1}, [%2];" : "=r"(data), "=r"(found) : "l"(from) : "memory");
  } while (found != flag);
  return data;
}

template <int N>
__global__ void low_latency(const unsigned* x, unsigned* out, Peers<unsigned long long, N> words, int rank, unsigned epoch) {
#ifdef MISTAKE
  const unsigned flag = 1;
#else
  const unsigned flag = epoch;
#endif
  const int i = threadIdx.x, half = epoch % 2 * 1024;  // a rank may be one call ahead of the slowest reader
  for (int peer = 0; peer < N; ++peer) store_word(words[peer] + half + rank * 256 + i, x[i], flag);
  for (int peer = 0; peer < N; ++peer) out[peer * 256 + i] = wait_word(words[rank] + half + peer * 256 + i, flag);
}

template <int N>
void all_gather(const unsigned* x, unsigned* out, unsigned long long* const* words, int rank, unsigned epoch, cudaStream_t stream) {
  low_latency<N><<<1, 256, 0, stream>>>(x, out, peers<N>(words), rank, epoch);
}
