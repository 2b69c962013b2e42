// Operands, addresses, events and faults of the instruction that is being executed.
#include <algorithm>

#include "executor.h"

namespace pkb::emulator {
namespace {

constexpr Extent kOnChip{};  // shared, local and parameter memory

}  // namespace

uint64_t Executor::value(const Value& value, int lane) const {
  const char* const p = at(value);
  switch (value.bytes) {
    case 0: return (mask(value) >> lane) & 1;
    case 2: {
      uint16_t bits;
      std::memcpy(&bits, p + 2 * lane, 2);
      return bits;
    }
    case 4: {
      uint32_t bits;
      std::memcpy(&bits, p + 4 * lane, 4);
      return bits;
    }
    case 8: {
      uint64_t bits;
      std::memcpy(&bits, p + 8 * lane, 8);
      return bits;
    }
    default: {
      uint64_t bits;
      std::memcpy(&bits, p + 16 * lane, 8);
      return bits;
    }
  }
}

uint32_t Executor::mask(const Value& value) const {
  uint32_t bits;
  std::memcpy(&bits, at(value), 4);
  if (value.bytes != 0) bits = bits ? ~0u : 0;  // an immediate
  return value.negated ? ~bits : bits;
}

void Executor::set(const Value& value, int lane, uint64_t bits) const {
  if (!value.present) return;
  char* const p = const_cast<char*>(at(value));
  if (value.bytes == 0) {
    uint32_t mask;
    std::memcpy(&mask, p, 4);
    mask = (mask & ~(1u << lane)) | uint32_t(bits & 1) << lane;
    std::memcpy(p, &mask, 4);
  } else {
    std::memcpy(p + value.bytes * lane, &bits, std::min<size_t>(value.bytes, 8));
    if (value.bytes == 16) std::memset(p + 16 * lane + 8, 0, 8);
  }
}

void Executor::set_mask(const Value& value, uint32_t mask, uint32_t lanes) const {
  if (!value.present) return;
  char* const p = const_cast<char*>(at(value));
  uint32_t before;
  std::memcpy(&before, p, 4);
  mask = (before & ~lanes) | (mask & lanes);
  std::memcpy(p, &mask, 4);
}

void Executor::raw_addresses(const Address& address, uint32_t lanes, uint64_t (&to)[kLanes]) const {
  switch (address.mode) {
    case Address::kRegister64: {
      for (int first = 0; first < kLanes; first += 4) {
        FourLanes four;
        std::memcpy(&four, at(address.ref) + 8 * first, sizeof four);
        four += uint64_t(address.offset);
        std::memcpy(to + first, &four, sizeof four);
      }
      break;
    }
    case Address::kRegister32: {
      const auto* from = reinterpret_cast<const uint32_t*>(at(address.ref));
      for (int i = 0; i < kLanes; ++i) to[i] = uint32_t(from[i] + uint32_t(address.offset));
      break;
    }
    case Address::kAbsolute:
      std::fill(to, to + kLanes, uint64_t(address.offset));
      break;
    case Address::kFrameLocal:
      for (int i = 0; i < kLanes; ++i) {
        to[i] = reinterpret_cast<uint64_t>(local_memory(i, split->local_offset)) + uint64_t(address.offset);
      }
      break;
    case Address::kParameters:
      std::fill(to, to + kLanes, reinterpret_cast<uint64_t>(grid->parameters.get()) + uint64_t(address.offset));
      break;
  }
  (void)lanes;
}

uint64_t Executor::shared_address(const Op& op, uint64_t offset, uint32_t bytes, uint32_t alignment) const {
  const Block* of = block;
  if (offset >= 1u << 24) {  // shared::cluster: blocks of the cluster, one after the other
    const uint64_t rank = (offset >> 24) - 1;
    if (rank >= block->cluster->blocks.size()) fail(Outcome::kIllegalAddress, op, 0, "address of shared memory beyond the cluster");
    of = block->cluster->blocks[rank].get();
    check_lives(op, *of);
    offset &= 0xffffff;
  }
  const bool is_reserved = of->reserved_region && offset >= kReservedSharedOffset && offset + bytes <= kReservedSharedOffset + kReservedSharedBytes;
  if (offset + bytes > of->shared_bytes && !is_reserved) {
    fail(Outcome::kIllegalAddress, op, 0,
         "address " + std::to_string(offset) + " lies beyond the block's " + std::to_string(of->shared_bytes) + " bytes of shared memory");
  }
  if (offset % alignment) {
    fail(Outcome::kMisaligned, op, 0, "address " + std::to_string(offset) + " of shared memory is no multiple of " + std::to_string(alignment));
  }
  return reinterpret_cast<uint64_t>(of->shared) + offset;
}

// CUDA programming guide, "Distributed Shared Memory".
void Executor::check_lives(const Op& op, const Block& of) const {
  if (&of == block || of.alive_warps > 0) return;
  fail(Outcome::kIllegalAddress, op, 0, "block " + std::to_string(of.index) + ", whose shared memory this is, has ended at " +
       place_of(of.ended_at) + ": let the cluster meet before its blocks end (cluster.sync())");
}

const Extent* Executor::resolve(const Op& op, const Address& address, uint32_t lanes, uint32_t bytes, uint32_t alignment, uint64_t (&to)[kLanes]) {
  raw_addresses(address, lanes, to);
  const Detail& detail = *op.detail;
  if (!detail.generic && detail.space == Space::kShared) {
    uint64_t highest = 0, bits = 0;
    each_lane(lanes, [&](int lane) {
      highest = std::max(highest, to[lane]);
      bits |= to[lane];
    });
    if (highest < 1u << 24 && highest + bytes <= block->shared_bytes && !(bits & (alignment - 1))) {  // the block's own
      each_lane(lanes, [&](int lane) { to[lane] += reinterpret_cast<uint64_t>(block->shared); });
      return &kOnChip;
    }
    each_lane(lanes, [&](int lane) { to[lane] = shared_address(op, to[lane], bytes, alignment); });
    return &kOnChip;
  }
  if (address.mode == Address::kFrameLocal || address.mode == Address::kParameters) return &kOnChip;
  uint64_t low = ~0ull, high = 0, bits = 0;
  each_lane(lanes, [&](int lane) {
    low = std::min(low, to[lane]);
    high = std::max(high, to[lane]);
    bits |= to[lane];
  });
  if (bits & (alignment - 1)) {
    each_lane(lanes, [&](int lane) {
      if (to[lane] & (alignment - 1)) {
        fail(Outcome::kMisaligned, op, uint32_t(lane), "misaligned address (" + engine.memory.describe(to[lane]) + "), must be a multiple of " + std::to_string(alignment));
      }
    });
  }
  if (block->cluster->alive_blocks < block->cluster->blocks.size()) {
    each_lane(lanes, [&](int lane) {
      uint32_t offset = 0;
      if (const Block* const of = block_of(*block->cluster, to[lane], offset)) check_lives(op, *of);
    });
  }
  const Extent* const extent = find_reached(low, high - low + bytes);
  if (!extent) {
    each_lane(lanes, [&](int lane) {
      if (!find_reached(to[lane], bytes)) {
        fail(Outcome::kIllegalAddress, op, uint32_t(lane), "illegal address: " + engine.memory.describe(to[lane], grid->launch.rank));
      }
      to[lane] = own_address(to[lane]);
    });
  } else if (extent->on_gpu) {
    for (int first = 0; first < kLanes; first += 4) {
      const FourLanes own = (four_lanes(to, first) + kOwnDistance) & ~kGpuBits;
      std::memcpy(to + first, &own, sizeof own);
    }
  }
  return extent;
}

const Extent* Executor::find_reached(uint64_t address, uint64_t bytes) const {
  const Launch& launch = grid->launch;
  return launch.reaches_peers ? engine.memory.find_seen(address, bytes) : engine.memory.find_reached(launch.rank, address, bytes);
}

Space Executor::space_of(const Detail& detail, uint64_t address) const {
  if (!detail.generic) return detail.space;
  const Extent* const extent = engine.memory.find(address, 1);
  return extent ? extent->space : Space::kGlobal;
}

uint64_t Executor::argument(const Detail& detail, size_t index, int lane) const {
  const Variable& variable = detail.arguments[index];
  uint64_t bits = 0;
  std::memcpy(&bits, local_memory(lane, split->local_offset + uint32_t(variable.offset)), std::min<uint64_t>(variable.bytes, 8));
  return bits;
}

CopyGroups& Executor::copies(int lane) {
  if (!warp->copies) warp->copies = std::make_unique<std::array<CopyGroups, kLanes>>();
  return (*warp->copies)[size_t(lane)];
}

Warp Executor::seen(const Op& op, uint32_t lanes) const {
  return Warp{&grid->launch, grid->launch.rank, block->index, block->cluster->index, block->in_cluster, warp->index,
              lanes, warp->alive(), op.name, &op.source->line};
}

void Executor::report_access(const Op& op, uint32_t lanes, Operation operation, uint32_t bytes, uint32_t elements,
                             const uint64_t (&addresses)[kLanes], uint32_t wrote, Proxy proxy) {
  const Detail& detail = *op.detail;
  const uint64_t first = addresses[__builtin_ctz(lanes)];
  const Space space = space_of(detail, first);
  // Cooperative groups keep there what warps of a tile exchange, and count on shuffles to order it: that works on all GPUs
  // that their headers are for. What they synchronise by, atomics of the same memory, counts as everywhere.
  if (detail.order == Order::kWeak && space == Space::kShared && grid->kernel->uses_reserved_shared &&
      first - reinterpret_cast<uint64_t>(block->shared) - kReservedSharedOffset < kReservedSharedBytes) {
    return;
  }
  Unwritten unwritten;
  const bool keeps = detail.keeps_unwritten && space == Space::kShared && detail.order == Order::kWeak;
  engine.observer->access(Access{seen(op, lanes), operation, detail.order, detail.scope, space, proxy, bytes,
                                 bytes / elements, wrote, addresses, true, detail.decides, detail.may_be_unused, keeps ? &unwritten : nullptr});
  if (operation == Operation::kRead && space == Space::kLocal && !warp->unwritten_local.empty()) load_local(lanes, addresses, unwritten);
  if (unwritten.lanes) load_unwritten(op, unwritten);
  if (operation == Operation::kWrite && (!warp->unwritten.empty() || !warp->unwritten_local.empty())) store_unwritten(op, lanes, bytes, space, addresses);
}

void Executor::fail(Outcome outcome, const Op& op, uint32_t lane, const std::string& problem) const {
  const Launch& launch = grid->launch;
  throw Fault{outcome, launch.rank,
              (engine.one_process ? "GPU " : "rank ") + std::to_string(launch.rank) + ", kernel " + launch.kernel + ", block " + std::to_string(block->index) +
                  ", thread " + std::to_string(warp->index * kLanes + lane) + ", " + op.name + " at " +
                  place_of(op.source->line) + ": " + problem,
              op.source->line};
}

Block* block_of(Cluster& cluster, uint64_t address, uint32_t& offset) {
  const auto base = reinterpret_cast<uint64_t>(cluster.shared);
  const uint64_t index = (address - base) / kSharedStride;
  if (address < base || index >= cluster.blocks.size()) return nullptr;
  offset = uint32_t((address - base) % kSharedStride);
  return cluster.blocks[index].get();
}

}  // namespace pkb::emulator
