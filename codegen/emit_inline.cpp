// check_inline_code: inline code stays inside the braces it is put between. Not a sandbox: it is run because a user
// said so.
#include <fmt/format.h>

#include <vector>

#include "codegen/emit_sources.hpp"

namespace ccks::codegen {
namespace {

class Scanner {
 public:
  explicit Scanner(const std::string& code) : code_(code) {}

  Status run() {
    while (at_ < code_.size()) {
      const char c = code_[at_];
      if (c == '\n') ++line_;
      if (starts("//"))
        skip_line();
      else if (starts("/*"))
        CCKS_RETURN_IF_ERROR(skip_comment());
      else if (c == '"' || (c == '\'' && !digit_separator()))
        CCKS_RETURN_IF_ERROR(skip_quoted(c));
      else
        CCKS_RETURN_IF_ERROR(one(c));
    }
    return open_.empty() ? Status() : refuse(fmt::format("a '{}' is not closed", open_.back()));
  }

 private:
  Status refuse(const std::string& why) const {
    return {ErrorCode::invalid_data, fmt::format("line {} of the code: {}", line_, why)};
  }
  bool starts(const char* text) const { return code_.compare(at_, std::char_traits<char>::length(text), text) == 0; }
  bool digit_separator() const { return at_ > 0 && std::isalnum(static_cast<unsigned char>(code_[at_ - 1])) != 0; }

  Status one(char c) {
    if (c == '#' || starts("%:")) return refuse("preprocessor directives are refused");
    if (c == '\\') return refuse("a backslash outside of a literal is refused");
    if (c == '"' || starts("R\"")) return refuse("raw strings are refused");
    if (c != '\n' && c != '\t' && (static_cast<unsigned char>(c) < 0x20 || static_cast<unsigned char>(c) > 0x7e))
      return refuse("only printable ASCII is accepted");
    const char closes = c == '{' || starts("<%") ? '}' : c == '(' ? ')' : c == '[' || starts("<:") ? ']' : 0;
    if (starts("<%") || starts("%>") || starts("<:") || starts(":>")) return refuse("digraphs are refused");
    if (closes) open_.push_back(c);
    if (c == '}' || c == ')' || c == ']') {
      const char want = c == '}' ? '{' : c == ')' ? '(' : '[';
      if (open_.empty() || open_.back() != want) return refuse(fmt::format("a '{}' closes nothing", c));
      open_.pop_back();
    }
    ++at_;
    return {};
  }
  void skip_line() {
    while (at_ < code_.size() && code_[at_] != '\n') ++at_;
  }
  Status skip_comment() {
    const std::size_t end = code_.find("*/", at_ + 2);
    if (end == std::string::npos) return refuse("a comment is not closed");
    for (; at_ < end + 2; ++at_)
      if (code_[at_] == '\n') ++line_;
    return {};
  }
  Status skip_quoted(char quote) {
    if (quote == '"' && at_ > 0 && code_[at_ - 1] == 'R') return refuse("raw strings are refused");
    for (++at_; at_ < code_.size() && code_[at_] != quote && code_[at_] != '\n'; ++at_)
      if (code_[at_] == '\\') ++at_;
    if (at_ >= code_.size() || code_[at_] != quote) return refuse("a literal is not closed");
    ++at_;
    return {};
  }

  const std::string& code_;
  std::size_t at_ = 0;
  std::size_t line_ = 1;
  std::vector<char> open_;
};

/// A comment line that ends in a backslash would swallow the next line.
Status check_continuations(const std::string& code) {
  for (std::size_t at = 0; at < code.size(); ++at) {
    if (code[at] != '\\') continue;
    std::size_t next = at + 1;
    while (next < code.size() && (code[next] == ' ' || code[next] == '\t' || code[next] == '\r')) ++next;
    if (next == code.size() || code[next] == '\n')
      return {ErrorCode::invalid_data, "a line of the code ends in a backslash"};
  }
  return {};
}

}  // namespace

Status check_inline_code(const std::string& code) {
  CCKS_RETURN_IF_ERROR(check_continuations(code));
  return Scanner(code).run();
}

}  // namespace ccks::codegen
