// Collectives that add up all ranks' tensors, under the call contract: every rank adds up its share of the elements, for
// itself or for others.
//
// Small terms are pushed into the adders' scratch as tagged words, of which three quarters are data; nobody then reads a
// peer's arguments, and sums stay where they are formed. Larger terms are read where they lie, and sums go straight into
// all outputs that they belong to, between two meetings of corresponding blocks: both directions of a link are busy, and
// nothing is stored on the way. Sums are float32 (float64 for float64) in rank order, rounded once, and so the same bits
// wherever they are formed. A kernel that launches shares keeps nothing else in scratch.
//
//   pkb::Shares<T> shares(x, sums);                          // nobody adds anything yet
//   for (int r = 0; r < W; ++r) shares.give(r, r * n, n);    // rank r adds up n elements
//   shares.launch_with_signals(comm);
#pragma once

#include <algorithm>

#include "pkb/exchange_cuda.h"
#include "pkb/transfer_cuda.h"

// These depend on the machine; each can be set for tuning.
#ifndef PKB_MEETING_BYTES
#define PKB_MEETING_BYTES (1600 << 10)
#endif
#ifndef PKB_SHORT_BYTES
#define PKB_SHORT_BYTES (64 << 10)
#endif

namespace pkb {

// What the link moves in the time that meetings, and reads of peers' memory, take longer than tagged words.
constexpr uint64_t kMeetingBytes = PKB_MEETING_BYTES;
// Most bytes for each adder that are sent as words of 8 bytes of data, which take one access of a thread, and not of 12.
constexpr uint64_t kShortBytes = PKB_SHORT_BYTES;

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
  bool one_way(int world_size) const {
    return std::find(count, count + world_size, 0) != count + world_size;
  }

  void launch_with_signals(const Comm& comm) const;
};

// This rank's terms of the share of rank r, or of some elements of it.
template <class T>
__device__ __forceinline__ const T* terms_for(const Shares<T>& shares, int r) {
  return shares.x + shares.begin[r];
}

// Data of a tagged word: kBytes (8 or 12) from an address on, or as many as there are `left`.
template <int kBytes>
__device__ __forceinline__ uint3 load_triple(const char* from, uint64_t left) {
  using Unit = typename UnitOf<kBytes % 8 == 0 ? 8 : 4>::type;
  uint32_t words[3] = {};
  if (left >= kBytes && reinterpret_cast<uintptr_t>(from) % sizeof(Unit) == 0) {
    Unit units[kBytes / sizeof(Unit)];
#pragma unroll
    for (int i = 0; i < kBytes / int(sizeof(Unit)); ++i) units[i] = reinterpret_cast<const Unit*>(from)[i];
    memcpy(words, units, kBytes);
  } else {
#pragma unroll
    for (int i = 0; i < kBytes; ++i) {
      if (i < left) words[i / 4] |= uint32_t(uint8_t(from[i])) << 8 * (i % 4);
    }
  }
  return make_uint3(words[0], words[1], words[2]);
}

template <int kBytes>
__device__ __forceinline__ void store_triple(char* to, uint3 triple, uint64_t left) {
  using Unit = typename UnitOf<kBytes % 8 == 0 ? 8 : 4>::type;
  const uint32_t words[3] = {triple.x, triple.y, triple.z};
  if (left >= kBytes && reinterpret_cast<uintptr_t>(to) % sizeof(Unit) == 0) {
    Unit units[kBytes / sizeof(Unit)];
    memcpy(units, words, kBytes);
#pragma unroll
    for (int i = 0; i < kBytes / int(sizeof(Unit)); ++i) reinterpret_cast<Unit*>(to)[i] = units[i];
  } else {
#pragma unroll
    for (int i = 0; i < kBytes; ++i) {
      if (i < left) to[i] = char(words[i / 4] >> 8 * (i % 4));
    }
  }
}

// Sums stay on the ranks that add them up. Terms are sent as words of kBytes of data, kAtOnce of a thread in flight.
template <class T, int kBytes, int kAtOnce>
__global__ void __launch_bounds__(kTransferThreads, kBlocksPerSm)
    add_tagged(const __grid_constant__ Shares<T> shares, const __grid_constant__ Boxes boxes, bool one_way,
               const __grid_constant__ Device comm) {
  constexpr int kLanes = kBytes / int(sizeof(T));
  const uint32_t tag = uint32_t(comm.epoch);
  const uint64_t first = blockIdx.x * uint64_t(kTransferThreads) + threadIdx.x;
  const uint64_t step = gridDim.x * uint64_t(kTransferThreads);
  // This rank's terms for some words of a share, `step` words apart.
  const auto load = [&](uint3(&terms)[kAtOnce], int r, uint64_t word) {
    const char* from = reinterpret_cast<const char*>(terms_for(shares, r));
    const uint64_t bytes = shares.count[r] * sizeof(T);
#pragma unroll
    for (int i = 0; i < kAtOnce; ++i) {
      const uint64_t at = (word + i * step) * kBytes;
      if (at < bytes) terms[i] = load_triple<kBytes>(from + at, bytes - at);
    }
  };
  const auto words_of = [&](int r) { return (shares.count[r] + kLanes - 1) / kLanes; };

  if (one_way) {  // adders may then be slow to read
    comm.signal_begun();
    comm.wait_all_begun(1);
  }
  for (int k = 1; k < comm.world_size; ++k) {
    const int r = rank_after(comm, k);
    TaggedTriple* box = boxes.box<TaggedTriple>(comm, r, comm.rank);
    const uint64_t words = words_of(r);
    for (uint64_t word = first; word < words; word += kAtOnce * step) {
      uint3 terms[kAtOnce];
      load(terms, r, word);
#pragma unroll
      for (int i = 0; i < kAtOnce; ++i) {
        if (word + i * step < words) store_tagged(box + word + i * step, terms[i], tag);
      }
    }
  }
  if (shares.copy) {
    copy(reinterpret_cast<char*>(shares.copy), reinterpret_cast<const char*>(shares.x), shares.copied * sizeof(T),
         blockIdx.x, gridDim.x);
  }
  comm.hold();
  const uint64_t words = words_of(comm.rank), bytes = shares.count[comm.rank] * sizeof(T);
  for (uint64_t word = first; word < words; word += kAtOnce * step) {
    uint3 own[kAtOnce];
    load(own, comm.rank, word);  // before the wait, behind which every load counts
    Accumulator<T> sums[kAtOnce][kLanes] = {};
    int count = 0;
#pragma unroll
    for (int i = 0; i < kAtOnce; ++i) count += word + i * step < words;
    for (int r = 0; r < comm.world_size; ++r) {
      uint3 terms[kAtOnce];
      if (r == comm.rank) {
        memcpy(terms, own, sizeof(own));
      } else {
        wait_tagged(boxes.box<TaggedTriple>(comm, comm.rank, r) + word, step, count, tag, terms);
      }
#pragma unroll
      for (int i = 0; i < kAtOnce; ++i) {
        if (i >= count) break;
        T lanes[kLanes];
        memcpy(lanes, &terms[i], sizeof(lanes));
#pragma unroll
        for (int lane = 0; lane < kLanes; ++lane) sums[i][lane] += static_cast<Accumulator<T>>(lanes[lane]);
      }
    }
#pragma unroll
    for (int i = 0; i < kAtOnce; ++i) {
      if (i >= count) break;
      T lanes[kLanes];
#pragma unroll
      for (int lane = 0; lane < kLanes; ++lane) lanes[lane] = static_cast<T>(sums[i][lane]);
      uint3 triple{};
      memcpy(&triple, lanes, sizeof(lanes));
      const uint64_t at = (word + i * step) * kBytes;
      store_triple<kBytes>(reinterpret_cast<char*>(shares.sums) + at, triple, bytes - at);
    }
  }
}

// Terms are read where they lie.
template <class T>
__global__ void __launch_bounds__(kTransferThreads, kBlocksPerSm)
    add_in_place(const __grid_constant__ Shares<T> shares, const __grid_constant__ Device comm) {
  comm.barrier_blocks(0);
  const auto term = [&](int r) { return comm.peer(terms_for(shares, comm.rank), r); };
  const auto result = [&](int k) {
    const int r = shares.first_target + k;
    return comm.peer(shares.sums, r < comm.world_size ? r : r - comm.world_size);
  };
  add_up<T>(shares.count[comm.rank], comm.world_size, term, shares.targets, result, blockIdx.x, gridDim.x);
  if (shares.copy) {
    copy(reinterpret_cast<char*>(shares.copy), reinterpret_cast<const char*>(shares.x), shares.copied * sizeof(T),
         blockIdx.x, gridDim.x);
  }
  comm.barrier_blocks(1);
}

// Bytes of data in a word: all that fit, but for short messages.
template <class T>
constexpr int kLongBytes = 12 / int(sizeof(T)) * int(sizeof(T));
template <class T>
int bytes_of_word(uint64_t terms) {
  return terms * sizeof(T) <= kShortBytes ? 8 : kLongBytes<T>;
}

// Whether so many terms for each rank are best pushed as tagged words, where else `otherwise` bytes would cross the link
// into a rank.
template <class T>
bool adds_tagged(uint64_t terms, uint64_t otherwise, const Comm& comm) {
  const uint64_t others = comm.world_size - 1, of_word = bytes_of_word<T>(terms);
  const uint64_t bytes = (terms * sizeof(T) + of_word - 1) / of_word * sizeof(TaggedTriple);
  return others > 0 && others * bytes <= otherwise + kMeetingBytes && Boxes::for_tagged_alone(comm).hold(bytes);
}

template <class T>
void Shares<T>::launch_with_signals(const Comm& comm) const {
  const uint64_t sent = *std::max_element(count, count + comm.world_size), most = std::max(sent, copied);
  if (most == 0) return;
  if (comm.world_size == 1) {  // its terms are the sums
    if (copy) comm.put(copy, x, copied * sizeof(T), 0);
    return comm.put(sums, x + begin[0], count[0] * sizeof(T), 0);
  }
  const bool stays = targets == 1 && first_target == comm.rank && !gets_sums;
  if (stays && adds_tagged<T>(sent, (comm.world_size - 1) * sent * sizeof(T), comm)) {
    const int of_word = bytes_of_word<T>(sent);
    const auto add = of_word == 8 ? add_tagged<T, 8, 1> : add_tagged<T, kLongBytes<T>, 4>;
    const unsigned blocks = blocks_for(most * sizeof(T), uint64_t(of_word) * kTransferThreads);
    add<<<blocks, kTransferThreads, 0, comm.cuda_stream()>>>(*this, Boxes::for_tagged_alone(comm),
                                                             one_way(comm.world_size), comm.device());
  } else {  // as many blocks on every rank
    const unsigned blocks = blocks_for(most * sizeof(T), kSumTile);
    add_in_place<T><<<blocks, kTransferThreads, 0, comm.cuda_stream()>>>(*this, comm.device());
  }
  PKB_CUDA_LAUNCHED();
}

}  // namespace pkb
