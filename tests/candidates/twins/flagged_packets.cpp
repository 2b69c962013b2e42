// expect: passed
// without parity: race
// An all-reduce by words that carry two elements and the number of the call. The words of a call lie in one half of the
// scratch, so that a peer may be a call ahead.
#include <atomic>
#include <cstring>

#include "pkb/bf16.h"
#include "pkb/symm.h"

void solution(tvm::ffi::TensorView tensor, tvm::ffi::TensorView out, pkb::Comm comm) {
  const int64_t words = tensor.numel() / 2, room = comm.scratch_bytes / 2 / 8 / comm.world_size;
  auto* inbox = comm.scratch<std::atomic<uint64_t>>();
  inbox += comm.epoch % 2 * room * comm.world_size;  // sync: parity
  const auto* own = static_cast<const uint32_t*>(tensor.data_ptr());
  for (int r = 0; r < comm.world_size; ++r) {
    for (int64_t w = 0; w < words; ++w) {
      comm.peer(inbox, r)[comm.rank * room + w].store(comm.epoch << 32 | own[w], std::memory_order_relaxed);
    }
  }
  auto* result = static_cast<pkb::bf16*>(out.data_ptr());
  for (int64_t w = 0; w < words; ++w) {
    float low = 0, high = 0;
    for (int r = 0; r < comm.world_size; ++r) {
      uint64_t word;
      while ((word = inbox[r * room + w].load(std::memory_order_relaxed)) >> 32 < comm.epoch) sched_yield();
      pkb::bf16 pair[2];
      std::memcpy(pair, &word, sizeof pair);
      low += pair[0], high += pair[1];
    }
    result[2 * w] = pkb::bf16(low), result[2 * w + 1] = pkb::bf16(high);
  }
}

TVM_FFI_DLL_EXPORT_TYPED_FUNC(solution, solution);
