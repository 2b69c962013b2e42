// Collectives that move messages of one length between ranks, and compute nothing, under the call contract.
//
// Small messages are pushed into the receivers' scratch as tagged words: one crossing of the link, and nothing else to
// wait for. Larger ones are pushed straight into the receivers' outputs. That takes a word from each receiver that its
// call has begun, which is on its way while this rank begins, and one to it from each block that has pushed its part.
// No rank waits for one that it neither sends to nor receives from. A rank alone has its message copied by the driver.
//
//   pkb::Moves moves;
//   moves.bytes = ...; moves.from = x; moves.to = out; moves.to_step = moves.bytes;  // rank s's message: to slice s
//   moves.launch_with_signals(comm);
#pragma once

#include "pkb/exchange_cuda.h"
#include "pkb/transfer_cuda.h"

namespace pkb {

struct Moves {
  uint64_t bytes = 0;        // of each message
  const char* from;          // the message for rank r begins r * from_step bytes on
  char* to;                  // in the outputs of every rank: that from rank r belongs r * to_step bytes on
  uint64_t from_step = 0, to_step = 0;
  int sender = -1;           // the only rank that sends; -1: all do
  int receiver = -1;         // the only rank that receives; -1: all do
  char* copy = nullptr;      // where `from` belongs on a rank that is not the receiver

  __host__ __device__ __forceinline__ bool sends(int r) const { return sender < 0 || r == sender; }
  __host__ __device__ __forceinline__ bool receives(int r) const { return receiver < 0 || r == receiver; }
  __host__ __device__ __forceinline__ const char* message_for(int r) const { return from + r * from_step; }
  __host__ __device__ __forceinline__ char* place_of(int r) const { return to + r * to_step; }
  // Where this rank's own message belongs; null if there is none.
  __host__ __device__ __forceinline__ char* own_place(int rank) const {
    return sends(rank) && receives(rank) ? place_of(rank) : copy;
  }

  inline void launch_with_signals(const Comm& comm) const;
};

template <int kThreads>
__global__ void __launch_bounds__(kThreads, kBlocksPerSm)
    move_tagged(const __grid_constant__ Moves moves, const __grid_constant__ Boxes boxes,
                const __grid_constant__ Device comm) {
  const uint32_t tag = uint32_t(comm.epoch);
  const uint64_t units = (moves.bytes + 7) / 8, first = blockIdx.x * uint64_t(kThreads) + threadIdx.x;
  const uint64_t step = gridDim.x * uint64_t(kThreads);
  const bool one_way = moves.sender >= 0 || moves.receiver >= 0;  // receivers may then be slow to read
  if (one_way) comm.signal_begun();
  if (moves.sends(comm.rank)) {
    if (one_way) comm.wait_all_begun(1);
    for (int k = 1; k < comm.world_size; ++k) {
      const int r = rank_after(comm, k);
      if (!moves.receives(r)) continue;
      TaggedPair* box = boxes.box<TaggedPair>(comm, r, comm.rank);
      const char* message = moves.message_for(r);
      for (uint64_t i = first; i < units; i += step) {
        store_tagged(box + i, load_eight(message + 8 * i, moves.bytes - 8 * i), tag);
      }
    }
  }
  if (char* place = moves.own_place(comm.rank)) {
    const char* message = moves.message_for(comm.rank);
    for (uint64_t i = first; i < units; i += step) {
      store_eight(place + 8 * i, load_eight(message + 8 * i, moves.bytes - 8 * i), moves.bytes - 8 * i);
    }
  }
  if (!moves.receives(comm.rank)) return;
  comm.hold();
  for (int k = 1; k < comm.world_size; ++k) {
    const int r = rank_after(comm, k);
    if (!moves.sends(r)) continue;
    const TaggedPair* box = boxes.box<TaggedPair>(comm, comm.rank, r);
    char* place = moves.place_of(r);
    for (uint64_t i = first; i < units; i += step) {
      store_eight(place + 8 * i, wait_tagged(box + i, tag), moves.bytes - 8 * i);
    }
  }
}

template <int kThreads>
__global__ void __launch_bounds__(kThreads, kBlocksPerSm)
    move(const __grid_constant__ Moves moves, const __grid_constant__ Device comm) {
  const int thread = int(threadIdx.x), own = comm.rank;
  const bool has_peer = thread < comm.world_size && thread != own;
  const bool sends = has_peer && moves.sends(own) && moves.receives(thread);
  const bool receives = has_peer && moves.sends(thread) && moves.receives(own);
  comm.signal_begun();
  if (sends) comm.wait_begun(thread);
  __syncthreads();
  char* own_place = moves.own_place(own);
  for (uint64_t begin = blockIdx.x * kCopyTile; begin < moves.bytes; begin += gridDim.x * kCopyTile) {
    const uint64_t size = min(kCopyTile, moves.bytes - begin);
    for (int k = 1; k < comm.world_size; ++k) {
      const int r = rank_after(comm, k);
      if (!moves.sends(own) || !moves.receives(r)) continue;
      copy_slice(comm.peer(moves.place_of(own), r) + begin, moves.message_for(r) + begin, size);
    }
    if (own_place) copy_slice(own_place + begin, moves.message_for(own) + begin, size);
  }
  __syncthreads();
  if (sends) comm.signal_block(0, thread);
  if (receives) comm.wait_block(0, thread);
}

inline void Moves::launch_with_signals(const Comm& comm) const {
  if (bytes == 0) return;
  if (comm.world_size == 1) return comm.put(own_place(0), message_for(0), bytes, 0);
  if (is_tagged(bytes, comm)) {
    const unsigned blocks = blocks_for(bytes, 8 * kTransferThreads);
    move_tagged<kTransferThreads><<<blocks, kTransferThreads, 0, comm.cuda_stream()>>>(
        *this, Boxes::for_tagged(comm), comm.device());
  } else {
    const unsigned blocks = blocks_for(bytes, kCopyTile);
    move<kTransferThreads><<<blocks, kTransferThreads, 0, comm.cuda_stream()>>>(*this, comm.device());
  }
  PKB_CUDA_LAUNCHED();
}

}  // namespace pkb
