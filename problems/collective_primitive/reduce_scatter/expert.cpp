// ReduceScatter: every rank adds up its own row block of all ranks' tensors, read from where they lie.
//
// W - 1 blocks cross the link into each rank, each once, and nothing is staged. All ranks meet before and after, since
// every one reads all others' tensors. Sums are float32 (float64 for float64) in rank order, rounded once. Bound:
// memory, W blocks read and one written a rank.
#include <algorithm>
#include <type_traits>

#include "pkb/bf16.h"
#include "pkb/fp16.h"
#include "pkb/symm.h"

using tvm::ffi::TensorView;

namespace {

constexpr int64_t kChunk = 1024;  // elements whose sums stay in the first-level cache

template <class T>
using Accumulator = std::conditional_t<std::is_same_v<T, double>, double, float>;

// sum[i] = x_0[begin + i] + ... + x_(W-1)[begin + i] for i < count <= kChunk.
template <class T>
void add_up(const TensorView& x, int64_t begin, int64_t count, T* sum, const pkb::Comm& comm) {
  Accumulator<T> sums[kChunk];
  for (int r = 0; r < comm.world_size; ++r) {
    const T* term = comm.peer<T>(x, r) + begin;
    if (r == 0) {
      for (int64_t i = 0; i < count; ++i) sums[i] = term[i];
    } else {
      for (int64_t i = 0; i < count; ++i) sums[i] += term[i];
    }
  }
  for (int64_t i = 0; i < count; ++i) sum[i] = T(sums[i]);
}

template <class T>
void reduce_scatter(const TensorView& x, const TensorView& out, const pkb::Comm& comm) {
  const int64_t block = out.numel();
  T* result = static_cast<T*>(out.data_ptr());
  comm.barrier();
  for (int64_t begin = 0; begin < block; begin += kChunk) {
    add_up(x, comm.rank * block + begin, std::min(kChunk, block - begin), result + begin, comm);
  }
  comm.barrier();
}

}  // namespace

void solution(TensorView tensor, TensorView out, pkb::Comm comm) {
  if (!tensor.IsContiguous()) {
    TVM_FFI_THROW(ValueError) << "expected a contiguous tensor, got strides " << tensor.strides();
  }
  if (tensor.numel() != comm.world_size * out.numel() || out.dtype() != tensor.dtype()) {
    TVM_FFI_THROW(ValueError) << "expected out to be 1 / " << comm.world_size << " of tensor, " << tensor.shape()
                              << " " << tensor.dtype() << ", got " << out.shape() << " " << out.dtype();
  }
  const DLDataType dtype = tensor.dtype();
  if (dtype == DLDataType{kDLBfloat, 16, 1}) return reduce_scatter<pkb::bf16>(tensor, out, comm);
  if (dtype == DLDataType{kDLFloat, 16, 1}) return reduce_scatter<pkb::fp16>(tensor, out, comm);
  if (dtype == DLDataType{kDLFloat, 32, 1}) return reduce_scatter<float>(tensor, out, comm);
  if (dtype == DLDataType{kDLFloat, 64, 1}) return reduce_scatter<double>(tensor, out, comm);
  TVM_FFI_THROW(TypeError) << "expected bfloat16, float16, float32 or float64, got " << dtype;
}

TVM_FFI_DLL_EXPORT_TYPED_FUNC(solution, solution);
