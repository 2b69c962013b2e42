// mbarrier: barriers in shared memory that count arrivals and bytes of copies.
//
// The 8 bytes of the object hold what is expected and pending of a phase, bytes that are still to come, and the parity of
// the phase; so copies of it and its destruction behave as memory does.
#include "executor.h"

namespace pkb::emulator {
namespace {

struct Mbarrier {
  uint32_t expected, pending;  // arrivals
  int32_t bytes;
  bool parity;

  static Mbarrier read(const char* at) {
    uint64_t word;
    std::memcpy(&word, at, 8);
    return {uint32_t(word & 0xfffff), uint32_t(word >> 20 & 0xfffff), int32_t(int64_t(word << 2) >> 42), bool(word >> 62 & 1)};
  }
  uint64_t word() const {
    return uint64_t(expected) | uint64_t(pending) << 20 | (uint64_t(uint32_t(bytes)) & 0x3fffff) << 40 | uint64_t(parity) << 62;
  }
  void write(char* at) const {
    const uint64_t bits = word();
    std::memcpy(at, &bits, 8);
  }
};

// Ends the phase if nothing is missing any more.
void settle(Engine& engine, Block& block, uint32_t offset, Mbarrier barrier) {
  char* const at = block.shared + offset;
  ++engine.progress;
  const bool done = barrier.pending == 0 && barrier.bytes == 0;
  if (done) {
    barrier.pending = barrier.expected;
    barrier.parity = !barrier.parity;
  }
  barrier.write(at);
  if (!done) return;
  const uint64_t phase = block.phases[offset]++;
  if (engine.observer) engine.observer->mbarrier_complete(reinterpret_cast<uint64_t>(at), phase);
}

struct Place {
  Block* block;
  uint32_t offset;
  char* at;
  uint64_t address;
};

Place place_of_lane(Executor& x, const Op& op, const uint64_t (&addresses)[kLanes], int lane, bool checks) {
  uint32_t offset = 0;
  Block* const block = block_of(*x.block->cluster, addresses[lane], offset);
  if (!block) x.fail(Outcome::kIllegalAddress, op, uint32_t(lane), "an mbarrier must lie in shared memory of the cluster");
  const Place place{block, offset, block->shared + offset, addresses[lane]};
  if (checks && !block->phases.contains(offset)) x.fail(Outcome::kTrap, op, uint32_t(lane), "there is no mbarrier at byte " + std::to_string(offset) + " of shared memory: mbarrier.init has not been executed");
  return place;
}

template <class F>
Step at_each(Executor& x, const Op& op, uint32_t lanes, bool checks, F f) {
  alignas(64) uint64_t addresses[kLanes];
  x.resolve(op, op.detail->addresses[0], lanes, 8, 8, addresses);
  each_lane(lanes, [&](int lane) { f(lane, place_of_lane(x, op, addresses, lane, checks)); });
  return Step::kNext;
}

Step init(Executor& x, const Op& op, uint32_t lanes) {
  return at_each(x, op, lanes, false, [&](int lane, const Place& place) {
    const auto count = uint32_t(x.value(op.detail->values[0], lane));
    if (count == 0 || count > 0xfffff) x.fail(Outcome::kTrap, op, uint32_t(lane), "count " + std::to_string(count) + " is not in 1 .. 2^20 - 1");
    Mbarrier{count, count, 0, false}.write(place.at);
    place.block->phases[place.offset] = 0;
    if (x.engine.observer) x.engine.observer->mbarrier_init(x.seen(op, 1u << lane), place.address, count);
    x.wrote();
  });
}

Step invalidate(Executor& x, const Op& op, uint32_t lanes) {
  return at_each(x, op, lanes, true, [&](int lane, const Place& place) {
    place.block->phases.erase(place.offset);
    if (x.engine.observer) x.engine.observer->mbarrier_invalidate(x.seen(op, 1u << lane), place.address);
    x.wrote();
  });
}

void take_arrivals(Executor& x, const Op& op, int lane, Mbarrier& barrier, uint32_t count) {
  if (count > barrier.pending) x.fail(Outcome::kTrap, op, uint32_t(lane), "more arrivals than the " + std::to_string(barrier.expected) + " that the mbarrier expects in a phase");
  barrier.pending -= count;
  if (barrier.pending == 0 && barrier.bytes == 0 && op.source->has("noComplete")) x.fail(Outcome::kTrap, op, uint32_t(lane), "an arrival with .noComplete completes the phase");
}

enum Kind { kArrive, kArriveExpect, kArriveDrop, kExpect, kComplete };

// values: the state if there is a result, then a count of arrivals or bytes.
Step arrive(Executor& x, const Op& op, uint32_t lanes) {
  const Detail& detail = *op.detail;
  const auto kind = Kind(detail.variant);
  const bool has_state = op.source->operands[0].kind != Operand::kAddress;
  return at_each(x, op, lanes, true, [&](int lane, const Place& place) {
    Mbarrier barrier = Mbarrier::read(place.at);
    const Warp seen = x.seen(op, 1u << lane);
    const size_t operand = has_state ? 1 : 0;
    const bool given = detail.values.size() > operand;
    const auto number = given ? uint32_t(x.value(detail.values[operand], lane)) : 1u;
    const uint64_t phase = place.block->phases[place.offset];
    if (has_state) x.set(detail.values[0], lane, barrier.word());
    if (kind == kArriveExpect || kind == kExpect) {
      barrier.bytes += int32_t(number);
      if (x.engine.observer) x.engine.observer->mbarrier_expect(seen, place.address, phase, number);
    }
    if (kind == kComplete) barrier.bytes -= int32_t(number);
    if (kind <= kArriveDrop) {
      if (detail.order != Order::kRelaxed) x.publish(detail.scope);
      const uint32_t count = kind == kArriveExpect ? 1 : number;
      take_arrivals(x, op, lane, barrier, count);
      if (kind == kArriveDrop) barrier.expected -= count;
      if (x.engine.observer) x.engine.observer->mbarrier_arrive(seen, place.address, phase, detail.order, detail.scope);
    }
    settle(x.engine, *place.block, place.offset, barrier);
    x.wrote();
  });
}

// cp.async.mbarrier.arrive: arrives once the lane's cp.async have completed, which they have when they are issued. What
// else the lane has done is not released. variant: 1: the arrival is one of those expected; else it is expected in addition.
Step arrive_after_copies(Executor& x, const Op& op, uint32_t lanes) {
  return at_each(x, op, lanes, true, [&](int lane, const Place& place) {
    Mbarrier barrier = Mbarrier::read(place.at);
    if (x.engine.observer) x.engine.observer->async_arrive(x.seen(op, 1u << lane), Completion::kCopyGroup, place.address);
    if (!op.detail->variant) return;
    take_arrivals(x, op, lane, barrier, 1);
    settle(x.engine, *place.block, place.offset, barrier);
    x.wrote();
  });
}

// variant: 1: by parity. values: result, state or parity.
Step wait(Executor& x, const Op& op, uint32_t lanes) {
  const Detail& detail = *op.detail;
  alignas(64) uint64_t addresses[kLanes];
  x.resolve(op, detail.addresses[0], lanes, 8, 8, addresses);
  uint32_t done = 0;
  each_lane(lanes, [&](int lane) {
    const Place place = place_of_lane(x, op, addresses, lane, true);
    const uint64_t token = x.value(detail.values[1], lane);
    const bool parity = detail.variant ? token & 1 : token >> 62 & 1;
    if (Mbarrier::read(place.at).parity == parity) return;
    done |= 1u << lane;
  });
  for (uint32_t rest = x.engine.observer ? done : 0; rest;) {  // lanes at one mbarrier are told of together
    const Place place = place_of_lane(x, op, addresses, __builtin_ctz(rest), true);
    uint32_t same = 0;
    each_lane(rest, [&](int lane) { same |= uint32_t(addresses[lane] == place.address) << lane; });
    x.engine.observer->mbarrier_wait(x.seen(op, same), place.address, place.block->phases[place.offset] - 1, detail.order, detail.scope);
    rest &= ~same;
  }
  x.set_mask(detail.values[0], done, lanes);
  if (done != lanes) x.polls(op, lanes & ~done, addresses, 8);
  return Step::kNext;
}

Step pending_count(Executor& x, const Op& op, uint32_t lanes) {
  each_lane(lanes, [&](int lane) { x.set(op.detail->values[0], lane, x.value(op.detail->values[1], lane) >> 20 & 0xfffff); });
  return Step::kNext;
}

}  // namespace

void complete_bytes(Engine& engine, Block& block, uint32_t offset, uint32_t bytes) {
  Mbarrier barrier = Mbarrier::read(block.shared + offset);
  barrier.bytes -= int32_t(bytes);
  settle(engine, block, offset, barrier);
}

Handler find_mbarrier_handler(const Instruction& instruction, Detail& detail) {
  if (instruction.parts[0] == "cp" && instruction.has("mbarrier") && instruction.has("arrive")) {
    detail.variant = instruction.has("noinc");
    return arrive_after_copies;
  }
  if (instruction.parts[0] != "mbarrier") return nullptr;
  if (instruction.has("init")) return init;
  if (instruction.has("inval")) return invalidate;
  if (instruction.has("pending_count")) return pending_count;
  const bool waits = instruction.has("test_wait") || instruction.has("try_wait");
  if (detail.order == Order::kWeak) detail.order = waits ? Order::kAcquire : Order::kRelease;
  if (detail.scope == Scope::kNone) detail.scope = Scope::kCta;
  if (waits) {
    detail.variant = instruction.has("parity");
    return wait;
  }
  if (instruction.has("arrive_drop")) {
    detail.variant = kArriveDrop;
    return instruction.has("expect_tx") ? nullptr : arrive;
  }
  if (instruction.has("arrive")) {
    detail.variant = instruction.has("expect_tx") ? kArriveExpect : kArrive;
    return arrive;
  }
  if (instruction.has("expect_tx")) detail.variant = kExpect;
  if (instruction.has("complete_tx")) detail.variant = kComplete;
  return instruction.has("expect_tx") || instruction.has("complete_tx") ? arrive : nullptr;
}

}  // namespace pkb::emulator
