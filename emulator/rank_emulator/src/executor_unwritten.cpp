// What nobody has written, on its way through registers: of shared memory, where threads load words that they then throw away,
// such as rows beyond the end of a tile. It is an error where a branch, an address, memory of the GPU or another lane gets it.
#include <algorithm>

#include "executor.h"

namespace pkb::emulator {
namespace {

uint32_t bytes_of(const Value& value) { return value.bytes ? value.bytes * kLanes : 4; }

// Values of the first operand, which are the result.
size_t results_of(const Instruction& instruction) {
  static constexpr std::string_view kWithout[] = {"bar", "barrier", "bra", "brx", "call", "exit", "nanosleep", "red", "ret", "st", "trap"};
  if (instruction.operands.empty() || std::find(std::begin(kWithout), std::end(kWithout), instruction.parts[0]) != std::end(kWithout)) return 0;
  const Operand& first = instruction.operands[0];
  return first.kind == Operand::kAddress ? 0 : std::max<size_t>(first.elements.size(), 1);
}

void join(UnwrittenRegister& to, const UnwrittenRegister& other) {
  if (other.lanes) to = {0, to.lanes | other.lanes, other.load};
}

}  // namespace

UnwrittenRegister Executor::unwritten_at(const Ref& ref, uint32_t lanes) const {
  if (ref.base != kFrame) return {};
  const auto found = warp->unwritten.find(split->frame_offset + ref.offset);
  return found == warp->unwritten.end() ? UnwrittenRegister{} : UnwrittenRegister{0, found->second.lanes & lanes, found->second.load};
}

void Executor::set_unwritten(const Ref& ref, uint32_t bytes, uint32_t lanes, const UnwrittenRegister& of) {
  auto& all = warp->unwritten;
  const uint32_t begin = split->frame_offset + ref.offset, end = begin + bytes;
  auto at = all.lower_bound(begin);
  if (at != all.begin() && std::prev(at)->first + std::prev(at)->second.bytes > begin) --at;
  while (at != all.end() && at->first < end) {
    at->second.lanes &= ~lanes;
    at = at->second.lanes ? std::next(at) : all.erase(at);
  }
  if (!(of.lanes & lanes)) return;
  UnwrittenRegister& here = all[begin];
  here = {bytes, here.lanes | (of.lanes & lanes), of.load};
}

[[gnu::noinline]] void Executor::follow_unwritten(const Op& op) {
  uint32_t lanes = split->lanes;
  UnwrittenRegister guard;
  if (op.guard) {
    guard = unwritten_at({op.guard_offset, kFrame}, lanes);
    uint32_t predicate;
    std::memcpy(&predicate, bases[kFrame] + op.guard_offset, 4);
    lanes &= op.guard == 1 ? predicate : ~predicate;
  }
  const Instruction& instruction = *op.source;
  const auto name = instruction.parts[0];
  UnwrittenRegister result = guard;
  if (op.form != Form::kHandler) {
    const size_t operands = instruction.operands.size() - 1;
    if (name == "selp") {
      uint32_t chosen;
      std::memcpy(&chosen, at(op.c), 4);
      join(result, unwritten_at(op.a, lanes & chosen));
      join(result, unwritten_at(op.b, lanes & ~chosen));
    } else {
      join(result, unwritten_at(op.a, lanes));
      if (operands > 1) join(result, unwritten_at(op.b, lanes));
    }
    if (operands > 2) join(result, unwritten_at(op.c, lanes));
    return set_unwritten(op.d, op.form == Form::kCompare ? 4 : uint32_t(op.result_bytes) * kLanes, lanes | guard.lanes, result);
  }
  const Detail& detail = *op.detail;
  if (name == "mma" && !guard.lanes && instruction.parts[3].starts_with("m16")) return follow_product(op, lanes);
  if (!is_arithmetic(instruction)) use_unwritten(guard);
  if (name == "wmma" || name == "wgmma") return;  // it follows rows of its matrices itself
  for (const Address& address : detail.addresses) {
    if (address.mode == Address::kRegister64 || address.mode == Address::kRegister32) use_unwritten(unwritten_at(address.ref, lanes));
  }
  if (name == "st") return;  // `store_unwritten` follows what is stored
  const size_t results = std::min(results_of(instruction), detail.values.size());
  uint32_t decided = 0;  // lanes in which one operand of a predicate's `and` or `or` makes the other unimportant
  const bool compares = name == "setp" && instruction.operands.size() == 4;
  const bool is_and = name == "and" || (compares && instruction.has("and"));
  const bool joins = compares ? is_and || instruction.has("or") : (is_and || name == "or") && instruction.parts.back() == "pred";
  for (size_t i = compares ? detail.values.size() - 1 : results; joins && i < detail.values.size(); ++i) {
    const Value& value = detail.values[i];
    uint32_t bits;
    std::memcpy(&bits, at(value), 4);
    if (value.negated) bits = ~bits;
    decided |= (is_and ? ~bits : bits) & ~unwritten_at(value.ref, ~0u).lanes;
  }
  for (size_t i = results; i < detail.values.size(); ++i) join(result, unwritten_at(detail.values[i].ref, lanes & ~decided));
  if (!is_arithmetic(instruction)) {
    use_unwritten(result);
    result = {};
  }
  for (size_t i = 0; i < results; ++i) {
    if (detail.values[i].present) set_unwritten(detail.values[i].ref, bytes_of(detail.values[i]), lanes | guard.lanes, result);
  }
}

// D = A * B + C of 16 rows and 8 columns: four lanes share row n and row n + 8, in registers of A in turn, in D's one half each.
void Executor::follow_product(const Op& op, uint32_t lanes) {
  const auto& operands = op.source->operands;
  const auto& values = op.detail->values;
  const size_t sums = results_of(*op.source);
  const size_t left = operands.size() > 1 ? std::max<size_t>(operands[1].elements.size(), 1) : 0;
  for (size_t i = sums + left; i < values.size() - std::min(values.size(), sums); ++i) use_unwritten(unwritten_at(values[i].ref, lanes));
  for (size_t half = 0; half < 2; ++half) {
    UnwrittenRegister rows;
    for (size_t i = half; i < left; i += 2) join(rows, unwritten_at(values[sums + i].ref, lanes));
    uint32_t quads = (rows.lanes | rows.lanes >> 1 | rows.lanes >> 2 | rows.lanes >> 3) & 0x11111111u;
    quads *= 15;
    for (size_t i = half * sums / 2; i < (half + 1) * sums / 2; ++i) {
      UnwrittenRegister sum{0, quads, rows.load};
      join(sum, unwritten_at(values[values.size() - sums + i].ref, lanes));
      set_unwritten(values[i].ref, bytes_of(values[i]), lanes, sum);
    }
  }
}

void Executor::load_unwritten(const Op& op, const Unwritten& found) {
  const Detail& detail = *op.detail;
  if (op.source->parts[0] == "wmma") {
    unwritten_lines = {unwritten_lines.lanes | found.lanes, found.load};
    return;
  }
  const bool is_matrix = op.source->parts[0] == "ldmatrix";
  for (size_t i = 0; i < detail.values.size(); ++i) {
    uint32_t lanes = found.lanes;
    if (is_matrix) {  // lane 8 * i + row has the address of a row, which goes to four lanes
      lanes = 0;
      for (uint32_t row = 0; row < 8; ++row) lanes |= (found.lanes >> (8 * i + row) & 1) * (15u << (4 * row));
    }
    if (detail.values[i].present) set_unwritten(detail.values[i].ref, bytes_of(detail.values[i]), lanes, {0, lanes, found.load});
  }
}

void Executor::store_unwritten(const Op& op, uint32_t lanes, uint32_t bytes, Space space, const uint64_t (&addresses)[kLanes]) {
  if (op.source->parts[0] != "st") return;
  UnwrittenRegister stored;
  for (const Value& value : op.detail->values) join(stored, unwritten_at(value.ref, lanes));
  if (space == Space::kShared) {
    each_lane(stored.lanes, [&](int lane) { engine.observer->set_initialised(addresses[lane], bytes, false); });
  } else if (space == Space::kLocal) {
    each_lane(lanes & ~stored.lanes, [&](int lane) { warp->unwritten_local.erase(addresses[lane]); });
    each_lane(stored.lanes, [&](int lane) { warp->unwritten_local[addresses[lane]] = stored.load; });
  } else {
    use_unwritten(stored);
  }
}

void Executor::load_local(uint32_t lanes, const uint64_t (&addresses)[kLanes], Unwritten& found) const {
  each_lane(lanes, [&](int lane) {
    const auto at = warp->unwritten_local.find(addresses[lane]);
    if (at == warp->unwritten_local.end()) return;
    found.lanes |= 1u << lane;
    found.load = at->second;
  });
}

}  // namespace pkb::emulator
