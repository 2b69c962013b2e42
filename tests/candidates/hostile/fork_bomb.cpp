// expect: runtime_error fork refused: Operation not permitted
// Forks; a refusal of each attempt is reported.
#include <cerrno>
#include <cstring>
#include <stdexcept>
#include <string>
#include <unistd.h>

#include "pkb/bf16.h"
#include "pkb/symm.h"

void solution(tvm::ffi::TensorView tensor, tvm::ffi::TensorView out, pkb::Comm comm) {
  for (int i = 0; i < 16; ++i) {
    const pid_t pid = fork();
    if (pid == 0) pause();
    if (pid < 0) throw std::runtime_error(std::string("fork refused: ") + std::strerror(errno));
  }
  auto* result = static_cast<pkb::bf16*>(out.data_ptr());
  for (int64_t i = 0; i < tensor.numel(); ++i) {
    float sum = 0;
    for (int r = 0; r < comm.world_size; ++r) sum += comm.peer<pkb::bf16>(tensor, r)[i];
    result[i] = pkb::bf16(sum);
  }
}

TVM_FFI_DLL_EXPORT_TYPED_FUNC(solution, solution);
