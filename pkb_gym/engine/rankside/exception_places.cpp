// Preloaded into the processes of ranks: the FFI library names the places of an exception without reading all symbols.
//
// At a process's first exception it reads and sorts the symbols of every library that `dl_iterate_phdr` names, torch's
// among them, which takes each rank of a kernel that throws longer than its evaluation otherwise does. What was loaded
// before the FFI library is no candidate's, and its lines are not reported. So that library alone is shown itself, and
// what was loaded after it.
#include <dlfcn.h>
#include <link.h>

#include <cstddef>
#include <cstdint>
#include <cstring>

namespace {

constexpr char kFfiLibrary[] = "/libtvm_ffi.so";

using Visit = int (*)(dl_phdr_info*, size_t, void*);
using IteratePhdr = int (*)(Visit, void*);

struct Visitor {
  Visit visit;
  void* data;
  uintptr_t base;  // of its own library
  bool is_shown;   // whether the library at hand is that one, or was loaded after it
};

int visit_later(dl_phdr_info* info, size_t size, void* data) {
  Visitor& visitor = *static_cast<Visitor*>(data);
  visitor.is_shown |= uintptr_t(info->dlpi_addr) == visitor.base;
  return visitor.is_shown ? visitor.visit(info, size, visitor.data) : 0;
}

bool ends_with(const char* text, const char* end) {
  const size_t length = std::strlen(text), end_length = std::strlen(end);
  return length >= end_length && !std::strcmp(text + length - end_length, end);
}

}  // namespace

extern "C" int dl_iterate_phdr(Visit visit, void* data) {
  static const IteratePhdr next = reinterpret_cast<IteratePhdr>(dlsym(RTLD_NEXT, "dl_iterate_phdr"));
  Dl_info library;
  if (!dladdr(reinterpret_cast<void*>(visit), &library) || !ends_with(library.dli_fname, kFfiLibrary)) {
    return next(visit, data);
  }
  Visitor visitor{visit, data, reinterpret_cast<uintptr_t>(library.dli_fbase), false};
  return next(visit_later, &visitor);
}
