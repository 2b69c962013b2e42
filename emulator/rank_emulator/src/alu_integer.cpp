// Integer arithmetic.
#include <algorithm>
#include <type_traits>

#include "lanes.h"

namespace pkb::emulator {
namespace {

template <class T>
using Unsigned = std::make_unsigned_t<T>;

template <class T>
struct Wider;
template <>
struct Wider<int16_t> { using type = int32_t; };
template <>
struct Wider<uint16_t> { using type = uint32_t; };
template <>
struct Wider<int32_t> { using type = int64_t; };
template <>
struct Wider<uint32_t> { using type = uint64_t; };
template <>
struct Wider<int64_t> { using type = __int128; };
template <>
struct Wider<uint64_t> { using type = unsigned __int128; };
template <class T>
using Wide = typename Wider<T>::type;

template <class T>
struct Add { T operator()(T a, T b) const { return T(Unsigned<T>(a) + Unsigned<T>(b)); } };
template <class T>
struct AddSaturated {
  T operator()(T a, T b) const {
    const int64_t sum = int64_t(a) + int64_t(b);
    return T(std::clamp<int64_t>(sum, INT32_MIN, INT32_MAX));
  }
};
template <class T>
struct SubSaturated {
  T operator()(T a, T b) const {
    const int64_t difference = int64_t(a) - int64_t(b);
    return T(std::clamp<int64_t>(difference, INT32_MIN, INT32_MAX));
  }
};
template <class T>
struct Sub { T operator()(T a, T b) const { return T(Unsigned<T>(a) - Unsigned<T>(b)); } };
template <class T>
struct Mul {
  T operator()(T a, T b) const {
    if constexpr (sizeof(T) == 2) return T(uint32_t(uint16_t(a)) * uint32_t(uint16_t(b)));
    return T(Unsigned<T>(a) * Unsigned<T>(b));
  }
};
template <class T>
struct MulHigh { T operator()(T a, T b) const { return T((Wide<T>(a) * Wide<T>(b)) >> (8 * sizeof(T))); } };
template <class T>
struct MulWide { Wide<T> operator()(T a, T b) const { return Wide<T>(a) * Wide<T>(b); } };
template <class T>
struct Mad { T operator()(T a, T b, T c) const { return Add<T>{}(Mul<T>{}(a, b), c); } };
template <class T>
struct MadHigh { T operator()(T a, T b, T c) const { return Add<T>{}(MulHigh<T>{}(a, b), c); } };
template <class T>
struct MadWide { Wide<T> operator()(T a, T b, Wide<T> c) const { return Add<Wide<T>>{}(MulWide<T>{}(a, b), c); } };
struct MadHighSaturated {
  int32_t operator()(int32_t a, int32_t b, int32_t c) const { return AddSaturated<int32_t>{}(MulHigh<int32_t>{}(a, b), c); }
};
// The product of the lower 24 bits: its lower or upper 32 of 48 bits.
template <class T, bool kHigh>
struct Mul24 {
  T operator()(T a, T b) const {
    const int64_t x = std::is_signed_v<T> ? int64_t(int32_t(uint32_t(a) << 8) >> 8) : int64_t(uint32_t(a) & 0xffffff);
    const int64_t y = std::is_signed_v<T> ? int64_t(int32_t(uint32_t(b) << 8) >> 8) : int64_t(uint32_t(b) & 0xffffff);
    return T(uint64_t(x * y) >> (kHigh ? 16 : 0));
  }
};
template <class T, bool kHigh>
struct Mad24 { T operator()(T a, T b, T c) const { return Add<T>{}(Mul24<T, kHigh>{}(a, b), c); } };
// Hardware gives all ones for a division by zero, and for its remainder.
template <class T>
struct Div {
  T operator()(T a, T b) const {
    if (b == 0) return T(~T{0});
    if (std::is_signed_v<T> && b == T(-1)) return T(-Unsigned<T>(a));
    return T(a / b);
  }
};
template <class T>
struct Rem {
  T operator()(T a, T b) const {
    if (b == 0) return T(~T{0});
    if (std::is_signed_v<T> && b == T(-1)) return 0;
    return T(a % b);
  }
};
template <class T>
struct Min { T operator()(T a, T b) const { return b < a ? b : a; } };
template <class T>
struct Max { T operator()(T a, T b) const { return a < b ? b : a; } };
template <class T>
struct MinRelu { T operator()(T a, T b) const { return std::max<T>(b < a ? b : a, 0); } };
template <class T>
struct MaxRelu { T operator()(T a, T b) const { return std::max<T>(a < b ? b : a, 0); } };
template <class T>
struct Abs { T operator()(T a) const { return a < T(0) ? T(-Unsigned<T>(a)) : a; } };
template <class T>
struct Neg { T operator()(T a) const { return T(-Unsigned<T>(a)); } };
template <class T>
struct AbsoluteDifference {
  T operator()(T a, T b, T c) const { return Add<T>{}(c, a < b ? Sub<T>{}(b, a) : Sub<T>{}(a, b)); }
};

// Two halves of 16 bits.
template <class F>
struct Halves {
  uint32_t operator()(uint32_t a, uint32_t b) const {
    return uint16_t(F{}(decltype(F{}(0, 0))(a), decltype(F{}(0, 0))(b))) |
           uint32_t(uint16_t(F{}(decltype(F{}(0, 0))(a >> 16), decltype(F{}(0, 0))(b >> 16)))) << 16;
  }
};

std::optional<LaneOperation> find_halves(std::string_view name, std::string_view type, bool relu) {
  const auto pick = [](auto f) { return binary<uint32_t, uint32_t, uint32_t, Halves<decltype(f)>>(); };
  if (name == "add") return pick(Add<uint16_t>{});
  if (type == "u16x2") {
    if (name == "min") return pick(Min<uint16_t>{});
    if (name == "max") return pick(Max<uint16_t>{});
  } else {
    if (name == "min") return relu ? pick(MinRelu<int16_t>{}) : pick(Min<int16_t>{});
    if (name == "max") return relu ? pick(MaxRelu<int16_t>{}) : pick(Max<int16_t>{});
  }
  return std::nullopt;
}

std::optional<LaneOperation> find_product(const Instruction& instruction, std::string_view type) {
  const bool adds = instruction.parts[0] == "mad", high = instruction.has("hi");
  if (instruction.has("cc")) return std::nullopt;
  if (instruction.has("sat")) {
    if (!adds || !high || type != "s32") return std::nullopt;
    return ternary<int32_t, int32_t, int32_t, int32_t, MadHighSaturated>();
  }
  if (instruction.has("wide")) {
    if (type == "s16") return adds ? ternary<int32_t, int16_t, int16_t, int32_t, MadWide<int16_t>>() : binary<int32_t, int16_t, int16_t, MulWide<int16_t>>();
    if (type == "u16") return adds ? ternary<uint32_t, uint16_t, uint16_t, uint32_t, MadWide<uint16_t>>() : binary<uint32_t, uint16_t, uint16_t, MulWide<uint16_t>>();
    if (type == "s32") return adds ? ternary<int64_t, int32_t, int32_t, int64_t, MadWide<int32_t>>() : binary<int64_t, int32_t, int32_t, MulWide<int32_t>>();
    if (type == "u32") return adds ? ternary<uint64_t, uint32_t, uint32_t, uint64_t, MadWide<uint32_t>>() : binary<uint64_t, uint32_t, uint32_t, MulWide<uint32_t>>();
    return std::nullopt;
  }
  return with_integer(type, [&](auto zero) {
    using T = decltype(zero);
    if (adds) return high ? ternary<T, T, T, T, MadHigh<T>>() : ternary<T, T, T, T, Mad<T>>();
    return high ? binary<T, T, T, MulHigh<T>>() : binary<T, T, T, Mul<T>>();
  });
}

template <class T, bool kHigh>
LaneOperation find_product24(bool adds) {
  return adds ? ternary<T, T, T, T, Mad24<T, kHigh>>() : binary<T, T, T, Mul24<T, kHigh>>();
}

}  // namespace

std::optional<LaneOperation> find_integer(const Instruction& instruction) {
  const auto name = instruction.parts[0], type = instruction.parts.back();
  if (type == "u16x2" || type == "s16x2") return find_halves(name, type, instruction.has("relu"));
  if (name == "mul" || name == "mad") return find_product(instruction, type);
  if ((name == "mul24" || name == "mad24") && !instruction.has("sat")) {
    const bool adds = name == "mad24", high = instruction.has("hi");
    if (type == "s32") return high ? find_product24<int32_t, true>(adds) : find_product24<int32_t, false>(adds);
    return high ? find_product24<uint32_t, true>(adds) : find_product24<uint32_t, false>(adds);
  }
  if (instruction.has("cc") || name == "addc" || name == "subc" || name == "madc") return std::nullopt;
  const bool saturates = instruction.has("sat"), relu = instruction.has("relu");
  return with_integer(type, [&](auto zero) -> std::optional<LaneOperation> {
    using T = decltype(zero);
    if (saturates && name == "add") return binary<T, T, T, AddSaturated<T>>();
    if (saturates && name == "sub") return binary<T, T, T, SubSaturated<T>>();
    if (name == "add") return binary<T, T, T, Add<T>>();
    if (name == "sub") return binary<T, T, T, Sub<T>>();
    if (name == "div") return binary<T, T, T, Div<T>>();
    if (name == "rem") return binary<T, T, T, Rem<T>>();
    if (name == "min") return relu ? binary<T, T, T, MinRelu<T>>() : binary<T, T, T, Min<T>>();
    if (name == "max") return relu ? binary<T, T, T, MaxRelu<T>>() : binary<T, T, T, Max<T>>();
    if (name == "abs") return unary<T, T, Abs<T>>();
    if (name == "neg") return unary<T, T, Neg<T>>();
    if (name == "sad") return ternary<T, T, T, T, AbsoluteDifference<T>>();
    return std::nullopt;
  });
}

}  // namespace pkb::emulator
