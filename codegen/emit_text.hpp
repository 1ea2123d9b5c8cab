// Text that is safe to stand in generated sources, and templates with holes.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <string_view>

#include "ccks/result.hpp"

namespace ccks::codegen {

/// A C++ string literal, quotes included. Everything but plain printable ASCII is an octal escape.
std::string cpp_string(std::string_view text);
/// For a comment: letters, digits and "._-[]" stay, the rest becomes '?'.
std::string comment_text(std::string_view text);
/// A C identifier: other characters become '_'; never empty, never starts with a digit.
std::string identifier(std::string_view text);
std::string int_literal(std::int64_t value);
/// Exact: reads back as the same value.
std::string float_literal(float value);
std::string double_literal(double value);
/// FNV-1a, 64 bits, as 16 hex digits: tells edits from accidents, not from malice.
std::string content_hash(std::string_view text);

/// Replaces each @NAME@ by values["NAME"]; what stands in a value is not looked at. internal where a hole has no value.
Result<std::string> fill_template(std::string_view text, const std::map<std::string, std::string>& values);
/// The text of codegen/templates/`name`, embedded when this was built. Empty where there is none.
std::string_view template_text(std::string_view name);

}  // namespace ccks::codegen
