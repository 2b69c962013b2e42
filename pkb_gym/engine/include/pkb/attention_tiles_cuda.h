// What attention works on, for pkb/attention_cuda.h and pkb/attention_backward_cuda.h: matrices whose rows are positions,
// and tiles of queries, each with the keys that it attends to.
//
// A head is a run of columns of a matrix, or a matrix of its own: any layout suits in which the rows of a head lie at one
// distance from each other. Causal masks, grouped heads and ranges of keys are all in the tiles, which a hook makes.
#pragma once

#include <cstdint>
#include <type_traits>

#include "pkb/symm.h"

namespace pkb {
namespace attention {

constexpr int kTileRows = 128;        // of queries; what one block computes at a time
constexpr int kMaxHead = 256;         // elements of a head
constexpr int kNoMask = 1 << 30;

// Row-major, with rows `stride` elements apart.
template <class T>
struct Matrix {
  const T* data = nullptr;
  int64_t rows = 0, cols = 0, stride = 0;

  bool is_aligned() const { return reinterpret_cast<uintptr_t>(data) % 16 == 0 && stride * sizeof(T) % 16 == 0; }
};

// Some queries of one head, and its keys; rows and columns of the matrices.
struct Tile {
  int q_row, q_col;    // the first query
  int rows;            // queries, at most kTileRows; none is allowed
  int kv_row, kv_col;  // the first key and value
  int keys;
  int diagonal;        // query i of the tile sees keys 0 .. i + diagonal; kNoMask: all of them
  int index;           // for hooks

  // Keys that any of the queries sees.
  __device__ __forceinline__ int visible() const {
    const int64_t end = int64_t(diagonal) + rows;
    return rows <= 0 ? 0 : int(end < keys ? (end < 0 ? 0 : end) : keys);
  }
  // Keys that query i sees.
  __device__ __forceinline__ int visible_to(int i) const {
    const int end = diagonal + i + 1;
    return end < keys ? end : keys;
  }
};

// The base of hooks. A problem's hooks say what its tiles are and where results go:
//
//   struct Mine : pkb::attention::Plain<T> {
//     __device__ Tile tile(int index) const;               // 0 .. tiles - 1, the longest first
//     __device__ T* out_row(const Tile&, int i) const;     // where the kHead elements of query i belong, on any rank
//   };
template <class Out_>
struct Plain {
  using Out = Out_;                        // of results: the element type, or float for parts that are merged later
  static constexpr bool kResumes = false;  // begin with what came of other keys, as resume_row() and resume_lse() say

  // Called by all threads, first of all; the end of the kernel on a rank is theirs too.
  __device__ __forceinline__ void enter() const {}
  __device__ __forceinline__ void leave() const {}
  // Called by whole warps before they read a tile's operands.
  __device__ __forceinline__ void await(const Tile&) const {}
  // Where the logarithm of the sum of exponentials of query i's scores belongs; null: it is not wanted.
  __device__ __forceinline__ float* lse(const Tile&, int) const { return nullptr; }
  // Results over other keys, and their logarithm of the sum: results are those over both.
  __device__ __forceinline__ const float* resume_row(const Tile&, int) const { return nullptr; }
  __device__ __forceinline__ float resume_lse(const Tile&, int) const { return 0.0f; }
};

template <class T>
struct Forward {
  Matrix<T> q, k, v;
  int head;     // elements
  float scale;  // of scores
  int tiles;
};

// ---- backward ----

// Some keys or queries of one head, which stay, and the queries or keys that they meet; rows and columns of the matrices.
struct BackwardTile {
  int row, col, rows;              // what stays, at most kTileRows
  int other_row, other_col, others;
  int diagonal;                    // query i sees keys 0 .. i + diagonal, counted from where the tile and the others begin
  int64_t stats;                   // place of the first query's statistics
  int index;                       // for hooks

  template <bool kKeysStay>
  __device__ __forceinline__ bool sees(int own, int other) const {
    return kKeysStay ? own - other <= diagonal : other - own <= diagonal;
  }
  // The others that any of the rows meets: from a multiple of `step` on.
  template <bool kKeysStay>
  __device__ __forceinline__ int begin(int step) const {
    return kKeysStay && diagonal < 0 ? -diagonal / step * step : 0;
  }
  template <bool kKeysStay>
  __device__ __forceinline__ int end() const {
    const int64_t visible = int64_t(diagonal) + rows;
    return kKeysStay || visible >= others ? others : visible < 0 ? 0 : int(visible);
  }
};

template <class T>
struct Backward {
  Matrix<T> q, k, v, dout;
  const float* lse;    // of queries: logarithm of the sum of exponentials of scaled scores
  const float* delta;  // of queries: sum of out * dout over the elements
  int head;
  float scale;
  int tiles;
};

}  // namespace attention
}  // namespace pkb
