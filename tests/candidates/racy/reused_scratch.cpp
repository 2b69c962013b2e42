// expect: race was slower than the others; alternate between two halves of the scratch
// problem: AllGather
// Pushes into scratch that a slower peer may still read from the call before.
#include <cstring>

#include "pkb/symm.h"

void solution(tvm::ffi::TensorView tensor, tvm::ffi::TensorView out, pkb::Comm comm) {
  const int64_t bytes = tensor.numel() * 2;
  char* half = comm.scratch<char>();
  for (int r = 0; r < comm.world_size; ++r) {
    comm.put(half + comm.rank * bytes, tensor.data_ptr(), bytes, r);
    comm.signal(comm.rank, r);
  }
  for (int r = 0; r < comm.world_size; ++r) comm.wait(r);
  std::memcpy(out.data_ptr(), half, comm.world_size * bytes);
}

TVM_FFI_DLL_EXPORT_TYPED_FUNC(solution, solution);
