// Collects findings: one for each kind and pair of lines, with how often it occurred.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <string>
#include <tuple>

#include "detector_kernels.h"
#include "detector_regions.h"
#include "findings.h"

namespace pkb::emulator::detector {

class Report {
 public:
  Report(const Agents& agents, const Sites& sites, const Kernels& kernels, const Regions& regions, size_t most,
         std::function<void(const std::string&)> found)
      : agents_(agents), sites_(sites), kernels_(kernels), regions_(regions), most_(most), found_(std::move(found)) {}

  // Whether a finding of this kind and pair of sites is new; counts it if it is not. Benign ones are apart from others.
  bool is_new(FindingKind kind, uint32_t first_site, uint32_t second_site, bool is_benign = false);
  // The finding of a pair whose order is weak so far; null if there is none, or it has occurred so often that a further
  // one is not looked at.
  Finding* weak(FindingKind kind, uint32_t first_site, uint32_t second_site);
  // Adds a new one, and reports it.
  void add(Finding finding, uint32_t first_site, uint32_t second_site);

  FoundAccess describe_access(const Record& record) const;
  void describe_place(Finding& finding, uint64_t address, uint64_t bytes) const;
  int64_t call_of(const Record& record) const { return kernels_.call_at(agents_.rank_of(record.who), record.time); }

  const std::vector<Finding>& findings() const { return findings_; }
  uint64_t dropped() const { return dropped_; }

 private:
  using Pair = std::tuple<FindingKind, uint32_t, uint32_t, bool>;
  static constexpr uint64_t kLooks = 64;
  static constexpr size_t kDropped = ~size_t(0);

  const Agents& agents_;
  const Sites& sites_;
  const Kernels& kernels_;
  const Regions& regions_;
  const size_t most_;
  const std::function<void(const std::string&)> found_;
  std::map<Pair, size_t> numbers_;
  std::vector<Finding> findings_;
  uint64_t dropped_ = 0;
};

}  // namespace pkb::emulator::detector
