// Products whose sums are changed in registers before they are stored, such as by a bias or an activation: hooks for
// pkb/gemm_sm90.h around other hooks; and where the sums of a thread lie, for hooks that store them themselves.
//
//   struct AddBias {
//     const float* bias;
//     __device__ float operator()(int64_t row, int64_t col, float sum) const { return sum + bias[col]; }
//   };
//   const gemm::Changed<gemm::Plain, AddBias> hooks(gemm::Plain(), AddBias{bias}, rows, cols);
#pragma once

#include "pkb/gemm_sm90.h"

namespace pkb {
namespace gemm {

// Calls visit(i, row, col) for all pairs of sums of this thread: sums[i] and sums[i + 1] are those of C at (row, col) and
// (row, col + 1), which may lie beyond it.
template <class Shape, class Visit>
__device__ __forceinline__ void visit_sums(const Tile& tile, const Block& block, int consumer, const Visit& visit) {
  const int thread = threadIdx.x % 128, lane = thread % 32;
  const int64_t row = tile.out_row + block.in_cluster * kBlockM + consumer * kStoreRows + thread / 32 * 16 + lane / 4;
#pragma unroll
  for (int i = 0; i < Shape::kSums; i += 2) visit(i, row + i / 2 % 2 * 8, int64_t(tile.col) + i / 4 * 8 + lane % 4 * 2);
}

// Stores change(row, col, sum) wherever `Hooks` let a sum be stored; rows and columns are those of C.
template <class Hooks, class Change>
struct Changed : Hooks {
  Change change;
  int64_t rows, cols;
  Changed(const Hooks& hooks, const Change& change, int64_t rows, int64_t cols)
      : Hooks(hooks), change(change), rows(rows), cols(cols) {}

  template <class T, class Shape>
  __device__ __forceinline__ bool finish(const Tile& tile, float (&sums)[Shape::kSums], const Block& block, int consumer,
                                         uint32_t staging) const {
    if (!Hooks::template finish<T, Shape>(tile, sums, block, consumer, staging)) return false;
    visit_sums<Shape>(tile, block, consumer, [&](int i, int64_t row, int64_t col) {
      if (row < rows && col < cols) sums[i] = change(row, col, sums[i]);
      if (row < rows && col + 1 < cols) sums[i + 1] = change(row, col + 1, sums[i + 1]);
    });
    return true;
  }
};

}  // namespace gemm
}  // namespace pkb
