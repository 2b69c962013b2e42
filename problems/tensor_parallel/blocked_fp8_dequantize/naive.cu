// Every rank reads its chunks and their scales from all ranks in place.
#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_fp8.h>

#include "pkb/launch_cuda.h"
#include "pkb/symm.h"

using tvm::ffi::TensorView;

constexpr int kThreads = 256;

template <class Y, class S>
__global__ void dequantise(const Y* y, const S* s, int64_t chunk, int64_t block_size, float* out, pkb::Device comm) {
  const int64_t i = blockIdx.x * int64_t(kThreads) + threadIdx.x;
  if (i >= chunk * comm.world_size) return;
  const int sender = int(i / chunk);
  const int64_t at = comm.rank * chunk + i % chunk;
  out[i] = float(comm.peer(y, sender)[at]) * float(comm.peer(s, sender)[at / block_size]);
}

template <class Y>
void launch(const TensorView& local_y, const TensorView& local_s, int64_t block_size, const TensorView& out,
            const pkb::Comm& comm) {
  const int64_t all = out.numel();
  if (all == 0) return;
  pkb::with_type<__nv_bfloat16, float>(local_s.dtype(), [&](auto zero) {
    using S = decltype(zero);
    dequantise<<<unsigned((all + kThreads - 1) / kThreads), kThreads, 0, comm.cuda_stream()>>>(
        static_cast<const Y*>(local_y.data_ptr()), static_cast<const S*>(local_s.data_ptr()), all / comm.world_size,
        block_size, static_cast<float*>(out.data_ptr()), comm.device());
    PKB_CUDA_LAUNCHED();
  });
}

void solution(TensorView local_y, TensorView local_s, int64_t block_size, TensorView out, pkb::Comm comm) {
  comm.barrier();  // every rank's call has begun: its chunks may be read
  if (local_y.dtype() == DLDataType{kDLFloat8_e4m3fn, 8, 1}) {
    launch<__nv_fp8_e4m3>(local_y, local_s, block_size, out, comm);
  } else {
    pkb::with_type<__nv_bfloat16, __half, float>(local_y.dtype(), [&](auto zero) {
      launch<decltype(zero)>(local_y, local_s, block_size, out, comm);
    });
  }
  comm.barrier();  // every rank has read: this call may end
}

TVM_FFI_DLL_EXPORT_TYPED_FUNC(solution, solution);
