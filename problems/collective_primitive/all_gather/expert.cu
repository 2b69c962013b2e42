// AllGather: every rank writes its block into all ranks' stacks.
//
// W - 1 blocks cross the link into each rank, each once, and nothing is staged. Inputs are ready when the call starts
// and each byte of an output is written by one rank, so no rank ever waits for another. One kernel reads the block
// once and stores it W times; where two ranks exchange large blocks, copy engines do it with more of the link's
// bandwidth (with more ranks they get less of it than stores). Bound: link, W - 1 blocks in and out a rank.
#include "pkb/symm.h"
#include "pkb/transfer_cuda.h"

using tvm::ffi::TensorView;

namespace {

__global__ void __launch_bounds__(pkb::kTransferThreads)
all_gather(const char* x, char* out, uint64_t block, const __grid_constant__ pkb::Device comm) {
  char* slice = out + comm.rank * block;
  const auto to = [&](int k) {  // no two ranks write to the same one first
    const int r = comm.rank + k;
    return comm.peer(slice, r < comm.world_size ? r : r - comm.world_size);
  };
  pkb::copy_to_all(comm.world_size, to, x, block, blockIdx.x, gridDim.x);
}

void by_copy_engines(const char* x, char* out, uint64_t block, const pkb::Comm& comm) {
  pkb::Move moves[pkb::kMaxRanks];
  for (int k = 0; k < comm.world_size; ++k) {
    moves[k] = {comm.peer(out + comm.rank * block, (comm.rank + 1 + k) % comm.world_size), x};  // the own stack last
  }
  pkb::copy_side_by_side(moves, comm.world_size, block, comm.cuda_stream());
}

}  // namespace

void solution(TensorView tensor, TensorView out, pkb::Comm comm) {
  const uint64_t block = pkb::contiguous_bytes(tensor);
  if (pkb::contiguous_bytes(out) != comm.world_size * block) {
    TVM_FFI_THROW(ValueError) << "expected out of " << comm.world_size << " * " << block << " bytes, got "
                              << pkb::contiguous_bytes(out);
  }

  if (block == 0) return;
  const char* x = static_cast<const char*>(tensor.data_ptr());
  char* stack = static_cast<char*>(out.data_ptr());
  if (comm.world_size == 2 && block >= pkb::kCopyEngineBytes) return by_copy_engines(x, stack, block, comm);
  const unsigned blocks = pkb::blocks_for(block, pkb::kCopyTile);
  all_gather<<<blocks, pkb::kTransferThreads, 0, comm.cuda_stream()>>>(x, stack, block, comm.device());
  PKB_CUDA_LAUNCHED();
}

TVM_FFI_DLL_EXPORT_TYPED_FUNC(solution, solution);
