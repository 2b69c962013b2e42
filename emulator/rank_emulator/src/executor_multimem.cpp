// multimem: operations on the same place in the memory of all GPUs of a multicast object, one after the other.
#include <bit>
#include <cstring>

#include "executor.h"
#include "small_floats.h"

namespace pkb::emulator {
namespace {

// Lanes whose addresses lie in the same object as that of the first of them. Fails where it lies in none.
const Multicast* object_of(Executor& x, const Op& op, const uint64_t (&named)[kLanes], uint32_t bytes, uint32_t& lanes) {
  const int first = __builtin_ctz(lanes);
  const Memory& memory = x.engine.memory;
  const Multicast* const object = memory.find_multicast(named[first], bytes);
  if (!object) {
    const bool is_ordinary = x.find_reached(named[first], 1) != nullptr;
    x.fail(Outcome::kIllegalAddress, op, uint32_t(first), "illegal address: " + memory.describe(named[first]) + (is_ordinary ? ", is no multicast memory" : ""));
  }
  uint32_t same = 0;
  each_lane(lanes, [&](int lane) {
    if (named[lane] % bytes) x.fail(Outcome::kMisaligned, op, uint32_t(lane), "misaligned address (" + memory.describe(named[lane]) + "), must be a multiple of " + std::to_string(bytes));
    same |= uint32_t(memory.find_multicast(named[lane], bytes) == object) << lane;
  });
  lanes = same;
  return object;
}

// Calls f(lanes, addresses, is_first) for each GPU, with the emulator's own addresses of its memory.
template <class F>
void each_member(Executor& x, const Op& op, uint32_t lanes, uint32_t bytes, F f) {
  alignas(64) uint64_t named[kLanes], addresses[kLanes] = {};
  x.raw_addresses(op.detail->addresses[0], lanes, named);
  while (lanes) {
    uint32_t same = lanes;
    const Multicast* const object = object_of(x, op, named, bytes, same);
    for (const uint64_t member : object->members) {
      each_lane(same, [&](int lane) {
        addresses[lane] = own_address(named[lane]) - object->begin + member;
        if (!x.engine.memory.find(addresses[lane], bytes)) x.fail(Outcome::kIllegalAddress, op, uint32_t(lane), "illegal address: memory that is bound to a multicast object has been freed");
      });
      settle(x, *op.detail, same, addresses, bytes);
      f(same, addresses, member == object->members.front());
    }
    lanes &= ~same;
  }
}

uint64_t element_at(uint64_t address, uint32_t bytes) {
  uint64_t bits = 0;
  std::memcpy(&bits, reinterpret_cast<const void*>(address), bytes);
  return bits;
}

// st and red; variant -1: st.
Step change(Executor& x, const Op& op, uint32_t lanes) {
  const Detail& detail = *op.detail;
  const uint32_t size = detail.element_bytes, vector = uint32_t(detail.vector), bytes = size * vector;
  const bool adds = detail.variant >= 0;
  each_member(x, op, lanes, bytes, [&](uint32_t of, const uint64_t (&addresses)[kLanes], bool) {
    uint32_t changed = 0;
    each_lane(of, [&](int lane) {
      for (uint32_t e = 0; e < vector; ++e) {
        const uint64_t at = addresses[lane] + e * size, old = element_at(at, size), operand = x.value(detail.values[e], lane);
        const uint64_t next = adds ? updated(detail, true, old, operand, 0) : operand;
        std::memcpy(reinterpret_cast<void*>(at), &next, size);
        changed |= uint32_t(element_at(at, size) != old) << lane;
      }
    });
    x.note_written(nullptr, of, addresses, bytes);
    if (x.engine.observer) x.report_access(op, of, adds ? Operation::kAtomic : Operation::kWrite, bytes, vector, addresses, adds ? of : changed);
    if (changed) x.wrote_at(of, addresses);
  });
  return detail.order != Order::kWeak && x.engine.signalled(*x.warp) ? Step::kYield : Step::kNext;
}

// Sums in single precision of numbers in half of it (.acc::f32), rounded once.
uint64_t rounded(const float (&sums)[2], const Format& format, uint32_t bytes) {
  const uint64_t low = uint16_t(encode(double(sums[0]), format));
  return bytes == 2 ? low : low | uint64_t(uint16_t(encode(double(sums[1]), format))) << 16;
}

// ld_reduce.
Step load(Executor& x, const Op& op, uint32_t lanes) {
  const Detail& detail = *op.detail;
  const uint32_t size = detail.element_bytes, vector = uint32_t(detail.vector), bytes = size * vector;
  const bool is_wide = op.source->has("acc::f32");
  const Format& format = op.source->has("bf16") || op.source->has("bf16x2") ? kBrain : kHalf;
  constexpr uint32_t kMost = 8;
  uint64_t results[kLanes][kMost] = {};
  float sums[kLanes][kMost][2] = {};
  bool waits = detail.order != Order::kWeak;
  each_member(x, op, lanes, bytes, [&](uint32_t of, const uint64_t (&addresses)[kLanes], bool is_first) {
    each_lane(of, [&](int lane) {
      for (uint32_t e = 0; e < vector; ++e) {
        const uint64_t bits = element_at(addresses[lane] + e * size, size);
        results[lane][e] = is_first ? bits : updated(detail, true, results[lane][e], bits, 0);
        for (uint32_t half = 0; is_wide && half < size / 2; ++half) sums[lane][e][half] += float(decode(uint16_t(bits >> 16 * half), format));
      }
    });
    if (x.engine.observer) x.report_access(op, of, Operation::kRead, bytes, vector, addresses, 0);
    if (detail.order != Order::kWeak) waits &= x.polls(op, of, addresses, bytes);
  });
  each_lane(lanes, [&](int lane) {
    for (uint32_t e = 0; e < vector; ++e) x.set(detail.values[e], lane, is_wide ? rounded(sums[lane][e], format, size) : results[lane][e]);
  });
  if (waits || detail.order == Order::kWeak) return Step::kNext;
  x.split->wait = Wait::kNone;  // nothing new on one GPU alone
  return x.engine.tested(*x.warp) ? Step::kYield : Step::kNext;
}

}  // namespace

Handler find_multimem_handler(const Instruction& instruction, Detail& detail) {
  if (instruction.parts[0] != "multimem" || instruction.parts.size() < 3 || detail.addresses.size() != 1 || detail.vector > 8) return nullptr;
  if (instruction.parts.back().starts_with("e4m3") || instruction.parts.back().starts_with("e5m2")) return nullptr;
  const auto kind = instruction.parts[1];
  detail.space = Space::kGlobal;
  detail.generic = false;
  if (detail.scope == Scope::kNone && detail.order != Order::kWeak) detail.scope = Scope::kGpu;
  if (kind == "st") {
    detail.variant = -1;
    return change;
  }
  if (!read_update(instruction, detail)) return nullptr;
  if (kind == "ld_reduce") return load;
  if (kind != "red") return nullptr;
  if (detail.order == Order::kWeak) detail.order = Order::kRelaxed;
  if (detail.scope == Scope::kNone) detail.scope = Scope::kGpu;
  return change;
}

}  // namespace pkb::emulator
