// expect: passed
// without entry: race
// without middle: race|output_mismatch
// without exit: race
// A two-shot all-reduce: each rank sums its part of the peers' tensors, then all gather the parts from the outputs.
#include <algorithm>
#include <atomic>
#include <cstring>

#include "pkb/bf16.h"
#include "pkb/symm.h"

static void meet(const pkb::Comm& comm, int phase) {
  for (int r = 0; r < comm.world_size; ++r) comm.signal_word(phase * comm.world_size + comm.rank, r)->store(comm.epoch);
  for (int r = 0; r < comm.world_size; ++r) {
    while (comm.signal_word(phase * comm.world_size + r, comm.rank)->load() < comm.epoch) sched_yield();
  }
}

void solution(tvm::ffi::TensorView tensor, tvm::ffi::TensorView out, pkb::Comm comm) {
  auto* result = static_cast<pkb::bf16*>(out.data_ptr());
  const int64_t n = tensor.numel(), part = (n + comm.world_size - 1) / comm.world_size;
  meet(comm, 0);  // sync: entry
  for (int64_t i = comm.rank * part; i < std::min(n, (comm.rank + 1) * part); ++i) {
    float sum = 0;
    for (int r = 0; r < comm.world_size; ++r) sum += comm.peer<pkb::bf16>(tensor, r)[i];
    result[i] = pkb::bf16(sum);
  }
  meet(comm, 1);  // sync: middle
  for (int r = 0; r < comm.world_size; ++r) {
    if (r == comm.rank) continue;
    const int64_t first = r * part, end = std::min(n, first + part);
    if (first < end) std::memcpy(result + first, comm.peer(result, r) + first, (end - first) * sizeof(pkb::bf16));
  }
  meet(comm, 2);  // sync: exit
}

TVM_FFI_DLL_EXPORT_TYPED_FUNC(solution, solution);
