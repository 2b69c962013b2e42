// Gather: every rank writes its block into the root's stack, and the ranks but the root into their own outputs too.
//
// W - 1 blocks cross the link into the root, each once. Inputs are ready when the call starts and each byte of an
// output is written by one rank, so no rank waits for another. A kernel reads the block once and stores it twice; of
// large blocks, copy engines make both copies side by side, with more of the link's bandwidth. Bound: link, W - 1
// blocks into the root.
#include "pkb/symm.h"
#include "pkb/transfer_cuda.h"

using tvm::ffi::TensorView;

namespace {

__global__ void __launch_bounds__(pkb::kTransferThreads)
gather(const char* x, char* slice, char* out, int copies, uint64_t block) {
  pkb::copy_to_all(copies, [=](int k) { return k == 0 ? slice : out; }, x, block, blockIdx.x, gridDim.x);
}

}  // namespace

void solution(TensorView tensor, int64_t dst, TensorView out, pkb::Comm comm) {
  const int W = comm.world_size;
  const uint64_t block = pkb::contiguous_bytes(tensor);
  if (dst < 0 || dst >= W) TVM_FFI_THROW(ValueError) << "expected dst in 0.." << W - 1 << ", got " << dst;
  const uint64_t expected = comm.rank == dst ? W * block : block;
  if (pkb::contiguous_bytes(out) != expected) {
    TVM_FFI_THROW(ValueError) << "expected out of " << expected << " bytes, got " << pkb::contiguous_bytes(out);
  }

  if (block == 0) return;
  const char* x = static_cast<const char*>(tensor.data_ptr());
  char* own = static_cast<char*>(out.data_ptr());
  char* slice = comm.peer(own, int(dst)) + comm.rank * block;  // the root's stack stands where the others' outputs do
  const int copies = comm.rank == dst ? 1 : 2;
  if (block >= pkb::kCopyEngineBytes) {
    const pkb::Move moves[] = {{slice, x}, {own, x}};
    return pkb::copy_side_by_side(moves, copies, block, comm.cuda_stream());
  }
  const unsigned blocks = pkb::blocks_for(block, pkb::kCopyTile);
  gather<<<blocks, pkb::kTransferThreads, 0, comm.cuda_stream()>>>(x, slice, own, copies, block);
  PKB_CUDA_LAUNCHED();
}

TVM_FFI_DLL_EXPORT_TYPED_FUNC(solution, solution);
