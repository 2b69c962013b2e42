// expect: race a peer wrote rank; 's `out` before rank; had begun
// problem: AllGather
// Writes into its peers' outputs as soon as it is called.
#include "pkb/symm.h"

void solution(tvm::ffi::TensorView tensor, tvm::ffi::TensorView out, pkb::Comm comm) {
  const int64_t bytes = tensor.numel() * 2;
  char* own = static_cast<char*>(out.data_ptr()) + comm.rank * bytes;
  for (int r = 0; r < comm.world_size; ++r) comm.put(own, tensor.data_ptr(), bytes, r);
  comm.barrier();
}

TVM_FFI_DLL_EXPORT_TYPED_FUNC(solution, solution);
