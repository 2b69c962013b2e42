// What kernels print. `printf` in a kernel is a call of vprintf(format, arguments): the arguments lie one after the
// other in the thread's local memory, each aligned to its own size.
#include <algorithm>
#include <cstdio>
#include <string>

#include "executor.h"
#include "printing.h"

namespace pkb::emulator {
namespace {

constexpr size_t kMostText = 4096;  // characters of a format, or of a text that it prints
constexpr int kMostWidth = 1024;

// The text at an address, as far as it lies in memory that kernels may read.
std::string text_at(Memory& memory, uint64_t address) {
  std::string text;
  for (; text.size() < kMostText && memory.find_seen(address, 1); ++address) {
    const char c = *reinterpret_cast<const char*>(own_address(address));
    if (!c) break;
    text += c;
  }
  return text;
}

struct Arguments {
  Memory& memory;
  uint64_t address;
  int taken = 0;

  template <class T>
  T take() {
    T value{};
    address = (address + sizeof(T) - 1) / sizeof(T) * sizeof(T);
    if (memory.find_seen(address, sizeof(T))) std::memcpy(&value, reinterpret_cast<const void*>(own_address(address)), sizeof(T));
    address += sizeof(T);
    ++taken;
    return value;
  }
};

// A width or a precision, which may be an argument; behind it in the format.
size_t put_number(std::string& to, const std::string& format, size_t i, Arguments& arguments) {
  if (i < format.size() && format[i] == '*') {
    to += std::to_string(std::clamp(arguments.take<int>(), -kMostWidth, kMostWidth));
    return i + 1;
  }
  int number = 0;
  const size_t begin = i;
  for (; i < format.size() && format[i] >= '0' && format[i] <= '9'; ++i) number = std::min(number * 10 + (format[i] - '0'), kMostWidth);
  if (i > begin) to += std::to_string(number);
  return i;
}

template <class T>
std::string converted(const std::string& conversion, T value) {
  const int size = std::snprintf(nullptr, 0, conversion.c_str(), value);
  std::string text(size_t(std::max(size, 0)) + 1, '\0');
  std::snprintf(text.data(), text.size(), conversion.c_str(), value);
  text.pop_back();
  return text;
}

// One conversion, which begins behind its `%` at i; i is what follows it.
std::string convert(const std::string& format, size_t& i, Arguments& arguments) {
  const size_t begin = i;
  std::string conversion = "%";
  while (i < format.size() && std::string_view("-+ #0").find(format[i]) != std::string_view::npos) conversion += format[i++];
  i = put_number(conversion, format, i, arguments);
  if (i < format.size() && format[i] == '.') {
    conversion += '.';
    i = put_number(conversion, format, i + 1, arguments);
  }
  bool is_wide = false;
  int shorts = 0;
  for (; i < format.size() && std::string_view("hlLjzt").find(format[i]) != std::string_view::npos; ++i) {
    is_wide |= format[i] != 'h';
    shorts += format[i] == 'h';
  }
  const char kind = i < format.size() ? format[i++] : '\0';
  switch (kind) {
    case 'd':
    case 'i': {
      long long value = is_wide ? arguments.take<long long>() : arguments.take<int>();
      if (shorts == 1) value = short(value);
      if (shorts == 2) value = static_cast<signed char>(value);
      return converted(conversion + "lld", value);
    }
    case 'u':
    case 'o':
    case 'x':
    case 'X': {
      unsigned long long value = is_wide ? arguments.take<unsigned long long>() : arguments.take<unsigned>();
      if (shorts) value &= shorts == 1 ? 0xffff : 0xff;
      return converted(conversion + "ll" + kind, value);
    }
    case 'e':
    case 'E':
    case 'f':
    case 'F':
    case 'g':
    case 'G':
    case 'a':
    case 'A': return converted(conversion + kind, arguments.take<double>());
    case 'c': return converted(conversion + kind, arguments.take<int>());
    case 'p': return converted(conversion + kind, arguments.take<void*>());
    case 's': {
      const auto address = arguments.take<uint64_t>();
      const std::string text = address ? text_at(arguments.memory, address) : "(null)";
      return converted(conversion + kind, text.c_str());
    }
    case '%': return "%";
    default: return "%" + format.substr(begin, i - begin);
  }
}

}  // namespace

Step print_call(Executor& x, const Op& op, uint32_t lanes) {
  const Detail& detail = *op.detail;
  each_lane(lanes, [&](int lane) {
    const std::string format = text_at(x.engine.memory, x.argument(detail, 0, lane));
    Arguments arguments{x.engine.memory, x.argument(detail, 1, lane)};
    std::string text;
    for (size_t i = 0; i < format.size();) {
      const char c = format[i++];
      text += c == '%' ? convert(format, i, arguments) : std::string(1, c);
    }
    print(x.grid->launch.rank, text, x.engine.one_process);
    for (const Variable& result : detail.results) std::memcpy(x.local_memory(lane, x.split->local_offset + uint32_t(result.offset)), &arguments.taken, std::min<size_t>(result.bytes, sizeof arguments.taken));
  });
  return Step::kNext;
}

}  // namespace pkb::emulator
