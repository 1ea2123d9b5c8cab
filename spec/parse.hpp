// Text to program. The only way to make a Program from user input.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "spec/program.hpp"

namespace ccks::spec {

enum class Severity : std::uint8_t { error, warning };

/// One complaint. `code` is stable, e.g. "CCKS012"; the table is in spec/README.md.
struct Diagnostic {
  Severity severity = Severity::error;
  std::string code;
  SourceLocation location;
  std::uint32_t length = 1;  // characters to underline from `location.column`
  std::string message;
  std::string hint;
};

struct ParseOptions {
  bool allow_inline = false;                   // accept op `custom`
  std::size_t max_bytes = 4u << 20;            // of one file; larger is refused
  std::size_t max_ops = 40'000;                // after expanding `repeat`; also bounds the memory of the program, at 1 KB each
  std::vector<std::pair<std::string, std::int64_t>> constants;  // override a constant dim by name ("layers=2"), or fix a symbol's preset
};

/// What parsing gave. `program` is meaningful only if `ok`.
struct ParseResult {
  bool ok = false;
  Program program;
  std::vector<Diagnostic> diagnostics;
  std::vector<std::string> files;    // paths, by SourceLocation::file
  std::vector<std::string> sources;  // their text, for carets
};

/// parse_file reads and checks the spec at `path`. Never throws; I/O failures are diagnostics too.
ParseResult parse_file(const std::string& path, const ParseOptions& options = {});
/// parse_text is parse_file for text in memory; `name` stands for the path, `include` is resolved beside it.
ParseResult parse_text(std::string_view text, const std::string& name, const ParseOptions& options = {});

/// Formats like a compiler: "file:line:col: error[CCKS012]: message", the line, a caret, "hint: ...".
std::string format_diagnostics(const ParseResult& result);
/// The same as a JSON array of objects {severity, code, file, line, column, length, message, hint}.
std::string diagnostics_to_json(const ParseResult& result);

}  // namespace ccks::spec
