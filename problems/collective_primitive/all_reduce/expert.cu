// AllReduce: small tensors go whole to every rank, which adds them up for itself; of larger ones each rank adds up one
// part for all.
//
// Whole tensors are pushed into scratch as tagged words, of which three quarters are data, and need no other
// synchronisation. Parts are read from where they lie on all ranks, and their sums stored into all outputs, between two
// meetings of corresponding blocks (pkb/shares_cuda.h): (W - 1) / W of a tensor crosses the link into each rank to be
// added, and as much as sums, both at once. Between two ranks words cross the link in a third more time, and save both
// meetings. Bound: link, 2 (W - 1) / W tensors in and out a rank.
#include "pkb/shares_cuda.h"
#include "pkb/symm.h"

using tvm::ffi::TensorView;

namespace {

template <class T>
void launch(const TensorView& tensor, const TensorView& out, const pkb::Comm& comm) {
  const uint64_t n = tensor.numel(), W = comm.world_size;
  T* sums = static_cast<T*>(out.data_ptr());
  pkb::Shares<T> shares(comm, static_cast<const T*>(tensor.data_ptr()), sums);
  if (pkb::adds_tagged<T>(n, 2 * (W - 1) * n * sizeof(T) / W, comm)) {
    for (int r = 0; r < comm.world_size; ++r) shares.give(r, 0, n);
  } else {
    shares.give_parts(n, comm);
    shares.sums = sums + shares.begin[comm.rank];
    shares.targets = comm.world_size;
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
