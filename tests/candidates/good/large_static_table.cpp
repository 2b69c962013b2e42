// expect: passed
// until: time
// A table of 16 MiB that is computed when the library is loaded.
#include <array>
#include <memory>

#include "pkb/bf16.h"
#include "pkb/symm.h"

float sum_at(const tvm::ffi::TensorView& tensor, const pkb::Comm& comm, int64_t i) {
  float sum = 0;
  for (int r = 0; r < comm.world_size; ++r) sum += comm.peer<pkb::bf16>(tensor, r)[i];
  return sum;
}

// Every bfloat16 as a float, many times over.
float table[1 << 22];

const bool filled = [] {
  for (uint32_t i = 0; i < 1u << 22; ++i) {
    const uint32_t bits = (i & 0xffff) << 16;
    __builtin_memcpy(&table[i], &bits, 4);
  }
  return true;
}();

void solution(tvm::ffi::TensorView tensor, tvm::ffi::TensorView out, pkb::Comm comm) {
  auto* result = static_cast<pkb::bf16*>(out.data_ptr());
  const int64_t n = tensor.numel();
  comm.barrier();
  for (int64_t i = 0; i < n; ++i) {
    float sum = 0;
    for (int r = 0; r < comm.world_size; ++r) {
      uint16_t bits;
      __builtin_memcpy(&bits, comm.peer<pkb::bf16>(tensor, r) + i, 2);
      sum += table[bits];
    }
    result[i] = pkb::bf16(sum);
  }
  comm.barrier();
}

TVM_FFI_DLL_EXPORT_TYPED_FUNC(solution, solution);
