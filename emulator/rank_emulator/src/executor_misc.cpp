// Instructions of several results or kinds of operands: moves of parts, addresses and clocks; predicates; carries; fields.
#include <bit>
#include <cmath>

#include "executor.h"

namespace pkb::emulator {
namespace {

// variant of mov
enum Source { kParts, kWhole, kClock, kTime, kFrameAddress, kParameterAddress, kZero };

uint32_t width(const Value& value) { return value.bytes; }

// mov.b64 d, {a, b}: values: d, then the parts from the lowest on.
Step pack(Executor& x, const Op& op, uint32_t lanes) {
  const auto& values = op.detail->values;
  const uint32_t whole = width(values[0]), part = whole / uint32_t(values.size() - 1);
  char* const to = const_cast<char*>(x.at(values[0]));
  each_lane(lanes, [&](int lane) {
    char bytes[16];
    for (size_t i = 1; i < values.size(); ++i) {
      const uint64_t bits = x.value(values[i], lane);
      std::memcpy(bytes + (i - 1) * part, &bits, part);
    }
    std::memcpy(to + whole * uint32_t(lane), bytes, whole);
  });
  return Step::kNext;
}

// mov.b64 {a, b}, d with registers of the parts' size. A part may lie where the whole does, so each lane is read before it
// is written.
template <class Whole, class Part>
Step unpack_pair(Executor& x, const Op& op, uint32_t lanes) {
  const Value* const values = op.detail->values.data();
  char *const low = const_cast<char*>(x.at(values[0])), *const high = const_cast<char*>(x.at(values[1]));
  const char* const from = x.at(values[2]);
  each_lane(lanes, [&](int lane) {
    Whole whole;
    std::memcpy(&whole, from + lane * int(sizeof(Whole)), sizeof(Whole));
    const Part parts[2] = {Part(whole), Part(whole >> (8 * sizeof(Part)))};
    std::memcpy(low + lane * int(sizeof(Part)), &parts[0], sizeof(Part));
    std::memcpy(high + lane * int(sizeof(Part)), &parts[1], sizeof(Part));
  });
  return Step::kNext;
}

// The same of any: values: the parts, then the whole.
Step unpack(Executor& x, const Op& op, uint32_t lanes) {
  const auto& values = op.detail->values;
  const size_t parts = values.size() - 1;
  const uint32_t whole = uint32_t(op.detail->element_bytes), part = whole / uint32_t(parts);
  each_lane(lanes, [&](int lane) {
    char bytes[16] = {};
    std::memcpy(bytes, x.at(values[parts]) + values[parts].bytes * lane, std::min<uint32_t>(whole, values[parts].bytes));
    for (size_t i = 0; i < parts; ++i) {
      uint64_t bits = 0;
      std::memcpy(&bits, bytes + i * part, part);
      x.set(values[i], lane, bits);
    }
  });
  return Step::kNext;
}

Step move_special(Executor& x, const Op& op, uint32_t lanes) {
  const Detail& detail = *op.detail;
  const uint64_t time = detail.variant == kTime || detail.variant == kClock ? x.read_clock(op) : 0;
  each_lane(lanes, [&](int lane) {
    uint64_t bits = time;
    if (detail.variant == kFrameAddress) {
      bits = reinterpret_cast<uint64_t>(x.local_memory(lane, x.split->local_offset)) + detail.number;
    } else if (detail.variant == kParameterAddress) {
      bits = reinterpret_cast<uint64_t>(x.grid->parameters.get()) + detail.number;
    }
    x.set(detail.values[0], lane, bits);
  });
  return detail.variant == kTime || detail.variant == kClock ? Step::kYield : Step::kNext;
}

// and, or, xor, not, mov of predicates.
Step predicate_logic(Executor& x, const Op& op, uint32_t lanes) {
  const auto& values = op.detail->values;
  const uint32_t a = x.mask(values[1]), b = values.size() > 2 ? x.mask(values[2]) : 0;
  const char kind = op.source->parts[0][0];
  const uint32_t result = kind == 'a' ? a & b : kind == 'o' ? a | b : kind == 'x' ? a ^ b : kind == 'n' ? ~a : a;
  x.set_mask(values[0], result, lanes);
  return Step::kNext;
}

uint32_t combined(const Op& op, uint32_t bits, uint32_t with) {
  const Instruction& instruction = *op.source;
  return instruction.has("and") ? bits & with : instruction.has("or") ? bits | with : bits ^ with;
}

// The halves of two operands, from value `first` on, and which lanes' compare so.
struct HalvesCompared {
  uint32_t yes[2];
};
HalvesCompared halves_compared(Executor& x, const Op& op, size_t first) {
  const auto& values = op.detail->values;
  const auto run = reinterpret_cast<CompareFunction>(op.a.offset | uint64_t(op.a.base) << 32);
  alignas(64) uint16_t parts[2][2][kLanes];
  for (int lane = 0; lane < kLanes; ++lane) {
    for (size_t i = 0; i < 2; ++i) {
      const uint64_t pair = x.value(values[first + i], lane);
      parts[0][i][lane] = uint16_t(pair);
      parts[1][i][lane] = uint16_t(pair >> 16);
    }
  }
  return {{run(parts[0][0], parts[0][1]), run(parts[1][0], parts[1][1])}};
}

// setp of two halves: values: the result of the lower one, that of the upper one, a, b, c if there is one.
Step compare_halves(Executor& x, const Op& op, uint32_t lanes) {
  const auto& values = op.detail->values;
  const HalvesCompared compared = halves_compared(x, op, 2);
  const uint32_t with = values.size() > 4 ? x.mask(values[4]) : 0;
  for (size_t half = 0; half < 2; ++half) {
    const uint32_t yes = compared.yes[half];
    x.set_mask(values[half], values.size() > 4 ? combined(op, yes, with) : yes, lanes);
  }
  return Step::kNext;
}

// setp with a second result or a predicate: values: p, q if there is one, a, b, c if there is one.
Step compare(Executor& x, const Op& op, uint32_t lanes) {
  const Detail& detail = *op.detail;
  const auto& values = detail.values;
  const size_t a = detail.number;
  const auto run = reinterpret_cast<CompareFunction>(op.a.offset | uint64_t(op.a.base) << 32);
  uint32_t yes = run(x.at(values[a]), x.at(values[a + 1])), no = ~yes;
  if (values.size() > a + 2) {
    const uint32_t c = x.mask(values[a + 2]);
    yes = combined(op, yes, c);
    no = combined(op, no, c);
  }
  x.set_mask(values[0], yes, lanes);
  if (a == 2) x.set_mask(values[1], no, lanes);
  return Step::kNext;
}

// set.cmp.dtype.stype d, a, b: all ones, or 1.0, of the destination's type.
Step set_by_comparison(Executor& x, const Op& op, uint32_t lanes) {
  const Detail& detail = *op.detail;
  const auto run = reinterpret_cast<CompareFunction>(op.a.offset | uint64_t(op.a.base) << 32);
  uint32_t yes = run(x.at(detail.values[1]), x.at(detail.values[2]));
  if (detail.values.size() > 3) yes = combined(op, yes, x.mask(detail.values[3]));
  each_lane(lanes, [&](int lane) { x.set(detail.values[0], lane, yes >> lane & 1 ? uint32_t(detail.number) : 0); });
  return Step::kNext;
}

// The same of two halves, each of which has its own half of d.
Step set_halves_by_comparison(Executor& x, const Op& op, uint32_t lanes) {
  const Detail& detail = *op.detail;
  HalvesCompared compared = halves_compared(x, op, 1);
  if (detail.values.size() > 3) {
    const uint32_t with = x.mask(detail.values[3]);
    for (uint32_t& yes : compared.yes) yes = combined(op, yes, with);
  }
  const auto one = uint32_t(detail.number) & 0xffffu;
  each_lane(lanes, [&](int lane) {
    const uint32_t low = compared.yes[0] >> lane & 1 ? one : 0, high = compared.yes[1] >> lane & 1 ? one : 0;
    x.set(detail.values[0], lane, high << 16 | low);
  });
  return Step::kNext;
}

// What `set` sets where it is true.
uint32_t true_value(std::string_view type) {
  if (type == "f32") return 0x3f800000u;
  if (type == "f16" || type == "f16x2") return 0x3c00u;
  if (type == "bf16" || type == "bf16x2") return 0x3f80u;
  return 0xffffffffu;
}

// add.cc, addc, sub.cc, subc, mad.cc, madc, of 32 or 64 bits. The carry of a subtraction is its borrow.
Step with_carry(Executor& x, const Op& op, uint32_t lanes) {
  const Detail& detail = *op.detail;
  const auto& values = detail.values;
  const auto name = op.source->parts[0];
  const bool takes = name.ends_with('c'), gives = op.source->has("cc");
  const int bits = 8 * detail.element_bytes;
  const unsigned __int128 keep = bits == 64 ? (unsigned __int128)(~0ull) : (1ull << bits) - 1;
  uint32_t carry = 0;
  each_lane(lanes, [&](int lane) {
    unsigned __int128 a = x.value(values[1], lane) & keep, b = x.value(values[2], lane) & keep;
    const uint32_t in = takes ? x.warp->carry >> lane & 1 : 0;
    if (name.starts_with("mad")) {
      unsigned __int128 product = a * b;
      if (op.source->has("hi")) {
        const bool is_signed = detail.is_signed;
        product = is_signed ? (unsigned __int128)((__int128(int64_t(uint64_t(a) << (64 - bits)) >> (64 - bits)) * __int128(int64_t(uint64_t(b) << (64 - bits)) >> (64 - bits))) >> bits) : product >> bits;
      }
      a = product & keep;
      b = x.value(values[3], lane) & keep;
    }
    const bool subtracts = name.starts_with("sub");
    const unsigned __int128 sum = subtracts ? a - b - in : a + b + in;
    carry |= uint32_t((sum >> bits & 1) != 0) << lane;
    x.set(values[0], lane, uint64_t(sum & keep));
  });
  if (gives) x.warp->carry = (x.warp->carry & ~lanes) | carry;
  return Step::kNext;
}

Step insert_field(Executor& x, const Op& op, uint32_t lanes) {
  const auto& values = op.detail->values;
  const uint32_t bits = 8u * op.detail->element_bytes;
  // Of 64 bits ptxas makes shifts, for which all bits of both count.
  const uint32_t counts = bits == 32 ? 0xff : ~0u;
  each_lane(lanes, [&](int lane) {
    const uint64_t a = x.value(values[1], lane), b = x.value(values[2], lane);
    const auto position = uint32_t(x.value(values[3], lane)) & counts, length = uint32_t(x.value(values[4], lane)) & counts;
    const uint64_t ones = length >= 64 ? ~0ull : (1ull << length) - 1, field = position >= bits ? 0 : ones << position;
    x.set(values[0], lane, (b & ~field) | (position >= bits ? 0 : a << position & field));
  });
  return Step::kNext;
}

Step logic_of_three(Executor& x, const Op& op, uint32_t lanes) {
  const auto& values = op.detail->values;
  const auto table = uint32_t(x.value(values[4], 0));
  each_lane(lanes, [&](int lane) {
    const auto a = uint32_t(x.value(values[1], lane)), b = uint32_t(x.value(values[2], lane)), c = uint32_t(x.value(values[3], lane));
    uint32_t result = 0;
    for (uint32_t i = 0; i < 8; ++i) {
      if (table >> i & 1) result |= (i & 4 ? a : ~a) & (i & 2 ? b : ~b) & (i & 1 ? c : ~c);
    }
    x.set(values[0], lane, result);
  });
  return Step::kNext;
}

// dp4a: products of four bytes, summed; dp2a: of two halves and two bytes.
Step dot_product(Executor& x, const Op& op, uint32_t lanes) {
  const auto& values = op.detail->values;
  const auto& parts = op.source->parts;
  const bool signed_a = parts[parts.size() - 2][0] == 's', signed_b = parts.back()[0] == 's', four = parts[0] == "dp4a";
  const int shift = op.source->has("hi") ? 16 : 0;
  each_lane(lanes, [&](int lane) {
    const auto a = uint32_t(x.value(values[1], lane)), b = uint32_t(x.value(values[2], lane));
    auto sum = uint32_t(x.value(values[3], lane));
    for (int i = 0; i < (four ? 4 : 2); ++i) {
      const uint32_t left = four ? a >> (8 * i) & 0xff : a >> (16 * i) & 0xffff;
      const uint32_t right = b >> (8 * i + (four ? 0 : shift)) & 0xff;
      const int32_t p = four ? (signed_a ? int8_t(left) : int32_t(left)) : (signed_a ? int16_t(left) : int32_t(left));
      sum += uint32_t(p * (signed_b ? int8_t(right) : int32_t(right)));
    }
    x.set(values[0], lane, sum);
  });
  return Step::kNext;
}

// slct d, a, b, c: a where c is at least 0.
Step select_by_sign(Executor& x, const Op& op, uint32_t lanes) {
  const auto& values = op.detail->values;
  const bool real = op.source->parts.back() == "f32", flushes = op.source->has("ftz");
  each_lane(lanes, [&](int lane) {
    const auto c = uint32_t(x.value(values[3], lane));
    const bool vanishes = flushes && (c & 0x7f800000u) == 0;
    const bool first = vanishes || (real ? std::bit_cast<float>(c) >= 0 : int32_t(c) >= 0);
    x.set(values[0], lane, x.value(values[first ? 1 : 2], lane));
  });
  return Step::kNext;
}

Step test_property(Executor& x, const Op& op, uint32_t lanes) {
  const auto& values = op.detail->values;
  const auto property = op.source->parts[1];
  uint32_t mask = 0;
  each_lane(lanes, [&](int lane) {
    const uint64_t bits = x.value(values[1], lane);
    const bool single = op.source->parts.back() == "f32";
    const int kind = single ? std::fpclassify(std::bit_cast<float>(uint32_t(bits))) : std::fpclassify(std::bit_cast<double>(bits));
    bool yes = false;
    if (property == "finite") yes = kind != FP_NAN && kind != FP_INFINITE;
    if (property == "infinite") yes = kind == FP_INFINITE;
    if (property == "number") yes = kind != FP_NAN;
    if (property == "notanumber") yes = kind == FP_NAN;
    if (property == "normal") yes = kind == FP_NORMAL || kind == FP_ZERO;
    if (property == "subnormal") yes = kind == FP_SUBNORMAL;
    mask |= uint32_t(yes) << lane;
  });
  x.set_mask(values[0], mask, lanes);
  return Step::kNext;
}

Handler find_move(const Instruction& instruction, Detail& detail) {
  const auto& operands = instruction.operands;
  if (operands.size() != 2) return nullptr;
  if (operands[1].kind == Operand::kVector) return pack;
  if (operands[0].kind == Operand::kVector) {
    const auto& values = detail.values;
    const auto is_pair = [&](int whole) {
      return values.size() == 3 && detail.element_bytes == whole && values[2].bytes == whole &&
             std::all_of(values.begin(), values.begin() + 2, [&](const Value& value) { return value.present && value.bytes == whole / 2; });
    };
    return is_pair(8) ? unpack_pair<uint64_t, uint32_t> : is_pair(4) ? unpack_pair<uint32_t, uint16_t> : unpack;
  }
  if (operands[1].kind == Operand::kSpecial) {
    const auto name = operands[1].name;
    const bool time = name == "%globaltimer" || name == "%globaltimer_lo", ticks = name == "%clock" || name == "%clock64";
    detail.variant = time ? kTime : ticks ? kClock : kZero;
    return time || ticks || name == "%gridid" || name == "%globaltimer_hi" || name == "%clock_hi" ? move_special : nullptr;
  }
  if (detail.variant == kFrameAddress || detail.variant == kParameterAddress) return move_special;
  return nullptr;
}

}  // namespace

Handler find_misc_handler(const Instruction& instruction, Detail& detail) {
  const auto name = instruction.parts[0], type = instruction.parts.back();
  const bool logic = name == "and" || name == "or" || name == "xor" || name == "not" || name == "mov";
  if (logic && type == "pred") return predicate_logic;
  if (name == "mov") return find_move(instruction, detail);
  if (name == "setp" || name == "set") {
    const bool pair = instruction.operands[0].kind == Operand::kPair;
    detail.number = pair ? 2 : 1;
    if (name == "set") {
      detail.number = true_value(instruction.parts[instruction.parts.size() - 2]);
      return type.ends_with("x2") ? set_halves_by_comparison : set_by_comparison;
    }
    if (type.ends_with("x2")) return pair ? compare_halves : nullptr;
    return compare;
  }
  if (instruction.has("cc") || name == "addc" || name == "subc" || name == "madc") return with_carry;
  if (name == "bfi") return insert_field;
  if (name == "lop3") return logic_of_three;
  if (name == "dp4a" || name == "dp2a") return dot_product;
  if (name == "slct") return select_by_sign;
  if (name == "testp") return test_property;
  return nullptr;
}

}  // namespace pkb::emulator
