#include "late_puts.h"

#include <cstring>

namespace pkb::emulator {
namespace {

constexpr size_t kMost = 4096;  // instructions whose stores are late
constexpr int kLongestDelay = 17;  // 2^17 steps; half of the stores wait for their completion

}  // namespace

void LatePuts::choose(bool is_on, uint64_t seed) {
  while (!stores_.empty()) perform(0);
  is_on_ = is_on;
  random_.seed(seed);
}

void LatePuts::add(int rank, bool is_get, uint32_t lanes, const uint64_t (&addresses)[kLanes], uint32_t bytes, const LaneBytes& from, uint64_t step) {
  const uint64_t due = random_() % 2 ? ~0ull : step + random_() % (1ull << random_() % (kLongestDelay + 1));
  auto store = std::make_unique<Store>(Store{rank, is_get, due, lanes, bytes, from});
  each_lane(lanes, [&](int lane) {
    std::memmove(store->content.bytes + uint32_t(lane) * LaneBytes::kMaxBytes, reinterpret_cast<const void*>(from.addresses[lane]), bytes);
    store->content.addresses[lane] = addresses[lane];
  });
  stores_.push_back(std::move(store));
  if (stores_.size() > kMost) perform(0);
}

bool LatePuts::perform(size_t index) {
  const std::unique_ptr<Store> store = std::move(stores_[index]);
  stores_.erase(stores_.begin() + long(index));
  bool changed = false;
  each_lane(store->lanes, [&](int lane) {
    const uint64_t address = store->content.addresses[lane];
    const char* const content = store->content.bytes + uint32_t(lane) * LaneBytes::kMaxBytes;
    if (!admit(address, store->bytes)) return;
    changed |= std::memcmp(reinterpret_cast<const void*>(address), content, store->bytes) != 0;
    std::memcpy(reinterpret_cast<void*>(address), content, store->bytes);
  });
  return changed;
}

template <class IsDue>
bool LatePuts::perform_all(const IsDue& is_due) {
  bool changed = false;
  for (size_t i = 0; i < stores_.size();) {
    if (is_due(*stores_[i])) changed |= perform(i);
    else ++i;
  }
  return changed;
}

bool LatePuts::complete(int rank, bool gets) {
  return perform_all([&](const Store& store) { return store.rank == rank && (gets || !store.is_get); });
}

bool LatePuts::run(uint64_t step) {
  return perform_all([&](const Store& store) { return store.due <= step; });
}

}  // namespace pkb::emulator
