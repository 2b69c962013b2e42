// expect: passed
// until: time
// Fences for the compiler in assembly, and a section of its own.
#include "pkb/bf16.h"
#include "pkb/symm.h"

float sum_at(const tvm::ffi::TensorView& tensor, const pkb::Comm& comm, int64_t i) {
  float sum = 0;
  for (int r = 0; r < comm.world_size; ++r) sum += comm.peer<pkb::bf16>(tensor, r)[i];
  return sum;
}

asm(".section .note.kernel,\"\",%progbits\n.ascii \"a note\"\n.text");

void solution(tvm::ffi::TensorView tensor, tvm::ffi::TensorView out, pkb::Comm comm) {
  auto* result = static_cast<pkb::bf16*>(out.data_ptr());
  const int64_t n = tensor.numel();
  comm.barrier();
  for (int64_t i = 0; i < n; ++i) {
    float sum = sum_at(tensor, comm, i);
    asm volatile("" : "+m"(sum) : : "memory");
    result[i] = pkb::bf16(sum);
  }
  comm.barrier();
}

TVM_FFI_DLL_EXPORT_TYPED_FUNC(solution, solution);
