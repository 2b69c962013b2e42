// AllReduce: every rank adds up one part of all ranks' tensors and writes the sum to all of them; small tensors are
// added up whole by every rank for itself.
//
// (W - 1) / W of a tensor crosses the link into each rank to be added, and as much comes back as sums: reduce-scatter
// and all-gather in one kernel, without the stop between them, since inputs are ready when the call starts and each
// element of an output is written by one rank. No rank ever waits for another. Adding up whole tensors takes in W - 1
// of them, but writes nothing over the link, which saves its latency. Sums are float32 (float64 for float64) in rank
// order, rounded once, and so the same bits on every rank. Bound: link, 2 (W - 1) / W tensors in and out a rank.
#include "pkb/symm.h"
#include "pkb/transfer_cuda.h"

using tvm::ffi::TensorView;

namespace {

// Adds up elements begin .. begin + count of all ranks' x, for the first `results` ranks from the own one on.
template <class T>
__global__ void __launch_bounds__(pkb::kTransferThreads)
all_reduce(const T* x, T* out, uint64_t begin, uint64_t count, int results, const __grid_constant__ pkb::Device comm) {
  const auto term = [&](int r) { return comm.peer(x, r) + begin; };
  const auto result = [&](int k) {
    const int r = comm.rank + k;
    return comm.peer(out, r < comm.world_size ? r : r - comm.world_size) + begin;
  };
  pkb::add_up<T>(count, comm.world_size, term, results, result, blockIdx.x, gridDim.x);
}

// First of the n elements that rank r adds up; rank W stands for the end. Parts begin at lines.
template <class T>
uint64_t part_begin(uint64_t n, int r, int W) {
  constexpr uint64_t kLine = pkb::kLineBytes / sizeof(T);
  return r == W ? n : n * r / W / kLine * kLine;
}

template <class T>
void launch(const TensorView& tensor, const TensorView& out, const pkb::Comm& comm) {
  const int W = comm.world_size;
  const uint64_t n = tensor.numel();
  // Whole tensors take in (W - 1) n, parts and sums together 2 (W - 1) / W n, but by one more way across the link.
  const bool whole = n * sizeof(T) * (W - 1) * (W - 2) / W <= pkb::kCrossingBytes;
  const uint64_t begin = whole ? 0 : part_begin<T>(n, comm.rank, W);
  const uint64_t count = (whole ? n : part_begin<T>(n, comm.rank + 1, W)) - begin;
  if (count == 0) return;
  const unsigned blocks = pkb::blocks_for(count * sizeof(T), pkb::kSumTile);
  all_reduce<T><<<blocks, pkb::kTransferThreads, 0, comm.cuda_stream()>>>(
      static_cast<const T*>(tensor.data_ptr()), static_cast<T*>(out.data_ptr()), begin, count, whole ? 1 : W,
      comm.device());
  PKB_CUDA_LAUNCHED();
}

}  // namespace

void solution(TensorView tensor, TensorView out, pkb::Comm comm) {
  if (pkb::contiguous_bytes(tensor) != pkb::contiguous_bytes(out) || out.dtype() != tensor.dtype()) {
    TVM_FFI_THROW(ValueError) << "expected out like tensor, " << tensor.shape() << " " << tensor.dtype() << ", got "
                              << out.shape() << " " << out.dtype();
  }
  pkb::with_float_type(tensor.dtype(), [&](auto zero) { launch<decltype(zero)>(tensor, out, comm); });
}

TVM_FFI_DLL_EXPORT_TYPED_FUNC(solution, solution);
