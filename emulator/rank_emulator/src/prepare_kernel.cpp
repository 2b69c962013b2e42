// A kernel of a module: its functions, shared memory and registers.
#include <algorithm>
#include <cstdlib>
#include <new>
#include <set>

#include "prepare.h"
#include "ptx_lexer.h"

namespace pkb::emulator {
namespace {

void collect_names(const Operand& operand, std::set<std::string_view>& names) {
  if (!operand.name.empty()) names.insert(operand.name);
  for (const Operand& element : operand.elements) collect_names(element, names);
}

// The operand of a call that says what is called; null: the call has none.
const Operand* called(const Instruction& instruction) {
  for (const Operand& operand : instruction.operands) {
    if (operand.kind != Operand::kVector) return &operand;
  }
  return nullptr;
}

// Functions of which pointers can exist: their addresses are initial values of variables, or operands other than a call's.
std::set<std::string_view> pointed_to(const PtxModule& module) {
  std::set<std::string_view> names;
  for (const auto& [key, variable] : module.variables) {
    for (const auto& address : variable.addresses) names.insert(address.symbol);
  }
  for (const auto& [key, function] : module.functions) {
    for (const Instruction& instruction : function.code) {
      if (instruction.parts[0] == "call") continue;
      for (const Operand& operand : instruction.operands) {
        if (operand.kind == Operand::kSymbol && operand.local < 0) names.insert(operand.name);
      }
    }
  }
  std::erase_if(names, [&](std::string_view name) {
    const auto found = module.functions.find(name);
    return found == module.functions.end() || !found->second.defined || found->second.is_entry;
  });
  return names;
}

// What a kernel can execute and name: the functions that it calls, directly or through pointers, and those that these call.
struct Reach {
  const PtxModule& module;
  std::vector<const Function*> functions;
  std::set<std::string_view> names;     // of variables
  std::set<std::string_view> pointed_to;  // functions that its calls through pointers may reach

  void add(const Function& function) {
    if (std::find(functions.begin(), functions.end(), &function) != functions.end()) return;
    functions.push_back(&function);
    for (const Instruction& instruction : function.code) {
      for (const Operand& operand : instruction.operands) collect_names(operand, names);
      const Operand* const to = instruction.parts[0] == "call" ? called(instruction) : nullptr;
      if (!to) continue;
      if (to->kind == Operand::kRegister) {
        if (pointed_to.empty()) pointed_to = emulator::pointed_to(module);
        for (const auto name : std::set(pointed_to)) add(module.functions.at(name));
        continue;
      }
      const auto found = module.functions.find(to->name);
      if (found != module.functions.end() && found->second.defined) add(found->second);
    }
  }
};

// Bytes of its stack that a GPU takes for a call at the least: an H100 recurses between 48 and 63 times into a function
// without .local variables on 1024 bytes.
constexpr uint64_t kCallBytes = 16;

// Deepest nesting of direct calls, in bytes of registers and of local memory, by the function that it begins with.
struct Nesting {
  struct Bytes {
    uint32_t frame = 0, local = 0;
    bool is_open = true;  // being computed: a call of it is recursion
  };
  std::map<const Code*, Bytes> known;
  bool nests_freely = false;

  Bytes of(const Code& code) {
    const auto [found, fresh] = known.try_emplace(&code);
    if (!fresh) {
      nests_freely |= found->second.is_open;
      return found->second;
    }
    Bytes most;
    for (const Detail& detail : code.details) {
      nests_freely |= detail.calls == Callee::kPointer;
      if (!detail.callee) continue;
      const Bytes inner = of(*detail.callee);
      most = {std::max(most.frame, inner.frame), std::max(most.local, inner.local), false};
    }
    return known[&code] = {most.frame + code.frame_bytes, most.local + code.local_bytes, false};
  }
};

}  // namespace

AlignedBytes aligned_bytes(size_t bytes) {
  auto* const memory = static_cast<uint8_t*>(std::aligned_alloc(64, align_up(std::max<size_t>(bytes, 1), 64)));
  if (!memory) throw std::bad_alloc();
  return AlignedBytes(memory);
}

std::string place_of(const SourceLine& line) {
  if (!line.file) return "an unknown line";
  const auto shorter = [](const char* path) {
    const std::string text(path);
    const size_t include = text.rfind("/include/");
    return include == std::string::npos ? text.substr(text.rfind('/') + 1) : text.substr(include + 9);
  };
  std::string text = shorter(line.file) + ":" + std::to_string(line.line);
  if (line.outer_file) text += " (from " + shorter(line.outer_file) + ":" + std::to_string(line.outer_line) + ")";
  return text;
}

std::unique_ptr<Kernel> prepare_kernel(std::shared_ptr<const PtxModule> module, std::string_view name, const SymbolAddress& address_of) {
  const auto found = module->functions.find(name);
  if (found == module->functions.end() || !found->second.defined || !found->second.is_entry) {
    throw PtxError("the PTX has no kernel '" + std::string(name) + "'");
  }
  auto kernel = std::make_unique<Kernel>();
  kernel->name = std::string(name);
  kernel->module = module;
  kernel->function = &found->second;
  Reach reach{*module, {}, {}, {}};
  reach.add(found->second);

  // Static variables lie in the order of their names, dynamic shared memory after them.
  SharedLayout shared;
  uint64_t at = 0;
  std::vector<const Variable*> dynamic;
  const auto place = [&](const Variable& variable) {
    if (variable.place != Variable::kShared || !reach.names.contains(variable.name) || shared.offsets.contains(variable.name)) return;
    if (variable.bytes == 0) {
      dynamic.push_back(&variable);
      return;
    }
    at = align_up(at, variable.alignment);
    shared.offsets[variable.name] = uint32_t(at);
    at += variable.bytes;
  };
  for (const auto& [key, variable] : module->variables) place(variable);
  for (const Function* function : reach.functions) {
    for (const Variable& variable : function->locals) place(variable);
  }
  for (const Variable* variable : dynamic) kernel->dynamic_alignment = std::max(kernel->dynamic_alignment, variable->alignment);
  at = align_up(at, kernel->dynamic_alignment);
  for (const Variable* variable : dynamic) shared.offsets[variable->name] = uint32_t(at);
  kernel->static_shared = uint32_t(at);

  std::map<std::string_view, Code*> codes;
  for (const Function* function : reach.functions) {
    Code& code = kernel->codes.emplace_back();
    code.function = function;
    codes[function->name] = &code;
    if (reach.pointed_to.contains(function->name)) kernel->code_at[address_of(function->name)] = &code;
  }
  for (const Function* function : reach.functions) {
    for (const Instruction& instruction : function->code) {
      for (const Operand& operand : instruction.operands) {
        kernel->uses_reserved_shared |= operand.kind == Operand::kSpecial && operand.name == "%reserved_smem_offset_1";
      }
    }
  }
  int pressure = 0;
  for (Code& code : kernel->codes) pressure = std::max(pressure, prepare_function(shared, address_of, codes, code));
  Nesting nesting;
  const auto deepest = nesting.of(kernel->codes.front());
  kernel->frame_bytes = deepest.frame;
  kernel->local_bytes = kernel->bounded_local = uint32_t(align_up(deepest.local, 16));
  for (const Code& code : kernel->codes) {
    if (!nesting.nests_freely) break;
    const uint64_t of_gpu = kCallBytes + code.function->stack_bytes;
    kernel->local_of_stack = std::max(kernel->local_of_stack, uint32_t((code.local_bytes + of_gpu - 1) / of_gpu));
  }
  if (nesting.nests_freely) kernel->local_of_stack = std::max(kernel->local_of_stack, 1u);
  for (const Code& code : kernel->codes) {
    for (const Detail& detail : code.details) {
      kernel->uses_heap |= detail.calls == Callee::kMalloc || detail.calls == Callee::kAlignedMalloc || detail.calls == Callee::kFree;
    }
  }
  kernel->registers = std::clamp(pressure + 8, 16, 255);
  if (const int threads = kernel->function->max_threads; threads > 0) {
    const int most = 65536 / (threads * std::max(kernel->function->min_blocks, 1)) / 8 * 8;
    kernel->registers = std::min(kernel->registers, std::max(most, 16));
  }
  return kernel;
}

}  // namespace pkb::emulator
