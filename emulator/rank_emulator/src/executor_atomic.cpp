// atom and red. Lanes of a warp go one after the other.
#include <algorithm>
#include <bit>
#include <cmath>

#include "executor.h"
#include "small_floats.h"

namespace pkb::emulator {
namespace {

enum class Update : int { kAdd, kMin, kMax, kAnd, kOr, kXor, kExchange, kCompareAndSwap, kIncrement, kDecrement };
enum class Number : int { kUnsigned, kSigned, kF32, kF64, kF16, kBF16, kF16x2, kBF16x2 };

uint16_t add_small(uint16_t a, uint16_t b, const Format& format) {
  return uint16_t(encode(decode(a, format) + decode(b, format), format));
}

// In global memory subnormal numbers count as zero.
uint32_t add_single(uint32_t a, uint32_t b, bool global) {
  const float x = std::bit_cast<float>(a), y = std::bit_cast<float>(b);
  const float sum = global ? flushed<true>(flushed<true>(x) + flushed<true>(y)) : x + y;
  return sum == sum ? std::bit_cast<uint32_t>(sum) : kNan32;
}

// In global memory a signalling NaN stays one; of two, the one that is added.
uint64_t add_double(uint64_t a, uint64_t b, bool global) {
  const double x = std::bit_cast<double>(a), y = std::bit_cast<double>(b);
  if (global && y != y) return b;
  if (global && x != x) return a;
  return std::bit_cast<uint64_t>(x + y);
}

uint64_t add(uint64_t a, uint64_t b, Number number, bool global) {
  switch (number) {
    case Number::kF32: return add_single(uint32_t(a), uint32_t(b), global);
    case Number::kF64: return add_double(a, b, global);
    case Number::kF16: return add_small(uint16_t(a), uint16_t(b), kHalf);
    case Number::kBF16: return add_small(uint16_t(a), uint16_t(b), kBrain);
    case Number::kF16x2: return add_small(uint16_t(a), uint16_t(b), kHalf) | uint32_t(add_small(uint16_t(a >> 16), uint16_t(b >> 16), kHalf)) << 16;
    case Number::kBF16x2: return add_small(uint16_t(a), uint16_t(b), kBrain) | uint32_t(add_small(uint16_t(a >> 16), uint16_t(b >> 16), kBrain)) << 16;
    default: return a + b;
  }
}

uint16_t extreme_small(uint16_t a, uint16_t b, const Format& format, bool greater) {
  const double x = decode(a, format), y = decode(b, format);
  if (x != x) return b;
  if (y != y) return a;
  return (x < y) == greater ? b : a;
}

uint64_t extreme(uint64_t a, uint64_t b, Number number, int bytes, bool greater) {
  bool less = a < b;
  switch (number) {
    case Number::kSigned: less = bytes == 4 ? int32_t(a) < int32_t(b) : int64_t(a) < int64_t(b); break;
    case Number::kF32: less = std::bit_cast<float>(uint32_t(a)) < std::bit_cast<float>(uint32_t(b)); break;
    case Number::kF16: return extreme_small(uint16_t(a), uint16_t(b), kHalf, greater);
    case Number::kBF16: return extreme_small(uint16_t(a), uint16_t(b), kBrain, greater);
    case Number::kF16x2: return extreme_small(uint16_t(a), uint16_t(b), kHalf, greater) | uint32_t(extreme_small(uint16_t(a >> 16), uint16_t(b >> 16), kHalf, greater)) << 16;
    case Number::kBF16x2: return extreme_small(uint16_t(a), uint16_t(b), kBrain, greater) | uint32_t(extreme_small(uint16_t(a >> 16), uint16_t(b >> 16), kBrain, greater)) << 16;
    default: break;
  }
  return less == greater ? b : a;
}

// values: the old value if there is a result, then the operands.
Step atomic(Executor& x, const Op& op, uint32_t lanes) {
  const Detail& detail = *op.detail;
  const uint32_t bytes = detail.element_bytes, vector = uint32_t(detail.vector);
  alignas(64) uint64_t addresses[kLanes];
  const Extent* const extent = x.resolve(op, detail.addresses[0], lanes, bytes * vector, bytes * vector, addresses);
  settle(x, detail, lanes, addresses, bytes * vector);
  const bool result = op.source->parts[0] == "atom", swaps = Update(detail.variant) == Update::kCompareAndSwap;
  const size_t operand = result ? vector : 0;
  uint32_t wrote = 0;
  bool changes = false;
  const uint64_t keep = bytes >= 8 ? ~0ull : (1ull << (8 * bytes)) - 1;
  each_lane(lanes, [&](int lane) {
    for (uint32_t e = 0; e < vector; ++e) {
      char* const at = reinterpret_cast<char*>(addresses[lane]) + e * bytes;
      uint64_t old = 0;
      std::memcpy(&old, at, bytes);
      const uint64_t b = x.value(detail.values[operand + e], lane) & keep;
      const uint64_t c = swaps ? x.value(detail.values[operand + 1], lane) & keep : 0;
      const bool global = x.space_of(detail, addresses[lane]) != Space::kShared;
      const uint64_t next = updated(detail, global, old, b, c);
      std::memcpy(at, &next, bytes);
      if (!swaps || old == b) wrote |= 1u << lane;
      changes |= ((next ^ old) & keep) != 0;
      if (result) x.set(detail.values[e], lane, old);
    }
  });
  x.note_written(extent, wrote, addresses, bytes * vector);
  if (x.engine.observer) x.report_access(op, lanes, Operation::kAtomic, bytes * vector, vector, addresses, wrote);
  if (changes) {
    x.wrote_at(lanes, addresses);
    if (x.engine.signalled(*x.warp)) return Step::kYield;
  } else if (result) {
    x.polls(op, lanes, addresses, bytes * vector);
  }
  return Step::kNext;
}

// Of 16 bytes: exch and cas.
Step atomic_wide(Executor& x, const Op& op, uint32_t lanes) {
  const Detail& detail = *op.detail;
  alignas(64) uint64_t addresses[kLanes];
  const Extent* const extent = x.resolve(op, detail.addresses[0], lanes, 16, 16, addresses);
  settle(x, detail, lanes, addresses, 16);
  const bool swaps = Update(detail.variant) == Update::kCompareAndSwap;
  uint32_t wrote = 0;
  bool changes = false;
  each_lane(lanes, [&](int lane) {
    const auto lane_of = [&](size_t i) { return const_cast<char*>(x.at(detail.values[i])) + 16 * lane; };
    char* const at = reinterpret_cast<char*>(addresses[lane]);
    char old[16];
    std::memcpy(old, at, 16);
    if (!swaps || std::memcmp(old, lane_of(1), 16) == 0) {
      std::memcpy(at, lane_of(swaps ? 2 : 1), 16);
      wrote |= 1u << lane;
      changes |= std::memcmp(old, at, 16) != 0;
    }
    if (detail.values[0].present) std::memcpy(lane_of(0), old, 16);
  });
  x.note_written(extent, wrote, addresses, 16);
  if (x.engine.observer) x.report_access(op, lanes, Operation::kAtomic, 16, 1, addresses, wrote);
  if (changes) {
    x.wrote_at(lanes, addresses);
  } else {
    x.polls(op, lanes, addresses, 16);
  }
  return Step::kNext;
}

}  // namespace

uint64_t updated(const Detail& detail, bool global, uint64_t old, uint64_t b, uint64_t c) {
  const auto number = Number(detail.number);
  switch (Update(detail.variant)) {
    case Update::kAdd: return add(old, b, number, global);
    case Update::kMin: return extreme(old, b, number, detail.element_bytes, false);
    case Update::kMax: return extreme(old, b, number, detail.element_bytes, true);
    case Update::kAnd: return old & b;
    case Update::kOr: return old | b;
    case Update::kXor: return old ^ b;
    case Update::kExchange: return b;
    case Update::kCompareAndSwap: return old == b ? c : old;
    case Update::kIncrement: return old >= b ? 0 : old + 1;
    default: return old == 0 || old > b ? b : old - 1;
  }
}

void settle(Executor& x, const Detail& detail, uint32_t lanes, const uint64_t (&addresses)[kLanes], uint32_t bytes) {
  if (x.engine.store_buffers.empty()) return;
  if (detail.order == Order::kRelease || detail.order == Order::kAcquireRelease || detail.order == Order::kSequential) x.publish(detail.scope);
  each_lane(lanes, [&](int lane) { x.settle(addresses[lane], bytes); });
}

bool read_update(const Instruction& instruction, Detail& detail) {
  static constexpr std::pair<const char*, Update> kUpdates[] = {
      {"add", Update::kAdd}, {"min", Update::kMin}, {"max", Update::kMax}, {"and", Update::kAnd}, {"or", Update::kOr},
      {"xor", Update::kXor}, {"exch", Update::kExchange}, {"cas", Update::kCompareAndSwap}, {"inc", Update::kIncrement},
      {"dec", Update::kDecrement}};
  detail.variant = -1;
  for (const auto& [word, update] : kUpdates) {
    if (instruction.has(word)) detail.variant = int(update);
  }
  if (detail.variant < 0) return false;
  std::string_view type = instruction.parts.back();
  static constexpr std::pair<const char*, Number> kNumbers[] = {
      {"f32", Number::kF32}, {"f64", Number::kF64}, {"f16", Number::kF16}, {"bf16", Number::kBF16},
      {"f16x2", Number::kF16x2}, {"bf16x2", Number::kBF16x2}};
  detail.number = uint64_t(type[0] == 's' ? Number::kSigned : Number::kUnsigned);
  for (const auto& [word, number] : kNumbers) {
    if (instruction.has(word)) detail.number = uint64_t(number);
  }
  return true;
}

Handler find_atomic_handler(const Instruction& instruction, Detail& detail) {
  const auto name = instruction.parts[0];
  if ((name != "atom" && name != "red") || instruction.has("async")) return nullptr;
  if (!read_update(instruction, detail)) return nullptr;
  if (detail.order == Order::kWeak) detail.order = Order::kRelaxed;
  if (detail.scope == Scope::kNone) detail.scope = Scope::kGpu;
  return detail.element_bytes == 16 ? atomic_wide : atomic;
}

}  // namespace pkb::emulator
