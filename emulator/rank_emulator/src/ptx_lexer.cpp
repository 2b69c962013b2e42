#include "ptx_lexer.h"

#include <array>
#include <cctype>

namespace pkb::emulator {
namespace {

constexpr auto kInWord = [] {
  std::array<bool, 256> table{};
  for (int c = 0; c < 256; ++c) {
    const bool letter = (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9');
    table[size_t(c)] = letter || c == '_' || c == '$' || c == '%' || c == '.';
  }
  return table;
}();

bool in_word(char c) { return kInWord[static_cast<unsigned char>(c)]; }

}  // namespace

Token Lexer::next() {
  Token token = current_;
  advance();
  return token;
}

bool Lexer::accept(std::string_view text) {
  if (!current_.is(text)) return false;
  advance();
  return true;
}

Token Lexer::expect(std::string_view text) {
  if (!current_.is(text)) fail("expected '" + std::string(text) + "'");
  return next();
}

void Lexer::fail(const std::string& problem) const {
  throw PtxError("PTX line " + std::to_string(current_.line) + ": " + problem + ", got '" + std::string(current_.text) + "'");
}

void Lexer::skip_blanks() {
  while (at_ < text_.size()) {
    const char c = text_[at_];
    if (c == '\n') ++line_;
    if (std::isspace(static_cast<unsigned char>(c))) {
      ++at_;
    } else if (text_.compare(at_, 2, "//") == 0) {
      at_ = std::min(text_.find('\n', at_), text_.size());
    } else if (text_.compare(at_, 2, "/*") == 0) {
      const size_t end = std::min(text_.find("*/", at_), text_.size());
      for (size_t i = at_; i < end; ++i) line_ += text_[i] == '\n';
      at_ = std::min(end + 2, text_.size());
    } else {
      return;
    }
  }
}

void Lexer::advance() {
  skip_blanks();
  current_ = Token{Token::kEnd, {}, line_};
  if (at_ >= text_.size() || text_[at_] == '\0') return;
  const size_t begin = at_;
  const char c = text_[at_];
  if (c == '"') {
    const size_t end = std::min(text_.find('"', at_ + 1), text_.size());
    current_ = Token{Token::kString, text_.substr(begin + 1, end - begin - 1), line_};
    at_ = std::min(end + 1, text_.size());
    return;
  }
  if (in_word(c)) {
    // Directives may follow each other without a blank: .reg.b16.
    const auto ends = [&] { return c == '.' && text_[at_] == '.' && at_ > begin; };
    while (at_ < text_.size() && (in_word(text_[at_]) || text_.compare(at_, 2, "::") == 0) && !ends()) {
      at_ += in_word(text_[at_]) ? 1 : 2;
    }
    const bool number = std::isdigit(static_cast<unsigned char>(c)) != 0;
    current_ = Token{number ? Token::kNumber : Token::kWord, text_.substr(begin, at_ - begin), line_};
    return;
  }
  ++at_;
  current_ = Token{Token::kPunctuation, text_.substr(begin, 1), line_};
}

}  // namespace pkb::emulator
