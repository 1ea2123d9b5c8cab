// Whether this is a program of tsan.* or asan.* (sub_build.sh), which takes 5 to 20 times as long: sweeps may be shorter there.
#pragma once

#include <cstdlib>

namespace ccks::test {

inline bool sanitized() { return std::getenv("CCKS_SANITIZED") != nullptr; }

}  // namespace ccks::test
