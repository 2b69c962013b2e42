// Where a rank stood when a signal ended it: one line on stderr with the places in the candidate's library.
//
//     pkb-trace SIGNAL OFFSET:KIND OFFSET:KIND ...
//
// Innermost first; offsets are relative to the library. KIND is "at" for the instruction that was interrupted, "by" for
// a return address. The evaluator turns offsets into lines of the source; see `ranks/crash_trace.py`.
#include <execinfo.h>
#include <link.h>
#include <signal.h>
#include <ucontext.h>
#include <unistd.h>

#include <cstdint>
#include <cstdlib>

namespace {

constexpr int kMostFrames = 64;
constexpr int kSignals[] = {SIGSEGV, SIGBUS, SIGFPE, SIGILL, SIGABRT, SIGTRAP, SIGQUIT};

uintptr_t library_base, library_end;

// Sets the range of the library that an address lies in.
int find_library(dl_phdr_info* info, size_t, void* address) {
  uintptr_t end = 0;
  bool found = false;
  for (int i = 0; i < info->dlpi_phnum; ++i) {
    const auto& part = info->dlpi_phdr[i];
    if (part.p_type != PT_LOAD) continue;
    const uintptr_t begin = info->dlpi_addr + part.p_vaddr;
    if (begin + part.p_memsz > end) end = begin + part.p_memsz;
    found |= begin <= uintptr_t(address) && uintptr_t(address) < begin + part.p_memsz;
  }
  if (!found) return 0;
  library_base = info->dlpi_addr;
  library_end = end;
  return 1;
}

// A line that is put together without malloc or stdio, which a crashed process may hold locks of.
struct Line {
  char text[2048];
  size_t used = 0;

  void put(char c) {
    if (used < sizeof text) text[used++] = c;
  }
  void put(const char* words) {
    while (*words) put(*words++);
  }
  void put(uintptr_t number, unsigned base) {
    char digits[24];
    int count = 0;
    do {
      digits[count++] = "0123456789abcdef"[number % base];
      number /= base;
    } while (number);
    while (count) put(digits[--count]);
  }
};

uintptr_t interrupted_at(const void* context) {
#if defined(__x86_64__)
  return uintptr_t(static_cast<const ucontext_t*>(context)->uc_mcontext.gregs[REG_RIP]);
#elif defined(__aarch64__)
  return uintptr_t(static_cast<const ucontext_t*>(context)->uc_mcontext.pc);
#else
  return 0;
#endif
}

void on_signal(int number, siginfo_t*, void* context) {
  void* frames[kMostFrames];
  const int count = backtrace(frames, kMostFrames);
  const uintptr_t at = interrupted_at(context);
  Line line;
  line.put("\npkb-trace ");
  line.put(uintptr_t(number), 10);
  for (int i = 0; i < count; ++i) {
    const auto address = uintptr_t(frames[i]);
    if (address < library_base || address >= library_end) continue;
    line.put(' ');
    line.put(address - library_base, 16);
    line.put(address == at ? ":at" : ":by");
  }
  line.put('\n');
  if (write(STDERR_FILENO, line.text, line.used) < 0) _exit(128 + number);
  signal(number, SIG_DFL);
  raise(number);
}

}  // namespace

// Installs the handlers, for the library that an address lies in. Returns 0 if all is well.
extern "C" int pkb_trace_signals(void* address) {
  if (!dl_iterate_phdr(find_library, address)) return 1;
  void* warm[1];
  backtrace(warm, 1);  // loads the unwinder now: a handler must not
  static char stack[1 << 16];  // the handler's own: an endless recursion leaves it none
  const stack_t alternative{stack, 0, sizeof stack};
  if (sigaltstack(&alternative, nullptr)) return 2;
  struct sigaction action {};
  action.sa_sigaction = on_signal;
  action.sa_flags = SA_SIGINFO | SA_ONSTACK | SA_NODEFER;
  for (int number : kSignals) {
    if (sigaction(number, &action, nullptr)) return 3;
  }
  return 0;
}
