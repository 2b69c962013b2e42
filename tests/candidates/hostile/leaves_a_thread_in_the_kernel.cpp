// expect: passed
// A thread of its waits in the kernel for the end of another one, where no signal would stop it.
#include <sched.h>
#include <sys/mman.h>
#include <unistd.h>

#include <chrono>
#include <thread>

#include "pkb/bf16.h"
#include "pkb/symm.h"

namespace {

int stay(void*) {
  for (;;) pause();
}

void wait_in_the_kernel() {
  constexpr size_t kBytes = 1 << 16;
  void* stack = mmap(nullptr, kBytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  const int flags = CLONE_VM | CLONE_FS | CLONE_FILES | CLONE_SIGHAND | CLONE_SYSVSEM | CLONE_THREAD | CLONE_VFORK;
  clone(stay, static_cast<char*>(stack) + kBytes, flags, nullptr);
}

}  // namespace

void solution(tvm::ffi::TensorView tensor, tvm::ffi::TensorView out, pkb::Comm comm) {
  static bool once = [] {
    std::thread(wait_in_the_kernel).detach();
    std::this_thread::sleep_for(std::chrono::milliseconds(20));
    return true;
  }();
  (void)once;
  comm.barrier();
  auto* result = static_cast<pkb::bf16*>(out.data_ptr());
  for (int64_t i = 0; i < tensor.numel(); ++i) {
    float sum = 0;
    for (int r = 0; r < comm.world_size; ++r) sum += comm.peer<pkb::bf16>(tensor, r)[i];
    result[i] = pkb::bf16(sum);
  }
  comm.barrier();
}

TVM_FFI_DLL_EXPORT_TYPED_FUNC(solution, solution);
