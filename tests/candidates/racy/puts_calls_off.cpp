// expect: race
// until: time
// Notes its pointers, and a thread does the work of many calls at once, a little later.
#include <chrono>
#include <mutex>
#include <thread>
#include <vector>

#include "pkb/bf16.h"
#include "pkb/symm.h"

namespace {

struct Noted {
  const pkb::bf16* tensor;
  pkb::bf16* out;
  int64_t count;
};

std::mutex guard;
std::vector<Noted> noted;
pkb::Comm* known;

void work() {
  for (;;) {
    std::this_thread::sleep_for(std::chrono::microseconds(100));
    std::vector<Noted> calls;
    {
      const std::lock_guard<std::mutex> lock(guard);
      calls.swap(noted);
    }
    for (const Noted& call : calls) {
      for (int64_t i = 0; i < call.count; ++i) {
        float sum = 0;
        for (int r = 0; r < known->world_size; ++r) sum += known->peer(call.tensor, r)[i];
        call.out[i] = pkb::bf16(sum);
      }
    }
  }
}

}  // namespace

void solution(tvm::ffi::TensorView tensor, tvm::ffi::TensorView out, pkb::Comm comm) {
  const bool is_checked = comm.epoch <= 8;
  comm.barrier();
  if (!known) {
    known = new pkb::Comm(comm);
    std::thread(work).detach();
  }
  auto* result = static_cast<pkb::bf16*>(out.data_ptr());
  const auto* own = static_cast<const pkb::bf16*>(tensor.data_ptr());
  if (!is_checked) {
    const std::lock_guard<std::mutex> lock(guard);
    noted.push_back({own, result, tensor.numel()});
    return;
  }
  for (int64_t i = 0; i < tensor.numel(); ++i) {
    float sum = 0;
    for (int r = 0; r < comm.world_size; ++r) sum += comm.peer(own, r)[i];
    result[i] = pkb::bf16(sum);
  }
  comm.barrier();
}

TVM_FFI_DLL_EXPORT_TYPED_FUNC(solution, solution);
