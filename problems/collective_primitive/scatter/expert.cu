// Scatter: every rank copies its own block out of the source's stack, from where it lies.
//
// W - 1 blocks cross the link out of the source, each once. The copies run side by side, and no rank ever waits for
// another: inputs are ready when the call starts, and each output is written by its own rank alone. A kernel copies;
// a copy engine takes large blocks, with more of the link's bandwidth. Bound: link, W - 1 blocks out of the source.
#include "pkb/symm.h"
#include "pkb/transfer_cuda.h"

using tvm::ffi::TensorView;

namespace {

__global__ void __launch_bounds__(pkb::kTransferThreads) fetch(char* to, const char* from, uint64_t bytes) {
  pkb::copy(to, from, bytes, blockIdx.x, gridDim.x);
}

}  // namespace

void solution(TensorView tensor, int64_t src, TensorView out, pkb::Comm comm) {
  const int W = comm.world_size;
  const uint64_t block = pkb::contiguous_bytes(out);
  if (src < 0 || src >= W) TVM_FFI_THROW(ValueError) << "expected src in 0.." << W - 1 << ", got " << src;
  // The stack stands on the source only; elsewhere the tensor is a template of one block, at the same address.
  const uint64_t expected = comm.rank == src ? W * block : block;
  if (pkb::contiguous_bytes(tensor) != expected) {
    TVM_FFI_THROW(ValueError) << "expected a tensor of " << expected << " bytes, got " << pkb::contiguous_bytes(tensor);
  }

  if (block == 0) return;
  const char* mine = static_cast<const char*>(tensor.data_ptr()) + comm.rank * block;
  if (block >= pkb::kCopyEngineBytes) return comm.get(out.data_ptr(), mine, block, int(src));
  const unsigned blocks = pkb::blocks_for(block, pkb::kCopyTile);
  fetch<<<blocks, pkb::kTransferThreads, 0, comm.cuda_stream()>>>(static_cast<char*>(out.data_ptr()),
                                                                  comm.peer(mine, int(src)), block);
  PKB_CUDA_LAUNCHED();
}

TVM_FFI_DLL_EXPORT_TYPED_FUNC(solution, solution);
