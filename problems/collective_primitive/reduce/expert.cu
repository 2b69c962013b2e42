// Reduce: the other ranks share the adding and store their sums at the root, while they copy their own tensors into their
// own outputs; of two ranks, and of small tensors, the root adds up alone.
//
// A root that adds takes in W - 1 tensors. With W - 1 helpers, each adding up one part of all ranks' tensors, one
// tensor crosses the link into every rank and one out of it, the least that a link can do. Small terms are pushed into
// scratch as tagged words; larger ones are read from where they lie (pkb/shares_cuda.h). Bound: link, one tensor in a
// rank.
#include "pkb/shares_cuda.h"
#include "pkb/symm.h"

using tvm::ffi::TensorView;

namespace {

template <class T>
void launch(const TensorView& tensor, int dst, const TensorView& out, const pkb::Comm& comm) {
  const uint64_t n = tensor.numel(), W = comm.world_size;
  const bool root = comm.rank == dst;
  T* sums = static_cast<T*>(out.data_ptr());
  pkb::Shares<T> shares(comm, static_cast<const T*>(tensor.data_ptr()), sums);
  shares.copy = root ? nullptr : sums;
  shares.copied = n;
  if (W <= 2 || pkb::adds_tagged<T>(n, n * sizeof(T), comm)) {
    shares.give(dst, 0, n);
  } else {
    shares.give_parts(n, comm, dst);
    shares.sums = sums + shares.begin[comm.rank];
    shares.first_target = dst;
    shares.gets_sums = root;
  }
  shares.launch_with_signals(comm);
}

}  // namespace

void solution(TensorView tensor, int64_t dst, TensorView out, pkb::Comm comm) {
  if (dst < 0 || dst >= comm.world_size) {
    TVM_FFI_THROW(ValueError) << "expected dst in 0.." << comm.world_size - 1 << ", got " << dst;
  }
  if (pkb::contiguous_bytes(tensor) != pkb::contiguous_bytes(out) || out.dtype() != tensor.dtype()) {
    TVM_FFI_THROW(ValueError) << "expected out like tensor, " << tensor.shape() << " " << tensor.dtype() << ", got "
                              << out.shape() << " " << out.dtype();
  }
  pkb::with_float_type(tensor.dtype(), [&](auto zero) { launch<decltype(zero)>(tensor, int(dst), out, comm); });
}

TVM_FFI_DLL_EXPORT_TYPED_FUNC(solution, solution);
