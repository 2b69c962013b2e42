// Rows of tokens on the ranks that host their experts: where each token's rows lie is worked out on the device by their
// owner and given to all ranks of the group, so that rows can be moved, or summed, once for each token and rank.
//
// Pairs (expert, token) in ascending order are cut into pieces, one for each member of the group. A member keeps the rows
// of a piece by its local expert first, and by source second, as the exchange of a mixture-of-experts layer has it
// (D. Lepikhin et al., GShard, arXiv:2006.16668; Megatron-LM's dispatcher). A slot says for one of a token's pairs which
// member has its row and which row of the piece it is, and may carry a weight.
//
//   pkb::share_slots(slots, token, K, next, comm)     // in one kernel: a thread a token writes its slots to all members
//   auto sources = slots.sources(comm)                // in the next: waits for all members' slots
//
// Slots lie in scratch, by the rank that wrote them. A call's slots may be overwritten when their writer's call has ended:
// it must then have waited for those that read them. Bound: latency; a slot takes 8 or 16 bytes.
#pragma once

#include <cstdint>

#include "pkb/launch_cuda.h"
#include "pkb/symm.h"
#include "pkb/teams_cuda.h"

namespace pkb {

constexpr int kMaxSlots = 32;            // of a token: a warp looks at all of them at once
constexpr int kSlotWords = 0;            // words of the signal pad, one for each sender: epoch and tokens
constexpr int kSlotRowBits = 28;         // of a slot's row in its piece; the member's place takes the others
constexpr uint32_t kNoSlot = 0xffffffff;

template <class Weight>
struct Slot {
  uint32_t place;  // member << kSlotRowBits | row, or kNoSlot
  Weight weight;

  __device__ __forceinline__ int member() const { return int(place >> kSlotRowBits); }
  __device__ __forceinline__ int64_t row() const { return place & ((1u << kSlotRowBits) - 1); }
  __device__ __forceinline__ bool is_at(int place_in_group) const {
    return place != kNoSlot && member() == place_in_group;
  }
};

// What all members know alike: sizes, and the group argument.
template <class Weight>
struct Slots {
  int64_t group;
  int64_t tokens;       // of this rank
  int of_token;         // slots
  uint64_t sender_bytes;  // of scratch, for the slots of one rank
  int64_t begin[kMaxRanks + 1];  // first pair of the piece for each member

  // Throws if scratch, of which slots take a quarter, is too small.
  template <class Splits>
  static Slots of(int64_t tokens, int64_t slots, const Splits& pieces, int64_t group, const Comm& comm) {
    Slots made{};
    made.group = group;
    made.tokens = tokens;
    made.of_token = int(slots);
    made.sender_bytes = comm.scratch_bytes / 4 / comm.world_size / 256 * 256;
    const int members = comm.group(group).size;
    for (int member = 0; member < members; ++member) made.begin[member + 1] = made.begin[member] + pieces[member];
    if (slots > kMaxSlots || made.begin[members] >> kSlotRowBits) {
      TVM_FFI_THROW(ValueError) << "expected at most " << kMaxSlots << " experts of a token and 2^" << kSlotRowBits
                                << " rows, got " << slots << " and " << made.begin[members];
    }
    if (tokens * slots * sizeof(Slot<Weight>) > made.sender_bytes) {
      TVM_FFI_THROW(ValueError) << "a quarter of scratch holds " << made.sender_bytes << " bytes of slots a rank, not "
                                << tokens * slots * sizeof(Slot<Weight>);
    }
    return made;
  }
  // The other three quarters of scratch are the caller's.
  static uint64_t end(const Comm& comm) { return comm.scratch_bytes / 4 / 256 * 256; }

  // Slots that a rank has written, in the memory of another.
  __device__ __forceinline__ Slot<Weight>* at(int receiver, int sender, const Device& comm) const {
    return comm.peer(comm.scratch<Slot<Weight>>(sender * sender_bytes), receiver);
  }
  // The pair of this number, as a slot.
  __device__ __forceinline__ uint32_t place_of(int64_t pair) const {
    int member = 0;
    while (pair >= begin[member + 1]) ++member;
    return uint32_t(member) << kSlotRowBits | uint32_t(pair - begin[member]);
  }
  // Gives slot k of one of this rank's tokens to all members.
  __device__ __forceinline__ void share(int64_t token, int k, const Slot<Weight>& slot, const Device& comm) const {
    for (int member = 0; member < comm.group_size(group); ++member) {
      at(comm.group_member(group, member), comm.rank, comm)[token * of_token + k] = slot;
    }
  }

  // Says that this rank's slots are there, in the kernel after share(), and waits for those of all members; by all
  // threads of every block. Fills in how many tokens each member has, in shared memory.
  __device__ __forceinline__ void await(int64_t* tokens_of, const Device& comm) const {
    const int thread = int(threadIdx.x), own = comm.group_rank(group);
    const bool has_peer = thread < comm.group_size(group) && thread != own;
    const int peer = has_peer ? comm.group_member(group, thread) : comm.rank;
    if (blockIdx.x == 0 && has_peer) comm.signal(kSlotWords + comm.rank, peer, comm.epoch << 32 | uint64_t(tokens));
    comm.hold();
    if (has_peer) {
      comm.wait(kSlotWords + peer, comm.epoch << 32);
      tokens_of[thread] = int64_t(load_acquire(comm.signal_word(kSlotWords + peer, comm.rank)) & 0xffffffff);
    }
    if (thread == own) tokens_of[own] = tokens;
    __syncthreads();
  }
};

// Which of this rank's rows a row of a member's piece is; counts (members, local experts) are rows of each.
class LocalRows {
 public:
  static int64_t shared_bytes(int members, int local) { return 2 * int64_t(members) * local * sizeof(int64_t); }

  // By all threads of a block, with shared memory of shared_bytes(). A barrier of the block must follow before its use.
  __device__ __forceinline__ LocalRows(const int64_t* counts, int members, int local, int64_t* shared)
      : local_(local), before_(shared), first_(shared + members * local) {
    const int thread = int(threadIdx.x);
    if (thread < members) {
      int64_t rows = 0;
      for (int expert = 0; expert < local; ++expert) {
        before_[thread * local + expert] = rows;
        rows += counts[thread * local + expert];
      }
    }
    if (warp_id() == 0) {  // lanes go through the experts, 32 at a time
      int64_t done = 0;
      for (int base = 0; base < local; base += 32) {
        const int expert = base + lane_id();
        int64_t all = 0;
        for (int member = 0; expert < local && member < members; ++member) all += counts[member * local + expert];
        int64_t up_to = all;
#pragma unroll
        for (int apart = 1; apart < 32; apart *= 2) {
          const int64_t other = __shfl_up_sync(kAllLanes, up_to, apart);
          if (lane_id() >= apart) up_to += other;
        }
        int64_t row = done + up_to - all;
        for (int member = 0; expert < local && member < members; ++member) {
          first_[member * local + expert] = row;
          row += counts[member * local + expert];
        }
        done += __shfl_sync(kAllLanes, up_to, 31);
      }
    }
  }

  __device__ __forceinline__ int64_t operator()(int member, int64_t row) const {
    int expert = 0;
    while (expert + 1 < local_ && row >= before_[member * local_ + expert + 1]) ++expert;
    return first_[member * local_ + expert] + row - before_[member * local_ + expert];
  }

 private:
  int local_;
  int64_t* before_;  // (members, local): rows of the member for the experts before
  int64_t* first_;   // (members, local): first of this rank's rows
};

}  // namespace pkb
