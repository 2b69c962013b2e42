// What lanes of a warp do together: shuffles, votes, reductions, warp barriers.
#include <algorithm>

#include "executor.h"

namespace pkb::emulator {
namespace {

// Lanes that execute a .sync instruction together; 0: not all have come.
uint32_t together(Executor& x, const Value& members, uint32_t lanes, bool anywhere = false) {
  return x.gather(uint32_t(x.value(members, __builtin_ctz(lanes))), lanes, anywhere);
}

Step warp_barrier(Executor& x, const Op& op, uint32_t lanes) {
  const uint32_t all = together(x, op.detail->values[0], lanes, true);
  if (!all) return Step::kBlocked;
  if (x.engine.observer) x.engine.observer->warp_barrier(x.seen(op, all));
  return Step::kNext;
}

enum Shuffle { kUp, kDown, kButterfly, kIndex };

// values: result, whether the source was in range if asked for, source, lane, clamp and segments, members
Step shuffle(Executor& x, const Op& op, uint32_t lanes) {
  const Detail& detail = *op.detail;
  const size_t first = detail.number;  // 1 or 2 results
  const uint32_t all = together(x, detail.values.back(), lanes);
  if (!all) return Step::kBlocked;
  uint64_t from[kLanes];
  for (int i = 0; i < kLanes; ++i) from[i] = x.value(detail.values[first], i);
  uint32_t in_range = 0;
  each_lane(all, [&](int lane) {
    const auto by = int(x.value(detail.values[first + 1], lane) & 31), control = int(x.value(detail.values[first + 2], lane));
    const int segments = control >> 8 & 31, clamp = control & 31;
    const int most = (lane & segments) | (clamp & ~segments), least = lane & segments;
    int source = lane;
    bool valid = false;
    switch (detail.variant) {
      case kUp: source = lane - by; valid = source >= most; break;
      case kDown: source = lane + by; valid = source <= most; break;
      case kButterfly: source = lane ^ by; valid = source <= most; break;
      default: source = least | (by & ~segments); valid = source <= most; break;
    }
    if (!valid) source = lane;
    in_range |= uint32_t(valid) << lane;
    x.set(detail.values[0], lane, from[source & 31]);
  });
  if (first == 2) x.set_mask(detail.values[1], in_range, all);
  return Step::kNext;
}

enum Vote { kAll, kAny, kUniform, kBallot };

Step vote(Executor& x, const Op& op, uint32_t lanes) {
  const Detail& detail = *op.detail;
  const uint32_t all = together(x, detail.values[2], lanes);
  if (!all) return Step::kBlocked;
  const uint32_t yes = x.mask(detail.values[1]) & all;
  switch (detail.variant) {
    case kBallot: each_lane(all, [&](int lane) { x.set(detail.values[0], lane, yes); }); break;
    case kAll: x.set_mask(detail.values[0], yes == all ? ~0u : 0, all); break;
    case kAny: x.set_mask(detail.values[0], yes ? ~0u : 0, all); break;
    default: x.set_mask(detail.values[0], yes == 0 || yes == all ? ~0u : 0, all); break;
  }
  return Step::kNext;
}

uint32_t reduced(std::string_view operation, bool is_signed, uint32_t a, uint32_t b) {
  if (operation == "add") return a + b;
  if (operation == "and") return a & b;
  if (operation == "or") return a | b;
  if (operation == "xor") return a ^ b;
  const bool less = is_signed ? int32_t(a) < int32_t(b) : a < b;
  return less == (operation == "min") ? a : b;
}

Step reduce(Executor& x, const Op& op, uint32_t lanes) {
  const Detail& detail = *op.detail;
  const uint32_t all = together(x, detail.values[2], lanes);
  if (!all) return Step::kBlocked;
  uint32_t result = 0;
  bool first = true;
  each_lane(all, [&](int lane) {
    const auto value = uint32_t(x.value(detail.values[1], lane));
    result = first ? value : reduced(op.source->parts[2], detail.is_signed, result, value);
    first = false;
  });
  each_lane(all, [&](int lane) { x.set(detail.values[0], lane, result); });
  return Step::kNext;
}

// values: result, predicate of match.all if asked for, source, members. variant: 1: all
Step match(Executor& x, const Op& op, uint32_t lanes) {
  const Detail& detail = *op.detail;
  const size_t source = detail.number;
  const uint32_t all = together(x, detail.values.back(), lanes);
  if (!all) return Step::kBlocked;
  uint32_t equal[kLanes] = {};
  each_lane(all, [&](int lane) {
    each_lane(all, [&](int other) {
      if (x.value(detail.values[source], lane) == x.value(detail.values[source], other)) equal[lane] |= 1u << other;
    });
  });
  const bool same = equal[__builtin_ctz(all)] == all;
  each_lane(all, [&](int lane) { x.set(detail.values[0], lane, detail.variant ? (same ? all : 0) : equal[lane]); });
  if (source == 2) x.set_mask(detail.values[1], same ? ~0u : 0, all);
  if (x.engine.observer) x.engine.observer->warp_match(x.seen(op, all));
  return Step::kNext;
}

Step elect(Executor& x, const Op& op, uint32_t lanes) {
  const Detail& detail = *op.detail;
  const uint32_t all = together(x, detail.values[2], lanes);
  if (!all) return Step::kBlocked;
  const int leader = __builtin_ctz(all);
  each_lane(all, [&](int lane) { x.set(detail.values[0], lane, uint64_t(leader)); });
  x.set_mask(detail.values[1], 1u << leader, all);
  return Step::kNext;
}

Step active_mask(Executor& x, const Op& op, uint32_t lanes) {
  each_lane(lanes, [&](int lane) { x.set(op.detail->values[0], lane, lanes); });
  return Step::kNext;
}

}  // namespace

Handler find_warp_handler(const Instruction& instruction, Detail& detail) {
  const auto name = instruction.parts[0];
  const bool pair = !instruction.operands.empty() && instruction.operands[0].kind == Operand::kPair;
  if ((name == "bar" || name == "barrier") && instruction.has("warp")) return warp_barrier;
  if (name == "activemask") return active_mask;
  if (!instruction.has("sync")) return nullptr;
  detail.number = pair ? 2 : 1;
  if (name == "shfl") {
    detail.variant = instruction.has("up") ? kUp : instruction.has("down") ? kDown : instruction.has("bfly") ? kButterfly : kIndex;
    return shuffle;
  }
  if (name == "vote") {
    detail.variant = instruction.has("ballot") ? kBallot : instruction.has("all") ? kAll : instruction.has("any") ? kAny : kUniform;
    return vote;
  }
  if (name == "redux") return reduce;
  if (name == "match") {
    detail.variant = instruction.has("all");
    return match;
  }
  return name == "elect" ? elect : nullptr;
}

}  // namespace pkb::emulator
