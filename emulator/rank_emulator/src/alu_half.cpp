// Arithmetic of f16 and bf16, single and in pairs, rounded once.
#include <algorithm>
#include <bit>
#include <cmath>

#include "lanes.h"
#include "small_floats.h"

namespace pkb::emulator {
namespace {

// Subnormal numbers become zeros of their sign.
uint16_t flushed_half(uint16_t bits) { return bits & 0x7c00 ? bits : uint16_t(bits & 0x8000); }

struct Half {
  static constexpr Format kFormat = kHalf;
  static double value(uint16_t bits) { return half_to_float(bits); }
  static uint16_t settled(uint16_t bits) { return bits; }
};
struct FlushedHalf : Half {
  static double value(uint16_t bits) { return half_to_float(flushed_half(bits)); }
  static uint16_t settled(uint16_t bits) { return flushed_half(bits); }
};
struct Brain {
  static constexpr Format kFormat = kBrain;
  static double value(uint16_t bits) { return brain_to_float(bits); }
  static uint16_t settled(uint16_t bits) { return bits; }
};

// a * b + c, rounded to odd at double precision, so that rounding it again to few bits is rounding once.
double fma_to_odd(double a, double b, double c) {
  const double product = a * b;  // exact: 22 bits at most
  const double sum = product + c;
  if (!std::isfinite(sum)) return sum;
  const double part = sum - product, error = (product - (sum - part)) + (c - part);
  const auto bits = std::bit_cast<uint64_t>(sum);
  if (error == 0 || (bits & 1)) return sum;
  const bool away = (error > 0) == (sum > 0);
  return std::bit_cast<double>(away ? bits + 1 : bits - 1);
}

struct Add { static double of(double a, double b, double) { return a + b; } };
struct Sub { static double of(double a, double b, double) { return a - b; } };
struct Mul { static double of(double a, double b, double) { return a * b; } };
struct Fma { static double of(double a, double b, double c) { return fma_to_odd(a, b, c); } };
// Of bf16 alone with .ftz, which is no choice there.
template <class T>
struct Exp2 {
  static double of(double a, double, double) {
    const double result = std::exp2(a);
    return T::kFormat.exponent_bits == 8 && result < 0x1p-126 ? 0 : result;
  }
};
struct Tanh { static double of(double a, double, double) { return std::tanh(a); } };

enum class After { kNothing, kSaturate, kRelu };

template <class T, class F, After kAfter>
struct Rounded {
  static uint16_t of(uint16_t a, uint16_t b, uint16_t c) {
    double result = F::of(T::value(a), T::value(b), T::value(c));
    if (kAfter == After::kSaturate) result = result > 0 ? std::min(result, 1.0) : 0.0;
    if (kAfter == After::kRelu && result <= 0) result = 0;
    return T::settled(uint16_t(encode(result, T::kFormat)));
  }
};
template <class T, bool kMax, bool kNan>
struct Extreme {
  static uint16_t of(uint16_t a, uint16_t b, uint16_t) {
    a = T::settled(a);
    b = T::settled(b);
    const double x = T::value(a), y = T::value(b);
    if (x != x || y != y) return kNan || (x != x && y != y) ? 0x7fff : (x != x ? b : a);
    const bool less = x < y || (x == y && (a & 0x8000));
    return less != kMax ? a : b;
  }
};
// Of the magnitudes, with the product of the signs.
template <class T, bool kMax, bool kNan>
struct SignedExtreme {
  static uint16_t of(uint16_t a, uint16_t b, uint16_t) {
    const uint16_t magnitude = Extreme<T, kMax, kNan>::of(a & 0x7fff, b & 0x7fff, 0);
    return T::value(magnitude) == T::value(magnitude) ? magnitude | ((a ^ b) & 0x8000) : magnitude;
  }
};
template <class T>
struct Neg {
  static uint16_t of(uint16_t a, uint16_t, uint16_t) { return T::value(a) == T::value(a) ? T::settled(a) ^ 0x8000 : 0x7fff; }
};
template <class T>
struct Abs {
  static uint16_t of(uint16_t a, uint16_t, uint16_t) { return T::value(a) == T::value(a) ? T::settled(a) & 0x7fff : 0x7fff; }
};

template <class F>
struct One {
  uint16_t operator()(uint16_t a, uint16_t b = 0, uint16_t c = 0) const { return F::of(a, b, c); }
};
template <class F>
struct Two {
  uint32_t operator()(uint32_t a, uint32_t b = 0, uint32_t c = 0) const {
    return F::of(uint16_t(a), uint16_t(b), uint16_t(c)) |
           uint32_t(F::of(uint16_t(a >> 16), uint16_t(b >> 16), uint16_t(c >> 16))) << 16;
  }
};

template <class F>
LaneOperation of_arity(int operands, bool pairs) {
  using S = uint16_t;
  using P = uint32_t;
  if (operands == 1) return pairs ? unary<P, P, Two<F>>() : unary<S, S, One<F>>();
  if (operands == 2) return pairs ? binary<P, P, P, Two<F>>() : binary<S, S, S, One<F>>();
  return pairs ? ternary<P, P, P, P, Two<F>>() : ternary<S, S, S, S, One<F>>();
}

template <class T, class F>
LaneOperation rounded(const Instruction& instruction, int operands, bool pairs) {
  if (instruction.has("sat")) return of_arity<Rounded<T, F, After::kSaturate>>(operands, pairs);
  if (instruction.has("relu")) return of_arity<Rounded<T, F, After::kRelu>>(operands, pairs);
  return of_arity<Rounded<T, F, After::kNothing>>(operands, pairs);
}

template <class T, bool kMax>
LaneOperation extreme(const Instruction& instruction, bool pairs) {
  const bool nan = instruction.has("NaN");
  if (instruction.has("xorsign")) return nan ? of_arity<SignedExtreme<T, kMax, true>>(2, pairs) : of_arity<SignedExtreme<T, kMax, false>>(2, pairs);
  return nan ? of_arity<Extreme<T, kMax, true>>(2, pairs) : of_arity<Extreme<T, kMax, false>>(2, pairs);
}

template <class T>
std::optional<LaneOperation> find_typed(const Instruction& instruction, bool pairs) {
  const auto name = instruction.parts[0];
  if (name == "add") return rounded<T, Add>(instruction, 2, pairs);
  if (name == "sub") return rounded<T, Sub>(instruction, 2, pairs);
  if (name == "mul") return rounded<T, Mul>(instruction, 2, pairs);
  if (name == "fma") return rounded<T, Fma>(instruction, 3, pairs);
  if (name == "ex2") return of_arity<Rounded<T, Exp2<T>, After::kNothing>>(1, pairs);
  if (name == "tanh") return of_arity<Rounded<T, Tanh, After::kNothing>>(1, pairs);
  if (name == "neg") return of_arity<Neg<T>>(1, pairs);
  if (name == "abs") return of_arity<Abs<T>>(1, pairs);
  if (name == "max") return extreme<T, true>(instruction, pairs);
  if (name == "min") return extreme<T, false>(instruction, pairs);
  return std::nullopt;
}

}  // namespace

std::optional<LaneOperation> find_half(const Instruction& instruction) {
  const auto type = instruction.parts.back();
  const auto name = instruction.parts[0];
  if (type == "f16" && instruction.parts.size() == 2 && (name == "max" || name == "min") && takes_one_register(instruction)) {
    return binary<uint16_t, uint16_t, uint16_t, First>();  // of which ptxas leaves a copy
  }
  if ((type == "f16" || type == "f16x2") && instruction.has("ftz")) return find_typed<FlushedHalf>(instruction, type == "f16x2");
  if (type == "f16" || type == "f16x2") return find_typed<Half>(instruction, type == "f16x2");
  if (type == "bf16" || type == "bf16x2") return find_typed<Brain>(instruction, type == "bf16x2");
  return std::nullopt;
}

}  // namespace pkb::emulator
