// MoEAllToAll: one kernel pushes every piece to where it belongs in its receiver's output.
//
// What moves: a receiver knows how many rows come from each rank, and so where each piece begins, which senders do not.
// It tells each of them, in the signal that says that its call has begun: the number of the call and the first row are one
// word. Blocks then push their parts of all pieces, first to the next rank, from registers to outputs, and block b of
// every rank meets block b of the others. Nothing passes through the host.
//
// Bound: link, the rows for other ranks; on one rank memory, a read and a write.
//
// Left on the table: sizes differ by rank, so that every rank has as many blocks as the largest would take. One rank
// copies its tensor, which the baseline hands back, since outputs are preallocated.
#include <cstdint>

#include "pkb/symm.h"
#include "pkb/transfer_cuda.h"

using tvm::ffi::Array;
using tvm::ffi::Optional;
using tvm::ffi::TensorView;

namespace {

constexpr int kThreads = pkb::kTransferThreads;
constexpr int kFirstRow = 0;  // words of the signal pad, one for each receiver: epoch and first row of this rank's piece
constexpr int kRowBits = 32;

// By place in the group; all in rows.
struct Pieces {
  const char* from;
  char* to;
  uint64_t row_bytes;
  uint64_t begin[pkb::kMaxRanks];  // in `from`, of the piece for each member
  uint64_t rows[pkb::kMaxRanks];   // of that piece
  uint64_t place[pkb::kMaxRanks];  // in `to`, of the piece of each member
};

__global__ void __launch_bounds__(kThreads, pkb::kBlocksPerSm)
    exchange(const __grid_constant__ Pieces pieces, int64_t group, const __grid_constant__ pkb::Device comm) {
  __shared__ uint64_t places[pkb::kMaxRanks];
  const int members = comm.group_size(group), own = comm.group_rank(group), thread = int(threadIdx.x);
  const bool has_peer = thread < members && thread != own;
  const int peer = has_peer ? comm.group_member(group, thread) : comm.rank;
  if (blockIdx.x == 0 && has_peer) {
    comm.signal(kFirstRow + comm.rank, peer, comm.epoch << kRowBits | pieces.place[thread]);
  }
  comm.hold();
  if (has_peer) {
    comm.wait(kFirstRow + peer, comm.epoch << kRowBits);
    places[thread] = pkb::load_acquire(comm.signal_word(kFirstRow + peer, comm.rank)) & ((1ull << kRowBits) - 1);
  }
  if (thread == own) places[own] = pieces.place[own];
  __syncthreads();
  for (int k = 1; k <= members; ++k) {
    const int member = (own + k) % members;  // no two ranks push to the same one at a time; last to this rank
    char* to = comm.peer(pieces.to, comm.group_member(group, member)) + places[member] * pieces.row_bytes;
    const char* from = pieces.from + pieces.begin[member] * pieces.row_bytes;
    const uint64_t bytes = pieces.rows[member] * pieces.row_bytes;
    pkb::copy(to, from, bytes, blockIdx.x, gridDim.x);
  }
  comm.barrier_blocks(0, group);
}

}  // namespace

void solution(TensorView local_tensor, Optional<Array<int64_t>> input_split_sizes,
              Optional<Array<int64_t>> output_split_sizes, int64_t group, TensorView out, pkb::Comm comm) {
  const int members = comm.group(group).size;
  const uint64_t rows = local_tensor.size(0), width = local_tensor.size(1);
  Pieces pieces{};
  pieces.from = static_cast<const char*>(local_tensor.data_ptr());
  pieces.to = static_cast<char*>(out.data_ptr());
  pieces.row_bytes = width * local_tensor.dtype().bits / 8;
  uint64_t sent = 0, received = 0;
  for (int member = 0; member < members; ++member) {
    pieces.begin[member] = sent;
    pieces.place[member] = received;
    pieces.rows[member] = input_split_sizes.has_value() ? input_split_sizes.value()[member] : rows / members;
    sent += pieces.rows[member];
    received += output_split_sizes.has_value() ? output_split_sizes.value()[member] : rows / members;
  }
  if (sent != rows || received != uint64_t(out.size(0))) {
    TVM_FFI_THROW(ValueError) << "expected splits of " << rows << " and " << out.size(0) << " rows, got " << sent
                              << " and " << received;
  }
  if (members == 1) return comm.put(pieces.to, pieces.from, rows * pieces.row_bytes, comm.rank);
  const auto blocks = unsigned(pkb::max_blocks());  // on every rank of the group, whatever its rows
  exchange<<<blocks, kThreads, 0, comm.cuda_stream()>>>(pieces, group, comm.device());
  PKB_CUDA_LAUNCHED();
}

TVM_FFI_DLL_EXPORT_TYPED_FUNC(solution, solution);
