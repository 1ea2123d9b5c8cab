#include "spec/text_check.hpp"

#include <algorithm>

namespace ccks::spec {
namespace {

constexpr int kMaxBrackets = 48;        // open at once; matches kMaxYamlDepth
constexpr int kMaxLineIndicators = 48;  // '-', '?' and ':' before the first value of a line: each opens a level
constexpr std::size_t kMaxLineBytes = 64 * 1024;

/// Length of the valid UTF-8 sequence at `i`, or 0.
std::size_t utf8_length(const std::string& s, std::size_t i) {
  const auto byte = [&](std::size_t k) { return k < s.size() ? static_cast<unsigned char>(s[k]) : 0u; };
  const unsigned b = byte(i);
  if (b < 0x80) return 1;
  const std::size_t n = b >= 0xc2 && b < 0xe0 ? 2 : b >= 0xe0 && b < 0xf0 ? 3 : b >= 0xf0 && b < 0xf5 ? 4 : 0;
  for (std::size_t k = 1; k < n; ++k)
    if ((byte(i + k) & 0xc0) != 0x80) return 0;
  // Overlong forms, surrogates and what lies past U+10FFFF.
  if ((b == 0xe0 && byte(i + 1) < 0xa0) || (b == 0xed && byte(i + 1) >= 0xa0)) return 0;
  if ((b == 0xf0 && byte(i + 1) < 0x90) || (b == 0xf4 && byte(i + 1) >= 0x90)) return 0;
  return n;
}

class TextChecker {
 public:
  TextChecker(const std::string& text, std::uint32_t file, Diagnostics& diagnostics)
      : text_(text), file_(file), diagnostics_(diagnostics) {}

  bool run() {
    for (std::size_t i = 0; i < text_.size();) {
      const std::size_t n = utf8_length(text_, i);
      const char c = text_[i];
      if (n == 0) return fail(i, code::kNotText, "not UTF-8 text", "save the file as UTF-8");
      if ((static_cast<unsigned char>(c) < 0x20 && c != '\n' && c != '\r' && c != '\t') || c == 0x7f)
        return fail(i, code::kNotText, "a control character in the text", "remove it");
      if (!step(i)) return false;
      i += n;
    }
    return true;
  }

 private:
  bool fail(std::size_t at, Code code, const char* message, const char* hint) {
    diagnostics_.error(code, {{file_, line_, static_cast<std::uint32_t>(at - line_begin_ + 1)}, 1}, message, hint);
    return false;
  }

  /// Rough lexing: quotes and comments hide brackets. Being wrong about an odd quote only makes the count rougher, and
  /// the tree builder counts levels again.
  bool step(std::size_t i) {
    const char c = text_[i];
    if (c == '\n') {
      ++line_;
      line_begin_ = i + 1;
      indicators_ = 0;
      leading_ = true;
      comment_ = false;
      return true;
    }
    if (i - line_begin_ > kMaxLineBytes)
      return fail(i, code::kTooLarge, "a line of more than 64 KiB", "break the line");
    if (comment_) return true;
    const char before = i > line_begin_ ? text_[i - 1] : ' ';
    if (quote_) {
      if (c == quote_ && !(quote_ == '"' && before == '\\')) quote_ = '\0';
      return true;
    }
    if (c == '#' && (before == ' ' || before == '\t')) {
      comment_ = true;
      return true;
    }
    if ((c == '"' || c == '\'') && std::string_view(" \t[{,:(-").find(before) != std::string_view::npos) {
      quote_ = c;
      leading_ = false;
      return true;
    }
    return count_nesting(i, c);
  }

  bool count_nesting(std::size_t i, char c) {
    if (c == '[' || c == '{') ++brackets_;
    if ((c == ']' || c == '}') && brackets_ > 0) --brackets_;
    if (brackets_ > kMaxBrackets)
      return fail(i, code::kTooLarge, "brackets nested too deeply", "at most 48 levels are read");
    if (leading_ && (c == '-' || c == '?' || c == ':'))
      ++indicators_;
    else if (c != ' ' && c != '\t')
      leading_ = false;
    if (indicators_ > kMaxLineIndicators)
      return fail(i, code::kTooLarge, "nested too deeply", "at most 48 levels are read");
    return true;
  }

  const std::string& text_;
  std::uint32_t file_;
  Diagnostics& diagnostics_;
  std::uint32_t line_ = 1;
  std::size_t line_begin_ = 0;
  int brackets_ = 0;
  int indicators_ = 0;
  bool leading_ = true;
  bool comment_ = false;
  char quote_ = '\0';
};

}  // namespace

bool check_text(const std::string& text, std::uint32_t file, Diagnostics& diagnostics) {
  return TextChecker(text, file, diagnostics).run();
}

}  // namespace ccks::spec
