// Asynchronous copies: cp.async, cp.async.bulk, and those by tensor maps.
//
// A bulk copy is queued when it is issued and runs when the scheduler lets it: at once, or late and out of order.
#include <algorithm>
#include <optional>

#include "executor.h"
#include "small_floats.h"
#include "tensor_map.h"

namespace pkb::emulator {
namespace {

// What a copy touches: pieces of contiguous bytes.
struct Piece {
  uint64_t to, from;  // from 0: `bytes` of zeros
  uint32_t bytes;
};

struct Target {
  Block* block;
  uint32_t offset;    // of the mbarrier
};

struct Transfer {
  AsyncOperation operation;
  std::vector<Piece> pieces;
  uint32_t mbarrier_bytes = 0;
  std::vector<Target> targets;        // mbarriers that are told
  CopyGroups* groups = nullptr;       // of the lane that waits by groups
  uint64_t group = 0;
  WarpState* warp = nullptr;
  Space to_space = Space::kShared, from_space = Space::kGlobal;
  std::string reduction;              // cp.reduce.async.bulk: "add.f32"
  const char* name = "";
};

void reduce(char* to, const char* from, uint32_t bytes, const std::string& how) {
  const auto each = [&](auto zero, auto f) {
    using T = decltype(zero);
    for (uint32_t i = 0; i + sizeof(T) <= bytes; i += sizeof(T)) {
      T a, b;
      std::memcpy(&a, to + i, sizeof a);
      std::memcpy(&b, from + i, sizeof b);
      a = f(a, b);
      std::memcpy(to + i, &a, sizeof a);
    }
  };
  const auto by_name = [&](auto zero) {
    using T = decltype(zero);
    if (how.starts_with("add")) each(zero, [](T a, T b) { return T(a + b); });
    if (how.starts_with("min")) each(zero, [](T a, T b) { return std::min(a, b); });
    if (how.starts_with("max")) each(zero, [](T a, T b) { return std::max(a, b); });
  };
  if (how.ends_with(".f32")) by_name(0.0f);
  else if (how.ends_with(".f64")) by_name(0.0);
  else if (how.ends_with(".bf16")) each(uint16_t{}, [](uint16_t a, uint16_t b) { return uint16_t(encode(decode(a, kBrain) + decode(b, kBrain), kBrain)); });
  else if (how.ends_with(".f16")) each(uint16_t{}, [](uint16_t a, uint16_t b) { return uint16_t(encode(decode(a, kHalf) + decode(b, kHalf), kHalf)); });
  else if (how.ends_with(".u32")) by_name(uint32_t{});
  else if (how.ends_with(".s32")) by_name(int32_t{});
  else if (how.ends_with(".u64")) by_name(uint64_t{});
  else if (how.ends_with(".s64")) by_name(int64_t{});
}

void report(Engine& engine, const Transfer& transfer, Operation operation, Space space, uint64_t address, uint32_t bytes) {
  engine.observer->range_access(RangeAccess{transfer.operation.id, transfer.operation.warp.rank, operation, Proxy::kAsync, space,
                                            address, bytes, transfer.name, transfer.operation.warp.line});
}

void run(Engine& engine, Transfer& transfer) {
  for (const Piece& piece : transfer.pieces) {
    char* const to = reinterpret_cast<char*>(piece.to);
    if (engine.observer) {
      if (piece.from) report(engine, transfer, Operation::kRead, transfer.from_space, piece.from, piece.bytes);
      report(engine, transfer, transfer.reduction.empty() ? Operation::kWrite : Operation::kAtomic, transfer.to_space, piece.to, piece.bytes);
    }
    if (!piece.from) {
      std::memset(to, 0, piece.bytes);
    } else if (transfer.reduction.empty()) {
      std::memcpy(to, reinterpret_cast<const char*>(piece.from), piece.bytes);
    } else {
      reduce(to, reinterpret_cast<const char*>(piece.from), piece.bytes, transfer.reduction);
    }
  }
  ++engine.progress;
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

void queue(Executor& x, const Op& op, int lane, Transfer transfer) {
  const bool by_groups = transfer.targets.empty();
  transfer.name = op.name;
  if (x.engine.observer) {
    transfer.operation = AsyncOperation{x.engine.next_id++, x.seen(op, 1u << lane), by_groups ? Completion::kBulkGroup : Completion::kMbarrier,
                                        by_groups ? 0 : reinterpret_cast<uint64_t>(transfer.targets[0].block->shared) + transfer.targets[0].offset};
    x.engine.observer->async_issue(transfer.operation);
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

uint64_t global_operand(Executor& x, const Op& op, uint64_t address, int lane, uint32_t bytes) {
  if (address % 16) x.fail(Outcome::kMisaligned, op, uint32_t(lane), "address of a bulk copy (" + x.engine.memory.describe(address) + ") must be a multiple of 16");
  if (!x.engine.memory.find(address, bytes)) x.fail(Outcome::kIllegalAddress, op, uint32_t(lane), "illegal address: " + std::to_string(bytes) + " bytes from " + x.engine.memory.describe(address));
  return address;
}

uint64_t raw_operand(Executor& x, const Address& address, int lane) {
  uint64_t raw[kLanes];
  x.raw_addresses(address, 1u << lane, raw);
  return raw[lane];
}

// variant of cp.async.bulk
enum Direction { kToShared, kToGlobal, kSharedToShared };

// addresses: to, from, mbarrier if to shared memory. values: bytes, mask of a multicast.
Step copy_bulk(Executor& x, const Op& op, uint32_t lanes) {
  const Detail& detail = *op.detail;
  const Instruction& source = *op.source;
  each_lane(lanes, [&](int lane) {
    const auto bytes = uint32_t(x.value(detail.values[0], lane));
    if (bytes % 16) x.fail(Outcome::kMisaligned, op, uint32_t(lane), std::to_string(bytes) + " bytes of a bulk copy are no multiple of 16");
    Transfer transfer;
    transfer.mbarrier_bytes = bytes;
    if (source.parts[1] == "reduce") transfer.reduction = std::string(source.parts[source.parts.size() - 2]) + "." + std::string(source.parts.back());
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

uint32_t swizzled(uint32_t offset, int swizzle) {
  if (swizzle == 0) return offset;
  return offset ^ ((offset >> 7 & uint32_t(2 * swizzle - 1)) << 4);
}

// Pieces of a box: runs of 16 bytes (swizzling moves those), or shorter at the edge. Beyond the tensor: zeros on loads,
// nothing on stores.
std::vector<Piece> pieces_of(const TensorMap& map, const int64_t (&corner)[5], uint64_t shared, uint32_t shared_offset, bool loads) {
  std::vector<Piece> pieces;
  const uint32_t row_bytes = uint32_t(map.box[0]) * map.element_bytes;
  int64_t at[5] = {0, 0, 0, 0, 0};
  const int rank = map.rank;
  uint32_t row = 0;
  while (true) {
    bool inside = true;
    uint64_t address = map.address;
    for (int d = 1; d < rank; ++d) {
      const int64_t index = corner[d] + at[d] * map.element_strides[d];
      inside &= index >= 0 && uint64_t(index) < map.sizes[d];
      address += uint64_t(index) * map.strides[d - 1];
    }
    for (uint32_t begin = 0; begin < row_bytes; begin += 16) {
      const uint32_t length = std::min(16u, row_bytes - begin);
      const uint32_t to = swizzled(shared_offset + row * row_bytes + begin, map.swizzle) - shared_offset;
      const int64_t first = corner[0] * map.element_bytes + begin, end = int64_t(map.sizes[0]) * map.element_bytes;
      const int64_t low = std::clamp<int64_t>(0, first, first + length), high = std::clamp<int64_t>(end, low, first + length);
      const bool any = inside && high > low && first + int64_t(length) > 0;
      const auto lead = any ? uint32_t(low - first) : length, used = any ? uint32_t(high - low) : 0u;
      if (loads && lead) pieces.push_back({shared + to, 0, lead});
      if (used) {
        const uint64_t tensor = address + uint64_t(low), box = shared + to + lead;
        pieces.push_back(loads ? Piece{box, tensor, used} : Piece{tensor, box, used});
      }
      if (loads && lead + used < length) pieces.push_back({shared + to + lead + used, 0, length - lead - used});
    }
    ++row;
    int d = 1;
    while (d < rank && ++at[d] == map.box[d]) at[d++] = 0;
    if (d >= rank) break;
  }
  return pieces;
}

uint64_t box_bytes(const TensorMap& map) {
  uint64_t bytes = map.element_bytes;
  for (int d = 0; d < map.rank; ++d) bytes *= map.box[d];
  return bytes;
}

TensorMap read_map(Executor& x, const Op& op, uint64_t address, int lane) {
  TensorMap map;
  if (!x.engine.memory.find(address, 128)) x.fail(Outcome::kIllegalAddress, op, uint32_t(lane), "illegal address of a tensor map: " + x.engine.memory.describe(address));
  if (address % 64) x.fail(Outcome::kMisaligned, op, uint32_t(lane), "a tensor map must lie at a multiple of 64 bytes");
  std::memcpy(&map, reinterpret_cast<const void*>(address), sizeof map);
  if (map.magic != TensorMap::kMagic) x.fail(Outcome::kTrap, op, uint32_t(lane), "there is no tensor map at " + x.engine.memory.describe(address));
  return map;
}

// variant: Direction. Loads: addresses: to, map and corner, mbarrier. Stores: map and corner, from.
Step copy_tensor(Executor& x, const Op& op, uint32_t lanes) {
  const Detail& detail = *op.detail;
  const Instruction& source = *op.source;
  const bool loads = detail.variant == kToShared;
  each_lane(lanes, [&](int lane) {
    const Address& tensor = detail.addresses[loads ? 1 : 0];
    const TensorMap map = read_map(x, op, raw_operand(x, tensor, lane), lane);
    if (tensor.coordinates.size() != map.rank) x.fail(Outcome::kTrap, op, uint32_t(lane), "the tensor map has " + std::to_string(map.rank) + " dimensions");
    int64_t corner[5] = {};
    for (size_t d = 0; d < tensor.coordinates.size(); ++d) corner[d] = int32_t(x.value(tensor.coordinates[d], lane));
    const auto bytes = uint32_t(box_bytes(map));
    const uint64_t shared = shared_operand(x, op, detail.addresses[loads ? 0 : 1], lane, bytes, 128);
    uint32_t offset = 0;
    Block* const block = block_of(*x.block->cluster, shared, offset);
    Transfer transfer;
    transfer.mbarrier_bytes = bytes;
    if (!loads) {
      transfer.pieces = pieces_of(map, corner, shared, offset, false);
      transfer.to_space = Space::kGlobal;
      transfer.from_space = Space::kShared;
      if (source.parts[1] == "reduce") {
        const char* const type = map.type == 9 ? "bf16" : map.type == 6 ? "f16" : map.type == 7 ? "f32" : map.type == 8 ? "f64" : map.type == 3 ? "s32" : "u32";
        for (const auto how : {"add", "min", "max"}) {
          if (source.has(how)) transfer.reduction = std::string(how) + "." + type;
        }
        if (transfer.reduction.empty()) x.fail(Outcome::kUnknownInstruction, op, uint32_t(lane), "this reduction is not known");
      }
    } else {
      const Target barrier = mbarrier_at(x, op, lane, shared_operand(x, op, detail.addresses[2], lane, 8, 8));
      const bool multicast = source.has("multicast::cluster");
      const uint64_t mask = multicast ? x.value(detail.values[0], lane) : 1ull << block->in_cluster;
      for (const auto& to : x.block->cluster->blocks) {
        if (!(mask >> to->in_cluster & 1)) continue;
        const auto pieces = pieces_of(map, corner, reinterpret_cast<uint64_t>(to->shared) + offset, offset, true);
        transfer.pieces.insert(transfer.pieces.end(), pieces.begin(), pieces.end());
        transfer.targets.push_back(multicast ? Target{to.get(), barrier.offset} : barrier);
      }
    }
    for (const Piece& piece : transfer.pieces) {
      const uint64_t global = loads ? piece.from : piece.to;
      if (global && !x.engine.memory.find(global, piece.bytes)) x.fail(Outcome::kIllegalAddress, op, uint32_t(lane), "illegal address: " + x.engine.memory.describe(global));
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

// cp.async: 4, 8 or 16 bytes of each lane; done when it is issued. values: bytes, bytes that exist (the rest is zero).
Step copy_plain(Executor& x, const Op& op, uint32_t lanes) {
  const Detail& detail = *op.detail;
  each_lane(lanes, [&](int lane) {
    const auto bytes = uint32_t(x.value(detail.values[0], lane));
    uint32_t exist = bytes;
    if (detail.values.size() > 1) exist = detail.values[1].bytes == 0 ? (x.value(detail.values[1], lane) ? 0 : bytes) : std::min(bytes, uint32_t(x.value(detail.values[1], lane)));
    const uint64_t to = shared_operand(x, op, detail.addresses[0], lane, bytes, bytes);
    const uint64_t from = raw_operand(x, detail.addresses[1], lane);
    if (exist && !x.engine.memory.find(from, exist)) x.fail(Outcome::kIllegalAddress, op, uint32_t(lane), "illegal address: " + x.engine.memory.describe(from));
    if (from % bytes) x.fail(Outcome::kMisaligned, op, uint32_t(lane), "misaligned address (" + x.engine.memory.describe(from) + ")");
    if (x.engine.observer) {
      const AsyncOperation operation{x.engine.next_id++, x.seen(op, 1u << lane), Completion::kCopyGroup, 0};
      x.engine.observer->async_issue(operation);
      const auto report_range = [&](Operation what, Space space, uint64_t address, uint32_t count) {
        x.engine.observer->range_access(RangeAccess{operation.id, x.grid->launch.rank, what, Proxy::kGeneric, space, address, count, op.name, &op.source->line});
      };
      if (exist) report_range(Operation::kRead, Space::kGlobal, from, exist);
      report_range(Operation::kWrite, Space::kShared, to, bytes);
      x.engine.observer->async_complete(operation, 0);
    }
    std::memcpy(reinterpret_cast<void*>(to), reinterpret_cast<const void*>(from), exist);
    std::memset(reinterpret_cast<char*>(to) + exist, 0, bytes - exist);
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
  if (instruction.parts[0] != "cp" || !instruction.has("async")) return nullptr;
  detail.variant = instruction.has("read");
  if (!instruction.has("bulk")) {
    if (instruction.has("commit_group")) return commit_plain;
    if (instruction.has("wait_group") || instruction.has("wait_all")) return wait_plain;
    return instruction.has("mbarrier") ? nullptr : copy_plain;
  }
  if (instruction.has("commit_group")) return commit_bulk;
  if (instruction.has("wait_group")) return wait_bulk;
  if (instruction.has("prefetch")) return prefetch;
  const auto direction = direction_of(instruction);
  if (!direction) return nullptr;
  detail.variant = *direction;
  if (!instruction.has("tensor")) return copy_bulk;
  for (const auto part : instruction.parts) {
    if (part.starts_with("im2col")) return nullptr;
  }
  return copy_tensor;
}

}  // namespace pkb::emulator
