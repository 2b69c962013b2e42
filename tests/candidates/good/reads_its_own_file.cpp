// expect: passed
// until: time
// Writes a file in its folder and reads it again, in one call that ends with the call.
#include <fcntl.h>
#include <stdexcept>
#include <unistd.h>
#include <vector>

#include "pkb/bf16.h"
#include "pkb/symm.h"

float sum_at(const tvm::ffi::TensorView& tensor, const pkb::Comm& comm, int64_t i) {
  float sum = 0;
  for (int r = 0; r < comm.world_size; ++r) sum += comm.peer<pkb::bf16>(tensor, r)[i];
  return sum;
}

#include <string>

void solution(tvm::ffi::TensorView tensor, tvm::ffi::TensorView out, pkb::Comm comm) {
  auto* result = static_cast<pkb::bf16*>(out.data_ptr());
  const int64_t n = tensor.numel();
  static const int file = open(("sums-" + std::to_string(comm.rank)).c_str(), O_RDWR | O_CREAT, 0600);
  comm.barrier();
  std::vector<pkb::bf16> sums(n);
  for (int64_t i = 0; i < n; ++i) sums[i] = pkb::bf16(sum_at(tensor, comm, i));
  const ssize_t bytes = n * 2;
  if (pwrite(file, sums.data(), bytes, 0) != bytes || pread(file, result, bytes, 0) != bytes)
    throw std::runtime_error("no file");
  comm.barrier();
}

TVM_FFI_DLL_EXPORT_TYPED_FUNC(solution, solution);
