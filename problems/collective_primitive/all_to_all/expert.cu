// AllToAll: every rank writes its block for each rank into that rank's stack.
//
// W - 1 blocks cross the link into each rank, each once, and nothing is staged. Inputs are ready when the call starts
// and each byte of an output is written by one rank, so no rank ever waits for another. One kernel makes all copies;
// where two ranks exchange large blocks, copy engines do it with more of the link's bandwidth (with more ranks they get
// less of it than stores). Bound: link, W - 1 blocks in and out a rank.
#include "pkb/symm.h"
#include "pkb/transfer_cuda.h"

using tvm::ffi::TensorView;

namespace {

// Row k of the grid serves the k-th rank after this one, the last row this rank itself.
__global__ void __launch_bounds__(pkb::kTransferThreads)
all_to_all(const char* x, char* out, uint64_t block, const __grid_constant__ pkb::Device comm) {
  const int target = int(comm.rank + 1 + blockIdx.y) % comm.world_size;
  pkb::copy(comm.peer(out + comm.rank * block, target), x + target * block, block, blockIdx.x, gridDim.x);
}

void by_copy_engines(const char* x, char* out, uint64_t block, const pkb::Comm& comm) {
  pkb::Move moves[pkb::kMaxRanks];
  for (int k = 0; k < comm.world_size; ++k) {
    const int target = (comm.rank + 1 + k) % comm.world_size;
    moves[k] = {comm.peer(out + comm.rank * block, target), x + target * block};
  }
  pkb::copy_side_by_side(moves, comm.world_size, block, comm.cuda_stream());
}

}  // namespace

void solution(TensorView tensor, TensorView out, pkb::Comm comm) {
  const uint64_t bytes = pkb::contiguous_bytes(tensor), W = comm.world_size;
  if (tensor.ndim() < 1 || tensor.size(0) % W != 0) {
    TVM_FFI_THROW(ValueError) << "expected a first dimension divisible by " << W << ", got shape " << tensor.shape();
  }
  if (pkb::contiguous_bytes(out) != bytes) {
    TVM_FFI_THROW(ValueError) << "expected out of " << bytes << " bytes, got " << pkb::contiguous_bytes(out);
  }

  const uint64_t block = bytes / W;
  if (block == 0) return;
  const char* x = static_cast<const char*>(tensor.data_ptr());
  char* stack = static_cast<char*>(out.data_ptr());
  if (comm.world_size == 2 && block >= pkb::kCopyEngineBytes) return by_copy_engines(x, stack, block, comm);
  const dim3 blocks(pkb::blocks_for(block, pkb::kCopyTile, W), unsigned(W));
  all_to_all<<<blocks, pkb::kTransferThreads, 0, comm.cuda_stream()>>>(x, stack, block, comm.device());
  PKB_CUDA_LAUNCHED();
}

TVM_FFI_DLL_EXPORT_TYPED_FUNC(solution, solution);
