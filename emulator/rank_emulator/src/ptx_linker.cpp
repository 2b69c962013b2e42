// One PTX module of several, as nvlink makes one of relocatable objects.
#include <algorithm>

#include "ptx_lexer.h"
#include "ptx_module.h"

namespace pkb::emulator {
namespace {

using Names = std::map<std::string_view, std::string_view>;

void rename(Operand& operand, const Names& names) {
  if (operand.local < 0) {
    if (const auto found = names.find(operand.name); found != names.end()) operand.name = found->second;
  }
  for (Operand& element : operand.elements) rename(element, names);
}

bool is_defined(const Variable& variable) { return variable.linkage != Linkage::kExtern; }
bool is_defined(const Function& function) { return function.defined; }

class Linker {
 public:
  explicit Linker(PtxModule& linked) : linked_(linked) {
    for (const auto& module : linked_.parts) {
      for (const auto& [name, variable] : module->variables) ++uses_[name];
      for (const auto& [name, function] : module->functions) ++uses_[name];
    }
  }

  void add(const PtxModule& module, size_t number) {
    Names renamed;
    for (const auto& [name, variable] : module.variables) keep_apart(variable, name, number, renamed);
    for (const auto& [name, function] : module.functions) {
      if (function.defined) keep_apart(function, name, number, renamed);
    }
    for (const auto& [name, variable] : module.variables) {
      Variable copy = variable;
      for (auto& address : copy.addresses) {
        if (const auto found = renamed.find(address.symbol); found != renamed.end()) address.symbol = found->second;
      }
      define(linked_.variables, std::move(copy), renamed);
    }
    for (const auto& [name, function] : module.functions) {
      Function copy = function;
      for (Instruction& instruction : copy.code) {
        for (Operand& operand : instruction.operands) rename(operand, renamed);
      }
      define(linked_.functions, std::move(copy), renamed);
    }
  }

 private:
  template <class Symbol>
  void keep_apart(const Symbol& symbol, std::string_view name, size_t number, Names& renamed) {
    if (symbol.linkage != Linkage::kLocal || uses_.at(name) == 1) return;
    renamed[name] = linked_.names.emplace_back(std::string(name) + "@" + std::to_string(number));
  }

  template <class Symbol>
  void define(std::map<std::string_view, Symbol>& symbols, Symbol symbol, const Names& renamed) {
    if (const auto found = renamed.find(symbol.name); found != renamed.end()) symbol.name = found->second;
    const auto [known, is_new] = symbols.try_emplace(symbol.name, symbol);
    if (is_new || !is_defined(symbol)) return;
    if (!is_defined(known->second) || known->second.linkage == Linkage::kWeak) known->second = std::move(symbol);
  }

  PtxModule& linked_;
  std::map<std::string_view, int> uses_;  // number of modules that have the name
};

}  // namespace

std::shared_ptr<const PtxModule> link_ptx(std::vector<std::shared_ptr<const PtxModule>> modules) {
  if (modules.size() == 1) return modules.front();
  auto linked = std::make_shared<PtxModule>();
  linked->parts = std::move(modules);
  Linker linker(*linked);
  for (size_t i = 0; i < linked->parts.size(); ++i) linker.add(*linked->parts[i], i);
  for (const auto& [name, variable] : linked->variables) {
    if (variable.linkage == Linkage::kExtern && variable.place != Variable::kShared) {
      throw PtxError("no source defines the variable '" + std::string(name) + "' for the GPU");
    }
  }
  return linked;
}

}  // namespace pkb::emulator
