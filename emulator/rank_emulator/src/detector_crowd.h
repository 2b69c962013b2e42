// Words that many threads' atomics have stored to, such as counters: what all of these bring to a load together, since a look
// at each of them would make n atomics cost n * n.
#pragma once

#include <array>
#include <cstdint>
#include <deque>
#include <memory>
#include <unordered_map>
#include <vector>

#include "detector_state.h"

namespace pkb::emulator::detector {

// One lane's strong store.
struct Published {
  std::shared_ptr<const Release> release;
  int lane;
};

// What stores bring to a load that observes them.
struct Brought {
  ClockRef clock;
  ClockRef proxied_global, proxied_shared;
  ClockRef initial;     // what came before their kernels
  ClockRef led_on;      // what came before fences.sc of system scope before them
  ClockRef sequential;  // what came before fences.sc of the load's distance before them

  void join(Clocks& clocks, const Brought& other);
};

// Stores by their number, the last ones; those that failed edges may come from.
struct Publications {
  static constexpr size_t kMost = 1 << 14;

  uint64_t first = 0;
  std::deque<Published> kept;

  uint64_t end() const { return first + kept.size(); }
  const Published& at(uint64_t number) const { return kept[size_t(number - first)]; }
  const Published& last() const { return kept.back(); }
  std::vector<Published> all() const { return {kept.begin(), kept.end()}; }
  void add(const Published& published);
};

struct Crowd {
  // Stores of one block, cluster or rank, or all: what is brought at least as far as that to a load within.
  struct Group {
    Brought brought;
    uint64_t stores = 0;
    bool fails = false;  // some bring less than all that came before them
  };

  std::shared_ptr<Publications> publications = std::make_shared<Publications>();
  std::array<std::unordered_map<uint64_t, Group>, kScopes> groups;  // by distance, then by `group_at` of a warp

  static uint64_t group_at(const Agents& agents, Scope distance, Key warp);
};

}  // namespace pkb::emulator::detector
