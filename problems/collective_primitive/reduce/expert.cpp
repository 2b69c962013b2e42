// Reduce: the ranks share the adding and write their sums to the root; the others copy their own tensor as well.
//
// Adding moves W + 1 tensors through memory and each copy two, so the root takes the larger part of the adding, and
// every rank moves (3 W - 1) / W tensors. All ranks meet before the adding, after their own copies, and at the end:
// every one reads all others' tensors. Sums are float32 (float64 for float64) in rank order, rounded once. Bound:
// memory, that much a rank.
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

struct Part {
  int64_t begin, end;
};

// The elements that this rank adds up: n (W - 1) / (W (W + 1)) on each rank but the root, which takes the rest.
Part adding_part(int64_t n, int dst, const pkb::Comm& comm) {
  const int64_t W = comm.world_size;
  const int64_t helping = n * (W - 1) / (W * (W + 1)) / kLine * kLine;
  if (comm.rank == dst) return {(W - 1) * helping, n};
  const int place = comm.rank < dst ? comm.rank : comm.rank - 1;
  return {place * helping, (place + 1) * helping};
}

template <class T>
void reduce(const TensorView& x, int dst, const TensorView& out, const pkb::Comm& comm) {
  const Part part = adding_part(x.numel(), dst, comm);
  T sum[kChunk];
  if (comm.rank != dst) comm.put(out.data_ptr(), x.data_ptr(), x.numel() * sizeof(T), comm.rank);
  comm.barrier();
  for (int64_t begin = part.begin; begin < part.end; begin += kChunk) {
    const int64_t count = std::min(kChunk, part.end - begin);
    add_up(x, begin, count, sum, comm);
    comm.put(static_cast<T*>(out.data_ptr()) + begin, sum, count * sizeof(T), dst);
  }
  comm.barrier();
}

}  // namespace

void solution(TensorView tensor, int64_t dst, TensorView out, pkb::Comm comm) {
  if (!tensor.IsContiguous()) {
    TVM_FFI_THROW(ValueError) << "expected a contiguous tensor, got strides " << tensor.strides();
  }
  if (dst < 0 || dst >= comm.world_size) {
    TVM_FFI_THROW(ValueError) << "expected dst in 0.." << comm.world_size - 1 << ", got " << dst;
  }
  if (out.numel() != tensor.numel() || out.dtype() != tensor.dtype()) {
    TVM_FFI_THROW(ValueError) << "expected out like tensor, " << tensor.shape() << " " << tensor.dtype() << ", got "
                              << out.shape() << " " << out.dtype();
  }
  const DLDataType dtype = tensor.dtype();
  if (dtype == DLDataType{kDLBfloat, 16, 1}) return reduce<pkb::bf16>(tensor, int(dst), out, comm);
  if (dtype == DLDataType{kDLFloat, 16, 1}) return reduce<pkb::fp16>(tensor, int(dst), out, comm);
  if (dtype == DLDataType{kDLFloat, 32, 1}) return reduce<float>(tensor, int(dst), out, comm);
  if (dtype == DLDataType{kDLFloat, 64, 1}) return reduce<double>(tensor, int(dst), out, comm);
  TVM_FFI_THROW(TypeError) << "expected bfloat16, float16, float32 or float64, got " << dtype;
}

TVM_FFI_DLL_EXPORT_TYPED_FUNC(solution, solution);
