// Where the paths of a divergent branch meet: its immediate post-dominator (Cooper, Harvey, Kennedy: "A Simple, Fast
// Dominance Algorithm", on the reversed graph).
#include <algorithm>
#include <unordered_set>

#include "ptx_module.h"

namespace pkb::emulator {
namespace {

bool ends_path(const Instruction& instruction) {
  const auto name = instruction.parts[0];
  return instruction.guard < 0 && (name == "ret" || name == "exit");
}

// Lanes that come here never meet others again, and never leave either: where the others meet does not depend on them.
bool traps(const Instruction& instruction) {
  if (instruction.guard >= 0) return false;
  const auto name = instruction.parts[0];
  if (name != "call") return name == "trap";
  return std::any_of(instruction.operands.begin(), instruction.operands.end(), [](const Operand& operand) { return operand.name == "__assertfail"; });
}

bool jumps_always(const Instruction& instruction) {
  return instruction.guard < 0 && (instruction.parts[0] == "bra" || instruction.parts[0] == "brx");
}

bool is_sum_or_product(const Instruction& instruction) {
  const auto name = instruction.parts[0];
  const bool named = name == "add" || name == "sub" || name == "mul" || name == "fma" || name == "mad";
  return named && instruction.parts.back() == "f64" && instruction.operands.size() > 2;
}

// Calls f(register) for each register of an operand, and of those in it.
template <class F>
void each_register(const Operand& operand, F f) {
  if (operand.index >= 0 && (operand.kind == Operand::kRegister || operand.kind == Operand::kAddress)) f(operand.index);
  for (const Operand& element : operand.elements) each_register(element, f);
}

// Branches, and stores from which the thread itself, its block or a function that it calls may take the value for one.
bool hands_on(const Instruction& instruction) {
  const auto name = instruction.parts[0];
  if (name == "brx" || name == "call") return true;
  if (name != "st") return false;
  constexpr std::string_view kSpaces[] = {"local", "param", "param::func", "shared", "shared::cta", "shared::cluster"};
  return std::any_of(std::begin(kSpaces), std::end(kSpaces), [&](std::string_view space) { return instruction.has(space); });
}

}  // namespace

void find_deciding_registers(Function& function) {
  std::vector<bool>& deciding = function.deciding;
  deciding.assign(function.registers.size(), false);
  bool grows = false;
  const auto add = [&](int index) {
    grows |= !deciding[size_t(index)];
    deciding[size_t(index)] = true;
  };
  do {
    grows = false;
    for (auto at = function.code.rbegin(); at != function.code.rend(); ++at) {
      const auto name = at->parts[0];
      if (at->guard >= 0 && (name == "bra" || name == "brx" || name == "ret" || name == "exit" || name == "trap" || name == "call")) add(at->guard);
      bool decides = hands_on(*at);
      if (!at->operands.empty() && at->operands[0].kind != Operand::kAddress) {
        each_register(at->operands[0], [&](int index) { decides |= deciding[size_t(index)]; });
      }
      if (!decides) continue;
      if (at->guard >= 0) add(at->guard);
      for (const Operand& operand : at->operands) each_register(operand, add);
    }
  } while (grows);
}

bool decides(const Function& function, const Instruction& instruction) {
  bool found = false;
  if (instruction.operands.empty()) return found;
  each_register(instruction.operands[0], [&](int index) { found |= function.deciding[size_t(index)]; });
  return found;
}

bool is_arithmetic(const Instruction& instruction) {
  static const std::unordered_set<std::string_view> kNames = {
      "abs",  "add",  "and",  "bfe", "bfi", "bfind", "brev", "clz", "cnot", "cvt", "cvta", "div",  "fma",  "lop3", "mad",  "max",
      "min",  "mov",  "mul",  "neg", "not", "or",    "popc", "prmt", "rem", "sad", "selp", "set",  "setp", "shf",  "shl",  "shr",
      "slct", "sub",  "xor"};
  return kNames.contains(instruction.parts[0]);
}

namespace {

bool is_plain_load(const Instruction& instruction) {
  if (instruction.parts[0] != "ld") return false;
  constexpr std::string_view kOthers[] = {"volatile", "relaxed", "acquire", "mmio", "param", "param::entry", "param::func", "const", "local"};
  return std::none_of(std::begin(kOthers), std::end(kOthers), [&](std::string_view word) { return instruction.has(word); });
}

// For each of at most 64 loads, which instructions use its value.
class Uses {
 public:
  Uses(const Function& function, const std::vector<int>& loads) : function_(function), held_(function.registers.size()) {
    for (size_t i = 0; i < loads.size(); ++i) {
      each_register(function.code[size_t(loads[i])].operands[0], [&](int index) { held_[size_t(index)] |= 1ull << i; });
    }
    while (spread()) {}
  }

  // The loads, by bits.
  uint64_t of(const Instruction& instruction) const { return is_arithmetic(instruction) ? 0 : taken(instruction); }

 private:
  uint64_t taken(const Instruction& instruction) const {
    uint64_t found = instruction.guard < 0 ? 0 : held_[size_t(instruction.guard)];
    const bool has_result = instruction.parts[0] == "ld" || is_arithmetic(instruction);
    for (size_t i = has_result ? 1 : 0; i < instruction.operands.size(); ++i) {
      each_register(instruction.operands[i], [&](int index) { found |= held_[size_t(index)]; });
    }
    return found;
  }

  bool spread() {
    bool grows = false;
    for (const Instruction& instruction : function_.code) {
      if (!is_arithmetic(instruction) || instruction.operands.empty()) continue;
      const uint64_t found = taken(instruction);
      if (!found) continue;
      each_register(instruction.operands[0], [&](int index) {
        grows |= (held_[size_t(index)] | found) != held_[size_t(index)];
        held_[size_t(index)] |= found;
      });
    }
    return grows;
  }

  const Function& function_;
  std::vector<uint64_t> held_;  // by register: loads whose value, or a result of it, may lie there
};

}  // namespace

void find_uses(Function& function) {
  const auto& code = function.code;
  std::vector<bool> begins(code.size() + 1);  // a path from elsewhere may come here
  std::vector<int> loads;
  for (size_t i = 0; i < code.size(); ++i) {
    if (code[i].target >= 0) begins[size_t(code[i].target)] = true;
    for (const int target : code[i].targets) begins[size_t(target)] = true;
    if (is_plain_load(code[i])) loads.push_back(int(i));
  }
  function.may_be_unused.assign(code.size(), false);
  for (size_t first = 0; first < loads.size(); first += 64) {
    const std::vector<int> some(loads.begin() + long(first), loads.begin() + long(std::min(first + 64, loads.size())));
    const Uses uses(function, some);
    std::vector<uint64_t> of(code.size());
    uint64_t unsure = 0;
    for (size_t i = 0; i < code.size(); ++i) of[i] = uses.of(code[i]);
    for (size_t n = 0; n < some.size(); ++n) {
      // In a straight line behind the load every lane comes to a use.
      bool is_sure = false;
      for (auto i = size_t(some[n]) + 1; i < code.size() && !is_sure && !begins[i]; ++i) {
        is_sure = code[i].guard < 0 && (of[i] >> n & 1);
        if (jumps_always(code[i]) || ends_path(code[i]) || code[i].target >= 0 || !code[i].targets.empty()) break;
      }
      const bool is_used = std::any_of(of.begin(), of.end(), [&](uint64_t used) { return used >> n & 1; });
      if (is_sure || !is_used) continue;  // one that nothing uses stands in the source for its own sake
      unsure |= 1ull << n;
      function.may_be_unused[size_t(some[n])] = true;
    }
    for (size_t i = 0; i < code.size(); ++i) {
      for (uint64_t rest = of[i] & unsure; rest; rest &= rest - 1) function.uses[int(i)].push_back(some[size_t(__builtin_ctzll(rest))]);
    }
  }
}

void order_operands(Function& function) {
  std::vector<int> written(function.registers.size(), -1);  // by which instruction; a copy counts as its source
  const auto write = [&](const Operand& to, int at) {
    if (to.kind == Operand::kRegister) written[size_t(to.index)] = at;
  };
  for (size_t i = 0; i < function.code.size(); ++i) {
    Instruction& instruction = function.code[i];
    auto& operands = instruction.operands;
    if (is_sum_or_product(instruction) && operands[2].kind == Operand::kRegister) {
      const bool literal = operands[1].kind != Operand::kRegister;
      if (literal || written[size_t(operands[2].index)] < written[size_t(operands[1].index)]) {
        std::swap(operands[1], operands[2]);
        instruction.exchanged = true;
      }
    }
    if (operands.empty()) continue;
    const bool copies = instruction.parts[0] == "mov" && instruction.guard < 0 && operands[1].kind == Operand::kRegister;
    write(operands[0], copies ? written[size_t(operands[1].index)] : int(i));
    for (const Operand& element : operands[0].elements) write(element, int(i));
  }
}

void find_meeting_points(Function& function) {
  const int count = int(function.code.size()), end = count;  // node `count`: the end
  std::vector<std::vector<int>> next(size_t(count) + 1), previous(size_t(count) + 1);
  const auto edge = [&](int from, int to) {
    next[size_t(from)].push_back(to);
    previous[size_t(to)].push_back(from);
  };
  for (int i = 0; i < count; ++i) {
    const Instruction& instruction = function.code[size_t(i)];
    if (instruction.target >= 0) edge(i, instruction.target);
    for (const int target : instruction.targets) edge(i, target);
    if (traps(instruction)) continue;
    const auto name = instruction.parts[0];
    if (name == "ret" || name == "exit") edge(i, end);
    if (!ends_path(instruction) && !jumps_always(instruction)) edge(i, i + 1);
  }
  // Order of the reversed graph from the end on.
  std::vector<int> order(size_t(count) + 1, -1), nodes;
  std::vector<std::pair<int, size_t>> stack{{end, 0}};
  std::vector<bool> seen(size_t(count) + 1);
  seen[size_t(end)] = true;
  while (!stack.empty()) {
    auto& [node, child] = stack.back();
    if (child < previous[size_t(node)].size()) {
      const int to = previous[size_t(node)][child++];
      if (!seen[size_t(to)]) {
        seen[size_t(to)] = true;
        stack.push_back({to, 0});
      }
    } else {
      order[size_t(node)] = int(nodes.size());
      nodes.push_back(node);
      stack.pop_back();
    }
  }
  std::reverse(nodes.begin(), nodes.end());
  std::vector<int> dominator(size_t(count) + 1, -1);
  dominator[size_t(end)] = end;
  const auto common = [&](int a, int b) {
    while (a != b) {
      while (order[size_t(a)] < order[size_t(b)]) a = dominator[size_t(a)];
      while (order[size_t(b)] < order[size_t(a)]) b = dominator[size_t(b)];
    }
    return a;
  };
  for (bool changed = true; changed;) {
    changed = false;
    for (const int node : nodes) {
      if (node == end) continue;
      int found = -1;
      for (const int successor : next[size_t(node)]) {
        if (dominator[size_t(successor)] < 0) continue;
        found = found < 0 ? successor : common(found, successor);
      }
      if (found != dominator[size_t(node)]) {
        dominator[size_t(node)] = found;
        changed = true;
      }
    }
  }
  function.meets.assign(size_t(count), -1);
  for (int i = 0; i < count; ++i) {
    const int to = dominator[size_t(i)];
    if (function.code[size_t(i)].target >= 0 || !function.code[size_t(i)].targets.empty()) {
      function.meets[size_t(i)] = to == end ? -1 : to;
    }
  }
}

}  // namespace pkb::emulator
