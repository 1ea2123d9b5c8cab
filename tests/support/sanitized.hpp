// Whether this is a program of tsan.* or asan.* (sub_build.sh), which takes 5 to 20 times as long.
#pragma once

#include <cstdlib>
#include <string_view>

namespace ccks::test {

inline bool sanitized() { return std::getenv("CCKS_SANITIZED") != nullptr; }

/// Whether a sweep over cases is to leave some of them out: under sanitizers, but where CCKS_SWEEPS=whole asks for all.
inline bool short_sweeps() {
  const char* asked = std::getenv("CCKS_SWEEPS");
  return sanitized() && (asked == nullptr || std::string_view(asked) != "whole");
}

}  // namespace ccks::test
