// expect: race went on before rank; comm.epoch
// problem: AllGather
// Waits for a flag that the call before has left: only its first call is safe.
#include <cstring>

#include "pkb/symm.h"

void solution(tvm::ffi::TensorView tensor, tvm::ffi::TensorView out, pkb::Comm comm) {
  const int64_t bytes = tensor.numel() * 2;
  char* half = comm.scratch<char>(comm.epoch % 2 * (comm.scratch_bytes / 2));
  for (int r = 0; r < comm.world_size; ++r) {
    comm.put(half + comm.rank * bytes, tensor.data_ptr(), bytes, r);
    comm.signal(comm.rank, r, 1);
  }
  for (int r = 0; r < comm.world_size; ++r) comm.wait(r, 1);
  std::memcpy(out.data_ptr(), half, comm.world_size * bytes);
}

TVM_FFI_DLL_EXPORT_TYPED_FUNC(solution, solution);
