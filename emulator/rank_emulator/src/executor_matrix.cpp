// mma.sync, ldmatrix, stmatrix, movmatrix.
#include <bit>
#include <string>

#include "executor.h"
#include "matrix_tiles.h"
#include "small_floats.h"

namespace pkb::emulator {
namespace {

enum class Element : uint64_t { kF16, kBF16, kTF32, kE4M3, kE5M2, kS8, kU8, kB1, kF64 };

int bits_of(Element element) {
  switch (element) {
    case Element::kF16:
    case Element::kBF16: return 16;
    case Element::kTF32: return 32;
    case Element::kB1: return 1;
    case Element::kF64: return 64;
    default: return 8;
  }
}

// Of types that are not 16 bits wide.
float number(uint32_t bits, Element element) {
  switch (element) {
    case Element::kTF32: return std::bit_cast<float>(bits & 0xffffe000u);
    case Element::kE4M3: return float(decode(bits & 0xff, kE4m3));
    case Element::kE5M2: return float(decode(bits & 0xff, kE5m2));
    case Element::kS8: return int8_t(bits);
    default: return uint8_t(bits);
  }
}

// Shape and types of an mma: m x n x k.
struct Shape {
  int m = 0, n = 0, k = 0;
};

Shape shape_of(const Instruction& instruction) {
  for (const auto part : instruction.parts) {
    if (part.size() < 6 || part[0] != 'm' || part.find('n') == std::string_view::npos) continue;
    const std::string text(part);
    Shape shape;
    if (std::sscanf(text.c_str(), "m%dn%dk%d", &shape.m, &shape.n, &shape.k) == 3) return shape;
  }
  return {};
}

bool element_of(std::string_view name, Element& element) {
  static constexpr std::pair<std::string_view, Element> kNames[] = {
      {"f16", Element::kF16}, {"bf16", Element::kBF16}, {"tf32", Element::kTF32}, {"e4m3", Element::kE4M3}, {"e5m2", Element::kE5M2},
      {"s8", Element::kS8},   {"u8", Element::kU8},     {"b1", Element::kB1},     {"f64", Element::kF64}};
  for (const auto& [word, found] : kNames) {
    if (word == name) {
      element = found;
      return true;
    }
  }
  return false;
}

constexpr int kRows = 16, kColumns = 8, kMaxDepth = 32;
constexpr int kMaxWords = 8;  // of 32 bits along k

// Operands of an mma in the order of rows of a and of columns of b: words, then elements.
struct Words {
  uint32_t a[kRows][kMaxWords], b[kColumns][kMaxWords];
};

// The elements of 4 or 8 words.
void to_numbers(float* to, const uint32_t* words, int count, Element type) {
  if (type == Element::kF16 || type == Element::kBF16) {
    for (int w = 0; w < count; w += 4) (type == Element::kF16 ? halves_to_floats : brains_to_floats)(to + 2 * w, words + w);
    return;
  }
  const int bits = bits_of(type);
  for (int w = 0; w < count; ++w) {
    for (int shift = 0; shift < 32; shift += bits) *to++ = number(words[w] >> shift, type);
  }
}

// Sums of single bits that both operands have, or one of the two.
void add_bits(const Words& words, int count, bool exclusive, uint32_t (&sums)[kRows][kColumns]) {
  for (int row = 0; row < kRows; ++row) {
    for (int col = 0; col < kColumns; ++col) {
      for (int w = 0; w < count; ++w) {
        const uint32_t left = words.a[row][w], right = words.b[col][w];
        sums[row][col] += uint32_t(std::popcount(exclusive ? left ^ right : left & right));
      }
    }
  }
}

// One product of a warp: sums in float, or exactly in integers.
// values: registers of d, a, b, c, as many as the shape has. number: types of a and b, 8 bits each, then k.
Step multiply(Executor& x, const Op& op, uint32_t lanes) {
  if (x.gather(~0u, lanes, false) == 0) return Step::kBlocked;
  const Detail& detail = *op.detail;
  const auto type_a = Element(detail.number & 0xff), type_b = Element(detail.number >> 8 & 0xff);
  const int depth = int(detail.number >> 16), bits = bits_of(type_a), each = 32 / bits, count = depth / each;
  const bool half_sums = detail.variant == 1, integers = detail.variant == 2;
  const int registers_d = half_sums ? 2 : 4, registers_a = count / 2, registers_b = count / 4;
  const Value* const values = detail.values.data();
  Words words;
  // Lanes lie in rows of four.
  const auto read = [&](const Value& value, uint32_t (*rows)[kMaxWords], int first) {
    const char* const from = x.at(value);
    for (int lane = 0; lane < kLanes; ++lane) std::memcpy(&rows[lane / 4][first + lane % 4], from + value.bytes * lane, 4);
  };
  for (int i = 0; i < registers_a; ++i) read(values[registers_d + i], words.a + 8 * (i % 2), i / 2 * 4);
  for (int i = 0; i < registers_b; ++i) read(values[registers_d + registers_a + i], words.b, i * 4);
  alignas(64) uint32_t sums[kRows][kColumns];
  const auto each_sum = [&](const Value* of_sums, auto visit) {
    for (int i = 0; i < registers_d; ++i) {
      char* const at = const_cast<char*>(x.at(of_sums[i]));
      const int bytes = of_sums[i].bytes, row = 8 * (half_sums ? i : i / 2), col = half_sums ? 0 : i % 2;
      for (int lane = 0; lane < kLanes; ++lane) visit(at + bytes * lane, &sums[row + lane / 4][col + 2 * (lane % 4)]);
    }
  };
  each_sum(values + registers_d + registers_a + registers_b, [&](const char* from, uint32_t* sum) {
    uint32_t word;
    std::memcpy(&word, from, 4);
    if (!half_sums) {
      *sum = word;
      return;
    }
    for (int e = 0; e < 2; ++e) sum[e] = std::bit_cast<uint32_t>(half_to_float(uint16_t(word >> (16 * e))));
  });
  if (type_a == Element::kB1) {
    add_bits(words, count, op.source->has("xor"), sums);
  } else {
    alignas(64) float a[kRows * kMaxDepth], b[kMaxDepth * kColumns];
    for (int row = 0; row < kRows; ++row) to_numbers(a + row * depth, words.a[row], count, type_a);
    for (int col = 0; col < kColumns; ++col) {
      float column[kMaxDepth];
      to_numbers(column, words.b[col], count, type_b);
      for (int k = 0; k < depth; ++k) b[k * kColumns + col] = column[k];
    }
    if (integers) {
      add_integer_product(sums[0], a, b, depth);
    } else {
      add_rounded_product(sums[0], a, b, depth);
    }
  }
  each_sum(values, [&](char* to, const uint32_t* sum) {
    uint32_t word = *sum;
    if (half_sums) {
      word = uint32_t(float_to_half(std::bit_cast<float>(sum[1]))) << 16 | float_to_half(std::bit_cast<float>(sum[0]));
    }
    std::memcpy(to, &word, 4);
  });
  return Step::kNext;
}

// m8n8k4 of f64.
Step multiply_double(Executor& x, const Op& op, uint32_t lanes) {
  if (x.gather(~0u, lanes, false) == 0) return Step::kBlocked;
  const auto& values = op.detail->values;
  double a[8][4], b[4][8];
  for (int lane = 0; lane < kLanes; ++lane) {
    a[lane / 4][lane % 4] = std::bit_cast<double>(x.value(values[2], lane));
    b[lane % 4][lane / 4] = std::bit_cast<double>(x.value(values[3], lane));
  }
  for (int lane = 0; lane < kLanes; ++lane) {
    for (int i = 0; i < 2; ++i) {
      double sum = std::bit_cast<double>(x.value(values[size_t(4 + i)], lane));
      for (int k = 0; k < 4; ++k) sum = __builtin_fma(a[lane / 4][k], b[k][2 * (lane % 4) + i], sum);
      x.set(values[size_t(i)], lane, std::bit_cast<uint64_t>(sum));
    }
  }
  return Step::kNext;
}

// ldmatrix and stmatrix: 8 x 8 matrices of 16 bits; lane 8 m + r has the address of row r of matrix m.
// variant: 1: stores; 2: transposed. number: matrices.
Step move_matrices(Executor& x, const Op& op, uint32_t lanes) {
  if (x.gather(~0u, lanes, false) == 0) return Step::kBlocked;
  const Detail& detail = *op.detail;
  const bool stores = detail.variant & 1, transposed = detail.variant & 2;
  const auto count = int(detail.number);
  const uint32_t rows = count == 4 ? ~0u : (1u << (8 * count)) - 1;
  alignas(64) uint64_t addresses[kLanes];
  x.resolve(op, detail.addresses[0], rows, 16, 16, addresses);
  for (int m = 0; m < count; ++m) {
    for (int lane = 0; lane < kLanes; ++lane) {
      uint32_t pair = stores ? uint32_t(x.value(detail.values[size_t(m)], lane)) : 0;
      for (int i = 0; i < 2; ++i) {
        int row = lane / 4, col = 2 * (lane % 4) + i;
        if (transposed) std::swap(row, col);
        char* const at = reinterpret_cast<char*>(addresses[8 * m + row]) + 2 * col;
        uint16_t element = uint16_t(pair >> (16 * i));
        if (stores) {
          std::memcpy(at, &element, 2);
        } else {
          std::memcpy(&element, at, 2);
          pair |= uint32_t(element) << (16 * i);
        }
      }
      if (!stores) x.set(detail.values[size_t(m)], lane, pair);
    }
  }
  if (x.engine.observer) x.report_access(op, rows, stores ? Operation::kWrite : Operation::kRead, 16, 8, addresses, stores ? rows : 0);
  if (stores) x.wrote();
  return Step::kNext;
}

// movmatrix: lanes exchange the elements of one 8 x 8 matrix.
Step transpose(Executor& x, const Op& op, uint32_t lanes) {
  if (x.gather(~0u, lanes, false) == 0) return Step::kBlocked;
  const Detail& detail = *op.detail;
  uint32_t rows[kLanes];
  for (int lane = 0; lane < kLanes; ++lane) rows[lane] = uint32_t(x.value(detail.values[1], lane));
  for (int lane = 0; lane < kLanes; ++lane) {
    const int row = lane / 4, column = 2 * (lane % 4);
    const auto element = [&](int from) { return rows[4 * from + row / 2] >> (16 * (row % 2)) & 0xffff; };
    x.set(detail.values[0], lane, element(column) | element(column + 1) << 16);
  }
  return Step::kNext;
}

Handler find_product(const Instruction& instruction, Detail& detail) {
  const auto& parts = instruction.parts;
  const Shape shape = shape_of(instruction);
  // ...d.a.b.c, and for single bits .and.popc or .xor.popc after it.
  size_t end = parts.size();
  if (instruction.has("popc")) end -= 2;
  if (end < 4) return nullptr;
  Element a, b;
  if (!element_of(parts[end - 3], a) || !element_of(parts[end - 2], b)) return nullptr;
  if (a == Element::kF64) return shape.m == 8 && shape.n == 8 && shape.k == 4 ? multiply_double : nullptr;
  if (shape.m != 16 || shape.n != 8 || bits_of(a) != bits_of(b) || instruction.has("sp") || instruction.has("satfinite")) return nullptr;
  const auto sums = parts[end - 1];
  detail.variant = sums == "f16" ? 1 : sums == "s32" ? 2 : 0;
  detail.number = uint64_t(a) | uint64_t(b) << 8 | uint64_t(shape.k) << 16;
  const int words = shape.k * bits_of(a) / 32;
  return words == 4 || words == 8 ? multiply : nullptr;
}

}  // namespace

Handler find_matrix_handler(const Instruction& instruction, Detail& detail) {
  const auto name = instruction.parts[0];
  if (name == "mma") return find_product(instruction, detail);
  if (name == "movmatrix") return transpose;
  if ((name != "ldmatrix" && name != "stmatrix") || !instruction.has("m8n8")) return nullptr;
  detail.variant = (name == "stmatrix" ? 1 : 0) | (instruction.has("trans") ? 2 : 0);
  detail.number = instruction.has("x4") ? 4 : instruction.has("x2") ? 2 : 1;
  return move_matrices;
}

}  // namespace pkb::emulator
