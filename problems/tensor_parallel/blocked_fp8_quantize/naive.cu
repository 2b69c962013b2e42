// Every rank quantises the rows of all ranks, which it reads in place: a thread a block of a row.
#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_fp8.h>

#include "pkb/launch_cuda.h"
#include "pkb/symm.h"

constexpr int kThreads = 256;

template <class T>
__global__ void quantise(const T* x, int64_t own, int64_t block_size, __nv_fp8_e4m3* codes, float* scales,
                         pkb::Device comm) {
  const int64_t block = blockIdx.x * int64_t(kThreads) + threadIdx.x;
  if (block >= own * comm.world_size) return;
  const T* from = comm.peer(x, int(block / own)) + block % own * block_size;
  float most = 0;
  for (int64_t k = 0; k < block_size; ++k) most = fmaxf(most, fabsf(float(from[k])));
  const float scale = most / 448;
  for (int64_t k = 0; k < block_size; ++k) {
    codes[block * block_size + k] = __nv_fp8_e4m3(float(from[k]) / (scale == 0 ? 1 : scale));
  }
  scales[block] = scale;
}

void solution(
    tvm::ffi::TensorView local_tensor, int64_t block_size, tvm::ffi::TensorView y_global,
    tvm::ffi::TensorView s_global, pkb::Comm comm) {
  const int64_t own = local_tensor.numel() / block_size, all = own * comm.world_size;
  comm.barrier();  // every rank's call has begun: its rows may be read
  pkb::with_type<__nv_bfloat16, __half, float>(local_tensor.dtype(), [&](auto zero) {
    using T = decltype(zero);
    if (all == 0) return;
    quantise<<<unsigned((all + kThreads - 1) / kThreads), kThreads, 0, comm.cuda_stream()>>>(
        static_cast<const T*>(local_tensor.data_ptr()), own, block_size,
        static_cast<__nv_fp8_e4m3*>(y_global.data_ptr()), static_cast<float*>(s_global.data_ptr()), comm.device());
    PKB_CUDA_LAUNCHED();
  });
  comm.barrier();  // every rank has read: this call may end
}

TVM_FFI_DLL_EXPORT_TYPED_FUNC(solution, solution);
