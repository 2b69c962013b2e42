// What g++ -fopenmp calls: teams of threads, their barriers and critical sections, by the names that programs are linked with
// by --wrap.
#include <algorithm>
#include <cstdint>
#include <map>
#include <utility>
#include <vector>

#include "runtime_cuda.h"
#include "runtime_process.h"
#include "runtime_ranks.h"

using namespace pkb::emulator;

#define PKB_OPENMP extern "C" __attribute__((visibility("default")))

namespace {

// A loop whose threads take chunks of iterations as they come, or sections.
struct Loop {
  long next, end, step, chunk;
  bool is_guided = false;
  int left = 0;  // threads that have done with it
};
struct Team {
  int size;
  Meeting barrier;
  uint64_t singles = 0;  // that a thread has taken
  void* copied = nullptr;  // by the thread of a single region to the others
  std::map<uint64_t, Loop> loops;  // by number, those that threads are in
};
struct Member {
  Team* team;
  int number;
  uint64_t singles = 0;
  uint64_t loops = 0;  // that it has come to
};
thread_local Member* member = nullptr;  // null: outside of all teams
int wanted_threads = 0;                 // by omp_set_num_threads; 0: one for each GPU

// A critical section by its name.
void enter(const void* name) {
  World* const world = calling_world();
  if (!world) return;
  Meeting& mutex = shared_state(*world).meetings[name];
  lock(*world, mutex, [&] { return std::exchange(mutex.members, 1) == 0; }, "a critical section");
}
void leave(const void* name) {
  World* const world = calling_world();
  if (!world) return;
  Meeting& mutex = shared_state(*world).meetings[name];
  unlock(*world, mutex, [&] { mutex.members = 0; });
}
const char kCritical = 0, kAtomic = 1;

// Outside of a parallel region a thread is a team by itself.
thread_local Team alone{1, {}};
thread_local Member single{&alone, 0};
Member& own() { return member ? *member : single; }

// The thread has come to its next loop.
void begin(const Loop& loop) {
  Member& mine = own();
  mine.team->loops.try_emplace(++mine.loops, loop);
}

// A chunk of it; false: there is none left. Others go on first, so that all take part.
bool take(long* begin, long* end) {
  Member& mine = own();
  if (World* const world = calling_world(); world && World::current && mine.team->size > 1) world->pass("the other threads of a loop");
  Loop& loop = mine.team->loops.at(mine.loops);
  const long rest = (loop.end - loop.next) / loop.step + ((loop.end - loop.next) % loop.step != 0);
  if (rest <= 0) return false;
  const long count = std::min(rest, loop.is_guided ? std::max(loop.chunk, rest / mine.team->size) : loop.chunk);
  *begin = loop.next;
  loop.next += count * loop.step;
  *end = loop.step > 0 ? std::min(loop.next, loop.end) : std::max(loop.next, loop.end);
  return true;
}

void end_loop() {
  Member& mine = own();
  if (++mine.team->loops.at(mine.loops).left == mine.team->size) mine.team->loops.erase(mine.loops);
}

unsigned take_section() {
  long begin = 0, end = 0;
  return take(&begin, &end) ? unsigned(begin) : 0;
}

void run_member(Team& team, int number, void (*function)(void*), void* data, uint64_t loops) {
  Member mine{&team, number, 0, loops};
  Member* const before = std::exchange(member, &mine);
  function(data);
  member = before;
}

}  // namespace

PKB_OPENMP int __wrap_omp_get_thread_num() { return member ? member->number : 0; }
PKB_OPENMP int __wrap_omp_get_num_threads() { return member ? member->team->size : 1; }
PKB_OPENMP int __wrap_omp_in_parallel() { return member && member->team->size > 1; }
PKB_OPENMP int __wrap_omp_get_max_threads() {
  World* const world = calling_world();
  return wanted_threads ? wanted_threads : world ? int(world->visible()) : 1;
}
PKB_OPENMP void __wrap_omp_set_num_threads(int count) { wanted_threads = count; }

namespace {

// `loop`: that all threads of the team come to first; null: none.
void run_team(void (*function)(void*), void* data, unsigned count, const Loop* loop) {
  World* const world = calling_world();
  const bool is_nested = member && member->team->size > 1;
  Team team{!World::current || is_nested ? 1 : count ? int(count) : __wrap_omp_get_max_threads(), {}};
  team.barrier.members = team.size;
  if (loop) team.loops.emplace(1, *loop);
  const uint64_t loops = loop ? 1 : 0;
  std::vector<HostThread*> started;
  for (int number = 1; number < team.size; ++number) {
    started.push_back(&start_process_thread([&team, number, function, data, loops] {
      // Threads of a pool keep the GPU that they have chosen in an earlier region.
      RankState*& device = shared_state(*World::current->world).devices_of_pool[number];
      if (device) World::current->device = device;
      run_member(team, number, function, data, loops);
      device = World::current->device;
    }));
  }
  run_member(team, 0, function, data, loops);
  for (HostThread* const each : started) {
    while (!join_thread(*each)) {
      if (each->state == HostThread::kDone || each->state == HostThread::kLost) break;
      world->pass("the end of a team");  // the run has failed: threads still use what is on this stack
    }
  }
}

}  // namespace

PKB_OPENMP void __wrap_GOMP_parallel(void (*function)(void*), void* data, unsigned count, unsigned) { run_team(function, data, count, nullptr); }
PKB_OPENMP void __wrap_GOMP_barrier() {
  if (member && member->team->size > 1) meet_all(*calling_world(), member->team->barrier, "a barrier of OpenMP");
}
PKB_OPENMP bool __wrap_GOMP_single_start() {
  if (!member) return true;
  if (++member->singles <= member->team->singles) return false;
  member->team->singles = member->singles;
  return true;
}
PKB_OPENMP void __wrap_GOMP_critical_start() { enter(&kCritical); }
PKB_OPENMP void __wrap_GOMP_critical_end() { leave(&kCritical); }
PKB_OPENMP void __wrap_GOMP_critical_name_start(void** name) { enter(name); }
PKB_OPENMP void __wrap_GOMP_critical_name_end(void** name) { leave(name); }
PKB_OPENMP void __wrap_GOMP_atomic_start() { enter(&kAtomic); }
PKB_OPENMP void __wrap_GOMP_atomic_end() { leave(&kAtomic); }

PKB_OPENMP void* __wrap_GOMP_single_copy_start() {
  if (__wrap_GOMP_single_start()) return nullptr;
  __wrap_GOMP_barrier();
  return own().team->copied;
}
PKB_OPENMP void __wrap_GOMP_single_copy_end(void* data) {
  own().team->copied = data;
  __wrap_GOMP_barrier();
}

#define PKB_LOOP(kind, is_guided)                                                                                                                            \
  PKB_OPENMP bool __wrap_GOMP_loop_##kind##_start(long first, long last, long step, long chunk, long* from, long* to) {                                      \
    begin({first, last, step, std::max(chunk, 1l), is_guided});                                                                                              \
    return take(from, to);                                                                                                                                   \
  }                                                                                                                                                          \
  PKB_OPENMP bool __wrap_GOMP_loop_##kind##_next(long* from, long* to) { return take(from, to); }                                                            \
  PKB_OPENMP void __wrap_GOMP_parallel_loop_##kind(void (*function)(void*), void* data, unsigned count, long first, long last, long step, long chunk, unsigned) { \
    const Loop loop{first, last, step, std::max(chunk, 1l), is_guided};                                                                                      \
    run_team(function, data, count, &loop);                                                                                                                  \
  }
PKB_LOOP(dynamic, false)
PKB_LOOP(guided, true)
PKB_LOOP(nonmonotonic_dynamic, false)
PKB_LOOP(nonmonotonic_guided, true)
#undef PKB_LOOP

PKB_OPENMP void __wrap_GOMP_loop_end_nowait() { end_loop(); }
PKB_OPENMP void __wrap_GOMP_loop_end() {
  end_loop();
  __wrap_GOMP_barrier();
}

// Sections count from 1.
PKB_OPENMP unsigned __wrap_GOMP_sections_start(unsigned count) {
  begin({1, long(count) + 1, 1, 1});
  return take_section();
}
PKB_OPENMP unsigned __wrap_GOMP_sections_next() { return take_section(); }
PKB_OPENMP void __wrap_GOMP_parallel_sections(void (*function)(void*), void* data, unsigned count, unsigned sections, unsigned) {
  const Loop loop{1, long(sections) + 1, 1, 1};
  run_team(function, data, count, &loop);
}
PKB_OPENMP void __wrap_GOMP_sections_end_nowait() { end_loop(); }
PKB_OPENMP void __wrap_GOMP_sections_end() { __wrap_GOMP_loop_end(); }

PKB_OPENMP void __wrap_omp_init_lock(void* mutex) {
  if (World* const world = calling_world()) shared_state(*world).meetings[mutex] = {};
}
PKB_OPENMP void __wrap_omp_destroy_lock(void*) {}
PKB_OPENMP void __wrap_omp_set_lock(void* mutex) { enter(mutex); }
PKB_OPENMP void __wrap_omp_unset_lock(void* mutex) { leave(mutex); }
PKB_OPENMP int __wrap_omp_test_lock(void* name) {
  World* const world = calling_world();
  if (!world) return 1;
  Meeting& mutex = shared_state(*world).meetings[name];
  if (std::exchange(mutex.members, 1)) {
    if (World::current) world->pass("others, by a lock that is taken");
    return 0;
  }
  world->acquire(mutex.object);
  return 1;
}
