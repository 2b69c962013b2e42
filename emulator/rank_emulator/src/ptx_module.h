// PTX as it was read: variables, functions and instructions with their operands, source lines, and control flow.
#pragma once

#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "events.h"

namespace pkb::emulator {

// Width of a register's lane in bytes; predicates have a bit.
enum class RegisterClass : uint8_t { kPredicate, k16, k32, k64, k128 };
constexpr int kRegisterClasses = 5;
constexpr int kLaneBytes[kRegisterClasses] = {0, 2, 4, 8, 16};

struct Register {
  RegisterClass kind;
  std::string name;
};

struct Operand {
  enum Kind {
    kRegister,   // `index` of the function's registers; `negated`: !%p
    kImmediate,  // `bits`, and whether it was written as a float
    kSpecial,    // `name`: "%tid.x"
    kSymbol,     // the address of a variable plus `offset`
    kAddress,    // [base + offset]; base: `index` of a register, or -1 with `name` of a variable, or neither
    kVector,     // {a, b, ...} or (a, b, ...) in `elements`
    kSink,       // _
    kPair        // a|b in `elements`
  } kind = kSink;
  int index = -1;
  bool negated = false;   // !%p, or -%r of vmad
  std::string_view part;  // of kRegister: which part of it a video instruction takes, "b0"
  uint64_t bits = 0;
  bool is_float = false;  // bits hold a double or a float, by the width with which it was written
  bool is_single = false;
  int64_t offset = 0;
  int local = -1;         // of kSymbol and kAddress: the variable of the function, else `name` is one of the module
  std::string_view name;
  std::vector<Operand> elements;  // of kVector, kPair, and the coordinates of a tensor in kAddress
};

struct Instruction {
  std::string_view opcode;              // with all modifiers
  std::vector<std::string_view> parts;  // opcode cut at the dots
  int guard = -1;                       // register
  bool guard_negated = false;
  std::vector<Operand> operands;
  SourceLine line{};
  int ptx_line = 0;
  int target = -1;                      // of bra: instruction
  std::vector<int> targets;             // of brx.idx
  bool exchanged = false;               // the second operand stands before the first

  bool has(std::string_view modifier) const {
    for (size_t i = 1; i < parts.size(); ++i) {
      if (parts[i] == modifier) return true;
    }
    return false;
  }
};

// Who may name what a module declares: itself alone, others as well, or all as one where several define it (.weak, .common);
// kExtern: another one defines it.
enum class Linkage : uint8_t { kLocal, kVisible, kWeak, kExtern };

// A variable of the module or of a function.
struct Variable {
  enum Place { kGlobal, kConstant, kShared, kLocal, kParameter } place;
  std::string_view name;
  uint32_t alignment = 1;
  uint64_t bytes = 0;         // 0 of an extern .shared array: dynamic shared memory
  Linkage linkage = Linkage::kLocal;
  std::vector<uint8_t> initial;
  struct Address { uint64_t at; std::string_view symbol; int64_t offset; };
  std::vector<Address> addresses;  // initial values that are addresses of other variables
  uint64_t offset = 0;        // of .shared, .local and .param: where it lies in its block's, lane's or kernel's memory
};

struct Function {
  std::string_view name;
  bool is_entry = false;
  bool defined = false;
  Linkage linkage = Linkage::kLocal;
  std::vector<Variable> parameters;  // .param: offsets in the parameter block
  std::vector<Variable> results;     // of .func
  std::vector<Variable> locals;      // .local, .shared and .param variables of the body
  uint64_t parameter_bytes = 0;      // of results and parameters together (of .func: at the start of its local frame)
  uint64_t local_bytes = 0;          // a lane's frame: parameters and results (.func), .local and .param variables
  uint64_t stack_bytes = 0;          // of it .local variables: what a GPU has in memory; it passes parameters in registers
  std::vector<Register> registers;
  std::vector<Instruction> code;
  int max_threads = 0, min_blocks = 0;
  uint32_t cluster[3] = {0, 0, 0};   // .reqnctapercluster; 0: not given
  std::vector<bool> deciding;        // registers whose value may decide where a thread goes, or goes where nobody follows it
  // Control flow: for each instruction that can diverge (bra, brx) the instruction where its paths meet, -1: at the end.
  std::vector<int> meets;
  // Plain loads after which a lane may go without any use of the value, and for an instruction those whose value it uses.
  std::vector<bool> may_be_unused;
  std::unordered_map<int, std::vector<int>> uses;
};

struct PtxModule {
  std::string text;  // views of names point into it
  std::map<std::string_view, Variable> variables;  // .global, .const, .shared of module scope
  std::map<std::string_view, Function> functions;
  std::deque<std::string> files;
  std::map<int, const char*> file_of;
  // Of a module that was linked: those it was made of, and the names that differ from theirs. Views point into them.
  std::vector<std::shared_ptr<const PtxModule>> parts;
  std::deque<std::string> names;
};

// Reads PTX. Throws PtxError.
// Bytes of an element of a type name such as ".b32".
uint32_t type_bytes(std::string_view type);

std::shared_ptr<const PtxModule> parse_ptx(std::string_view text);

// One module of several, by the rules of nvlink: what one defines stands for what others declare, and one weak definition
// for all. Names that a module keeps to itself stay apart; the linker of the host refuses what two define otherwise. Throws
// PtxError: none defines a variable. A function that none defines may be one of the device's own.
std::shared_ptr<const PtxModule> link_ptx(std::vector<std::shared_ptr<const PtxModule>> modules);

// Exchanges the first two operands of f64 sums and products where ptxas does: the one that is computed earlier comes first, a
// literal second. The result is the same but for the choice between two NaN.
void order_operands(Function& function);

// Fills `meets`: immediate post-dominators of branches.
void find_meeting_points(Function& function);

// Whether all that an instruction does is to compute its result.
bool is_arithmetic(const Instruction& instruction);
// Fills `may_be_unused` and `uses`. Arithmetic uses nothing by itself: its results have to be used.
void find_uses(Function& function);

// Fills `deciding`. What a thread loads into another register is data to it: it waits for no value there.
void find_deciding_registers(Function& function);
// Whether the result of an instruction lies in such a register.
bool decides(const Function& function, const Instruction& instruction);

}  // namespace pkb::emulator
