#include "host_faults.h"

#include <signal.h>
#include <unistd.h>

#include <atomic>
#include <mutex>

#include "runtime_world.h"

namespace pkb::emulator {
namespace {

struct sigaction before, before_step, before_interrupt;
std::atomic<HostTrace> trace{nullptr};

// The kernel names the address unless the processor keeps it to itself, as it does for addresses that are not canonical.
bool is_host_access(const siginfo_t& info) {
  if (info.si_code <= 0) return false;  // it was sent by a process
  return is_of_gpu(reinterpret_cast<uint64_t>(info.si_addr)) || (info.si_code == SI_KERNEL && !info.si_addr);
}

// What would have happened without us.
void go_on(struct sigaction& handler, int number, siginfo_t* info, void* context) {
  if (handler.sa_flags & SA_SIGINFO) return handler.sa_sigaction(number, info, context);
  if (handler.sa_handler != SIG_DFL && handler.sa_handler != SIG_IGN) return handler.sa_handler(number);
  sigaction(number, &handler, nullptr);
  if (info->si_code <= 0 || number == SIGTRAP) raise(number);  // an access is repeated when this returns
}

// Of the thread that handles a signal, where it runs host code of ranks; null: it runs none.
HostGuard* own_guard() {
  if (HostThread* const host = World::current) return &host->world->guard_of(*host->device);
  if (World* const world = World::in_function) return &world->guard_of(*world->ranks[size_t(world->host_operation->rank)]);
  return nullptr;
}

void on_fault(int number, siginfo_t* info, void* context) {
  HostThread* const host = World::current;
  const auto address = reinterpret_cast<uint64_t>(info->si_addr);
  HostGuard* const guard = own_guard();
  if (info->si_code > 0 && (guard ? guard->on_fault(address, context) : HostGuard::on_foreign_fault(address))) return;
  if (host && is_host_access(*info)) {
    if (const HostTrace write_trace = trace) write_trace(number, info, context);
    host->world->lose_host(*host, address);
    for (;;) pause();
  }
  go_on(before, number, info, context);
}

void on_step(int number, siginfo_t* info, void* context) {
  HostGuard* const guard = own_guard();
  if (!guard || !guard->on_step(context)) go_on(before_step, number, info, context);
}

void on_interrupt(int number, siginfo_t* info, void* context) {
  if (HostThread* const host = World::current) return host->world->interrupted(*host, instruction_of(context));
  if (before_interrupt.sa_handler != SIG_DFL) go_on(before_interrupt, number, info, context);
}

// Has `handler` called for a signal, unless it is ours.
void watch(int number, void (*handler)(int, siginfo_t*, void*), struct sigaction& old) {
  struct sigaction now;
  if (sigaction(number, nullptr, &now) != 0 || ((now.sa_flags & SA_SIGINFO) && now.sa_sigaction == handler)) return;
  old = now;
  struct sigaction action {};
  action.sa_sigaction = handler;
  action.sa_flags = SA_SIGINFO | SA_ONSTACK | SA_NODEFER | SA_RESTART;
  sigaction(number, &action, nullptr);
}

}  // namespace

void watch_host_accesses() {
  static std::mutex mutex;
  const std::lock_guard lock(mutex);
  watch(SIGSEGV, on_fault, before);
  watch(SIGTRAP, on_step, before_step);
  watch(kHostInterrupt, on_interrupt, before_interrupt);
}

void trace_host_accesses(HostTrace write_trace) { trace = write_trace; }

}  // namespace pkb::emulator
