// pkb::Comm on the CPU: every rank's segment is mapped into this process. Include "pkb/symm.h".
#pragma once

#include <sched.h>
#include <time.h>

#include <atomic>
#include <cstring>

#ifndef PKB_LIGHT_FFI
#include <tvm/ffi/container/tensor.h>
#endif

#include "pkb/host_comm.h"

namespace pkb {

inline uint64_t now_ns() {
  timespec t;
  clock_gettime(CLOCK_MONOTONIC, &t);
  return uint64_t(t.tv_sec) * 1000000000u + uint64_t(t.tv_nsec);
}

// Of the rank that stands still in hold(), in its control page, kHoldOffset bytes from its place on.
struct Hold {
  uint64_t number;    // counted up at the beginning and at the end: odd while it stands still
  uint64_t released;  // number of the hold that is over; written by the evaluator alone
};
constexpr int kHoldOffset = 32;

class Comm : public HostComm {
 public:
  // Copies `bytes` from `from` to rank r's counterpart of `to`.
  void put(void* to, const void* from, uint64_t bytes, int r) const {
    check_rank(r);
    copy(peer(static_cast<char*>(to), r), from, bytes, r == rank ? nullptr : stats ? &stats->put_bytes : nullptr);
  }

  // Copies `bytes` from rank r's counterpart of `from` to `to`.
  void get(void* to, const void* from, uint64_t bytes, int r) const {
    check_rank(r);
    copy(to, peer(static_cast<const char*>(from), r), bytes, r == rank ? nullptr : stats ? &stats->got_bytes : nullptr);
  }

  // Word `slot` (0 .. kUserSignals-1) of rank r's signal pad.
  std::atomic<uint64_t>* signal_word(int slot, int r) const {
    return reinterpret_cast<std::atomic<uint64_t>*>(segments[r] + signal_offset) + slot;
  }

  // Sets word `slot` of rank r to `value`; what this rank wrote before is visible to whoever waits for it.
  void signal(int slot, int r, uint64_t value) const {
    check_rank(r);
    check_slot(slot);
    set_word(slot, r, value);
  }
  void signal(int slot, int r) const { signal(slot, r, epoch); }

  // Waits until word `slot` of this rank is at least `value`.
  void wait(int slot, uint64_t value) const {
    check_slot(slot);
    wait_for(slot, value);
    hold();
  }
  void wait(int slot) const { wait(slot, epoch); }

  // All ranks of a group meet (the world by default). What each wrote before is visible to all afterwards.
  void barrier(int64_t group_index = -1) const {
    const Group members = group(group_index);
    const int slot_base = kUserSignals + int(group_index < 0 ? 0 : group_index + 1) * kMaxRanks;
    const uint64_t count = ++barrier_counts[group_index < 0 ? 0 : group_index + 1];
    for (int i = 0; i < members.size; ++i) {
      if (i != members.rank) set_word(slot_base + members.rank, members.ranks[i], count);
    }
    for (int i = 0; i < members.size; ++i) {
      if (i != members.rank) wait_for(slot_base + i, count);
    }
    hold();
  }

 private:
  void set_word(int slot, int r, uint64_t value) const {
    if (stats) ++stats->signals;
    signal_word(slot, r)->store(value, std::memory_order_release);
  }

  void wait_for(int slot, uint64_t value) const {
    const std::atomic<uint64_t>* word = signal_word(slot, rank);
    if (word->load(std::memory_order_acquire) >= value) return;
    const uint64_t begin = stats ? now_ns() : 0;
    *place = Place{State::kWaiting, slot, value, place->call};
    wait_slowly(word, value);
    place->state = State::kInCall;
    if (stats) {
      stats->wait_ns += now_ns() - begin;
      ++stats->waits;
    }
  }

  // In some checked calls this rank stands still here, while others go on as far as they may: until the evaluator sees
  // that they go no further, or `hold_ns` are over.
  void hold() const {
    if (!hold_ns) return;
    Hold* own = reinterpret_cast<Hold*>(reinterpret_cast<char*>(place) + kHoldOffset);
    const uint64_t deadline = now_ns() + hold_ns, mine = __atomic_add_fetch(&own->number, 1, __ATOMIC_RELEASE);
    const timespec nap{0, 50000};
    do {
      nanosleep(&nap, nullptr);
    } while (__atomic_load_n(&own->released, __ATOMIC_ACQUIRE) < mine && now_ns() < deadline);
    __atomic_add_fetch(&own->number, 1, __ATOMIC_RELEASE);
  }

  void copy(void* to, const void* from, uint64_t bytes, uint64_t* counter) const {
    const uint64_t begin = stats ? now_ns() : 0;
    std::memcpy(to, from, bytes);
    if (stats) stats->copy_ns += now_ns() - begin;
    if (counter) *counter += bytes;
  }

  // Spins while that is cheap, then yields, then sleeps, so that a lost peer does not burn the processor.
  void wait_slowly(const std::atomic<uint64_t>* word, uint64_t value) const {
    const int spins = oversubscribed ? 20 : 1000;
    for (int i = 0; i < spins; ++i) {
      if (word->load(std::memory_order_acquire) >= value) return;
#if defined(__x86_64__)
      __builtin_ia32_pause();
#endif
    }
    for (int i = 0; i < 20000; ++i) {
      sched_yield();
      if (word->load(std::memory_order_acquire) >= value) return;
    }
    const timespec nap{0, 100000};
    while (word->load(std::memory_order_acquire) < value) nanosleep(&nap, nullptr);
  }
};

}  // namespace pkb
