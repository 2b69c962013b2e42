// Collectives that add up all ranks' tensors, under the call contract: every rank adds up its share of the elements, for
// itself or for others.
//
// Terms are pushed into the adders' scratch: small ones as tagged words, larger ones in rounds, with a word from each
// block after each round, so that adding goes on beside pushing. Nobody reads a peer's arguments. Sums that belong to
// other ranks go straight into their outputs: an adder has terms of each of them, so their call has begun; each adder's
// blocks then signal that their sums are there. Sums are float32 (float64 for float64) in rank order, rounded once,
// and so the same bits wherever they are formed.
//
//   pkb::Shares<T> shares(x, sums);                          // nobody adds anything yet
//   for (int r = 0; r < W; ++r) shares.give(r, r * n, n);    // rank r adds up n elements
//   shares.launch_with_signals(comm);
#pragma once

#include <algorithm>

#include "pkb/exchange_cuda.h"
#include "pkb/transfer_cuda.h"

// Depend on the machine; can be set for tuning.
#ifndef PKB_SLICE_BYTES
#define PKB_SLICE_BYTES (8 << 10)
#endif
#ifndef PKB_MOST_ROUNDS
#define PKB_MOST_ROUNDS 8
#endif

namespace pkb {

constexpr uint64_t kSliceBytes = PKB_SLICE_BYTES;  // least that a block pushes to one rank in a round
constexpr int kMostRounds = PKB_MOST_ROUNDS;       // more of them would pay for more signals than they hide

template <class T>
struct Shares {
  const T* x;                   // this rank's terms
  T* sums;                      // where the sums of this rank's share belong, on each rank that gets them
  uint64_t begin[kMaxRanks];    // first element of each rank's share
  uint64_t count[kMaxRanks];    // and how many; 0: that rank adds nothing up
  int first_target, targets;    // which ranks get this rank's sums: so many from the first on
  bool gets_sums = false;       // whether other ranks' sums belong into this rank's outputs
  T* copy = nullptr;            // where this rank's own tensor belongs; null: nowhere
  uint64_t copied = 0;          // its elements, on all ranks if it belongs somewhere on any

  // By default sums stay on the rank that adds them up.
  Shares(const Comm& comm, const T* x, T* sums) : x(x), sums(sums), begin(), count(), first_target(comm.rank), targets(1) {}

  void give(int r, uint64_t first, uint64_t elements) {
    begin[r] = first;
    count[r] = elements;
  }
  // Gives equal parts of n elements, which begin at lines, to all ranks but `except`.
  void give_parts(uint64_t n, const Comm& comm, int except = -1) {
    const uint64_t parts = comm.world_size - (except < 0 ? 0 : 1);
    for (uint64_t part = 0; part < parts; ++part) {
      const int r = int(part) + (except >= 0 && int(part) >= except ? 1 : 0);
      give(r, cut(n, part, parts), cut(n, part + 1, parts) - cut(n, part, parts));
    }
  }

  // Where part `part` of `parts` of n elements begins: at a line of 128 bytes.
  __host__ __device__ static uint64_t cut(uint64_t n, uint64_t part, uint64_t parts) {
    constexpr uint64_t kLine = kLineBytes / sizeof(T);
    return part == parts ? n : n * part / parts / kLine * kLine;
  }

  // Whether some rank sends terms and waits for nobody, or the reverse: then it might run ahead.
  __host__ __device__ bool one_way(int world_size) const {
    for (int r = 0; r < world_size; ++r) {
      if (count[r] == 0) return true;
    }
    return false;
  }

  void launch_with_signals(const Comm& comm) const;
};

// This rank's terms of the share of rank r, or of some elements of it.
template <class T>
__device__ __forceinline__ const T* terms_for(const Shares<T>& shares, int r) {
  return shares.x + shares.begin[r];
}

template <class T>
__device__ __forceinline__ void add_eight(Accumulator<T> (&sums)[8 / sizeof(T)], uint2 eight) {
  Packet<T, 8 / sizeof(T)> packet;
  memcpy(&packet, &eight, sizeof(packet));
#pragma unroll
  for (int lane = 0; lane < 8 / int(sizeof(T)); ++lane) sums[lane] += static_cast<Accumulator<T>>(packet.lanes[lane]);
}

// Sums stay on the ranks that add them up.
template <class T>
__global__ void __launch_bounds__(kTransferThreads, kBlocksPerSm)
    add_tagged(const __grid_constant__ Shares<T> shares, const __grid_constant__ Boxes boxes,
               const __grid_constant__ Device comm) {
  constexpr uint64_t kLanes = 8 / sizeof(T);
  const uint32_t tag = uint32_t(comm.epoch);
  const uint64_t first = (blockIdx.x * uint64_t(kTransferThreads) + threadIdx.x) * kLanes;
  const uint64_t step = gridDim.x * uint64_t(kTransferThreads) * kLanes;
  const auto eight_of = [](const T* from, uint64_t i, uint64_t count) {
    return load_eight(reinterpret_cast<const char*>(from + i), (count - i) * sizeof(T));
  };
  if (shares.one_way(comm.world_size)) {  // adders may then be slow to read
    comm.signal_begun();
    comm.wait_all_begun(1);
  }
  for (int k = 1; k < comm.world_size; ++k) {
    const int r = rank_after(comm, k);
    TaggedPair* box = boxes.box<TaggedPair>(comm, r, comm.rank);
    for (uint64_t i = first; i < shares.count[r]; i += step) {
      store_tagged(box + i / kLanes, eight_of(terms_for(shares, r), i, shares.count[r]), tag);
    }
  }
  for (uint64_t i = first; shares.copy && i < shares.copied; i += step) {
    store_eight(reinterpret_cast<char*>(shares.copy + i), eight_of(shares.x, i, shares.copied),
                (shares.copied - i) * sizeof(T));
  }
  comm.hold();
  const uint64_t count = shares.count[comm.rank];
  for (uint64_t i = first; i < count; i += step) {
    Accumulator<T> sums[kLanes] = {};
    for (int r = 0; r < comm.world_size; ++r) {
      if (r == comm.rank) {
        add_eight<T>(sums, eight_of(terms_for(shares, r), i, count));
      } else {
        add_eight<T>(sums, wait_tagged(boxes.box<TaggedPair>(comm, comm.rank, r) + i / kLanes, tag));
      }
    }
    Packet<T, int(kLanes)> packet;
#pragma unroll
    for (int lane = 0; lane < int(kLanes); ++lane) packet.lanes[lane] = static_cast<T>(sums[lane]);
    uint2 eight;
    memcpy(&eight, &packet, sizeof(eight));
    store_eight(reinterpret_cast<char*>(shares.sums + i), eight, (count - i) * sizeof(T));
  }
}

// What a block does in one round: pushes a slice of each share, or adds up a slice of its own rank's share.
template <class T>
struct Slice {
  uint64_t begin, count;  // in a share
  __device__ Slice(uint64_t share, int round, int rounds) {
    const uint64_t slices = uint64_t(rounds) * gridDim.x, slice = uint64_t(round) * gridDim.x + blockIdx.x;
    begin = Shares<T>::cut(share, slice, slices);
    count = Shares<T>::cut(share, slice + 1, slices) - begin;
  }
};

template <class T>
__global__ void __launch_bounds__(kTransferThreads, kBlocksPerSm)
    add_shares(const __grid_constant__ Shares<T> shares, const __grid_constant__ Boxes boxes, int rounds,
               const __grid_constant__ Device comm) {
  const int thread = int(threadIdx.x), own = comm.rank;
  const bool has_peer = thread < comm.world_size && thread != own;
  const bool adds = shares.count[own] > 0;
  if (shares.one_way(comm.world_size)) {  // adders may then be slow to read
    comm.signal_begun();
    comm.wait_all_begun(1);
  }

  for (int round = 0; round <= rounds; ++round) {
    if (round < rounds) {
      for (int k = 1; k < comm.world_size; ++k) {
        const int r = rank_after(comm, k);
        const Slice<T> slice(shares.count[r], round, rounds);
        copy_slice(boxes.box<T>(comm, r, own) + slice.begin, terms_for(shares, r) + slice.begin,
                   slice.count * sizeof(T));
      }
      __syncthreads();
      if (has_peer && shares.count[thread] > 0) comm.signal_block(round, thread);
      if (shares.copy) {
        const Slice<T> slice(shares.copied, round, rounds);
        copy_slice(shares.copy + slice.begin, shares.x + slice.begin, slice.count * sizeof(T));
      }
    }
    if (round > 0 && adds) {  // terms of the round before have had the time of this round's pushes to arrive
      if (has_peer) comm.wait_block(round - 1, thread);
      __syncthreads();
      const Slice<T> slice(shares.count[own], round - 1, rounds);
      const auto term = [&](int r) {
        return (r == own ? terms_for(shares, r) : boxes.box<const T>(comm, own, r)) + slice.begin;
      };
      const auto result = [&](int k) {
        const int r = shares.first_target + k;
        return comm.peer(shares.sums, r < comm.world_size ? r : r - comm.world_size) + slice.begin;
      };
      add_up<T>(slice.count, comm.world_size, term, shares.targets, result, 0, 1);
    }
  }
  // Sums on other ranks.
  __syncthreads();
  const int place = thread - shares.first_target + (thread < shares.first_target ? comm.world_size : 0);
  if (has_peer && adds && place < shares.targets) comm.signal_block(rounds, thread);
  if (has_peer && shares.gets_sums && shares.count[thread] > 0) comm.wait_block(rounds, thread);
}

template <class T>
void Shares<T>::launch_with_signals(const Comm& comm) const {
  const uint64_t sent = *std::max_element(count, count + comm.world_size), most = std::max(sent, copied);
  if (most == 0) return;
  const bool stays = targets == 1 && first_target == comm.rank && !gets_sums;
  if (is_tagged(sent * sizeof(T), comm) && stays) {
    add_tagged<T><<<blocks_for(most * sizeof(T), 8 * kTransferThreads), kTransferThreads, 0, comm.cuda_stream()>>>(
        *this, Boxes::for_tagged(comm), comm.device());
  } else {
    const unsigned blocks = blocks_for(most * sizeof(T), kSliceBytes);  // as many on every rank
    const int rounds = int(std::clamp<uint64_t>(most * sizeof(T) / (blocks * 4 * kSliceBytes), 1, kMostRounds));
    add_shares<T><<<blocks, kTransferThreads, 0, comm.cuda_stream()>>>(
        *this, Boxes::for_bytes(sent * sizeof(T), comm), rounds, comm.device());
  }
  PKB_CUDA_LAUNCHED();
}

}  // namespace pkb
