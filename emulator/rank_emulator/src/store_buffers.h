// Store buffers: ordinary stores of a thread to global memory that only a part of the others can see yet.
//
// A weak or relaxed store waits here until it takes effect, in any order that coherence and fences allow: stores to one place
// keep their order, a fence or a release makes what its thread can see visible to its scope, and the end of a kernel to all.
// Threads of that scope read a waiting store as if memory held it. The stores of one instruction take effect together, as
// protocols that carry a flag within the data ask of GPUs.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <random>
#include <vector>

#include "events.h"

namespace pkb::emulator {

// The warp that executes, and what it belongs to.
struct WarpId {
  uint64_t launch;
  int rank;
  uint32_t cluster, block, warp;
};

// Bytes of each lane, gathered.
struct LaneBytes {
  static constexpr uint32_t kMaxBytes = 32;
  alignas(64) char bytes[kLanes * kMaxBytes];
  uint64_t addresses[kLanes];  // of each lane's bytes in here
};

class StoreBuffers {
 public:
  // Whether stores may wait from now on, and which of them and how long.
  void choose(bool is_on, uint64_t seed);
  bool is_on() const { return is_on_; }
  bool empty() const { return stores_.empty(); }
  // Of a launch: whether stores wait.
  bool holds(uint64_t launch) const;

  // What the warp sees at these addresses. False: memory alone, and `to` has no meaning.
  bool read(const WarpId& warp, uint32_t lanes, const uint64_t (&addresses)[kLanes], uint32_t bytes, LaneBytes& to) const;
  // What these places have once all stores have taken effect, as `read` gives it.
  bool read_all(uint32_t lanes, const uint64_t (&addresses)[kLanes], uint32_t bytes, LaneBytes& to) const;
  // A store of the warp, which may take effect at once: true if memory has changed.
  bool write(const WarpId& warp, uint32_t lanes, const uint64_t (&addresses)[kLanes], uint32_t bytes, const LaneBytes& from, Order order, uint64_t step);
  // Memory has what the warp can see of this range: for instructions that read and write memory alone.
  bool settle(const WarpId& warp, uint64_t address, uint64_t bytes);
  // What the warp can see, all threads of this scope can see from now on. True if memory has changed.
  bool publish(const WarpId& warp, Scope scope);

  // Stores whose time has come take effect; true if memory has changed.
  bool run(uint64_t step);
  // One of them does, whenever its time would be.
  bool run_one();
  void clear() { stores_.clear(); }

  // Whether memory may still be written, which it then is.
  std::function<bool(uint64_t address, uint64_t bytes)> admit;

 private:
  struct Store {
    WarpId warp;
    Scope scope;          // kNone: its warp can see it; kCta, kCluster, kGpu: those of that scope
    uint64_t due;         // step
    uint32_t lanes, bytes;
    uint64_t low, high;   // of all addresses
    LaneBytes content;    // addresses: where the bytes go
    bool overlaps(uint64_t begin, uint64_t end) const;
  };

  bool sees(const WarpId& warp, const Store& store) const;
  // As `read`, of the stores for which is_seen(store).
  template <class Seen>
  bool read_seen(uint32_t lanes, const uint64_t (&addresses)[kLanes], uint32_t bytes, LaneBytes& to, const Seen& is_seen) const;
  // Steps for which a store of a launch is to wait; 0: it does not.
  uint64_t wait_of(uint64_t launch, Order order);
  // The store takes effect, after older ones to the same bytes.
  bool perform(size_t index);
  // Of the first so many stores those to these bytes take effect.
  bool perform_overlapping(size_t count, uint32_t lanes, const uint64_t (&addresses)[kLanes], uint32_t bytes);
  bool to_memory(uint32_t lanes, const uint64_t (&addresses)[kLanes], uint32_t bytes, const LaneBytes& from) const;

  std::vector<std::unique_ptr<Store>> stores_;  // in the order of their instructions, which is that of coherence
  bool is_on_ = false;
  uint64_t seed_ = 0;
  std::mt19937_64 random_;
};

}  // namespace pkb::emulator
