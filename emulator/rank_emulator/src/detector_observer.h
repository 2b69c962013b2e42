// The detector: gives each event to the part that it concerns.
#pragma once

#include <cstdint>
#include <functional>
#include <string>

#include "detector_advice.h"
#include "detector_async.h"
#include "detector_barriers.h"
#include "detector_ended_blocks.h"
#include "detector_kernels.h"
#include "detector_library.h"
#include "detector_races.h"
#include "detector_regions.h"
#include "detector_report.h"
#include "events.h"

namespace pkb::emulator::detector {

class Detector : public Observer {
 public:
  // `races`: whether races and bytes that nobody wrote are looked for. `strict`: to the letter of PTX's memory model.
  Detector(bool races, bool strict, size_t most_findings, std::function<void(const std::string&)> found);

  FindingReport report() const;
  uint64_t count() const { return report_.findings().size(); }

  void region_added(const Region& region) override;
  void region_removed(const Region& region) override;
  void set_initialised(uint64_t address, uint64_t bytes, bool initialised) override;
  void access(const Access& access) override;
  void range_access(const RangeAccess& access) override;
  void value_used(const Warp& warp, const SourceLine* load) override;
  void unwritten_used(uint32_t load) override;

  void fence(const Warp& warp, Order order, Scope scope) override;
  void proxy_fence(const Warp& warp, ProxyFence fence) override;
  void mbarrier_init_fence(const Warp& warp) override;
  void barrier_arrive(const Warp& warp, uint32_t barrier, uint64_t generation) override;
  void barrier_leave(const Warp& warp, uint32_t barrier, uint64_t generation) override;
  void cluster_arrive(const Warp& warp, bool releases, uint64_t generation) override;
  void cluster_leave(const Warp& warp, bool acquires, uint64_t generation) override;
  void warp_barrier(const Warp& warp) override;
  void warp_match(const Warp& warp) override;
  void mbarrier_init(const Warp& warp, uint64_t address, uint32_t count) override;
  void mbarrier_invalidate(const Warp& warp, uint64_t address) override;
  void mbarrier_arrive(const Warp& warp, uint64_t address, uint64_t phase, Order order, Scope scope) override;
  void mbarrier_expect(const Warp& warp, uint64_t address, uint64_t phase, uint32_t bytes) override;
  void mbarrier_wait(const Warp& warp, uint64_t address, uint64_t phase, Order order, Scope scope) override;
  void mbarrier_complete(uint64_t address, uint64_t phase) override;

  void async_issue(const AsyncOperation& operation) override;
  void async_complete(const AsyncOperation& operation, uint64_t phase) override;
  void async_commit(const Warp& warp, Completion completion) override;
  void async_wait(const Warp& warp, Completion completion, uint32_t pending, bool reads_only) override;
  void async_arrive(const Warp& warp, Completion completion, uint64_t mbarrier) override;

  void library_mark(const Warp& warp, LibraryMark mark, bool of_each_lane) override;

  void launch_begin(const Launch& launch) override;
  void launch_end(const Launch& launch) override;
  void block_begin(const Launch& launch, uint32_t block, uint32_t threads) override;
  void block_end(const Launch& launch, uint32_t block) override;
  void lanes_exit(const Warp& warp) override;
  void prerequisite_wait(const Warp& warp) override;

  void stream_enqueue(const StreamOperation& operation) override;
  void stream_begin(const StreamOperation& operation) override;
  void stream_end(const StreamOperation& operation) override;
  void host_waited_stream(int host, uint64_t stream) override;
  void host_waited_event(int host, uint64_t event, uint64_t generation) override;
  void host_released(int host, uint64_t object) override;
  void host_acquired(int host, uint64_t object) override;
  void stream_released(uint64_t stream, uint64_t object) override;
  void stream_acquired(uint64_t stream, uint64_t object) override;
  void host_joined(int host, int other) override;
  void host_quiet(int host, int rank) override;
  void host_unseen(int rank) override { kernels_.host_unseen(rank); }
  void arrival(int rank, uint64_t call) override;
  void departure(int rank, uint64_t call) override;
  std::string last_write(uint64_t address, uint64_t bytes) override;

 private:
  // Memory that is known to belong to one region, so that most accesses need no look-up.
  struct Span {
    uint64_t begin = 0, end = 0;
    int owner = -1;
  };

  uint32_t site_of(const Warp& warp, Operation operation, Order order, Scope scope, Space space, uint32_t bytes);
  Accessor accessor_of(const Access& access, const WarpState& warp, uint32_t lanes, uint32_t site);
  uint32_t library_access(const Access& access, WarpState& warp, uint32_t site);
  void lanes_access(const Access& access, WarpState& warp, const Accessor& who, uint64_t address, uint32_t site, bool is_written);
  bool access_in_common(const Access& access, const Accessor& who, uint32_t site, bool is_written);
  bool all_written(const Access& access);
  void store_flags(const Access& access, WarpState& warp, uint32_t site);
  const Span& span_of(uint64_t address, uint32_t bytes, const Record& access, int rank);
  void defer_unwritten(Unwritten& unwritten, uint64_t address, uint64_t bytes, const Record& access);
  void check_written(uint64_t address, uint64_t bytes, const Record& access);
  void write_tensors(const char* what, int rank, RegionKind kind);
  void found_leak(const Record& announced, uint64_t mbarrier, MissingEdge missing);
  Record mbarrier_access(const Warp& warp, uint64_t address, Operation operation, Order order);

  const bool races_are_looked_for_, strict_;
  Agents agents_;
  Clocks clocks_{agents_};
  Sites sites_;
  Regions regions_;
  Shadow shadow_;
  Flags flags_{agents_, clocks_};
  Kernels kernels_{agents_, clocks_, flags_, strict_};
  Barriers barriers_{agents_, clocks_, flags_, kernels_};
  AsyncOperations async_{agents_, clocks_, flags_, kernels_, barriers_, regions_};
  LibraryOperations library_{agents_, clocks_, flags_, kernels_};
  Report report_;
  Races races_{agents_, sites_, flags_, kernels_, shadow_, report_};
  EndedBlocks ended_blocks_{agents_, sites_, kernels_, shadow_, races_.equal_stores(), report_};
  Statistics statistics_;
  std::unordered_map<uint32_t, Finding> unwritten_loads_;  // that may be errors, by site
  Span spans_[16];
  Past delivered_;  // of the accessor at hand
  uint64_t arrival_operation_ = 0;  // the stream operation that has begun last
};

}  // namespace pkb::emulator::detector
