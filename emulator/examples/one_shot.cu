// One-shot all-reduce: each rank reads all ranks' inputs, between two barriers.
// check-ranks: --args "x:bf16[1024],out:bf16[1024],flags:u32[64]=0" --reference {folder}/sum.py
// check-ranks: --call "all_reduce<world_size>(x_ranks, out, flags_ranks, rank, call + 1, stream)"
// MISTAKE: the second barrier is left out, and a rank goes on while others read its input.
#include <cuda_bf16.h>

#include "signals.cuh"

template <int N>
__global__ void one_shot(Peers<__nv_bfloat16, N> x, __nv_bfloat16* out, Peers<unsigned, N> flags, int rank, unsigned epoch) {
  meet<N>(flags, rank, 0, epoch);
  for (int i = threadIdx.x; i < 1024; i += blockDim.x) {
    float sum = 0;
    for (int peer = 0; peer < N; ++peer) sum += __bfloat162float(x[peer][i]);
    out[i] = __float2bfloat16(sum);
  }
#ifndef MISTAKE
  meet<N>(flags, rank, 1, epoch);
#endif
}

template <int N>
void all_reduce(__nv_bfloat16* const* x, __nv_bfloat16* out, unsigned* const* flags, int rank, unsigned epoch, cudaStream_t stream) {
  one_shot<N><<<1, 128, 0, stream>>>(peers<N>(x), out, peers<N>(flags), rank, epoch);
}
