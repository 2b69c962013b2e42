// expect: runtime_error refused 5 of 5
// needs: bubblewrap
// Signals to the parent, to its process group and to every process.
#include <csignal>
#include <linux/seccomp.h>
#include <stdexcept>
#include <string>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "pkb/bf16.h"
#include "pkb/symm.h"

void solution(tvm::ffi::TensorView tensor, tvm::ffi::TensorView out, pkb::Comm comm) {
  // Harmless by mistake too: without a system call filter it sends nothing.
  if (prctl(PR_GET_SECCOMP) != SECCOMP_MODE_FILTER) throw std::runtime_error("no filter is in force");
  siginfo_t info{};
  info.si_code = SI_QUEUE;
  int refused = 0;
  refused += kill(getppid(), SIGKILL) != 0;
  refused += kill(0, SIGKILL) != 0;
  refused += kill(-1, SIGKILL) != 0;
  refused += syscall(SYS_tgkill, getppid(), getppid(), SIGKILL) != 0;
  refused += syscall(SYS_rt_sigqueueinfo, getppid(), SIGKILL, &info) != 0;
  throw std::runtime_error("refused " + std::to_string(refused) + " of 5");
}

TVM_FFI_DLL_EXPORT_TYPED_FUNC(solution, solution);
