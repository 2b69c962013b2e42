// expect: wrong_shape_or_dtype values_out; int64; float32
// problem: KJTAllToAll
// Outputs whose length depends on the data are returned; these have the wrong dtype.
#include <cstdlib>

#include "pkb/symm.h"

using tvm::ffi::Array;
using tvm::ffi::Optional;
using tvm::ffi::Tensor;
using tvm::ffi::TensorView;

struct Memory {
  void AllocData(DLTensor* tensor) { tensor->data = std::calloc(size_t(tensor->shape[0]) + 1, 4); }
  void FreeData(DLTensor* tensor) { std::free(tensor->data); }
};

Array<Tensor> solution(TensorView lengths, TensorView values, Array<int64_t> key_splits, int64_t batch_size, int64_t pg,
                       Optional<TensorView> weights, Optional<Array<int64_t>> stride_per_key, int64_t stagger,
                       Optional<TensorView> stride, Optional<TensorView> stride_per_rank,
                       Optional<TensorView> stride_per_key_per_rank, pkb::Comm comm) {
  Array<Tensor> returned;
  for (int i = 0; i < (weights.has_value() ? 3 : 2); ++i) {
    returned.push_back(Tensor::FromNDAlloc(Memory(), {lengths.size(0)}, {kDLFloat, 32, 1}, {kDLCPU, 0}));
  }
  return returned;
}

TVM_FFI_DLL_EXPORT_TYPED_FUNC(solution, solution);
