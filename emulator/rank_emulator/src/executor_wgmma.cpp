// wgmma: products of a warpgroup from shared memory. Each of its four warps computes its own 16 rows.
//
// Products run when they are issued, the earliest that hardware may: PTX's registers are values, and the compiler may
// copy sums between products, so that a later time would need its analysis.
#include <algorithm>
#include <bit>
#include <cstdio>
#include <string>
#include <vector>

#include "executor.h"
#include "matrix_tiles.h"

namespace pkb::emulator {
namespace {

// variant of the detail: elements of the operands
enum Elements { kHalves, kBrains, kTensorFloats };

struct MatrixProduct {
  const Op* op;
  uint32_t frame_offset;
  uint64_t a, b;  // descriptors
  bool adds;
  uint64_t id;
};

struct Form16 {
  int columns = 0, depth = 0;
};

Form16 form_of(const Instruction& instruction) {
  for (const auto part : instruction.parts) {
    Form16 form;
    if (std::sscanf(std::string(part).c_str(), "m64n%dk%d", &form.columns, &form.depth) == 2) return form;
  }
  return {};
}

const char* tile(Executor& x, const Op& op, uint32_t offset) {
  return reinterpret_cast<const char*>(x.shared_address(op, offset, 16, 16));
}

// 16 bytes as floats; how many.
int read_unit(const char* from, int elements, float (&to)[8]) {
  if (elements == kHalves) halves_to_floats(to, from);
  if (elements == kBrains) brains_to_floats(to, from);
  if (elements != kTensorFloats) return 8;
  for (int i = 0; i < 4; ++i) {
    uint32_t bits;
    std::memcpy(&bits, from + 4 * i, 4);
    to[i] = std::bit_cast<float>(bits & 0xffffe000u);
  }
  return 4;
}

// The load that has found the unit unwritten; 0: none.
uint32_t note_read(Executor& x, const Op& op, uint64_t id, uint32_t offset) {
  if (!x.engine.observer) return 0;
  Unwritten unwritten;
  x.engine.observer->range_access(RangeAccess{id, x.grid->launch.rank, Operation::kRead, Proxy::kAsync, Space::kShared,
                                              reinterpret_cast<uint64_t>(x.block->shared) + offset, 16, "wgmma", &op.source->line, 0, false, &unwritten});
  return unwritten.load;
}

// Loads that have found rows of a matrix unwritten, by row; 0: none. Sums of other rows do not depend on them.
using UnwrittenRows = std::vector<uint32_t>;

// Rows `first`... of a matrix in shared memory; to[row * row_step + k * k_step].
void read_matrix(Executor& x, const Op& op, const MatrixProduct& product, uint64_t bits, bool along_rows, uint32_t first, int rows,
                 int depth, float* to, int row_step, int k_step, UnwrittenRows& unwritten) {
  unwritten.assign(size_t(rows), 0);
  const MatrixDescriptor matrix(bits);
  const int elements = op.detail->variant, each = elements == kTensorFloats ? 4 : 8;
  float unit[8];
  const auto read = [&](uint32_t offset) {
    read_unit(tile(x, op, offset), elements, unit);
    return note_read(x, op, product.id, offset);
  };
  if (along_rows) {
    for (int k = 0; k < depth; ++k) {
      for (int row = 0; row < rows; row += each) {
        const uint32_t load = read(matrix.along_rows(uint32_t(k), (first + uint32_t(row)) / uint32_t(each)));
        if (load) std::fill_n(unwritten.begin() + row, each, load);
        for (int i = 0; i < each; ++i) to[(row + i) * row_step + k * k_step] = unit[i];
      }
    }
    return;
  }
  for (int row = 0; row < rows; ++row) {
    for (int k = 0; k < depth; k += each) {
      if (const uint32_t load = read(matrix.along_k(first + uint32_t(row), uint32_t(k / each)))) unwritten[size_t(row)] = load;
      for (int i = 0; i < each; ++i) to[row * row_step + (k + i) * k_step] = unit[i];
    }
  }
}

// Detail.number: bits 0..3: registers of a (0: a descriptor), 4, 5: a and b lie along rows, 6, 7: a and b are negated.
void execute(Executor& x, const MatrixProduct& product) {
  const Op& op = *product.op;
  const Detail& detail = *op.detail;
  const Form16 form = form_of(*op.source);
  const int sums_of_lane = form.columns / 2, registers_a = int(detail.number & 15);
  std::vector<float> a(size_t(16 * form.depth)), b(size_t(form.depth * form.columns)), sums(size_t(16 * form.columns));
  UnwrittenRows rows(16), columns;
  const char* const frame = x.warp->registers + product.frame_offset;
  const auto lanes_of = [&](const Value& value) { return const_cast<char*>((value.ref.base == kFrame ? frame : x.bases[value.ref.base]) + value.ref.offset); };
  if (registers_a) {
    const int each = detail.variant == kTensorFloats ? 1 : 2;
    for (int i = 0; i < registers_a; ++i) {
      const UnwrittenRegister found = x.unwritten_at(detail.values[size_t(sums_of_lane + i)].ref, ~0u);
      each_lane(found.lanes, [&](int lane) { rows[size_t(lane / 4 + 8 * (i % 2))] = found.load; });
      const char* const from = lanes_of(detail.values[size_t(sums_of_lane + i)]);
      for (int lane = 0; lane < kLanes; ++lane) {
        uint32_t word;
        std::memcpy(&word, from + 4 * lane, 4);
        float* const to = &a[size_t((lane / 4 + 8 * (i % 2)) * form.depth + (i / 2 * 4 + lane % 4) * each)];
        if (each == 1) {
          to[0] = std::bit_cast<float>(word & 0xffffe000u);
        } else {
          for (int e = 0; e < 2; ++e) to[e] = detail.variant == kHalves ? half_to_float(uint16_t(word >> (16 * e))) : brain_to_float(uint16_t(word >> (16 * e)));
        }
      }
    }
  } else {
    read_matrix(x, op, product, product.a, detail.number >> 4 & 1, x.warp->index % 4 * 16, 16, form.depth, a.data(), form.depth, 1, rows);
  }
  read_matrix(x, op, product, product.b, detail.number >> 5 & 1, 0, form.columns, form.depth, b.data(), 1, form.columns, columns);
  if (detail.number >> 6 & 1) for (float& value : a) value = -value;
  if (detail.number >> 7 & 1) for (float& value : b) value = -value;
  const auto each_sum = [&](auto f) {
    for (int i = 0; i < sums_of_lane; ++i) {
      char* const at = lanes_of(detail.values[size_t(i)]);
      for (int lane = 0; lane < kLanes; ++lane) {
        f(at + 4 * lane, sums[size_t((lane / 4 + 8 * (i / 2 % 2)) * form.columns + 8 * (i / 4) + 2 * (lane % 4) + i % 2)]);
      }
    }
  };
  if (product.adds) each_sum([](const char* from, float& sum) { std::memcpy(&sum, from, 4); });
  add_product(sums.data(), a.data(), b.data(), form.columns, form.depth);
  each_sum([](char* to, const float& sum) { std::memcpy(to, &sum, 4); });
  const auto is_any = [](const UnwrittenRows& all) { return std::any_of(all.begin(), all.end(), [](uint32_t load) { return load != 0; }); };
  if (x.warp->unwritten.empty() && !is_any(rows) && !is_any(columns)) return;
  for (int i = 0; i < sums_of_lane; ++i) {
    const Ref& ref = detail.values[size_t(i)].ref;
    UnwrittenRegister sum = product.adds ? x.unwritten_at(ref, ~0u) : UnwrittenRegister{};
    for (int lane = 0; lane < kLanes; ++lane) {
      const uint32_t row = rows[size_t(lane / 4 + 8 * (i / 2 % 2))], column = columns[size_t(8 * (i / 4) + 2 * (lane % 4) + i % 2)];
      if (row || column) sum = {0, sum.lanes | 1u << lane, row ? row : column};
    }
    x.set_unwritten(ref, 4 * kLanes, ~0u, sum);
  }
}

Step issue(Executor& x, const Op& op, uint32_t lanes) {
  if (x.gather(~0u, lanes, false) == 0) return Step::kBlocked;
  const Detail& detail = *op.detail;
  const size_t sums = size_t(form_of(*op.source).columns) / 2, registers_a = detail.number & 15;
  const size_t second = sums + (registers_a ? registers_a : 1);
  MatrixProduct product{&op, x.split->frame_offset, registers_a ? 0 : x.value(detail.values[sums], 0),
                        x.value(detail.values[second], 0), x.value(detail.values[second + 1], 0) != 0, 0};
  if (x.engine.observer) {
    product.id = x.engine.next_id++;
    x.engine.observer->async_issue(AsyncOperation{product.id, x.seen(op, lanes), Completion::kWgmmaGroup, 0});
  }
  execute(x, product);
  return Step::kNext;
}

Step commit(Executor& x, const Op& op, uint32_t lanes) {
  if (x.engine.observer) x.engine.observer->async_commit(x.seen(op, lanes), Completion::kWgmmaGroup);
  return Step::kNext;
}

Step wait(Executor& x, const Op& op, uint32_t lanes) {
  if (x.engine.observer) {
    const auto pending = uint32_t(x.value(op.detail->values[0], 0));
    x.engine.observer->async_wait(x.seen(op, lanes), Completion::kWgmmaGroup, pending, false);
  }
  return Step::kNext;
}

Step fence(Executor& x, const Op& op, uint32_t lanes) {
  if (x.engine.observer) x.engine.observer->wgmma_fence(x.seen(op, lanes));
  return Step::kNext;
}

}  // namespace

Handler find_wgmma_handler(const Instruction& instruction, Detail& detail) {
  if (instruction.parts[0] != "wgmma") return nullptr;
  if (instruction.has("fence")) return fence;
  if (instruction.has("commit_group")) return commit;
  if (instruction.has("wait_group")) return wait;
  const auto type = instruction.parts.back();
  if (!instruction.has("mma_async") || !instruction.has("f32") || instruction.has("sp")) return nullptr;
  detail.variant = type == "f16" ? kHalves : type == "bf16" ? kBrains : kTensorFloats;
  if (type != "f16" && type != "bf16" && type != "tf32") return nullptr;
  const auto& operands = instruction.operands;
  const bool from_registers = operands[1].kind == Operand::kVector;
  detail.number = from_registers ? operands[1].elements.size() : 0;
  const auto flag = [&](size_t index) { return operands.size() > index ? operands[index].bits : 0; };
  if (flag(4) == ~0ull) detail.number |= 1 << 6;
  if (flag(5) == ~0ull) detail.number |= 1 << 7;
  if (from_registers) {
    if (flag(6)) detail.number |= 1 << 5;
  } else {
    if (flag(6)) detail.number |= 1 << 4;
    if (flag(7)) detail.number |= 1 << 5;
  }
  return issue;
}

}  // namespace pkb::emulator
