// What is checked on raw text before a YAML scanner may see it.
#pragma once

#include <string>

#include "spec/diagnostics.hpp"

namespace ccks::spec {

/// False, with a complaint, for text that is not UTF-8, holds control characters, or nests brackets, dashes or
/// indentation so deeply that a recursive scanner could run out of stack or time.
bool check_text(const std::string& text, std::uint32_t file, Diagnostics& diagnostics);

}  // namespace ccks::spec
