#include "ptx_parser.h"

#include <bit>
#include <charconv>
#include <cstdlib>

#include "alignment.h"

namespace pkb::emulator {
namespace {

int read_int(Lexer& lexer) {
  const bool negative = lexer.accept("-");
  const Token token = lexer.next();
  if (token.kind != Token::kNumber) lexer.fail("expected a number before this");
  const int64_t value = int64_t(read_number(token.text).bits);
  return int(negative ? -value : value);
}

void skip_braces(Lexer& lexer) {
  lexer.expect("{");
  for (int depth = 1; depth > 0;) {
    const Token token = lexer.next();
    if (token.kind == Token::kEnd) lexer.fail("a '}' is missing");
    depth += token.is("{") - token.is("}");
  }
}

void skip_statement(Lexer& lexer) {
  while (!lexer.accept(";")) {
    if (lexer.next().kind == Token::kEnd) lexer.fail("a ';' is missing");
  }
}

// One initial value, or a list in braces of them, appended to the variable's bytes.
void read_initial(Lexer& lexer, Variable& variable, uint32_t element) {
  if (lexer.accept("{")) {
    while (!lexer.accept("}")) {
      read_initial(lexer, variable, element);
      lexer.accept(",");
    }
    return;
  }
  const bool negative = lexer.accept("-");
  const Token token = lexer.next();
  uint64_t bits = 0;
  if (token.kind == Token::kNumber) {
    const Operand number = read_number(token.text);
    bits = negative ? uint64_t(-int64_t(number.bits)) : number.bits;
    if (number.is_float && !number.is_single && element == 4) {
      bits = std::bit_cast<uint32_t>(float(std::bit_cast<double>(number.bits)));
    }
  } else {
    std::string_view symbol = token.text;
    if (symbol == "generic") {
      lexer.expect("(");
      symbol = lexer.next().text;
      lexer.expect(")");
    }
    const int64_t offset = lexer.accept("+") ? read_int(lexer) : 0;
    variable.addresses.push_back({variable.initial.size(), symbol, offset});
  }
  for (uint32_t i = 0; i < element; ++i) variable.initial.push_back(i < 8 ? uint8_t(bits >> (8 * i)) : 0);
}

Linkage read_linkage(Lexer& lexer) {
  if (lexer.accept(".visible")) return Linkage::kVisible;
  if (lexer.accept(".extern")) return Linkage::kExtern;
  if (lexer.accept(".weak") || lexer.accept(".common")) return Linkage::kWeak;
  return Linkage::kLocal;
}

class Parser {
 public:
  explicit Parser(PtxModule& module) : module_(module), lexer_(module.text), lines_(module) {}

  void read() {
    while (lexer_.peek().kind != Token::kEnd) read_declaration();
  }

 private:
  void read_declaration() {
    const Linkage linkage = read_linkage(lexer_);
    const Token token = lexer_.next();
    if (token.is(".version") || token.is(".address_size")) {
      lexer_.next();
    } else if (token.is(".target")) {
      lexer_.next();
      while (lexer_.accept(",")) lexer_.next();
    } else if (token.is(".file")) {
      lines_.read_file(lexer_);
    } else if (token.is(".loc")) {
      lines_.read_location(lexer_);
    } else if (token.is(".section")) {
      lexer_.next();
      skip_braces(lexer_);
    } else if (token.is(".pragma") || token.is(".alias")) {
      skip_statement(lexer_);
    } else if (token.is(".global") || token.is(".const") || token.is(".shared")) {
      read_variables(token.text, linkage);
    } else if (token.is(".entry") || token.is(".func")) {
      read_function(token.is(".entry"), linkage);
    } else if (!token.is(";")) {
      throw PtxError("PTX line " + std::to_string(token.line) + ": unknown declaration '" + std::string(token.text) + "'");
    }
  }

  void read_variables(std::string_view space, Linkage linkage) {
    const auto place = space == ".global" ? Variable::kGlobal : space == ".const" ? Variable::kConstant : Variable::kShared;
    do {
      Variable variable = read_variable(lexer_, place);
      variable.linkage = linkage;
      const auto name = variable.name;
      module_.variables[name] = std::move(variable);
    } while (lexer_.accept(","));
    lexer_.expect(";");
  }

  std::vector<Variable> read_parameters() {
    std::vector<Variable> list;
    if (!lexer_.accept("(")) return list;
    while (!lexer_.accept(")")) {
      const Token space = lexer_.next();
      if (!space.is(".param") && !space.is(".reg")) lexer_.fail("expected '.param' before this");
      list.push_back(read_variable(lexer_, Variable::kParameter));
      lexer_.accept(",");
    }
    return list;
  }

  void read_function(bool is_entry, Linkage linkage) {
    std::vector<Variable> results;
    if (lexer_.peek().is("(")) results = read_parameters();
    const std::string_view name = lexer_.next().text;
    Function function;
    function.name = name;
    function.is_entry = is_entry;
    function.linkage = linkage;
    function.results = std::move(results);
    function.parameters = read_parameters();
    lay_out(function);
    read_directives(function);
    if (lexer_.accept(";")) {
      module_.functions.try_emplace(name, std::move(function));
      return;
    }
    lexer_.expect("{");
    function.defined = true;
    read_body(lexer_, module_, function, lines_);
    order_operands(function);
    find_meeting_points(function);
    find_deciding_registers(function);
    find_uses(function);
    module_.functions[name] = std::move(function);
  }

  // A kernel's parameters lie in one block, in order; a function's, after its results, at the start of a lane's frame.
  static void lay_out(Function& function) {
    uint64_t at = 0;
    for (auto* list : {&function.results, &function.parameters}) {
      for (Variable& variable : *list) {
        at = align_up(at, variable.alignment);
        variable.offset = at;
        at += variable.bytes;
      }
    }
    function.parameter_bytes = at;
    function.local_bytes = function.is_entry ? 0 : align_up(at, 16);
  }

  void read_directives(Function& function) {
    while (true) {
      if (lexer_.accept(".maxntid") || lexer_.accept(".reqntid")) {
        function.max_threads = read_int(lexer_);
        while (lexer_.accept(",")) function.max_threads *= read_int(lexer_);
      } else if (lexer_.accept(".minnctapersm")) {
        function.min_blocks = read_int(lexer_);
      } else if (lexer_.accept(".reqnctapercluster")) {
        uint32_t* to = function.cluster;
        to[0] = to[1] = to[2] = 1;
        do *to++ = uint32_t(read_int(lexer_));
        while (lexer_.accept(",") && to < function.cluster + 3);
      } else if (lexer_.accept(".maxnreg") || lexer_.accept(".maxclusterrank")) {
        read_int(lexer_);
      } else if (lexer_.accept(".pragma")) {
        skip_statement(lexer_);
      } else if (!lexer_.accept(".noreturn") && !lexer_.accept(".explicitcluster") && !lexer_.accept(".blocksareclusters")) {
        return;
      }
    }
  }

  PtxModule& module_;
  Lexer lexer_;
  LineTable lines_;
};

}  // namespace

uint32_t type_bytes(std::string_view type) {
  if (type == ".b128") return 16;
  if (type.ends_with("64")) return 8;
  if (type.ends_with("32") || type.ends_with("16x2")) return 4;
  if (type.ends_with("16")) return 2;
  if (type.ends_with("8")) return 1;
  throw PtxError("unknown type '" + std::string(type) + "'");
}

Operand read_number(std::string_view text) {
  Operand operand;
  operand.kind = Operand::kImmediate;
  const auto hexadecimal = [](std::string_view digits) {
    uint64_t value = 0;
    std::from_chars(digits.data(), digits.data() + digits.size(), value, 16);
    return value;
  };
  if (text.size() > 2 && (text[1] == 'f' || text[1] == 'F') && text[0] == '0') {
    operand.bits = hexadecimal(text.substr(2));
    operand.is_float = operand.is_single = true;
  } else if (text.size() > 2 && (text[1] == 'd' || text[1] == 'D') && text[0] == '0') {
    operand.bits = hexadecimal(text.substr(2));
    operand.is_float = true;
  } else if (text.find('.') != std::string_view::npos) {
    operand.bits = std::bit_cast<uint64_t>(std::strtod(std::string(text).c_str(), nullptr));
    operand.is_float = true;
  } else {
    if (text.ends_with('U') && !text.starts_with("0x")) text.remove_suffix(1);
    operand.bits = std::strtoull(std::string(text).c_str(), nullptr, 0);
  }
  return operand;
}

Variable read_variable(Lexer& lexer, Variable::Place place) {
  Variable variable{};
  variable.place = place;
  bool aligned = false;
  std::string_view type;
  uint32_t vector = 1;
  while (lexer.peek().text.starts_with('.')) {
    const Token token = lexer.next();
    if (token.is(".align")) {
      variable.alignment = uint32_t(read_int(lexer));
      aligned = true;
    } else if (token.is(".attribute")) {
      while (!lexer.accept(")")) lexer.next();
    } else if (token.is(".v2") || token.is(".v4")) {
      vector = uint32_t(token.text[2] - '0');
    } else if (!token.is(".ptr") && !token.is(".global") && !token.is(".shared") && !token.is(".local") &&
               !token.is(".const")) {
      type = token.text;
    }
  }
  variable.name = lexer.next().text;
  const uint32_t element = type_bytes(type) * vector;
  if (!aligned) variable.alignment = element;
  uint64_t count = 1;
  bool open_ended = false;
  while (lexer.accept("[")) {
    if (lexer.accept("]")) {
      open_ended = true;
      continue;
    }
    count *= uint64_t(read_int(lexer));
    lexer.expect("]");
  }
  variable.bytes = open_ended ? 0 : count * element;
  if (lexer.accept("=")) {
    read_initial(lexer, variable, element / vector);
    if (open_ended) variable.bytes = variable.initial.size();
  }
  return variable;
}

void LineTable::read_file(Lexer& lexer) {
  const int number = read_int(lexer);
  module_.files.emplace_back(lexer.next().text);
  module_.file_of[number] = module_.files.back().c_str();
  while (lexer.accept(",")) read_int(lexer);
}

void LineTable::read_location(Lexer& lexer) {
  const Place at{read_int(lexer), read_int(lexer), read_int(lexer)};
  bool inlined = false;
  Place outer{};
  while (lexer.accept(",")) {
    if (lexer.accept("function_name")) {
      lexer.next();
      if (lexer.accept("+")) read_int(lexer);
    } else if (lexer.accept("inlined_at")) {
      for (int& part : outer) part = read_int(lexer);
      inlined = true;
    }
  }
  if (at[1] == 0) return;  // code of the compiler's own
  const auto file = [&](int number) {
    const auto found = module_.file_of.find(number);
    return found == module_.file_of.end() ? nullptr : found->second;
  };
  current_ = SourceLine{file(at[0]), at[1], nullptr, 0};
  if (!inlined) return;
  inlined_at_[at] = outer;
  for (int depth = 0; depth < 32; ++depth) {
    const auto next = inlined_at_.find(outer);
    if (next == inlined_at_.end() || next->second == outer) break;
    outer = next->second;
  }
  current_.outer_file = file(outer[0]);
  current_.outer_line = outer[1];
}

std::shared_ptr<const PtxModule> parse_ptx(std::string_view text) {
  auto module = std::make_shared<PtxModule>();
  module->text = std::string(text);
  // .file directives stand at the end of the text that refers to them.
  Lexer files(module->text);
  LineTable table(*module);
  for (Token token = files.next(); token.kind != Token::kEnd; token = files.next()) {
    if (token.is(".file")) table.read_file(files);
  }
  Parser(*module).read();
  return module;
}

}  // namespace pkb::emulator
