// Shrinker: makes a failing case short by trying what can be left out, under several schedules each time, since leaving
// something out changes the schedule of what stays.
#pragma once

#include <string>

#include "tests/sim/world.hpp"

namespace ccks::test::sim {

struct Shrunk {
  std::string change;      // for change_case, on top of the seed's case
  std::string complaint;   // of the short case
  std::uint64_t steps = 0;
};

/// The case of `seed`, changed by `change`, fails; so does the result.
Shrunk shrink(std::uint64_t seed, const std::string& change);

}  // namespace ccks::test::sim
