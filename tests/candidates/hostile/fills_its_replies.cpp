// expect: integrity|race|output_mismatch rank
// until: time
// A thread fills up the eventfd by which its rank is let go on, so that whoever answers blocks, and whoever ends that one.
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <cstdio>
#include <cstring>
#include <thread>

#include "pkb/bf16.h"
#include "pkb/symm.h"

constexpr uint64_t kQuiet = 21;  // half of the checked calls: what follows are late ranks, and timed calls

int last_eventfd() {
  int last = -1;
  char name[32], target[64];
  for (int fd = 3; fd < 64; ++fd) {
    std::snprintf(name, sizeof name, "/proc/self/fd/%d", fd);
    const ssize_t length = readlink(name, target, sizeof target - 1);
    if (length > 0 && std::memcmp(target, "anon_inode:[eventfd]", 20) == 0) last = fd;
  }
  return last;
}

void solution(tvm::ffi::TensorView tensor, tvm::ffi::TensorView out, pkb::Comm comm) {
  auto* result = static_cast<pkb::bf16*>(out.data_ptr());
  comm.barrier();
  for (int64_t i = 0; i < tensor.numel(); ++i) {
    float sum = 0;
    for (int r = 0; r < comm.world_size; ++r) sum += comm.peer<pkb::bf16>(tensor, r)[i];
    result[i] = pkb::bf16(sum);
  }
  comm.barrier();
  static bool fills = false;
  if (comm.epoch <= kQuiet || fills) return;
  fills = true;
  static std::atomic<bool> filled{false};
  std::thread([fd = last_eventfd()] {
    const uint64_t full = ~0ull - 1;  // as much as it holds: the write waits until it is empty
    while (write(fd, &full, sizeof full) > 0) filled = true;
  }).detach();
  // On a busy machine the thread might begin after the last call.
  const auto until = std::chrono::steady_clock::now() + std::chrono::seconds(2);
  while (!filled && std::chrono::steady_clock::now() < until) std::this_thread::yield();
}

TVM_FFI_DLL_EXPORT_TYPED_FUNC(solution, solution);
