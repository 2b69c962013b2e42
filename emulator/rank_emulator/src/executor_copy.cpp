// cp.async: copies of lanes to shared memory, done when they are issued.
#include <algorithm>

#include "transfer.h"

namespace pkb::emulator {
namespace {

// cp.async: 4, 8 or 16 bytes of each lane; done when it is issued. values: bytes, bytes that exist (the rest is zero).
Step copy_plain(Executor& x, const Op& op, uint32_t lanes) {
  const Detail& detail = *op.detail;
  each_lane(lanes, [&](int lane) {
    const auto bytes = uint32_t(x.value(detail.values[0], lane));
    uint32_t exist = bytes;
    if (detail.values.size() > 1) exist = detail.values[1].bytes == 0 ? (x.value(detail.values[1], lane) ? 0 : bytes) : std::min(bytes, uint32_t(x.value(detail.values[1], lane)));
    const uint64_t to = shared_operand(x, op, detail.addresses[0], lane, bytes, bytes);
    const uint64_t seen = raw_operand(x, detail.addresses[1], lane), from = own_address(seen);
    if (exist && !x.find_reached(seen, exist)) x.fail(Outcome::kIllegalAddress, op, uint32_t(lane), "illegal address: " + x.engine.memory.describe(seen, x.grid->launch.rank));
    if (from % bytes) x.fail(Outcome::kMisaligned, op, uint32_t(lane), "misaligned address (" + x.engine.memory.describe(from) + ")");
    if (exist) x.settle(from, exist);
    char word[16] = {};
    std::memcpy(word, reinterpret_cast<const void*>(from), exist);
    if (x.engine.observer) {
      const bool is_same = std::memcmp(reinterpret_cast<const void*>(to), word, bytes) == 0;
      const AsyncOperation operation{x.engine.next_id++, x.seen(op, 1u << lane), Completion::kCopyGroup, 0};
      x.engine.observer->async_issue(operation);
      const auto report_range = [&](Operation what, Space space, uint64_t address, uint32_t count) {
        x.engine.observer->range_access(RangeAccess{operation.id, x.grid->launch.rank, what, Proxy::kGeneric, space, address, count, op.name, &op.source->line, 0,
                                                    is_same && what == Operation::kWrite});
      };
      if (exist) report_range(Operation::kRead, Space::kGlobal, from, exist);
      report_range(Operation::kWrite, Space::kShared, to, bytes);
      x.engine.observer->async_complete(operation, 0);
    }
    std::memcpy(reinterpret_cast<void*>(to), word, bytes);
  });
  x.wrote();
  return Step::kNext;
}

Step commit_plain(Executor& x, const Op& op, uint32_t lanes) {
  if (x.engine.observer) x.engine.observer->async_commit(x.seen(op, lanes), Completion::kCopyGroup);
  return Step::kNext;
}

Step wait_plain(Executor& x, const Op& op, uint32_t lanes) {
  const auto pending = op.detail->values.empty() ? 0u : uint32_t(x.value(op.detail->values[0], 0));
  if (x.engine.observer) x.engine.observer->async_wait(x.seen(op, lanes), Completion::kCopyGroup, pending, false);
  return Step::kNext;
}

}  // namespace

Handler find_copy_handler(const Instruction& instruction, Detail& detail) {
  if (instruction.parts[0] != "cp" || !instruction.has("async") || instruction.has("bulk")) return nullptr;
  detail.variant = instruction.has("read");
  if (instruction.has("commit_group")) return commit_plain;
  if (instruction.has("wait_group") || instruction.has("wait_all")) return wait_plain;
  return copy_plain;
}

}  // namespace pkb::emulator
