// AllReduce, naive: every rank reads every other rank's tensor in place and adds up all of it. bfloat16 only.
//
// The link carries (W-1) whole tensors into each rank, W/2 times what is needed: ranks could each add up one part and
// share the results. All ranks meet before, since a peer's tensor is there only when its call has begun, and after it,
// since a tensor is overwritten when its rank's call has returned.
#include "pkb/bf16.h"
#include "pkb/symm.h"

void solution(tvm::ffi::TensorView tensor, tvm::ffi::TensorView out, pkb::Comm comm) {
  auto* result = static_cast<pkb::bf16*>(out.data_ptr());
  comm.barrier();
  for (int64_t i = 0; i < tensor.numel(); ++i) {
    float sum = 0;
    for (int r = 0; r < comm.world_size; ++r) sum += comm.peer<pkb::bf16>(tensor, r)[i];
    result[i] = pkb::bf16(sum);
  }
  comm.barrier();
}

TVM_FFI_DLL_EXPORT_TYPED_FUNC(solution, solution);
