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
#include "pkb/transpose_cuda.h"

namespace pkb {
namespace gemm {

// out = a b, with a (rows, depth) and b (depth, cols), all contiguous, for launch_simt().
template <class T>
SimtProduct<T> whole_product(const T* a, const T* b, T* out, int64_t rows, int64_t cols, int64_t depth) {
  SimtProduct<T> product;
  product.a[0] = a;
  product.b[0] = b;
  product.out[0] = out;
  product.rows = rows;
  product.depth = product.a_stride = depth;
  product.cols = product.b_stride = product.out_stride = cols;
  return product;
}

template <class Shape, class T>
void launch_linear(const T* x, const T* w, T* out, int64_t rows, int64_t cols, int64_t depth, cudaStream_t stream,
                   T* also) {
  Product product = tiles<Shape>(rows, cols, depth);
  product.a[0] = operand_map<T>(x, rows, depth, depth, kBlockM);
  product.b[0] = operand_map<T>(w, cols, depth, depth, kBlockK);
  product.out[0] = operand_map<T>(out, rows, cols, cols, kStoreRows);
  if (also) product.out[product.destinations++] = operand_map<T>(also, rows, cols, cols, kStoreRows);
  launch<T, Shape>(product, Plain(), stream);
}

// `Turned` keeps the memory of transposed weights apart from other buffers of T.
template <class T>
struct Turned {
  T element;
};

// `also`: a second place for the results, which may be a peer's; null: none.
template <class T>
void linear(const T* x, const T* w, T* out, int64_t rows, int64_t cols, int64_t depth, cudaStream_t stream,
            T* also = nullptr) {
  if constexpr (sizeof(T) == 2) {
    const uintptr_t misfit =
        reinterpret_cast<uintptr_t>(x) | reinterpret_cast<uintptr_t>(w) | reinterpret_cast<uintptr_t>(out);
    if (fits(depth, cols, 1) && misfit % 16 == 0) {
      if (is_large(rows, cols)) return launch_linear<TransposedB<Deep>>(x, w, out, rows, cols, depth, stream, also);
      return launch_linear<TransposedB<Small>>(x, w, out, rows, cols, depth, stream, also);
    }
  }
  T* turned = reinterpret_cast<T*>(kept_memory<Turned<T>>(cols * depth));
  transpose(w, turned, cols, depth, stream);
  SimtProduct<T> product = whole_product<T>(x, turned, out, rows, cols, depth);
  if (also) product.out[product.destinations++] = also;
  launch_simt(product, stream);
}

}  // namespace gemm
}  // namespace pkb
