// Vectors of 16 bytes, which one access of a thread moves, and the numbers in them: bfloat16, float16 or float32.
//
// Vectors are held as uint4, which stays in registers whatever becomes of it, and looked at through element() or as a
// Pack. Indices within one must be known when the kernel is compiled.
#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_runtime.h>

#include <cstdint>
#include <type_traits>

namespace pkb {

constexpr float kInfinity = __builtin_inff();

// Numbers in a vector.
template <class T>
constexpr int kPerVector = int(sizeof(uint4) / sizeof(T));

__device__ __forceinline__ float to_float(float a) { return a; }
__device__ __forceinline__ float to_float(__half a) { return __half2float(a); }
__device__ __forceinline__ float to_float(__nv_bfloat16 a) { return __bfloat162float(a); }

// Rounds two values at once: conversions of single ones are slow.
__device__ __forceinline__ void round_to(float& to_a, float& to_b, float a, float b) {
  to_a = a;
  to_b = b;
}
__device__ __forceinline__ void round_to(__half& to_a, __half& to_b, float a, float b) {
  const __half2 both = __floats2half2_rn(a, b);
  to_a = both.x;
  to_b = both.y;
}
__device__ __forceinline__ void round_to(__nv_bfloat16& to_a, __nv_bfloat16& to_b, float a, float b) {
  const __nv_bfloat162 both = __floats2bfloat162_rn(a, b);
  to_a = both.x;
  to_b = both.y;
}

// ---- accesses ----

template <class T>
__device__ __forceinline__ uint4 load_vector(const T* from) {
  return *reinterpret_cast<const uint4*>(from);
}

// For memory that other ranks have written during this kernel: past the multiprocessor's own cache.
template <class T>
__device__ __forceinline__ uint4 load_written_vector(const T* from) {
  return __ldcg(reinterpret_cast<const uint4*>(from));
}

template <class T>
__device__ __forceinline__ void store_vector(T* to, const uint4& vector) {
  *reinterpret_cast<uint4*>(to) = vector;
}

// ---- as an array ----

template <class T>
struct alignas(16) Pack {
  T values[kPerVector<T>];
};

template <class T>
__device__ __forceinline__ Pack<T> as_pack(const uint4& vector) {
  return reinterpret_cast<const Pack<T>&>(vector);
}

// Writes them as float32, to a multiple of 16 bytes.
template <class T>
__device__ __forceinline__ void store_as_floats(float* to, const Pack<T>& from) {
#pragma unroll
  for (int i = 0; i < kPerVector<T>; i += 4) {
    *reinterpret_cast<float4*>(to + i) = make_float4(to_float(from.values[i]), to_float(from.values[i + 1]),
                                                     to_float(from.values[i + 2]), to_float(from.values[i + 3]));
  }
}

// Products, in float32, rounded once.
template <class T>
__device__ __forceinline__ Pack<T> product(const Pack<T>& a, const Pack<T>& b) {
  Pack<T> c;
#pragma unroll
  for (int i = 0; i < kPerVector<T>; i += 2) {
    round_to(c.values[i], c.values[i + 1], to_float(a.values[i]) * to_float(b.values[i]),
             to_float(a.values[i + 1]) * to_float(b.values[i + 1]));
  }
  return c;
}

template <class T>
__device__ __forceinline__ T product(T a, T b) {
  T c, unused;
  round_to(c, unused, to_float(a) * to_float(b), 0.0f);
  return c;
}

// ---- as words ----

__device__ __forceinline__ uint32_t word_of(const uint4& v, int i) {
  return i == 0 ? v.x : i == 1 ? v.y : i == 2 ? v.z : v.w;
}

// Number i of a vector.
template <class T>
__device__ __forceinline__ float element(const uint4& v, int i) {
  if constexpr (sizeof(T) == 4) return __uint_as_float(word_of(v, i));
  const auto half_word = uint16_t(word_of(v, i / 2) >> (i % 2 * 16));
  if constexpr (std::is_same_v<T, __nv_bfloat16>) return __uint_as_float(uint32_t(half_word) << 16);
  return __half2float(__ushort_as_half(half_word));
}

// The larger numbers of two words.
template <class T>
__device__ __forceinline__ uint32_t larger(uint32_t a, uint32_t b) {
  uint32_t most;
  if constexpr (std::is_same_v<T, __nv_bfloat16>) {
    asm("max.bf16x2 %0, %1, %2;" : "=r"(most) : "r"(a), "r"(b));
  } else if constexpr (std::is_same_v<T, __half>) {
    asm("max.f16x2 %0, %1, %2;" : "=r"(most) : "r"(a), "r"(b));
  } else {
    most = __float_as_uint(fmaxf(__uint_as_float(a), __uint_as_float(b)));
  }
  return most;
}

// The larger numbers at each place of two vectors.
template <class T>
__device__ __forceinline__ uint4 larger(const uint4& a, const uint4& b) {
  return uint4{larger<T>(a.x, b.x), larger<T>(a.y, b.y), larger<T>(a.z, b.z), larger<T>(a.w, b.w)};
}

// The largest number of a vector.
template <class T>
__device__ __forceinline__ float largest(const uint4& v) {
  const uint32_t most = larger<T>(larger<T>(v.x, v.y), larger<T>(v.z, v.w));
  const uint4 both{most, 0, 0, 0};
  if constexpr (sizeof(T) == 4) return element<T>(both, 0);
  return fmaxf(element<T>(both, 0), element<T>(both, 1));
}

// All -infinity.
template <class T>
__device__ __forceinline__ uint4 lowest_vector() {
  const uint32_t word = sizeof(T) == 4 ? 0xff800000u : std::is_same_v<T, __nv_bfloat16> ? 0xff80ff80u : 0xfc00fc00u;
  return uint4{word, word, word, word};
}

}  // namespace pkb
