#include "detector_clock.h"

#include <algorithm>

namespace pkb::emulator::detector {

namespace {

constexpr int kNear = 8;  // entries that are looked at one by one before a binary search

bool before(const Entry& entry, Key key) { return entry.key < key; }

// Entries that are looked up in the order of their keys.
class Cursor {
 public:
  explicit Cursor(std::span<const Entry> entries) : at_(entries.data()), end_(entries.data() + entries.size()) {}

  Time of(Key key) {
    for (int i = 0; i < kNear && at_ != end_ && at_->key < key; ++i) ++at_;
    if (at_ != end_ && at_->key < key) at_ = std::lower_bound(at_, end_, key, before);
    return at_ != end_ && at_->key == key ? at_->time : 0;
  }

 private:
  const Entry *at_, *end_;
};

std::span<const Entry> of_base(const Clock& clock) {
  return clock.base ? std::span<const Entry>(clock.base->entries) : std::span<const Entry>();
}

// What a clock has beside its bottom.
std::span<const Entry> changes_of(const Clock& clock) {
  return clock.base ? std::span<const Entry>(clock.entries) : std::span<const Entry>();
}

bool contains_all(const Clock& a, std::span<const Entry> entries) {
  Cursor own(a.entries), base(of_base(a));
  return std::all_of(entries.begin(), entries.end(), [&](const Entry& entry) {
    return own.of(entry.key) >= entry.time || base.of(entry.key) >= entry.time;
  });
}

// Both, with the later time of a key in both; returns the end.
Entry* merge(std::span<const Entry> a, std::span<const Entry> b, Entry* to) {
  auto i = a.begin(), j = b.begin();
  while (i != a.end() && j != b.end()) {
    if (i->key < j->key) {
      *to++ = *i++;
    } else if (j->key < i->key) {
      *to++ = *j++;
    } else {
      *to++ = {i->key, std::max(i->time, j->time)};
      ++i, ++j;
    }
  }
  return std::copy(j, b.end(), std::copy(i, a.end(), to));
}

std::span<const Entry> of_kind(std::span<const Entry> entries, AgentKind kind) {
  const auto begin = std::lower_bound(entries.begin(), entries.end(), key_of(kind, 0), before);
  const auto end = kind == AgentKind::kDelivery ? entries.end() : std::lower_bound(begin, entries.end(), key_of(AgentKind(uint32_t(kind) + 1), 0), before);
  return {begin, end};
}

void resize(std::vector<Entry>& buffer, size_t entries) {
  if (buffer.size() < entries) buffer.resize(2 * entries);
}

// Changes that a clock may have beside a base: of as many bytes for all clocks as the bases have that come to be.
size_t most_changes(size_t base) {
  size_t most = 16;
  while (most * most < 2 * base) most *= 2;
  return most;
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

Time Clock::time_of(Key key) const {
  const auto of = [&](const std::vector<Entry>& all) {
    const auto at = std::lower_bound(all.begin(), all.end(), key, before);
    return at != all.end() && at->key == key ? at->time : 0;
  };
  const Time own = of(entries);  // later than that of the base
  return own || !base ? own : of(base->entries);
}

bool Clock::has_deliveries() const {
  const auto has = [](const std::vector<Entry>& all) { return !all.empty() && detector::kind_of(all.back().key) == AgentKind::kDelivery; };
  return has(entries) || (base && has(base->entries));
}

std::vector<Entry> Clock::of_kind(AgentKind kind) const {
  const std::span<const Entry> own = detector::of_kind(entries, kind), other = detector::of_kind(of_base(*this), kind);
  std::vector<Entry> all(own.size() + other.size());
  all.resize(size_t(merge(own, other, all.data()) - all.data()));
  return all;
}

ClockRef Clocks::join(const ClockRef& a, const ClockRef& b) {
  if (a == b || !b || b->is_empty()) return a;
  if (!a || a->is_empty()) return b;
  const size_t slot = (reinterpret_cast<uintptr_t>(a.get()) / 16 * 31 + reinterpret_cast<uintptr_t>(b.get()) / 16) % kJoins;
  Join& known = joins_[slot];
  if (known.a == a && known.b == b) return known.result;
  ClockRef result;
  if (contains(*a.get(), *b.get())) {
    result = a;
  } else if (contains(*b.get(), *a.get())) {
    result = b;
  } else {
    result = merged(a, b);
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
  return extended(base, news);
}

bool Clocks::contains(const Clock& a, const Clock& b) const {
  if (b.latest > a.latest) return false;
  if (!a.base && !b.base && b.entries.size() > a.entries.size()) return false;
  if (descends(a, b)) return true;
  const bool has_bottom = descends(a.bottom(), b.bottom());
  if (!b.base) return has_bottom || contains_all(a, b.entries);
  return contains_all(a, b.entries) && (has_bottom || contains_all(a, b.base->entries));
}

bool Clocks::descends(const Clock& from, const Clock& of) const {
  if (&from == &of) return true;
  if (!of.lineage) return false;
  constexpr int kMostBranches = 256;
  Branch at{from.lineage, from.generation};
  // A lineage has a higher number than those it comes from.
  for (int i = 0; i < kMostBranches && at.lineage > of.lineage; ++i) at = branches_[at.lineage];
  return at.lineage == of.lineage && at.generation >= of.generation;
}

void Clocks::make_heir(const Clock& of, const Clock& heir) {
  const auto begin = [&](const Clock& clock, const Branch& from) {
    branches_.push_back(from);
    clock.lineage = uint32_t(branches_.size() - 1);
  };
  if (!of.lineage) begin(of, {});
  heir.generation = of.generation + 1;
  if (of.has_heir) return begin(heir, {of.lineage, of.generation});
  of.has_heir = true;
  heir.lineage = of.lineage;
}

ClockRef Clocks::merged(const ClockRef& a, const ClockRef& b) {
  if (descends(a->bottom(), b->bottom())) return extended(a, changes_of(*b.get()));
  if (descends(b->bottom(), a->bottom())) return extended(b, changes_of(*a.get()));
  const bool is_larger = a->bottom().entries.size() >= b->bottom().entries.size();
  const ClockRef &large = is_larger ? a : b, &small = is_larger ? b : a;
  const Clock& bottom = large->bottom();
  if (!small->base && small->entries.size() <= most_changes(bottom.entries.size())) return extended(large, small->entries);
  const ClockRef* const both[] = {&a, &b};
  std::span<const Entry> all[2];
  for (int i = 0; i < 2; ++i) {
    const Clock& clock = *both[i]->get();
    all[i] = clock.entries;
    if (!clock.base) continue;
    resize(whole_[i], clock.entries.size() + clock.base->entries.size());
    all[i] = {whole_[i].data(), merge(clock.base->entries, clock.entries, whole_[i].data())};
  }
  const ClockRef result = flat(all[0], all[1], std::max(a->latest, b->latest), std::max(a->bottom().pruned_size, b->bottom().pruned_size));
  if (bottom.entries.size() >= kLeastShared) make_heir(*large.get(), *result.get());
  return result;
}

ClockRef Clocks::extended(const ClockRef& clock, std::span<const Entry> news) {
  Time latest = clock ? clock->latest : 0;
  for (const Entry& entry : news) latest = std::max(latest, entry.time);
  if (!clock || (!clock->base && clock->entries.size() < kLeastShared)) {
    return flat(clock ? std::span<const Entry>(clock->entries) : std::span<const Entry>(), news, latest, clock ? clock->pruned_size : 0);
  }
  const ClockRef& bottom = clock->base ? clock->base : clock;
  resize(merged_, news.size());
  Cursor known(bottom->entries);
  Entry* later = merged_.data();
  for (const Entry& entry : news) {
    if (known.of(entry.key) < entry.time) *later++ = entry;
  }
  const std::span<const Entry> before = changes_of(*clock.get());
  resize(changes_, before.size() + news.size());
  const std::span<const Entry> changes{changes_.data(), merge(before, {merged_.data(), later}, changes_.data())};
  ClockRef result;
  if (changes.size() > most_changes(bottom->entries.size())) {
    result = flat(bottom->entries, changes, latest, bottom->pruned_size);
  } else {
    auto* const made = new Clock(++made_);
    made->latest = latest;
    made->base = bottom;
    made->entries.assign(changes.begin(), changes.end());
    result = ClockRef(made);
  }
  make_heir(*clock.get(), *result.get());
  return result;
}

ClockRef Clocks::flat(std::span<const Entry> a, std::span<const Entry> b, Time latest, uint32_t pruned_size) {
  resize(merged_, a.size() + b.size());
  return make(merge(a, b, merged_.data()), latest, pruned_size);
}

Entry* Clocks::with_whole_warps(Entry* end) {
  Entry* const begin = merged_.data();
  std::vector<Entry>& warps = kept_;
  warps.clear();
  for (Entry* at = begin; at != end && kind_of(at->key) == AgentKind::kLane;) {
    const Key warp = tree_.parent(at->key);
    Entry* const first = at;
    Time time = at->time;
    for (; at != end && kind_of(at->key) == AgentKind::kLane && tree_.parent(at->key) == warp; ++at) time = std::min(time, at->time);
    if (uint32_t(at - first) == tree_.lanes(warp)) warps.push_back({warp, time});
  }
  if (warps.empty()) return end;
  std::vector<Entry>& all = whole_[0];
  resize(all, size_t(end - begin) + warps.size());
  end = merge({begin, end}, warps, all.data());
  std::swap(all, merged_);
  return end;
}

// A clock of the merged entries. Those that an ancestor's covers are dropped where clocks have grown much since that was
// last done.
ClockRef Clocks::make(Entry* end, Time latest, uint32_t pruned_size) {
  const auto size = size_t(end - merged_.data());
  const bool is_pruned = size >= kLeastPruned && size >= pruned_size + pruned_size / 2;
  if (is_pruned) end = with_whole_warps(end);
  Entry* const begin = merged_.data();
  if (is_pruned) {
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
