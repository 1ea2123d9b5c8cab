// How complaints look: like a compiler's for people, as JSON for programs.
#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>

#include "spec/parse.hpp"

namespace ccks::spec {
namespace {

constexpr std::size_t kWindow = 120;  // characters of a source line that are shown around the caret

std::string_view line_of(std::string_view text, std::uint32_t line) {
  std::size_t begin = 0;
  for (std::uint32_t i = 1; i < line; ++i) {
    const std::size_t end = text.find('\n', begin);
    if (end == std::string_view::npos) return {};
    begin = end + 1;
  }
  std::string_view rest = text.substr(begin);
  rest = rest.substr(0, rest.find('\n'));
  if (!rest.empty() && rest.back() == '\r') rest.remove_suffix(1);
  return rest;
}

/// The line with a caret below. Tabs and control characters become spaces so that the caret stands where it should.
std::string excerpt(std::string_view line, std::uint32_t column, std::uint32_t length) {
  std::size_t at = std::min<std::size_t>(column > 0 ? column - 1 : 0, line.size());
  std::size_t begin = at > kWindow / 2 ? at - kWindow / 2 : 0;
  while (begin > 0 && begin < line.size() && (static_cast<unsigned char>(line[begin]) & 0xc0) == 0x80) --begin;
  std::string shown;
  for (char c : line.substr(begin, kWindow)) shown += static_cast<unsigned char>(c) < 0x20 || c == 0x7f ? ' ' : c;
  const std::size_t room = shown.size() > at - begin ? shown.size() - (at - begin) : 1;
  const std::size_t tail = std::min<std::size_t>(std::max<std::uint32_t>(length, 1), room) - 1;
  return fmt::format("  {}\n  {}^{}\n", shown, std::string(at - begin, ' '), std::string(tail, '~'));
}

std::string name_of(const ParseResult& result, std::uint32_t file) {
  return file < result.files.size() ? result.files[file] : std::string("?");
}

const char* severity_name(Severity s) { return s == Severity::error ? "error" : "warning"; }

}  // namespace

std::string format_diagnostics(const ParseResult& result) {
  std::string out;
  for (const Diagnostic& d : result.diagnostics) {
    const SourceLocation& l = d.location;
    out += fmt::format("{}:{}:{}: {}[{}]: {}\n", name_of(result, l.file), l.line, l.column, severity_name(d.severity),
                       d.code, d.message);
    if (l.file < result.sources.size() && l.line > 0) {
      const std::string_view line = line_of(result.sources[l.file], l.line);
      if (!line.empty()) out += excerpt(line, l.column, d.length);
    }
    if (!d.hint.empty()) out += fmt::format("  hint: {}\n", d.hint);
  }
  return out;
}

std::string diagnostics_to_json(const ParseResult& result) {
  nlohmann::json list = nlohmann::json::array();
  for (const Diagnostic& d : result.diagnostics)
    list.push_back({{"severity", severity_name(d.severity)},
                    {"code", d.code},
                    {"file", name_of(result, d.location.file)},
                    {"line", d.location.line},
                    {"column", d.location.column},
                    {"length", d.length},
                    {"message", d.message},
                    {"hint", d.hint}});
  // File names and quoted input need not be UTF-8; they must not make the report itself fail.
  return list.dump(2, ' ', false, nlohmann::json::error_handler_t::replace);
}

}  // namespace ccks::spec
