// expect: passed
// world_size: 4
// until: time
// One rank reads and writes everything; the others wait for it in semaphores of POSIX, which lie in scratch.
#include <sched.h>
#include <semaphore.h>

#include <atomic>
#include <vector>

#include "pkb/bf16.h"
#include "pkb/symm.h"

struct Desk {
  std::atomic<uint64_t> is_made;
  sem_t begun, done;
};

void solution(tvm::ffi::TensorView tensor, tvm::ffi::TensorView out, pkb::Comm comm) {
  const int last = comm.world_size - 1;
  auto* mine = comm.scratch<Desk>();
  if (mine->is_made.load() == 0) {
    sem_init(&mine->begun, 1, 0);
    sem_init(&mine->done, 1, 0);
    mine->is_made.store(1);
  }
  if (comm.rank != last) {
    auto* desk = comm.peer(mine, last);
    while (desk->is_made.load() == 0) sched_yield();
    sem_post(&desk->begun);
    while (sem_wait(&mine->done) != 0) {
    }
    return;
  }
  for (int r = 0; r < last; ++r) {
    while (sem_wait(&mine->begun) != 0) {
    }
  }
  std::vector<float> sum(tensor.numel());
  for (int r = 0; r < comm.world_size; ++r) {
    const auto* from = comm.peer<pkb::bf16>(tensor, r);
    for (size_t i = 0; i < sum.size(); ++i) sum[i] += float(from[i]);
  }
  for (int r = 0; r < comm.world_size; ++r) {
    auto* to = comm.peer<pkb::bf16>(out, r);
    for (size_t i = 0; i < sum.size(); ++i) to[i] = pkb::bf16(sum[i]);
  }
  for (int r = 0; r < last; ++r) sem_post(&comm.peer(mine, r)->done);
}

TVM_FFI_DLL_EXPORT_TYPED_FUNC(solution, solution);
