// Fourier transforms of complex float32 numbers of any length up to kMaxLength, several lines at a time by one block, in
// shared memory; for use inside kernels that make numbers while they load them and change them while they store them.
//
//   const pkb::fft_lines::Plan plan(length);                      // on the host
//   extern __shared__ float2 numbers[];                           // kSharedBytes: more than a kernel gets without asking
//   numbers[plan.place(line, i)] = ...;                           // line < lines <= plan.lines(), i < length
//   pkb::fft_lines::transform(numbers, lines, plan);              // by all kThreads threads
//   ... = numbers[plan.place(line, k)];
//
// Z_k = sum over n of z_n exp(-2 pi i n k / length), unscaled. With real and imaginary parts exchanged before and after
// it is the inverse. Two real lines go as one, as real and imaginary part: take_apart() separates their spectra.
//
// Algorithm: Stockham's, in order, of mixed radices (Govindaraju et al., "High performance discrete Fourier transforms on
// graphics processors", 2008): a step reads all numbers into registers and writes them back, so that one copy does.
// Radices up to 16 are formed in registers; prime factors above 5 take as many products as they are long.
//
// Bound: shared memory, a read and a write for each factor of 16.
#pragma once

#include <cuda_runtime.h>

#include <algorithm>
#include <cstdint>
#include <utility>

#ifndef PKB_LIGHT_FFI
#include <tvm/ffi/error.h>
#endif

#include "pkb/symm.h"

namespace pkb {
namespace fft_lines {

constexpr int kThreads = 256;
constexpr int kEach = 32;  // numbers of a thread
constexpr int kMaxLength = kThreads * kEach, kMaxLines = 16, kMaxSteps = 13;
constexpr int kSharedNumbers = kMaxLength + kMaxLength / 16 + 2 * kMaxLines;
constexpr int kSharedBytes = kSharedNumbers * int(sizeof(float2));

// Radices of a transform, and where its numbers lie: rows of 16 and lines are padded, so that neither meets the banks of
// others.
struct Plan {
  int length, pitch, steps = 0, radices[kMaxSteps];

  explicit Plan(int64_t n) : length(int(n)), pitch((length + length / 16) | 1) {
    if (n < 1 || n > kMaxLength) TVM_FFI_THROW(ValueError) << "expected transforms of 1 to " << kMaxLength << ", got " << n;
    int left = length;
    for (int radix : {16, 10, 9, 8, 5, 4, 3, 2}) {
      for (; left % radix == 0; left /= radix) radices[steps++] = radix;
    }
    for (int prime = 7; left > 1; ++prime) {
      for (; left % prime == 0; left /= prime) radices[steps++] = prime;
    }
  }

  // That a block transforms at a time.
  __host__ __device__ int lines() const {
    const int fit = kMaxLength / length;
    return fit < kMaxLines ? fit : kMaxLines;
  }
  __device__ __forceinline__ int place(int line, int i) const { return line * pitch + i + i / 16; }
};

// ---- within a thread ----

__device__ __forceinline__ float2 times(float2 a, float2 b) {
  return make_float2(a.x * b.x - a.y * b.y, a.x * b.y + a.y * b.x);
}
__device__ __forceinline__ float2 plus(float2 a, float2 b) { return make_float2(a.x + b.x, a.y + b.y); }
__device__ __forceinline__ float2 minus(float2 a, float2 b) { return make_float2(a.x - b.x, a.y - b.y); }
// a - i b
__device__ __forceinline__ float2 minus_turned(float2 a, float2 b) { return make_float2(a.x + b.y, a.y - b.x); }
__device__ __forceinline__ float2 plus_turned(float2 a, float2 b) { return make_float2(a.x - b.y, a.y + b.x); }

// exp(-2 pi i k / n)
__device__ __forceinline__ float2 root(int k, int n) {
  float2 w;
  sincospif(-2.0f * float(k) / float(n), &w.y, &w.x);
  return w;
}

// cos(2 pi k / n), or -sin, when the kernel is compiled.
__host__ __device__ constexpr float root_part(int k, int n, bool imaginary) {
  const double angle = -2 * 3.14159265358979323846 * (2 * k > n ? k - n : k) / n;
  double cosine = 0, sine = 0, term = 1;
  for (int i = 0; i < 40; i += 2) {
    cosine += i % 4 ? -term : term;
    term *= angle / (i + 1);
    sine += i % 4 ? -term : term;
    term *= angle / (i + 2);
  }
  return float(imaginary ? sine : cosine);
}

template <int K, int N>
__device__ __forceinline__ float2 turn(float2 a) {
  constexpr float x = root_part(K, N, false), y = root_part(K, N, true);
  return K == 0 ? a : times(a, make_float2(x, y));
}

template <int R>
__device__ __forceinline__ void transform_in_thread(float2 (&x)[R]);

// Of A * B numbers, by transforms of A and of B.
template <int A, int B, int... I>
__device__ __forceinline__ void turn_product(float2 (&x)[A * B], std::integer_sequence<int, I...>) {
  ((x[I] = turn<I / B * (I % B), A * B>(x[I])), ...);
}
template <int A, int B>
__device__ __forceinline__ void transform_product(float2 (&x)[A * B]) {
#pragma unroll
  for (int b = 0; b < B; ++b) {
    float2 y[A];
#pragma unroll
    for (int a = 0; a < A; ++a) y[a] = x[a * B + b];
    transform_in_thread<A>(y);
#pragma unroll
    for (int k = 0; k < A; ++k) x[k * B + b] = y[k];
  }
  turn_product<A, B>(x, std::make_integer_sequence<int, A * B>());
  float2 z[A * B];
#pragma unroll
  for (int k = 0; k < A; ++k) {
    float2 y[B];
#pragma unroll
    for (int b = 0; b < B; ++b) y[b] = x[k * B + b];
    transform_in_thread<B>(y);
#pragma unroll
    for (int b = 0; b < B; ++b) z[k + A * b] = y[b];
  }
#pragma unroll
  for (int k = 0; k < A * B; ++k) x[k] = z[k];
}

template <int R>
__device__ __forceinline__ void transform_in_thread(float2 (&x)[R]) {
  if constexpr (R == 2) {
    const float2 a = x[0], b = x[1];
    x[0] = plus(a, b);
    x[1] = minus(a, b);
  } else if constexpr (R == 3) {
    constexpr float kSine = 0.866025403784438647f;
    const float2 sum = plus(x[1], x[2]), apart = minus(x[1], x[2]);
    const float2 middle = make_float2(x[0].x - 0.5f * sum.x, x[0].y - 0.5f * sum.y);
    const float2 turned = make_float2(kSine * apart.x, kSine * apart.y);
    x[0] = plus(x[0], sum);
    x[1] = minus_turned(middle, turned);
    x[2] = plus_turned(middle, turned);
  } else if constexpr (R == 4) {
    const float2 a = plus(x[0], x[2]), b = minus(x[0], x[2]), c = plus(x[1], x[3]), d = minus(x[1], x[3]);
    x[0] = plus(a, c);
    x[1] = minus_turned(b, d);
    x[2] = minus(a, c);
    x[3] = plus_turned(b, d);
  } else if constexpr (R == 5) {
    constexpr float kCosine1 = 0.309016994374947424f, kCosine2 = -0.809016994374947424f;
    constexpr float kSine1 = 0.951056516295153572f, kSine2 = 0.587785252292473129f;
    const float2 a = plus(x[1], x[4]), b = minus(x[1], x[4]), c = plus(x[2], x[3]), d = minus(x[2], x[3]);
    const float2 even1 = make_float2(x[0].x + kCosine1 * a.x + kCosine2 * c.x, x[0].y + kCosine1 * a.y + kCosine2 * c.y);
    const float2 even2 = make_float2(x[0].x + kCosine2 * a.x + kCosine1 * c.x, x[0].y + kCosine2 * a.y + kCosine1 * c.y);
    const float2 odd1 = make_float2(kSine1 * b.x + kSine2 * d.x, kSine1 * b.y + kSine2 * d.y);
    const float2 odd2 = make_float2(kSine2 * b.x - kSine1 * d.x, kSine2 * b.y - kSine1 * d.y);
    x[0] = plus(x[0], plus(a, c));
    x[1] = minus_turned(even1, odd1);
    x[2] = minus_turned(even2, odd2);
    x[3] = plus_turned(even2, odd2);
    x[4] = plus_turned(even1, odd1);
  } else if constexpr (R == 8) {
    transform_product<2, 4>(x);
  } else if constexpr (R == 9) {
    transform_product<3, 3>(x);
  } else if constexpr (R == 10) {
    transform_product<2, 5>(x);
  } else {
    static_assert(R == 16);
    transform_product<4, 4>(x);
  }
}

// ---- by a block ----

// A step of radix R, behind others whose product is `before`. Inline: a call would keep registers in memory.
template <int R>
__device__ __forceinline__ void step(float2* numbers, int lines, const Plan& plan, int before) {
  constexpr int kItems = (kEach + R - 1) / R;
  const int of_line = plan.length / R, items = lines * of_line;
  if (items == 0) return;
  float2 x[kItems][R];
#pragma unroll
  for (int item = 0; item < kItems; ++item) {
    // The last one again where there is none: a register that some threads do not set would live for the whole kernel.
    const int at = min(item * kThreads + int(threadIdx.x), items - 1), line = at / of_line, j = at - line * of_line;
#pragma unroll
    for (int i = 0; i < R; ++i) x[item][i] = numbers[plan.place(line, j + i * of_line)];
    if (before > 1) {
      float2 w[R];
      w[1] = root(j % before, before * R);
#pragma unroll
      for (int i = 1; i < R; ++i) {
        if (i > 1) w[i] = times(w[i / 2], w[i - i / 2]);
        x[item][i] = times(x[item][i], w[i]);
      }
    }
    transform_in_thread<R>(x[item]);
  }
  __syncthreads();
#pragma unroll
  for (int item = 0; item < kItems; ++item) {
    const int at = item * kThreads + int(threadIdx.x), line = at / of_line, j = at - line * of_line;
    if (at >= items) continue;
    const int low = j % before, first = (j - low) * R + low;
#pragma unroll
    for (int i = 0; i < R; ++i) numbers[plan.place(line, first + i * before)] = x[item][i];
  }
  __syncthreads();
}

// The same for any radix, by its definition.
template <int kInstance = 0>
__device__ __noinline__ void step_of(int radix, float2* numbers, int lines, const Plan& plan, int before) {
  const int n = plan.length, of_line = n / radix, period = before * radix;
  float2 sums[kEach];
#pragma unroll 1
  for (int item = 0; item < kEach; ++item) {
    const int at = item * kThreads + int(threadIdx.x), line = at / n, k = at - line * n, phase = k % period;
    if (line >= lines) break;
    const int j = k / period * before + phase % before;
    float2 sum = make_float2(0.0f, 0.0f);
    for (int i = 0; i < radix; ++i) {
      sum = plus(sum, times(numbers[plan.place(line, j + i * of_line)], root(i * phase % period, period)));
    }
    sums[item] = sum;
  }
  __syncthreads();
#pragma unroll 1
  for (int item = 0; item < kEach; ++item) {
    const int at = item * kThreads + int(threadIdx.x), line = at / n;
    if (line >= lines) break;
    numbers[plan.place(line, at - line * n)] = sums[item];
  }
  __syncthreads();
}

// Transforms lines in place.
__device__ __forceinline__ void transform(float2* numbers, int lines, const Plan& plan) {
  __syncthreads();
  int before = 1;
#pragma unroll 1
  for (int i = 0; i < plan.steps; ++i) {
    const int radix = plan.radices[i];
    switch (radix) {
      case 2: step<2>(numbers, lines, plan, before); break;
      case 3: step<3>(numbers, lines, plan, before); break;
      case 4: step<4>(numbers, lines, plan, before); break;
      case 5: step<5>(numbers, lines, plan, before); break;
      case 8: step<8>(numbers, lines, plan, before); break;
      case 9: step<9>(numbers, lines, plan, before); break;
      case 10: step<10>(numbers, lines, plan, before); break;
      case 16: step<16>(numbers, lines, plan, before); break;
      default: step_of(radix, numbers, lines, plan, before);
    }
    before *= radix;
  }
}

// ---- real lines ----

// Frequency k of two real lines that were transformed as real and imaginary parts of one.
struct Pair {
  float2 first, second;
};
__device__ __forceinline__ Pair take_apart(float2 at_k, float2 at_minus_k) {
  return {make_float2(0.5f * (at_k.x + at_minus_k.x), 0.5f * (at_k.y - at_minus_k.y)),
          make_float2(0.5f * (at_k.y + at_minus_k.y), 0.5f * (at_minus_k.x - at_k.x))};
}

// Frequency k of a line whose inverse transform has the real parts of the inverse transforms of two complex lines as real
// and imaginary parts.
__device__ __forceinline__ float2 put_together(const Pair& at_k, const Pair& at_minus_k) {
  return make_float2(0.5f * (at_k.first.x + at_minus_k.first.x - at_k.second.y + at_minus_k.second.y),
                     0.5f * (at_k.first.y - at_minus_k.first.y + at_k.second.x + at_minus_k.second.x));
}

// ---- tensors of lines ----

// A contiguous tensor as matrices along two of its axes, first and second, in a batch of all others.
struct Matrices {
  int64_t batch = 1, first = 1, second = 1;  // strides of the two axes, in elements
  int64_t outer_stride = 1, middle_stride = 1;
  uint32_t middle = 1, inner = 1;  // lengths of the axes between the two, and behind them

  Matrices(const tvm::ffi::TensorView& x, int64_t first_axis, int64_t second_axis) {
    const int axes = int(x.ndim());
    const int at_first = int(first_axis < 0 ? first_axis + axes : first_axis);
    const int at_second = int(second_axis < 0 ? second_axis + axes : second_axis);
    const int low = std::min(at_first, at_second), high = std::max(at_first, at_second);
    int64_t stride = 1, of_low = 1, of_high = 1;
    for (int i = axes - 1; i >= 0; --i) {
      if (i == high) of_high = stride;
      else if (i == low) of_low = stride;
      else batch *= x.size(i);
      if (i > high) inner *= uint32_t(x.size(i));
      else if (i > low && i < high) middle *= uint32_t(x.size(i));
      stride *= x.size(i);
    }
    first = at_first == low ? of_low : of_high;
    second = at_first == low ? of_high : of_low;
    middle_stride = of_high * x.size(high);
    outer_stride = of_low * x.size(low);
  }

  // First element of a matrix.
  __device__ __forceinline__ int64_t begin(uint32_t index) const {
    const uint32_t rest = index / inner;
    return rest / middle * outer_stride + rest % middle * middle_stride + index % inner;
  }
};

}  // namespace fft_lines
}  // namespace pkb
