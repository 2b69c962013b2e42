// HyenaCP: one kernel, of two phases. First whole convolutions by FFTs on chip, each channel and stretch of time by one
// block, which reads the gated inputs straight from the ranks that hold them; then, at home, the output gate and the
// transposition to (B, l, C).
//
// What moves: work is divided by channels (x2 and v of the owned channels come in over the link, y goes back to the
// ranks that hold its time) or, where sequences are much longer than filters, by time (only the positions before each
// own stretch come in). x1 and out never leave home. The bound is the link for short sequences, the arithmetic of the
// FFTs for long ones. Time is cut into pieces of kFresh positions (overlap-save), two pieces are the real and the
// imaginary part of one complex transform, and filters longer than kFresh taps are cut into parts. Transforms live in
// registers, 32 points a thread, and meet in shared memory twice; they leave frequencies in an order of their own, in
// which spectra of filters are kept and inverse transforms begin.
#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <algorithm>
#include <climits>
#include <cstdint>
#include <utility>

#include "pkb/symm.h"

using tvm::ffi::TensorView;

namespace {

constexpr int kThreads = 256;
constexpr int kOuter = 32;                    // points a thread holds; radix of the first step of a transform
constexpr int kInner = 16;                    // radix of the second and the third
constexpr int kPoints = kThreads * kOuter;    // of a transform, 32 * 16 * 16
constexpr int kColumns = kPoints / kInner;    // column c of the third step holds frequencies c + kColumns * j
constexpr int kPitch = kThreads + 1;          // of rows in shared memory: columns fall into different banks
constexpr int kFresh = kPoints / 2;           // positions of a piece, and taps of a part of a filter
constexpr int kFreshOuter = kOuter / 2;       // points of a thread that are fresh
constexpr int kBlocksPerSm = 2;
constexpr int kTile = 64;                     // positions and channels that are transposed together
constexpr int kSpectrum = kPoints / 2 + kInner;  // numbers that describe the spectrum of a part of a filter
constexpr int kNever = INT_MIN / 2;           // a time before every sequence

// Signal slots: ranks have finished phase one; ranks have entered a call of a new plan.
constexpr int kConvolved = 0;
constexpr int kEntered = pkb::kMaxRanks;

// Scratch: the counter of blocks, then the results of convolutions of even and of odd calls, then spectra of each block
// where filters have several parts: of as many windows, then of the parts.
constexpr int64_t kCounterBytes = 256;

struct Shared {
  float2 exchange[kOuter * kPitch];
  union {
    float2 spectrum[kSpectrum];  // of the filter, where it has one part
    float other_carry[kFresh];
  };
  float carry[kFresh];  // gated inputs of the newest piece: the next one begins with them
};

// How a call is carried out; equal on all ranks but for `begin`.
struct Plan {
  int W, place;              // ranks, and which of them this is
  int B, C, l, taps, group_dim;
  int length;                // of the whole sequence
  int chunk;                 // positions that lie together on one rank
  uint64_t per_chunk;        // 2^63 / chunk, rounded up: division by multiplication
  bool zigzag, by_time;
  bool wide;                 // rows can be read and written 16 bytes at a time
  int first_channel, channels;
  int segments, begin[2], segment_length;  // stretches of time that this rank convolves
  int pieces, pairs;                       // pieces of one segment; pairs of pieces of all segments
  int splits;                              // blocks that share the pairs of one channel
  int first_part, last_part;               // part p of a filter holds the taps that act p * kFresh and more later
  int workers;                             // blocks that convolve

  __host__ __device__ int parts() const { return last_part - first_part + 1; }
};

template <typename T>
struct Globals {
  const T *x1, *x2, *v, *h, *bias;
  T *out, *y;
  float2* spectra;
  unsigned* arrived;
  int64_t group;
  bool fence;  // the plan is not the one of the call before: its use of scratch must have ended everywhere
  Plan plan;
};

// ------------------------------------------------------------------------------------------------ complex numbers

__device__ __forceinline__ float2 operator+(float2 a, float2 b) { return make_float2(a.x + b.x, a.y + b.y); }
__device__ __forceinline__ float2 operator-(float2 a, float2 b) { return make_float2(a.x - b.x, a.y - b.y); }
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

// -------------------------------------------------------------------------------------------------------- elements

__device__ __forceinline__ float wide(float a) { return a; }
__device__ __forceinline__ float wide(__half a) { return __half2float(a); }
__device__ __forceinline__ float wide(__nv_bfloat16 a) { return __bfloat162float(a); }

// Rounds two values at once: conversions of single ones are slow.
__device__ __forceinline__ void narrow(float a, float b, float& to_a, float& to_b) {
  to_a = a;
  to_b = b;
}
__device__ __forceinline__ void narrow(float a, float b, __half& to_a, __half& to_b) {
  const __half2 both = __floats2half2_rn(a, b);
  to_a = both.x;
  to_b = both.y;
}
__device__ __forceinline__ void narrow(float a, float b, __nv_bfloat16& to_a, __nv_bfloat16& to_b) {
  const __nv_bfloat162 both = __floats2bfloat162_rn(a, b);
  to_a = both.x;
  to_b = both.y;
}

// What is read or written at once.
template <typename T>
struct alignas(16) Pack {
  static constexpr int kSize = 16 / sizeof(T);
  T values[kSize];
};

// Products, rounded once.
template <typename T>
__device__ __forceinline__ Pack<T> product(const Pack<T>& a, const Pack<T>& b) {
  Pack<T> c;
#pragma unroll
  for (int i = 0; i < Pack<T>::kSize; i += 2) {
    narrow(wide(a.values[i]) * wide(b.values[i]), wide(a.values[i + 1]) * wide(b.values[i + 1]), c.values[i],
           c.values[i + 1]);
  }
  return c;
}

template <typename T>
__device__ __forceinline__ T product(T a, T b) {
  T c, unused;
  narrow(wide(a) * wide(b), 0.0f, c, unused);
  return c;
}

template <typename T>
__device__ __forceinline__ Pack<T> as_pack(const uint4& bits) {
  return reinterpret_cast<const Pack<T>&>(bits);
}

template <typename T>
__device__ __forceinline__ uint4 load_bits(const T* from) {
  return *reinterpret_cast<const uint4*>(from);
}

// For memory that other ranks have written during this kernel.
template <typename T>
__device__ __forceinline__ uint4 load_written_bits(const T* from) {
  return __ldcg(reinterpret_cast<const uint4*>(from));
}

template <typename T>
__device__ __forceinline__ void store_bits(T* to, const uint4& bits) {
  *reinterpret_cast<uint4*>(to) = bits;
}

// ------------------------------------------------------------------------------------------- phase one: convolutions

struct Spot {
  int place, position;
};

// Which rank holds a time, and where.
__device__ __forceinline__ Spot spot_of(const Plan& plan, int time) {
  const int index = int(__umul64hi(2 * uint64_t(time), plan.per_chunk)), offset = time - index * plan.chunk;
  if (index < plan.W) return {index, offset};
  return {2 * plan.W - 1 - index, plan.chunk + offset};
}

// The convolutions of one block: holds what it keeps from one to the next.
template <typename T>
class Convolver {
 public:
  __device__ Convolver(const Globals<T>& g, const pkb::Device& comm, Shared& shared)
      : g_(g), plan_(g.plan), comm_(comm), shared_(shared), t_(int(threadIdx.x)), roots_(t_), parts_(plan_.parts()) {
    windows_ = g.spectra + int64_t(blockIdx.x) * parts_ * (kPoints + kSpectrum);
    filters_ = windows_ + int64_t(parts_) * kPoints;
  }

  // Work items (b, channel, split) are dealt to blocks in rows.
  __device__ void run() {
    const int items = plan_.B * plan_.channels * plan_.splits;
    const int begin = int(int64_t(items) * blockIdx.x / plan_.workers);
    const int end = int(int64_t(items) * (blockIdx.x + 1) / plan_.workers);
    for (int item = begin; item < end; ++item) {
      const int split = item % plan_.splits, row = item / plan_.splits;
      batch_ = row / plan_.channels;
      channel_ = plan_.first_channel + row % plan_.channels;
      convolve(split * plan_.pairs / plan_.splits, (split + 1) * plan_.pairs / plan_.splits);
    }
  }

 private:
  static constexpr int kPack = Pack<T>::kSize;
  static constexpr int kRounds = kFresh / (kThreads * kPack);  // in which the block goes over a piece

  // Times begin .. begin + kFresh - 1, of which `count` are wanted.
  struct Piece {
    int begin, count;
  };
  struct Fetched {
    uint4 x2[kRounds], v[kRounds];
  };

  // May be asked for pieces before the first and after the last.
  __device__ Piece piece(int index) const {
    const int segment = plan_.segments == 2 && index >= plan_.pieces ? 1 : 0;
    const int offset = (index - segment * plan_.pieces) * kFresh;
    return {plan_.begin[segment] + offset, index < 0 ? 0 : max(0, min(kFresh, plan_.segment_length - offset))};
  }

  // The pieces that go through one transform: neighbours, so that they share a window, or where parts of a filter meet
  // windows of several pairs, pieces at the same distance in all pairs.
  __device__ Piece first_of(int pair) const { return piece(parts_ == 1 ? 2 * pair : pair); }
  __device__ Piece second_of(int pair) const { return piece(parts_ == 1 ? 2 * pair + 1 : pair + plan_.pairs); }

  __device__ int64_t row() const { return (int64_t(batch_) * plan_.C + channel_) * plan_.l; }

  // Convolves pairs first .. last - 1. Part p of a filter meets the windows of p pairs before: step by step, one more
  // pair's is transformed, from the earliest that is needed on. Before, at negative steps, the filter's parts are.
  __device__ __forceinline__ void convolve(int first, int last) {
    const int filter = channel_ / plan_.group_dim, earliest = first - plan_.last_part;
    carry_begin_ = other_carry_begin_ = kNever;
    float2 z[kOuter];
#pragma unroll 1
    for (int step = filter == filter_ ? 0 : -parts_; step < last - first + parts_ - 1; ++step) {
      if (step < 0) {
        load_taps(z, filter, plan_.last_part + 1 + step);
      } else {
        load_windows(z, first_of(earliest + step), second_of(earliest + step));
      }
      transform_block(z, shared_.exchange, roots_, t_);
      if (step < 0) {
        keep_filter(z, step + parts_);
        continue;
      }
      const int pair = first + step - (parts_ - 1);
      if (parts_ == 1) {
        multiply(z, shared_.spectrum, skip(0));
      } else {
        keep_windows(z, step);
        if (pair >= first) multiply_parts(z, step);
      }
      if (pair >= first) {
        transform_block_back(z, shared_.exchange, roots_, t_);
        __syncthreads();
        store(z, first_of(pair), second_of(pair));
      }
      __syncthreads();
    }
    filter_ = filter;
  }

  // A filter's tap that acts `lag` positions later. Row k of taps acts k positions later or 2 * length - k earlier.
  __device__ float tap(const T* taps, int lag) const {
    const int k = lag < 0 ? 2 * plan_.length + lag : lag;
    const bool acts = lag < plan_.length && lag > -plan_.length && k < plan_.taps;
    return acts ? wide(taps[k]) : 0.0f;
  }

  // Points of a filter's part: kFresh taps, then zeros.
  __device__ __forceinline__ void load_taps(float2 (&z)[kOuter], int filter, int part) const {
    const T* taps = g_.h + int64_t(filter) * plan_.taps;
#pragma unroll
    for (int i = 0; i < kOuter; ++i) {
      z[i] = make_float2(i < kFreshOuter ? tap(taps, part * kFresh + i * kThreads + t_) : 0.0f, 0.0f);
    }
  }

  // Keeps the spectrum of part first_part + j, scaled for the inverse transform: of frequencies k and -k, which are
  // conjugates, the one. Each thread keeps its own.
  __device__ __forceinline__ void keep_filter(const float2 (&z)[kOuter], int j) {
    constexpr float kScale = 1.0f / kPoints;
    float2* f = parts_ == 1 ? shared_.spectrum : filters_ + j * kSpectrum;
#pragma unroll
    for (int i = 0; i < kInner; ++i) {
      f[i * kThreads + t_] = make_float2(kScale * z[i].x, kScale * z[i].y);
      if (t_ == 0) f[kInner * kThreads + i] = make_float2(kScale * z[kInner + i].x, kScale * z[kInner + i].y);
    }
    __syncthreads();
  }

  // The skip weight is one more weight of tap 0: its spectrum is constant.
  __device__ float skip(int part) const { return part == 0 ? wide(g_.bias[channel_]) / kPoints : 0.0f; }

  // Calls visit(i, f) for the filter's frequencies at the places of z.
  template <typename Visit>
  __device__ __forceinline__ void visit_filter(const float2* f, float skip, Visit visit) const {
#pragma unroll
    for (int i = 0; i < kInner; ++i) {
      const int opposite = kInner - 1 - i;
      const float2 a = f[i * kThreads + t_], b = t_ ? conj(a) : f[kInner * kThreads + opposite];
      visit(i, make_float2(a.x + skip, a.y));
      visit(kInner + opposite, make_float2(b.x + skip, b.y));
    }
  }

  __device__ __forceinline__ void multiply(float2 (&z)[kOuter], const float2* f, float skip) const {
    visit_filter(f, skip, [&](int i, float2 w) { z[i] = z[i] * w; });
  }

  // Windows' spectra stay for as many steps as there are parts.
  __device__ float2* windows_of(int step) const { return windows_ + int64_t(step % parts_) * kPoints + t_; }

  __device__ __forceinline__ void keep_windows(const float2 (&z)[kOuter], int step) const {
    float2* kept = windows_of(step);
#pragma unroll
    for (int i = 0; i < kOuter; ++i) kept[i * kThreads] = z[i];
  }

  // Sums, over all parts of the filter, the products with the windows that they meet; z holds the newest.
  __device__ __forceinline__ void multiply_parts(float2 (&z)[kOuter], int step) const {
    multiply(z, filters_, skip(plan_.first_part));
#pragma unroll 1
    for (int j = 1; j < parts_; ++j) {
      const float2* kept = windows_of(step - j);
      visit_filter(filters_ + j * kSpectrum, skip(plan_.first_part + j),
                   [&](int i, float2 w) { z[i] = z[i] + kept[i * kThreads] * w; });
    }
  }

  // Position within a piece of this thread's pack of a round.
  __device__ int place_of(int round) const { return (round * kThreads + t_) * kPack; }

  // x (an input) of the batch and channel, at a time, on the rank that holds it.
  __device__ const T* source(const T* x, int time) const {
    const Spot spot = spot_of(plan_, time);
    return comm_.peer(x, comm_.group_member(g_.group, spot.place)) + row() + spot.position;
  }

  // Reads x2 and v at times begin .. begin + kFresh - 1; those outside of [earliest, end) are zero.
  __device__ __forceinline__ Fetched fetch(int begin, int earliest, int end) const {
    Fetched fetched;
#pragma unroll
    for (int round = 0; round < kRounds; ++round) {
      const int time = begin + place_of(round);
      fetched.x2[round] = fetched.v[round] = make_uint4(0, 0, 0, 0);
      if (time + kPack <= max(earliest, 0) || time >= end) continue;
      fetched.x2[round] = load_bits(source(g_.x2, time));
      fetched.v[round] = load_bits(source(g_.v, time));
    }
    return fetched;
  }

  // Writes the products of what was fetched.
  __device__ __forceinline__ void gate(const Fetched& fetched, float* place) const {
#pragma unroll
    for (int round = 0; round < kRounds; ++round) {
      const Pack<T> u = product(as_pack<T>(fetched.x2[round]), as_pack<T>(fetched.v[round]));
#pragma unroll
      for (int e = 0; e < kPack; e += 4) {
        *reinterpret_cast<float4*>(place + place_of(round) + e) =
            make_float4(wide(u.values[e]), wide(u.values[e + 1]), wide(u.values[e + 2]), wide(u.values[e + 3]));
      }
    }
  }

  // Copies what this thread wrote by gate().
  __device__ void copy(const float* from, float* to) const {
#pragma unroll
    for (int round = 0; round < kRounds; ++round) {
#pragma unroll
      for (int e = 0; e < kPack; e += 4) {
        const int i = place_of(round) + e;
        *reinterpret_cast<float4*>(to + i) = *reinterpret_cast<const float4*>(from + i);
      }
    }
  }

  // The same for rows that cannot be read 16 bytes at a time.
  __device__ void gate_singly(int begin, float* place) const {
#pragma unroll 1
    for (int i = t_; i < kFresh; i += kThreads) {
      const int time = begin + i;
      const bool is_inside = time >= 0 && time < plan_.length;
      place[i] = is_inside ? wide(product(*source(g_.x2, time), *source(g_.v, time))) : 0.0f;
    }
  }

  // Loads the windows of pieces a (real) and b (imaginary): gated inputs from kFresh positions before to the end.
  __device__ __forceinline__ void load_windows(float2 (&z)[kOuter], Piece a, Piece b) {
    float* past_a = reinterpret_cast<float*>(shared_.exchange);
    float *own_a = past_a + kFresh, *past_b = own_a + kFresh, *own_b = past_b + kFresh;
    if (plan_.wide) {
      // With a single part, positions that no tap or no result needs are left out.
      const bool single = parts_ == 1;
      const int end = plan_.length, need = single ? plan_.taps : end;
      const bool carried_a = a.begin == carry_begin_ + kFresh, carried_b = b.begin == other_carry_begin_ + kFresh;
      const bool adjacent = b.begin == a.begin + kFresh && (a.count == kFresh || !single);
      const Fetched of_a = fetch(a.begin, 0, single ? min(end, a.begin + a.count) : end);
      const Fetched of_b = fetch(b.begin, 0, single ? min(end, b.begin + b.count) : end);
      const Fetched before_a = fetch(a.begin - kFresh, a.begin - need, carried_a ? 0 : end);
      const Fetched before_b = fetch(b.begin - kFresh, b.begin - need, adjacent || carried_b ? 0 : end);
      gate(of_a, own_a);
      gate(of_b, own_b);
      if (carried_a) {
        copy(shared_.carry, past_a);
      } else {
        gate(before_a, past_a);
      }
      if (adjacent) {
        copy(own_a, past_b);
      } else if (carried_b) {
        copy(shared_.other_carry, past_b);
      } else {
        gate(before_b, past_b);
      }
      if (single) {
        copy(own_b, shared_.carry);
        carry_begin_ = b.count == kFresh ? b.begin : kNever;
      } else {
        copy(own_a, shared_.carry);
        copy(own_b, shared_.other_carry);
        carry_begin_ = a.begin;
        other_carry_begin_ = b.begin;
      }
    } else {
      gate_singly(a.begin - kFresh, past_a);
      gate_singly(a.begin, own_a);
      gate_singly(b.begin - kFresh, past_b);
      gate_singly(b.begin, own_b);
    }
    __syncthreads();
#pragma unroll
    for (int i = 0; i < kOuter; ++i) z[i] = make_float2(past_a[i * kThreads + t_], past_b[i * kThreads + t_]);
    __syncthreads();
  }

  // Sends the results to the ranks that hold their times: z's points from kFresh on, a's real, b's imaginary.
  __device__ __forceinline__ void store(const float2 (&z)[kOuter], Piece a, Piece b) {
    T* staged = reinterpret_cast<T*>(shared_.exchange);
#pragma unroll
    for (int i = 0; i < kFreshOuter; ++i) {
      const float2 y = z[kFreshOuter + i];
      narrow(y.x, y.y, staged[i * kThreads + t_], staged[kFresh + i * kThreads + t_]);
    }
    __syncthreads();
    send(staged, a);
    send(staged + kFresh, b);
  }

  __device__ void send(const T* staged, Piece piece) const {
    if (plan_.wide) {
#pragma unroll
      for (int round = 0; round < kRounds; ++round) {
        const int i = place_of(round);
        if (i < piece.count) store_bits(target(piece.begin + i), load_bits(staged + i));
      }
    } else {
#pragma unroll 1
      for (int i = t_; i < piece.count; i += kThreads) *target(piece.begin + i) = staged[i];
    }
  }

  __device__ T* target(int time) const {
    const Spot spot = spot_of(plan_, time);
    return comm_.peer(g_.y, comm_.group_member(g_.group, spot.place)) + row() + spot.position;
  }

  const Globals<T>& g_;
  const Plan& plan_;
  const pkb::Device& comm_;
  Shared& shared_;
  const int t_;
  const Roots roots_;
  const int parts_;
  float2 *windows_, *filters_;     // this block's spectra in scratch
  int batch_ = 0, channel_ = 0;
  int filter_ = -1;                // whose spectrum is kept
  int carry_begin_ = kNever, other_carry_begin_ = kNever;
};

// ------------------------------------------------------------------------------------------------- between the phases

// Every rank has begun this call, so that the one before has ended everywhere.
__device__ void enter(const pkb::Device& comm, int64_t group, int W, int place) {
  const int t = int(threadIdx.x);
  if (t < W && t != place) {
    if (blockIdx.x == 0) comm.signal(kEntered + place, comm.group_member(group, t));
    comm.wait(kEntered + t);
  }
  __syncthreads();
}

// All blocks have convolved, of all ranks or, where each rank convolves its own time, of this one.
__device__ void meet(const pkb::Device& comm, int64_t group, const Plan& plan, unsigned* arrived) {
  const int t = int(threadIdx.x);
  __syncthreads();
  if (t == 0) {
    __threadfence_system();
    if (atomicInc(arrived, gridDim.x - 1) == gridDim.x - 1) {
      for (int other = 0; other < plan.W; ++other) {
        if (!plan.by_time || other == plan.place) {
          comm.signal(kConvolved + plan.place, comm.group_member(group, other));
        }
      }
    }
  }
  if (t < plan.W && (!plan.by_time || t == plan.place)) comm.wait(kConvolved + t);
  __syncthreads();
}

// --------------------------------------------------------------------------------------- phase two: gates, transposed

// The tile of positions and channels: packs of channels are swizzled so that neither side meets bank conflicts.
template <typename T>
__device__ __forceinline__ T* tile_place(T* tile, int position, int channel) {
  constexpr int kPack = Pack<T>::kSize;
  return tile + position * kTile + ((channel / kPack) ^ (position / kPack)) * kPack + channel % kPack;
}

template <typename T>
__device__ void gate_tile(const Globals<T>& g, T* tile, int b, int first_position, int first_channel) {
  constexpr int kPack = Pack<T>::kSize, kRow = kTile / kPack, kRounds = kTile * kRow / kThreads;
  const int t = int(threadIdx.x);
  const int channels = min(kTile, g.plan.C - first_channel), positions = min(kTile, g.plan.l - first_position);
  const int64_t from = (int64_t(b) * g.plan.C + first_channel) * g.plan.l + first_position;
  if (g.plan.l % kPack == 0) {
    uint4 x1[kRounds], y[kRounds];
#pragma unroll
    for (int round = 0; round < kRounds; ++round) {
      const int index = round * kThreads + t, channel = index / kRow, position = index % kRow * kPack;
      x1[round] = y[round] = make_uint4(0, 0, 0, 0);
      if (channel >= channels || position >= positions) continue;
      x1[round] = load_bits(g.x1 + from + int64_t(channel) * g.plan.l + position);
      y[round] = load_written_bits(g.y + from + int64_t(channel) * g.plan.l + position);
    }
#pragma unroll
    for (int round = 0; round < kRounds; ++round) {
      const int index = round * kThreads + t, channel = index / kRow, position = index % kRow * kPack;
      const Pack<T> gated = product(as_pack<T>(x1[round]), as_pack<T>(y[round]));
#pragma unroll
      for (int e = 0; e < kPack; ++e) *tile_place(tile, position + e, channel) = gated.values[e];
    }
  } else {
#pragma unroll 1
    for (int i = t; i < channels * kTile; i += kThreads) {
      const int channel = i / kTile, position = i % kTile;
      if (position >= positions) continue;
      const int64_t at = from + int64_t(channel) * g.plan.l + position;
      *tile_place(tile, position, channel) = product(g.x1[at], __ldcg(g.y + at));
    }
  }
  __syncthreads();
  T* out = g.out + (int64_t(b) * g.plan.l + first_position) * g.plan.C + first_channel;
  if (g.plan.C % kPack == 0) {
#pragma unroll
    for (int round = 0; round < kRounds; ++round) {
      const int index = round * kThreads + t, position = index / kRow, channel = index % kRow * kPack;
      if (position >= positions || channel >= channels) continue;
      store_bits(out + int64_t(position) * g.plan.C + channel, load_bits(tile_place(tile, position, channel)));
    }
  } else {
#pragma unroll 1
    for (int i = t; i < positions * kTile; i += kThreads) {
      const int position = i / kTile, channel = i % kTile;
      if (channel < channels) out[int64_t(position) * g.plan.C + channel] = *tile_place(tile, position, channel);
    }
  }
  __syncthreads();
}

template <typename T>
__global__ void __launch_bounds__(kThreads, kBlocksPerSm) hyena(const __grid_constant__ Globals<T> g,
                                                                const __grid_constant__ pkb::Device comm) {
  extern __shared__ __align__(16) unsigned char memory[];
  Shared& shared = *reinterpret_cast<Shared*>(memory);
  const Plan& plan = g.plan;
  if (g.fence) enter(comm, g.group, plan.W, plan.place);
  if (int(blockIdx.x) < plan.workers) Convolver<T>(g, comm, shared).run();
  meet(comm, g.group, plan, g.arrived);
  const int wide_tiles = (plan.C + kTile - 1) / kTile, long_tiles = (plan.l + kTile - 1) / kTile;
  for (int i = int(blockIdx.x); i < plan.B * wide_tiles * long_tiles; i += int(gridDim.x)) {
    const int b = i / (wide_tiles * long_tiles), rest = i % (wide_tiles * long_tiles);
    gate_tile(g, reinterpret_cast<T*>(memory), b, rest / wide_tiles * kTile, rest % wide_tiles * kTile);
  }
}

// -------------------------------------------------------------------------------------------------------------- host

int64_t ceil_div(int64_t a, int64_t b) { return (a + b - 1) / b; }

// Divides the work by channels or by time, whichever is estimated to take less.
void divide(Plan& plan, int64_t item_bytes) {
  constexpr double kLinkBytesPerNs = 350, kTransformsPerNs = 0.05;
  const int own_chunks = plan.zigzag ? 2 : 1;
  auto pairs = [](int64_t segments, int64_t length) { return ceil_div(segments * ceil_div(length, kFresh), 2); };
  const double rows = double(plan.B) * plan.C;
  const double link_by_channel = 3.0 * (plan.W - 1) / plan.W * rows * plan.l;
  const double link_by_time = 2.0 * own_chunks * std::min(plan.taps - 1, kFresh) * rows;
  const double transforms_by_channel = rows / plan.W * double(1 + 2 * pairs(1, plan.length));
  const double transforms_by_time = rows * double(1 + 2 * pairs(own_chunks, plan.chunk));
  auto cost = [&](double link, double transforms) {
    return std::max(link * double(item_bytes) / kLinkBytesPerNs, transforms / kTransformsPerNs);
  };
  plan.by_time = plan.W > 1 && plan.parts() == 1 &&
                 cost(link_by_time, transforms_by_time) < cost(link_by_channel, transforms_by_channel);
  plan.channels = plan.by_time ? plan.C : plan.C / plan.W;
  plan.first_channel = plan.by_time ? 0 : plan.place * plan.channels;
  plan.segments = plan.by_time ? own_chunks : 1;
  plan.segment_length = plan.by_time ? plan.chunk : plan.length;
  plan.begin[0] = plan.by_time ? plan.place * plan.chunk : 0;
  plan.begin[1] = plan.by_time && plan.zigzag ? (2 * plan.W - 1 - plan.place) * plan.chunk : 0;
  plan.pieces = int(ceil_div(plan.segment_length, kFresh));
  plan.pairs = int(pairs(plan.segments, plan.segment_length));
}

Plan make_plan(const pkb::Group& members, const TensorView& x, const TensorView& h, int64_t group_dim, bool zigzag,
               int64_t item_bytes) {
  Plan plan{};
  plan.W = members.size;
  plan.place = members.rank;
  plan.B = int(x.shape()[0]);
  plan.C = int(x.shape()[1]);
  plan.l = int(x.shape()[2]);
  plan.taps = int(std::min<int64_t>(h.shape()[1], INT_MAX));
  plan.group_dim = int(group_dim);
  plan.length = plan.W * plan.l;
  plan.zigzag = zigzag;
  plan.chunk = zigzag ? plan.l / 2 : plan.l;
  plan.per_chunk = uint64_t(INT64_MAX) / uint64_t(plan.chunk) + 1;
  plan.wide = plan.chunk % (16 / item_bytes) == 0;
  plan.last_part = (std::min(plan.length, plan.taps) - 1) / kFresh;
  // Taps beyond the length act on the future.
  plan.first_part = plan.taps > plan.length + 1 ? -int(ceil_div(plan.length - 1, kFresh)) : 0;
  divide(plan, item_bytes);
  return plan;
}

// Whether the call before used scratch in the same way.
bool is_continued(const Plan& plan, int64_t item_bytes) {
  static Plan before{};
  static int64_t item_bytes_before = 0;
  const bool same = plan.W == before.W && plan.B == before.B && plan.C == before.C && plan.l == before.l &&
                    plan.parts() == before.parts() && plan.by_time == before.by_time && item_bytes == item_bytes_before;
  before = plan;
  item_bytes_before = item_bytes;
  return same;
}

template <typename T>
int resident_blocks() {
  static const int blocks = [] {
    int device = 0, processors = 0, per_processor = 0;
    PKB_CUDA(cudaGetDevice(&device));
    PKB_CUDA(cudaDeviceGetAttribute(&processors, cudaDevAttrMultiProcessorCount, device));
    PKB_CUDA(cudaFuncSetAttribute(hyena<T>, cudaFuncAttributeMaxDynamicSharedMemorySize, int(sizeof(Shared))));
    PKB_CUDA(cudaFuncSetAttribute(hyena<T>, cudaFuncAttributePreferredSharedMemoryCarveout, 100));
    PKB_CUDA(cudaOccupancyMaxActiveBlocksPerMultiprocessor(&per_processor, hyena<T>, kThreads, sizeof(Shared)));
    return processors * per_processor;
  }();
  return blocks;
}

struct Arguments {
  TensorView x1, x2, v, h, bias, out;
  int64_t group_dim, group;
  bool zigzag;
};

template <typename T>
void launch(const Arguments& args, const pkb::Comm& comm) {
  const int64_t item_bytes = sizeof(T);
  Plan plan = make_plan(comm.group(args.group), args.x1, args.h, args.group_dim, args.zigzag, item_bytes);
  const int blocks = resident_blocks<T>();
  const int64_t y_bytes = ceil_div(int64_t(plan.B) * plan.C * plan.l * item_bytes, 256) * 256;
  const int64_t spectra_offset = kCounterBytes + 2 * y_bytes;
  plan.splits = std::clamp(blocks / std::max(1, plan.B * plan.channels), 1, plan.pairs);
  plan.workers = blocks;
  if (plan.parts() > 1) {
    const int64_t block_bytes = plan.parts() * int64_t((kPoints + kSpectrum) * sizeof(float2));
    plan.workers = int(std::min<int64_t>(blocks, (int64_t(comm.scratch_bytes) - spectra_offset) / block_bytes));
  }
  if (int64_t(comm.scratch_bytes) < spectra_offset || plan.workers < 1) {
    TVM_FFI_THROW(RuntimeError) << "expected more scratch than " << comm.scratch_bytes << " bytes";
  }
  auto data = [](const TensorView& x) { return static_cast<T*>(x.data_ptr()); };
  Globals<T> g{};
  g.x1 = data(args.x1);
  g.x2 = data(args.x2);
  g.v = data(args.v);
  g.h = data(args.h);
  g.bias = data(args.bias);
  g.out = data(args.out);
  g.y = comm.scratch<T>(uint64_t(kCounterBytes + int64_t(comm.epoch % 2) * y_bytes));
  g.spectra = comm.scratch<float2>(uint64_t(spectra_offset));
  g.arrived = comm.scratch<unsigned>();
  g.group = args.group;
  g.fence = !is_continued(plan, item_bytes) && plan.W > 1;
  g.plan = plan;
  hyena<T><<<blocks, kThreads, sizeof(Shared), comm.cuda_stream()>>>(g, comm.device());
  PKB_CUDA_LAUNCHED();
}

}  // namespace

void solution(TensorView x1_seq, TensorView x2_seq, TensorView v_seq, TensorView h, TensorView conv_bias,
              int64_t num_groups, int64_t group_dim, int64_t group, bool with_zigzag_splitting, TensorView out,
              pkb::Comm comm) {
  const int64_t C = x1_seq.shape()[1], l = x1_seq.shape()[2], W = comm.group(group).size;
  if (C != num_groups * group_dim || num_groups % W) {
    TVM_FFI_THROW(ValueError) << "expected num_groups * group_dim = C and num_groups a multiple of " << W << ", got "
                              << num_groups << " * " << group_dim << " and C = " << C;
  }
  if (with_zigzag_splitting && l % 2) TVM_FFI_THROW(ValueError) << "zigzag splitting needs an even length, got " << l;
  const Arguments args{x1_seq, x2_seq, v_seq, h, conv_bias, out, group_dim, group, with_zigzag_splitting};
  const DLDataType dtype = x1_seq.dtype();
  if (dtype.code == kDLBfloat) return launch<__nv_bfloat16>(args, comm);
  if (dtype.code == kDLFloat && dtype.bits == 16) return launch<__half>(args, comm);
  if (dtype.code == kDLFloat && dtype.bits == 32) return launch<float>(args, comm);
  TVM_FFI_THROW(TypeError) << "sequences must be bfloat16, float16 or float32, got code " << int(dtype.code) << " of "
                           << int(dtype.bits) << " bits";
}

TVM_FFI_DLL_EXPORT_TYPED_FUNC(solution, solution);
