// expect: runtime_error rank 1 was killed by SIGSEGV; address outside; rank 1 stood at kernel.cpp:7
// Rank 1 writes to address 8; the others wait for it.
#include "pkb/bf16.h"
#include "pkb/symm.h"

void solution(tvm::ffi::TensorView tensor, tvm::ffi::TensorView out, pkb::Comm comm) {
  if (comm.rank == 1) *reinterpret_cast<volatile int*>(8) = 1;
  auto* result = static_cast<pkb::bf16*>(out.data_ptr());
  for (int64_t i = 0; i < tensor.numel(); ++i) {
    float sum = 0;
    for (int r = 0; r < comm.world_size; ++r) sum += comm.peer<pkb::bf16>(tensor, r)[i];
    result[i] = pkb::bf16(sum);
  }
  comm.barrier();
}

TVM_FFI_DLL_EXPORT_TYPED_FUNC(solution, solution);
