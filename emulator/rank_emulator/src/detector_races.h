// Two accesses to the same bytes, one of them a write, that are neither ordered nor morally strong are a race (PTX ISA
// 8.7 "Conflict and Data-races").
#pragma once

#include <cstdint>

#include "detector_async.h"
#include "detector_report.h"
#include "detector_shadow.h"

namespace pkb::emulator::detector {

class Races {
 public:
  Races(Agents& agents, Sites& sites, Flags& flags, Shadow& shadow, Report& report)
      : agents_(agents), sites_(sites), flags_(flags), shadow_(shadow), report_(report) {}

  void read(const Accessor& who, uint32_t site, uint64_t address, uint64_t bytes);
  void write(const Accessor& who, uint32_t site, uint64_t address, uint64_t bytes);
  // A plain store of the value that is there races with no earlier access: its order among them changes nothing. Later
  // stores of other values must be ordered after it.
  void write_same(const Accessor& who, uint32_t site, uint64_t address, uint64_t bytes);

 private:
  void read_cell(Cell& cell, const Accessor& who, const Record& access, uint64_t address, uint32_t bytes);
  void write_cell(Cell& cell, const Accessor& who, const Record& access, uint64_t address, uint32_t bytes);
  void note_read(Cell& cell, const Accessor& who, const Record& access);
  // Whether an earlier access races with this one.
  bool races(const Cell& cell, const Record& earlier, bool earlier_is_read, const Accessor& who, const Record& access);
  bool is_morally_strong(const Record& a, const Record& b) const;
  bool is_observed(const Cell& cell, const Record& earlier, const Accessor& who);

  void found(const Record& earlier, const Accessor& who, const Record& access, uint64_t address, uint32_t bytes);
  // Which edge would have ordered them.
  void explain(Finding& finding, const Record& earlier, const Accessor& who, const Record& access);
  bool explain_flags(Finding& finding, const Record& earlier, const Accessor& who, const Record& access);
  bool explain_by_failed_edge(Finding& finding, const Record& earlier, const Accessor& who);
  MissingEdge missing_between(const Finding& finding, const Record& earlier, const Accessor& who,
                              const Record& access) const;
  bool release_covers(const FailedEdge& edge, const Record& earlier) const;
  bool fence_covers(const FailedEdge& edge, const Record& earlier) const;
  bool reader_is_known(const FailedEdge& edge, const Accessor& who) const;

  Agents& agents_;
  Sites& sites_;
  Flags& flags_;
  Shadow& shadow_;
  Report& report_;
};

}  // namespace pkb::emulator::detector
