// GEMM and reduce-scatter: each tile of the product is added to the output of the rank that owns its rows, by a tensor map.
// check-ranks: --args "a:f32[world_size,16,8],b:f32[8,32],out:f32[16,32]=none,flags:u32[64]=0"
// check-ranks: --call "gemm_reduce_scatter<world_size>(a, b, out_ranks, flags_ranks, rank, call + 1, stream)"
// check-ranks: --reference {folder}/gemm_scatter.py
// MISTAKE: the threads that wrote the tile to shared memory execute no proxy fence before the bulk reduction reads it.
#include <cuda.h>

#include "signals.cuh"

template <int N>
struct Maps {
  CUtensorMap of[N];
};

template <int N>
__global__ void product(const float* a, const float* b, const __grid_constant__ Maps<N> maps, float* out, Peers<unsigned, N> flags, int rank, unsigned epoch) {
  __shared__ alignas(128) float tile[16 * 32];
  const int owner = blockIdx.x;
  if (owner == rank) {
    for (int i = threadIdx.x; i < 16 * 32; i += blockDim.x) out[i] = 0;
    asm volatile("fence.proxy.async;" ::: "memory");  // before reductions by tensor maps
  }
  __syncthreads();
  // The rank's output is zero: tell all ranks. Each block waits for the owner of its tile alone.
  if (owner == rank && threadIdx.x < N) store_release(flags[threadIdx.x] + rank, epoch);
  if (threadIdx.x == 0) {
    wait(flags[rank] + owner, epoch);
    asm volatile("fence.proxy.async;" ::: "memory");
  }
  for (int i = threadIdx.x; i < 16 * 32; i += blockDim.x) {
    float sum = 0;
    for (int k = 0; k < 8; ++k) sum += a[(owner * 16 + i / 32) * 8 + k] * b[k * 32 + i % 32];
    tile[i] = sum;
  }
#ifndef MISTAKE
  asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
#endif
  __syncthreads();
  if (threadIdx.x == 0) {
    const auto source = static_cast<unsigned>(__cvta_generic_to_shared(tile));
    asm volatile("cp.reduce.async.bulk.tensor.2d.global.shared::cta.add.tile.bulk_group [%0, {%1, %1}], [%2];" ::"l"(&maps.of[owner]), "r"(0), "r"(source) : "memory");
    asm volatile("cp.async.bulk.commit_group;\ncp.async.bulk.wait_group 0;" ::: "memory");
    asm volatile("fence.proxy.async;" ::: "memory");
    store_release(flags[owner] + N + rank, epoch);
  }
  if (owner == rank && threadIdx.x < N) wait(flags[rank] + N + threadIdx.x, epoch);  // all ranks have added their tiles
}

template <int N>
int gemm_reduce_scatter(const float* a, const float* b, float* const* out, unsigned* const* flags, int rank, unsigned epoch, cudaStream_t stream) {
  void* found = nullptr;
  cudaDriverEntryPointQueryResult result;
  cudaGetDriverEntryPointByVersion("cuTensorMapEncodeTiled", &found, 12000, cudaEnableDefault, &result);
  const auto encode = reinterpret_cast<decltype(&cuTensorMapEncodeTiled)>(found);
  Maps<N> maps;
  const cuuint64_t shape[] = {32, 16}, strides[] = {32 * sizeof(float)};
  const cuuint32_t box[] = {32, 16}, steps[] = {1, 1};
  for (int owner = 0; owner < N; ++owner) {
    const CUresult status = encode(&maps.of[owner], CU_TENSOR_MAP_DATA_TYPE_FLOAT32, 2, out[owner], shape, strides, box, steps, CU_TENSOR_MAP_INTERLEAVE_NONE,
                                   CU_TENSOR_MAP_SWIZZLE_NONE, CU_TENSOR_MAP_L2_PROMOTION_NONE, CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE);
    if (status != CUDA_SUCCESS) return status;
  }
  product<N><<<N, 128, 0, stream>>>(a, b, maps, out[rank], peers<N>(flags), rank, epoch);
  return cudaGetLastError();
}
