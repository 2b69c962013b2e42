// Memory that has several addresses, as physical memory that several ranks map: an observer that passes events on with the
// one address by which the detector knows it.
#pragma once

#include <cstring>
#include <map>

#include "events.h"

namespace pkb::emulator {

class Aliases : public Observer {
 public:
  explicit Aliases(Observer* next) : next_(next) {}

  // Own addresses: bytes at `begin` are those at `known`.
  void add(uint64_t begin, uint64_t bytes, uint64_t known) { ranges_[begin] = {begin + bytes, known}; }
  void remove(uint64_t begin) { ranges_.erase(begin); }

  void region_added(const Region& region) override { next_->region_added(region); }
  void region_removed(const Region& region) override { next_->region_removed(region); }
  void set_initialised(uint64_t address, uint64_t bytes, bool initialised) override { next_->set_initialised(known(address), bytes, initialised); }
  void access(const Access& access) override {
    if (access.space != Space::kGlobal) return next_->access(access);
    uint64_t addresses[kLanes];
    std::memcpy(addresses, access.addresses, sizeof addresses);
    each_lane(access.warp.lanes, [&](int lane) { addresses[lane] = known(addresses[lane]); });
    Access translated = access;
    translated.addresses = addresses;
    next_->access(translated);
  }
  void range_access(const RangeAccess& access) override {
    RangeAccess translated = access;
    if (access.space == Space::kGlobal) translated.address = known(access.address);
    next_->range_access(translated);
  }
  std::string last_write(uint64_t address, uint64_t bytes) override { return next_->last_write(known(address), bytes); }

  void unwritten_used(uint32_t load) override { next_->unwritten_used(load); }
  void value_used(const Warp& warp, const SourceLine* load) override { next_->value_used(warp, load); }
  void fence(const Warp& warp, Order order, Scope scope) override { next_->fence(warp, order, scope); }
  void proxy_fence(const Warp& warp, ProxyFence kind) override { next_->proxy_fence(warp, kind); }
  void mbarrier_init_fence(const Warp& warp) override { next_->mbarrier_init_fence(warp); }
  void barrier_arrive(const Warp& warp, uint32_t barrier, uint64_t generation) override { next_->barrier_arrive(warp, barrier, generation); }
  void barrier_leave(const Warp& warp, uint32_t barrier, uint64_t generation) override { next_->barrier_leave(warp, barrier, generation); }
  void cluster_arrive(const Warp& warp, bool releases, uint64_t generation) override { next_->cluster_arrive(warp, releases, generation); }
  void cluster_leave(const Warp& warp, bool acquires, uint64_t generation) override { next_->cluster_leave(warp, acquires, generation); }
  void warp_barrier(const Warp& warp) override { next_->warp_barrier(warp); }
  void warp_match(const Warp& warp) override { next_->warp_match(warp); }
  void mbarrier_init(const Warp& warp, uint64_t address, uint32_t count) override { next_->mbarrier_init(warp, address, count); }
  void mbarrier_invalidate(const Warp& warp, uint64_t address) override { next_->mbarrier_invalidate(warp, address); }
  void mbarrier_arrive(const Warp& warp, uint64_t address, uint64_t phase, Order order, Scope scope) override { next_->mbarrier_arrive(warp, address, phase, order, scope); }
  void mbarrier_expect(const Warp& warp, uint64_t address, uint64_t phase, uint32_t bytes) override { next_->mbarrier_expect(warp, address, phase, bytes); }
  void mbarrier_wait(const Warp& warp, uint64_t address, uint64_t phase, Order order, Scope scope) override { next_->mbarrier_wait(warp, address, phase, order, scope); }
  void mbarrier_complete(uint64_t address, uint64_t phase) override { next_->mbarrier_complete(address, phase); }
  void async_issue(const AsyncOperation& operation) override { next_->async_issue(operation); }
  void async_complete(const AsyncOperation& operation, uint64_t phase) override { next_->async_complete(operation, phase); }
  void async_commit(const Warp& warp, Completion kind) override { next_->async_commit(warp, kind); }
  void async_wait(const Warp& warp, Completion kind, uint32_t pending, bool reads_only) override { next_->async_wait(warp, kind, pending, reads_only); }
  void async_arrive(const Warp& warp, Completion kind, uint64_t mbarrier) override { next_->async_arrive(warp, kind, mbarrier); }
  void wgmma_fence(const Warp& warp) override { next_->wgmma_fence(warp); }
  void launch_begin(const Launch& launch) override { next_->launch_begin(launch); }
  void launch_end(const Launch& launch) override { next_->launch_end(launch); }
  void block_begin(const Launch& launch, uint32_t block, uint32_t threads) override { next_->block_begin(launch, block, threads); }
  void block_end(const Launch& launch, uint32_t block) override { next_->block_end(launch, block); }
  void lanes_exit(const Warp& warp) override { next_->lanes_exit(warp); }
  void prerequisite_wait(const Warp& warp) override { next_->prerequisite_wait(warp); }
  void stream_enqueue(const StreamOperation& operation) override { next_->stream_enqueue(operation); }
  void stream_begin(const StreamOperation& operation) override { next_->stream_begin(operation); }
  void stream_end(const StreamOperation& operation) override { next_->stream_end(operation); }
  void host_waited_stream(int host, uint64_t stream) override { next_->host_waited_stream(host, stream); }
  void host_waited_event(int host, uint64_t event, uint64_t generation) override { next_->host_waited_event(host, event, generation); }
  void host_released(int host, uint64_t object) override { next_->host_released(host, object); }
  void host_acquired(int host, uint64_t object) override { next_->host_acquired(host, object); }
  void stream_released(uint64_t stream, uint64_t object) override { next_->stream_released(stream, object); }
  void stream_acquired(uint64_t stream, uint64_t object) override { next_->stream_acquired(stream, object); }
  void host_joined(int host, int other) override { next_->host_joined(host, other); }
  void arrival(int rank, uint64_t call) override { next_->arrival(rank, call); }
  void departure(int rank, uint64_t call) override { next_->departure(rank, call); }

 private:
  struct Range {
    uint64_t end, known;
  };
  uint64_t known(uint64_t address) const {
    const auto after = ranges_.upper_bound(address);
    if (after == ranges_.begin()) return address;
    const auto& [begin, range] = *std::prev(after);
    return address < range.end ? range.known + (address - begin) : address;
  }

  Observer* const next_;
  std::map<uint64_t, Range> ranges_;  // by begin
};

}  // namespace pkb::emulator
