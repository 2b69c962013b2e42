// How functions of PTX become what is executed; for the parts of that work.
#pragma once

#include <map>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "alignment.h"
#include "program.h"

namespace pkb::emulator {

// Offsets of .shared variables in the block's shared memory, for one kernel.
struct SharedLayout {
  std::map<std::string_view, uint32_t> offsets;
};

// Throws PtxError: the instruction is not known, with its name and line.
[[noreturn]] void refuse(const Instruction& instruction, const std::string& problem);

// Constants of a function, each for 32 lanes.
class Constants {
 public:
  Constants() : bytes_(64) {}
  Ref add(uint64_t bits, uint32_t bytes);
  AlignedBytes finish() const;

 private:
  std::vector<uint8_t> bytes_;
  std::map<std::pair<uint64_t, uint32_t>, uint32_t> places_;
};

// Where the operands of a function's instructions lie.
class OperandPlaces {
 public:
  // `offsets`: of registers in the frame.
  OperandPlaces(const Function& function, const std::vector<uint32_t>& offsets, const SharedLayout& shared, const SymbolAddress& address_of)
      : function_(function), offsets_(offsets), shared_(shared), address_of_(address_of) {}

  Ref register_ref(int index) const { return {offsets_[size_t(index)], kFrame}; }
  int register_bytes(int index) const;
  // An operand of arithmetic, of so many bytes.
  Ref operand_ref(const Instruction& instruction, const Operand& operand, uint32_t bytes);
  // Appends an operand of a handler, vectors flattened.
  void add_values(const Instruction& instruction, const Operand& operand, Detail& detail);
  Address address_of(const Instruction& instruction, const Operand& operand);

  Constants constants;

 private:
  uint64_t symbol(const Instruction& instruction, const Operand& operand) const;
  Ref special(const Instruction& instruction, std::string_view name) const;
  Value value_of(const Instruction& instruction, const Operand& operand, uint32_t immediate_bytes);

  const Function& function_;
  const std::vector<uint32_t>& offsets_;
  const SharedLayout& shared_;
  const SymbolAddress& address_of_;
};

// Order, scope, space and type that an instruction's modifiers name.
void read_modifiers(const Instruction& instruction, Detail& detail);

// Fills `code` from its function; returns the most words of registers that are live at once.
int prepare_function(const SharedLayout& shared, const SymbolAddress& address_of, const std::map<std::string_view, Code*>& codes, Code& code);

}  // namespace pkb::emulator
