#include "store_buffers.h"

#include <algorithm>
#include <cstring>

namespace pkb::emulator {
namespace {

constexpr size_t kMaxOfWarp = 16, kMaxOfAll = 256;  // instructions whose stores wait
constexpr int kLongestWait = 17;                    // 2^17 steps

bool is_same_warp(const WarpId& a, const WarpId& b) { return a.launch == b.launch && a.block == b.block && a.warp == b.warp; }

}  // namespace

void StoreBuffers::choose(bool is_on, uint64_t seed) {
  while (!stores_.empty()) perform(0);
  is_on_ = is_on;
  seed_ = seed;
  random_.seed(seed);
}

// In half of the launches data come late and flags at once, in a quarter it is the other way round, in the others half of
// all stores wait.
uint64_t StoreBuffers::wait_of(uint64_t launch, Order order) {
  if (order == Order::kRelease || order == Order::kSequential) return 0;
  const uint64_t habit = ((launch + seed_) * 0x9e3779b97f4a7c15ull) >> 62;
  if (habit == 0) return random_() % 2 ? 1 + random_() % (1ull << random_() % (kLongestWait + 1)) : 0;
  const bool waits = (habit == 1) == (order != Order::kWeak);
  return waits ? 1 + random_() % (1ull << kLongestWait) : 0;
}

bool StoreBuffers::Store::overlaps(uint64_t begin, uint64_t end) const {
  if (end <= low || begin >= high) return false;
  bool any = false;
  each_lane(lanes, [&](int lane) { any |= content.addresses[lane] < end && begin < content.addresses[lane] + bytes; });
  return any;
}

bool StoreBuffers::sees(const WarpId& warp, const Store& store) const {
  const WarpId& of = store.warp;
  switch (store.scope) {
    case Scope::kNone: return is_same_warp(warp, of);
    case Scope::kCta: return warp.launch == of.launch && warp.block == of.block;
    case Scope::kCluster: return warp.launch == of.launch && warp.cluster == of.cluster;
    default: return warp.rank == of.rank;
  }
}

bool StoreBuffers::holds(uint64_t launch) const {
  return std::any_of(stores_.begin(), stores_.end(), [&](const auto& store) { return store->warp.launch == launch; });
}

bool StoreBuffers::read(const WarpId& warp, uint32_t lanes, const uint64_t (&addresses)[kLanes], uint32_t bytes, LaneBytes& to) const {
  return read_seen(lanes, addresses, bytes, to, [&](const Store& store) { return sees(warp, store); });
}

bool StoreBuffers::read_all(uint32_t lanes, const uint64_t (&addresses)[kLanes], uint32_t bytes, LaneBytes& to) const {
  return read_seen(lanes, addresses, bytes, to, [](const Store&) { return true; });
}

template <class Seen>
bool StoreBuffers::read_seen(uint32_t lanes, const uint64_t (&addresses)[kLanes], uint32_t bytes, LaneBytes& to, const Seen& is_seen) const {
  uint64_t low = ~0ull, high = 0;
  each_lane(lanes, [&](int lane) {
    low = std::min(low, addresses[lane]);
    high = std::max(high, addresses[lane] + bytes);
  });
  bool any = false;
  for (const auto& store : stores_) {
    if (high <= store->low || low >= store->high || !is_seen(*store)) continue;
    each_lane(lanes, [&](int lane) {
      const uint64_t begin = addresses[lane], end = begin + bytes;
      each_lane(store->lanes, [&](int other) {
        const uint64_t from = store->content.addresses[other], first = std::max(begin, from), last = std::min(end, from + store->bytes);
        if (first >= last) return;
        if (!any) {
          any = true;
          each_lane(lanes, [&](int each) {
            to.addresses[each] = reinterpret_cast<uint64_t>(to.bytes + uint32_t(each) * LaneBytes::kMaxBytes);
            std::memcpy(to.bytes + uint32_t(each) * LaneBytes::kMaxBytes, reinterpret_cast<const void*>(addresses[each]), bytes);
          });
        }
        std::memcpy(to.bytes + uint32_t(lane) * LaneBytes::kMaxBytes + (first - begin), store->content.bytes + uint32_t(other) * LaneBytes::kMaxBytes + (first - from), last - first);
      });
    });
  }
  return any;
}

bool StoreBuffers::write(const WarpId& warp, uint32_t lanes, const uint64_t (&addresses)[kLanes], uint32_t bytes, const LaneBytes& from, Order order, uint64_t step) {
  const uint64_t wait = wait_of(warp.launch, order);
  if (wait == 0) {
    const bool changed = perform_overlapping(stores_.size(), lanes, addresses, bytes);
    return to_memory(lanes, addresses, bytes, from) || changed;
  }
  auto store = std::make_unique<Store>(Store{warp, Scope::kNone, step + wait, lanes, bytes, ~0ull, 0, from});
  each_lane(lanes, [&](int lane) {
    store->content.addresses[lane] = addresses[lane];
    store->low = std::min(store->low, addresses[lane]);
    store->high = std::max(store->high, addresses[lane] + bytes);
  });
  stores_.push_back(std::move(store));
  std::vector<size_t> own;
  for (size_t i = 0; i < stores_.size(); ++i) {
    if (is_same_warp(warp, stores_[i]->warp)) own.push_back(i);
  }
  if (own.size() > kMaxOfWarp) return perform(own[random_() % own.size()]);
  return stores_.size() > kMaxOfAll && run_one();
}

bool StoreBuffers::settle(const WarpId& warp, uint64_t address, uint64_t bytes) {
  bool changed = false;
  for (size_t i = stores_.size(); i-- > 0;) {
    if (!sees(warp, *stores_[i]) || !stores_[i]->overlaps(address, address + bytes)) continue;
    changed |= perform(i);
    i = stores_.size();
  }
  return changed;
}

bool StoreBuffers::publish(const WarpId& warp, Scope scope) {
  bool changed = false;
  for (size_t i = 0; i < stores_.size();) {
    Store& store = *stores_[i];
    if (!sees(warp, store)) {
      ++i;
    } else if (scope == Scope::kSys) {
      changed |= perform(i);
      i = 0;
    } else {
      store.scope = std::max(store.scope, scope);
      ++i;
    }
  }
  return changed;
}

bool StoreBuffers::perform(size_t index) {
  const std::unique_ptr<Store> store = std::move(stores_[index]);
  stores_.erase(stores_.begin() + long(index));
  const bool changed = perform_overlapping(index, store->lanes, store->content.addresses, store->bytes);
  return to_memory(store->lanes, store->content.addresses, store->bytes, store->content) || changed;
}

bool StoreBuffers::perform_overlapping(size_t count, uint32_t lanes, const uint64_t (&addresses)[kLanes], uint32_t bytes) {
  bool changed = false;
  for (size_t i = count; i-- > 0;) {
    bool overlaps = false;
    each_lane(lanes, [&](int lane) { overlaps |= stores_[i]->overlaps(addresses[lane], addresses[lane] + bytes); });
    if (!overlaps) continue;
    const size_t before = stores_.size();
    changed |= perform(i);
    i -= before - stores_.size() - 1;  // older ones that it has taken with it
  }
  return changed;
}

bool StoreBuffers::to_memory(uint32_t lanes, const uint64_t (&addresses)[kLanes], uint32_t bytes, const LaneBytes& from) const {
  bool changed = false;
  each_lane(lanes, [&](int lane) {
    const uint64_t address = addresses[lane];
    const char* const content = from.bytes + uint32_t(lane) * LaneBytes::kMaxBytes;
    if (!admit(address, bytes)) return;
    changed |= std::memcmp(reinterpret_cast<const void*>(address), content, bytes) != 0;
    std::memcpy(reinterpret_cast<void*>(address), content, bytes);
  });
  return changed;
}

bool StoreBuffers::run(uint64_t step) {
  bool changed = false;
  for (size_t i = 0; i < stores_.size();) {
    if (stores_[i]->due > step) {
      ++i;
    } else {
      changed |= perform(i);
      i = 0;
    }
  }
  return changed;
}

bool StoreBuffers::run_one() { return !stores_.empty() && perform(random_() % stores_.size()); }

}  // namespace pkb::emulator
