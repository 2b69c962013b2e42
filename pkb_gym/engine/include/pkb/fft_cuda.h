// Fourier transforms of kPoints complex float32 numbers by one block, for use inside kernels: points lie in registers,
// kOuter a thread, and meet in shared memory twice.
//
//   __global__ void __launch_bounds__(pkb::fft::kThreads, 2) kernel(...) {
//     extern __shared__ float2 exchange[];  // kExchange numbers, 65792 bytes: more than a kernel gets without asking
//     const pkb::fft::Roots roots(threadIdx.x);
//     float2 z[pkb::fft::kOuter];           // point i * kThreads + threadIdx.x at z[i]
//     pkb::fft::transform_block(z, exchange, roots, threadIdx.x);
//     ...                                   // frequencies: see transform_block()
//     pkb::fft::transform_block_back(z, exchange, roots, threadIdx.x);
//   }
//
// Every function is called by all kThreads threads of a one-dimensional block; t is threadIdx.x. The transform is
// Z_k = sum over n of z_n exp(-2 pi i n k / kPoints); neither it nor its inverse is scaled: there and back makes
// kPoints times what was. It takes the radices kOuter, kInner and kInner in turn. Frequencies stay in the order in
// which transforms leave them, which is where inverse transforms begin: a convolution needs no other.
//
// Real sequences go two at a time, one as the real and the other as the imaginary part of z: they come apart by
// themselves where a filter is real. A real filter's frequencies k and -k are conjugates and lie in the same thread:
// keep_spectrum() keeps the one.
#pragma once

#include <cuda_runtime.h>

#include <cstdint>
#include <utility>

namespace pkb {
namespace fft {

constexpr int kThreads = 256;                  // of a block
constexpr int kOuter = 32;                     // points a thread holds; radix of the first step of a transform
constexpr int kInner = 16;                     // radix of the second and the third
constexpr int kPoints = kThreads * kOuter;     // of a transform, 32 * 16 * 16
constexpr int kColumns = kPoints / kInner;     // column c of the third step holds frequencies c + kColumns * j
constexpr int kPitch = kThreads + 1;           // of rows in shared memory: columns fall into different banks
constexpr int kExchange = kOuter * kPitch;     // numbers that transforms exchange in shared memory
constexpr int kSpectrum = kPoints / 2 + kInner;  // numbers that describe the spectrum of a real sequence

// ------------------------------------------------------------------------------------------------ complex numbers

__device__ __forceinline__ float2 operator+(float2 a, float2 b) { return make_float2(a.x + b.x, a.y + b.y); }
__device__ __forceinline__ float2 operator*(float2 a, float2 b) {
  return make_float2(a.x * b.x - a.y * b.y, a.x * b.y + a.y * b.x);
}
__device__ __forceinline__ float2 conj(float2 a) { return make_float2(a.x, -a.y); }

// cos(2 pi k / 32)
__host__ __device__ constexpr float root_cosine(int k) {
  constexpr float kQuarter[9] = {1.0f,        0.98078528f, 0.92387953f, 0.83146961f, 0.70710678f,
                                 0.55557023f, 0.38268343f, 0.19509032f, 0.0f};
  const int folded = k % 32 > 16 ? 32 - k % 32 : k % 32;
  return folded <= 8 ? kQuarter[folded] : -kQuarter[16 - folded];
}

// Sets (a, b) to (a + w b, a - w b), w = exp(-2 pi i K / 32) or its conjugate. Unless it is a quarter turn, w is split
// into its larger component and a ratio, which makes six multiply-adds of the whole.
template <int K, bool kBack>
__device__ __forceinline__ void join(float2& a, float2& b) {
  constexpr int k = (kBack ? 32 - K : K) % 32;
  constexpr float c = root_cosine(k), s = root_cosine(k + 24);
  float2 turned = b;
  float scale = 1.0f;
  if constexpr (k == 8) {
    turned = make_float2(b.y, -b.x);
  } else if constexpr (k == 24) {
    turned = make_float2(-b.y, b.x);
  } else if constexpr (k != 0 && c * c >= s * s) {
    turned = make_float2(b.x + s / c * b.y, b.y - s / c * b.x);
    scale = c;
  } else if constexpr (k != 0) {
    turned = make_float2(b.y + c / s * b.x, c / s * b.y - b.x);
    scale = s;
  }
  b = make_float2(a.x - scale * turned.x, a.y - scale * turned.y);
  a = make_float2(a.x + scale * turned.x, a.y + scale * turned.y);
}

// k with its bits in reverse order.
template <int kRadix>
__host__ __device__ constexpr int reversed(int k) {
  static_assert(kRadix == 16 || kRadix == 32, "of four or five bits");
  const int five = (k & 1) << 4 | (k & 2) << 2 | (k & 4) | (k & 8) >> 2 | (k & 16) >> 4;
  return kRadix == 32 ? five : five >> 1;
}

// ------------------------------------------------------------------------------------ transforms within one thread

template <int R, bool kBack, int kBase, int M, int... I>
__device__ __forceinline__ void join_all(float2 (&x)[M], std::integer_sequence<int, I...>) {
  (join<I * (32 / R), kBack>(x[kBase + I], x[kBase + I + R / 2]), ...);
}

// Transforms R points, of which point k is at x[reversed(k)], in place; the inverse is not scaled.
template <int R, bool kBack, int kBase = 0, int M>
__device__ __forceinline__ void transform(float2 (&x)[M]) {
  if constexpr (R > 1) {
    transform<R / 2, kBack, kBase>(x);
    transform<R / 2, kBack, kBase + R / 2>(x);
    join_all<R, kBack, kBase>(x, std::make_integer_sequence<int, R / 2>());
  }
}

// ----------------------------------------------------------------------------------- transforms of kPoints by a block

// Hides where a value comes from: what is made of it is cheaper to make again than to keep in registers across loops.
__device__ __forceinline__ float2 afresh(float2 a) {
  asm volatile("" : "+f"(a.x), "+f"(a.y));
  return a;
}

// exp(-2 pi i k / n)
__device__ __forceinline__ float2 root(int k, int n) {
  float2 w;
  sincospif(-2.0f * float(k) / float(n), &w.y, &w.x);
  return w;
}

// A root of unity w whose powers 0 .. 2^kBits - 1 are needed. Two are kept at full precision.
template <int kBits>
struct Powers {
  static constexpr int kHalf = (kBits + 1) / 2;
  float2 first, middle;  // w and w^(2^kHalf)

  __device__ Powers(int k, int n) : first(root(k, n)), middle(root(k << kHalf, n)) {}

  // Calls visit(k, w^k) for all k.
  template <typename Visit>
  __device__ __forceinline__ void visit_all(Visit visit) const {
    float2 w[1 << kBits];
#pragma unroll
    for (int k = 0; k < 1 << kBits; ++k) {
      const int low = k % (1 << kHalf), high = k - low, top = k & -k;
      if (k == 0) {
        w[k] = make_float2(1.0f, 0.0f);
      } else if (k == 1) {
        w[k] = afresh(first);
      } else if (k == 1 << kHalf) {
        w[k] = afresh(middle);
      } else if (top == k) {
        w[k] = w[k / 2] * w[k / 2];
      } else if (high == 0 || low == 0) {
        w[k] = w[k - top] * w[top];
      } else {
        w[k] = w[high] * w[low];
      }
      visit(k, w[k]);
    }
  }
};

// What this thread turns its points by.
struct Roots {
  Powers<5> outer;
  Powers<4> inner;
  __device__ explicit Roots(int t) : outer(t, kPoints), inner(t % kInner, kInner * kInner) {}
};

// Column c of the third step begins here; its elements lie in a row.
__device__ __forceinline__ int column_place(int c) { return c % kOuter * kPitch + c / kOuter * kInner; }

// The columns of a thread hold frequencies k and -k: c and kColumns - c. Thread 0 has the two that oppose themselves.
__device__ __forceinline__ int opposite(int t) { return t ? kColumns - t : kColumns / 2; }

// The transform of points i * kThreads + t, held by thread t at z[i]. Afterwards z[j] holds frequency t + kColumns * j,
// and z[kInner + j] holds opposite(t) + kColumns * j. No thread may be using s.
__device__ __forceinline__ void transform_block(float2 (&z)[kOuter], float2* s, const Roots& roots, int t) {
  float2 x[kOuter];
#pragma unroll
  for (int i = 0; i < kOuter; ++i) x[reversed<kOuter>(i)] = z[i];
  transform<kOuter, false>(x);
  roots.outer.visit_all([&](int k, float2 w) { s[k * kPitch + t] = k ? x[k] * w : x[k]; });
  __syncthreads();
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    float2* row = s + (t / kInner + half * kInner) * kPitch + t % kInner;
    float2 y[kInner];
#pragma unroll
    for (int i = 0; i < kInner; ++i) y[reversed<kInner>(i)] = row[i * kInner];
    transform<kInner, false>(y);
    roots.inner.visit_all([&](int k, float2 w) { row[k * kInner] = k ? y[k] * w : y[k]; });
  }
  __syncthreads();
  const float2 *a = s + column_place(t), *b = s + column_place(opposite(t));
#pragma unroll
  for (int i = 0; i < kInner; ++i) {
    z[reversed<kInner>(i)] = a[i];
    z[kInner + reversed<kInner>(i)] = b[i];
  }
  transform<kInner, false>(z);
  transform<kInner, false, kInner>(z);
}

// Its inverse, not scaled. May follow transform_block without a barrier: the first step uses the same places of s.
__device__ __forceinline__ void transform_block_back(float2 (&z)[kOuter], float2* s, const Roots& roots, int t) {
  float2 x[kOuter];
#pragma unroll
  for (int j = 0; j < kInner; ++j) {
    x[reversed<kInner>(j)] = z[j];
    x[kInner + reversed<kInner>(j)] = z[kInner + j];
  }
  transform<kInner, true>(x);
  transform<kInner, true, kInner>(x);
  float2 *a = s + column_place(t), *b = s + column_place(opposite(t));
#pragma unroll
  for (int i = 0; i < kInner; ++i) {
    a[i] = x[i];
    b[i] = x[kInner + i];
  }
  __syncthreads();
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    float2* row = s + (t / kInner + half * kInner) * kPitch + t % kInner;
    float2 y[kInner];
    roots.inner.visit_all([&](int k, float2 w) {
      const float2 value = row[k * kInner];
      y[reversed<kInner>(k)] = k ? value * conj(w) : value;
    });
    transform<kInner, true>(y);
#pragma unroll
    for (int i = 0; i < kInner; ++i) row[i * kInner] = y[i];
  }
  __syncthreads();
  roots.outer.visit_all([&](int k, float2 w) {
    const float2 value = s[k * kPitch + t];
    z[reversed<kOuter>(k)] = k ? value * conj(w) : value;
  });
  transform<kOuter, true>(z);
}

// ------------------------------------------------------------------------------------------ spectra of real sequences

// A real sequence's spectrum is kSpectrum numbers, in shared or global memory. Each thread keeps and reads its own.

// Keeps the spectrum that transform_block left in z, times `scale`.
__device__ __forceinline__ void keep_spectrum(const float2 (&z)[kOuter], float scale, float2* spectrum, int t) {
#pragma unroll
  for (int i = 0; i < kInner; ++i) {
    spectrum[i * kThreads + t] = make_float2(scale * z[i].x, scale * z[i].y);
    if (t == 0) spectrum[kInner * kThreads + i] = make_float2(scale * z[kInner + i].x, scale * z[kInner + i].y);
  }
}

// Calls visit(i, f) for the frequencies f at the places i of z; `constant` is added to all, which is one more weight at
// position 0.
template <typename Visit>
__device__ __forceinline__ void visit_spectrum(const float2* spectrum, float constant, int t, Visit visit) {
#pragma unroll
  for (int i = 0; i < kInner; ++i) {
    const int opposite = kInner - 1 - i;
    const float2 a = spectrum[i * kThreads + t], b = t ? conj(a) : spectrum[kInner * kThreads + opposite];
    visit(i, make_float2(a.x + constant, a.y));
    visit(kInner + opposite, make_float2(b.x + constant, b.y));
  }
}

// Multiplies z by a spectrum.
__device__ __forceinline__ void multiply(float2 (&z)[kOuter], const float2* spectrum, float constant, int t) {
  visit_spectrum(spectrum, constant, t, [&](int i, float2 f) { z[i] = z[i] * f; });
}

// A real filter of several parts of up to kPoints / 2 weights each, and the newest windows, of kPoints points of a
// sequence, that they meet (uniformly partitioned overlap-save): at each step a window comes that begins kPoints / 2
// later, and part j acts on the window of j steps before.
struct PartitionedFilter {
  int parts;
  float2* windows;  // parts * kPoints numbers
  float2* spectra;  // parts * kSpectrum numbers

  __device__ __forceinline__ float2* spectrum(int part) const { return spectra + part * kSpectrum; }

  // Keeps the window's spectrum, which transform_block left in z, for as many steps as there are parts.
  __device__ __forceinline__ void keep_window(const float2 (&z)[kOuter], int step, int t) const {
    float2* kept = window(step) + t;
#pragma unroll
    for (int i = 0; i < kOuter; ++i) kept[i * kThreads] = z[i];
  }

  // Makes of z, the newest window's spectrum, the sum of the products of all parts with the windows that they meet;
  // constant(j) is added to the spectrum of part j.
  template <typename Constant>
  __device__ __forceinline__ void multiply(float2 (&z)[kOuter], int step, int t, Constant constant) const {
    fft::multiply(z, spectrum(0), constant(0), t);
#pragma unroll 1
    for (int j = 1; j < parts; ++j) {
      const float2* kept = window(step - j) + t;
      visit_spectrum(spectrum(j), constant(j), t, [&](int i, float2 f) { z[i] = z[i] + kept[i * kThreads] * f; });
    }
  }

 private:
  __device__ __forceinline__ float2* window(int step) const { return windows + int64_t(step % parts) * kPoints; }
};

}  // namespace fft
}  // namespace pkb
