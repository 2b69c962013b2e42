// Convolutions of real sequences of bfloat16 by Fourier transforms on tensor cores, piece by piece (overlap-save), each
// by one block of kThreads threads. Needs sm_80.
//
//   extern __shared__ __align__(16) unsigned char memory[];
//   auto& shared = *reinterpret_cast<pkb::fft_matrix::Shared<16>*>(memory);
//   pkb::fft_matrix::fill(shared);
//   pkb::fft_matrix::Convolution<16> convolution(shared, spectrum);  // kSpectrumBytes of global memory of this block
//   ...                               // put() the filter's taps as positions before, and zeros as the piece
//   convolution.take_filter(most);    // see larger_magnitude(): of these taps, and of skip weights
//   ...                               // put() positions before the piece, and the piece
//   convolution.convolve(most, skip);  // y = filter * x + skip x
//   ...                               // results(): y at the positions of the piece
//   __syncthreads();                  // before the next put()
//
// A piece has M = kPoints = 64 R R positions, R = 16 or 8, and filters have at most M taps. z = before + i * piece:
// multiplied modulo x^M - i, which real sequences of 2 M points modulo x^2M + 1 reduce to, the imaginary part of
// the product is the result. So one complex transform of M points does, and no spectra of two real sequences are taken
// apart. Frequencies are k + kShift: Z_k = sum over n of z_n exp(-2 pi i n (k + kShift) / M). An inverse transform is
// the same transform with real and imaginary parts exchanged.
//
// n = 64 (R n1 + n2) + 8 b1 + b2 and k = k1 + R k2 + R R (c1 + 8 c2). Pass A transforms columns, over n1 and n2, pass B
// rows, over b1 and b2, each by two products that are chained in registers. Operands are float16, sums and twiddles
// float32. Data is scaled by a power of two to at most 2^8, transforms are unitary and products of spectra are shrunk
// by 2^15, so that nothing overflows. Results have errors of about 7e-4 of their rms; operands of bfloat16 would make
// eight times as much.
#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_runtime.h>

#include <cstdint>

#include "pkb/teams_cuda.h"
#include "pkb/vectors_cuda.h"

namespace pkb {
namespace fft_matrix {

constexpr int kThreads = 256;
constexpr float kShift = -0.25f;
constexpr int kColumnsOfRow = 64;
constexpr int kWarps = kThreads / 32;

__device__ __forceinline__ uint32_t pack_half(float low, float high) {
  const __half2 both = __floats2half2_rn(low, high);
  return reinterpret_cast<const uint32_t&>(both);
}
__device__ __forceinline__ float2 unpack_half(uint32_t word) {
  return __half22float2(reinterpret_cast<const __half2&>(word));
}
__device__ __forceinline__ float2 times(float2 a, float2 b) {
  return make_float2(a.x * b.x - a.y * b.y, a.x * b.y + a.y * b.x);
}

// d += a b
__device__ __forceinline__ void multiply_add(float (&d)[4], uint32_t a0, uint32_t a1, uint32_t a2, uint32_t a3,
                                             uint32_t b0, uint32_t b1) {
  asm volatile(
      "mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, "
      "{%0, %1, %2, %3};"
      : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
      : "r"(a0), "r"(a1), "r"(a2), "r"(a3), "r"(b0), "r"(b1));
}

// What the threads of a warp hold of the matrices of a transform of R * R points, and of its twiddles.
template <int R>
struct Factors {
  static constexpr int kTiles = R / 8;
  uint32_t left[kTiles * kTiles * 4][32], shifted_left[kTiles * kTiles * 4][32];  // (m, k, register)
  uint32_t right[kTiles * kTiles * 2 * 2][32];                                    // (k, n, register)
  uint32_t last[kTiles * kTiles * 2][32];                                         // real results only
  float2 twiddles[kTiles * kTiles * 2][32], back_twiddles[kTiles * kTiles * 2][32];  // (m, n, column)
};

// exp(-2 pi i turns)
__device__ __forceinline__ float2 turned(float turns) {
  float2 w;
  sincospif(-2.0f * turns, &w.y, &w.x);
  return w;
}

// A complex factor as the pair that makes the real or the imaginary part of a product.
__device__ __forceinline__ uint32_t factor(float turns, bool imaginary, float scale) {
  const float2 w = turned(turns);
  return imaginary ? pack_half(scale * w.y, scale * w.x) : pack_half(scale * w.x, -scale * w.y);
}

template <int R>
__device__ void fill(Factors<R>& f, float shift) {
  constexpr int kTiles = R / 8;
  constexpr float kLeft = R == 16 ? 0.25f : 0.5f, kRight = 0.25f, kSquare = 1.0f / (R * R);
  for (int i = int(threadIdx.x); i < kTiles * kTiles * 4 * 32; i += kThreads) {
    const int lane = i % 32, entry = i / 32, r = entry % 4, k = entry / 4 % kTiles, m = entry / 4 / kTiles;
    const int from = 8 * k + lane % 4 + r / 2 * 4, to = 8 * m + lane / 4;
    f.left[entry][lane] = factor(float(from * to) / R, r % 2, kLeft);
    f.shifted_left[entry][lane] = factor(float(from) * (float(to) + shift) / R, r % 2, kLeft);
    const int r2 = entry % 2, n = entry / 2 % (2 * kTiles), k2 = entry / 2 / (2 * kTiles);
    const int from2 = 8 * k2 + lane % 4 * 2 + r2;
    f.right[entry][lane] = factor(float(from2 * (4 * n + lane / 8)) / R, lane / 4 % 2, kRight);
  }
  for (int i = int(threadIdx.x); i < kTiles * kTiles * 2 * 32; i += kThreads) {
    const int lane = i % 32, entry = i / 32, r = entry % 2, n = entry / 2 % kTiles, k = entry / 2 / kTiles;
    const int from = 8 * k + lane % 4 * 2 + r, to = 8 * n + lane / 8 + lane / 4 % 2 * 4;
    f.last[entry][lane] = factor(float(to) * (float(from) + shift) / R, false, kRight);
    const int row = 8 * k + lane / 4, column = 8 * n + lane % 4 * 2 + r;  // k is m here
    f.twiddles[entry][lane] = turned(float(column) * (float(row) + shift) * kSquare);
    f.back_twiddles[entry][lane] = turned(float(row) * (float(column) + shift) * kSquare);
  }
}

template <int R>
struct Shared {
  static constexpr int kPoints = R * R * kColumnsOfRow;
  static constexpr int kPitch = kColumnsOfRow + 8, kPitch1 = R * kPitch + 2;  // of n2 and n1: fragments meet all banks
  uint32_t points[R * kPitch1];
  Factors<R> a;
  Factors<8> b;
  float2 column_step[2][kColumnsOfRow];                // w^(4 R column), w^(8 column)
  float2 begin_a[kThreads], step_a[32], steps_a[32];   // see pass_a()
  float2 begin_b[kThreads], step_b[32], steps_b[32];   // see pass_b()
  float2 row_step[R * R];                              // w^(32 row)
  uint32_t most[kWarps];
};

template <int R>
__device__ void fill(Shared<R>& s) {
  constexpr float kUnit = 1.0f / Shared<R>::kPoints;
  fill(s.a, kShift);
  fill(s.b, 0.0f);
  const int t = int(threadIdx.x), lane = t % 32, warp = t / 32;
  const float place_a = float(lane / 4 + R * (lane % 4)) + kShift;
  const int place_b = lane / 4 + 8 * (lane % 4);
  s.begin_a[t] = turned(float(2 * warp) * place_a * kUnit);
  s.begin_b[t] = turned((float(2 * warp) + kShift) * float(place_b) * kUnit);
  if (warp == 0) {
    s.step_a[lane] = turned(place_a * kUnit);
    s.steps_a[lane] = turned(float(2 * kWarps) * place_a * kUnit);
    s.step_b[lane] = turned(float(place_b) * kUnit);
    s.steps_b[lane] = turned(float(2 * kWarps * place_b) * kUnit);
  }
  if (t < kColumnsOfRow) {
    s.column_step[0][t] = turned(float(4 * R * t) * kUnit);
    s.column_step[1][t] = turned(float(8 * t) * kUnit);
  }
  for (int row = t; row < R * R; row += kThreads) s.row_step[row] = turned(32.0f * (float(row) + kShift) * kUnit);
  __syncthreads();
}

// Filters and pieces of one block.
template <int R>
class Convolution {
 public:
  using T = __nv_bfloat16;
  using S = Shared<R>;
  static constexpr int kPoints = S::kPoints;
  static constexpr int64_t kSpectrumBytes = int64_t(kPoints) * 4;

  __device__ Convolution(S& shared, void* spectrum)
      : s_(shared), spectrum_(static_cast<uint4*>(spectrum)), t_(int(threadIdx.x)), lane_(lane_id()),
        warp_(warp_id()) {}

  // Puts four neighbours, of positions before the piece and of the piece; `position` is a multiple of four.
  __device__ __forceinline__ void put(int position, uint2 past, uint2 own) {
    auto* pairs = reinterpret_cast<uint2*>(place_of(position));
    pairs[0] = make_uint2(__byte_perm(past.x, own.x, 0x5410), __byte_perm(past.x, own.x, 0x7632));
    pairs[1] = make_uint2(__byte_perm(past.y, own.y, 0x5410), __byte_perm(past.y, own.y, 0x7632));
  }

  // Four neighbours of the results.
  __device__ __forceinline__ uint2 results(int position) const {
    const uint32_t* from = place_of(position);
    return make_uint2(from[0], from[2]);
  }

  // The magnitudes of two bfloat16s that are the larger ones so far.
  __device__ static __forceinline__ uint32_t larger_magnitude(uint32_t most, uint32_t word) {
    return larger<T>(most, word & 0x7fff7fff);
  }

  // Called by all threads: transforms the filter that was put.
  __device__ __forceinline__ void take_filter(uint32_t most) {
    scale_by(most);
    pass_a();
    pass_b<true>(0.0f);
    filter_scale_ = scale_;
    filter_unscale_ = unscale_;
  }

  // Called by all threads: makes the results of the piece that was put. The skip weight is one more weight of tap 0:
  // its spectrum is constant.
  __device__ __forceinline__ void convolve(uint32_t most, float skip) {
    scale_by(most);
    pass_a();
    pass_b<false>(skip * filter_scale_ * (kShrink / kUnitary));
    pass_a_back(unscale_ * (kUnitary / kShrink), filter_unscale_);
  }

 private:
  static constexpr int kTiles = R / 8, kColumnRounds = kColumnsOfRow / 2 / kWarps, kRowRounds = R * R / 2 / kWarps;
  static constexpr float kUnitary = R == 16 ? 128.0f : 64.0f;  // root of the points
  static constexpr float kShrink = 1.0f / 32768;                // of products of spectra

  __device__ __forceinline__ uint32_t* place_of(int position) const {
    const int line = position / kColumnsOfRow;
    return s_.points + line / R * S::kPitch1 + line % R * S::kPitch + position % kColumnsOfRow;
  }

  // Agrees on the scale, a power of two that brings the largest number, of bfloat16s, to 2^7 .. 2^8. The block's points
  // are written then.
  __device__ __forceinline__ void scale_by(uint32_t most) {
    most = __reduce_max_sync(kAllLanes, max(most >> 16, most & 0xffff));
    if (lane_ == 0) s_.most[warp_] = most;
    __syncthreads();
#pragma unroll
    for (int w = 0; w < kWarps; ++w) most = max(most, s_.most[w]);
    const uint32_t exponent = max(most >> 7, 16u);
    scale_ = __uint_as_float((261 - exponent) << 23);
    unscale_ = __uint_as_float((exponent - 7) << 23);
  }

  __device__ __forceinline__ uint32_t to_half(uint32_t word) const {
    return pack_half(__uint_as_float(word << 16) * scale_, __uint_as_float(word & 0xffff0000u) * scale_);
  }

  template <int N>
  __device__ __forceinline__ void read(uint32_t (&to)[N], const uint32_t (&from)[N][32]) const {
#pragma unroll
    for (int i = 0; i < N; ++i) to[i] = from[i][lane_];
  }
  template <int N>
  __device__ __forceinline__ void read(float2 (&to)[N], const float2 (&from)[N][32]) const {
#pragma unroll
    for (int i = 0; i < N; ++i) to[i] = from[i][lane_];
  }

  // The first product of a transform of Q * Q points: in[i][n] has, of column lane / 4 + 8 n, row lane % 4 + 4 i.
  // Leaves rows lane / 4 + 8 m and columns 2 (lane % 4) + e + 8 n, turned by the twiddles, at out[m][n][e].
  template <int Q>
  __device__ __forceinline__ static void first_product(const uint32_t (&in)[Q / 4][Q / 8], const uint32_t* left,
                                                       const float2* twiddles, uint32_t (&out)[Q / 8][Q / 8][2]) {
    constexpr int kQ = Q / 8;
#pragma unroll
    for (int m = 0; m < kQ; ++m) {
#pragma unroll
      for (int n = 0; n < kQ; ++n) {
        float sum[4] = {};
#pragma unroll
        for (int k = 0; k < kQ; ++k) {
          const uint32_t* a = left + (m * kQ + k) * 4;
          multiply_add(sum, a[0], a[1], a[2], a[3], in[2 * k][n], in[2 * k + 1][n]);
        }
#pragma unroll
        for (int e = 0; e < 2; ++e) {
          const float2 z = times(make_float2(sum[e], sum[e + 2]), twiddles[(m * kQ + n) * 2 + e]);
          out[m][n][e] = pack_half(z.x, z.y);
        }
      }
    }
  }

  // The second one, of sixteen rows, which are one transform's for Q = 16 and two transforms' for Q = 8: `low` and
  // `high` are results of first_product() for rows 0 .. 7 and 8 .. 15.
  template <int kK, int kN>
  __device__ __forceinline__ static void second_product(const uint32_t (&low)[kK][2], const uint32_t (&high)[kK][2],
                                                        const uint32_t* right, float (&sums)[kN][4]) {
#pragma unroll
    for (int n = 0; n < kN; ++n) {
#pragma unroll
      for (int i = 0; i < 4; ++i) sums[n][i] = 0;
#pragma unroll
      for (int k = 0; k < kK; ++k) {
        const uint32_t* b = right + (k * kN + n) * 2;
        multiply_add(sums[n], low[k][0], high[k][0], low[k][1], high[k][1], b[0], b[1]);
      }
    }
  }

  // This thread's word of row lane / 4 + 8 j, column slot lane % 4 + 4 i of a pair of columns: pairs of words.
  __device__ __forceinline__ uint32_t* pair_at(int i, int j, int column) const {
    return s_.points + (lane_ % 4 + 4 * i) * S::kPitch1 + (lane_ / 4 + 8 * j) * S::kPitch + column;
  }

  // Forward over columns. Warps take pairs of columns.
  __device__ __forceinline__ void pass_a() {
    uint32_t left[kTiles * kTiles * 4], right[kTiles * kTiles * 4];
    float2 twiddles[kTiles * kTiles * 2];
    read(left, s_.a.shifted_left);
    read(right, s_.a.right);
    read(twiddles, s_.a.twiddles);
    float2 begin = s_.begin_a[t_];
#pragma unroll 1
    for (int round = 0; round < kColumnRounds; ++round) {
      const int column = 2 * (round * kWarps + warp_);
      uint32_t in[2][2 * kTiles][kTiles];
#pragma unroll
      for (int i = 0; i < 2 * kTiles; ++i) {
#pragma unroll
        for (int j = 0; j < kTiles; ++j) {
          const uint2 pair = *reinterpret_cast<const uint2*>(pair_at(i, j, column));
          in[0][i][j] = to_half(pair.x);
          in[1][i][j] = to_half(pair.y);
        }
      }
      uint32_t results[2][2 * kTiles][kTiles];  // of both columns
      if constexpr (R == 16) {
#pragma unroll
        for (int c = 0; c < 2; ++c) {
          uint32_t middle[2][2][2];
          first_product<16>(in[c], left, twiddles, middle);
          float sums[4][4];
          second_product(middle[0], middle[1], right, sums);
          float2 turn = c ? times(begin, s_.step_a[lane_]) : begin;
          const float2 next = s_.column_step[0][column + c], below = s_.column_step[1][column + c];
#pragma unroll
          for (int n = 0; n < 4; ++n) {
            const float2 upper = times(make_float2(sums[n][0], sums[n][1]), turn);
            const float2 lower = times(make_float2(sums[n][2], sums[n][3]), times(turn, below));
            results[c][n][0] = pack_half(upper.x, upper.y);
            results[c][n][1] = pack_half(lower.x, lower.y);
            turn = times(turn, next);
          }
        }
      } else {
        uint32_t middle[2][1][1][2];
        first_product<8>(in[0], left, twiddles, middle[0]);
        first_product<8>(in[1], left, twiddles, middle[1]);
        float sums[2][4];
        second_product(middle[0][0], middle[1][0], right, sums);
#pragma unroll
        for (int c = 0; c < 2; ++c) {
          float2 turn = c ? times(begin, s_.step_a[lane_]) : begin;
          const float2 next = s_.column_step[0][column + c];
#pragma unroll
          for (int n = 0; n < 2; ++n) {
            const float2 z = times(make_float2(sums[n][2 * c], sums[n][2 * c + 1]), turn);
            results[c][n][0] = pack_half(z.x, z.y);
            turn = times(turn, next);
          }
        }
      }
#pragma unroll
      for (int i = 0; i < 2 * kTiles; ++i) {
#pragma unroll
        for (int j = 0; j < kTiles; ++j) {
          *reinterpret_cast<uint2*>(pair_at(i, j, column)) = make_uint2(results[0][i][j], results[1][i][j]);
        }
      }
      begin = times(begin, s_.steps_a[lane_]);
    }
    __syncthreads();
  }

  // Back over columns; leaves a pair of results, as bfloat16s, at the first word of each pair of columns.
  __device__ __forceinline__ void pass_a_back(float scale, float scale_too) {
    uint32_t left[kTiles * kTiles * 4], last[kTiles * kTiles * 2];
    float2 twiddles[kTiles * kTiles * 2];
    read(left, s_.a.left);
    read(last, s_.a.last);
    read(twiddles, s_.a.back_twiddles);
#pragma unroll 1
    for (int round = 0; round < kColumnRounds; ++round) {
      const int column = 2 * (round * kWarps + warp_);
      uint32_t in[2][2 * kTiles][kTiles];
#pragma unroll
      for (int i = 0; i < 2 * kTiles; ++i) {
#pragma unroll
        for (int j = 0; j < kTiles; ++j) {
          const uint2 pair = *reinterpret_cast<const uint2*>(pair_at(i, j, column));
          in[0][i][j] = pair.x;
          in[1][i][j] = pair.y;
        }
      }
      float results[2][2 * kTiles][kTiles];
      if constexpr (R == 16) {
#pragma unroll
        for (int c = 0; c < 2; ++c) {
          uint32_t middle[2][2][2];
          first_product<16>(in[c], left, twiddles, middle);
          float sums[2][4];
          second_product(middle[0], middle[1], last, sums);
#pragma unroll
          for (int i = 0; i < 4; ++i) {
#pragma unroll
            for (int j = 0; j < 2; ++j) results[c][i][j] = sums[i / 2][i % 2 + 2 * j];
          }
        }
      } else {
        uint32_t middle[2][1][1][2];
        first_product<8>(in[0], left, twiddles, middle[0]);
        first_product<8>(in[1], left, twiddles, middle[1]);
        float sums[1][4];
        second_product(middle[0][0], middle[1][0], last, sums);
#pragma unroll
        for (int c = 0; c < 2; ++c) {
#pragma unroll
          for (int i = 0; i < 2; ++i) results[c][i][0] = sums[0][i + 2 * c];
        }
      }
#pragma unroll
      for (int i = 0; i < 2 * kTiles; ++i) {
#pragma unroll
        for (int j = 0; j < kTiles; ++j) {
          const __nv_bfloat162 both =
              __floats2bfloat162_rn(results[0][i][j] * scale * scale_too, results[1][i][j] * scale * scale_too);
          *pair_at(i, j, column) = reinterpret_cast<const uint32_t&>(both);
        }
      }
    }
    __syncthreads();
  }

  // Forward over rows, then, but for filters, the product with the filter and back over rows. Warps take pairs of rows.
  template <bool kFilter>
  __device__ __forceinline__ void pass_b(float constant) {
    uint32_t left[4], right[4];
    float2 twiddles[2];
    read(left, s_.b.left);
    read(right, s_.b.right);
    read(twiddles, s_.b.twiddles);
    float2 begin = s_.begin_b[t_];
#pragma unroll 2
    for (int round = 0; round < kRowRounds; ++round) {
      const int pair = round * kWarps + warp_, row = 2 * pair;  // row k1 + R k2 lies at slot k2 of n1 and k1 of n2
      uint32_t* line = s_.points + row / R * S::kPitch1 + row % R * S::kPitch + lane_ % 4 * 8 + lane_ / 4;
      uint32_t in[2][2][1], middle[2][1][1][2];
      uint4 kept;
      if (!kFilter) kept = spectrum_[pair * 32 + lane_];
#pragma unroll
      for (int r = 0; r < 2; ++r) {
#pragma unroll
        for (int i = 0; i < 2; ++i) in[r][i][0] = line[r * S::kPitch + 32 * i];
        first_product<8>(in[r], left, twiddles, middle[r]);
      }
      float sums[2][4];
      second_product(middle[0][0], middle[1][0], right, sums);
      if constexpr (kFilter) {
        kept = make_uint4(pack_half(sums[0][0], sums[0][1]), pack_half(sums[0][2], sums[0][3]),
                          pack_half(sums[1][0], sums[1][1]), pack_half(sums[1][2], sums[1][3]));
        spectrum_[pair * 32 + lane_] = kept;
      } else {
  #pragma unroll
        for (int r = 0; r < 2; ++r) {
  #pragma unroll
          for (int i = 0; i < 2; ++i) {
            float2 f = unpack_half(word_of(kept, 2 * i + r));
            f = make_float2(fmaf(f.x, kShrink, constant), f.y * kShrink);
            const float2 z = times(make_float2(sums[i][2 * r], sums[i][2 * r + 1]), f);
            in[r][i][0] = pack_half(z.y, z.x);  // exchanged from here on
          }
          first_product<8>(in[r], left, twiddles, middle[r]);
        }
        second_product(middle[0][0], middle[1][0], right, sums);
  #pragma unroll
        for (int r = 0; r < 2; ++r) {
          const float2 turn = r ? times(begin, s_.step_b[lane_]) : begin;
          const float2 a = times(make_float2(sums[0][2 * r], sums[0][2 * r + 1]), turn);
          const float2 b = times(make_float2(sums[1][2 * r], sums[1][2 * r + 1]), times(turn, s_.row_step[row + r]));
          line[r * S::kPitch] = pack_half(a.x, a.y);
          line[r * S::kPitch + 32] = pack_half(b.x, b.y);
        }
        begin = times(begin, s_.steps_b[lane_]);
      }
    }
    __syncthreads();
  }

  S& s_;
  uint4* spectrum_;
  const int t_, lane_, warp_;
  float scale_ = 1, unscale_ = 1, filter_scale_ = 1, filter_unscale_ = 1;
};

}  // namespace fft_matrix
}  // namespace pkb
