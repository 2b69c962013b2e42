// Two accesses to the same bytes, one of them a write, that are neither ordered nor morally strong are a race (PTX ISA
// 8.7 "Conflict and Data-races").
#pragma once

#include <cstdint>

#include "detector_async.h"
#include "detector_equal_stores.h"
#include "detector_report.h"
#include "detector_shadow.h"

namespace pkb::emulator::detector {

class Races {
 public:
  Races(Agents& agents, Sites& sites, Flags& flags, Kernels& kernels, Shadow& shadow, Report& report)
      : agents_(agents), sites_(sites), flags_(flags), kernels_(kernels), shadow_(shadow), report_(report) {}

  // Weak accesses of a warp's lanes, which know the same, each an accessor of its own. Lanes side by side that read the same
  // bytes are taken together; returns how many there are then. Stores of lanes that are not in `access.wrote` are as in
  // `write_same`.
  uint32_t read_lanes(Accessor who, uint32_t site, const Access& access);
  void write_lanes(Accessor who, uint32_t site, const Access& access);

  void read(const Accessor& who, uint32_t site, uint64_t address, uint64_t bytes);
  void write(const Accessor& who, uint32_t site, uint64_t address, uint64_t bytes);
  // A plain store of the value that is there. Which of several such stores a thread reads makes no difference where the
  // thread itself, or its block in an earlier phase, has made one of them; to all others it is a store like any.
  void write_same(const Accessor& who, uint32_t site, uint64_t address, uint64_t bytes);
  // An access that has to come after an earlier weak one, if there is any, which may have left shadow memory.
  void check_follows(const Record& earlier, const Accessor& who, uint32_t site, uint64_t address, uint32_t bytes);
  // Forgets strong accesses whose lanes have come to a match.sync together with a lane that is ordered before `who`: they are
  // over by then, though no memory is ordered. The destructor of a cuda::pipeline relies on it.
  void forget_matched(const Accessor& who, uint64_t address, uint64_t bytes);
  // Lanes of a warp that have used the value of a load: its races are found by then, and not before.
  void used(Key warp, const SourceLine* load, uint32_t lanes);
  // The warp has ended: what it has not used it never will.
  void forget_unused(Key warp) { unused_.erase(warp); }
  const EqualStores& equal_stores() const { return equal_stores_; }

 private:
  // What most accesses come to: the cell's last accesses are of the same lane, or of the block before a barrier. False:
  // nothing has been done.
  bool read_quickly(Cell& cell, const Accessor& who, const Record& access) const;
  bool write_quickly(Cell& cell, const Accessor& who, const Record& access) const;

  void read_cell(Cell& cell, const Accessor& who, const Record& access, uint64_t address, uint32_t bytes);
  void write_cell(Cell& cell, const Accessor& who, const Record& access, uint64_t address, uint32_t bytes);
  // A reduction by the async proxy: those that it is not ordered with stand beside it.
  void reduce_cell(Cell& cell, const Accessor& who, const Record& access, uint64_t address, uint32_t bytes);
  void write_same_cell(Cell& cell, const Accessor& who, const Record& access, uint64_t address, uint32_t bytes);
  // Whether the lanes' own block has made a plain store before: `write` is ordered, or their own.
  bool is_own_store(const Record& write, const Accessor& who) const;
  void note_read(Cell& cell, const Accessor& who, const Record& access);
  // Whether an earlier access races with this one.
  bool races(const Cell& cell, const Record& earlier, bool earlier_is_read, const Accessor& who, const Record& access);
  bool is_morally_strong(const Record& a, const Record& b) const;
  bool is_observed(const Cell& cell, const Record& earlier, const Accessor& who);

  void found(const Record& earlier, const Accessor& who, const Record& access, uint64_t address, uint32_t bytes);
  void found_equal(const Record& earlier, const Record& access, uint64_t address, uint32_t bytes);
  // A race of a load whose value its lanes have not used so far.
  struct Unused {
    Record load;
    uint32_t first_site, second_site;
    Finding finding;
  };
  // Whether an access is such a load.
  bool is_unused(const Record& record);
  void publish(Finding finding, uint32_t first_site, uint32_t second_site);
  // Which edge would have ordered them.
  void explain(Finding& finding, const Record& earlier, const Accessor& who, const Record& access);
  FindingClass class_of(const Finding& finding, const Record& earlier, const Accessor& who, const Record& access) const;
  bool lacks_a_barrier(const Record& earlier, const Record& access) const;
  bool explain_flags(Finding& finding, const Record& earlier, const Accessor& who, const Record& access);
  bool explain_puts(Finding& finding, const Record& earlier, const Accessor& who, const Record& access);
  bool explain_by_failed_edge(Finding& finding, const Record& earlier, const Accessor& who);
  MissingEdge missing_between(const Finding& finding, const Record& earlier, const Accessor& who,
                              const Record& access) const;
  bool release_covers(const FailedEdge& edge, const Record& earlier) const;
  bool fence_covers(const FailedEdge& edge, const Record& earlier) const;
  bool reader_is_known(const FailedEdge& edge, const Accessor& who) const;

  Agents& agents_;
  Sites& sites_;
  Flags& flags_;
  Kernels& kernels_;
  Shadow& shadow_;
  Report& report_;
  EqualStores equal_stores_;
  std::vector<Record> equals_, racing_;  // of the cell at hand
  std::unordered_map<Key, std::vector<Unused>> unused_;  // by the load's warp
};

}  // namespace pkb::emulator::detector
