#include "detector_advice.h"

#include <algorithm>
#include <array>

namespace pkb::emulator::detector {

namespace {

constexpr uint64_t kSector = 32, kBankBytes = 4, kBanks = 32;
constexpr uint64_t kClosely = 256, kEvery = 64;  // the first accesses of a site, and then each so many
constexpr double kReported = 1.5;  // times the least, from which there is advice
constexpr uint64_t kFewest = 4;

struct Needed {
  uint64_t actual = 0, least = 0;
};

// Sorts and counts what differs.
template <size_t kMost>
uint64_t distinct(std::array<uint64_t, kMost>& values, size_t count) {
  std::sort(values.begin(), values.begin() + count);
  return uint64_t(std::unique(values.begin(), values.begin() + count) - values.begin());
}

Needed sectors(const Access& access) {
  std::array<uint64_t, kLanes * 3> touched, starts;
  size_t count = 0, lanes = 0;
  for (uint32_t rest = access.warp.lanes; rest; rest &= rest - 1) {
    const uint64_t address = access.addresses[__builtin_ctz(rest)];
    starts[lanes++] = address;
    for (uint64_t at = address / kSector; at <= (address + access.bytes - 1) / kSector && count < touched.size(); ++at) {
      touched[count++] = at;
    }
  }
  const uint64_t bytes = distinct(starts, lanes) * access.bytes;
  return {distinct(touched, count), (bytes + kSector - 1) / kSector};
}

// Lanes whose accesses one pass can serve: all of them up to 4 bytes, half of them at 8, a quarter at 16.
Needed passes(const Access& access) {
  Needed needed;
  const uint32_t each = access.bytes <= 4 ? 32 : access.bytes <= 8 ? 16 : 8;
  for (uint32_t first = 0; first < uint32_t(kLanes); first += each) {
    std::array<uint64_t, kLanes * 4> words;
    size_t count = 0;
    for (uint32_t lane = first; lane < first + each; ++lane) {
      if (!(access.warp.lanes >> lane & 1)) continue;
      const uint64_t address = access.addresses[lane];
      for (uint64_t at = address / kBankBytes; at <= (address + access.bytes - 1) / kBankBytes && count < words.size(); ++at) {
        words[count++] = at;
      }
    }
    if (!count) continue;
    const uint64_t different = distinct(words, count);
    std::array<uint64_t, kBanks> of_banks{};
    uint64_t most = 0;
    for (size_t i = 0; i < different; ++i) most = std::max(most, ++of_banks[words[i] % kBanks]);
    needed.actual += most;
    needed.least += (different + kBanks - 1) / kBanks;
  }
  return needed;
}

}  // namespace

void Statistics::access(const Access& access, uint32_t site) {
  if (access.proxy != Proxy::kGeneric || (access.space != Space::kGlobal && access.space != Space::kShared)) return;
  if (of_sites_.size() <= site) of_sites_.resize(site + 64);
  Counts& counts = of_sites_[site];
  const uint64_t number = counts.accesses++;
  if (number >= kClosely && number % kEvery) return;
  counts.kernel = access.warp.launch->kernel;
  ++counts.looked_at;
  const Needed needed = access.space == Space::kShared ? passes(access) : sectors(access);
  counts.actual += needed.actual;
  counts.least += needed.least;
}

void Statistics::link(int rank, int owner, int64_t call, uint64_t bytes, bool reads, bool writes) {
  const LinkKey key{rank, owner, call};
  if (!last_link_ || last_key_ != key) {
    last_link_ = &links_[key];
    last_key_ = key;
  }
  if (reads) last_link_->read += bytes;
  if (writes) last_link_->written += bytes;
}

std::vector<Advice> Statistics::advice(const Sites& sites) const {
  std::vector<Advice> all;
  for (uint32_t number = 0; number < of_sites_.size(); ++number) {
    const Counts& counts = of_sites_[number];
    if (counts.accesses < kFewest || double(counts.actual) < kReported * double(counts.least)) continue;
    const Site& site = sites[number];
    if (site.is_strong) continue;  // flags are single words
    Advice advice;
    advice.kind = site.space == Space::kShared ? "bank_conflicts" : "uncoalesced";
    advice.kernel = counts.kernel ? counts.kernel : "";
    advice.what = site.what;
    if (site.line && site.line->file) {
      advice.file = site.line->file;
      advice.line = site.line->line;
    }
    advice.accesses = counts.accesses;
    advice.actual = counts.actual * counts.accesses / counts.looked_at;
    advice.least = counts.least * counts.accesses / counts.looked_at;
    all.push_back(advice);
  }
  std::sort(all.begin(), all.end(), [](const Advice& a, const Advice& b) { return a.actual - a.least > b.actual - b.least; });
  return all;
}

std::vector<Link> Statistics::links() const {
  std::vector<Link> all;
  for (const auto& [key, bytes] : links_) {
    all.push_back({std::get<0>(key), std::get<1>(key), std::get<2>(key), bytes.read, bytes.written});
  }
  return all;
}

}  // namespace pkb::emulator::detector
