// Loops over lanes, as functions of `alu.h`.
#pragma once

#include <cstring>
#include <initializer_list>

#include "alu.h"

#ifdef __AVX2__
#include <immintrin.h>
#endif

namespace pkb::emulator {

template <class D, class A, class F>
void lanes1(void* result, const void* a, const void*, const void*) {
  auto* to = static_cast<D*>(result);
  const auto* x = static_cast<const A*>(a);
#pragma GCC ivdep
  for (int i = 0; i < kLanes; ++i) to[i] = F{}(x[i]);
}

template <class D, class A, class B, class F>
void lanes2(void* result, const void* a, const void* b, const void*) {
  auto* to = static_cast<D*>(result);
  const auto* x = static_cast<const A*>(a);
  const auto* y = static_cast<const B*>(b);
#pragma GCC ivdep
  for (int i = 0; i < kLanes; ++i) to[i] = F{}(x[i], y[i]);
}

template <class D, class A, class B, class C, class F>
void lanes3(void* result, const void* a, const void* b, const void* c) {
  auto* to = static_cast<D*>(result);
  const auto* x = static_cast<const A*>(a);
  const auto* y = static_cast<const B*>(b);
  const auto* z = static_cast<const C*>(c);
#pragma GCC ivdep
  for (int i = 0; i < kLanes; ++i) to[i] = F{}(x[i], y[i], z[i]);
}

template <class D, class A, class F>
LaneOperation unary() {
  return {lanes1<D, A, F>, sizeof(D), 1, {sizeof(A), 0, 0}};
}
template <class D, class A, class B, class F>
LaneOperation binary() {
  return {lanes2<D, A, B, F>, sizeof(D), 2, {sizeof(A), sizeof(B), 0}};
}
template <class D, class A, class B, class C, class F>
LaneOperation ternary() {
  return {lanes3<D, A, B, C, F>, sizeof(D), 3, {sizeof(A), sizeof(B), sizeof(C)}};
}

// Bit i: byte i is not zero (all its bits are set).
inline uint32_t mask_of(const uint8_t (&bytes)[kLanes]) {
#ifdef __AVX2__
  return uint32_t(_mm256_movemask_epi8(_mm256_load_si256(reinterpret_cast<const __m256i*>(bytes))));
#else
  uint32_t mask = 0;
  for (int i = 0; i < kLanes; ++i) mask |= uint32_t(bytes[i] & 1) << i;
  return mask;
#endif
}

template <class A, class F>
uint32_t compare_lanes(const void* a, const void* b) {
  const auto* x = static_cast<const A*>(a);
  const auto* y = static_cast<const A*>(b);
  alignas(32) uint8_t bytes[kLanes];
  for (int i = 0; i < kLanes; ++i) bytes[i] = F{}(x[i], y[i]) ? 0xff : 0;
  return mask_of(bytes);
}

// result[i] = mask bit i ? a[i] : b[i].
template <class T>
void select_lanes(T* to, const T* a, const T* b, uint32_t mask) {
#pragma GCC ivdep
  for (int i = 0; i < kLanes; ++i) to[i] = mask >> i & 1 ? a[i] : b[i];
}

// Calls f with a zero of the type that a PTX type name stands for.
template <class F>
std::optional<LaneOperation> with_integer(std::string_view type, F f) {
  if (type == "s32") return f(int32_t{});
  if (type == "u32" || type == "b32") return f(uint32_t{});
  if (type == "s64") return f(int64_t{});
  if (type == "u64" || type == "b64") return f(uint64_t{});
  if (type == "s16") return f(int16_t{});
  if (type == "u16" || type == "b16") return f(uint16_t{});
  return std::nullopt;
}

// Flushes subnormal numbers to zero of their sign, as .ftz does.
template <bool kFlush, class T>
inline T flushed(T x) {
  if constexpr (kFlush && sizeof(T) == 4) {
    uint32_t bits;
    std::memcpy(&bits, &x, 4);
    if ((bits & 0x7f800000u) == 0) bits &= 0x80000000u;
    std::memcpy(&x, &bits, 4);
  }
  return x;
}

struct First { template <class T> T operator()(T a, T) const { return a; } };
struct Second { template <class T> T operator()(T, T b) const { return b; } };

// Whether both operands are the same register.
inline bool takes_one_register(const Instruction& instruction) {
  const auto& operands = instruction.operands;
  return operands[1].kind == Operand::kRegister && operands[2].kind == Operand::kRegister && operands[1].index == operands[2].index;
}

// The NaN that arithmetic of f32 gives.
constexpr uint32_t kNan32 = 0x7fffffffu;

// Where a result of f64 arithmetic is no number: the NaN of the first of these that is one, made quiet. PTX leaves the choice,
// and so does the host's compiler, on which results must not depend. GPUs look at the second operand first, then at the third, but
// for divisions.
inline double settled_nan(double result, std::initializer_list<double> operands) {
  if (result == result) return result;
  for (double operand : operands) {
    if (operand != operand) return std::bit_cast<double>(std::bit_cast<uint64_t>(operand) | 1ull << 51);
  }
  return result;
}

}  // namespace pkb::emulator
