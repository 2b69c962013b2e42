// Where a rank stood when a signal ended it, or when it threw the exception that left its kernel: one line on stderr
// with the places in the candidate's library.
//
//     pkb-trace SIGNAL [of LIBRARY] OFFSET:KIND OFFSET:KIND ...
//
// SIGNAL is 0 for an exception. Innermost first; offsets are relative to the library. A process that holds the copies of
// several ranks names the innermost copy by its number, in the order in which they were given. KIND is "at" for the instruction
// that was interrupted, "by" for a return address. The evaluator turns offsets into lines of the source; see
// `gangs/crash_trace.py`.
#include <execinfo.h>
#include <link.h>
#include <signal.h>
#include <sys/mman.h>
#include <ucontext.h>
#include <unistd.h>
#include <unwind.h>

#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <typeinfo>

// Writes the line of a signal of this thread, given as to its handler.
extern "C" void pkb_trace_signal(int number, void* info, void* context);

namespace __cxxabiv1 {
extern "C" void __cxa_throw(void*, std::type_info*, void (*)(void*)) __attribute__((noreturn));
}

namespace {

constexpr int kMostFrames = 64;
constexpr int kSignals[] = {SIGSEGV, SIGBUS, SIGFPE, SIGILL, SIGABRT, SIGTRAP, SIGQUIT};

constexpr int kMostLibraries = 64;

struct Library {
  uintptr_t base, end;

  bool holds(uintptr_t address) const { return base <= address && address < end; }
};

Library libraries[kMostLibraries];
int library_count;

const Library* library_of(uintptr_t address) {
  for (int i = 0; i < library_count; ++i) {
    if (libraries[i].holds(address)) return &libraries[i];
  }
  return nullptr;
}

// Adds the library that an address lies in.
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
  libraries[library_count++] = {uintptr_t(info->dlpi_addr), end};
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

// Makes the line of this thread's stack; returns how many of the candidate's places are in it.
int put_stack(Line& line, int number, uintptr_t at) {
  void* frames[kMostFrames];
  const int count = backtrace(frames, kMostFrames);
  int places = 0;
  const Library* library = nullptr;
  for (int i = 0; i < count && !library; ++i) library = library_of(uintptr_t(frames[i]));
  line.put("\npkb-trace ");
  line.put(uintptr_t(number), 10);
  if (library && library_count > 1) {
    line.put(" of ");
    line.put(uintptr_t(library - libraries), 10);
  }
  for (int i = 0; i < count; ++i) {
    const auto address = uintptr_t(frames[i]);
    if (!library || !library->holds(address)) continue;
    ++places;
    line.put(' ');
    line.put(address - library->base, 16);
    line.put(address == at ? ":at" : ":by");
  }
  line.put('\n');
  return places;
}

void on_signal(int number, siginfo_t* info, void* context) {
  pkb_trace_signal(number, info, context);
  signal(number, SIG_DFL);
  raise(number);
}

// Of the last exception that this thread threw out of the candidate's code, or out of what that called.
thread_local Line thrown;

decltype(&_Unwind_RaiseException) unwind;

_Unwind_Reason_Code on_throw(_Unwind_Exception* exception) {
  Line line;
  if (put_stack(line, 0, 0)) thrown = line;
  return unwind(exception);
}

// Has the C++ runtime, which all exceptions are thrown by, call `on_throw` in place of the unwinder.
int replace_unwinder(dl_phdr_info* info, size_t, void*) {
  const auto runtime = uintptr_t(&__cxxabiv1::__cxa_throw);
  const ElfW(Dyn)* dynamic = nullptr;
  bool found = false;
  for (int i = 0; i < info->dlpi_phnum; ++i) {
    const auto& part = info->dlpi_phdr[i];
    const uintptr_t begin = info->dlpi_addr + part.p_vaddr;
    if (part.p_type == PT_DYNAMIC) dynamic = reinterpret_cast<const ElfW(Dyn)*>(begin);
    if (part.p_type == PT_LOAD) found |= begin <= runtime && runtime < begin + part.p_memsz;
  }
  if (!found || !dynamic) return 0;
  const ElfW(Sym)* symbols = nullptr;
  const char* names = nullptr;
  uintptr_t tables[2] = {};  // of calls, and of addresses
  size_t sizes[2] = {};
  for (; dynamic->d_tag != DT_NULL; ++dynamic) {
    const auto& value = dynamic->d_un;
    if (dynamic->d_tag == DT_SYMTAB) symbols = reinterpret_cast<const ElfW(Sym)*>(value.d_ptr);
    if (dynamic->d_tag == DT_STRTAB) names = reinterpret_cast<const char*>(value.d_ptr);
    if (dynamic->d_tag == DT_JMPREL) tables[0] = value.d_ptr;
    if (dynamic->d_tag == DT_PLTRELSZ) sizes[0] = value.d_val;
    if (dynamic->d_tag == DT_RELA) tables[1] = value.d_ptr;
    if (dynamic->d_tag == DT_RELASZ) sizes[1] = value.d_val;
  }
  if (!symbols || !names) return 1;
  const auto page = uintptr_t(sysconf(_SC_PAGESIZE));
  for (int i = 0; i < 2; ++i) {
    const auto* entries = reinterpret_cast<const ElfW(Rela)*>(tables[i]);
    for (size_t j = 0; j < sizes[i] / sizeof *entries; ++j) {
      const auto& name = symbols[ELF64_R_SYM(entries[j].r_info)].st_name;
      if (strcmp(names + name, "_Unwind_RaiseException")) continue;
      const uintptr_t slot = info->dlpi_addr + entries[j].r_offset;
      if (mprotect(reinterpret_cast<void*>(slot & ~(page - 1)), page, PROT_READ | PROT_WRITE)) return 1;
      *reinterpret_cast<decltype(unwind)*>(slot) = on_throw;
    }
  }
  return 1;
}

}  // namespace

extern "C" void pkb_trace_signal(int number, void*, void* context) {
  Line line;
  put_stack(line, number, interrupted_at(context));
  if (write(STDERR_FILENO, line.text, line.used) < 0) _exit(128 + number);
}

// Writes the line of the last exception that this thread threw, if there was one since the last call.
extern "C" void pkb_trace_thrown() {
  if (thrown.used && write(STDERR_FILENO, thrown.text, thrown.used) < 0) _exit(1);
  thrown.used = 0;
}

// Installs the handlers, for the library that an address lies in, beside those of earlier calls. Returns 0 if all is well.
extern "C" int pkb_trace_library(void* address) {
  if (library_count == kMostLibraries || !dl_iterate_phdr(find_library, address)) return 1;
  unwind = &_Unwind_RaiseException;
  dl_iterate_phdr(replace_unwinder, nullptr);
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
