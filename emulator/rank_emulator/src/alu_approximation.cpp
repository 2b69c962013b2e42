// Approximations (.approx, .full) and directed rounding.
//
// Approximations are computed to float accuracy by the host's mathematics library, which lies within the errors that PTX
// grants but has not the bits of a GPU.
#include <bit>
#include <cfenv>
#include <cmath>

#include "lanes.h"

namespace pkb::emulator {
namespace {

inline float settled(float x) { return x == x ? x : std::bit_cast<float>(kNan32); }

struct Exp2 { static float of(float x) { return std::exp2(x); } };
struct Log2 { static float of(float x) { return std::log2(x); } };
struct Sine { static float of(float x) { return std::sin(x); } };
struct Cosine { static float of(float x) { return std::cos(x); } };
struct Tanh { static float of(float x) { return std::tanh(x); } };
struct InverseRoot { static float of(float x) { return float(1.0 / std::sqrt(double(x))); } };
struct Root { static float of(float x) { return std::sqrt(x); } };
struct Inverse { static float of(float x) { return 1.0f / x; } };

template <class F, bool kFlush>
struct Approximate {
  float operator()(float x) const { return settled(flushed<kFlush>(F::of(flushed<kFlush>(x)))); }
};
template <bool kFlush>
struct Quotient {
  float operator()(float a, float b) const {
    a = flushed<kFlush>(a);
    b = flushed<kFlush>(b);
    return settled(flushed<kFlush>(a / b));
  }
};
// div.approx goes through the reciprocal, which vanishes for divisors beyond 2^126.
template <bool kFlush>
struct RoughQuotient {
  float operator()(float a, float b) const {
    const bool vanishes = std::fabs(b) > 0x1p126f && std::isfinite(b);
    return vanishes ? settled(flushed<kFlush>(a) * std::copysign(0.0f, b)) : Quotient<kFlush>{}(a, b);
  }
};
inline double upper(double x) { return std::bit_cast<double>(std::bit_cast<uint64_t>(x) & ~0xffffffffull); }
// Of the upper half of a number, a subnormal one being zero.
inline double upper_normal(double x) {
  const double y = upper(x);
  return std::fabs(y) < 0x1p-1022 ? std::copysign(0.0, y) : y;
}
// rsqrt.approx.f64, rcp.approx.ftz.f64: the upper half of the result; with .ftz of the upper half of the operand.
template <bool kFlush>
struct UpperInverseRoot {
  double operator()(double x) const { return upper(1.0 / std::sqrt(kFlush ? upper_normal(x) : x)); }
};
struct UpperInverse {
  double operator()(double x) const { return upper_normal(1.0 / upper_normal(x)); }
};

template <bool kFlush>
std::optional<LaneOperation> find_single(std::string_view name, bool rough) {
  const auto of = [](auto f) { return unary<float, float, Approximate<decltype(f), kFlush>>(); };
  if (name == "ex2") return of(Exp2{});
  if (name == "lg2") return of(Log2{});
  if (name == "sin") return of(Sine{});
  if (name == "cos") return of(Cosine{});
  if (name == "tanh") return of(Tanh{});
  if (name == "rsqrt") return of(InverseRoot{});
  if (name == "sqrt") return of(Root{});
  if (name == "rcp") return of(Inverse{});
  if (name == "div") return rough ? binary<float, float, float, RoughQuotient<kFlush>>() : binary<float, float, float, Quotient<kFlush>>();
  return std::nullopt;
}

constexpr int kExchangedDifference = 7;

template <class T>
T directed_value(std::string_view, T a, T b, T c, int operation) {
  volatile T x = a, y = b, z = c, result;
  switch (operation) {
    case 0: result = x + y; break;
    case 1: result = x - y; break;
    case 2: result = x * y; break;
    case 3: result = x / y; break;
    case 4: result = std::fma(T(x), T(y), T(z)); break;
    case 5: result = std::sqrt(T(x)); break;
    case kExchangedDifference: result = y - x; break;
    default: result = T(1) / x; break;
  }
  return result;
}

template <class T, int kOperation, int kMode, bool kFlush, bool kSaturate>
void directed(void* result, const void* a, const void* b, const void* c) {
  auto* to = static_cast<T*>(result);
  const auto* x = static_cast<const T*>(a);
  const auto* y = static_cast<const T*>(b);
  const auto* z = static_cast<const T*>(c);
  constexpr bool kBinary = kOperation < 5 || kOperation == kExchangedDifference;
  std::fesetround(kMode);
  for (int i = 0; i < kLanes; ++i) {
    T value = flushed<kFlush>(directed_value<T>({}, flushed<kFlush>(x[i]), kBinary ? flushed<kFlush>(y[i]) : T(0),
                                                kOperation == 4 ? flushed<kFlush>(z[i]) : T(0), kOperation));
    if constexpr (sizeof(T) == 4) value = settled(value);
    if constexpr (sizeof(T) == 8) {
      const T second = kBinary ? y[i] : 0, third = kOperation == 4 ? z[i] : 0;
      value = kOperation == 3 ? settled_nan(value, {x[i], second}) : settled_nan(value, {second, third, x[i]});
    }
    if constexpr (kSaturate) value = value > T(0) ? (value < T(1) ? value : T(1)) : T(0);
    to[i] = value;
  }
  std::fesetround(FE_TONEAREST);
}

template <class T, int kMode, bool kFlush, bool kSaturate>
std::optional<LaneOperation> find_mode(const Instruction& instruction) {
  const auto name = instruction.parts[0];
  constexpr uint8_t kBytes = sizeof(T);
  const auto of = [](LaneFunction f, uint8_t operands) { return LaneOperation{f, kBytes, operands, {kBytes, kBytes, kBytes}}; };
  if (name == "add") return of(directed<T, 0, kMode, kFlush, kSaturate>, 2);
  if (name == "sub" && instruction.exchanged) return of(directed<T, kExchangedDifference, kMode, kFlush, kSaturate>, 2);
  if (name == "sub") return of(directed<T, 1, kMode, kFlush, kSaturate>, 2);
  if (name == "mul") return of(directed<T, 2, kMode, kFlush, kSaturate>, 2);
  if (kSaturate && name != "fma" && name != "mad") return std::nullopt;
  if (name == "div") return of(directed<T, 3, kMode, kFlush, kSaturate>, 2);
  if (name == "fma" || name == "mad") return of(directed<T, 4, kMode, kFlush, kSaturate>, 3);
  if (name == "sqrt") return of(directed<T, 5, kMode, kFlush, kSaturate>, 1);
  if (name == "rcp") return of(directed<T, 6, kMode, kFlush, kSaturate>, 1);
  return std::nullopt;
}

template <class T, bool kFlush, bool kSaturate>
std::optional<LaneOperation> find_modes(const Instruction& instruction) {
  if (instruction.has("rz")) return find_mode<T, FE_TOWARDZERO, kFlush, kSaturate>(instruction);
  if (instruction.has("rm")) return find_mode<T, FE_DOWNWARD, kFlush, kSaturate>(instruction);
  if (instruction.has("rp")) return find_mode<T, FE_UPWARD, kFlush, kSaturate>(instruction);
  return std::nullopt;
}

template <class T, bool kFlush>
std::optional<LaneOperation> find_saturation(const Instruction& instruction) {
  return instruction.has("sat") ? find_modes<T, kFlush, true>(instruction) : find_modes<T, kFlush, false>(instruction);
}

}  // namespace

std::optional<LaneOperation> find_approximation(const Instruction& instruction) {
  const auto type = instruction.parts.back();
  if (!instruction.has("approx") && !instruction.has("full")) return std::nullopt;
  if (type == "f32") return instruction.has("ftz") ? find_single<true>(instruction.parts[0], instruction.has("approx")) : find_single<false>(instruction.parts[0], instruction.has("approx"));
  if (type == "f64" && instruction.parts[0] == "rsqrt") return instruction.has("ftz") ? unary<double, double, UpperInverseRoot<true>>() : unary<double, double, UpperInverseRoot<false>>();
  if (type == "f64" && instruction.parts[0] == "rcp") return unary<double, double, UpperInverse>();
  return std::nullopt;
}

std::optional<LaneOperation> find_directed(const Instruction& instruction) {
  const auto type = instruction.parts.back();
  if (type == "f64") return find_saturation<double, false>(instruction);
  if (type == "f32") return instruction.has("ftz") ? find_saturation<float, true>(instruction) : find_saturation<float, false>(instruction);
  return std::nullopt;
}

}  // namespace pkb::emulator
