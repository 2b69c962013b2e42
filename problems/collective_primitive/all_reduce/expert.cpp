// AllReduce: every rank adds up one part of all ranks' tensors and writes the sum to all of them.
//
// (W - 1) / W of a tensor crosses the link into each rank to be added, and as much comes back as sums, which is what
// reduce-scatter and all-gather need together, without the stop between them. All ranks meet before, since every one
// reads and writes at all others, and after it, since none may end before its own tensor is read and its sums are
// there. Sums are float32 (float64 for float64) in rank order, rounded once. Bound: memory, one tensor read and one
// written a rank.
#include <algorithm>
#include <type_traits>

#include "pkb/bf16.h"
#include "pkb/fp16.h"
#include "pkb/symm.h"

using tvm::ffi::TensorView;

namespace {

constexpr int64_t kChunk = 1024;  // elements whose sums stay in the first-level cache
constexpr int64_t kLine = 64;     // parts begin at cache lines, so that no two ranks write one line

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

// First of the n elements that rank r adds up; rank W stands for the end.
int64_t part_begin(int64_t n, int r, int W) { return r == W ? n : n * r / W / kLine * kLine; }

template <class T>
void all_reduce(const TensorView& x, const TensorView& out, const pkb::Comm& comm) {
  const int W = comm.world_size;
  const int64_t end = part_begin(x.numel(), comm.rank + 1, W);
  T sum[kChunk];
  comm.barrier();
  for (int64_t begin = part_begin(x.numel(), comm.rank, W); begin < end; begin += kChunk) {
    const int64_t count = std::min(kChunk, end - begin);
    add_up(x, begin, count, sum, comm);
    for (int r = 0; r < W; ++r) comm.put(static_cast<T*>(out.data_ptr()) + begin, sum, count * sizeof(T), r);
  }
  comm.barrier();
}

}  // namespace

void solution(TensorView tensor, TensorView out, pkb::Comm comm) {
  if (!tensor.IsContiguous()) {
    TVM_FFI_THROW(ValueError) << "expected a contiguous tensor, got strides " << tensor.strides();
  }
  if (out.numel() != tensor.numel() || out.dtype() != tensor.dtype()) {
    TVM_FFI_THROW(ValueError) << "expected out like tensor, " << tensor.shape() << " " << tensor.dtype() << ", got "
                              << out.shape() << " " << out.dtype();
  }
  const DLDataType dtype = tensor.dtype();
  if (dtype == DLDataType{kDLBfloat, 16, 1}) return all_reduce<pkb::bf16>(tensor, out, comm);
  if (dtype == DLDataType{kDLFloat, 16, 1}) return all_reduce<pkb::fp16>(tensor, out, comm);
  if (dtype == DLDataType{kDLFloat, 32, 1}) return all_reduce<float>(tensor, out, comm);
  if (dtype == DLDataType{kDLFloat, 64, 1}) return all_reduce<double>(tensor, out, comm);
  TVM_FFI_THROW(TypeError) << "expected bfloat16, float16, float32 or float64, got " << dtype;
}

TVM_FFI_DLL_EXPORT_TYPED_FUNC(solution, solution);
