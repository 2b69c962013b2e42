#include "detector_clock.h"

#include <algorithm>

namespace pkb::emulator::detector {

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

void ClockRef::release(const Clock* clock) { delete clock; }

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
    auto* clock = new Clock(++made_);
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
    clock->latest = std::max(a->latest, b->latest);
    prune(*clock);
  }
  known = {a, b, result};
  return result;
}

ClockRef Clocks::with(const ClockRef& base, const Entry* entries, int count) {
  std::vector<Entry>& news = scratch_;
  news.clear();
  for (int i = 0; i < count; ++i) {
    if (entries[i].time > (base ? base->time_of(entries[i].key) : 0)) news.push_back(entries[i]);
  }
  if (news.empty()) return base;
  std::sort(news.begin(), news.end(), [](const Entry& a, const Entry& b) {
    return a.key != b.key ? a.key < b.key : a.time > b.time;  // the latest of a key comes first and stays
  });
  news.erase(std::unique(news.begin(), news.end(), [](const Entry& a, const Entry& b) { return a.key == b.key; }), news.end());
  auto* clock = new Clock(++made_);
  const ClockRef result(clock);
  clock->latest = base ? base->latest : 0;
  for (const Entry& entry : news) clock->latest = std::max(clock->latest, entry.time);
  if (!base) {
    clock->entries = news;
    return result;
  }
  clock->entries.reserve(base->entries.size() + news.size());
  auto j = news.begin();
  for (const Entry& entry : base->entries) {
    while (j != news.end() && j->key < entry.key) clock->entries.push_back(*j++);
    if (j != news.end() && j->key == entry.key) clock->entries.push_back(*j++);  // later than the base's
    else clock->entries.push_back(entry);
  }
  clock->entries.insert(clock->entries.end(), j, news.end());
  clock->pruned_size = base->pruned_size;
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

}  // namespace pkb::emulator::detector
