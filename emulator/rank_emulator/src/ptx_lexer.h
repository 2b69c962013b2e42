// Splits PTX text into tokens.
#pragma once

#include <stdexcept>
#include <string>
#include <string_view>

namespace pkb::emulator {

// PTX that cannot be read or executed. The text names the line of the PTX.
class PtxError : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

struct Token {
  enum Kind { kWord, kNumber, kPunctuation, kString, kEnd } kind = kEnd;
  std::string_view text;
  int line = 0;

  bool is(std::string_view other) const { return text == other && kind != kString; }
};

// Words hold letters, digits, and any of "_$%." and "::"; opcodes with their modifiers are one word. A number begins with
// a digit; a sign is a token of its own.
class Lexer {
 public:
  explicit Lexer(std::string_view text) : text_(text) { advance(); }

  const Token& peek() const { return current_; }
  Token next();
  bool accept(std::string_view text);
  Token expect(std::string_view text);
  [[noreturn]] void fail(const std::string& problem) const;

 private:
  void advance();
  void skip_blanks();

  std::string_view text_;
  size_t at_ = 0;
  int line_ = 1;
  Token current_;
};

}  // namespace pkb::emulator
