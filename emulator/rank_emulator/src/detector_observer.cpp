#include "detector_observer.h"

#include <algorithm>
#include <cstring>

namespace pkb::emulator::detector {

namespace {

bool is_tracked(Space space) { return space == Space::kGlobal || space == Space::kShared || space == Space::kConstant; }

}  // namespace

Detector::Detector(bool races, bool strict, size_t most_findings, std::function<void(const std::string&)> found)
    : races_are_looked_for_(races), strict_(strict), report_(agents_, sites_, kernels_, regions_, most_findings, std::move(found)) {}

FindingReport Detector::report() const {
  return {report_.findings(), statistics_.advice(sites_), statistics_.links(), report_.dropped()};
}

// ---- memory ----

void Detector::region_added(const Region& region) {
  regions_.add(region);
  std::fill(std::begin(spans_), std::end(spans_), Span());
  const bool is_inside = region.kind == RegionKind::kArgument || region.kind == RegionKind::kOutput ||
                         region.kind == RegionKind::kScratch || region.kind == RegionKind::kSignals;
  if (!is_inside) {
    shadow_.forget(region.address, region.bytes, region.kind == RegionKind::kShared);
    flags_.forget(region.address, region.bytes);
  }
  shadow_.set_written(region.address, region.bytes, region.initialised);
  if (region.kind == RegionKind::kShared) ended_blocks_.region_added(region);
}

void Detector::region_removed(const Region& region) {
  std::fill(std::begin(spans_), std::end(spans_), Span());
  if (region.kind == RegionKind::kShared) {
    ended_blocks_.region_removed(region);
    for (const Barriers::Leak& leak : barriers_.end(region.address, region.bytes)) {
      found_leak(leak.announced, leak.address, MissingEdge::kNone);
    }
  }
  const bool is_inside = region.kind == RegionKind::kArgument || region.kind == RegionKind::kOutput ||
                         region.kind == RegionKind::kScratch || region.kind == RegionKind::kSignals;
  if (!is_inside) {
    shadow_.forget(region.address, region.bytes, region.kind == RegionKind::kShared);
    flags_.forget(region.address, region.bytes);
  }
  regions_.remove(region);
}

void Detector::set_initialised(uint64_t address, uint64_t bytes, bool initialised) {
  shadow_.set_written(address, bytes, initialised);
}

void Detector::access(const Access& of) {
  if (!is_tracked(of.space) || !of.warp.lanes) return;
  Access access = of;
  if (access.space == Space::kConstant) access.space = Space::kGlobal;  // where copies write it
  if (races_are_looked_for_) {
    each_lane(access.warp.lanes, [&](int lane) { shadow_.prefetch(access.addresses[lane]); });
  }
  const uint32_t site = sites_.of(access);
  WarpState& warp = kernels_.warp(access.warp);
  if (access.proxy != Proxy::kHost) statistics_.access(access, site);
  if (!access.aligned && report_.is_new(FindingKind::kMisaligned, 0, site)) {
    Finding finding;
    finding.kind = FindingKind::kMisaligned;
    const Record record{warp.key, warp.epoch, site, access.warp.lanes};
    finding.second = report_.describe_access(record);
    finding.call = report_.call_of(record);
    report_.describe_place(finding, access.addresses[__builtin_ctz(access.warp.lanes)], access.bytes);
    report_.add(std::move(finding), 0, site);
  }
  if (races_are_looked_for_ && !warp.operations.empty()) {
    access.warp.lanes &= ~library_access(access, warp, site);
    if (!access.warp.lanes) return;
  }
  // Lanes side by side that touch the same bytes are taken together.
  const bool is_one_by_one = access.operation != Operation::kRead;
  const bool is_written = races_are_looked_for_ && all_written(access);
  const bool is_strong = sites_.is_strong(site);
  Accessor who = accessor_of(access, warp, access.warp.lanes, site);
  const bool is_common = !is_strong && warp.past.is_uniform() && (!who.needs_proxy || warp.fences.is_uniform());
  if (is_common && access_in_common(access, who, site, is_written)) return;
  for (uint32_t rest = access.warp.lanes; rest;) {
    const uint64_t address = access.addresses[__builtin_ctz(rest)];
    uint32_t group = rest & -rest;
    rest &= rest - 1;
    while (!is_one_by_one && warp.past.is_uniform() && rest && access.addresses[__builtin_ctz(rest)] == address) {
      group |= rest & -rest;
      rest &= rest - 1;
    }
    if (is_common) {
      who.lanes = who.own_lanes = group;
    } else {  // a strong load changes what the lanes after it know
      who = accessor_of(access, warp, group, site);
    }
    lanes_access(access, warp, who, address, site, is_written);
  }
  if (races_are_looked_for_ && access.operation != Operation::kRead && is_strong) store_flags(access, warp, site);
}

// Accesses of puts and gets of a library; returns their lanes.
uint32_t Detector::library_access(const Access& access, WarpState& warp, uint32_t site) {
  const bool writes = access.operation != Operation::kRead;
  uint32_t taken = 0;
  each_lane(access.warp.lanes, [&](int lane) {
    const LibraryOperation* const operation = LibraryOperations::find(warp, lane, writes);
    if (!operation) return;
    taken |= 1u << lane;
    Past past;
    lanes_access(access, warp, library_.accessor(warp, lane, *operation, past), access.addresses[lane], site, false);
  });
  if (writes && taken && sites_.is_strong(site)) {  // a flag that is put
    Access flags = access;
    flags.warp.lanes = taken;
    store_flags(flags, warp, site);
  }
  return taken;
}

void Detector::value_used(const Warp& warp, const SourceLine* load) {
  if (!races_are_looked_for_) return;
  WarpState& state = kernels_.warp(warp);
  uint32_t& used = state.used[load];
  if (!(warp.lanes & ~used)) return;
  used |= warp.lanes;
  races_.used(state.key, load, used);
}

// A weak load of what has been written, or a weak store, all of whose lanes touch memory of one owner; false: it is none,
// and nothing has been done.
bool Detector::access_in_common(const Access& access, const Accessor& who, uint32_t site, bool is_written) {
  if (!races_are_looked_for_ || access.operation == Operation::kAtomic) return false;
  const bool reads = access.operation == Operation::kRead;
  int owner = -1;
  for (uint32_t rest = access.warp.lanes; rest; rest &= rest - 1) {
    const uint64_t address = access.addresses[__builtin_ctz(rest)], end = address + access.bytes;
    if (access.space == Space::kGlobal) {
      const Span& span = spans_[address >> 12 & 15];
      if (address < span.begin || end > span.end || (rest != access.warp.lanes && owner != span.owner)) return false;
      owner = span.owner;
    }
    if (reads && !is_written && shadow_.first_unwritten(address, access.bytes) != end) return false;
  }
  auto touched = uint32_t(__builtin_popcount(access.warp.lanes));
  if (reads) {
    touched = races_.read_lanes(who, site, access);
  } else {
    races_.write_lanes(who, site, access);
    for (uint32_t rest = is_written ? 0 : access.warp.lanes; rest; rest &= rest - 1) {
      shadow_.mark_written(access.addresses[__builtin_ctz(rest)], access.bytes);
    }
  }
  if (owner >= 0 && owner != access.warp.rank) {
    statistics_.link(access.warp.rank, owner, kernels_.call_of(access.warp.rank), uint64_t(touched) * access.bytes, reads, !reads);
  }
  return true;
}

// Whether somebody has written all from the first to the last byte: then no lane needs a look.
bool Detector::all_written(const Access& access) {
  uint64_t low = ~0ull, high = 0;
  for (uint32_t rest = access.warp.lanes; rest; rest &= rest - 1) {
    const uint64_t address = access.addresses[__builtin_ctz(rest)];
    low = std::min(low, address);
    high = std::max(high, address + access.bytes);
  }
  return high - low <= Shadow::kPageBytes && shadow_.first_unwritten(low, high - low) == high;
}

Accessor Detector::accessor_of(const Access& access, const WarpState& warp, uint32_t lanes, uint32_t site) {
  Accessor who = kernels_.lane_accessor(warp, lanes);
  // A store to a peer comes after puts to it that a fence stands behind.
  if (access.operation != Operation::kRead && access.space == Space::kGlobal && Flags::has_deliveries(who.past->base) &&
      regions_.owner(access.addresses[__builtin_ctz(lanes)]) != access.warp.rank) {
    delivered_ = *who.past;
    delivered_.base = flags_.delivered(delivered_.base);
    who.past = &delivered_;
  }
  who.non_coherent = sites_[site].is_non_coherent;
  if (access.proxy != Proxy::kAsync) return who;
  who.needs_proxy = true;
  const Fences& fences = warp.fences.at(__builtin_ctz(lanes));
  who.proxied = (access.space == Space::kShared ? fences.proxied_shared : fences.proxied_global).get();
  return who;
}

void Detector::lanes_access(const Access& access, WarpState& warp, const Accessor& who, uint64_t address, uint32_t number,
                            bool is_written) {
  const uint32_t lanes = who.lanes;
  if (access.operation == Operation::kAtomic && !(access.wrote & lanes)) {  // a compare-and-swap that has failed
    Access load = access;
    load.operation = Operation::kRead;
    number = sites_.of(load);
  }
  const Record record{who.who, who.time, number, lanes};
  const bool reads = access.operation != Operation::kWrite;
  const bool writes = access.operation == Operation::kWrite || (access.operation == Operation::kAtomic && (access.wrote & lanes));
  if (access.space == Space::kGlobal) {
    const Span& span = span_of(address, access.bytes, record, access.warp.rank);
    if (span.owner >= 0 && span.owner != access.warp.rank) {
      statistics_.link(access.warp.rank, span.owner, kernels_.call_of(access.warp.rank), access.bytes, reads, writes);
    }
  }
  if (!races_are_looked_for_) return;
  if (reads && !is_written) {
    if (access.unwritten) defer_unwritten(*access.unwritten, address, access.bytes, record);
    else check_written(address, access.bytes, record);
  }
  const bool is_strong = sites_.is_strong(number);
  const bool is_same = access.operation == Operation::kWrite && !is_strong && !(access.wrote & lanes) && kind_of(who.who) == AgentKind::kWarp;
  if (is_same) {
    races_.write_same(who, number, address, access.bytes);
  } else if (writes) {
    races_.write(who, number, address, access.bytes);
  } else {
    races_.read(who, number, address, access.bytes);
  }
  if (writes && !is_written) shadow_.mark_written(address, access.bytes);
  if (reads && is_strong && kind_of(who.who) == AgentKind::kWarp) {
    for (uint32_t at = 0; at < access.bytes; at += access.element_bytes) {
      flags_.load(warp, lanes, address + at, sites_[number], number);
    }
  }
}

void Detector::store_flags(const Access& access, WarpState& warp, uint32_t number) {
  const bool is_atomic = access.operation == Operation::kAtomic;
  const uint32_t lanes = is_atomic ? access.warp.lanes & access.wrote : access.warp.lanes;
  if (!lanes) return;
  const auto published = flags_.publish(warp, lanes, sites_[number], number);
  for (uint32_t rest = lanes; rest; rest &= rest - 1) {
    const int lane = __builtin_ctz(rest);
    for (uint32_t at = 0; at < access.bytes; at += access.element_bytes) {
      const uint64_t address = access.addresses[lane] + at;
      int of = lane;
      const Release* const before = is_atomic ? flags_.carried(address, &of) : nullptr;
      const bool is_beside = before && of != lane && before->warp == warp.key && before->time == published[size_t(lane)]->time;
      if (is_beside) flags_.load(warp, 1u << lane, address, sites_[number], number);  // lanes before it, of this instruction
      flags_.store(published[size_t(lane)], lane, address, is_atomic);
    }
  }
}

// Finds accesses beside all tensors on the way.
const Detector::Span& Detector::span_of(uint64_t address, uint32_t bytes, const Record& access, int /*rank*/) {
  Span& span = spans_[address >> 12 & 15];
  if (address >= span.begin && address + bytes <= span.end) return span;
  const Region* before = nullptr;
  if (regions_.is_outside(address, bytes, &before)) {
    if (report_.is_new(FindingKind::kOutOfBounds, 0, access.site)) {
      Finding finding;
      finding.kind = FindingKind::kOutOfBounds;
      finding.second = report_.describe_access(access);
      finding.call = report_.call_of(access);
      report_.describe_place(finding, before ? before->address : address, bytes);
      if (before) finding.offset = address - before->address;
      if (before && before->element_bytes) finding.index = int64_t(finding.offset / before->element_bytes);
      report_.add(std::move(finding), 0, access.site);
    }
    span = {0, 0, regions_.owner(address)};
    return span;
  }
  const Region* region = regions_.find(address);
  span = region ? Span{region->address, region->address + region->bytes, regions_.owner(address)} : Span();
  return span;
}

void Detector::check_written(uint64_t address, uint64_t bytes, const Record& access) {
  const uint64_t missing = shadow_.first_unwritten(address, bytes);
  if (missing == address + bytes || !regions_.find(missing)) return;
  if (!report_.is_new(FindingKind::kUninitialisedRead, 0, access.site)) return;
  Finding finding;
  finding.kind = FindingKind::kUninitialisedRead;
  finding.second = report_.describe_access(access);
  finding.call = report_.call_of(access);
  report_.describe_place(finding, missing, address + bytes - missing);
  report_.add(std::move(finding), 0, access.site);
}

void Detector::defer_unwritten(Unwritten& unwritten, uint64_t address, uint64_t bytes, const Record& access) {
  const uint64_t missing = shadow_.first_unwritten(address, bytes);
  if (missing == address + bytes || !regions_.find(missing)) return;
  unwritten.lanes |= access.lanes;
  unwritten.load = access.site;
  if (unwritten_loads_.count(access.site)) return;
  Finding& finding = unwritten_loads_[access.site];
  finding.kind = FindingKind::kUninitialisedRead;
  finding.second = report_.describe_access(access);
  finding.call = report_.call_of(access);
  report_.describe_place(finding, missing, address + bytes - missing);
}

void Detector::unwritten_used(uint32_t load) {
  if (report_.is_new(FindingKind::kUninitialisedRead, 0, load)) report_.add(unwritten_loads_.at(load), 0, load);
}

void Detector::range_access(const RangeAccess& access) {
  if (!is_tracked(access.space) || !access.bytes) return;
  const bool reads = access.operation != Operation::kWrite, writes = access.operation != Operation::kRead;
  const int owner = access.space == Space::kGlobal ? regions_.owner(access.address) : -1;
  if (owner >= 0 && owner != access.rank) {
    statistics_.link(access.rank, owner, kernels_.call_of(access.rank), access.bytes, reads, writes);
  }
  if (!races_are_looked_for_) return;
  const bool is_async = async_.is_operation(access.agent);
  const uint32_t site = sites_.of(access);
  const Accessor who = is_async ? async_.accessor(access.agent, !writes, access.space, access.proxy, access.address)
                                : kernels_.stream_accessor(access.agent, access.rank);
  if (reads && access.unwritten) defer_unwritten(*access.unwritten, access.address, access.bytes, {who.who, who.time, site, 1});
  else if (reads && is_async) check_written(access.address, access.bytes, {who.who, who.time, site, who.lanes});
  if (writes) {
    if (access.is_same) races_.write_same(who, site, access.address, access.bytes);
    else races_.write(who, site, access.address, access.bytes);
    shadow_.mark_written(access.address, access.bytes);
  } else {
    races_.read(who, site, access.address, access.bytes);
  }
  if (access.space == Space::kShared) ended_blocks_.access({who.who, who.time, site, who.lanes}, access.address, access.bytes);
}

// ---- within a kernel ----

uint32_t Detector::site_of(const Warp& warp, Operation operation, Order order, Scope scope, Space space, uint32_t bytes) {
  Access access{};
  access.warp = warp;
  access.operation = operation;
  access.order = order;
  access.scope = scope;
  access.space = space;
  access.proxy = Proxy::kGeneric;
  access.element_bytes = bytes;
  access.decides = false;  // no flag: what a load of an mbarrier sees orders nothing by itself
  return sites_.of(access);
}

void Detector::fence(const Warp& warp, Order order, Scope scope) {
  if (!races_are_looked_for_) return;
  const WarpState& state = kernels_.warp(warp);
  const bool is_of_signal = std::any_of(state.signalling.begin(), state.signalling.end(),
                                        [&](const Signalling& signalling) { return signalling.lanes & warp.lanes; });
  if (is_of_signal) return;  // it lets the data go ahead of the signal, and nothing else
  flags_.fence(kernels_.warp(warp), warp.lanes, order, scope, site_of(warp, Operation::kAtomic, order, scope, Space::kGlobal, 0));
}

void Detector::proxy_fence(const Warp& warp, ProxyFence fence) {
  if (races_are_looked_for_) flags_.proxy_fence(kernels_.warp(warp), warp.lanes, fence);
}

void Detector::mbarrier_init_fence(const Warp& warp) {
  if (races_are_looked_for_) flags_.mbarrier_init_fence(kernels_.warp(warp), warp.lanes);
}

void Detector::barrier_arrive(const Warp& warp, uint32_t barrier, uint64_t generation) {
  const std::string opcode = warp.opcode ? warp.opcode : "";
  const bool is_aligned = opcode.rfind("bar.", 0) == 0 || opcode.find(".aligned") != std::string::npos;
  if (is_aligned && warp.lanes != warp.full_lanes) {
    const uint32_t site = site_of(warp, Operation::kAtomic, Order::kWeak, Scope::kNone, Space::kShared, 0);
    if (report_.is_new(FindingKind::kDivergentBarrier, 0, site)) {
      const WarpState& state = kernels_.warp(warp);
      Finding finding;
      finding.kind = FindingKind::kDivergentBarrier;
      const Record record{state.key, state.epoch, site, warp.lanes};
      finding.second = report_.describe_access(record);
      finding.second.operation = "barrier";
      finding.call = report_.call_of(record);
      report_.add(std::move(finding), 0, site);
    }
  }
  barriers_.arrive(warp, barrier, generation, opcode.find(".arrive") == std::string::npos);
}

void Detector::barrier_leave(const Warp& warp, uint32_t barrier, uint64_t generation) {
  barriers_.leave(warp, barrier, generation);
}

void Detector::cluster_arrive(const Warp& warp, bool releases, uint64_t generation) {
  barriers_.cluster_arrive(warp, releases, generation);
}

void Detector::cluster_leave(const Warp& warp, bool acquires, uint64_t generation) {
  barriers_.cluster_leave(warp, acquires, generation);
}

void Detector::warp_barrier(const Warp& warp) { barriers_.warp_barrier(warp); }

void Detector::warp_match(const Warp& warp) {
  if (races_are_looked_for_) barriers_.match(warp);
}

// An mbarrier is a word that is initialised by a plain store and then only used as a whole. Each lane that uses it has to
// come after its initialisation, which shadow memory forgets with the first use. Returns the access of the lane.
Record Detector::mbarrier_access(const Warp& warp, uint64_t address, Operation operation, Order order) {
  if (!races_are_looked_for_) return {};
  WarpState& state = kernels_.warp(warp);
  const Scope scope = order == Order::kWeak ? Scope::kNone : Scope::kCluster;
  const uint32_t site = site_of(warp, operation, order, scope, Space::kShared, kMbarrierBytes);
  const uint32_t lane = warp.lanes & -warp.lanes;
  Accessor who = kernels_.lane_accessor(state, lane);
  Past past = *who.past;
  if (order != Order::kWeak) {
    past.base = clocks_.join(past.base, state.fences.at(__builtin_ctz(lane)).initialised);
    who.past = &past;
    races_.check_follows(barriers_.initialised(address), who, site, address, kMbarrierBytes);
  }
  if (operation == Operation::kRead) {
    races_.read(who, site, address, kMbarrierBytes);
  } else {
    races_.write(who, site, address, kMbarrierBytes);
    shadow_.mark_written(address, kMbarrierBytes);
  }
  return {who.who, who.time, site, who.lanes};
}

void Detector::mbarrier_init(const Warp& warp, uint64_t address, uint32_t /*count*/) {
  barriers_.init(address, mbarrier_access(warp, address, Operation::kWrite, Order::kWeak));
}

void Detector::mbarrier_invalidate(const Warp& warp, uint64_t address) {
  if (races_are_looked_for_) {
    WarpState& state = kernels_.warp(warp);
    races_.forget_matched(kernels_.lane_accessor(state, warp.lanes & -warp.lanes), address, kMbarrierBytes);
  }
  mbarrier_access(warp, address, Operation::kWrite, Order::kWeak);
  barriers_.invalidate(address);
}

void Detector::mbarrier_arrive(const Warp& warp, uint64_t address, uint64_t /*phase*/, Order order, Scope scope) {
  mbarrier_access(warp, address, Operation::kAtomic, Order::kRelaxed);
  const uint32_t site = site_of(warp, Operation::kAtomic, order, scope, Space::kShared, kMbarrierBytes);
  barriers_.arrive_mbarrier(warp, address, sites_[site], site);
}

void Detector::mbarrier_expect(const Warp& warp, uint64_t address, uint64_t /*phase*/, uint32_t bytes) {
  const WarpState& state = kernels_.warp(warp);
  const uint32_t site = site_of(warp, Operation::kAtomic, Order::kRelaxed, Scope::kCluster, Space::kShared, kMbarrierBytes);
  barriers_.expect(address, bytes, {state.key, state.epoch, site, warp.lanes & -warp.lanes});
}

void Detector::mbarrier_wait(const Warp& warp, uint64_t address, uint64_t /*phase*/, Order order, Scope scope) {
  Warp one = warp;
  each_lane(warp.lanes, [&](int lane) {
    one.lanes = 1u << lane;
    mbarrier_access(one, address, Operation::kRead, Order::kRelaxed);
  });
  const uint32_t site = site_of(warp, Operation::kRead, order, scope, Space::kShared, kMbarrierBytes);
  barriers_.wait(warp, address, sites_[site], site);
}

void Detector::mbarrier_complete(uint64_t address, uint64_t /*phase*/) {
  const Record announced = barriers_.complete(address);
  if (announced.present()) found_leak(announced, address, MissingEdge::kCompletion);
}

// Bytes that an mbarrier has announced and nobody has waited for: `missing` is kCompletion where its next phase is over.
void Detector::found_leak(const Record& announced, uint64_t mbarrier, MissingEdge missing) {
  if (!report_.is_new(FindingKind::kMbarrierLeak, 0, announced.site)) return;
  Finding finding;
  finding.kind = FindingKind::kMbarrierLeak;
  finding.missing = missing;
  finding.second = report_.describe_access(announced);
  finding.call = report_.call_of(announced);
  report_.describe_place(finding, mbarrier, kMbarrierBytes);
  report_.add(std::move(finding), 0, announced.site);
}

// ---- asynchronous operations ----

void Detector::async_issue(const AsyncOperation& operation) {
  async_.issue(operation, site_of(operation.warp, Operation::kAtomic, Order::kWeak, Scope::kNone, Space::kShared, 0));
}

void Detector::async_complete(const AsyncOperation& operation, uint64_t /*phase*/) { async_.complete(operation); }
void Detector::async_commit(const Warp& warp, Completion completion) { async_.commit(warp, completion); }

void Detector::async_wait(const Warp& warp, Completion completion, uint32_t pending, bool reads_only) {
  async_.wait(warp, completion, pending, reads_only);
}

void Detector::async_arrive(const Warp& warp, Completion completion, uint64_t mbarrier) {
  mbarrier_access(warp, mbarrier, Operation::kAtomic, Order::kRelaxed);
  async_.arrive(warp, completion, mbarrier);
}

void Detector::library_mark(const Warp& warp, LibraryMark mark, bool of_each_lane) {
  if (races_are_looked_for_) library_.mark(warp, mark, of_each_lane);
}

// ---- kernels, streams, calls ----

void Detector::launch_begin(const Launch& launch) { kernels_.launch_begin(launch); }

void Detector::launch_end(const Launch& launch) {
  async_.forget_launch(launch.id);
  kernels_.launch_end(launch);
  library_.launch_end(launch.id);
}

void Detector::block_begin(const Launch& launch, uint32_t block, uint32_t threads) {
  kernels_.block_begin(launch, block, threads);
}

void Detector::block_end(const Launch& launch, uint32_t block) {
  for (const Record& copy : async_.end_block(launch, block)) {
    if (!report_.is_new(FindingKind::kBulkCopyLeak, 0, copy.site)) continue;
    Finding finding;
    finding.kind = FindingKind::kBulkCopyLeak;
    finding.missing = MissingEdge::kCompletion;
    finding.second = report_.describe_access(copy);
    finding.second.operation = "read";
    finding.call = report_.call_of(copy);
    report_.add(std::move(finding), 0, copy.site);
  }
  for (const WarpState& warp : kernels_.block(launch, block).warps) races_.forget_unused(warp.key);
  ended_blocks_.end(launch, block);
  kernels_.block_end(launch, block);
}

void Detector::lanes_exit(const Warp& warp) {
  barriers_.exit(warp);
  if (!races_are_looked_for_ || !EndedBlocks::concerns(*warp.launch)) return;
  ended_blocks_.exit(warp, site_of(warp, Operation::kWrite, Order::kWeak, Scope::kNone, Space::kShared, 0));
}

void Detector::prerequisite_wait(const Warp& warp) { kernels_.prerequisite_wait(warp); }
void Detector::stream_enqueue(const StreamOperation& operation) { kernels_.enqueue(operation); }

void Detector::stream_begin(const StreamOperation& operation) {
  kernels_.begin(operation);
  arrival_operation_ = operation.id;
}

void Detector::stream_end(const StreamOperation& operation) { kernels_.end(operation); }
void Detector::host_waited_stream(int host, uint64_t stream) { kernels_.host_waited_stream(host, stream); }

void Detector::host_waited_event(int host, uint64_t event, uint64_t generation) {
  kernels_.host_waited_event(host, event, generation);
}

void Detector::host_released(int host, uint64_t object) { kernels_.release(kernels_.host(host), object); }
void Detector::host_acquired(int host, uint64_t object) { kernels_.acquire(kernels_.host(host), object); }
void Detector::stream_released(uint64_t stream, uint64_t object) { kernels_.release(kernels_.stream(stream), object); }
void Detector::stream_acquired(uint64_t stream, uint64_t object) { kernels_.acquire(kernels_.stream(stream), object); }
void Detector::host_quiet(int host, int rank) { library_.host_quiet(host, rank); }
void Detector::host_joined(int host, int other) { kernels_.host_joined(host, other); }

// Arrival: earlier work of the stream has written the arguments, and has the outputs' memory until then.
void Detector::arrival(int rank, uint64_t call) {
  kernels_.arrived(rank, call);
  write_tensors("arrival", rank, RegionKind::kArgument);
  write_tensors("arrival", rank, RegionKind::kOutput);
}

// Departure: later work takes the outputs and may overwrite everything.
void Detector::departure(int rank, uint64_t /*call*/) {
  write_tensors("departure", rank, RegionKind::kOutput);
  write_tensors("departure", rank, RegionKind::kArgument);
}

std::string Detector::last_write(uint64_t address, uint64_t bytes) {
  const Cell* newest = nullptr;
  for (const uint64_t end = address + bytes; address < end; ++address) {
    const Cell* const cell = shadow_.find(address);
    if (cell && cell->write.present() && (!newest || cell->write.time > newest->write.time)) newest = cell;
  }
  if (!newest) return "";
  const int64_t call = report_.call_of(newest->write);
  return "last " + describe(report_.describe_access(newest->write)) + (call < 0 ? "" : ", in call " + std::to_string(call));
}

void Detector::write_tensors(const char* what, int rank, RegionKind kind) {
  if (!races_are_looked_for_) return;
  Site like{};
  like.what = what;
  like.operation = Operation::kWrite;
  like.space = Space::kGlobal;
  like.proxy = Proxy::kHost;
  like.element_bytes = 1;
  const uint32_t site = sites_.of(like);
  const Accessor who = kernels_.stream_accessor(arrival_operation_, rank);
  for (const Region* region : regions_.of(rank, kind)) races_.write(who, site, region->address, region->bytes);
}

}  // namespace pkb::emulator::detector
