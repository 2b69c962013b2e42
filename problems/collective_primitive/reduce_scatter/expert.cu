// ReduceScatter: every rank adds up its row block of all ranks' tensors.
//
// W - 1 blocks cross the link into each rank, each once. Small ones are pushed into the adder's scratch as tagged words,
// and need no other synchronisation; larger ones are read from where they lie, between two meetings of corresponding
// blocks of the kernel (pkb/shares_cuda.h). Bound: link, W - 1 blocks in and out a rank.
#include "pkb/shares_cuda.h"
#include "pkb/symm.h"

using tvm::ffi::TensorView;

void solution(TensorView tensor, TensorView out, pkb::Comm comm) {
  if (pkb::contiguous_bytes(tensor) != comm.world_size * pkb::contiguous_bytes(out) || out.dtype() != tensor.dtype()) {
    TVM_FFI_THROW(ValueError) << "expected out to be 1 / " << comm.world_size << " of tensor, " << tensor.shape()
                              << " " << tensor.dtype() << ", got " << out.shape() << " " << out.dtype();
  }
  pkb::with_float_type(tensor.dtype(), [&](auto zero) {
    using T = decltype(zero);
    pkb::Shares<T> shares(comm, static_cast<const T*>(tensor.data_ptr()), static_cast<T*>(out.data_ptr()));
    const uint64_t block = out.numel();
    for (int r = 0; r < comm.world_size; ++r) shares.give(r, r * block, block);
    shares.launch_with_signals(comm);
  });
}

TVM_FFI_DLL_EXPORT_TYPED_FUNC(solution, solution);
