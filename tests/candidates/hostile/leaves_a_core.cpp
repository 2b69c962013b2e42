// expect: runtime_error SIGABRT; limit of core dumps: 1
// Crashes with much memory: with a limit of 0 the machine's program for core dumps would write it to the disk, and keep a
// processor busy beside the next evaluation.
#include <sys/resource.h>

#include <cstdio>
#include <cstdlib>

#include "pkb/symm.h"

void solution(tvm::ffi::TensorView tensor, tvm::ffi::TensorView out, pkb::Comm comm) {
  rlimit limit{0, 0};
  setrlimit(RLIMIT_CORE, &limit);
  getrlimit(RLIMIT_CORE, &limit);
  std::fprintf(stderr, "limit of core dumps: %d\n", int(limit.rlim_cur));
  std::abort();
}

TVM_FFI_DLL_EXPORT_TYPED_FUNC(solution, solution);
