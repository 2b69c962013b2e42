// How many bits strings of bits have in common, for all pairs of a tile, by binary matrix products (and, then popcount)
// on tensor cores: intersections of sets or masks, and so unions, distances and similarities. Needs sm_80.
#pragma once

#include <cuda_runtime.h>

#include <cstdint>

#include "pkb/teams_cuda.h"

namespace pkb {
namespace bits {

constexpr int kTile = 32, kTilePitch = kTile + 8;  // strings whose common bits are counted with those of as many others
constexpr int kVector = 4;                         // words that a lane reads at once
constexpr int kStepVectors = 4;                    // vectors of a string that a warp takes at once
constexpr int kStepWords = kVector * kStepVectors;  // strings must be multiples of so many words
constexpr int kRowTiles = kTile / 16, kColumnTiles = kTile / 8;

// What is counted of a tile, in shared memory.
struct Counts {
  int common[kTile][kTilePitch];  // bits that row string a and column string b have in common
  int of_rows[kTile], of_columns[kTile];
};

// d += a and b, counted over 256 bits: a has 16 rows, b 8 columns.
__device__ __forceinline__ void add_common(int (&d)[4], uint32_t a0, uint32_t a1, uint32_t a2, uint32_t a3, uint32_t b0,
                                           uint32_t b1) {
  asm volatile(
      "mma.sync.aligned.m16n8k256.row.col.s32.b1.b1.s32.and.popc {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, "
      "{%0, %1, %2, %3};"
      : "+r"(d[0]), "+r"(d[1]), "+r"(d[2]), "+r"(d[3])
      : "r"(a0), "r"(a1), "r"(a2), "r"(a3), "r"(b0), "r"(b1));
}

// What one warp counts. Bits of single strings are what they have in common with ones.
struct Counter {
  int common[kRowTiles][kColumnTiles][4] = {};
  int of_rows[kRowTiles][4] = {};
  int of_columns[kColumnTiles][4] = {};

  // Adds 256 bits; rows[h] has two words of row 8 h + lane / 4, columns[n] of column 8 n + lane / 4.
  __device__ void add(const uint2 (&rows)[2 * kRowTiles], const uint2 (&columns)[kColumnTiles]) {
    constexpr uint32_t kOnes = ~0u;
#pragma unroll
    for (int m = 0; m < kRowTiles; ++m) {
      const uint2 a = rows[2 * m], b = rows[2 * m + 1];
#pragma unroll
      for (int n = 0; n < kColumnTiles; ++n) add_common(common[m][n], a.x, b.x, a.y, b.y, columns[n].x, columns[n].y);
      add_common(of_rows[m], a.x, b.x, a.y, b.y, kOnes, kOnes);
    }
#pragma unroll
    for (int n = 0; n < kColumnTiles; ++n) {
      add_common(of_columns[n], kOnes, kOnes, kOnes, kOnes, columns[n].x, columns[n].y);
    }
  }

  // A lane holds rows lane / 4 and that + 8 of each product, columns 2 (lane % 4) and the next.
  __device__ void add_to(Counts& sum) const {
    const int row = lane_id() / 4, column = lane_id() % 4 * 2;
#pragma unroll
    for (int m = 0; m < kRowTiles; ++m) {
#pragma unroll
      for (int n = 0; n < kColumnTiles; ++n) {
#pragma unroll
        for (int i = 0; i < 4; ++i) {
          atomicAdd(&sum.common[m * 16 + i / 2 * 8 + row][n * 8 + column + i % 2], common[m][n][i]);
        }
      }
      if (column == 0) {
        atomicAdd(&sum.of_rows[m * 16 + row], of_rows[m][0]);
        atomicAdd(&sum.of_rows[m * 16 + 8 + row], of_rows[m][2]);
      }
    }
    if (row == 0) {
#pragma unroll
      for (int n = 0; n < kColumnTiles; ++n) {
        atomicAdd(&sum.of_columns[n * 8 + column], of_columns[n][0]);
        atomicAdd(&sum.of_columns[n * 8 + column + 1], of_columns[n][1]);
      }
    }
  }
};

// Adds, for strings row .. row + kTile - 1 and column .. column + kTile - 1, the bits they have in common to `counts`;
// called by all threads of a block of kWarps warps, which share the bits. Bits of strings lie one after another, of
// `words` words each; strings that do not exist are counted as the last one. Bits may have been written by other ranks
// during this kernel: they are read past the multiprocessor's own cache.
template <int kWarps>
__device__ __forceinline__ void count_common(const uint32_t* strings, int words, int number, int row, int column,
                                             Counts& counts) {
  const auto* bits = reinterpret_cast<const uint4*>(strings);
  const int vectors = words / kVector;  // of a string
  const int own_vector = lane_id() % 4;
  int row_begins[2 * kRowTiles], column_begins[kColumnTiles];
#pragma unroll
  for (int h = 0; h < 2 * kRowTiles; ++h) {
    row_begins[h] = min(row + 8 * h + lane_id() / 4, number - 1) * vectors + own_vector;
  }
#pragma unroll
  for (int n = 0; n < kColumnTiles; ++n) {
    column_begins[n] = min(column + 8 * n + lane_id() / 4, number - 1) * vectors + own_vector;
  }

  Counter counter;
#pragma unroll 1
  for (int at = warp_id() * kStepVectors; at < vectors; at += kWarps * kStepVectors) {
    uint4 rows[2 * kRowTiles], columns[kColumnTiles];
#pragma unroll
    for (int h = 0; h < 2 * kRowTiles; ++h) rows[h] = __ldcg(bits + row_begins[h] + at);
#pragma unroll
    for (int n = 0; n < kColumnTiles; ++n) columns[n] = __ldcg(bits + column_begins[n] + at);
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      uint2 a[2 * kRowTiles], b[kColumnTiles];
#pragma unroll
      for (int h = 0; h < 2 * kRowTiles; ++h) a[h] = half ? uint2{rows[h].z, rows[h].w} : uint2{rows[h].x, rows[h].y};
#pragma unroll
      for (int n = 0; n < kColumnTiles; ++n) {
        b[n] = half ? uint2{columns[n].z, columns[n].w} : uint2{columns[n].x, columns[n].y};
      }
      counter.add(a, b);
    }
  }
  counter.add_to(counts);
}

}  // namespace bits
}  // namespace pkb
