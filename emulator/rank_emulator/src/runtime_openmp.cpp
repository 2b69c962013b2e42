// What g++ -fopenmp calls: teams of threads, their barriers and critical sections, by the names that programs are linked with
// by --wrap.
#include <utility>
#include <vector>

#include "runtime_cuda.h"
#include "runtime_process.h"
#include "runtime_ranks.h"

using namespace pkb::emulator;

#define PKB_OPENMP extern "C" __attribute__((visibility("default")))

namespace {

struct Team {
  int size;
  Meeting barrier;
  uint64_t singles = 0;  // that a thread has taken
};
struct Member {
  Team* team;
  int number;
  uint64_t singles = 0;
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

void run_member(Team& team, int number, void (*function)(void*), void* data) {
  Member mine{&team, number};
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

PKB_OPENMP void __wrap_GOMP_parallel(void (*function)(void*), void* data, unsigned count, unsigned) {
  World* const world = calling_world();
  const bool is_nested = member && member->team->size > 1;
  Team team{!World::current || is_nested ? 1 : count ? int(count) : __wrap_omp_get_max_threads(), {}};
  team.barrier.members = team.size;
  std::vector<HostThread*> started;
  for (int number = 1; number < team.size; ++number) {
    started.push_back(&start_process_thread([&team, number, function, data] {
      // Threads of a pool keep the GPU that they have chosen in an earlier region.
      RankState*& device = shared_state(*World::current->world).devices_of_pool[number];
      if (device) World::current->device = device;
      run_member(team, number, function, data);
      device = World::current->device;
    }));
  }
  run_member(team, 0, function, data);
  for (HostThread* const each : started) {
    while (!join_thread(*each)) {
      if (each->state == HostThread::kDone || each->state == HostThread::kLost) break;
      world->pass("the end of a team");  // the run has failed: threads still use what is on this stack
    }
  }
}
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
