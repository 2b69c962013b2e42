// expect: runtime_error refused 5 of 5
// needs: bubblewrap
// A terminal of its own, or a session to have one in: what hangs up would send SIGCONT to a frozen rank.
#include <cerrno>
#include <fcntl.h>
#include <stdexcept>
#include <string>
#include <sys/ioctl.h>
#include <unistd.h>

#include "pkb/bf16.h"
#include "pkb/symm.h"

void solution(tvm::ffi::TensorView tensor, tvm::ffi::TensorView out, pkb::Comm comm) {
  int refused = 0;
  char byte = 'x';
  refused += posix_openpt(O_RDWR) < 0;
  refused += open("/dev/tty", O_RDWR) < 0;
  refused += setsid() < 0 && errno == EPERM && setpgid(0, 0) < 0 && errno == EPERM;
  refused += ioctl(1, TIOCSCTTY, 1) < 0 && errno == EPERM;
  refused += ioctl(1, TIOCSTI, &byte) < 0 && errno == EPERM;
  throw std::runtime_error("refused " + std::to_string(refused) + " of 5");
}

TVM_FFI_DLL_EXPORT_TYPED_FUNC(solution, solution);
