// expect: race|integrity late_output
// A detached thread has the kernel copy the result from a file: one long call, which no signal interrupts, behind 64 MiB
// of something else.
#include <fcntl.h>
#include <string>
#include <sys/uio.h>
#include <thread>
#include <unistd.h>
#include <vector>

#include "pkb/bf16.h"
#include "pkb/symm.h"

void solution(tvm::ffi::TensorView tensor, tvm::ffi::TensorView out, pkb::Comm comm) {
  constexpr size_t kPiece = 1 << 20, kPieces = 64;
  static std::vector<char> junk(kPiece);
  static const int file = open(("late-" + std::to_string(comm.rank)).c_str(), O_RDWR | O_CREAT, 0600);
  static const bool filled = ftruncate(file, kPiece * kPieces) == 0;
  if (!filled) throw std::runtime_error("no file of this size");
  comm.barrier();
  std::vector<pkb::bf16> sums(tensor.numel());
  for (int64_t i = 0; i < tensor.numel(); ++i) {
    float sum = 0;
    for (int r = 0; r < comm.world_size; ++r) sum += comm.peer<pkb::bf16>(tensor, r)[i];
    sums[i] = pkb::bf16(sum);
  }
  const size_t bytes = sums.size() * sizeof(pkb::bf16);
  if (pwrite(file, sums.data(), bytes, kPiece * kPieces) != ssize_t(bytes)) throw std::runtime_error("not written");
  comm.barrier();
  std::thread([=] {
    std::vector<iovec> parts(kPieces, iovec{junk.data(), kPiece});
    parts.push_back(iovec{out.data_ptr(), bytes});
    (void)!preadv(file, parts.data(), parts.size(), 0);
  }).detach();
}

TVM_FFI_DLL_EXPORT_TYPED_FUNC(solution, solution);
