// expect: passed
// until: time
// Waits by futexes on words of the scratch, across processes; readers are coroutines with stacks of their own.
#include <linux/futex.h>
#include <sys/syscall.h>
#include <ucontext.h>
#include <unistd.h>

#include <climits>
#include <memory>
#include <vector>

#include "pkb/bf16.h"
#include "pkb/symm.h"

constexpr int kWordsApart = 16;

long futex(std::atomic<uint32_t>* word, int operation, uint32_t value) {
  return syscall(SYS_futex, word, operation, value, nullptr, nullptr, 0);
}

void meet(const pkb::Comm& comm, uint32_t number) {
  auto* own = comm.scratch<std::atomic<uint32_t>>(0);
  for (int r = 0; r < comm.world_size; ++r) {
    auto* word = comm.peer(own + comm.rank * kWordsApart, r);
    word->store(number, std::memory_order_release);
    futex(word, FUTEX_WAKE, INT_MAX);
  }
  for (int r = 0; r < comm.world_size; ++r) {
    auto* word = own + r * kWordsApart;
    for (uint32_t seen; int32_t((seen = word->load(std::memory_order_acquire)) - number) < 0;) {
      futex(word, FUTEX_WAIT, seen);
    }
  }
}

struct Reader {
  ucontext_t context;
  std::vector<char> stack = std::vector<char>(64 << 10);
  const pkb::bf16* values;
  bool done = false;
};

ucontext_t caller;
Reader* current;
std::vector<float> sums;

void add_in_chunks() {
  for (size_t i = 0; i < sums.size(); ++i) {
    sums[i] += current->values[i];
    if (i % 512 == 511) swapcontext(&current->context, &caller);
  }
  current->done = true;
}

void solution(tvm::ffi::TensorView tensor, tvm::ffi::TensorView out, pkb::Comm comm) {
  sums.assign(tensor.numel(), 0.0f);
  std::vector<std::unique_ptr<Reader>> readers;
  for (int r = 0; r < comm.world_size; ++r) {
    auto& reader = *readers.emplace_back(std::make_unique<Reader>());
    reader.values = comm.peer<pkb::bf16>(tensor, r);
    getcontext(&reader.context);
    reader.context.uc_stack.ss_sp = reader.stack.data();
    reader.context.uc_stack.ss_size = reader.stack.size();
    reader.context.uc_link = &caller;
    makecontext(&reader.context, add_in_chunks, 0);
  }
  meet(comm, uint32_t(2 * comm.epoch));
  for (bool more = true; more;) {
    more = false;
    for (auto& reader : readers) {
      if (reader->done) continue;
      current = reader.get();
      swapcontext(&caller, &current->context);
      more = true;
    }
  }
  meet(comm, uint32_t(2 * comm.epoch + 1));
  auto* result = static_cast<pkb::bf16*>(out.data_ptr());
  for (size_t i = 0; i < sums.size(); ++i) result[i] = pkb::bf16(sums[i]);
}

TVM_FFI_DLL_EXPORT_TYPED_FUNC(solution, solution);
