// What kernels share that send messages between ranks under the call contract: boxes for messages in scratch, and
// accesses of 8 bytes for those that are sent as tagged words (pkb/tagged_cuda.h).
//
// A message into a box needs neither an entry synchronisation, since scratch is always there, nor an exit one, since
// nobody reads the sender's arguments: the receiver waits for the message, and that is all. Boxes lie in two halves of
// scratch by the parity of the epoch. So a sender may be one call ahead of a receiver, never two. Where all ranks wait
// for each other's messages in every call, none can be. Where messages go one way, senders wait_all_begun(1) first: who
// has begun the last call has read what came in the one before.
#pragma once

#include <cuda_runtime.h>

#include <cstdint>
#include <cstring>

#ifndef PKB_LIGHT_FFI
#include <tvm/ffi/error.h>
#endif

#include "pkb/symm.h"
#include "pkb/tagged_cuda.h"

// Depends on the machine; can be set for tuning.
#ifndef PKB_TAGGED_BYTES
#define PKB_TAGGED_BYTES (256 << 10)
#endif

namespace pkb {

// Most bytes that a rank sends as tagged words: they take twice the room on the link, and save the crossing of a signal.
constexpr uint64_t kTaggedBytes = PKB_TAGGED_BYTES;

// Whether messages of so many bytes to all other ranks are best sent as tagged words.
inline bool is_tagged(uint64_t bytes, const Comm& comm) {
  return comm.world_size > 1 && bytes * (comm.world_size - 1) <= kTaggedBytes;
}

// The k-th rank after this one: ranks begin with different peers.
__device__ __forceinline__ int rank_after(const Device& comm, int k) {
  const int r = comm.rank + k;
  return r < comm.world_size ? r : r - comm.world_size;
}

// A box for each other rank in every rank's scratch. Those of tagged words lie first, where no other data ever lies.
class Boxes {
 public:
  // For messages of which is_tagged() is true.
  static Boxes for_tagged(const Comm& comm) { return Boxes(comm, 0, tagged_half(comm)); }

  // For tagged words of kernels that have no other messages in scratch.
  static Boxes for_tagged_alone(const Comm& comm) {
    return Boxes(comm, 0, comm.scratch_bytes / 2 / kAlignment * kAlignment);
  }

  // For messages of up to so many bytes. Throws if scratch is too small.
  static Boxes for_bytes(uint64_t bytes, const Comm& comm) {
    const uint64_t begin = 2 * tagged_half(comm), others = comm.world_size - 1;
    const uint64_t half = (comm.scratch_bytes - begin) / 2 / kAlignment * kAlignment;
    const Boxes boxes(comm, begin, half);
    if (others * bytes > 0 && bytes > boxes.bytes_) {
      TVM_FFI_THROW(ValueError) << "boxes in scratch of " << comm.scratch_bytes << " bytes hold " << boxes.bytes_
                                << " bytes each, not " << bytes;
    }
    return boxes;
  }

  // Whether a message of so many bytes fits.
  bool hold(uint64_t bytes) const { return bytes <= bytes_; }

  // The receiver's box of this sender; another rank.
  template <class T>
  __device__ __forceinline__ T* box(const Device& comm, int receiver, int sender) const {
    const int place = sender - receiver - 1 + (sender < receiver ? comm.world_size : 0);
    return comm.peer(comm.scratch<T>(begin_ + place * bytes_), receiver);
  }

 private:
  static constexpr uint64_t kAlignment = 256;

  // All boxes of one half, for W - 1 messages that are together kTaggedBytes long, and twice that as tagged words.
  static uint64_t tagged_half(const Comm& comm) {
    return 2 * kTaggedBytes + 2 * (comm.world_size - 1) * kAlignment;
  }

  Boxes(const Comm& comm, uint64_t begin, uint64_t half)
      : begin_(begin + comm.epoch % 2 * half),
        bytes_(comm.world_size > 1 ? half / (comm.world_size - 1) / kAlignment * kAlignment : 0) {}

  uint64_t begin_;  // in scratch, of this call's half
  uint64_t bytes_;  // of one box
};

// Eight bytes from any address on, as far as there are so many `left`, and zeros.
__device__ __forceinline__ uint2 load_eight(const char* from, uint64_t left) {
  uint2 eight{0, 0};
  if (left >= 8 && reinterpret_cast<uintptr_t>(from) % 8 == 0) return *reinterpret_cast<const uint2*>(from);
#pragma unroll
  for (int i = 0; i < 8; ++i) {
    if (i >= left) break;
    const uint32_t byte = uint8_t(from[i]);
    if (i < 4) eight.x |= byte << 8 * i;
    else eight.y |= byte << 8 * (i - 4);
  }
  return eight;
}

__device__ __forceinline__ void store_eight(char* to, uint2 eight, uint64_t left) {
  if (left >= 8 && reinterpret_cast<uintptr_t>(to) % 8 == 0) {
    *reinterpret_cast<uint2*>(to) = eight;
    return;
  }
#pragma unroll
  for (int i = 0; i < 8; ++i) {
    if (i < left) to[i] = char((i < 4 ? eight.x : eight.y) >> 8 * (i % 4));
  }
}

}  // namespace pkb
