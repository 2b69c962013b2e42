// Programs with a `main`, and threads that their host code starts.
#pragma once

#include <deque>
#include <functional>
#include <memory>

#include "runtime_world.h"

namespace pkb::emulator {

// The world of the calling thread, or of the function of the host in a stream that it runs; null: it is none of a rank.
inline World* calling_world() { return World::current ? World::current->world : World::in_function; }

// Calls a function as the process of the calling rank, which `exit` ends; its status.
int call_as_process(const std::function<int()>& function);

// A thread that calls a function as one of the calling thread's process.
HostThread& start_process_thread(const std::function<void()>& function);
// Waits for its end; false: the run has failed.
bool join_thread(HostThread& host);

// Where threads of one process wait for each other: a mutex, a condition variable or a barrier of the program.
struct Meeting {
  uint64_t object = 0;        // by which threads are ordered; of a barrier that of its present round
  uint64_t changes = 0;       // grows when those that wait may go on
  int members = 0, arrived = 0;                 // of a barrier
  std::deque<std::shared_ptr<bool>> waiting;    // at a condition variable: whether each has been woken
};

// Whether the caller may wait, as a function of the host in a stream may not; else the run has failed.
bool can_wait(World& world, const char* why);
// Waits for all members of a barrier; true for the last one.
bool meet_all(World& world, Meeting& barrier, const char* why);
// False: the run has failed.
bool lock(World& world, Meeting& mutex, const std::function<bool()>& try_lock, const char* why);
// `unlock` gives it free.
void unlock(World& world, Meeting& mutex, const std::function<void()>& unlock);

}  // namespace pkb::emulator
