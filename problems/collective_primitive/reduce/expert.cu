// Reduce: the other ranks share the adding and write their sums to the root, while they copy their own tensors into
// their own outputs; small tensors are added up by the root alone.
//
// A root that adds takes in W - 1 tensors. With W - 1 helpers, each adding up one part of all ranks' tensors, one
// tensor crosses the link into every rank and one out of it, the least that a link can do. Inputs are ready when the
// call starts and each element of an output is set by one rank, so no rank ever waits for another. Sums are float32
// (float64 for float64) in rank order, rounded once. Bound: link, one tensor in a rank.
#include "pkb/symm.h"
#include "pkb/transfer_cuda.h"

using tvm::ffi::TensorView;

namespace {

constexpr uint64_t kCopiersShare = 4;  // one block in four copies: the link is slower than memory

// Elements begin .. begin + count, which this rank adds up.
struct Part {
  uint64_t begin, count;
};

// The first `adders` blocks add up a part of all ranks' x for the root, the others copy x, of n elements, to out.
template <class T>
__global__ void __launch_bounds__(pkb::kTransferThreads)
reduce(const T* x, T* out, uint64_t n, Part part, int dst, unsigned adders, const __grid_constant__ pkb::Device comm) {
  if (blockIdx.x < adders) {
    const auto term = [&](int r) { return comm.peer(x, r) + part.begin; };
    const auto result = [&](int) { return comm.peer(out, dst) + part.begin; };
    pkb::add_up<T>(part.count, comm.world_size, term, 1, result, blockIdx.x, adders);
  } else {
    pkb::copy(reinterpret_cast<char*>(out), reinterpret_cast<const char*>(x), n * sizeof(T), blockIdx.x - adders,
              gridDim.x - adders);
  }
}

// All on the root where the W - 2 more tensors that it takes in cost less than one more way across the link, else equal
// parts, which begin at lines, on the others.
template <class T>
Part adding_part(uint64_t n, int dst, const pkb::Comm& comm) {
  const bool root = comm.rank == dst;
  if (comm.world_size <= 2 || n * sizeof(T) * (comm.world_size - 2) <= pkb::kCrossingBytes) return {0, root ? n : 0};
  if (root) return {0, 0};
  constexpr uint64_t kLine = pkb::kLineBytes / sizeof(T);
  const uint64_t helpers = comm.world_size - 1, place = comm.rank < dst ? comm.rank : comm.rank - 1;
  const uint64_t begin = n * place / helpers / kLine * kLine;
  const uint64_t end = place + 1 == helpers ? n : n * (place + 1) / helpers / kLine * kLine;
  return {begin, end - begin};
}

template <class T>
void launch(const TensorView& tensor, int dst, const TensorView& out, const pkb::Comm& comm) {
  const uint64_t n = tensor.numel();
  const Part part = adding_part<T>(n, dst, comm);
  const bool copies = comm.rank != dst && n > 0;
  const unsigned adders = part.count ? pkb::blocks_for(part.count * sizeof(T), pkb::kSumTile) : 0;
  const unsigned copiers = copies ? pkb::blocks_for(n * sizeof(T), pkb::kCopyTile, kCopiersShare) : 0;
  if (adders + copiers == 0) return;
  reduce<T><<<adders + copiers, pkb::kTransferThreads, 0, comm.cuda_stream()>>>(
      static_cast<const T*>(tensor.data_ptr()), static_cast<T*>(out.data_ptr()), n, part, dst, adders, comm.device());
  PKB_CUDA_LAUNCHED();
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
