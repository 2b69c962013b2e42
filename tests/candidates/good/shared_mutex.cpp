// expect: passed
// until: time
// Ranks meet by a mutex and a condition variable that processes share, in rank 0's scratch.
#include <pthread.h>

#include "pkb/bf16.h"
#include "pkb/symm.h"

struct Meeting {
  pthread_mutex_t mutex;
  pthread_cond_t changed;
  std::atomic<uint64_t> ready;
  uint64_t arrived;
};

Meeting* make_meeting(const pkb::Comm& comm) {
  Meeting* meeting = comm.peer(comm.scratch<Meeting>(0), 0);
  if (comm.rank == 0) {
    pthread_mutexattr_t shared_mutex;
    pthread_mutexattr_init(&shared_mutex);
    pthread_mutexattr_setpshared(&shared_mutex, PTHREAD_PROCESS_SHARED);
    pthread_mutex_init(&meeting->mutex, &shared_mutex);
    pthread_condattr_t shared_condition;
    pthread_condattr_init(&shared_condition);
    pthread_condattr_setpshared(&shared_condition, PTHREAD_PROCESS_SHARED);
    pthread_cond_init(&meeting->changed, &shared_condition);
    meeting->ready.store(1, std::memory_order_release);
  }
  while (!meeting->ready.load(std::memory_order_acquire)) sched_yield();
  return meeting;
}

void meet(const pkb::Comm& comm, uint64_t number) {
  static Meeting* meeting = make_meeting(comm);
  pthread_mutex_lock(&meeting->mutex);
  ++meeting->arrived;
  pthread_cond_broadcast(&meeting->changed);
  while (meeting->arrived < number * comm.world_size) pthread_cond_wait(&meeting->changed, &meeting->mutex);
  pthread_mutex_unlock(&meeting->mutex);
}

void solution(tvm::ffi::TensorView tensor, tvm::ffi::TensorView out, pkb::Comm comm) {
  static uint64_t meetings = 0;
  auto* sums = static_cast<pkb::bf16*>(out.data_ptr());
  meet(comm, ++meetings);
  for (int64_t i = 0; i < tensor.numel(); ++i) {
    float sum = 0;
    for (int r = 0; r < comm.world_size; ++r) sum += comm.peer<pkb::bf16>(tensor, r)[i];
    sums[i] = pkb::bf16(sum);
  }
  meet(comm, ++meetings);
}

TVM_FFI_DLL_EXPORT_TYPED_FUNC(solution, solution);
