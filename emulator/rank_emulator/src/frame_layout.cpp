// Liveness of registers, and a linear scan over their intervals.
#include <algorithm>
#include <bit>

#include "program.h"

namespace pkb::emulator {
namespace {

class Bits {
 public:
  explicit Bits(size_t count) : words_((count + 63) / 64) {}
  void set(size_t i) { words_[i / 64] |= 1ull << (i % 64); }
  void reset(size_t i) { words_[i / 64] &= ~(1ull << (i % 64)); }
  bool test(size_t i) const { return words_[i / 64] >> (i % 64) & 1; }
  // Adds the others; whether any was new.
  bool add(const Bits& other) {
    bool grown = false;
    for (size_t i = 0; i < words_.size(); ++i) {
      grown |= (other.words_[i] & ~words_[i]) != 0;
      words_[i] |= other.words_[i];
    }
    return grown;
  }
  template <class F>
  void each(F f) const {
    for (size_t i = 0; i < words_.size(); ++i) {
      for (uint64_t word = words_[i]; word; word &= word - 1) f(i * 64 + size_t(std::countr_zero(word)));
    }
  }

 private:
  std::vector<uint64_t> words_;
};

template <class F>
void each_register(const Operand& operand, F f) {
  if (operand.index >= 0) f(size_t(operand.index));
  for (const Operand& element : operand.elements) each_register(element, f);
}

// Whether the first operand is a result alone. Where it is not certain it counts as read, which is always right.
bool writes_first(const Instruction& instruction) {
  const auto name = instruction.parts[0];
  if (instruction.guard >= 0 || instruction.operands.empty()) return false;
  const auto kind = instruction.operands[0].kind;
  if (kind != Operand::kRegister && kind != Operand::kVector && kind != Operand::kPair) return false;
  return name != "wgmma" && name != "call" && name != "bar" && name != "barrier" && name != "st" && name != "red" && name != "brx" && name != "setmaxnreg" && name != "nanosleep";
}

struct Blocks {
  std::vector<int> begins;  // of each block; the end of the code last
  std::vector<std::vector<int>> next;
};

Blocks cut_into_blocks(const Function& function) {
  const int count = int(function.code.size());
  std::vector<bool> begins(size_t(count) + 1);
  begins[0] = begins[size_t(count)] = true;
  for (int i = 0; i < count; ++i) {
    const Instruction& instruction = function.code[size_t(i)];
    const auto name = instruction.parts[0];
    if (instruction.target >= 0) begins[size_t(instruction.target)] = true;
    for (const int target : instruction.targets) begins[size_t(target)] = true;
    if (name == "bra" || name == "brx" || name == "ret" || name == "exit") begins[size_t(i) + 1] = true;
  }
  Blocks blocks;
  std::vector<int> block_of(size_t(count) + 1);
  for (int i = 0; i <= count; ++i) {
    if (begins[size_t(i)]) blocks.begins.push_back(i);
    block_of[size_t(i)] = int(blocks.begins.size()) - 1;
  }
  for (size_t b = 0; b + 1 < blocks.begins.size(); ++b) {
    const Instruction& last = function.code[size_t(blocks.begins[b + 1]) - 1];
    const auto name = last.parts[0];
    blocks.next.emplace_back();
    if (last.target >= 0) blocks.next[b].push_back(block_of[size_t(last.target)]);
    for (const int target : last.targets) blocks.next[b].push_back(block_of[size_t(target)]);
    const bool leaves = last.guard < 0 && (name == "bra" || name == "brx" || name == "ret" || name == "exit");
    if (!leaves && blocks.begins[b + 1] < count) blocks.next[b].push_back(int(b) + 1);
  }
  return blocks;
}

struct Interval {
  size_t index;
  int first = -1, last = -1;
};

std::vector<Interval> find_intervals(const Function& function) {
  const size_t registers = function.registers.size();
  const Blocks blocks = cut_into_blocks(function);
  const size_t count = blocks.next.size();
  std::vector<Bits> used(count, Bits(registers)), defined(count, Bits(registers)), live_in(count, Bits(registers));
  std::vector<Interval> intervals(registers);
  const auto touch = [&](size_t index, int at) {
    Interval& interval = intervals[index];
    interval.first = interval.first < 0 ? at : std::min(interval.first, at);
    interval.last = std::max(interval.last, at);
  };
  for (size_t b = 0; b < count; ++b) {
    for (int i = blocks.begins[b]; i < blocks.begins[b + 1]; ++i) {
      const Instruction& instruction = function.code[size_t(i)];
      const bool writes = writes_first(instruction);
      const auto use = [&](size_t index) {
        touch(index, i);
        if (!defined[b].test(index)) used[b].set(index);
      };
      if (instruction.guard >= 0) use(size_t(instruction.guard));
      for (size_t o = writes ? 1 : 0; o < instruction.operands.size(); ++o) each_register(instruction.operands[o], use);
      if (!writes) continue;
      each_register(instruction.operands[0], [&](size_t index) {
        touch(index, i);
        defined[b].set(index);
      });
    }
  }
  std::vector<Bits> live_out(count, Bits(registers));
  for (size_t b = 0; b < count; ++b) live_in[b].add(used[b]);
  for (bool changed = true; changed;) {
    changed = false;
    for (size_t b = count; b-- > 0;) {
      bool grown = false;
      for (const int next : blocks.next[b]) {
        if (size_t(next) < count) grown |= live_out[b].add(live_in[size_t(next)]);
      }
      if (!grown) continue;
      Bits through = live_out[b];
      defined[b].each([&](size_t index) { through.reset(index); });
      changed |= live_in[b].add(through);
    }
  }
  for (size_t b = 0; b < count; ++b) {
    live_in[b].each([&](size_t index) { touch(index, blocks.begins[b]); });
    live_out[b].each([&](size_t index) { touch(index, blocks.begins[b + 1] - 1); });
  }
  return intervals;
}

}  // namespace

FrameLayout lay_out_frame(const Function& function) {
  FrameLayout layout;
  layout.offsets.assign(function.registers.size(), 0);
  std::vector<Interval> intervals = find_intervals(function);
  for (size_t i = 0; i < intervals.size(); ++i) intervals[i].index = i;
  std::erase_if(intervals, [](const Interval& interval) { return interval.first < 0; });
  std::sort(intervals.begin(), intervals.end(), [](const Interval& a, const Interval& b) { return a.first < b.first; });
  const auto slot_bytes = [](RegisterClass kind) { return kind == RegisterClass::kPredicate ? 64u : uint32_t(kLaneBytes[int(kind)]) * kLanes; };
  std::vector<uint32_t> free[kRegisterClasses];
  std::vector<std::pair<int, size_t>> active;  // heap by end
  const auto later = [](const auto& a, const auto& b) { return a.first > b.first; };
  int words = 0;
  layout.bytes = 64;  // operands that do not matter point to the first bytes
  for (const Interval& interval : intervals) {
    while (!active.empty() && active.front().first < interval.first) {
      std::pop_heap(active.begin(), active.end(), later);
      const size_t over = active.back().second;
      active.pop_back();
      const auto kind = function.registers[over].kind;
      free[int(kind)].push_back(layout.offsets[over]);
      words -= kLaneBytes[int(kind)] > 4 ? 2 : kLaneBytes[int(kind)] > 0;
    }
    const auto kind = function.registers[interval.index].kind;
    auto& slots = free[int(kind)];
    if (slots.empty()) {
      slots.push_back(layout.bytes);
      layout.bytes += slot_bytes(kind);
    }
    layout.offsets[interval.index] = slots.back();
    slots.pop_back();
    active.push_back({interval.last, interval.index});
    std::push_heap(active.begin(), active.end(), later);
    words += kLaneBytes[int(kind)] > 4 ? 2 : kLaneBytes[int(kind)] > 0;
    layout.pressure = std::max(layout.pressure, words);
  }
  return layout;
}

}  // namespace pkb::emulator
