// Matrix product for what tensor maps do not suit, and for float and double: C = sum over segments s of A_s B_s.
//
// As in pkb/gemm_sm90.h operands may lie in any rank's memory and C may have several destinations; all is row-major.
// A block computes 64 x 64 elements, a thread 4 x 4 of them; sums are in float, or double for double.
#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <type_traits>

#include "pkb/symm_cuda.h"

namespace pkb {
namespace gemm {

template <class T>
struct SimtProduct {
  const T* a[kMaxRanks];  // (rows, depth) of stride a_stride
  const T* b[kMaxRanks];  // (depth, cols) of stride b_stride
  T* out[kMaxRanks];      // (rows, cols) of stride out_stride
  int segments = 1, destinations = 1;
  int64_t rows, cols, depth;
  int64_t a_stride, b_stride, out_stride;
};

constexpr int kSimtTile = 64, kSimtDepth = 16, kSimtThreads = 256, kSimtEach = 4;

template <class T>
__global__ void __launch_bounds__(kSimtThreads) multiply_simt(const __grid_constant__ SimtProduct<T> product) {
  using Sum = std::conditional_t<std::is_same_v<T, double>, double, float>;
  __shared__ Sum a_tile[kSimtDepth][kSimtTile + 1], b_tile[kSimtDepth][kSimtTile];
  const int thread = int(threadIdx.x), first_row = thread / 16 * kSimtEach, first_col = thread % 16;
  const int64_t row0 = int64_t(blockIdx.x) * kSimtTile, col0 = int64_t(blockIdx.y) * kSimtTile;
  Sum sums[kSimtEach][kSimtEach] = {};
  for (int segment = 0; segment < product.segments; ++segment) {
    for (int64_t k0 = 0; k0 < product.depth; k0 += kSimtDepth) {
      for (int i = thread; i < kSimtTile * kSimtDepth; i += kSimtThreads) {
        const int64_t row = row0 + i / kSimtDepth, k = k0 + i % kSimtDepth;
        const bool inside = row < product.rows && k < product.depth;
        a_tile[i % kSimtDepth][i / kSimtDepth] = inside ? Sum(product.a[segment][row * product.a_stride + k]) : Sum(0);
      }
      for (int i = thread; i < kSimtTile * kSimtDepth; i += kSimtThreads) {
        const int64_t k = k0 + i / kSimtTile, col = col0 + i % kSimtTile;
        const bool inside = k < product.depth && col < product.cols;
        b_tile[i / kSimtTile][i % kSimtTile] = inside ? Sum(product.b[segment][k * product.b_stride + col]) : Sum(0);
      }
      __syncthreads();
#pragma unroll
      for (int k = 0; k < kSimtDepth; ++k) {
        Sum a[kSimtEach], b[kSimtEach];
#pragma unroll
        for (int i = 0; i < kSimtEach; ++i) {
          a[i] = a_tile[k][first_row + i];
          b[i] = b_tile[k][first_col + 16 * i];
        }
#pragma unroll
        for (int i = 0; i < kSimtEach; ++i) {
#pragma unroll
          for (int j = 0; j < kSimtEach; ++j) sums[i][j] += a[i] * b[j];
        }
      }
      __syncthreads();
    }
  }
  for (int to = 0; to < product.destinations; ++to) {
#pragma unroll
    for (int i = 0; i < kSimtEach; ++i) {
#pragma unroll
      for (int j = 0; j < kSimtEach; ++j) {
        const int64_t row = row0 + first_row + i, col = col0 + first_col + 16 * j;
        if (row < product.rows && col < product.cols) product.out[to][row * product.out_stride + col] = T(sums[i][j]);
      }
    }
  }
}

template <class T>
void launch_simt(const SimtProduct<T>& product, cudaStream_t stream) {
  if (product.rows <= 0 || product.cols <= 0) return;
  const dim3 grid(unsigned((product.rows + kSimtTile - 1) / kSimtTile),
                  unsigned((product.cols + kSimtTile - 1) / kSimtTile));
  multiply_simt<T><<<grid, kSimtThreads, 0, stream>>>(product);
  PKB_CUDA_LAUNCHED();
}

// Where operands or results lie on peers: all ranks have begun before, and have ended afterwards.
template <class T>
void launch_simt(const SimtProduct<T>& product, const Comm& comm) {
  if (comm.world_size > 1) comm.barrier();
  launch_simt(product, comm.cuda_stream());
  if (comm.world_size > 1) comm.barrier();
}

}  // namespace gemm
}  // namespace pkb
