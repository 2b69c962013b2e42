// Statistics that need no ordering: sectors of global memory and passes over shared memory by source line, bytes over links.
#pragma once

#include <cstdint>
#include <map>
#include <tuple>
#include <vector>

#include "detector_agents.h"
#include "detector_regions.h"
#include "findings.h"

namespace pkb::emulator::detector {

class Statistics {
 public:
  // One warp instruction; looks closely at the first of each site and then at some.
  void access(const Access& access, uint32_t site);
  // Bytes of another rank's memory.
  void link(int rank, int owner, int64_t call, uint64_t bytes, bool reads, bool writes);

  std::vector<Advice> advice(const Sites& sites) const;
  std::vector<Link> links() const;

 private:
  struct Counts {
    const char* kernel = nullptr;
    uint64_t accesses = 0, looked_at = 0;
    uint64_t actual = 0, least = 0;
  };
  struct Bytes {
    uint64_t read = 0, written = 0;
  };

  std::vector<Counts> of_sites_;
  using LinkKey = std::tuple<int, int, int64_t>;  // rank, owner, call

  std::map<LinkKey, Bytes> links_;
  LinkKey last_key_;
  Bytes* last_link_ = nullptr;
};

}  // namespace pkb::emulator::detector
