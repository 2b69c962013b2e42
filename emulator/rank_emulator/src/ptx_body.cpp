// Reads the body of a function: registers, variables, labels, instructions and their operands.
#include <algorithm>
#include <optional>

#include "alignment.h"
#include "ptx_parser.h"

namespace pkb::emulator {
namespace {

RegisterClass class_of(std::string_view type) {
  if (type == ".pred") return RegisterClass::kPredicate;
  switch (type_bytes(type)) {
    case 4: return RegisterClass::k32;
    case 8: return RegisterClass::k64;
    case 16: return RegisterClass::k128;
    default: return RegisterClass::k16;
  }
}

// Names that are visible between a '{' and its '}'.
struct Scope {
  int parent = -1;
  std::map<std::string_view, int> registers;  // also first of a range: name without number
  std::map<std::string_view, int> ranges;
  std::map<std::string_view, int> variables;
  std::map<std::string_view, int> labels;
  std::map<std::string_view, std::vector<std::string_view>> tables;  // .branchtargets
  uint64_t local_bytes = 0;  // of the frame, where the scope began
};

class Body {
 public:
  Body(Lexer& lexer, const PtxModule& module, Function& function, LineTable& lines)
      : lexer_(lexer), module_(module), function_(function), lines_(lines) {
    scopes_.push_back({});
    frame_ = function.local_bytes;
    for (auto* list : {&function.results, &function.parameters}) {
      for (const Variable& variable : *list) add_variable(variable);
    }
  }

  void read() {
    while (scope_ >= 0) read_statement();
    function_.local_bytes = align_up(function_.local_bytes, 16);
    for (const Jump& jump : jumps_) resolve(jump);
  }

 private:
  struct Jump {
    int instruction, scope;
    std::string_view label;
    int ptx_line;
  };

  void add_variable(const Variable& variable) {
    scopes_[size_t(scope_)].variables[variable.name] = int(function_.locals.size());
    function_.locals.push_back(variable);
  }

  void read_statement() {
    const Token& token = lexer_.peek();
    if (token.kind == Token::kEnd) lexer_.fail("the body of " + std::string(function_.name) + " has no end");
    if (lexer_.accept("{")) {
      scopes_.push_back({});
      scopes_.back().parent = scope_;
      scopes_.back().local_bytes = frame_;
      scope_ = int(scopes_.size()) - 1;
    } else if (lexer_.accept("}")) {
      frame_ = scopes_[size_t(scope_)].local_bytes;
      scope_ = scopes_[size_t(scope_)].parent;
    } else if (lexer_.accept(";")) {
    } else if (lexer_.accept(".loc")) {
      lines_.read_location(lexer_);
    } else if (lexer_.accept(".reg")) {
      read_registers();
    } else if (token.is(".local") || token.is(".shared") || token.is(".param") || token.is(".global") || token.is(".const")) {
      read_variables();
    } else if (lexer_.accept(".pragma")) {
      while (!lexer_.accept(";")) lexer_.next();
    } else {
      read_label_or_instruction();
    }
  }

  int add_register(RegisterClass kind, std::string name) {
    function_.registers.push_back({kind, std::move(name)});
    return int(function_.registers.size()) - 1;
  }

  void read_registers() {
    std::string_view type = lexer_.next().text;
    const RegisterClass kind = class_of(type);
    do {
      const std::string_view name = lexer_.next().text;
      Scope& scope = scopes_[size_t(scope_)];
      if (lexer_.accept("<")) {
        const int count = int(read_number(lexer_.next().text).bits);
        lexer_.expect(">");
        scope.ranges[name] = int(function_.registers.size());
        for (int i = 0; i < count; ++i) add_register(kind, std::string(name) + std::to_string(i));
      } else {
        scope.registers[name] = add_register(kind, std::string(name));
      }
    } while (lexer_.accept(","));
    lexer_.expect(";");
  }

  void read_variables() {
    const Token space = lexer_.next();
    const auto place = space.is(".local")    ? Variable::kLocal
                       : space.is(".shared") ? Variable::kShared
                       : space.is(".param")  ? Variable::kParameter
                                             : Variable::kGlobal;
    if (place == Variable::kGlobal) lexer_.fail("variables of this space inside a function are not supported");
    do {
      Variable variable = read_variable(lexer_, place);
      if (place != Variable::kShared) {
        frame_ = align_up(frame_, std::max(variable.alignment, 4u));
        if (place == Variable::kLocal) function_.stack_bytes += variable.bytes;
        variable.place = Variable::kLocal;
        variable.offset = frame_;
        frame_ += variable.bytes;
        function_.local_bytes = std::max(function_.local_bytes, frame_);
      }
      add_variable(variable);
    } while (lexer_.accept(","));
    lexer_.expect(";");
  }

  void read_label_or_instruction() {
    int guard = -1;
    bool negated = false;
    if (lexer_.accept("@")) {
      negated = lexer_.accept("!");
      const Token name = lexer_.next();
      const auto found = find_register(name.text);
      if (!found) lexer_.fail("unknown predicate '" + std::string(name.text) + "'");
      guard = *found;
    }
    const Token word = lexer_.next();
    if (guard < 0 && lexer_.accept(":")) {
      read_label(word.text);
      return;
    }
    Instruction instruction;
    instruction.opcode = word.text;
    instruction.parts = cut(word.text);
    instruction.guard = guard;
    instruction.guard_negated = negated;
    instruction.line = lines_.current();
    instruction.ptx_line = word.line;
    const int index = int(function_.code.size());
    while (!lexer_.accept(";")) {
      instruction.operands.push_back(read_operand());
      if (!lexer_.accept(",") && !lexer_.peek().is(";")) lexer_.fail("expected ',' or ';'");
    }
    note_jumps(instruction, index);
    function_.code.push_back(std::move(instruction));
  }

  void read_label(std::string_view name) {
    if (lexer_.accept(".branchtargets")) {
      auto& table = scopes_[size_t(scope_)].tables[name];
      do table.push_back(lexer_.next().text);
      while (lexer_.accept(","));
      lexer_.expect(";");
    } else if (lexer_.accept(".callprototype") || lexer_.accept(".calltargets")) {
      while (!lexer_.accept(";")) lexer_.next();
    } else {
      scopes_[size_t(scope_)].labels[name] = int(function_.code.size());
    }
  }

  void note_jumps(Instruction& instruction, int index) {
    if (instruction.parts[0] == "bra") {
      jumps_.push_back({index, scope_, instruction.operands.at(0).name, instruction.ptx_line});
    } else if (instruction.parts[0] == "brx") {
      jumps_.push_back({index, scope_, instruction.operands.at(1).name, instruction.ptx_line});
    }
  }

  void resolve(const Jump& jump) {
    Instruction& instruction = function_.code[size_t(jump.instruction)];
    const auto label = [&](std::string_view name) {
      for (int scope = jump.scope; scope >= 0; scope = scopes_[size_t(scope)].parent) {
        const auto found = scopes_[size_t(scope)].labels.find(name);
        if (found != scopes_[size_t(scope)].labels.end()) return found->second;
      }
      throw PtxError("PTX line " + std::to_string(jump.ptx_line) + ": unknown label '" + std::string(name) + "'");
    };
    if (instruction.parts[0] == "bra") {
      instruction.target = label(jump.label);
      return;
    }
    for (int scope = jump.scope; scope >= 0; scope = scopes_[size_t(scope)].parent) {
      const auto found = scopes_[size_t(scope)].tables.find(jump.label);
      if (found == scopes_[size_t(scope)].tables.end()) continue;
      for (const auto name : found->second) instruction.targets.push_back(label(name));
      return;
    }
    throw PtxError("PTX line " + std::to_string(jump.ptx_line) + ": unknown table of branch targets");
  }

  static std::vector<std::string_view> cut(std::string_view opcode) {
    std::vector<std::string_view> parts;
    for (size_t begin = 0; begin <= opcode.size();) {
      const size_t end = std::min(opcode.find('.', begin), opcode.size());
      parts.push_back(opcode.substr(begin, end - begin));
      begin = end + 1;
    }
    return parts;
  }

  std::optional<int> find_register(std::string_view name) const {
    const size_t digits = name.find_last_not_of("0123456789") + 1;
    for (int at = scope_; at >= 0; at = scopes_[size_t(at)].parent) {
      const Scope& scope = scopes_[size_t(at)];
      if (const auto found = scope.registers.find(name); found != scope.registers.end()) return found->second;
      if (digits == name.size()) continue;
      if (const auto found = scope.ranges.find(name.substr(0, digits)); found != scope.ranges.end()) {
        return found->second + std::stoi(std::string(name.substr(digits)));
      }
    }
    return std::nullopt;
  }

  std::optional<int> find_variable(std::string_view name) const {
    for (int at = scope_; at >= 0; at = scopes_[size_t(at)].parent) {
      const Scope& scope = scopes_[size_t(at)];
      if (const auto found = scope.variables.find(name); found != scope.variables.end()) return found->second;
    }
    return std::nullopt;
  }

  Operand read_list(std::string_view end) {
    Operand list;
    list.kind = Operand::kVector;
    while (!lexer_.accept(end)) {
      list.elements.push_back(read_operand());
      lexer_.accept(",");
    }
    return list;
  }

  Operand read_operand() {
    if (lexer_.accept("[")) return read_address();
    if (lexer_.accept("{")) return read_list("}");
    if (lexer_.accept("(")) return read_list(")");
    if (lexer_.accept("!")) {
      Operand operand = read_operand();
      operand.negated = true;
      return operand;
    }
    Operand operand = read_simple();
    if (lexer_.accept("|")) {
      Operand pair;
      pair.kind = Operand::kPair;
      pair.elements = {operand, read_simple()};
      return pair;
    }
    return operand;
  }

  int64_t read_offset() {
    int64_t offset = 0;
    while (lexer_.peek().is("+") || lexer_.peek().is("-")) {
      bool negative = lexer_.next().is("-");
      if (lexer_.accept("-")) negative = !negative;
      const int64_t value = int64_t(read_number(lexer_.next().text).bits);
      offset += negative ? -value : value;
    }
    return offset;
  }

  Operand read_simple() {
    Operand operand;
    if (lexer_.accept("-")) {
      if (lexer_.peek().kind != Token::kNumber) {
        operand = read_simple();
        operand.negated = true;
        return operand;
      }
      operand = read_number(lexer_.next().text);
      operand.bits = operand.is_float ? operand.bits ^ (operand.is_single ? 1ull << 31 : 1ull << 63) : uint64_t(-int64_t(operand.bits));
      return operand;
    }
    const Token token = lexer_.next();
    if (token.kind == Token::kNumber) return read_number(token.text);
    if (token.is("_")) return operand;
    operand.name = token.text;
    if (const auto found = find_register(token.text)) {
      operand.kind = Operand::kRegister;
      operand.index = *found;
    } else if (const size_t dot = token.text.find('.'); dot != std::string_view::npos && find_register(token.text.substr(0, dot))) {
      operand.kind = Operand::kRegister;
      operand.index = *find_register(token.text.substr(0, dot));
      operand.part = token.text.substr(dot + 1);
    } else if (token.text.starts_with('%')) {
      operand.kind = Operand::kSpecial;
    } else {
      operand.kind = Operand::kSymbol;
      operand.local = find_variable(token.text).value_or(-1);
      operand.offset = read_offset();
    }
    return operand;
  }

  Operand read_address() {
    Operand address;
    address.kind = Operand::kAddress;
    const Operand base = read_simple();
    if (base.kind == Operand::kImmediate) {
      address.offset = int64_t(base.bits);
    } else {
      address.index = base.index;
      address.name = base.name;
      address.local = base.local;
      address.offset = base.offset + read_offset();
    }
    if (lexer_.accept(",")) address.elements = read_operand().elements;
    lexer_.expect("]");
    return address;
  }

  Lexer& lexer_;
  const PtxModule& module_;
  Function& function_;
  LineTable& lines_;
  std::vector<Scope> scopes_;
  int scope_ = 0;
  uint64_t frame_ = 0;
  std::vector<Jump> jumps_;
};

}  // namespace

void read_body(Lexer& lexer, const PtxModule& module, Function& function, LineTable& lines) {
  Body(lexer, module, function, lines).read();
}

}  // namespace pkb::emulator
