// Arithmetic of f32 and f64, rounded to nearest even. NaN results of f32 have one bit pattern, as on GPUs.
#include <bit>
#include <cmath>
#include <type_traits>

#include "lanes.h"

namespace pkb::emulator {
namespace {

template <class T>
inline T settled(T x) {
  if constexpr (sizeof(T) == 4) return x == x ? x : std::bit_cast<float>(kNan32);
  return x;
}

// A NaN of f32 becomes the one NaN, one of f64 a quiet one of its sign.
inline float quiet_nan(float) { return std::bit_cast<float>(kNan32); }
inline double quiet_nan(double a) { return std::bit_cast<double>(std::bit_cast<uint64_t>(a) | 1ull << 51); }

struct Plus { template <class T> static T of(T a, T b) { return a + b; } };
struct Minus { template <class T> static T of(T a, T b) { return a - b; } };
// Of operands that are exchanged.
struct MinusFrom { template <class T> static T of(T b, T a) { return a - b; } };
struct Times { template <class T> static T of(T a, T b) { return a * b; } };
struct Over { template <class T> static T of(T a, T b) { return a / b; } };
struct FusedMultiplyAdd {
  static float of(float a, float b, float c) { return __builtin_fmaf(a, b, c); }
  static double of(double a, double b, double c) { return __builtin_fma(a, b, c); }
};
struct SquareRoot {
  static float of(float a) { return __builtin_sqrtf(a); }
  static double of(double a) { return __builtin_sqrt(a); }
};
struct Reciprocal { template <class T> static T of(T a) { return T(1) / a; } };

// The first operand is looked at first.
template <class F>
inline constexpr bool kInOrder = false;
template <>
inline constexpr bool kInOrder<Over> = true;

inline double nan_of(double result, bool, double a) { return settled_nan(result, {a}); }
inline double nan_of(double result, bool in_order, double a, double b) {
  return in_order ? settled_nan(result, {a, b}) : settled_nan(result, {b, a});
}
inline double nan_of(double result, bool, double a, double b, double c) { return settled_nan(result, {b, c, a}); }

template <class F, bool kFlush, bool kSaturate>
struct Rounded {
  template <class... T>
  auto operator()(T... x) const {
    auto result = settled(flushed<kFlush>(F::of(flushed<kFlush>(x)...)));
    using R = decltype(result);
    if constexpr (sizeof(R) == 8) result = nan_of(result, kInOrder<F>, double(x)...);
    if constexpr (kSaturate) result = result > R(0) ? (result < R(1) ? result : R(1)) : R(0);
    return result;
  }
};

// min and max: a NaN gives way to a number, unless .NaN is asked for; -0 is less than +0. Of two NaN, f32 gives the one NaN, f64
// the second, quiet.
template <bool kFlush, bool kMax, bool kNan>
struct Extreme {
  template <class T>
  T operator()(T a, T b) const {
    a = flushed<kFlush>(a);
    b = flushed<kFlush>(b);
    const bool less = a < b || (a == b && std::signbit(a));
    const T numbers = less != kMax ? a : b;
    const T with_nan = kNan ? quiet_nan(b) : (a == a ? a : (b == b ? b : quiet_nan(b)));
    return a == a && b == b ? numbers : with_nan;
  }
};
template <bool kFlush>
struct Absolute { template <class T> T operator()(T a) const { return a == a ? std::fabs(flushed<kFlush>(a)) : quiet_nan(a); } };
template <bool kFlush>
struct Negative { template <class T> T operator()(T a) const { return a == a ? -flushed<kFlush>(a) : quiet_nan(a); } };
// Of f32 with a guard: ptxas makes a selection of them, which changes the sign bit alone.
struct WithoutSign { uint32_t operator()(uint32_t a) const { return a & 0x7fffffffu; } };
struct OtherSign { uint32_t operator()(uint32_t a) const { return a ^ 0x80000000u; } };
// Of the magnitudes, with the product of the signs.
template <bool kFlush, bool kMax, bool kNan>
struct SignedExtreme {
  float operator()(float a, float b) const {
    const float magnitude = Extreme<kFlush, kMax, kNan>{}(std::fabs(a), std::fabs(b));
    if (magnitude != magnitude) return std::bit_cast<float>(kNan32);
    return std::signbit(a) != std::signbit(b) ? -magnitude : magnitude;
  }
};
struct CopySign { template <class T> T operator()(T a, T b) const { return std::copysign(b, a); } };

template <class T, bool kFlush, bool kSaturate>
std::optional<LaneOperation> find_rounded(std::string_view name, bool exchanged) {
  if (name == "add") return binary<T, T, T, Rounded<Plus, kFlush, kSaturate>>();
  if (name == "sub" && exchanged) return binary<T, T, T, Rounded<MinusFrom, kFlush, kSaturate>>();
  if (name == "sub") return binary<T, T, T, Rounded<Minus, kFlush, kSaturate>>();
  if (name == "mul") return binary<T, T, T, Rounded<Times, kFlush, kSaturate>>();
  if (name == "fma" || name == "mad") return ternary<T, T, T, T, Rounded<FusedMultiplyAdd, kFlush, kSaturate>>();
  if (kSaturate) return std::nullopt;
  if (name == "div") return binary<T, T, T, Rounded<Over, kFlush, false>>();
  if (name == "sqrt") return unary<T, T, Rounded<SquareRoot, kFlush, false>>();
  if (name == "rcp") return unary<T, T, Rounded<Reciprocal, kFlush, false>>();
  return std::nullopt;
}

template <bool kFlush, bool kMax>
LaneOperation signed_extreme(bool nan) {
  using F = float;
  return nan ? binary<F, F, F, SignedExtreme<kFlush, kMax, true>>() : binary<F, F, F, SignedExtreme<kFlush, kMax, false>>();
}

bool is_one(const Operand& operand) {
  if (operand.kind != Operand::kImmediate || !operand.is_float) return false;
  return operand.is_single ? operand.bits == std::bit_cast<uint32_t>(1.0f) : operand.bits == std::bit_cast<uint64_t>(1.0);
}

// Of which ptxas leaves a copy, signalling NaN included: max and min of one register, products with a literal 1.
template <class T>
std::optional<LaneOperation> find_copy(const Instruction& instruction) {
  using Bits = std::conditional_t<sizeof(T) == 4, uint32_t, uint64_t>;
  const auto name = instruction.parts[0];
  if (instruction.parts.size() != 2 || instruction.operands.size() != 3) return std::nullopt;
  const auto first = binary<Bits, Bits, Bits, First>();
  if (name == "max" || name == "min") return takes_one_register(instruction) ? std::optional(first) : std::nullopt;
  if (name != "mul") return std::nullopt;
  if (is_one(instruction.operands[2])) return first;
  return is_one(instruction.operands[1]) ? std::optional(binary<Bits, Bits, Bits, Second>()) : std::nullopt;
}

template <class T, bool kFlush>
std::optional<LaneOperation> find_typed(const Instruction& instruction) {
  const auto name = instruction.parts[0];
  const bool nan = instruction.has("NaN"), saturates = instruction.has("sat");
  if (const auto found = find_copy<T>(instruction)) return found;
  if constexpr (sizeof(T) == 4 && !kFlush) {
    if (instruction.guard >= 0 && name == "abs") return unary<uint32_t, uint32_t, WithoutSign>();
    if (instruction.guard >= 0 && name == "neg") return unary<uint32_t, uint32_t, OtherSign>();
  }
  if constexpr (sizeof(T) == 4) {
    if (instruction.has("xorsign")) return name == "max" ? signed_extreme<kFlush, true>(nan) : signed_extreme<kFlush, false>(nan);
  }
  if (name == "max") return nan ? binary<T, T, T, Extreme<kFlush, true, true>>() : binary<T, T, T, Extreme<kFlush, true, false>>();
  if (name == "min") return nan ? binary<T, T, T, Extreme<kFlush, false, true>>() : binary<T, T, T, Extreme<kFlush, false, false>>();
  if (name == "abs") return unary<T, T, Absolute<kFlush>>();
  if (name == "neg") return unary<T, T, Negative<kFlush>>();
  if (name == "copysign") return binary<T, T, T, CopySign>();
  const bool exchanged = instruction.exchanged;
  return saturates ? find_rounded<T, kFlush, true>(name, exchanged) : find_rounded<T, kFlush, false>(name, exchanged);
}

}  // namespace

std::optional<LaneOperation> find_float(const Instruction& instruction) {
  const auto type = instruction.parts.back();
  for (const auto mode : {"rz", "rm", "rp", "approx", "full"}) {
    if (instruction.has(mode)) return std::nullopt;
  }
  if (type == "f64") return find_typed<double, false>(instruction);
  if (type == "f32") return instruction.has("ftz") ? find_typed<float, true>(instruction) : find_typed<float, false>(instruction);
  return std::nullopt;
}

}  // namespace pkb::emulator
