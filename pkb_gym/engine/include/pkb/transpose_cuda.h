// Transposes a tile of a matrix through shared memory, 16 bytes an access on both sides, while making its elements; or a
// whole matrix.
#pragma once

#include <cuda_runtime.h>

#include <cstdint>

#include "pkb/symm_cuda.h"
#include "pkb/vectors_cuda.h"

namespace pkb {

constexpr int kTransposeTile = 64;  // rows and columns

// Place of an element in shared memory, column by column: vectors are swizzled so that neither side meets bank
// conflicts.
template <class T>
__device__ __forceinline__ T* tile_place(T* tile, int row, int col) {
  constexpr int kPack = kPerVector<T>;
  return tile + col * kTransposeTile + ((row / kPack) ^ (col / kPack)) * kPack + row % kPack;
}

// Writes element (row, col) of a tile to out[col * stride + row], for rows < `rows` and cols < `cols`, at most
// kTransposeTile of each; called by all kThreads threads of a block. `source` gives the elements:
//
//   struct Source {
//     struct Fetched { ... };
//     __device__ Fetched fetch(int row, int col) const;         // loads what kPerVector<T> elements are made of
//     __device__ Pack<T> make(const Fetched& fetched) const;    // makes them
//     __device__ T make_one(int row, int col) const;
//   };
//
// `whole_rows` says that fetch() suits, as `cols` is a multiple of kPerVector<T>; `whole_cols` that out, stride and
// `rows` are. `tile`, in shared memory, has kTransposeTile squared elements; no thread may be using it.
template <int kThreads, class T, class Source>
__device__ __forceinline__ void transpose_tile(T* tile, int rows, int cols, const Source& source, bool whole_rows,
                                               T* out, int64_t stride, bool whole_cols) {
  constexpr int kPack = kPerVector<T>, kLine = kTransposeTile / kPack, kRounds = kTransposeTile * kLine / kThreads;
  const int t = int(threadIdx.x);
  if (whole_rows) {
    typename Source::Fetched fetched[kRounds];
#pragma unroll
    for (int round = 0; round < kRounds; ++round) {
      const int index = round * kThreads + t, row = index / kLine, col = index % kLine * kPack;
      fetched[round] = {};
      if (row < rows && col < cols) fetched[round] = source.fetch(row, col);
    }
#pragma unroll
    for (int round = 0; round < kRounds; ++round) {
      const int index = round * kThreads + t, row = index / kLine, col = index % kLine * kPack;
      const Pack<T> made = source.make(fetched[round]);
#pragma unroll
      for (int e = 0; e < kPack; ++e) *tile_place(tile, row, col + e) = made.values[e];
    }
  } else {
#pragma unroll 1
    for (int i = t; i < rows * kTransposeTile; i += kThreads) {
      const int row = i / kTransposeTile, col = i % kTransposeTile;
      if (col < cols) *tile_place(tile, row, col) = source.make_one(row, col);
    }
  }
  __syncthreads();
  if (whole_cols) {
#pragma unroll
    for (int round = 0; round < kRounds; ++round) {
      const int index = round * kThreads + t, col = index / kLine, row = index % kLine * kPack;
      if (col >= cols || row >= rows) continue;
      store_vector(out + int64_t(col) * stride + row, load_vector(tile_place(tile, row, col)));
    }
  } else {
#pragma unroll 1
    for (int i = t; i < cols * kTransposeTile; i += kThreads) {
      const int col = i / kTransposeTile, row = i % kTransposeTile;
      if (row < rows) out[int64_t(col) * stride + row] = *tile_place(tile, row, col);
    }
  }
  __syncthreads();
}

template <class T>
struct MatrixSource {
  const T* matrix;
  int64_t stride;
  struct Fetched {
    uint4 vector;
  };
  __device__ Fetched fetch(int row, int col) const { return {load_vector(matrix + row * stride + col)}; }
  __device__ Pack<T> make(const Fetched& fetched) const { return as_pack<T>(fetched.vector); }
  __device__ T make_one(int row, int col) const { return matrix[row * stride + col]; }
};

template <int kThreads, class T>
__global__ void __launch_bounds__(kThreads) transpose_matrix(const T* matrix, T* out, int64_t rows, int64_t cols) {
  __shared__ __align__(16) T tile[kTransposeTile * kTransposeTile];
  const int64_t row = int64_t(blockIdx.x) * kTransposeTile, col = int64_t(blockIdx.y) * kTransposeTile;
  const auto left = [](int64_t end, int64_t from) { return int(min(end - from, int64_t(kTransposeTile))); };
  const bool is_aligned = (reinterpret_cast<uintptr_t>(matrix) | reinterpret_cast<uintptr_t>(out)) % 16 == 0;
  const MatrixSource<T> source{matrix + row * cols + col, cols};
  transpose_tile<kThreads>(tile, left(rows, row), left(cols, col), source, is_aligned && cols % kPerVector<T> == 0,
                           out + col * rows + row, rows, is_aligned && rows % kPerVector<T> == 0);
}

// Enqueues out = matrix^T, with matrix (rows, cols), both contiguous and of at least one element.
template <class T>
void transpose(const T* matrix, T* out, int64_t rows, int64_t cols, cudaStream_t stream) {
  constexpr int kThreads = 256;
  const dim3 grid(unsigned((rows + kTransposeTile - 1) / kTransposeTile),
                  unsigned((cols + kTransposeTile - 1) / kTransposeTile));
  transpose_matrix<kThreads><<<grid, kThreads, 0, stream>>>(matrix, out, rows, cols);
  PKB_CUDA_LAUNCHED();
}

}  // namespace pkb
