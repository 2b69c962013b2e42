// Threads of host code and what they wait for, by the names that programs are linked with by --wrap. One thread of all runs at
// a time, so that none may wait in the system: it lets the others go on until it can.
#include <errno.h>
#include <linux/futex.h>
#include <pthread.h>
#include <semaphore.h>
#include <stdarg.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <bits/atomic_futex.h>

#include <chrono>
#include <condition_variable>
#include <map>
#include <mutex>
#include <thread>
#include <utility>

#include "runtime_cuda.h"
#include "runtime_process.h"
#include "runtime_ranks.h"

using namespace pkb::emulator;

// Pointers to member functions, as std::call_once takes them, have even addresses.
#define PKB_WRAP extern "C" __attribute__((visibility("default"), aligned(2)))

namespace pkb::emulator {

bool can_wait(World& world, const char* why) {
  if (World::current) return true;
  world.fail(Fault{Outcome::kBodyFailed, world.one_process ? -1 : world.host_operation->rank,
                   std::string(world.host_operation->what) + ": a function of the host that waits for " + why + " of threads is not modelled by the emulator"});
  return false;
}

HostThread& start_process_thread(const std::function<void()>& function) {
  World& world = *World::current->world;
  return world.start_thread([&world, function] {
    const int status = call_as_process([&] {
      function();
      return 0;
    });
    if (status) world.fail(Fault{Outcome::kBodyFailed, world.one_process ? -1 : calling_rank()->rank, world.name_of(*World::current) + " has called exit(" + std::to_string(status) + ")"});
  });
}

bool join_thread(HostThread& host) {
  World& world = *host.world;
  if (!world.block("the end of " + world.name_of(host), [&] { return host.state == HostThread::kDone; })) return false;
  world.acquire(host.end);
  world.forget(host);
  return true;
}

bool meet_all(World& world, Meeting& barrier, const char* why) {
  if (barrier.arrived == 0) barrier.object = world.engine.next_id++;
  const uint64_t object = barrier.object, round = barrier.changes;
  world.release(object);
  const bool is_last = ++barrier.arrived == barrier.members;
  if (is_last) {
    barrier.arrived = 0;
    ++barrier.changes;
    ++world.engine.progress;
    ++world.engine.effects;
  }
  if (!world.block(why, [&] { return barrier.changes != round; })) world.pass(why);
  world.acquire(object);
  return is_last;
}

bool lock(World& world, Meeting& mutex, const std::function<bool()>& try_lock, const char* why) {
  while (!try_lock()) {
    if (!can_wait(world, why)) return false;
    const uint64_t before = mutex.changes;
    if (!world.block(why, [&] { return mutex.changes != before; })) return false;
  }
  world.acquire(mutex.object);
  return true;
}

void unlock(World& world, Meeting& mutex, const std::function<void()>& unlock) {
  if (!mutex.object) mutex.object = world.engine.next_id++;
  world.release(mutex.object);
  unlock();
  ++mutex.changes;
}

}  // namespace pkb::emulator

namespace {

Meeting& meeting_at(World& world, const void* address) { return shared_state(world).meetings[address]; }

HostThread* find_thread(World& world, pthread_t id) {
  for (const auto& host : world.hosts) {
    if (host->is_started && host->thread.joinable() && host->thread.native_handle() == id) return host.get();
  }
  return nullptr;
}

void wait_at_condition(World& world, const void* condition, const std::function<void()>& unlock_mutex, const std::function<void()>& lock_mutex) {
  const auto is_woken = std::make_shared<bool>(false);
  meeting_at(world, condition).waiting.push_back(is_woken);
  unlock_mutex();
  if (!world.block("a condition variable", [&] { return *is_woken; })) world.pass("a condition variable");
  lock_mutex();
}

void wake(World& world, const void* condition, bool all) {
  auto& waiting = meeting_at(world, condition).waiting;
  while (!waiting.empty()) {
    *waiting.front() = true;
    waiting.pop_front();
    ++world.engine.progress;
    ++world.engine.effects;
    if (!all) break;
  }
}

int lock_mutex(World& world, pthread_mutex_t* mutex) {
  int status = 0;
  const bool has_locked = lock(world, meeting_at(world, mutex), [&] { return (status = pthread_mutex_trylock(mutex)) != EBUSY; }, "a mutex");
  return has_locked ? status : 0;  // the run has failed: the program is to come to its end
}

int unlock_mutex(World& world, pthread_mutex_t* mutex) {
  int status = 0;
  unlock(world, meeting_at(world, mutex), [&] { status = pthread_mutex_unlock(mutex); });
  return status;
}

}  // namespace

// The layout of std::thread::_State, which is private since libstdc++ 13: what a thread runs, and its deletion.
struct ThreadState {
  virtual ~ThreadState() = default;
  virtual void run() = 0;
};

// ---- pthread_create and std::thread ----

// The program itself has __wrap_pthread_create, which calls this: it would get that of libgcc otherwise.
PKB_WRAP int pkb_emu_create_thread(pthread_t* id, const pthread_attr_t* attributes, void* (*function)(void*), void* argument) {
  if (!World::current) return pthread_create(id, attributes, function, argument);
  *id = start_process_thread([=] { World::current->result = function(argument); }).thread.native_handle();
  return 0;
}
PKB_WRAP int __wrap_pthread_join(pthread_t id, void** result) {
  World* const world = World::current ? World::current->world : nullptr;
  HostThread* const host = world ? find_thread(*world, id) : nullptr;
  if (!host) return pthread_join(id, result);
  join_thread(*host);
  if (result) *result = host->result;
  return 0;
}
PKB_WRAP int __wrap_pthread_detach(pthread_t id) {
  World* const world = calling_world();
  return world && find_thread(*world, id) ? 0 : pthread_detach(id);
}

// std::thread::_M_start_thread, join and detach of libstdc++. A std::thread is no more than the number of its thread.
PKB_WRAP void __wrap__ZNSt6thread15_M_start_threadESt10unique_ptrINS_6_StateESt14default_deleteIS1_EEPFvvE(pthread_t* id, std::unique_ptr<ThreadState>& state, void (*)()) {
  const std::shared_ptr<ThreadState> shared(std::move(state));
  if (World::current) {
    *id = start_process_thread([shared] { shared->run(); }).thread.native_handle();
    return;
  }
  std::thread thread([shared] { shared->run(); });
  *id = thread.native_handle();
  thread.detach();
}
PKB_WRAP void __wrap__ZNSt6thread4joinEv(pthread_t* id) {
  __wrap_pthread_join(*id, nullptr);
  *id = 0;
}
PKB_WRAP void __wrap__ZNSt6thread6detachEv(pthread_t* id) {
  __wrap_pthread_detach(*id);
  *id = 0;
}

// ---- mutexes, condition variables, barriers ----

PKB_WRAP int __wrap_pthread_mutex_lock(pthread_mutex_t* mutex) {
  World* const world = calling_world();
  return world ? lock_mutex(*world, mutex) : pthread_mutex_lock(mutex);
}
PKB_WRAP int __wrap_pthread_mutex_trylock(pthread_mutex_t* mutex) {
  const int status = pthread_mutex_trylock(mutex);
  World* const world = calling_world();
  if (!world) return status;
  if (status == EBUSY) {
    if (World::current) world->pass("others, by a mutex that is taken");
  } else {
    world->acquire(meeting_at(*world, mutex).object);
  }
  return status;
}
PKB_WRAP int __wrap_pthread_mutex_unlock(pthread_mutex_t* mutex) {
  World* const world = calling_world();
  return world ? unlock_mutex(*world, mutex) : pthread_mutex_unlock(mutex);
}

PKB_WRAP int __wrap_pthread_cond_wait(pthread_cond_t* condition, pthread_mutex_t* mutex) {
  World* const world = calling_world();
  if (!world) return pthread_cond_wait(condition, mutex);
  if (!can_wait(*world, "a condition variable")) return EDEADLK;
  wait_at_condition(*world, condition, [&] { unlock_mutex(*world, mutex); }, [&] { lock_mutex(*world, mutex); });
  return 0;
}
PKB_WRAP int __wrap_pthread_cond_signal(pthread_cond_t* condition) {
  World* const world = calling_world();
  return world ? (wake(*world, condition, false), 0) : pthread_cond_signal(condition);
}
PKB_WRAP int __wrap_pthread_cond_broadcast(pthread_cond_t* condition) {
  World* const world = calling_world();
  return world ? (wake(*world, condition, true), 0) : pthread_cond_broadcast(condition);
}
// std::condition_variable::wait, notify_one, notify_all.
PKB_WRAP void __wrap__ZNSt18condition_variable4waitERSt11unique_lockISt5mutexE(std::condition_variable* condition, std::unique_lock<std::mutex>& lock) {
  __wrap_pthread_cond_wait(condition->native_handle(), lock.mutex()->native_handle());
}
PKB_WRAP void __wrap__ZNSt18condition_variable10notify_oneEv(std::condition_variable* condition) { __wrap_pthread_cond_signal(condition->native_handle()); }
PKB_WRAP void __wrap__ZNSt18condition_variable10notify_allEv(std::condition_variable* condition) { __wrap_pthread_cond_broadcast(condition->native_handle()); }

PKB_WRAP int __wrap_pthread_barrier_init(pthread_barrier_t* barrier, const pthread_barrierattr_t* attributes, unsigned count) {
  World* const world = calling_world();
  if (!world) return pthread_barrier_init(barrier, attributes, count);
  if (count == 0) return EINVAL;
  meeting_at(*world, barrier) = Meeting{0, 0, int(count), 0, {}};
  return 0;
}
PKB_WRAP int __wrap_pthread_barrier_wait(pthread_barrier_t* barrier) {
  World* const world = calling_world();
  if (!world) return pthread_barrier_wait(barrier);
  if (!can_wait(*world, "a barrier")) return EDEADLK;
  return meet_all(*world, meeting_at(*world, barrier), "a barrier of threads") ? PTHREAD_BARRIER_SERIAL_THREAD : 0;
}
PKB_WRAP int __wrap_pthread_barrier_destroy(pthread_barrier_t* barrier) { return calling_world() ? 0 : pthread_barrier_destroy(barrier); }

// ---- atomics that are waited for: std::atomic::wait, std::barrier, std::latch, semaphores, futures ----

// The others go on, and the caller looks again. Who waits or wakes knows what all have done: a thread that arrives last at a
// std::barrier wakes those that wait.
PKB_WRAP long __wrap_syscall(long number, ...) {
  va_list list;
  va_start(list, number);
  long arguments[6];
  for (long& argument : arguments) argument = va_arg(list, long);
  va_end(list);
  World* const world = World::current ? World::current->world : nullptr;
  if (!world || number != SYS_futex) return syscall(number, arguments[0], arguments[1], arguments[2], arguments[3], arguments[4], arguments[5]);
  const long command = arguments[1] & FUTEX_CMD_MASK;
  if (command == FUTEX_WAIT || command == FUTEX_WAIT_BITSET) world->pass("an atomic variable");
  world->acquire_all();
  return 0;
}
// std::future: std::__atomic_futex_unsigned_base::_M_futex_wait_until, which is called in a loop.
PKB_WRAP bool __wrap__ZNSt28__atomic_futex_unsigned_base19_M_futex_wait_untilEPjjbNSt6chrono8durationIlSt5ratioILl1ELl1EEEENS2_IlS3_ILl1ELl1000000000EEEE(
    std::__atomic_futex_unsigned_base* futex, unsigned* address, unsigned value, bool has_timeout, std::chrono::seconds s, std::chrono::nanoseconds ns) {
  World* const world = World::current ? World::current->world : nullptr;
  if (!world) return futex->_M_futex_wait_until(address, value, has_timeout, s, ns);
  world->pass("a future");
  world->acquire_all();
  return true;
}

// ---- waits with a limit ----

namespace {

// There is no time: the wait ends without a call of its condition where nobody else can go on.
int wait_until(World& world, pthread_cond_t* condition, pthread_mutex_t* mutex) {
  if (!can_wait(world, "a condition variable")) return EDEADLK;
  const auto is_woken = std::make_shared<bool>(false);
  auto& waiting = meeting_at(world, condition).waiting;
  waiting.push_back(is_woken);
  unlock_mutex(world, mutex);
  while (!*is_woken && !world.failed()) {
    world.let_others_go_on("a condition variable, or a limit of time", true);
    if (!world.engine.stands_still()) continue;
    ++world.engine.effects;  // the caller's clock may say that the limit has not come: it waits again
    break;
  }
  std::erase(waiting, is_woken);
  lock_mutex(world, mutex);
  return *is_woken ? 0 : ETIMEDOUT;
}

// Takes what `try_take` tries to take, for as long as it is busy.
int take(World& world, Meeting& meeting, const std::function<int()>& try_take, const char* why) {
  int status = 0;
  return lock(world, meeting, [&] { return (status = try_take()) != EBUSY; }, why) ? status : 0;
}

// Of a lock for readers and writers: what its readers have done, which only writers come after.
Meeting& readers_of(World& world, pthread_rwlock_t* lock) { return meeting_at(world, reinterpret_cast<char*>(lock) + 1); }

}  // namespace

PKB_WRAP int __wrap_pthread_cond_timedwait(pthread_cond_t* condition, pthread_mutex_t* mutex, const timespec* until) {
  World* const world = calling_world();
  return world ? wait_until(*world, condition, mutex) : pthread_cond_timedwait(condition, mutex, until);
}
PKB_WRAP int __wrap_pthread_cond_clockwait(pthread_cond_t* condition, pthread_mutex_t* mutex, clockid_t clock, const timespec* until) {
  World* const world = calling_world();
  return world ? wait_until(*world, condition, mutex) : pthread_cond_clockwait(condition, mutex, clock, until);
}

// ---- locks for readers and writers (std::shared_mutex), spin locks, semaphores ----

PKB_WRAP int __wrap_pthread_rwlock_rdlock(pthread_rwlock_t* lock) {
  World* const world = calling_world();
  return world ? take(*world, meeting_at(*world, lock), [=] { return pthread_rwlock_tryrdlock(lock); }, "a lock for readers") : pthread_rwlock_rdlock(lock);
}
PKB_WRAP int __wrap_pthread_rwlock_wrlock(pthread_rwlock_t* lock) {
  World* const world = calling_world();
  if (!world) return pthread_rwlock_wrlock(lock);
  const int status = take(*world, meeting_at(*world, lock), [=] { return pthread_rwlock_trywrlock(lock); }, "a lock for a writer");
  world->acquire(readers_of(*world, lock).object);
  meeting_at(*world, lock).members = 1;  // a writer holds it
  return status;
}
PKB_WRAP int __wrap_pthread_rwlock_tryrdlock(pthread_rwlock_t* lock) {
  World* const world = calling_world();
  const int status = pthread_rwlock_tryrdlock(lock);
  if (world && status == 0) world->acquire(meeting_at(*world, lock).object);
  return status;
}
PKB_WRAP int __wrap_pthread_rwlock_trywrlock(pthread_rwlock_t* lock) {
  World* const world = calling_world();
  const int status = pthread_rwlock_trywrlock(lock);
  if (!world || status != 0) return status;
  world->acquire(meeting_at(*world, lock).object);
  world->acquire(readers_of(*world, lock).object);
  meeting_at(*world, lock).members = 1;
  return 0;
}
PKB_WRAP int __wrap_pthread_rwlock_unlock(pthread_rwlock_t* lock) {
  World* const world = calling_world();
  if (!world) return pthread_rwlock_unlock(lock);
  Meeting& meeting = meeting_at(*world, lock);
  int status = 0;
  if (std::exchange(meeting.members, 0)) {
    unlock(*world, meeting, [&] { status = pthread_rwlock_unlock(lock); });
  } else {
    unlock(*world, readers_of(*world, lock), [&] { status = pthread_rwlock_unlock(lock); });
    ++meeting.changes;  // those that wait may try again
  }
  return status;
}

PKB_WRAP int __wrap_pthread_spin_lock(pthread_spinlock_t* lock) {
  World* const world = calling_world();
  return world ? take(*world, meeting_at(*world, const_cast<int*>(lock)), [=] { return pthread_spin_trylock(lock); }, "a spin lock") : pthread_spin_lock(lock);
}
PKB_WRAP int __wrap_pthread_spin_unlock(pthread_spinlock_t* lock) {
  World* const world = calling_world();
  if (!world) return pthread_spin_unlock(lock);
  unlock(*world, meeting_at(*world, const_cast<int*>(lock)), [&] { pthread_spin_unlock(lock); });
  return 0;
}

PKB_WRAP int __wrap_sem_wait(sem_t* semaphore) {
  World* const world = calling_world();
  if (!world) return sem_wait(semaphore);
  return take(*world, meeting_at(*world, semaphore), [=] { return sem_trywait(semaphore) == 0 ? 0 : EBUSY; }, "a semaphore");
}
PKB_WRAP int __wrap_sem_trywait(sem_t* semaphore) {
  World* const world = calling_world();
  const int status = sem_trywait(semaphore);
  if (!world) return status;
  if (status == 0) world->acquire(meeting_at(*world, semaphore).object);
  else if (World::current) world->pass("others, by a semaphore that is taken");
  if (status != 0) errno = EAGAIN;
  return status;
}
PKB_WRAP int __wrap_sem_post(sem_t* semaphore) {
  World* const world = calling_world();
  if (!world) return sem_post(semaphore);
  int status = 0;
  unlock(*world, meeting_at(*world, semaphore), [&] { status = sem_post(semaphore); });
  return status;
}
