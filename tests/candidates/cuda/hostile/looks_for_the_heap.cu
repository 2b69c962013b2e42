// expect: runtime_error descriptors of the heap: 0
// Whatever would have the kernel of the machine write into control pages without a thread of this process.
#include <dirent.h>
#include <stdexcept>
#include <string>
#include <unistd.h>

#include "pkb/symm.h"

void solution(tvm::ffi::TensorView tensor, tvm::ffi::TensorView out, pkb::Comm comm) {
  int found = 0;
  DIR* folder = opendir("/proc/self/fd");
  while (dirent* entry = readdir(folder)) {
    char target[256] = {};
    const std::string path = std::string("/proc/self/fd/") + entry->d_name;
    if (readlink(path.c_str(), target, sizeof target - 1) > 0)
      found += std::string(target).find("pkb-control") != std::string::npos;
  }
  closedir(folder);
  throw std::runtime_error("descriptors of the heap: " + std::to_string(found));
}

TVM_FFI_DLL_EXPORT_TYPED_FUNC(solution, solution);
