// Broadcast: each rank but the source fetches one part of the source's tensor and hands it on to the others; small
// tensors are fetched whole by every rank. The source copies its tensor into its own output.
//
// A source that serves W - 1 whole tensors is bound by its link out. Handed on by the W - 1 others, one tensor
// crosses the link out of the source and one into every other rank, which is the least. Inputs are ready when the
// call starts and each byte of an output is written by one rank, so no rank ever waits for another: what is fetched
// goes on from registers. Bound: link, one tensor out of the source.
#include "pkb/symm.h"
#include "pkb/transfer_cuda.h"

using tvm::ffi::TensorView;

namespace {

// Bytes begin .. begin + count, which this rank fetches, for its own and the next copies - 1 ranks' outputs.
struct Part {
  uint64_t begin, count;
  int copies;
};

// Places count the ranks but the source, which is passed over.
__host__ __device__ int place_of(int rank, int src) { return rank < src ? rank : rank - 1; }
__host__ __device__ int rank_at(int place, int src) { return place < src ? place : place + 1; }

__global__ void __launch_bounds__(pkb::kTransferThreads)
broadcast(const char* x, int src, char* out, Part part, const __grid_constant__ pkb::Device comm) {
  const int places = comm.world_size - 1;
  const auto to = [&](int k) {
    const int place = place_of(comm.rank, src) + k;
    return comm.peer(out, k == 0 ? comm.rank : rank_at(place < places ? place : place - places, src)) + part.begin;
  };
  pkb::copy_to_all(part.copies, to, comm.peer(x, src) + part.begin, part.count, blockIdx.x, gridDim.x);
}

// The whole on the source, and where the W - 2 more tensors that it serves cost less than one more way across the link;
// else equal parts, which begin at lines.
Part fetched_part(uint64_t bytes, int src, const pkb::Comm& comm) {
  const uint64_t places = comm.world_size - 1, place = place_of(comm.rank, src);
  if (comm.rank == src || bytes * (places - 1) <= pkb::kCrossingBytes) return {0, bytes, 1};
  const auto begin = [=](uint64_t p) {
    return p == places ? bytes : bytes * p / places / pkb::kLineBytes * pkb::kLineBytes;
  };
  return {begin(place), begin(place + 1) - begin(place), int(places)};
}

}  // namespace

void solution(TensorView tensor, int64_t src, TensorView out, pkb::Comm comm) {
  const uint64_t bytes = pkb::contiguous_bytes(tensor);
  if (src < 0 || src >= comm.world_size) {
    TVM_FFI_THROW(ValueError) << "expected src in 0.." << comm.world_size - 1 << ", got " << src;
  }
  if (pkb::contiguous_bytes(out) != bytes) {
    TVM_FFI_THROW(ValueError) << "expected out of " << bytes << " bytes, got " << pkb::contiguous_bytes(out);
  }

  const Part part = fetched_part(bytes, int(src), comm);
  if (part.count == 0) return;
  const unsigned blocks = pkb::blocks_for(part.count, pkb::kCopyTile);
  broadcast<<<blocks, pkb::kTransferThreads, 0, comm.cuda_stream()>>>(
      static_cast<const char*>(tensor.data_ptr()), int(src), static_cast<char*>(out.data_ptr()), part, comm.device());
  PKB_CUDA_LAUNCHED();
}

TVM_FFI_DLL_EXPORT_TYPED_FUNC(solution, solution);
