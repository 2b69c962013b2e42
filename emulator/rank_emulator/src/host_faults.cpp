#include "host_faults.h"

#include <signal.h>
#include <unistd.h>

#include <atomic>
#include <mutex>

#include "runtime_world.h"

namespace pkb::emulator {
namespace {

struct sigaction before;
std::atomic<HostTrace> trace{nullptr};

// The kernel names the address unless the processor keeps it to itself, as it does for addresses that are not canonical.
bool is_host_access(const siginfo_t& info) {
  if (info.si_code <= 0) return false;  // it was sent by a process
  return is_of_gpu(reinterpret_cast<uint64_t>(info.si_addr)) || (info.si_code == SI_KERNEL && !info.si_addr);
}

void on_fault(int number, siginfo_t* info, void* context) {
  HostThread* const host = World::current;
  if (host && is_host_access(*info)) {
    if (const HostTrace write_trace = trace) write_trace(number, info, context);
    host->world->lose_host(*host, reinterpret_cast<uint64_t>(info->si_addr));
    for (;;) pause();
  }
  if (before.sa_flags & SA_SIGINFO) return before.sa_sigaction(number, info, context);
  if (before.sa_handler != SIG_DFL && before.sa_handler != SIG_IGN) return before.sa_handler(number);
  sigaction(number, &before, nullptr);
  if (info->si_code <= 0) raise(number);  // an access is repeated when this returns
}

}  // namespace

void watch_host_accesses() {
  static std::mutex mutex;
  const std::lock_guard lock(mutex);
  struct sigaction now;
  if (sigaction(SIGSEGV, nullptr, &now) != 0 || ((now.sa_flags & SA_SIGINFO) && now.sa_sigaction == on_fault)) return;
  before = now;
  struct sigaction action {};
  action.sa_sigaction = on_fault;
  action.sa_flags = SA_SIGINFO | SA_ONSTACK | SA_NODEFER;
  sigaction(SIGSEGV, &action, nullptr);
}

void trace_host_accesses(HostTrace write_trace) { trace = write_trace; }

}  // namespace pkb::emulator
