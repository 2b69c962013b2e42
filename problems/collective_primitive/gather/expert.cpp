// Gather: the other ranks push their blocks into the root's stack, and the root helps by fetching the end of each.
//
// W - 1 blocks cross the link into the root, each once. Every rank but the root copies its block into its own output
// too, 2 W - 1 copies in all; the root fetches 1 / W of each foreign block, so that every rank copies (2 W - 1) / W
// blocks. The root and each other rank signal one another that their calls have begun, copy what is their own, wait for
// that signal, and end when the other has done its part. Bound: memory, one read and one write of that much a rank.
#include "pkb/symm.h"

using tvm::ffi::TensorView;

namespace {

constexpr uint64_t kLineBytes = 64;  // the fetched parts begin at cache lines

// Words of the signal pad: a rank's call has begun; it has pushed or fetched its part. Each rank sets words of its own,
// since the next call may have another root, which may begin before this one has ended.
constexpr int kBegun = 0, kDone = pkb::kMaxRanks;

uint64_t bytes_of(const TensorView& x) {
  const uint64_t bits = uint64_t(x.dtype().bits) * x.dtype().lanes;
  if (bits % 8 != 0) TVM_FFI_THROW(TypeError) << "expected elements of whole bytes, got " << x.dtype();
  if (!x.IsContiguous()) {
    TVM_FFI_THROW(ValueError) << "expected a contiguous tensor, got strides " << x.strides();
  }
  return uint64_t(x.numel()) * bits / 8;
}

}  // namespace

void solution(TensorView tensor, int64_t dst, TensorView out, pkb::Comm comm) {
  const int W = comm.world_size;
  const uint64_t block = bytes_of(tensor);
  if (dst < 0 || dst >= W) TVM_FFI_THROW(ValueError) << "expected dst in 0.." << W - 1 << ", got " << dst;
  const uint64_t expected = comm.rank == dst ? W * block : block;
  if (bytes_of(out) != expected) {
    TVM_FFI_THROW(ValueError) << "expected out of " << expected << " bytes, got " << bytes_of(out);
  }

  const char* mine = static_cast<const char*>(tensor.data_ptr());
  char* stack = static_cast<char*>(out.data_ptr());  // the root's stack stands at the address of the others' outputs
  const uint64_t fetched = block / W / kLineBytes * kLineBytes;
  const uint64_t pushed = block - fetched;
  if (comm.rank != dst) {
    comm.signal(kBegun + comm.rank, int(dst));
    comm.put(out.data_ptr(), mine, block, comm.rank);
    comm.wait(kBegun + int(dst));
    comm.put(stack + comm.rank * block, mine, pushed, int(dst));
    comm.signal(kDone + comm.rank, int(dst));
    comm.wait(kDone + int(dst));
    return;
  }
  for (int step = 1; step < W; ++step) comm.signal(kBegun + comm.rank, (comm.rank + step) % W);
  comm.put(stack + comm.rank * block, mine, block, comm.rank);
  for (int step = 1; step < W; ++step) {
    const int source = (comm.rank + step) % W;
    comm.wait(kBegun + source);
    comm.get(stack + source * block + pushed, mine + pushed, fetched, source);
    comm.signal(kDone + comm.rank, source);
  }
  for (int step = 1; step < W; ++step) comm.wait(kDone + (comm.rank + step) % W);
}

TVM_FFI_DLL_EXPORT_TYPED_FUNC(solution, solution);
