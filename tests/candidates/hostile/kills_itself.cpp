// expect: runtime_error rank 0 was killed by SIGKILL: the machine has no record of a reason
// twice: true
// Ends itself as the kernel does when memory is short, to be judged once more.
#include <csignal>

#include "pkb/bf16.h"
#include "pkb/symm.h"

void solution(tvm::ffi::TensorView tensor, tvm::ffi::TensorView out, pkb::Comm comm) {
  if (comm.rank == 0) raise(SIGKILL);
  comm.barrier();
}

TVM_FFI_DLL_EXPORT_TYPED_FUNC(solution, solution);
