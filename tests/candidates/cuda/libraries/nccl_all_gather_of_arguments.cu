// expect: passed
// problem: AllGather
// All-gather with NCCL's device API on a window of the arguments: each rank stores its tensor into all outputs.
#include <nccl_device.h>

#include "pkb/nccl_cuda.h"
#include "pkb/symm.h"

using tvm::ffi::TensorView;

__global__ void all_gather(const uint32_t* x, ncclWindow_t window, size_t offset, size_t words, ncclDevComm nccl, pkb::Device comm) {
  ncclLsaBarrierSession<ncclCoopCta> barrier(ncclCoopCta(), nccl, ncclTeamTagLsa(), blockIdx.x);
  barrier.sync(ncclCoopCta(), cuda::memory_order_acq_rel);  // all have begun
  comm.hold();
  const size_t step = size_t(gridDim.x) * blockDim.x, first = blockIdx.x * size_t(blockDim.x) + threadIdx.x;
  for (int r = 0; r < nccl.lsaSize; ++r) {
    auto* const to = static_cast<uint32_t*>(ncclGetLsaPointer(window, offset, r)) + nccl.lsaRank * words;
    for (size_t i = first; i < words; i += step) to[i] = x[i];
  }
  barrier.sync(ncclCoopCta(), cuda::memory_order_acq_rel);  // all have stored
  comm.hold();
}

void solution(TensorView tensor, TensorView out, pkb::Comm comm) {
  const size_t words = tensor.numel() * (tensor.dtype().bits / 8) / sizeof(uint32_t);
  all_gather<<<16, 512, 0, comm.cuda_stream()>>>(static_cast<const uint32_t*>(tensor.data_ptr()), pkb::nccl_arguments(comm),
                                                 pkb::nccl_offset(comm, out.data_ptr()), words, pkb::nccl().device, comm.device());
  PKB_CUDA_LAUNCHED();
}

TVM_FFI_DLL_EXPORT_TYPED_FUNC(solution, solution);
