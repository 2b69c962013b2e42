// A linear layer without bias: out = x w^T, with x (rows, depth), w (cols, depth) as layers keep it, and out (rows, cols),
// all contiguous and on this rank.
//
//   pkb::gemm::linear<T>(x, w, out, rows, cols, depth, comm.cuda_stream());
//
// 16-bit floats run on the tensor cores (pkb/gemm_sm90.h); float, and rows that are no multiples of 16 bytes, on CUDA
// cores with a transposed copy of w. Bound: arithmetic, 2 rows cols depth operations.
#pragma once

#include "pkb/gemm_simt.h"
#include "pkb/gemm_sm90.h"
#include "pkb/launch_cuda.h"

namespace pkb {
namespace gemm {

template <class Shape, class T>
void launch_linear(const T* x, const T* w, T* out, int64_t rows, int64_t cols, int64_t depth, cudaStream_t stream) {
  Product product = tiles<Shape>(rows, cols, depth);
  product.a[0] = operand_map<T>(x, rows, depth, depth, kBlockM);
  product.b[0] = operand_map<T>(w, cols, depth, depth, kBlockK);
  product.out[0] = operand_map<T>(out, rows, cols, cols, kStoreRows);
  launch<T, Shape>(product, Plain(), stream);
}

constexpr int kTurnTile = 32, kTurnThreads = 256;

template <class T>
__global__ void __launch_bounds__(kTurnThreads) turn(const T* from, T* to, int64_t rows, int64_t cols) {
  __shared__ T tile[kTurnTile][kTurnTile + 1];
  const int64_t row0 = int64_t(blockIdx.y) * kTurnTile, col0 = int64_t(blockIdx.x) * kTurnTile;
  const int x = int(threadIdx.x) % kTurnTile, y = int(threadIdx.x) / kTurnTile;
  for (int i = y; i < kTurnTile; i += kTurnThreads / kTurnTile) {
    if (row0 + i < rows && col0 + x < cols) tile[i][x] = from[(row0 + i) * cols + col0 + x];
  }
  __syncthreads();
  for (int i = y; i < kTurnTile; i += kTurnThreads / kTurnTile) {
    if (row0 + x < rows && col0 + i < cols) to[(col0 + i) * rows + row0 + x] = tile[x][i];
  }
}

// `Turned` keeps the memory of transposed weights apart from other buffers of T.
template <class T>
struct Turned {
  T element;
};

template <class T>
void linear(const T* x, const T* w, T* out, int64_t rows, int64_t cols, int64_t depth, cudaStream_t stream) {
  if constexpr (sizeof(T) == 2) {
    const uintptr_t misfit =
        reinterpret_cast<uintptr_t>(x) | reinterpret_cast<uintptr_t>(w) | reinterpret_cast<uintptr_t>(out);
    if (fits(depth, cols, 1) && misfit % 16 == 0) {
      if (is_large(rows, cols)) return launch_linear<TransposedB<Deep>>(x, w, out, rows, cols, depth, stream);
      return launch_linear<TransposedB<Small>>(x, w, out, rows, cols, depth, stream);
    }
  }
  T* turned = reinterpret_cast<T*>(kept_memory<Turned<T>>(cols * depth));
  const dim3 grid(unsigned(divide_up(depth, kTurnTile)), unsigned(divide_up(cols, kTurnTile)));
  turn<<<grid, kTurnThreads, 0, stream>>>(w, turned, cols, depth);
  PKB_CUDA_LAUNCHED();
  SimtProduct<T> product;
  product.a[0] = x;
  product.b[0] = turned;
  product.out[0] = out;
  product.rows = rows;
  product.depth = product.a_stride = depth;
  product.cols = product.b_stride = product.out_stride = cols;
  launch_simt(product, stream);
}

}  // namespace gemm
}  // namespace pkb
