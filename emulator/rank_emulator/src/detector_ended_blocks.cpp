#include "detector_ended_blocks.h"

#include <algorithm>
#include <optional>

namespace pkb::emulator::detector {

void EndedBlocks::region_removed(const Region& region) {
  regions_.erase({region.launch, region.block});
  ended_.erase(region.address);
}

void EndedBlocks::exit(const Warp& warp, uint32_t site) {
  const WarpState& state = kernels_.warp(warp);
  exits_[{warp.launch->id, warp.block}] = Record{state.key, state.epoch, site, warp.lanes};
}

bool EndedBlocks::is_of_another_block(const Record& access, uint32_t block) const {
  Key warp = access.who;
  if (kind_of(warp) == AgentKind::kChannel) warp = agents_.channel(warp).warp;
  return kind_of(warp) == AgentKind::kWarp && agents_.block_index_of(warp) != block;
}

bool EndedBlocks::has_observed(const Cell& cell, uint32_t block) {
  const auto observes = [&](const Record& read) {
    return !read.precedes_write && sites_.is_strong(read.site) && !is_of_another_block(read, block);
  };
  if (!cell.write.present() || !sites_.is_strong(cell.write.site) || !cell.read.present()) return false;
  if (cell.read.site != kManyReads) return observes(cell.read);
  const std::vector<Record>& set = shadow_.reads_of(cell);
  return std::any_of(set.begin(), set.end(), observes);
}

void EndedBlocks::end(const Launch& launch, uint32_t index) {
  const auto exit = exits_.find({launch.id, index});
  if (exit == exits_.end()) return;
  const Record last = exit->second;
  exits_.erase(exit);
  const auto region = regions_.find({launch.id, index});
  if (region == regions_.end()) return;
  const Bytes bytes = region->second;
  const BlockState& block = kernels_.block(launch, index);
  std::optional<ClockRef> known;
  const auto check = [&](const Record& access, uint64_t address, uint32_t count) {
    if (!is_of_another_block(access, block.number)) return;
    if (!known) {
      Known parts;
      kernels_.join_known(block, parts);
      known = kernels_.together(parts);
    }
    if (!agents_.covers(known->get(), access)) found(access, last, address, count);
  };
  shadow_.for_cells(bytes.begin, bytes.count, [&](Cell& cell, uint64_t address, uint32_t count) {
    if (cell.write.present() && !has_observed(cell, block.number)) {
      check(cell.write, address, count);
      if (cell.write.has_equals) equal_stores_.for_each(address, count, [&](const Record& store) { check(store, address, count); });
    }
    if (!cell.read.present()) return;
    if (cell.read.site != kManyReads) return check(cell.read, address, count);
    for (const Record& read : shadow_.reads_of(cell)) check(read, address, count);
  });
  ended_[bytes.begin] = {bytes.begin + bytes.count, last};
}

void EndedBlocks::access(const Record& access, uint64_t address, uint64_t bytes) {
  if (ended_.empty()) return;
  const auto after = ended_.upper_bound(address);
  if (after == ended_.begin()) return;
  const auto& [end, last] = std::prev(after)->second;
  if (address < end) found(access, last, address, bytes);
}

void EndedBlocks::found(const Record& access, const Record& end, uint64_t address, uint64_t bytes) {
  if (!report_.is_new(FindingKind::kEndedBlock, access.site, end.site)) return;
  Finding finding;
  finding.kind = FindingKind::kEndedBlock;
  finding.first = report_.describe_access(access);
  finding.second = report_.describe_access(end);
  finding.second.operation = "end";
  finding.call = report_.call_of(access);
  report_.describe_place(finding, address, bytes);
  report_.add(std::move(finding), access.site, end.site);
}

}  // namespace pkb::emulator::detector
