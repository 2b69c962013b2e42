// expect: runtime_error refused 4 of 4
// needs: bubblewrap
// ptrace, the memory of the parent, and a socket that heeds no network namespace.
#include <fcntl.h>
#include <stdexcept>
#include <string>
#include <sys/ptrace.h>
#include <sys/socket.h>
#include <sys/uio.h>
#include <unistd.h>

#include "pkb/bf16.h"
#include "pkb/symm.h"

void solution(tvm::ffi::TensorView tensor, tvm::ffi::TensorView out, pkb::Comm comm) {
  int refused = 0;
  char byte = 0;
  iovec here{&byte, 1}, there{&byte, 1};
  const std::string memory = "/proc/" + std::to_string(getppid()) + "/mem";
  refused += ptrace(PTRACE_ATTACH, getppid(), nullptr, nullptr) != 0;
  refused += process_vm_readv(getppid(), &here, 1, &there, 1, 0) < 0;
  refused += open(memory.c_str(), O_RDWR) < 0;
  refused += socket(40 /* AF_VSOCK */, SOCK_STREAM, 0) < 0;
  throw std::runtime_error("refused " + std::to_string(refused) + " of 4");
}

TVM_FFI_DLL_EXPORT_TYPED_FUNC(solution, solution);
