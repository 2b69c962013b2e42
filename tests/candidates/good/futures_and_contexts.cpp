// expect: passed
// until: time
// A future of each peer's part, and a scheduler of contexts that take turns in adding them up, on stacks from pools that
// grow in the first calls; algorithms with a policy, and a promise of the thread that writes.
#include <sys/mman.h>
#include <ucontext.h>

#include <algorithm>
#include <execution>
#include <future>
#include <memory_resource>
#include <thread>
#include <vector>

#include "pkb/bf16.h"
#include "pkb/symm.h"

namespace {

constexpr size_t kStack = 64 << 10;

struct Task {
  ucontext_t context;
  std::vector<float> from;
  float* sum;
  bool done;
};

thread_local std::pmr::unsynchronized_pool_resource pool;
thread_local ucontext_t scheduler;
std::vector<void*> stacks;

void add(unsigned high, unsigned low) {
  auto* task = reinterpret_cast<Task*>(uint64_t(high) << 32 | low);
  for (size_t at = 0; at < task->from.size(); ++at) {
    task->sum[at] += task->from[at];
    if (at % 100 == 99) swapcontext(&task->context, &scheduler);
  }
  task->done = true;
}

}  // namespace

void solution(tvm::ffi::TensorView tensor, tvm::ffi::TensorView out, pkb::Comm comm) {
  while (stacks.size() < size_t(comm.world_size)) {
    stacks.push_back(mmap(nullptr, kStack, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_STACK, -1, 0));
  }
  comm.barrier();
  const int64_t n = tensor.numel();
  std::vector<std::future<std::vector<float>>> parts;
  for (int r = 0; r < comm.world_size; ++r) {
    const auto* from = comm.peer<pkb::bf16>(tensor, r);
    parts.push_back(std::async(std::launch::async, [from, n] {
      std::vector<float> part(n);
      std::transform(std::execution::unseq, from, from + n, part.begin(), [](pkb::bf16 x) { return float(x); });
      return part;
    }));
  }
  std::pmr::vector<float> sum(n, &pool);
  std::pmr::vector<Task> tasks(comm.world_size, &pool);
  for (int r = 0; r < comm.world_size; ++r) {
    Task& task = tasks[r];
    task.from = parts[r].get();
    task.sum = sum.data();
    task.done = false;
    getcontext(&task.context);
    task.context.uc_stack.ss_sp = stacks[r];
    task.context.uc_stack.ss_size = kStack;
    task.context.uc_link = &scheduler;
    const auto address = reinterpret_cast<uint64_t>(&task);
    const auto body = reinterpret_cast<void (*)()>(add);
    makecontext(&task.context, body, 2, unsigned(address >> 32), unsigned(address));
  }
  for (bool busy = true; busy;) {
    busy = false;
    for (Task& task : tasks) {
      if (task.done) continue;
      busy = true;
      swapcontext(&scheduler, &task.context);
    }
  }
  std::promise<void> written;
  std::thread writer([&] {
    auto* to = static_cast<pkb::bf16*>(out.data_ptr());
    std::transform(sum.begin(), sum.end(), to, [](float x) { return pkb::bf16(x); });
    written.set_value();
  });
  written.get_future().wait();
  writer.join();
  comm.barrier();
}

TVM_FFI_DLL_EXPORT_TYPED_FUNC(solution, solution);
