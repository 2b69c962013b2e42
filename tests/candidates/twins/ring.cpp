// expect: passed
// problem: AllGather
// without data: race|output_mismatch
// without credit: race
// A ring: every shard travels from rank to rank through slots of scratch, which a rank fills again when they are free.
#include <atomic>
#include <cstring>

#include "pkb/symm.h"

// Waits for a word of this rank's: of flags the first W tell that a slot is full, the next W that it is free.
static void await(const pkb::Comm& comm, int word, uint64_t value) {
  while (comm.signal_word(word, comm.rank)->load() < value) sched_yield();
}

void solution(tvm::ffi::TensorView tensor, tvm::ffi::TensorView out, pkb::Comm comm) {
  const int W = comm.world_size, next = (comm.rank + 1) % W, before = (comm.rank + W - 1) % W;
  const int64_t bytes = tensor.numel() * 2;
  auto* slots = comm.scratch<char>();
  auto* result = static_cast<char*>(out.data_ptr());
  const auto* shard = static_cast<const char*>(tensor.data_ptr());
  for (int step = 0; step < W; ++step) {
    const int owner = (comm.rank + W - step) % W;
    if (step > 0) {
      await(comm, step, comm.epoch);  // sync: data
      shard = slots + step * bytes;
    }
    std::memcpy(result + owner * bytes, shard, bytes);
    if (step < W - 1) {
      await(comm, W + step + 1, comm.epoch - 1);  // sync: credit
      std::memcpy(comm.peer(slots, next) + (step + 1) * bytes, shard, bytes);
      comm.signal_word(step + 1, next)->store(comm.epoch);
    }
    if (step > 0) comm.signal_word(W + step, before)->store(comm.epoch);
  }
}

TVM_FFI_DLL_EXPORT_TYPED_FUNC(solution, solution);
