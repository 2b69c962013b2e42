// Names of kernels for people.
#include <cxxabi.h>

#include <cstdlib>
#include <memory>

#include "program.h"

namespace pkb::emulator {

// "void pkb::enqueued::wait<1>(pkb::Device, int, unsigned long)" -> "pkb::enqueued::wait<1>".
std::string kernel_title(const std::string& mangled) {
  int status = -1;
  const std::unique_ptr<char, decltype(&std::free)> demangled(abi::__cxa_demangle(mangled.c_str(), nullptr, nullptr, &status), &std::free);
  if (status != 0) return mangled;
  std::string title = demangled.get();
  int depth = 0;
  size_t end = title.size(), begin = 0;
  if (title.ends_with(')')) {  // its parameters
    do {
      --end;
      depth += title[end] == ')' ? 1 : title[end] == '(' ? -1 : 0;
    } while (depth > 0 && end > 0);
  }
  depth = 0;
  for (size_t i = 0; i < end; ++i) {
    depth += title[i] == '(' || title[i] == '<' ? 1 : title[i] == ')' || title[i] == '>' ? -1 : 0;
    if (title[i] == ' ' && depth == 0) begin = i + 1;  // the type of the result, which templates have
  }
  return title.substr(begin, end - begin);
}

}  // namespace pkb::emulator
