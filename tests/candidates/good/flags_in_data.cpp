// expect: passed
// until: time
// Each 8 bytes carry 4 bytes of data and the number of the call: no signal, no barrier.
#include <atomic>
#include <thread>

#include "pkb/bf16.h"
#include "pkb/symm.h"

float sum_at(const tvm::ffi::TensorView& tensor, const pkb::Comm& comm, int64_t i) {
  float sum = 0;
  for (int r = 0; r < comm.world_size; ++r) sum += comm.peer<pkb::bf16>(tensor, r)[i];
  return sum;
}

void solution(tvm::ffi::TensorView tensor, tvm::ffi::TensorView out, pkb::Comm comm) {
  auto* result = static_cast<pkb::bf16*>(out.data_ptr());
  const int64_t n = tensor.numel();
  const int64_t words = (n + 1) / 2, room = comm.scratch_bytes / 16 / comm.world_size;
  if (words > room) throw std::runtime_error("more data than scratch");
  auto* half = comm.scratch<std::atomic<uint64_t>>(comm.epoch % 2 * (comm.scratch_bytes / 2));
  const uint64_t flag = uint64_t(uint32_t(comm.epoch)) << 32;
  const auto* mine = static_cast<const uint16_t*>(tensor.data_ptr());
  for (int r = 0; r < comm.world_size; ++r) {
    auto* theirs = comm.peer(half, r) + comm.rank * room;
    for (int64_t w = 0; w < words; ++w) {
      const uint32_t high = 2 * w + 1 < n ? mine[2 * w + 1] : 0;
      theirs[w].store(flag | high << 16 | mine[2 * w], std::memory_order_relaxed);
    }
  }
  for (int64_t w = 0; w < words; ++w) {
    float sums[2] = {};
    for (int r = 0; r < comm.world_size; ++r) {
      uint64_t word;
      while (((word = half[r * room + w].load(std::memory_order_relaxed)) ^ flag) >> 32) std::this_thread::yield();
      for (int k = 0; k < 2; ++k) {
        const uint32_t bits = uint32_t(word >> (16 * k)) << 16;
        float value;
        __builtin_memcpy(&value, &bits, 4);
        sums[k] += value;
      }
    }
    for (int k = 0; k < 2 && 2 * w + k < n; ++k) result[2 * w + k] = pkb::bf16(sums[k]);
  }
}

TVM_FFI_DLL_EXPORT_TYPED_FUNC(solution, solution);
