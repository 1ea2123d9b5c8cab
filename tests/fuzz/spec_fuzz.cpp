// Any bytes as a spec: complaints or a program, never a crash. Messages are formatted too: they quote what was read.
#include <cstdint>
#include <cstdlib>
#include <string_view>

#include "spec/parse.hpp"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  ccks::spec::ParseOptions options;
  options.allow_inline = true;
  options.max_ops = 2000;  // `repeat` bombs are refused sooner, so that more inputs are tried
  const std::string_view text(reinterpret_cast<const char*>(data), size);
  const auto result = ccks::spec::parse_text(text, "fuzz.yaml", options);
  bool errors = false;
  for (const auto& d : result.diagnostics) errors = errors || d.severity == ccks::spec::Severity::error;
  if (errors == result.ok) std::abort();
  if (ccks::spec::format_diagnostics(result).empty() != result.diagnostics.empty()) std::abort();
  ccks::spec::diagnostics_to_json(result);
  return 0;
}
