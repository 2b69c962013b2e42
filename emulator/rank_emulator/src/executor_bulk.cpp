// cp.async.bulk: between global and shared memory, and between blocks of a cluster; groups of such copies.
#include <algorithm>
#include <optional>

#include "transfer.h"

namespace pkb::emulator {
namespace {

// The emulator's own address.
uint64_t global_operand(Executor& x, const Op& op, uint64_t address, int lane, uint32_t bytes) {
  if (address % 16) x.fail(Outcome::kMisaligned, op, uint32_t(lane), "address of a bulk copy (" + x.engine.memory.describe(address) + ") must be a multiple of 16");
  if (!x.find_reached(address, bytes)) x.fail(Outcome::kIllegalAddress, op, uint32_t(lane), "illegal address: " + std::to_string(bytes) + " bytes from " + x.engine.memory.describe(address, x.grid->launch.rank));
  return own_address(address);
}

// addresses: to, from, mbarrier if to shared memory. values: bytes, mask of a multicast.
Step copy_bulk(Executor& x, const Op& op, uint32_t lanes) {
  const Detail& detail = *op.detail;
  const Instruction& source = *op.source;
  each_lane(lanes, [&](int lane) {
    const auto bytes = uint32_t(x.value(detail.values[0], lane));
    if (bytes % 16) x.fail(Outcome::kMisaligned, op, uint32_t(lane), std::to_string(bytes) + " bytes of a bulk copy are no multiple of 16");
    Transfer transfer;
    transfer.mbarrier_bytes = bytes;
    transfer.reduction = reinterpret_cast<BulkReduction>(detail.number);
    transfer.element_bytes = detail.element_bytes;
    if (detail.variant == kToGlobal) {
      const uint64_t to = global_operand(x, op, raw_operand(x, detail.addresses[0], lane), lane, bytes);
      transfer.pieces.push_back({to, shared_operand(x, op, detail.addresses[1], lane, bytes, 16), bytes});
      transfer.to_space = Space::kGlobal;
      transfer.from_space = Space::kShared;
    } else {
      const uint64_t to = shared_operand(x, op, detail.addresses[0], lane, bytes, 16);
      const uint64_t barrier = shared_operand(x, op, detail.addresses[2], lane, 8, 8);
      uint64_t from;
      if (detail.variant == kSharedToShared) {
        from = shared_operand(x, op, detail.addresses[1], lane, bytes, 16);
        transfer.from_space = Space::kShared;
      } else {
        from = global_operand(x, op, raw_operand(x, detail.addresses[1], lane), lane, bytes);
      }
      if (source.has("multicast::cluster")) {
        const uint64_t mask = x.value(detail.values[1], lane);
        uint32_t offset = 0, barrier_offset = mbarrier_at(x, op, lane, barrier).offset;
        block_of(*x.block->cluster, to, offset);
        for (const auto& block : x.block->cluster->blocks) {
          if (!(mask >> block->in_cluster & 1)) continue;
          transfer.pieces.push_back({reinterpret_cast<uint64_t>(block->shared) + offset, from, bytes});
          transfer.targets.push_back({block.get(), barrier_offset});
        }
      } else {
        transfer.pieces.push_back({to, from, bytes});
        transfer.targets.push_back(mbarrier_at(x, op, lane, barrier));
      }
    }
    queue(x, op, lane, std::move(transfer));
  });
  return Step::kNext;
}

// ---- groups ----

Step commit_bulk(Executor& x, const Op& op, uint32_t lanes) {
  each_lane(lanes, [&](int lane) { x.copies(lane).bulk.push_back(0); });
  if (x.engine.observer) x.engine.observer->async_commit(x.seen(op, lanes), Completion::kBulkGroup);
  return Step::kNext;
}

// variant: 1: reads alone
Step wait_bulk(Executor& x, const Op& op, uint32_t lanes) {
  const auto pending = size_t(x.value(op.detail->values[0], 0));
  bool all = true;
  each_lane(lanes, [&](int lane) {
    CopyGroups& groups = x.copies(lane);
    while (groups.bulk.size() > 1 && groups.bulk.front() == 0) {
      groups.bulk.erase(groups.bulk.begin());
      ++groups.first_bulk;
    }
    size_t incomplete = 0;
    for (size_t i = 0; i + 1 < groups.bulk.size(); ++i) incomplete += i + pending + 1 < groups.bulk.size() && groups.bulk[i] > 0;
    all &= incomplete == 0;
  });
  if (!all) {
    x.split->wait = Wait::kAsync;
    return Step::kBlocked;
  }
  if (x.engine.observer) x.engine.observer->async_wait(x.seen(op, lanes), Completion::kBulkGroup, uint32_t(pending), op.detail->variant);
  return Step::kNext;
}

Step prefetch(Executor&, const Op&, uint32_t) { return Step::kNext; }

std::optional<Direction> direction_of(const Instruction& instruction) {
  // The first space is where the bytes go, the second where they come from.
  std::vector<std::string_view> spaces;
  for (const auto part : instruction.parts) {
    if (part == "global" || part.starts_with("shared::")) spaces.push_back(part);
  }
  if (spaces.size() < 2) return std::nullopt;
  if (spaces[0] == "global") return kToGlobal;
  return spaces[1] == "global" ? kToShared : kSharedToShared;
}

}  // namespace

Handler find_bulk_handler(const Instruction& instruction, Detail& detail) {
  if (instruction.parts[0] != "cp" || !instruction.has("async") || !instruction.has("bulk")) return nullptr;
  detail.variant = instruction.has("read");
  if (instruction.has("commit_group")) return commit_bulk;
  if (instruction.has("wait_group")) return wait_bulk;
  if (instruction.has("prefetch")) return prefetch;
  const auto direction = direction_of(instruction);
  if (!direction) return nullptr;
  detail.variant = *direction;
  const bool reduces = instruction.parts[1] == "reduce";
  if (reduces && detail.variant == kToShared) return nullptr;
  if (!instruction.has("tensor")) {
    if (reduces) {
      const BulkReduction reduction = find_bulk_reduction(reduction_of(instruction), instruction.parts.back());
      if (!reduction) return nullptr;
      detail.number = reinterpret_cast<uint64_t>(reduction);
    }
    return copy_bulk;
  }
  for (const auto part : instruction.parts) {
    if (part.starts_with("im2col")) return nullptr;
  }
  return copy_tensor;
}

}  // namespace pkb::emulator
