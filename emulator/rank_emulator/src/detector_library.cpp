#include "detector_library.h"

#include <algorithm>

namespace pkb::emulator::detector {

void LibraryOperations::mark(const Warp& of, LibraryMark mark, bool of_each_lane) {
  WarpState& warp = kernels_.warp(of);
  switch (mark) {
    case LibraryMark::kFence: return fence(of);
    case LibraryMark::kQuiet: return quiet(of);
    case LibraryMark::kSignal: return signal(of);
    case LibraryMark::kBoundary:
      warp.boundary |= of.lanes;
      return;
    case LibraryMark::kEnd:
      warp.boundary &= ~of.lanes;
      for (LibraryOperation& operation : warp.operations) operation.lanes &= ~of.lanes;
      for (Signalling& signalling : warp.signalling) signalling.lanes &= ~of.lanes;
      std::erase_if(warp.operations, [](const LibraryOperation& operation) { return !operation.lanes; });
      std::erase_if(warp.signalling, [](const Signalling& signalling) { return !signalling.lanes; });
      return;
    default: break;
  }
  if (!of_each_lane) return begin(of, mark, of.lanes);
  each_lane(of.lanes, [&](int lane) { begin(of, mark, 1u << lane); });
}

LibraryOperations::Channels::value_type& LibraryOperations::channel_of(const Warp& of, Key warp, LibraryMark kind, uint32_t lanes) {
  // A signal brings its own put alone: each has a channel, as long as not many have begun.
  constexpr size_t kMostOfWarp = 32, kMostOfRank = 4096;
  Channels& channels = channels_[of.rank];
  std::vector<Key>& mine = of_warp_[{warp, kind}];
  if (mine.size() >= (is_signalled(kind) ? kMostOfWarp : 1)) {
    std::rotate(mine.begin(), mine.begin() + 1, mine.end());
    const auto found = channels.find(mine.back());
    if (found != channels.end()) return *found;
    mine.pop_back();
  }
  if (channels.size() >= kMostOfRank) channels.erase(channels.begin());
  const bool outlives_kernel = kind != LibraryMark::kBlockingPut;
  mine.push_back(agents_.add_channel({agents_.block_of(warp).grid, warp, lanes, Completion::kQuiet, false, outlives_kernel}));
  Channel made;
  made.warp = warp;
  made.launch = of.launch->id;
  made.kind = kind;
  return *channels.emplace(mine.back(), std::move(made)).first;
}

void LibraryOperations::begin(const Warp& of, LibraryMark kind, uint32_t lanes) {
  constexpr size_t kMost = 128;
  WarpState& warp = kernels_.warp(of);
  const Time time = clocks_.tick();
  warp.epoch = clocks_.now();
  auto& [key, channel] = channel_of(of, warp.key, kind, lanes);
  channel.issues.push_back({time, lanes});
  if (channel.issues.size() > kMost) channel.issues.pop_front();
  channel.awaits_signal = is_signalled(kind);
  channel.is_quiet = false;
  warp.operations.push_back({lanes, key, time, kind != LibraryMark::kGet, kind != LibraryMark::kBlockingPut});
}

template <class Knows>
std::vector<Entry> LibraryOperations::known(int rank, bool delivers, const Knows& knows) {
  std::vector<Entry> entries;
  for (auto& [key, channel] : channels_[rank]) {
    if (delivers && channel.kind == LibraryMark::kGet) continue;
    const auto last = std::find_if(channel.issues.rbegin(), channel.issues.rend(), [&](const Issue& issue) {
      return knows(Record{channel.warp, issue.time, 0, issue.lanes});
    });
    if (last == channel.issues.rend()) continue;
    if (!delivers && last == channel.issues.rbegin()) channel.is_quiet = true;
    entries.push_back({delivers ? key_of(AgentKind::kDelivery, index_of(key)) : key, last->time});
  }
  return entries;
}

// Calls change(past) for each past of the lanes.
template <class Change>
void LibraryOperations::change_pasts(const Warp& of, const Change& change) {
  if (channels_[of.rank].empty()) return;
  WarpState& warp = kernels_.warp(of);
  if (warp.past.is_uniform()) return warp.past.change(of.lanes, warp.all_lanes, change);
  each_lane(of.lanes, [&](int lane) { warp.past.change(1u << lane, warp.all_lanes, change); });
}

// Whatever the PE has issued before, by the threads that one of these knows of ("issued by the calling PE").
void LibraryOperations::fence(const Warp& of) {
  const Key warp = kernels_.warp(of).key;
  change_pasts(of, [&](Past& past) {
    const auto entries = known(of.rank, true, [&](const Record& issue) {
      return issue.who == warp || agents_.in_past(past, warp, agents_.block_index_of(warp), true, issue);
    });
    past.base = clocks_.with(past.base, entries.data(), int(entries.size()));
  });
}

void LibraryOperations::quiet(const Warp& of) {
  const Key warp = kernels_.warp(of).key;
  change_pasts(of, [&](Past& past) {
    const auto entries = known(of.rank, false, [&](const Record& issue) {
      return issue.who == warp || agents_.in_past(past, warp, agents_.block_index_of(warp), true, issue);
    });
    past.base = clocks_.with(past.base, entries.data(), int(entries.size()));
  });
}

void LibraryOperations::host_quiet(int host, int rank) {
  Past& past = kernels_.host(host).past;
  const auto entries = known(rank, false, [&](const Record& issue) { return agents_.covers(past.base.get(), issue); });
  past.base = clocks_.with(past.base, entries.data(), int(entries.size()));
}

// One thread signals for its own put, for that of its warp, or for those that the warps of its block have a part in.
void LibraryOperations::signal(const Warp& of) {
  WarpState& warp = kernels_.warp(of);
  const uint32_t block = agents_.block_index_of(warp.key);
  each_lane(of.lanes, [&](int lane) {
    std::vector<Entry> entries;
    for (auto& [key, channel] : channels_[of.rank]) {
      if (!channel.awaits_signal || agents_.block_index_of(channel.warp) != block) continue;
      const Issue& last = channel.issues.back();
      const bool is_own = channel.warp == warp.key && (last.lanes >> lane & 1);
      if (!is_own && !agents_.in_past(warp.past.at(lane), warp.key, block, true, {channel.warp, last.time, 0, last.lanes})) continue;
      channel.awaits_signal = false;
      entries.push_back({key_of(AgentKind::kDelivery, index_of(key)), last.time});
    }
    warp.signalling.push_back({1u << lane, clocks_.with(ClockRef(), entries.data(), int(entries.size()))});
  });
}

void LibraryOperations::launch_end(uint64_t launch) {
  for (auto& [rank, channels] : channels_) {
    for (auto at = channels.begin(); at != channels.end();) {
      Channel& channel = at->second;
      channel.has_ended |= channel.launch == launch;
      const bool is_over = channel.has_ended && (channel.is_quiet || channel.kind == LibraryMark::kBlockingPut);
      at = is_over ? channels.erase(at) : std::next(at);
    }
  }
  std::erase_if(of_warp_, [&](const auto& entry) { return !kernels_.find(entry.first.first); });
}

const LibraryOperation* LibraryOperations::find(const WarpState& warp, int lane, bool writes) {
  for (const LibraryOperation& operation : warp.operations) {
    if (operation.lanes >> lane & 1) return writes || operation.reads ? &operation : nullptr;
  }
  return nullptr;
}

Accessor LibraryOperations::accessor(const WarpState& warp, int lane, const LibraryOperation& operation, Past& past) {
  Accessor who = kernels_.lane_accessor(warp, 1u << lane);
  who.who = operation.channel;
  who.time = operation.time;
  if (operation.is_put) {  // behind a fence it comes after earlier puts
    past = *who.past;
    past.base = flags_.delivered(past.base);
    who.past = &past;
  }
  return who;
}

}  // namespace pkb::emulator::detector
