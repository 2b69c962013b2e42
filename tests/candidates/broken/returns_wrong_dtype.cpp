// expect: wrong_shape_or_dtype sorted_shard; float32
// problem: SampleSort
// An output whose length depends on the data is returned; this one has the wrong dtype.
#include <dlpack/dlpack.h>

#include "pkb/symm.h"

struct Memory {
  void AllocData(DLTensor* tensor) { tensor->data = std::calloc(size_t(tensor->shape[0]) + 1, 4); }
  void FreeData(DLTensor* tensor) { std::free(tensor->data); }
};

tvm::ffi::Tensor solution(tvm::ffi::TensorView local_shard, int64_t group, pkb::Comm comm) {
  return tvm::ffi::Tensor::FromNDAlloc(Memory(), tvm::ffi::Shape({local_shard.size(0)}), DLDataType{kDLFloat, 32, 1},
                                       DLDevice{kDLCPU, 0});
}

TVM_FFI_DLL_EXPORT_TYPED_FUNC(solution, solution);
