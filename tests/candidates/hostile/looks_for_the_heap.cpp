// expect: runtime_error descriptors of the heap: 0; refused 6 of 6
// Whatever would have the kernel write into an output without a thread of this process: a descriptor of the heap, and
// calls that go on by themselves.
#include <cerrno>
#include <dirent.h>
#include <stdexcept>
#include <string>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <unistd.h>

#include "pkb/bf16.h"
#include "pkb/symm.h"

void solution(tvm::ffi::TensorView tensor, tvm::ffi::TensorView out, pkb::Comm comm) {
  int found = 0;
  DIR* folder = opendir("/proc/self/fd");
  while (dirent* entry = readdir(folder)) {
    char target[256] = {};
    struct stat status {};
    const std::string path = std::string("/proc/self/fd/") + entry->d_name;
    if (readlink(path.c_str(), target, sizeof target - 1) > 0 && stat(path.c_str(), &status) == 0)
      found += std::string(target).find("pkb-heap") != std::string::npos ||
               (S_ISREG(status.st_mode) && status.st_size >= int64_t(comm.segment_bytes));
  }
  closedir(folder);
  char byte = 0;
  iovec here{&byte, 1}, there{out.data_ptr(), 1};
  long context = 0;
  int ends[2];
  int refused = pipe(ends) != 0;
  refused += syscall(SYS_process_vm_readv, getpid(), &here, 1, &there, 1, 0) < 0 && errno == EPERM;
  refused += syscall(SYS_process_vm_writev, getpid(), &here, 1, &there, 1, 0) < 0 && errno == EPERM;
  refused += syscall(SYS_vmsplice, ends[1], &there, 1, 0) < 0 && errno == EPERM;
  refused += syscall(SYS_io_setup, 1, &context) < 0 && errno == EPERM;
  refused += syscall(425 /* io_uring_setup */, 1, nullptr) < 0 && errno == EPERM;
  refused += syscall(SYS_userfaultfd, 0) < 0 && errno == EPERM;
  throw std::runtime_error("descriptors of the heap: " + std::to_string(found) + "; refused " +
                           std::to_string(refused) + " of 6");
}

TVM_FFI_DLL_EXPORT_TYPED_FUNC(solution, solution);
