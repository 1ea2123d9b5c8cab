#include "spec/parse.hpp"

#include <fmt/format.h>

#include <algorithm>

#include "spec/file_text.hpp"
#include "spec/sections.hpp"

namespace ccks::spec {
namespace {

void parse_into(ParseResult& result, const ParseOptions& options) {
  Builder b(result, options);
  const auto root = read_yaml(result.sources[0], 0, b.diagnostics);
  if (root) {
    read_program(b, *root);
    if (!b.diagnostics.has_errors()) check_program(b);
    if (!b.diagnostics.has_errors()) settle_counted(b);
  }
  result.program.files = result.files;
  result.ok = !b.diagnostics.has_errors();
  const auto place = [](const Diagnostic& d) {
    return std::tuple(d.location.file, d.location.line, d.location.column);
  };
  std::stable_sort(result.diagnostics.begin(), result.diagnostics.end(), [&](const Diagnostic& x, const Diagnostic& y) {
    // The closing remark on how much was left out stays last.
    const bool x_last = x.code == code::kTooManyErrors.text, y_last = y.code == code::kTooManyErrors.text;
    return x_last != y_last ? y_last : place(x) < place(y);
  });
}

void refuse(ParseResult& result, Code code, std::string message, std::string hint) {
  result.diagnostics.push_back({Severity::error, code.text, {0, 1, 1}, 1, std::move(message), std::move(hint)});
}

}  // namespace

ParseResult parse_text(std::string_view text, const std::string& name, const ParseOptions& options) {
  ParseResult result;
  result.files.push_back(name);
  if (text.size() > options.max_bytes) {
    result.sources.emplace_back();
    refuse(result, code::kTooLarge,
           fmt::format("the file has {} bytes; at most {} are read", text.size(), options.max_bytes), "");
    return result;
  }
  result.sources.emplace_back(text);
  parse_into(result, options);
  return result;
}

ParseResult parse_file(const std::string& path, const ParseOptions& options) {
  std::string why;
  const auto text = read_text_file(path, options.max_bytes, why);
  if (text) return parse_text(*text, path, options);
  ParseResult result;
  result.files.push_back(path);
  result.sources.emplace_back();
  const bool too_large = why.find("larger than") != std::string::npos;
  refuse(result, too_large ? code::kTooLarge : code::kCannotRead, fmt::format("cannot read '{}': {}", path, why), "");
  return result;
}

}  // namespace ccks::spec
