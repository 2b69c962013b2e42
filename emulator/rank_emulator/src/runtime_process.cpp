// Programs with a `main`: each rank runs it as if it were a process of its own.
#include <pthread.h>
#include <sched.h>
#include <setjmp.h>
#include <time.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <string>

#include "runtime_cuda.h"
#include "runtime_process.h"

using namespace pkb::emulator;

#define PKB_RANKS extern "C" __attribute__((visibility("default")))

namespace {

struct Process {
  jmp_buf end;
  int status = 0;
  std::string values[2];  // of variables of the environment: rank, number of ranks
};
thread_local Process* process = nullptr;

// Variables by which launchers tell a process its rank, and the number of ranks; all ranks are on one node.
constexpr const char* kRank[] = {"RANK", "LOCAL_RANK", "OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_LOCAL_RANK", "PMI_RANK", "MPI_LOCALRANKID", "SLURM_PROCID", "SLURM_LOCALID"};
constexpr const char* kSize[] = {"WORLD_SIZE", "LOCAL_WORLD_SIZE", "OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_LOCAL_SIZE", "PMI_SIZE", "MPI_LOCALNRANKS", "SLURM_NTASKS"};

}  // namespace

int pkb::emulator::call_as_process(const std::function<int()>& function) {
  Process mine;
  if (RankState* const rank = calling_rank(); rank && !rank->world->one_process) {
    mine.values[0] = std::to_string(rank->rank);
    mine.values[1] = std::to_string(rank->world->ranks.size());
  }
  process = &mine;
  const int status = setjmp(mine.end) == 0 ? function() : mine.status;
  process = nullptr;
  return status;
}

// Calls a program's `main`; its status, or that of `exit`.
PKB_RANKS int pkb_emu_main(int (*main_function)(int, char**), int count, char** arguments) {
  return call_as_process([&] { return main_function(count, arguments); });
}
// The same of a function with one argument.
PKB_RANKS int pkb_emu_process(int (*function)(void*), void* argument) {
  return call_as_process([&] { return function(argument); });
}

// `exit`, `_exit`, `pthread_exit` and `getenv` of programs, which are linked with --wrap.
PKB_RANKS [[noreturn]] void __wrap_exit(int status) {
  if (!process) std::exit(status);
  process->status = status;
  longjmp(process->end, 1);
}
PKB_RANKS [[noreturn]] void __wrap__exit(int status) { __wrap_exit(status); }

// Of a thread: as if the function that it has begun with returned.
PKB_RANKS [[noreturn]] void __wrap_pthread_exit(void* result) {
  if (!process || !World::current) pthread_exit(result);
  World::current->result = result;
  __wrap_exit(0);
}

PKB_RANKS char* __wrap_getenv(const char* name) {
  if (process && !process->values[0].empty()) {
    for (const char* each : kRank) {
      if (std::strcmp(each, name) == 0) return process->values[0].data();
    }
    for (const char* each : kSize) {
      if (std::strcmp(each, name) == 0) return process->values[1].data();
    }
  }
  return std::getenv(name);
}

// By these the system touches memory for the program.
namespace {

void lend(const void* buffer) {
  if (RankState* const rank = calling_rank()) rank->world->guard_of(*rank).lend(buffer);
}

}  // namespace

PKB_RANKS ssize_t __wrap_read(int file, void* to, size_t bytes) { return lend(to), ::read(file, to, bytes); }
PKB_RANKS ssize_t __wrap_write(int file, const void* from, size_t bytes) { return lend(from), ::write(file, from, bytes); }
PKB_RANKS size_t __wrap_fread(void* to, size_t bytes, size_t count, FILE* file) { return lend(to), std::fread(to, bytes, count, file); }
PKB_RANKS size_t __wrap_fwrite(const void* from, size_t bytes, size_t count, FILE* file) { return lend(from), std::fwrite(from, bytes, count, file); }

// A host that waits for memory which a kernel or another thread writes lets them go on by these. What it sees of other threads
// then is taken to be in order.
PKB_RANKS int __wrap_sched_yield() {
  RankState* const rank = calling_rank();
  if (!rank) return ::sched_yield();
  rank->world->let_others_go_on("others, by sched_yield or a sleep");
  rank->world->acquire_all();
  return 0;
}
PKB_RANKS int __wrap_usleep(useconds_t) { return __wrap_sched_yield(); }
PKB_RANKS int __wrap_nanosleep(const timespec*, timespec*) { return __wrap_sched_yield(); }
