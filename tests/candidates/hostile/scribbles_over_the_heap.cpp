// expect: timeout rank 0
// Overwrites all of the heap that it can reach, the pages by which ranks report among it, then loops.
#include <cstring>

#include "pkb/bf16.h"
#include "pkb/symm.h"

void solution(tvm::ffi::TensorView tensor, tvm::ffi::TensorView out, pkb::Comm comm) {
  if (comm.rank == 0) {
    for (int r = 0; r < comm.world_size; ++r) std::memset(comm.segments[r], 0xff, comm.segment_bytes);
    for (volatile long i = 0;; i = i + 1) {}
  }
}

TVM_FFI_DLL_EXPORT_TYPED_FUNC(solution, solution);
