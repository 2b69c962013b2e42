#include "detector_clock.h"

#include <algorithm>

namespace pkb::emulator {

namespace {

bool before(const Entry& entry, Key key) { return entry.key < key; }

// Whether every entry of `b` is in `a` already.
bool contains(const Clock& a, const Clock& b) {
  auto at = a.entries.begin();
  for (const Entry& entry : b.entries) {
    at = std::lower_bound(at, a.entries.end(), entry.key, before);
    if (at == a.entries.end() || at->key != entry.key || at->time < entry.time) return false;
  }
  return true;
}

}  // namespace

Time Clock::time_of(Key key) const {
  const auto at = std::lower_bound(entries.begin(), entries.end(), key, before);
  return at != entries.end() && at->key == key ? at->time : 0;
}

ClockRef Clocks::join(const ClockRef& a, const ClockRef& b) {
  if (a == b || !b || b->entries.empty()) return a;
  if (!a || a->entries.empty()) return b;
  const size_t slot = (reinterpret_cast<uintptr_t>(a.get()) / 16 * 31 + reinterpret_cast<uintptr_t>(b.get()) / 16) % kJoins;
  Join& known = joins_[slot];
  if (known.a == a && known.b == b) return known.result;
  ClockRef result;
  if (contains(*a.get(), *b.get())) {
    result = a;
  } else if (contains(*b.get(), *a.get())) {
    result = b;
  } else {
    auto* clock = new Clock;
    result = ClockRef(clock);
    clock->entries.reserve(a->entries.size() + b->entries.size());
    auto i = a->entries.begin();
    auto j = b->entries.begin();
    while (i != a->entries.end() || j != b->entries.end()) {
      if (j == b->entries.end() || (i != a->entries.end() && i->key < j->key)) {
        clock->entries.push_back(*i++);
      } else if (i == a->entries.end() || j->key < i->key) {
        clock->entries.push_back(*j++);
      } else {
        clock->entries.push_back({i->key, std::max(i->time, j->time)});
        ++i, ++j;
      }
    }
    clock->pruned_size = std::max(a->pruned_size, b->pruned_size);
    prune(*clock);
  }
  known = {a, b, result};
  return result;
}

ClockRef Clocks::with(const ClockRef& base, const Entry* entries, int count) {
  bool adds = false;
  for (int i = 0; i < count && !adds; ++i) adds = entries[i].time > (base ? base->time_of(entries[i].key) : 0);
  if (!adds) return base;
  auto* clock = new Clock;
  const ClockRef result(clock);
  if (base) {
    clock->entries.reserve(base->entries.size() + size_t(count));
    clock->entries = base->entries;
    clock->pruned_size = base->pruned_size;
  }
  for (int i = 0; i < count; ++i) {
    if (entries[i].time == 0) continue;
    const auto at = std::lower_bound(clock->entries.begin(), clock->entries.end(), entries[i].key, before);
    if (at != clock->entries.end() && at->key == entries[i].key) {
      at->time = std::max(at->time, entries[i].time);
    } else {
      clock->entries.insert(at, entries[i]);
    }
  }
  prune(*clock);
  return result;
}

// Drops entries that an ancestor's covers, where clocks have grown much since that was last done.
void Clocks::prune(Clock& clock) const {
  if (clock.entries.size() < 24 || clock.entries.size() < clock.pruned_size + clock.pruned_size / 2) return;
  const auto is_covered = [&](const Entry& entry) {
    for (Key key = tree_.parent(entry.key); key; key = tree_.parent(key)) {
      if (clock.time_of(key) >= entry.time) return true;
    }
    return false;
  };
  std::vector<Entry> kept;
  kept.reserve(clock.entries.size());
  for (const Entry& entry : clock.entries) {
    if (!is_covered(entry)) kept.push_back(entry);
  }
  clock.entries.swap(kept);
  clock.pruned_size = uint32_t(clock.entries.size());
}

}  // namespace pkb::emulator
