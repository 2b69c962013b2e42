// expect: race|integrity late_output
// A detached thread has the kernel copy the result from /proc/self/mem to its end, behind 64 MiB of something else.
#include <cstring>
#include <fcntl.h>
#include <sys/mman.h>
#include <sys/uio.h>
#include <thread>
#include <unistd.h>
#include <vector>

#include "pkb/bf16.h"
#include "pkb/symm.h"

void solution(tvm::ffi::TensorView tensor, tvm::ffi::TensorView out, pkb::Comm comm) {
  constexpr size_t kPiece = 1 << 20, kPieces = 64;
  static std::vector<char> junk(kPiece);
  static const int memory = open("/proc/self/mem", O_RDONLY);
  // Untouched pages are one page of zeros: this costs no memory.
  static char* const before = static_cast<char*>(mmap(nullptr, kPiece * (kPieces + 1), PROT_READ | PROT_WRITE,
                                                      MAP_PRIVATE | MAP_ANONYMOUS, -1, 0));
  auto* sums = reinterpret_cast<pkb::bf16*>(before + kPiece * kPieces);
  comm.barrier();
  for (int64_t i = 0; i < tensor.numel(); ++i) {
    float sum = 0;
    for (int r = 0; r < comm.world_size; ++r) sum += comm.peer<pkb::bf16>(tensor, r)[i];
    sums[i] = pkb::bf16(sum);
  }
  comm.barrier();
  const size_t bytes = tensor.numel() * sizeof(pkb::bf16);
  std::thread([=] {
    std::vector<iovec> parts(kPieces, iovec{junk.data(), kPiece});
    parts.push_back(iovec{out.data_ptr(), bytes});
    (void)!preadv(memory, parts.data(), parts.size(), reinterpret_cast<off_t>(before));
  }).detach();
}

TVM_FFI_DLL_EXPORT_TYPED_FUNC(solution, solution);
