// expect: passed
// problem: AllGather
// without entry: race
// without exit: race
// An all-gather that writes into the peers' outputs: they have begun before, and leave when all have written.
#include <atomic>
#include <cstring>

#include "pkb/symm.h"

static void meet(const pkb::Comm& comm, int phase) {
  for (int r = 0; r < comm.world_size; ++r) comm.signal_word(phase * comm.world_size + comm.rank, r)->store(comm.epoch);
  for (int r = 0; r < comm.world_size; ++r) {
    while (comm.signal_word(phase * comm.world_size + r, comm.rank)->load() < comm.epoch) sched_yield();
  }
}

void solution(tvm::ffi::TensorView tensor, tvm::ffi::TensorView out, pkb::Comm comm) {
  const int64_t bytes = tensor.numel() * 2;
  meet(comm, 0);  // sync: entry
  for (int r = 0; r < comm.world_size; ++r) {
    std::memcpy(comm.peer<char>(out, r) + comm.rank * bytes, tensor.data_ptr(), bytes);
  }
  meet(comm, 1);  // sync: exit
}

TVM_FFI_DLL_EXPORT_TYPED_FUNC(solution, solution);
