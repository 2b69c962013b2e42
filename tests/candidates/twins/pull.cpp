// expect: passed
// without entry: race
// without exit: race
// A one-shot all-reduce that reads the peers' tensors, between two meetings by atomics of its own.
#include <atomic>

#include "pkb/bf16.h"
#include "pkb/symm.h"

// Ranks meet at words of their own: `pkb/symm.h` knows of none.
static void meet(const pkb::Comm& comm, int phase) {
  for (int r = 0; r < comm.world_size; ++r) comm.signal_word(phase * comm.world_size + comm.rank, r)->store(comm.epoch);
  for (int r = 0; r < comm.world_size; ++r) {
    while (comm.signal_word(phase * comm.world_size + r, comm.rank)->load() < comm.epoch) sched_yield();
  }
}

void solution(tvm::ffi::TensorView tensor, tvm::ffi::TensorView out, pkb::Comm comm) {
  auto* result = static_cast<pkb::bf16*>(out.data_ptr());
  meet(comm, 0);  // sync: entry
  for (int64_t i = 0; i < tensor.numel(); ++i) {
    float sum = 0;
    for (int r = 0; r < comm.world_size; ++r) sum += comm.peer<pkb::bf16>(tensor, r)[i];
    result[i] = pkb::bf16(sum);
  }
  meet(comm, 1);  // sync: exit
}

TVM_FFI_DLL_EXPORT_TYPED_FUNC(solution, solution);
