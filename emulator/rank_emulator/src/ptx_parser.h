// Reads PTX text: declarations of modules and functions. Bodies of functions are read by ptx_body.h.
#pragma once

#include <array>
#include <map>

#include "ptx_lexer.h"
#include "ptx_module.h"

namespace pkb::emulator {

// The position in the source that `.loc` gives, and where it was inlined.
class LineTable {
 public:
  explicit LineTable(PtxModule& module) : module_(module) {}

  void read_file(Lexer& lexer);
  void read_location(Lexer& lexer);
  SourceLine current() const { return current_; }

 private:
  using Place = std::array<int, 3>;  // file, line, column

  PtxModule& module_;
  std::map<Place, Place> inlined_at_;
  SourceLine current_{};
};

// A number token as PTX writes it: decimal, 0x.., 0f.. (float bits), 0d.. (double bits), 1.5.
Operand read_number(std::string_view text);
// A variable without its place: .align 4 .b8 name[16] = {...}. Up to the ',', ';' or ')' after it.
Variable read_variable(Lexer& lexer, Variable::Place place);
// The body of a function, after its '{' and up to its '}'.
void read_body(Lexer& lexer, const PtxModule& module, Function& function, LineTable& lines);

}  // namespace pkb::emulator
