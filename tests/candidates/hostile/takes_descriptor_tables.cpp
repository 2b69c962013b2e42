// expect: runtime_error refused 2 of 2
// The limit of descriptors is that of a table: threads with tables of their own would have as many each, and the watches
// of epoll between these are counted for all programs of a user.
#include <cerrno>
#include <linux/close_range.h>
#include <sched.h>
#include <sys/syscall.h>
#include <thread>
#include <unistd.h>
#include <vector>

#include "pkb/symm.h"

int wait_for_ever(void*) {
  for (;;) pause();
}

void solution(tvm::ffi::TensorView tensor, tvm::ffi::TensorView out, pkb::Comm comm) {
  static std::vector<char> stack(1 << 18);
  int refused = 0;
  const int started = clone(wait_for_ever, stack.data() + stack.size(), CLONE_VM | CLONE_SIGHAND | CLONE_THREAD, nullptr);
  refused += started < 0 && errno == EPERM;
  std::thread([&] {
    constexpr unsigned kNone = 4'000'000;
    refused += syscall(SYS_close_range, kNone, kNone, CLOSE_RANGE_UNSHARE) < 0 && errno == EPERM;
  }).join();
  TVM_FFI_THROW(RuntimeError) << "refused " << refused << " of 2";
}

TVM_FFI_DLL_EXPORT_TYPED_FUNC(solution, solution);
