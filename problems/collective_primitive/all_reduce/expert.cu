// AllReduce: every rank adds up one part of all ranks' tensors and pushes the sum into all outputs; two ranks, and more
// of them with small tensors, add up whole tensors, each for itself.
//
// Terms are pushed into scratch, small ones as tagged words, larger ones in rounds, with a word from each block of the
// kernel after each (pkb/shares_cuda.h). Of parts, (W - 1) / W of a tensor crosses the link into each rank to be added,
// and as much comes back as sums; they need no synchronisation of their own before, since terms have come from each rank
// that they go to. Adding up whole tensors takes in W - 1 of them, between two ranks no more, and saves the second
// crossing. Bound: link, 2 (W - 1) / W tensors in and out a rank.
#include "pkb/shares_cuda.h"
#include "pkb/symm.h"

using tvm::ffi::TensorView;

namespace {

template <class T>
void launch(const TensorView& tensor, const TensorView& out, const pkb::Comm& comm) {
  const uint64_t n = tensor.numel(), W = comm.world_size;
  T* sums = static_cast<T*>(out.data_ptr());
  pkb::Shares<T> shares(comm, static_cast<const T*>(tensor.data_ptr()), sums);
  // Whole tensors take in (W - 1) n, parts and sums together 2 (W - 1) / W n, but by one more way across the link.
  if (W <= 2 || n * sizeof(T) * (W - 1) * (W - 2) / W <= pkb::kCrossingBytes) {
    for (int r = 0; r < comm.world_size; ++r) shares.give(r, 0, n);
  } else {
    shares.give_parts(n, comm);
    shares.sums = sums + shares.begin[comm.rank];
    shares.targets = comm.world_size;
    shares.gets_sums = true;
  }
  shares.launch_with_signals(comm);
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
