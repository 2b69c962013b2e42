// How a queued copy runs, and ends.
#include "transfer.h"

namespace pkb::emulator {
namespace {

void report(Engine& engine, const Transfer& transfer, Operation operation, Space space, uint64_t address, uint32_t bytes) {
  engine.observer->range_access(RangeAccess{transfer.operation.id, transfer.operation.warp.rank, operation, transfer.proxy, space,
                                            address, bytes, transfer.name, transfer.operation.warp.line, operation == Operation::kAtomic ? transfer.element_bytes : 0});
}

void run(Engine& engine, Transfer& transfer) {
  for (const Piece& piece : transfer.pieces) {
    if (transfer.to_space == Space::kGlobal) engine.memory.set_written(piece.to, piece.bytes);
    char* const to = reinterpret_cast<char*>(piece.to);
    if (engine.observer) {
      if (piece.from) report(engine, transfer, Operation::kRead, transfer.from_space, piece.from, piece.bytes);
      report(engine, transfer, transfer.reduction ? Operation::kAtomic : Operation::kWrite, transfer.to_space, piece.to, piece.bytes);
    }
    const char* const from = piece.from ? reinterpret_cast<const char*>(piece.from) : transfer.content.data();
    if (!from) {
      std::memset(to, 0, piece.bytes);
    } else if (transfer.reduction) {
      transfer.reduction(to, from, piece.bytes);
    } else {
      std::memcpy(to, from, piece.bytes);
    }
  }
  ++engine.progress;
  ++engine.effects;
  for (const Target& target : transfer.targets) {
    if (engine.observer) {
      transfer.operation.mbarrier = reinterpret_cast<uint64_t>(target.block->shared) + target.offset;
      engine.observer->async_complete(transfer.operation, target.block->phases[target.offset]);
    }
    complete_bytes(engine, *target.block, target.offset, transfer.mbarrier_bytes);
  }
  if (transfer.groups) {
    if (engine.observer) engine.observer->async_complete(transfer.operation, 0);
    --transfer.groups->bulk[transfer.group - transfer.groups->first_bulk];
    bool woken = false;
    for (Split& split : transfer.warp->splits) {
      if (split.wait != Wait::kAsync) continue;
      split.wait = Wait::kNone;
      woken = true;
    }
    if (woken) engine.wake(*transfer.warp);
  }
}

}  // namespace

void queue(Executor& x, const Op& op, int lane, Transfer transfer) {
  const bool by_groups = transfer.targets.empty();
  transfer.name = op.name;
  if (x.engine.observer) {
    transfer.operation = AsyncOperation{x.engine.next_id++, x.seen(op, 1u << lane), by_groups ? Completion::kBulkGroup : Completion::kMbarrier,
                                        by_groups ? 0 : reinterpret_cast<uint64_t>(transfer.targets[0].block->shared) + transfer.targets[0].offset};
    x.engine.observer->async_issue(transfer.operation);
    for (size_t i = 1; i < transfer.targets.size(); ++i) {
      AsyncOperation further = transfer.operation;
      further.mbarrier = reinterpret_cast<uint64_t>(transfer.targets[i].block->shared) + transfer.targets[i].offset;
      x.engine.observer->async_issue(further);
    }
  }
  transfer.operation.warp.line = &op.source->line;
  transfer.operation.warp.rank = x.grid->launch.rank;
  if (by_groups) {
    transfer.groups = &x.copies(lane);
    transfer.group = transfer.groups->first_bulk + transfer.groups->bulk.size() - 1;
    ++transfer.groups->bulk.back();
    transfer.warp = x.warp;
  }
  Engine& engine = x.engine;
  engine.defer([&engine, kept = std::move(transfer)]() mutable { run(engine, kept); });
}

Target mbarrier_at(Executor& x, const Op& op, int lane, uint64_t address) {
  uint32_t offset = 0;
  Block* const block = block_of(*x.block->cluster, address, offset);
  if (!block) x.fail(Outcome::kIllegalAddress, op, uint32_t(lane), "the mbarrier must lie in shared memory of the cluster");
  return {block, offset};
}

uint64_t shared_operand(Executor& x, const Op& op, const Address& address, int lane, uint32_t bytes, uint32_t alignment) {
  uint64_t raw[kLanes];
  x.raw_addresses(address, 1u << lane, raw);
  return x.shared_address(op, raw[lane], bytes, alignment);
}

uint64_t raw_operand(Executor& x, const Address& address, int lane) {
  uint64_t raw[kLanes];
  x.raw_addresses(address, 1u << lane, raw);
  return raw[lane];
}

}  // namespace pkb::emulator
