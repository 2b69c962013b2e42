// Loads, stores, conversions of addresses, and hints for caches.
#include <algorithm>

#include "executor.h"

namespace pkb::emulator {
namespace {

template <class E>
void load_lanes(char* to, int stride, bool is_signed, const uint64_t (&addresses)[kLanes], uint32_t lanes, uint32_t offset) {
  if (stride == int(sizeof(E))) {
    each_lane(lanes, [&](int lane) { std::memcpy(to + lane * int(sizeof(E)), reinterpret_cast<const char*>(addresses[lane]) + offset, sizeof(E)); });
    return;
  }
  each_lane(lanes, [&](int lane) {
    E element;
    std::memcpy(&element, reinterpret_cast<const char*>(addresses[lane]) + offset, sizeof(E));
    uint64_t bits = uint64_t(element);
    if (is_signed) bits = uint64_t(int64_t(bits << (64 - 8 * sizeof(E)) % 64) >> (64 - 8 * sizeof(E)) % 64);
    std::memcpy(to + lane * stride, &bits, size_t(stride));
  });
}

// Whether memory has changed.
template <class E>
bool store_lanes(const char* from, int stride, const uint64_t (&addresses)[kLanes], uint32_t lanes, uint32_t offset) {
  bool changed = false;
  each_lane(lanes, [&](int lane) {
    char* const to = reinterpret_cast<char*>(addresses[lane]) + offset;
    E before, after;
    std::memcpy(&before, to, sizeof(E));
    std::memcpy(&after, from + lane * stride, sizeof(E));
    changed |= before != after;
    std::memcpy(to, &after, sizeof(E));
  });
  return changed;
}

void load_element(Executor& x, const Value& value, const Detail& detail, const uint64_t (&addresses)[kLanes], uint32_t lanes, uint32_t offset) {
  if (!value.present) return;
  char* const to = const_cast<char*>(x.at(value));
  switch (detail.element_bytes) {
    case 1: return load_lanes<uint8_t>(to, value.bytes, detail.is_signed, addresses, lanes, offset);
    case 2: return load_lanes<uint16_t>(to, value.bytes, detail.is_signed, addresses, lanes, offset);
    case 4: return load_lanes<uint32_t>(to, value.bytes, detail.is_signed, addresses, lanes, offset);
    case 8: return load_lanes<uint64_t>(to, value.bytes, detail.is_signed, addresses, lanes, offset);
    default: return load_lanes<unsigned __int128>(to, value.bytes, false, addresses, lanes, offset);
  }
}

bool store_element(Executor& x, const Value& value, const Detail& detail, const uint64_t (&addresses)[kLanes], uint32_t lanes, uint32_t offset) {
  const char* const from = x.at(value);
  switch (detail.element_bytes) {
    case 1: return store_lanes<uint8_t>(from, value.bytes, addresses, lanes, offset);
    case 2: return store_lanes<uint16_t>(from, value.bytes, addresses, lanes, offset);
    case 4: return store_lanes<uint32_t>(from, value.bytes, addresses, lanes, offset);
    case 8: return store_lanes<uint64_t>(from, value.bytes, addresses, lanes, offset);
    default: return store_lanes<unsigned __int128>(from, value.bytes, addresses, lanes, offset);
  }
}

// Where stores wait that the warp sees; false: none do.
[[gnu::noinline]] bool load_late(Executor& x, const Detail& detail, uint32_t lanes, uint32_t bytes, const uint64_t (&addresses)[kLanes]) {
  LaneBytes seen;
  if (!x.engine.store_buffers.read(x.id(), lanes, addresses, bytes, seen)) return false;
  for (int e = 0; e < detail.vector; ++e) load_element(x, detail.values[size_t(e)], detail, seen.addresses, lanes, uint32_t(e) * detail.element_bytes);
  return true;
}

Step load(Executor& x, const Op& op, uint32_t lanes) {
  const Detail& detail = *op.detail;
  const uint32_t bytes = detail.element_bytes * uint32_t(detail.vector);
  alignas(64) uint64_t addresses[kLanes];
  x.resolve(op, detail.addresses[0], lanes, bytes, bytes, addresses);
  if (x.engine.store_buffers.empty() || !load_late(x, detail, lanes, bytes, addresses)) {
    for (int e = 0; e < detail.vector; ++e) load_element(x, detail.values[size_t(e)], detail, addresses, lanes, uint32_t(e) * detail.element_bytes);
  }
  if (detail.space == Space::kParameter) return Step::kNext;
  if (x.engine.observer) x.report_access(op, lanes, Operation::kRead, bytes, uint32_t(detail.vector), addresses, 0);
  if ((detail.order == Order::kWeak && (!detail.decides || !x.is_quiet())) || x.polls(op, lanes, addresses, bytes)) return Step::kNext;
  return detail.space == Space::kGlobal && detail.order != Order::kWeak && x.engine.tested(*x.warp) ? Step::kYield : Step::kNext;
}

// Of a parameter by name: the same for all lanes.
Step load_parameter(Executor& x, const Op& op, uint32_t lanes) {
  const Detail& detail = *op.detail;
  const uint8_t* from = x.grid->parameters.get() + detail.addresses[0].offset;
  for (int e = 0; e < detail.vector; ++e, from += detail.element_bytes) {
    uint64_t bits = 0;
    std::memcpy(&bits, from, detail.element_bytes);
    const int drop = 64 - 8 * detail.element_bytes;
    if (detail.is_signed) bits = uint64_t(int64_t(bits << drop) >> drop);
    const Value& value = detail.values[size_t(e)];
    char* const to = const_cast<char*>(x.at(value));
    if (value.bytes == 8) {
      each_lane(lanes, [&](int lane) { std::memcpy(to + 8 * lane, &bits, 8); });
    } else {
      each_lane(lanes, [&](int lane) { std::memcpy(to + value.bytes * lane, &bits, value.bytes); });
    }
  }
  return Step::kNext;
}

template <class E>
uint32_t changed_lanes(const char* from, int stride, const uint64_t (&addresses)[kLanes], const uint64_t (&places)[kLanes], uint32_t lanes, uint32_t offset) {
  uint32_t changed = 0;
  int before = -1;
  each_lane(lanes, [&](int lane) {
    const bool follows = before >= 0 && addresses[before] == addresses[lane];
    E value, there;
    std::memcpy(&value, from + lane * stride, sizeof(E));
    std::memcpy(&there, follows ? from + before * stride : reinterpret_cast<const char*>(places[lane]) + offset, sizeof(E));
    changed |= uint32_t(value != there) << lane;
    before = lane;
  });
  return changed;
}

// Lanes whose bytes a store changes: the others store what is there, or what the lane before them stores to the same place.
// `places`: where what is there can be read.
uint32_t changed_by_store(Executor& x, const Detail& detail, const uint64_t (&addresses)[kLanes], const uint64_t (&places)[kLanes], uint32_t lanes) {
  if (detail.element_bytes > 8) return lanes;
  uint32_t changed = 0;
  for (int e = 0; e < detail.vector; ++e) {
    const Value& value = detail.values[size_t(e)];
    const char* const from = x.at(value);
    const uint32_t offset = uint32_t(e) * detail.element_bytes;
    switch (detail.element_bytes) {
      case 1: changed |= changed_lanes<uint8_t>(from, value.bytes, addresses, places, lanes, offset); break;
      case 2: changed |= changed_lanes<uint16_t>(from, value.bytes, addresses, places, lanes, offset); break;
      case 4: changed |= changed_lanes<uint32_t>(from, value.bytes, addresses, places, lanes, offset); break;
      default: changed |= changed_lanes<uint64_t>(from, value.bytes, addresses, places, lanes, offset);
    }
  }
  return changed;
}

// Of global memory, where stores may wait in a buffer.
[[gnu::noinline]] Step store_late(Executor& x, const Op& op, uint32_t lanes, uint32_t bytes, const uint64_t (&addresses)[kLanes]) {
  const Detail& detail = *op.detail;
  if (detail.order == Order::kRelease || detail.order == Order::kSequential) x.publish(detail.scope);
  LaneBytes content;
  if (!x.engine.store_buffers.read(x.id(), lanes, addresses, bytes, content)) {
    each_lane(lanes, [&](int lane) {
      content.addresses[lane] = reinterpret_cast<uint64_t>(content.bytes + uint32_t(lane) * LaneBytes::kMaxBytes);
      std::memcpy(reinterpret_cast<void*>(content.addresses[lane]), reinterpret_cast<const void*>(addresses[lane]), bytes);
    });
  }
  uint32_t changed = 0;
  if (x.engine.observer) {  // what stands there is the last store in the order of coherence, seen by this warp or not
    LaneBytes last;
    const bool is_late = x.engine.store_buffers.read_all(lanes, addresses, bytes, last);
    changed = changed_by_store(x, detail, addresses, is_late ? last.addresses : addresses, lanes);
  }
  bool changes = false;
  for (int e = 0; e < detail.vector; ++e) changes |= store_element(x, detail.values[size_t(e)], detail, content.addresses, lanes, uint32_t(e) * detail.element_bytes);
  if (x.engine.observer) x.report_access(op, lanes, Operation::kWrite, bytes, uint32_t(detail.vector), addresses, changed);
  if (changes) {
    x.engine.took_effect(x.engine.store_buffers.write(x.id(), lanes, addresses, bytes, content, detail.order, x.engine.steps));
    x.wrote_at(lanes, addresses);
  }
  return detail.order != Order::kWeak && x.engine.signalled(*x.warp) ? Step::kYield : Step::kNext;
}

// Of a non-blocking put or get, all of whose lanes are late alike.
[[gnu::noinline]] Step put_late(Executor& x, const Op& op, uint32_t lanes, uint32_t bytes, const uint64_t (&addresses)[kLanes]) {
  const Detail& detail = *op.detail;
  LaneBytes content;
  each_lane(lanes, [&](int lane) {
    content.addresses[lane] = reinterpret_cast<uint64_t>(content.bytes + uint32_t(lane) * LaneBytes::kMaxBytes);
    x.settle(addresses[lane], bytes);
  });
  for (int e = 0; e < detail.vector; ++e) store_element(x, detail.values[size_t(e)], detail, content.addresses, lanes, uint32_t(e) * detail.element_bytes);
  if (x.engine.observer) x.report_access(op, lanes, Operation::kWrite, bytes, uint32_t(detail.vector), addresses, lanes);
  x.engine.late_puts.add(x.grid->launch.rank, x.warp->late_gets & lanes, lanes, addresses, bytes, content, x.engine.steps);
  return Step::kNext;
}

Step store(Executor& x, const Op& op, uint32_t lanes) {
  const Detail& detail = *op.detail;
  const uint32_t bytes = detail.element_bytes * uint32_t(detail.vector);
  alignas(64) uint64_t addresses[kLanes];
  const Extent* const extent = x.resolve(op, detail.addresses[0], lanes, bytes, bytes, addresses);
  const bool is_late = lanes & (x.warp->late_puts | x.warp->late_gets);
  if (is_late && (detail.generic || detail.space == Space::kGlobal) && x.outside(lanes, addresses) == lanes) {
    return put_late(x, op, lanes, bytes, addresses);
  }
  if (x.engine.store_buffers.is_on() && (detail.generic || detail.space == Space::kGlobal) && x.outside(lanes, addresses) == lanes) {
    return store_late(x, op, lanes, bytes, addresses);
  }
  const bool is_seen = x.engine.observer && detail.space != Space::kParameter;
  const uint32_t changed = is_seen ? changed_by_store(x, detail, addresses, addresses, lanes) : 0;
  bool changes = false;
  for (int e = 0; e < detail.vector; ++e) changes |= store_element(x, detail.values[size_t(e)], detail, addresses, lanes, uint32_t(e) * detail.element_bytes);
  if (detail.space == Space::kParameter) return Step::kNext;
  x.note_written(extent, lanes, addresses, bytes);
  if (is_seen) x.report_access(op, lanes, Operation::kWrite, bytes, uint32_t(detail.vector), addresses, changed);
  if (changes) x.wrote_at(lanes, addresses);
  return detail.order != Order::kWeak && x.engine.signalled(*x.warp) ? Step::kYield : Step::kNext;
}

// discard.L2: "a weak write of an unstable indeterminate value" (PTX ISA) to a whole line, which is no result of the kernel.
Step discard(Executor& x, const Op& op, uint32_t lanes) {
  constexpr uint32_t kLineBytes = 128;
  alignas(64) uint64_t addresses[kLanes];
  x.resolve(op, op.detail->addresses[0], lanes, kLineBytes, kLineBytes, addresses);
  uint32_t changed = 0;
  each_lane(lanes, [&](int lane) {
    x.settle(addresses[lane], kLineBytes);
    auto* const line = reinterpret_cast<uint8_t*>(addresses[lane]);
    changed |= uint32_t(std::any_of(line, line + kLineBytes, [](uint8_t byte) { return byte != kNewByte; })) << lane;
    std::memset(line, kNewByte, kLineBytes);
  });
  if (x.engine.observer) x.report_access(op, lanes, Operation::kWrite, kLineBytes, kLineBytes / 4, addresses, changed);
  x.wrote_at(lanes, addresses);
  return Step::kNext;
}

Step no_operation(Executor&, const Op&, uint32_t) { return Step::kNext; }

// createpolicy and the like: the result has no meaning for the emulator.
Step zero_result(Executor& x, const Op& op, uint32_t lanes) {
  each_lane(lanes, [&](int lane) { x.set(op.detail->values[0], lane, 0); });
  return Step::kNext;
}

uint64_t shared_to_generic(const Executor& x, uint64_t offset) {
  if (offset < 1u << 24) return reinterpret_cast<uint64_t>(x.block->shared) + offset;
  return reinterpret_cast<uint64_t>(x.block->cluster->shared) + ((offset >> 24) - 1) * kSharedStride + (offset & 0xffffff);
}

uint64_t generic_to_shared(const Executor& x, uint64_t address) {
  uint32_t offset = 0;
  const Block* const block = block_of(*x.block->cluster, address, offset);
  if (block == x.block) return offset;
  return block ? (uint64_t(block->in_cluster) + 1) << 24 | offset : address - reinterpret_cast<uint64_t>(x.block->shared);
}

Step convert_address(Executor& x, const Op& op, uint32_t lanes) {
  const Detail& detail = *op.detail;
  each_lane(lanes, [&](int lane) {
    uint64_t address = x.value(detail.values[1], lane);
    if (detail.variant == 1) address = shared_to_generic(x, address);
    if (detail.variant == 2) address = generic_to_shared(x, address);
    x.set(detail.values[0], lane, address);
  });
  return Step::kNext;
}

// mapa: the same place in the shared memory of another block of the cluster; generic or as shared::cluster.
Step map_address(Executor& x, const Op& op, uint32_t lanes) {
  const Detail& detail = *op.detail;
  each_lane(lanes, [&](int lane) {
    uint64_t address = x.value(detail.values[1], lane);
    const uint64_t rank = x.value(detail.values[2], lane);
    if (rank >= x.block->cluster->blocks.size()) x.fail(Outcome::kIllegalAddress, op, uint32_t(lane), "block " + std::to_string(rank) + " of a cluster of " + std::to_string(x.block->cluster->blocks.size()));
    if (detail.generic) address = generic_to_shared(x, address);
    address = (rank + 1) << 24 | (address & 0xffffff);
    x.set(detail.values[0], lane, detail.generic ? shared_to_generic(x, address) : address);
  });
  return Step::kNext;
}

Step rank_of_address(Executor& x, const Op& op, uint32_t lanes) {
  const Detail& detail = *op.detail;
  each_lane(lanes, [&](int lane) {
    uint64_t address = x.value(detail.values[1], lane);
    if (detail.generic) address = generic_to_shared(x, address);
    x.set(detail.values[0], lane, address >> 24 ? (address >> 24) - 1 : x.block->in_cluster);
  });
  return Step::kNext;
}

Step is_space(Executor& x, const Op& op, uint32_t lanes) {
  const Detail& detail = *op.detail;
  uint32_t mask = 0;
  each_lane(lanes, [&](int lane) {
    const Extent* const extent = x.engine.memory.find_seen(x.value(detail.values[1], lane), 1);
    const Space space = extent ? extent->space : Space::kGlobal;
    mask |= uint32_t(space == detail.space) << lane;
  });
  x.set_mask(detail.values[0], mask, lanes);
  return Step::kNext;
}

}  // namespace

Handler find_memory_handler(const Instruction& instruction, Detail& detail) {
  const auto name = instruction.parts[0];
  if (name == "ld" || name == "ldu") {
    return !detail.addresses.empty() && detail.addresses[0].mode == Address::kParameters ? load_parameter : load;
  }
  if (name == "st" && !instruction.has("async")) return store;
  if (name == "prefetch" || name == "prefetchu" || name == "applypriority") return no_operation;
  if (name == "discard") return discard;
  if (name == "createpolicy") return zero_result;
  if (name == "cvta") {
    const bool to = instruction.has("to"), shared = detail.space == Space::kShared && !detail.generic;
    detail.variant = shared ? (to ? 2 : 1) : 0;
    return convert_address;
  }
  if (name == "mapa") return map_address;
  if (name == "getctarank") return rank_of_address;
  if (name == "isspacep") return is_space;
  return nullptr;
}

}  // namespace pkb::emulator
