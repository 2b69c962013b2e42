// Broadcast: the source pushes its tensor into the outputs; with more than two ranks and a large tensor one part of it
// into each, and each hands its part on to the others.
//
// A source that serves W - 1 whole tensors is bound by its link out. Handed on by the W - 1 others, one tensor crosses
// the link out of the source and one into every other rank, which is the least. Small tensors go as tagged words by way
// of scratch; otherwise each rank signals that its call has begun, so that its output may be written, and each block of
// the kernel signals that it has pushed its part (pkb/moves_cuda.h). Bound: link, one tensor out of the source.
#include <algorithm>

#include "pkb/moves_cuda.h"
#include "pkb/symm.h"

using tvm::ffi::TensorView;

namespace {

constexpr uint64_t kSliceBytes = 32 << 10;  // what a block hands on at a time
constexpr uint64_t kMostRounds = 16;

// Parts and slices of them begin at lines.
__host__ __device__ uint64_t cut(uint64_t bytes, uint64_t part, uint64_t parts) {
  return part == parts ? bytes : bytes * part / parts / pkb::kLineBytes * pkb::kLineBytes;
}

struct Relay {
  const char* x;
  char* out;
  uint64_t bytes;
  int src, rounds;

  // The slice of the part of a rank, not the source, that this block moves in a round.
  struct Slice {
    uint64_t begin, size;
  };
  __device__ Slice slice_of(int rank, int round, int world_size) const {
    const int part = rank < src ? rank : rank - 1;
    const uint64_t begin = cut(bytes, part, world_size - 1), size = cut(bytes, part + 1, world_size - 1) - begin;
    const uint64_t slices = uint64_t(rounds) * gridDim.x, slice = uint64_t(round) * gridDim.x + blockIdx.x;
    return {begin + cut(size, slice, slices), cut(size, slice + 1, slices) - cut(size, slice, slices)};
  }
};

__global__ void __launch_bounds__(pkb::kTransferThreads, pkb::kBlocksPerSm)
    hand_on(const __grid_constant__ Relay relay, const __grid_constant__ pkb::Device comm) {
  const int thread = int(threadIdx.x), own = comm.rank, W = comm.world_size;
  const bool is_fellow = thread < W && thread != own && thread != relay.src;  // another rank that receives
  comm.signal_begun();
  if (is_fellow) comm.wait_begun(thread);
  __syncthreads();
  for (int round = 0; round < relay.rounds; ++round) {
    if (own == relay.src) {
      for (int k = 1; k < W; ++k) {
        const int r = pkb::rank_after(comm, k);
        const Relay::Slice slice = relay.slice_of(r, round, W);
        pkb::copy_slice(comm.peer(relay.out, r) + slice.begin, relay.x + slice.begin, slice.size);
        pkb::copy_slice(relay.out + slice.begin, relay.x + slice.begin, slice.size);
      }
      __syncthreads();
      if (is_fellow) comm.signal_block(round, thread);
    } else {
      if (thread == 0) comm.wait_block(round, relay.src);
      __syncthreads();
      const Relay::Slice slice = relay.slice_of(own, round, W);
      for (int k = 1; k < W; ++k) {
        const int r = pkb::rank_after(comm, k);
        if (r == relay.src) continue;
        pkb::copy_slice(comm.peer(relay.out, r) + slice.begin, relay.out + slice.begin, slice.size);
      }
    }
  }
  if (own == relay.src) return;
  __syncthreads();
  if (is_fellow) {
    comm.signal_block(relay.rounds, thread);
    comm.wait_block(relay.rounds, thread);
  }
}

}  // namespace

void solution(TensorView tensor, int64_t src, TensorView out, pkb::Comm comm) {
  const uint64_t bytes = pkb::contiguous_bytes(tensor), others = comm.world_size - 1;
  if (src < 0 || src >= comm.world_size) {
    TVM_FFI_THROW(ValueError) << "expected src in 0.." << comm.world_size - 1 << ", got " << src;
  }
  if (pkb::contiguous_bytes(out) != bytes) {
    TVM_FFI_THROW(ValueError) << "expected out of " << bytes << " bytes, got " << pkb::contiguous_bytes(out);
  }

  const char* x = static_cast<const char*>(tensor.data_ptr());
  char* to = static_cast<char*>(out.data_ptr());
  if (others > 1 && bytes * (others - 1) > pkb::kCrossingBytes) {  // the tensors saved take longer than one more crossing
    const unsigned blocks = pkb::blocks_for(bytes / others, pkb::kCopyTile);
    const uint64_t rounds = std::clamp<uint64_t>(bytes / others / (blocks * kSliceBytes), 1, kMostRounds);
    const Relay relay{x, to, bytes, int(src), int(rounds)};
    hand_on<<<blocks, pkb::kTransferThreads, 0, comm.cuda_stream()>>>(relay, comm.device());
    PKB_CUDA_LAUNCHED();
    return;
  }
  pkb::Moves moves;
  moves.bytes = bytes;
  moves.from = x;
  moves.to = to;
  moves.sender = int(src);
  moves.launch_with_signals(comm);
}

TVM_FFI_DLL_EXPORT_TYPED_FUNC(solution, solution);
