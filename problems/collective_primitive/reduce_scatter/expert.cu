// ReduceScatter: every rank adds up its own row block of all ranks' tensors, read from where they lie.
//
// W - 1 blocks cross the link into each rank, each once, and nothing is staged. Inputs are ready when the call starts
// and each output is written by its own rank alone, so no rank ever waits for another. Sums are float32 (float64 for
// float64) in rank order, rounded once. Bound: link, W - 1 blocks in and out a rank.
#include "pkb/symm.h"
#include "pkb/transfer_cuda.h"

using tvm::ffi::TensorView;

namespace {

template <class T>
__global__ void __launch_bounds__(pkb::kTransferThreads)
reduce_scatter(const T* x, T* out, uint64_t block, const __grid_constant__ pkb::Device comm) {
  const T* mine = x + comm.rank * block;
  const auto term = [&](int r) { return comm.peer(mine, r); };
  pkb::add_up<T>(block, comm.world_size, term, 1, [=](int) { return out; }, blockIdx.x, gridDim.x);
}

template <class T>
void launch(const TensorView& tensor, const TensorView& out, const pkb::Comm& comm) {
  const uint64_t block = out.numel();
  if (block == 0) return;
  const unsigned blocks = pkb::blocks_for(block * sizeof(T), pkb::kSumTile);
  reduce_scatter<T><<<blocks, pkb::kTransferThreads, 0, comm.cuda_stream()>>>(
      static_cast<const T*>(tensor.data_ptr()), static_cast<T*>(out.data_ptr()), block, comm.device());
  PKB_CUDA_LAUNCHED();
}

}  // namespace

void solution(TensorView tensor, TensorView out, pkb::Comm comm) {
  if (pkb::contiguous_bytes(tensor) != comm.world_size * pkb::contiguous_bytes(out) || out.dtype() != tensor.dtype()) {
    TVM_FFI_THROW(ValueError) << "expected out to be 1 / " << comm.world_size << " of tensor, " << tensor.shape()
                              << " " << tensor.dtype() << ", got " << out.shape() << " " << out.dtype();
  }
  pkb::with_float_type(tensor.dtype(), [&](auto zero) { launch<decltype(zero)>(tensor, out, comm); });
}

TVM_FFI_DLL_EXPORT_TYPED_FUNC(solution, solution);
