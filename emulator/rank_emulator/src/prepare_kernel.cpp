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

// Functions that a function calls, and those that these call; also the variables that they name.
void reach(const PtxModule& module, const Function& function, std::vector<const Function*>& reached, std::set<std::string_view>& names) {
  if (std::find(reached.begin(), reached.end(), &function) != reached.end()) return;
  reached.push_back(&function);
  for (const Instruction& instruction : function.code) {
    for (const Operand& operand : instruction.operands) {
      collect_names(operand, names);
      if (instruction.parts[0] != "call") continue;
      const auto found = module.functions.find(operand.name);
      if (found != module.functions.end() && found->second.defined) reach(module, found->second, reached, names);
    }
  }
}

// Deepest nesting of calls, in bytes of registers and of local memory; recursion counts to a depth of 24.
std::pair<uint32_t, uint32_t> deepest(const Code& code, int depth) {
  std::pair<uint32_t, uint32_t> most{0, 0};
  if (depth < 24) {
    for (const Detail& detail : code.details) {
      if (!detail.callee) continue;
      const auto inner = deepest(*detail.callee, depth + 1);
      most = {std::max(most.first, inner.first), std::max(most.second, inner.second)};
    }
  }
  return {most.first + code.frame_bytes, most.second + code.local_bytes};
}

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
  std::vector<const Function*> reached;
  std::set<std::string_view> names;
  reach(*module, found->second, reached, names);

  // Static variables lie in the order of their names, dynamic shared memory after them.
  SharedLayout shared;
  uint64_t at = 0;
  std::vector<const Variable*> dynamic;
  const auto place = [&](const Variable& variable) {
    if (variable.place != Variable::kShared || !names.contains(variable.name) || shared.offsets.contains(variable.name)) return;
    if (variable.bytes == 0) {
      dynamic.push_back(&variable);
      return;
    }
    at = align_up(at, variable.alignment);
    shared.offsets[variable.name] = uint32_t(at);
    at += variable.bytes;
  };
  for (const auto& [key, variable] : module->variables) place(variable);
  for (const Function* function : reached) {
    for (const Variable& variable : function->locals) place(variable);
  }
  for (const Variable* variable : dynamic) kernel->dynamic_alignment = std::max(kernel->dynamic_alignment, variable->alignment);
  at = align_up(at, kernel->dynamic_alignment);
  for (const Variable* variable : dynamic) shared.offsets[variable->name] = uint32_t(at);
  kernel->static_shared = uint32_t(at);

  std::map<std::string_view, Code*> codes;
  for (const Function* function : reached) {
    Code& code = kernel->codes.emplace_back();
    code.function = function;
    codes[function->name] = &code;
  }
  int pressure = 0;
  for (Code& code : kernel->codes) pressure = std::max(pressure, prepare_function(shared, address_of, codes, code));
  const auto [frame, local] = deepest(kernel->codes.front(), 0);
  kernel->frame_bytes = frame;
  kernel->local_bytes = uint32_t(align_up(local, 16));
  kernel->registers = std::clamp(pressure + 8, 16, 255);
  if (const int threads = kernel->function->max_threads; threads > 0) {
    const int most = 65536 / (threads * std::max(kernel->function->min_blocks, 1)) / 8 * 8;
    kernel->registers = std::min(kernel->registers, std::max(most, 16));
  }
  return kernel;
}

}  // namespace pkb::emulator
