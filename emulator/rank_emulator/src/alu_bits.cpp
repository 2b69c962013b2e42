// Logic, shifts, fields of bits, permutations of bytes, selection.
#include <algorithm>
#include <bit>
#include <cstdlib>
#include <type_traits>

#include "lanes.h"

namespace pkb::emulator {
namespace {

struct And { template <class T> T operator()(T a, T b) const { return T(a & b); } };
struct Or { template <class T> T operator()(T a, T b) const { return T(a | b); } };
struct Xor { template <class T> T operator()(T a, T b) const { return T(a ^ b); } };
struct Not { template <class T> T operator()(T a) const { return T(~a); } };
struct IsZero { template <class T> T operator()(T a) const { return a == 0 ? 1 : 0; } };
struct Copy { template <class T> T operator()(T a) const { return a; } };
// Shifts by more than the width give zero, or copies of the sign.
struct ShiftLeft {
  template <class T> T operator()(T a, uint32_t by) const { return by >= 8 * sizeof(T) ? T(0) : T(std::make_unsigned_t<T>(a) << by); }
};
struct ShiftRight {
  template <class T> T operator()(T a, uint32_t by) const {
    const uint32_t most = 8 * sizeof(T) - 1;
    if (std::is_unsigned_v<T> && by > most) return 0;
    return T(a >> (by > most ? most : by));
  }
};
struct Popcount { template <class T> uint32_t operator()(T a) const { return uint32_t(std::popcount(a)); } };
struct LeadingZeros { template <class T> uint32_t operator()(T a) const { return uint32_t(std::countl_zero(a)); } };
struct Reverse {
  template <class T> T operator()(T a) const {
    T result = 0;
    for (unsigned i = 0; i < 8 * sizeof(T); ++i) result = T(result << 1 | (a >> i & 1));
    return result;
  }
};
template <bool kAmount>
struct FindBit {
  template <class T> uint32_t operator()(T a) const {
    using U = std::make_unsigned_t<T>;
    const U bits = std::is_signed_v<T> && a < 0 ? U(~U(a)) : U(a);
    if (bits == 0) return ~0u;
    const auto zeros = uint32_t(std::countl_zero(bits));
    return kAmount ? zeros : uint32_t(8 * sizeof(T)) - 1 - zeros;
  }
};
struct ExtractField {
  template <class T> T operator()(T a, uint32_t position, uint32_t length) const {
    constexpr uint32_t kWidth = 8 * sizeof(T);
    if (kWidth == 32) {
      position &= 0xff;
      length &= 0xff;
    } else {  // which ptxas makes of shifts: no more than the width counts, and all bits of both
      position = std::min(position, kWidth);
      length = std::min(length, kWidth);
    }
    if (length == 0) return 0;
    using U = std::make_unsigned_t<T>;
    const uint32_t last = std::min(position + length - 1, kWidth - 1);
    const bool sign = std::is_signed_v<T> && (U(a) >> last & 1);
    const U low = position < kWidth ? U(std::is_signed_v<T> ? U(a >> position) : U(U(a) >> position)) : (sign ? U(~U(0)) : U(0));
    if (length >= kWidth) return T(low);
    const U field = U(U(1) << length) - 1;
    return T(sign ? U(low | ~field) : U(low & field));
  }
};
// As cuda's __funnelshift: of the 64 bits b:a.
template <bool kWrap>
struct FunnelLeft {
  uint32_t operator()(uint32_t low, uint32_t high, uint32_t by) const {
    by = kWrap ? by & 31 : std::min(by, 32u);
    return uint32_t((uint64_t(high) << 32 | low) << by >> 32);
  }
};
template <bool kWrap>
struct FunnelRight {
  uint32_t operator()(uint32_t low, uint32_t high, uint32_t by) const {
    by = kWrap ? by & 31 : std::min(by, 32u);
    return uint32_t((uint64_t(high) << 32 | low) >> by);
  }
};
// szext: the lower bits, extended by zeros or by their uppermost bit; none where the number of bits is 0.
template <bool kWrap>
struct ExtendBits {
  template <class T> T operator()(T a, uint32_t bits) const {
    bits = kWrap ? bits & 31 : std::min(bits, 32u);
    if (bits == 0) return 0;
    return T(T(uint32_t(a) << (32 - bits)) >> (32 - bits));
  }
};
// bmsk: so many ones from a position on.
template <bool kWrap>
struct BitMask {
  uint32_t operator()(uint32_t position, uint32_t count) const {
    position = kWrap ? position & 31 : std::min(position, 32u);
    count = kWrap ? count & 31 : std::min(count, 32u);
    return uint32_t(((uint64_t(1) << count) - 1) << position);
  }
};
// fns: the place of the n-th one from a position on, upwards or downwards.
struct FindNth {
  uint32_t operator()(uint32_t mask, uint32_t base, uint32_t n) const {
    const auto count = int32_t(n);
    const int64_t step = count < 0 ? -1 : 1;
    int64_t left = std::abs(int64_t(count));
    if (count == 0) return base < 32 && mask >> base & 1 ? base : ~0u;
    for (int64_t at = base; at >= 0 && at < 32; at += step) {
      if (mask >> at & 1 && --left == 0) return uint32_t(at);
    }
    return ~0u;
  }
};
struct Permute {
  uint32_t operator()(uint32_t a, uint32_t b, uint32_t selectors) const {
    const uint64_t bytes = uint64_t(b) << 32 | a;
    uint32_t result = 0;
    for (int i = 0; i < 4; ++i) {
      const uint32_t selector = selectors >> (4 * i) & 0xf;
      uint32_t byte = uint32_t(bytes >> (8 * (selector & 7))) & 0xff;
      if (selector & 8) byte = byte & 0x80 ? 0xff : 0;
      result |= byte << (8 * i);
    }
    return result;
  }
};
// Modes of prmt: bytes that are taken from b:a, by the two low bits of the selector.
template <int kMode>
struct PermuteMode {
  uint32_t operator()(uint32_t a, uint32_t b, uint32_t selector) const {
    static constexpr uint32_t kTables[6][4] = {
        {0x3210, 0x4321, 0x5432, 0x6543},   // f4e
        {0x5670, 0x6701, 0x7012, 0x0123},   // b4e
        {0x0000, 0x1111, 0x2222, 0x3333},   // rc8
        {0x3210, 0x3211, 0x3222, 0x3333},   // ecl
        {0x0000, 0x1110, 0x2210, 0x3210},   // ecr
        {0x1010, 0x3232, 0x1010, 0x3232}};  // rc16
    return Permute{}(a, b, kTables[kMode][selector & 3]);
  }
};

template <class T>
void select(void* result, const void* a, const void* b, const void* mask) {
  uint32_t bits;
  std::memcpy(&bits, mask, 4);
  select_lanes(static_cast<T*>(result), static_cast<const T*>(a), static_cast<const T*>(b), bits);
}

template <class T>
std::optional<LaneOperation> find_logic(std::string_view name, bool shift_amount) {
  using U = std::make_unsigned_t<T>;
  if (name == "and") return binary<T, T, T, And>();
  if (name == "or") return binary<T, T, T, Or>();
  if (name == "xor") return binary<T, T, T, Xor>();
  if (name == "not") return unary<T, T, Not>();
  if (name == "cnot") return unary<T, T, IsZero>();
  if (name == "shl") return binary<T, T, uint32_t, ShiftLeft>();
  if (name == "shr") return binary<T, T, uint32_t, ShiftRight>();
  if constexpr (sizeof(T) >= 4) {
    if (name == "popc") return unary<uint32_t, U, Popcount>();
    if (name == "clz") return unary<uint32_t, U, LeadingZeros>();
    if (name == "brev") return unary<U, U, Reverse>();
    if (name == "bfind") return shift_amount ? unary<uint32_t, T, FindBit<true>>() : unary<uint32_t, T, FindBit<false>>();
    if (name == "bfe") return ternary<T, T, uint32_t, uint32_t, ExtractField>();
  }
  return std::nullopt;
}

std::optional<LaneOperation> find_permute(std::string_view mode) {
  const auto of = [](auto f) { return ternary<uint32_t, uint32_t, uint32_t, uint32_t, decltype(f)>(); };
  if (mode == "f4e") return of(PermuteMode<0>{});
  if (mode == "b4e") return of(PermuteMode<1>{});
  if (mode == "rc8") return of(PermuteMode<2>{});
  if (mode == "ecl") return of(PermuteMode<3>{});
  if (mode == "ecr") return of(PermuteMode<4>{});
  if (mode == "rc16") return of(PermuteMode<5>{});
  return of(Permute{});
}

}  // namespace

std::optional<LaneOperation> find_bits(const Instruction& instruction) {
  const auto name = instruction.parts[0], type = instruction.parts.back();
  if (name == "selp") {
    switch (type_bytes("." + std::string(type))) {
      case 2: return LaneOperation{select<uint16_t>, 2, 3, {2, 2, 0}};
      case 4: return LaneOperation{select<uint32_t>, 4, 3, {4, 4, 0}};
      default: return LaneOperation{select<uint64_t>, 8, 3, {8, 8, 0}};
    }
  }
  if (name == "mov" && instruction.operands.size() == 2) {
    switch (type == "pred" ? 0 : type_bytes("." + std::string(type))) {
      case 2: return unary<uint16_t, uint16_t, Copy>();
      case 4: return unary<uint32_t, uint32_t, Copy>();
      case 8: return unary<uint64_t, uint64_t, Copy>();
      case 16: return unary<unsigned __int128, unsigned __int128, Copy>();
      default: return std::nullopt;
    }
  }
  if (name == "bmsk") {
    const auto of = [](auto f) { return binary<uint32_t, uint32_t, uint32_t, decltype(f)>(); };
    return instruction.has("wrap") ? of(BitMask<true>{}) : of(BitMask<false>{});
  }
  if (name == "szext") {
    const bool wraps = instruction.has("wrap");
    if (type == "s32") return wraps ? binary<int32_t, int32_t, uint32_t, ExtendBits<true>>() : binary<int32_t, int32_t, uint32_t, ExtendBits<false>>();
    return wraps ? binary<uint32_t, uint32_t, uint32_t, ExtendBits<true>>() : binary<uint32_t, uint32_t, uint32_t, ExtendBits<false>>();
  }
  if (name == "fns") return ternary<uint32_t, uint32_t, uint32_t, uint32_t, FindNth>();
  if (name == "prmt") return find_permute(type);
  if (name == "shf") {
    const bool wraps = instruction.has("wrap");
    const auto of = [](auto f) { return ternary<uint32_t, uint32_t, uint32_t, uint32_t, decltype(f)>(); };
    if (instruction.parts[1] == "l") return wraps ? of(FunnelLeft<true>{}) : of(FunnelLeft<false>{});
    return wraps ? of(FunnelRight<true>{}) : of(FunnelRight<false>{});
  }
  return with_integer(type, [&](auto zero) { return find_logic<decltype(zero)>(name, instruction.has("shiftamt")); });
}

}  // namespace pkb::emulator
