// Collects complaints while a spec is read. Inside spec only; users see ParseResult::diagnostics.
#pragma once

#include <set>
#include <string>
#include <string_view>
#include <tuple>
#include <vector>

#include "spec/codes.hpp"
#include "spec/parse.hpp"

namespace ccks::spec {

/// A place in the text with the number of characters to underline.
struct Span {
  SourceLocation location;
  std::uint32_t length = 1;
};

/// A scalar of the spec and where it stands. `exact`: offsets in `text` are offsets in the file, which is not so for
/// folded or escaped strings and after a substitution.
struct Text {
  std::string text;
  Span span;
  bool exact = true;
  bool substituted = false;  // held a '{...}': a name made of it is the same everywhere

  Span at(std::size_t offset, std::size_t length = 1) const;
};

/// Diagnostics appends to a list that must outlive it. One complaint per place and code, since a repeat block would
/// say the same thing once for each pass; at most kMaxDiagnostics in all.
class Diagnostics {
 public:
  static constexpr std::size_t kMaxDiagnostics = 100;

  explicit Diagnostics(std::vector<Diagnostic>& out) : out_(out) {}
  void error(Code code, const Span& where, std::string message, std::string hint = {});
  void warning(Code code, const Span& where, std::string message, std::string hint = {});
  bool has_errors() const { return errors_ > 0; }
  std::size_t errors() const { return errors_; }
  /// True once nothing more is accepted; readers stop early.
  bool full() const { return full_; }

 private:
  void add(Severity severity, Code code, const Span& where, std::string message, std::string hint);

  std::vector<Diagnostic>& out_;
  std::set<std::tuple<std::uint32_t, std::uint32_t, std::uint32_t, std::string>> seen_;
  std::size_t errors_ = 0;
  bool full_ = false;
};

/// The candidate nearest to `name` as "did you mean 'x'?", or nothing where none is near.
std::string did_you_mean(std::string_view name, const std::vector<std::string>& candidates);

/// `text` in quotes, cut to a length that a terminal shows, control characters replaced.
std::string in_quotes(std::string_view text);

}  // namespace ccks::spec
