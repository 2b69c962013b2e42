// wmma: loads, products and stores of matrices whose places in registers the manual leaves open. Here they are those of mma.sync
// for sums of 16 x 16, and in order of rows for all else.
#include <array>
#include <bit>
#include <string>
#include <utility>
#include <vector>

#include "executor.h"
#include "small_floats.h"

namespace pkb::emulator {
namespace wmma {
namespace {

enum class Kind : uint32_t { kF16, kBF16, kTF32, kF32, kS8, kU8, kS32, kF64 };

struct Type {
  std::string_view name;
  Kind kind;
  int bits;
};

constexpr Type kTypes[] = {{"f16", Kind::kF16, 16}, {"bf16", Kind::kBF16, 16}, {"tf32", Kind::kTF32, 32}, {"f32", Kind::kF32, 32},
                           {"s8", Kind::kS8, 8},    {"u8", Kind::kU8, 8},      {"s32", Kind::kS32, 32},   {"f64", Kind::kF64, 64}};

const Type* type_of(std::string_view name) {
  for (const Type& type : kTypes) {
    if (type.name == name) return &type;
  }
  return nullptr;
}

const Type& type_of(Kind kind) {
  for (const Type& type : kTypes) {
    if (type.kind == kind) return type;
  }
  return kTypes[0];
}

struct Shape {
  int m = 0, n = 0, k = 0;
};

Shape shape_of(const Instruction& instruction) {
  for (const auto part : instruction.parts) {
    Shape shape;
    if (std::sscanf(std::string(part).c_str(), "m%dn%dk%d", &shape.m, &shape.n, &shape.k) == 3) return shape;
  }
  return {};
}

// A matrix in registers of a warp.
struct Fragment {
  int rows, cols, bits;
  bool sums;  // c or d
  Kind kind;

  int in_register() const { return bits == 64 ? 1 : 32 / bits; }
  // Of a lane. Operands of f16 have eight, in which elements are there several times.
  int registers() const { return kind == Kind::kF16 && !sums ? 8 : rows * cols / in_register() / kLanes; }
  // The element of a lane's i-th place: row * cols + col.
  int element(int lane, int i) const {
    if (sums && rows == 16 && cols == 16) return (lane / 4 + 8 * (i / 2 % 2)) * 16 + 8 * (i / 4) + 2 * (lane % 4) + i % 2;
    return (lane * registers() * in_register() + i) % (rows * cols);
  }
};

Fragment fragment_of(char which, const Shape& shape, const Type& type) {
  return {which == 'b' ? shape.k : shape.m, which == 'a' ? shape.k : shape.n, type.bits, which == 'c' || which == 'd', type.kind};
}

uint64_t element_of(uint64_t word, int bits, int place) { return bits == 64 ? word : word >> (place * bits) & ((1ull << bits) - 1); }

// A fragment's elements in order of rows; its registers begin at `first` of the values.
std::vector<uint64_t> read_fragment(Executor& x, const Detail& detail, size_t first, const Fragment& fragment) {
  std::vector<uint64_t> elements(size_t(fragment.rows * fragment.cols));
  const int each = fragment.in_register();
  for (int lane = 0; lane < kLanes; ++lane) {
    for (int i = 0; i < fragment.registers() * each; ++i) {
      const uint64_t word = x.value(detail.values[first + size_t(i / each)], lane);
      elements[size_t(fragment.element(lane, i))] = element_of(word, fragment.bits, i % each);
    }
  }
  return elements;
}

void write_fragment(Executor& x, const Detail& detail, const Fragment& fragment, const std::vector<uint64_t>& elements) {
  const int each = fragment.in_register();
  for (int lane = 0; lane < kLanes; ++lane) {
    for (int r = 0; r < fragment.registers(); ++r) {
      uint64_t word = 0;
      for (int e = 0; e < each; ++e) word |= elements[size_t(fragment.element(lane, r * each + e))] << (e * fragment.bits % 64);
      x.set(detail.values[size_t(r)], lane, word);
    }
  }
}

// Rows of a fragment that depend on what nobody has written, by bits.
Unwritten unwritten_rows(const Executor& x, const Detail& detail, size_t first, const Fragment& fragment) {
  Unwritten rows;
  const int each = fragment.in_register();
  for (int i = 0; i < fragment.registers() * each && !x.warp->unwritten.empty(); ++i) {
    const UnwrittenRegister found = x.unwritten_at(detail.values[first + size_t(i / each)].ref, ~0u);
    each_lane(found.lanes, [&](int lane) { rows = {rows.lanes | 1u << (fragment.element(lane, i) / fragment.cols), found.load}; });
  }
  return rows;
}

// The registers of a result whose rows these are.
void mark_rows(Executor& x, const Detail& detail, const Fragment& fragment, const Unwritten& rows) {
  if (!rows.lanes && x.warp->unwritten.empty()) return;
  const int each = fragment.in_register();
  for (int r = 0; r < fragment.registers(); ++r) {
    uint32_t lanes = 0;
    for (int lane = 0; lane < kLanes; ++lane) {
      for (int e = 0; e < each; ++e) lanes |= (rows.lanes >> (fragment.element(lane, r * each + e) / fragment.cols) & 1) << lane;
    }
    const Value& value = detail.values[size_t(r)];
    x.set_unwritten(value.ref, uint32_t(value.bytes) * kLanes, ~0u, {0, lanes, rows.load});
  }
}

// detail.number: the type; variant: 1: a store, 2: by columns; element_bytes is that of the instruction's type.
Step move_fragment(Executor& x, const Op& op, uint32_t lanes) {
  if (x.gather(~0u, lanes, false) == 0) return Step::kBlocked;
  const Detail& detail = *op.detail;
  const Instruction& instruction = *op.source;
  const bool stores = detail.variant & 1, by_columns = detail.variant & 2;
  const Type& type = type_of(Kind(detail.number));
  const Fragment fragment = fragment_of(instruction.parts[2][0], shape_of(instruction), type);
  const int lines = by_columns ? fragment.cols : fragment.rows, along = by_columns ? fragment.rows : fragment.cols;
  const auto bytes = uint32_t(type.bits / 8), line_bytes = uint32_t(along) * bytes;
  const size_t registers = size_t(fragment.registers());
  const auto stride = detail.values.size() > registers ? int64_t(int32_t(x.value(detail.values[registers], 0))) : along;
  alignas(64) uint64_t addresses[kLanes];
  // All elements from the first to the last belong to one matrix, whose part this is.
  const auto extent = uint32_t(stride >= along ? (lines - 1) * stride + along : along) * bytes;
  x.resolve(op, detail.addresses[0], ~0u, extent, type.bits == 8 ? 4 : 8, addresses);
  const uint64_t base = addresses[0];
  x.settle(base, extent);
  for (int line = 0; line < lines; ++line) addresses[line] = base + uint64_t(line * stride) * bytes;
  std::vector<uint64_t> elements;
  if (stores) {
    elements = read_fragment(x, detail, 0, fragment);
  } else {
    elements.resize(size_t(fragment.rows * fragment.cols));
  }
  for (int line = 0; line < lines; ++line) {
    for (int i = 0; i < along; ++i) {
      uint64_t& element = elements[size_t(by_columns ? i * fragment.cols + line : line * fragment.cols + i)];
      char* const at = reinterpret_cast<char*>(addresses[line]) + uint32_t(i) * bytes;
      if (stores) {
        std::memcpy(at, &element, bytes);
      } else {
        std::memcpy(&element, at, bytes);
      }
    }
  }
  if (!stores) write_fragment(x, detail, fragment, elements);
  for (int line = 0; stores && line < lines; ++line) x.engine.memory.set_written(addresses[line], line_bytes);
  if (x.engine.observer) {
    const uint32_t some = lines == 32 ? ~0u : (1u << lines) - 1, piece = std::min(16u, line_bytes);
    for (uint32_t done = 0; done < line_bytes; done += piece) {
      x.report_access(op, some, stores ? Operation::kWrite : Operation::kRead, piece, piece / bytes, addresses, stores ? some : 0);
      for (int line = 0; line < lines; ++line) addresses[line] += piece;
    }
  }
  if (!stores) {
    mark_rows(x, detail, fragment, std::exchange(x.unwritten_lines, {}));
    return Step::kNext;
  }
  const Unwritten rows = unwritten_rows(x, detail, 0, fragment);
  if (rows.lanes && x.space_of(detail, base) != Space::kShared) x.use_unwritten({0, rows.lanes, rows.load});
  each_lane(rows.lanes, [&](int row) {
    for (int col = 0; col < fragment.cols && x.space_of(detail, base) == Space::kShared; ++col) {
      x.engine.observer->set_initialised(base + uint64_t(by_columns ? col * stride + row : row * stride + col) * bytes, bytes, false);
    }
  });
  x.wrote_outside();
  return Step::kNext;
}

double number(uint64_t bits, Kind kind) {
  switch (kind) {
    case Kind::kF16: return half_to_float(uint16_t(bits));
    case Kind::kBF16: return brain_to_float(uint16_t(bits));
    case Kind::kTF32: return std::bit_cast<float>(uint32_t(bits) & 0xffffe000u);
    case Kind::kF32: return std::bit_cast<float>(uint32_t(bits));
    case Kind::kS8: return int8_t(bits);
    case Kind::kU8: return uint8_t(bits);
    case Kind::kS32: return int32_t(bits);
    default: return std::bit_cast<double>(bits);
  }
}

uint64_t bits_of(double value, Kind kind) {
  if (kind == Kind::kF16) return float_to_half(float(value));
  if (kind == Kind::kF64) return std::bit_cast<uint64_t>(value);
  return std::bit_cast<uint32_t>(float(value));
}

// detail.number: types of d, a, b and c, 8 bits each.
Step multiply_fragments(Executor& x, const Op& op, uint32_t lanes) {
  if (x.gather(~0u, lanes, false) == 0) return Step::kBlocked;
  const Detail& detail = *op.detail;
  const Shape shape = shape_of(*op.source);
  const auto type = [&](int i) { return Kind(detail.number >> (8 * i) & 0xff); };
  const std::array<Fragment, 4> of{fragment_of('d', shape, type_of(type(0))), fragment_of('a', shape, type_of(type(1))),
                                   fragment_of('b', shape, type_of(type(2))), fragment_of('c', shape, type_of(type(3)))};
  size_t first = size_t(of[0].registers());
  const auto a = read_fragment(x, detail, first, of[1]);
  const auto b = read_fragment(x, detail, first += size_t(of[1].registers()), of[2]);
  const auto c = read_fragment(x, detail, first + size_t(of[2].registers()), of[3]);
  std::vector<uint64_t> d(c.size());
  for (int row = 0; row < shape.m; ++row) {
    for (int col = 0; col < shape.n; ++col) {
      const auto at = size_t(row * shape.n + col);
      double real = number(c[at], type(3));
      uint32_t whole = uint32_t(c[at]);
      for (int k = 0; k < shape.k; ++k) {
        const double left = number(a[size_t(row * shape.k + k)], type(1)), right = number(b[size_t(k * shape.n + col)], type(2));
        if (type(0) == Kind::kS32) {
          whole += uint32_t(int32_t(left * right));
        } else {
          real = type(0) == Kind::kF64 ? __builtin_fma(left, right, real) : double(float(real + left * right));
        }
      }
      d[at] = type(0) == Kind::kS32 ? whole : bits_of(real, type(0));
    }
  }
  const size_t at_a = size_t(of[0].registers()), at_b = at_a + size_t(of[1].registers());
  const Unwritten left = unwritten_rows(x, detail, at_a, of[1]), right = unwritten_rows(x, detail, at_b, of[2]);
  const Unwritten before = unwritten_rows(x, detail, at_b + size_t(of[2].registers()), of[3]);
  x.use_unwritten({0, right.lanes, right.load});  // each row of the product takes all of it
  write_fragment(x, detail, of[0], d);
  mark_rows(x, detail, of[0], {left.lanes | before.lanes, left.lanes ? left.load : before.load});
  return Step::kNext;
}

bool is_known(const Shape& shape) {
  return shape.m * shape.n * shape.k > 0 && shape.m <= 32 && shape.n <= 32 && shape.k <= 16;
}

Handler find_handler(const Instruction& instruction, Detail& detail) {
  const auto& parts = instruction.parts;
  if (parts[0] != "wmma" || parts.size() < 6 || !is_known(shape_of(instruction))) return nullptr;
  if (parts[1] == "load" || parts[1] == "store") {
    const Type* const type = type_of(parts.back());
    if (!type) return nullptr;
    detail.number = uint64_t(type->kind);
    detail.variant = (parts[1] == "store" ? 1 : 0) | (instruction.has("col") ? 2 : 0);
    return move_fragment;
  }
  if (parts[1] != "mma" || instruction.has("satfinite") || instruction.has("popc")) return nullptr;
  // ...d.a.b.c; .d.c alone for operands of f16
  size_t shape_at = 0;
  while (shape_at < parts.size() && !(parts[shape_at].size() > 5 && parts[shape_at][0] == 'm' &&
                                      parts[shape_at].find('k') != std::string_view::npos))
    ++shape_at;
  std::vector<const Type*> types;
  for (size_t i = shape_at + 1; i < parts.size(); ++i) {
    const Type* const type = type_of(parts[i]);
    if (type) types.push_back(type);
  }
  if (types.size() == 2) types = {types[0], type_of("f16"), type_of("f16"), types[1]};
  if (types.size() != 4) return nullptr;
  detail.number = 0;
  for (size_t i = 0; i < 4; ++i) detail.number |= uint64_t(types[i]->kind) << (8 * i);
  return multiply_fragments;
}

}  // namespace
}  // namespace wmma

Handler find_wmma_handler(const Instruction& instruction, Detail& detail) { return wmma::find_handler(instruction, detail); }

}  // namespace pkb::emulator
