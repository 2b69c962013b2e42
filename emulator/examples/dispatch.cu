// Dispatch of tokens to experts: a rank stores its tokens at the ranks that they are for, then how many there are.
// check-ranks: --args "x:u32[32,16],out:u32[world_size,32,16],tokens:u32[world_size,32,16]=0,counts:u32[16]=0,done:u32[16]=0"
// check-ranks: --call "dispatch<world_size>(x, out, tokens_ranks, counts_ranks, done_ranks, rank, call, stream)"
// check-ranks: --reference {folder}/dispatch.py
// MISTAKE: the threads that store the tokens have not met before one of them publishes the count.
#include "signals.cuh"

template <int N>
__global__ void exchange(const unsigned* x, unsigned* out, Peers<unsigned, N> tokens, Peers<unsigned, N> counts, Peers<unsigned, N> done, int rank, unsigned call) {
  const int peer = blockIdx.x, i = threadIdx.x % 16, row = threadIdx.x / 16;  // a block for each rank, a row for each token
  __shared__ unsigned places[32], count;
  if (threadIdx.x == 0) {
    count = 0;
    for (int token = 0; token < 32; ++token) places[token] = x[token * 16] % N == peer ? count++ : ~0u;
    wait(done[rank] + peer, call);  // it has taken the tokens of the call before
  }
  __syncthreads();
  if (places[row] != ~0u) tokens[peer][(rank * 32 + places[row]) * 16 + i] = x[row * 16 + i];
#ifndef MISTAKE
  __syncthreads();
#endif
  if (threadIdx.x == 0) {
    store_release(counts[peer] + rank, call << 8 | 0x80 | count);
    unsigned found;
    while ((found = load_acquire(counts[rank] + peer)) >> 7 < (call << 1 | 1)) {
    }
    count = found & 0x7f;
  }
  __syncthreads();
  const int at = (peer * 32 + row) * 16 + i;
  out[at] = row < count ? tokens[rank][at] : 0;
  __syncthreads();
  if (threadIdx.x == 0) store_release(done[peer] + rank, call + 1);
}

template <int N>
void dispatch(const unsigned* x, unsigned* out, unsigned* const* tokens, unsigned* const* counts, unsigned* const* done, int rank, unsigned call, cudaStream_t stream) {
  exchange<N><<<N, 512, 0, stream>>>(x, out, peers<N>(tokens), peers<N>(counts), peers<N>(done), rank, call);
}
