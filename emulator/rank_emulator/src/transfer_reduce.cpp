// Reductions of bulk copies: operations and types of cp.reduce.async.bulk (PTX ISA, its table of "operation types").
#include <algorithm>
#include <cstring>
#include <optional>

#include "small_floats.h"
#include "transfer.h"

namespace pkb::emulator {
namespace {

template <class T, class F>
void each(char* to, const char* from, uint32_t bytes) {
  for (uint32_t i = 0; i + sizeof(T) <= bytes; i += sizeof(T)) {
    T a, b;
    std::memcpy(&a, to + i, sizeof a);
    std::memcpy(&b, from + i, sizeof b);
    a = F{}(a, b);
    std::memcpy(to + i, &a, sizeof a);
  }
}

struct BitAnd { template <class T> T operator()(T a, T b) const { return a & b; } };
struct BitOr { template <class T> T operator()(T a, T b) const { return a | b; } };
struct BitXor { template <class T> T operator()(T a, T b) const { return a ^ b; } };
struct Add { template <class T> T operator()(T a, T b) const { return T(a + b); } };
// As GPUs: all results that are no numbers are one.
struct AddSingle {
  float operator()(float a, float b) const {
    const float sum = a + b;
    return sum == sum ? sum : std::bit_cast<float>(kSingle.nan);
  }
};
struct Least { template <class T> T operator()(T a, T b) const { return std::min(a, b); } };
struct Most { template <class T> T operator()(T a, T b) const { return std::max(a, b); } };
struct Increment { uint32_t operator()(uint32_t a, uint32_t b) const { return a >= b ? 0 : a + 1; } };
struct Decrement { uint32_t operator()(uint32_t a, uint32_t b) const { return a == 0 || a > b ? b : a - 1; } };

template <const Format& kFormat>
struct AddSmall {
  uint16_t operator()(uint16_t a, uint16_t b) const { return uint16_t(encode(decode(a, kFormat) + decode(b, kFormat), kFormat)); }
};
// A number where one operand is none; -0 lies below +0.
template <const Format& kFormat, bool kMost>
struct ExtremeSmall {
  uint16_t operator()(uint16_t a, uint16_t b) const {
    const double x = decode(a, kFormat), y = decode(b, kFormat);
    if (x != x || y != y) return x == x ? a : y == y ? b : uint16_t(kFormat.nan);
    const bool a_is_less = x < y || (x == y && std::signbit(x) && !std::signbit(y));
    return a_is_less != kMost ? a : b;
  }
};

template <const Format& kFormat>
BulkReduction of_small(std::string_view operation) {
  if (operation == "add") return each<uint16_t, AddSmall<kFormat>>;
  if (operation == "min") return each<uint16_t, ExtremeSmall<kFormat, false>>;
  if (operation == "max") return each<uint16_t, ExtremeSmall<kFormat, true>>;
  return nullptr;
}

template <class T>
BulkReduction of_integer(std::string_view operation) {
  if (operation == "add") return each<std::make_unsigned_t<T>, Add>;
  if (operation == "min") return each<T, Least>;
  if (operation == "max") return each<T, Most>;
  return nullptr;
}

template <class T>
BulkReduction of_bits(std::string_view operation) {
  if (operation == "and") return each<T, BitAnd>;
  if (operation == "or") return each<T, BitOr>;
  if (operation == "xor") return each<T, BitXor>;
  return nullptr;
}

}  // namespace

BulkReduction find_bulk_reduction(std::string_view operation, std::string_view type) {
  if (type == "f16") return of_small<kHalf>(operation);
  if (type == "bf16") return of_small<kBrain>(operation);
  if (type == "f32") return operation == "add" ? each<float, AddSingle> : nullptr;
  if (type == "f64") return operation == "add" ? each<double, Add> : nullptr;
  if (type == "b32") return of_bits<uint32_t>(operation);
  if (type == "b64") return of_bits<uint64_t>(operation);
  if (type == "s32") return of_integer<int32_t>(operation);
  if (type == "s64") return of_integer<int64_t>(operation);
  if (type == "u64") return of_integer<uint64_t>(operation);
  if (type != "u32") return nullptr;
  if (operation == "inc") return each<uint32_t, Increment>;
  if (operation == "dec") return each<uint32_t, Decrement>;
  return of_integer<uint32_t>(operation);
}

std::string_view reduction_of(const Instruction& instruction) {
  for (const std::string_view operation : {"add", "min", "max", "inc", "dec", "and", "or", "xor"}) {
    if (instruction.has(operation)) return operation;
  }
  return "";
}

}  // namespace pkb::emulator
