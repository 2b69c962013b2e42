#include "detector_clock.h"

#include <algorithm>

namespace pkb::emulator::detector {

namespace {

constexpr int kNear = 8;  // entries that are looked at one by one before a binary search

bool before(const Entry& entry, Key key) { return entry.key < key; }

// Whether every entry of `b` is in `a` already.
bool contains(const Clock& a, const Clock& b) {
  if (b.latest > a.latest || b.entries.size() > a.entries.size()) return false;
  auto at = a.entries.begin();
  const auto end = a.entries.end();
  for (const Entry& entry : b.entries) {
    for (int i = 0; i < kNear && at != end && at->key < entry.key; ++i) ++at;
    if (at != end && at->key < entry.key) at = std::lower_bound(at, end, entry.key, before);
    if (at == end || at->key != entry.key || at->time < entry.time) return false;
  }
  return true;
}

// Times of the agents above those of a clock. Quick where they are looked up in the order of their keys: neighbours have
// the same parents, or parents that are neighbours.
class TimesAbove {
 public:
  TimesAbove(const Entry* entries, const Entry* end, const AgentTree& tree) : tree_(tree) {
    const Entry* begin = entries;
    for (uint32_t kind = 0; kind < kKinds; ++kind) {
      const Entry* const next =
          kind + 1 == kKinds ? end : std::lower_bound(begin, end, key_of(AgentKind(kind + 1), 0), before);
      levels_[kind] = {begin, next, begin, 0, 0};
      begin = next;
    }
  }

  // The latest time of all agents above one; 0 for none.
  Time of(Key key) {
    const Key parent = tree_.parent(key);
    if (!parent) return 0;
    Level& level = levels_[size_t(kind_of(parent))];
    if (level.last != parent) {
      const Time time = std::max(time_of(level, parent), of(parent));
      level.last = parent;
      level.time = time;
    }
    return level.time;
  }

 private:
  static constexpr uint32_t kKinds = uint32_t(AgentKind::kDelivery) + 1;
  // The entries of one kind, the place of the last look-up, and its result with all above.
  struct Level {
    const Entry *begin, *end, *at;
    Key last;
    Time time;
  };

  static Time time_of(Level& level, Key key) {
    if (level.at > level.begin && level.at[-1].key >= key) level.at = level.begin;
    for (int i = 0; i < kNear && level.at < level.end && level.at->key < key; ++i) ++level.at;
    if (level.at < level.end && level.at->key < key) level.at = std::lower_bound(level.at, level.end, key, before);
    return level.at < level.end && level.at->key == key ? level.at->time : 0;
  }

  const AgentTree& tree_;
  Level levels_[kKinds];
};

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
    Entry* to = room_for(a->entries.size() + b->entries.size());
    const Entry *i = a->entries.data(), *j = b->entries.data();
    const Entry *const end_of_a = i + a->entries.size(), *const end_of_b = j + b->entries.size();
    while (i != end_of_a && j != end_of_b) {
      if (i->key < j->key) {
        *to++ = *i++;
      } else if (j->key < i->key) {
        *to++ = *j++;
      } else {
        *to++ = {i->key, std::max(i->time, j->time)};
        ++i, ++j;
      }
    }
    to = std::copy(j, end_of_b, std::copy(i, end_of_a, to));
    result = make(to, std::max(a->latest, b->latest), std::max(a->pruned_size, b->pruned_size));
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
  Time latest = base ? base->latest : 0;
  for (const Entry& entry : news) latest = std::max(latest, entry.time);
  Entry* to = room_for((base ? base->entries.size() : 0) + news.size());
  auto j = news.begin();
  if (base) {
    for (const Entry& entry : base->entries) {
      while (j != news.end() && j->key < entry.key) *to++ = *j++;
      *to++ = j != news.end() && j->key == entry.key ? *j++ : entry;  // the new one is later
    }
  }
  return make(std::copy(j, news.end(), to), latest, base ? base->pruned_size : 0);
}

Entry* Clocks::room_for(size_t entries) {
  if (merged_.size() < entries) merged_.resize(2 * entries);
  return merged_.data();
}

// A clock of the merged entries. Those that an ancestor's covers are dropped where clocks have grown much since that was
// last done.
ClockRef Clocks::make(Entry* end, Time latest, uint32_t pruned_size) {
  Entry* const begin = merged_.data();
  const auto size = size_t(end - begin);
  if (size >= kLeastPruned && size >= pruned_size + pruned_size / 2) {
    TimesAbove above(begin, end, tree_);
    kept_.resize(merged_.size());
    Entry* to = kept_.data();
    for (const Entry* at = begin; at != end; ++at) {
      if (above.of(at->key) < at->time) *to++ = *at;
    }
    end = std::copy(kept_.data(), to, begin);
    pruned_size = uint32_t(end - begin);
  }
  auto* clock = new Clock(++made_);
  clock->pruned_size = pruned_size;
  clock->latest = latest;
  clock->entries.assign(static_cast<const Entry*>(begin), static_cast<const Entry*>(end));
  return ClockRef(clock);
}

}  // namespace pkb::emulator::detector
