// cvt: between integers and floats of all widths. Frequent pairs have loops of their own; the rest goes lane by lane
// through a description of both types.
#include <bit>
#include <cfenv>
#include <cmath>
#include <type_traits>

#include "lanes.h"
#include "small_floats.h"

namespace pkb::emulator {
namespace {

enum class Kind : uint8_t { kSigned, kUnsigned, kF16, kBF16, kTF32, kF32, kF64, kE4M3, kE5M2 };

struct Type {
  Kind kind;
  uint8_t bytes;
  bool is_integer() const { return kind <= Kind::kUnsigned; }
};

std::optional<Type> type_of(std::string_view name) {
  if (name == "f16" || name == "f16x2") return Type{Kind::kF16, 2};
  if (name == "bf16" || name == "bf16x2") return Type{Kind::kBF16, 2};
  if (name == "tf32") return Type{Kind::kTF32, 4};
  if (name == "f32") return Type{Kind::kF32, 4};
  if (name == "f64") return Type{Kind::kF64, 8};
  if (name == "e4m3x2") return Type{Kind::kE4M3, 1};
  if (name == "e5m2x2") return Type{Kind::kE5M2, 1};
  if (name.empty() || (name[0] != 's' && name[0] != 'u' && name[0] != 'b')) return std::nullopt;
  return Type{name[0] == 's' ? Kind::kSigned : Kind::kUnsigned, uint8_t(type_bytes("." + std::string(name)))};
}

// Fits into the 8 bytes of a constant operand.
struct Description {
  Type to, from;
  uint8_t to_register, from_register;  // bytes
  Rounding rounding;
  uint8_t flags;
  static constexpr uint8_t kSaturates = 1, kFlushes = 2, kRelu = 4, kToIntegral = 8, kFinite = 16, kPresent = 128;
  bool has(uint8_t flag) const { return flags & flag; }
};
static_assert(sizeof(Description) == 8);

int host_mode(Rounding rounding) {
  switch (rounding) {
    case Rounding::kToZero: return FE_TOWARDZERO;
    case Rounding::kDown: return FE_DOWNWARD;
    case Rounding::kUp: return FE_UPWARD;
    default: return FE_TONEAREST;
  }
}

template <class To, class From>
To rounded_cast(From value, Rounding rounding) {
  std::fesetround(host_mode(rounding));
  volatile From from = value;
  volatile To to = To(from);
  std::fesetround(FE_TONEAREST);
  return to;
}

double integral(double value, Rounding rounding) {
  switch (rounding) {
    case Rounding::kToZero: return std::trunc(value);
    case Rounding::kDown: return std::floor(value);
    case Rounding::kUp: return std::ceil(value);
    default: return std::nearbyint(value);
  }
}

double read_float(uint64_t bits, Kind kind) {
  switch (kind) {
    case Kind::kF16: return half_to_float(uint16_t(bits));
    case Kind::kBF16: return brain_to_float(uint16_t(bits));
    case Kind::kE4M3: return decode(uint32_t(bits & 0xff), kE4m3);
    case Kind::kE5M2: return decode(uint32_t(bits & 0xff), kE5m2);
    case Kind::kF64: return std::bit_cast<double>(bits);
    default: return std::bit_cast<float>(uint32_t(bits));
  }
}

// Upper bits of a NaN's payload and its sign, quiet.
uint64_t narrowed_nan(uint64_t bits, const Format& format) {
  const int width = format.exponent_bits + format.mantissa_bits;
  const uint64_t exponent = ((1ull << format.exponent_bits) - 1) << format.mantissa_bits;
  const uint64_t payload = (bits & 0xfffffffffffffull) >> (52 - format.mantissa_bits) | 1ull << (format.mantissa_bits - 1);
  return (bits >> 63) << width | exponent | payload;
}

// The same payload in its upper bits, quiet.
uint64_t widened_nan(uint64_t bits, const Format& format) {
  const int width = format.exponent_bits + format.mantissa_bits;
  const uint64_t payload = (bits & ((1ull << format.mantissa_bits) - 1)) << (52 - format.mantissa_bits);
  return (bits >> width & 1) << 63 | 0x7ff8000000000000ull | payload;
}

uint64_t write_float(double value, const Description& how) {
  if (how.has(Description::kRelu) && value <= 0) value = 0;
  if (how.has(Description::kSaturates) && how.to.bytes > 1) value = value > 0 ? std::min(value, 1.0) : 0.0;
  const bool finite = how.has(Description::kFinite);
  switch (how.to.kind) {
    case Kind::kF16: return encode(value, kHalf, how.rounding, finite);
    case Kind::kBF16: return encode(value, kBrain, how.rounding, finite);
    case Kind::kTF32: return encode(value, kTensorFloat, how.rounding, finite) << 13;
    case Kind::kE4M3: return encode(value, kE4m3, how.rounding, true);
    case Kind::kE5M2: return encode(value, kE5m2, how.rounding, true);
    case Kind::kF64: return std::bit_cast<uint64_t>(value);
    default: break;
  }
  if (value != value) return kNan32;
  const float single = rounded_cast<float>(value, how.rounding);
  return std::bit_cast<uint32_t>(how.has(Description::kFlushes) ? flushed<true>(single) : single);
}

uint64_t integer_from_float(double value, const Description& how) {
  const int bits = 8 * how.to.bytes;
  const bool is_signed = how.to.kind == Kind::kSigned;
  if (value != value) return how.from.kind != Kind::kF64 && bits < 64 ? 0 : uint64_t(1) << (bits - 1);
  value = integral(value, how.rounding);
  const double above = std::ldexp(1.0, is_signed ? bits - 1 : bits), below = is_signed ? -above : 0;
  if (value >= above) return is_signed ? (uint64_t(1) << (bits - 1)) - 1 : (bits == 64 ? ~0ull : (uint64_t(1) << bits) - 1);
  if (value < below) value = below;
  return is_signed ? uint64_t(int64_t(value)) : uint64_t(value);
}

uint64_t integer_from_integer(uint64_t value, const Description& how) {
  if (!how.has(Description::kSaturates)) return value;
  const int bits = 8 * how.to.bytes;
  const bool negative = how.from.kind == Kind::kSigned && int64_t(value) < 0;
  if (how.to.kind == Kind::kUnsigned) {
    const uint64_t most = bits == 64 ? ~0ull : (uint64_t(1) << bits) - 1;
    return negative ? 0 : std::min(value, most);
  }
  const int64_t most = int64_t((uint64_t(1) << (bits - 1)) - 1);
  if (negative) return uint64_t(std::max(int64_t(value), -most - 1));
  return std::min(value, uint64_t(most));
}

uint64_t float_from_integer(uint64_t value, const Description& how) {
  const bool is_signed = how.from.kind == Kind::kSigned;
  if (how.has(Description::kSaturates)) return write_float(is_signed ? double(int64_t(value)) : double(value), how);
  if (how.to.kind == Kind::kF32) {
    return std::bit_cast<uint32_t>(is_signed ? rounded_cast<float>(int64_t(value), how.rounding) : rounded_cast<float>(value, how.rounding));
  }
  if (how.to.kind == Kind::kF64) {
    return std::bit_cast<uint64_t>(is_signed ? rounded_cast<double>(int64_t(value), how.rounding) : rounded_cast<double>(value, how.rounding));
  }
  // To few bits: truncated to odd first, so that rounding again is rounding once.
  double odd = is_signed ? rounded_cast<double>(int64_t(value), Rounding::kToZero) : rounded_cast<double>(value, Rounding::kToZero);
  const bool exact = is_signed ? __int128(odd) == int64_t(value) : __int128(odd) == __int128(value);
  if (!exact) odd = std::bit_cast<double>(std::bit_cast<uint64_t>(odd) | 1);
  return write_float(odd, how);
}

uint64_t convert(uint64_t bits, const Description& how) {
  if (how.from.is_integer()) {
    const int drop = 64 - 8 * how.from.bytes;
    const uint64_t value = how.from.kind == Kind::kSigned ? uint64_t(int64_t(bits << drop) >> drop) : bits << drop >> drop;
    return how.to.is_integer() ? integer_from_integer(value, how) : float_from_integer(value, how);
  }
  double value = read_float(bits, how.from.kind);
  const bool keeps_nan = value != value && !how.has(Description::kSaturates);
  if (keeps_nan && how.from.kind == Kind::kF64) {
    if (how.to.kind == Kind::kF32) return narrowed_nan(bits, kSingle);
    if (how.to.kind == Kind::kF16) return narrowed_nan(bits, kHalf);
    if (how.to.kind == Kind::kBF16) return narrowed_nan(bits, kBrain);
  }
  if (keeps_nan && how.to.kind == Kind::kF64) {
    if (how.from.kind == Kind::kF16) return widened_nan(bits, kHalf);
    if (how.from.kind == Kind::kBF16) return widened_nan(bits, kBrain);
    if (how.from.kind == Kind::kF32 && how.has(Description::kFlushes)) return widened_nan(kNan32, kSingle);
  }
  if (how.to.kind == Kind::kTF32 && how.rounding == Rounding::kNearestAway) {
    return (std::isfinite(value) ? bits + 0x1000 : bits) & 0xffffe000u;
  }
  if (how.has(Description::kFlushes) && how.from.kind == Kind::kF32) value = flushed<true>(float(value));
  if (how.to.is_integer()) return integer_from_float(value, how);
  if (how.has(Description::kToIntegral)) value = integral(value, how.rounding);
  return write_float(value, how);
}

uint64_t extended(uint64_t bits, const Type& type) {
  const int drop = 64 - 8 * type.bytes;
  return type.kind == Kind::kSigned ? uint64_t(int64_t(bits << drop) >> drop) : bits << drop >> drop;
}

void described(void* result, const void* a, const void*, const void* c) {
  Description how;
  std::memcpy(&how, c, sizeof how);
  for (int i = 0; i < kLanes; ++i) {
    uint64_t bits = 0;
    std::memcpy(&bits, static_cast<const char*>(a) + i * how.from_register, how.from_register);
    const uint64_t value = extended(convert(bits, how), how.to);
    std::memcpy(static_cast<char*>(result) + i * how.to_register, &value, how.to_register);
  }
}

// A pair in one register: from two floats, the first of which becomes the upper half.
void described_pair(void* result, const void* a, const void* b, const void* c) {
  Description how;
  std::memcpy(&how, c, sizeof how);
  const int bytes = 2 * how.to.bytes;
  for (int i = 0; i < kLanes; ++i) {
    uint32_t upper, lower;
    std::memcpy(&upper, static_cast<const char*>(a) + 4 * i, 4);
    std::memcpy(&lower, static_cast<const char*>(b) + 4 * i, 4);
    const uint64_t pair = convert(upper, how) << (8 * how.to.bytes) | extended(convert(lower, how), {Kind::kUnsigned, how.to.bytes});
    std::memcpy(static_cast<char*>(result) + i * bytes, &pair, size_t(bytes));
  }
}

// Between two small formats, or from them to a pair of f16, two at a time.
void described_both(void* result, const void* a, const void*, const void* c) {
  Description how;
  std::memcpy(&how, c, sizeof how);
  for (int i = 0; i < kLanes; ++i) {
    uint64_t from = 0;
    std::memcpy(&from, static_cast<const char*>(a) + 2 * how.from.bytes * i, size_t(2 * how.from.bytes));
    const uint64_t lower = extended(convert(from, how), {Kind::kUnsigned, how.to.bytes});
    const uint64_t pair = convert(from >> (8 * how.from.bytes), how) << (8 * how.to.bytes) | lower;
    std::memcpy(static_cast<char*>(result) + 2 * how.to.bytes * i, &pair, size_t(2 * how.to.bytes));
  }
}

struct HalfToFloat { float operator()(uint16_t a) const { return half_to_float(a); } };
// The bits are moved alone, those of a NaN too.
struct BrainToFloat { uint32_t operator()(uint16_t a) const { return uint32_t(a) << 16; } };
struct FloatToHalf { uint16_t operator()(float a) const { return float_to_half(a); } };
struct FloatToBrain { uint16_t operator()(float a) const { return float_to_brain(a); } };
struct FloatsToHalves { uint32_t operator()(float a, float b) const { return uint32_t(float_to_half(a)) << 16 | float_to_half(b); } };
struct FloatsToBrains { uint32_t operator()(float a, float b) const { return uint32_t(float_to_brain(a)) << 16 | float_to_brain(b); } };
template <class D>
struct Cast { template <class T> D operator()(T a) const { return D(a); } };
struct FloatToInt {
  int32_t operator()(float a) const {
    if (!(a == a)) return 0;
    if (a >= 0x1p31f) return INT32_MAX;
    return a <= -0x1p31f ? INT32_MIN : int32_t(a);
  }
};
struct Floor { float operator()(float a) const { return a == a ? std::floor(a) : std::bit_cast<float>(kNan32); } };

template <class A>
std::optional<LaneOperation> integers(int result_bytes) {
  using U = std::make_unsigned_t<A>;
  (void)sizeof(U);
  switch (result_bytes) {
    case 2: return unary<uint16_t, A, Cast<uint16_t>>();
    case 4: return unary<uint32_t, A, Cast<uint32_t>>();
    case 8: return unary<uint64_t, A, Cast<uint64_t>>();
    default: return std::nullopt;
  }
}

std::optional<LaneOperation> find_frequent(std::string_view opcode, const Type& to, const Type& from, int result_bytes, int source_bytes) {
  if (opcode == "cvt.f32.f16") return unary<float, uint16_t, HalfToFloat>();
  if (opcode == "cvt.f32.bf16") return unary<uint32_t, uint16_t, BrainToFloat>();
  if (opcode == "cvt.rn.f16.f32") return unary<uint16_t, float, FloatToHalf>();
  if (opcode == "cvt.rn.bf16.f32") return unary<uint16_t, float, FloatToBrain>();
  if (opcode == "cvt.rn.f16x2.f32") return binary<uint32_t, float, float, FloatsToHalves>();
  if (opcode == "cvt.rn.bf16x2.f32") return binary<uint32_t, float, float, FloatsToBrains>();
  if (opcode == "cvt.rn.f32.s32") return unary<float, int32_t, Cast<float>>();
  if (opcode == "cvt.rn.f32.u32") return unary<float, uint32_t, Cast<float>>();
  if (opcode == "cvt.rn.f64.s32") return unary<double, int32_t, Cast<double>>();
  if (opcode == "cvt.rzi.s32.f32") return unary<int32_t, float, FloatToInt>();
  if (opcode == "cvt.rmi.f32.f32") return unary<float, float, Floor>();
  const bool plain = to.is_integer() && from.is_integer() && std::count(opcode.begin(), opcode.end(), '.') == 2;
  if (!plain || to.bytes != result_bytes || from.bytes != source_bytes) return std::nullopt;
  return with_integer(opcode.substr(opcode.rfind('.') + 1), [&](auto zero) { return integers<decltype(zero)>(result_bytes); });
}

}  // namespace

std::optional<LaneOperation> find_conversion(const Instruction& instruction, int result_bytes, int source_bytes) {
  const auto& parts = instruction.parts;
  if (parts.size() < 3) return std::nullopt;
  const auto to_name = parts[parts.size() - 2], from_name = parts.back();
  const auto to = type_of(to_name), from = type_of(from_name);
  if (!to || !from) return std::nullopt;
  if (const auto found = find_frequent(instruction.opcode, *to, *from, result_bytes, source_bytes)) return found;
  Description how{*to, *from, uint8_t(result_bytes), uint8_t(source_bytes), Rounding::kNearestEven, Description::kPresent};
  const auto flag = [&](std::string_view name, uint8_t bit) { if (instruction.has(name)) how.flags |= bit; };
  flag("sat", Description::kSaturates);
  flag("satfinite", Description::kFinite);
  flag("ftz", Description::kFlushes);
  flag("relu", Description::kRelu);
  for (const auto& [name, mode] : {std::pair{"rz", Rounding::kToZero}, {"rm", Rounding::kDown}, {"rp", Rounding::kUp}, {"rna", Rounding::kNearestAway}}) {
    if (instruction.has(name)) how.rounding = mode;
    if (instruction.has(std::string(name) + "i")) how.rounding = mode;
  }
  for (const auto name : {"rni", "rzi", "rmi", "rpi"}) flag(name, Description::kToIntegral);
  const uint64_t constant = std::bit_cast<uint64_t>(how);
  const bool pair = to_name.ends_with("x2");
  if (pair && from_name.ends_with("x2")) {
    return LaneOperation{described_both, uint8_t(2 * to->bytes), 1, {uint8_t(2 * from->bytes), 0, 0}, constant};
  }
  if (pair) return LaneOperation{described_pair, uint8_t(2 * to->bytes), 2, {4, 4, 0}, constant};
  return LaneOperation{described, uint8_t(result_bytes), 1, {uint8_t(source_bytes), 0, 0}, constant};
}

}  // namespace pkb::emulator
