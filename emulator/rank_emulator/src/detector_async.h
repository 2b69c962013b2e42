// Asynchronous operations: cp.async, cp.async.bulk and wgmma. Each has the past of its issuer, and is ordered before what
// waits for its completion alone.
#pragma once

#include <cstdint>
#include <map>
#include <tuple>
#include <unordered_map>
#include <vector>

#include "detector_barriers.h"
#include "detector_regions.h"

namespace pkb::emulator::detector {

class AsyncOperations {
 public:
  AsyncOperations(Agents& agents, Clocks& clocks, Flags& flags, Kernels& kernels, Barriers& barriers, const Regions& regions)
      : agents_(agents), clocks_(clocks), flags_(flags), kernels_(kernels), barriers_(barriers), regions_(regions) {}

  // `site` is of the instruction; several events of one operation name further mbarriers of a multicast, each of which says
  // that the bytes of its own block have come.
  void issue(const AsyncOperation& operation, uint32_t site);
  void complete(const AsyncOperation& operation);
  void commit(const Warp& warp, Completion completion);
  void wait(const Warp& warp, Completion completion, uint32_t pending, bool reads_only);
  void arrive(const Warp& warp, Completion completion, uint64_t mbarrier);

  // Takes the groups of a block that ends: the bulk copies whose issuer has not waited until they have read their source.
  // PTX ends shared memory with its block, whatever still reads it. What they write is complete when the kernel ends.
  std::vector<Record> end_block(const Launch& launch, uint32_t block);

  // Whether a range access is of such an operation; its accessor, and the site of its instruction.
  bool is_operation(uint64_t id) const { return operations_.count(id) != 0; }
  Accessor accessor(uint64_t id, bool reads, Space space, Proxy proxy, uint64_t address) const;
  uint32_t site_of(uint64_t id) const { return operations_.at(id).site; }

  void forget_launch(uint64_t launch);

 private:
  // A block that a multicast writes: its mbarrier, and the channel of the writes there.
  struct Target {
    uint64_t mbarrier;
    Key writes;
  };
  struct Operation {
    Key reads = 0, writes = 0;  // channels
    std::vector<Target> targets;  // of a multicast to several blocks
    uint64_t first_mbarrier = 0;
    Time time = 0;
    uint32_t site = 0;
    Key warp = 0;
    uint32_t lanes = 0;
    int rank = 0;
    Past past;
    ClockRef proxied_global, proxied_shared;
    uint64_t launch = 0;
  };
  // The groups of one lane (or warp, for wgmma).
  struct Groups {
    Key reads = 0, writes = 0;
    Time open = 0;              // of the last operation that no group holds yet
    std::vector<Time> groups;   // of each group's last operation, or of the group before
    std::vector<Record> unread; // bulk copies whose reads nobody has waited for
    uint64_t launch = 0;
  };
  using Issuer = std::tuple<Key, int, Completion>;              // lane; -1: the warp
  using AtBarrier = std::tuple<Key, int, uint64_t>;             // lane and mbarrier

  Groups& groups_of(Key warp, uint32_t lanes, Completion completion, uint64_t launch);
  Key channel_at(const WarpState& warp, const AsyncOperation& operation, uint64_t mbarrier);
  Key channel(uint32_t grid, Key warp, uint32_t lanes, Completion completion, bool reads);

  Agents& agents_;
  Clocks& clocks_;
  Flags& flags_;
  Kernels& kernels_;
  Barriers& barriers_;
  const Regions& regions_;
  std::unordered_map<uint64_t, Operation> operations_;
  std::map<Issuer, Groups> groups_;
  std::map<AtBarrier, Key> at_barriers_;
};

}  // namespace pkb::emulator::detector
