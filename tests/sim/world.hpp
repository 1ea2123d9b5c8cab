// World: one simulated history of a SimCase, from the first submission until every run has ended: an engine, a client, and
// somebody who makes things go wrong.
#pragma once

#include <memory>
#include <string>

#include "tests/sim/checker.hpp"
#include "tests/sim/sim_case.hpp"

namespace ccks::test::sim {

struct WorldResult {
  std::string complaint;  // empty: all was well
  std::uint64_t steps = 0, tiles = 0, runs = 0, runs_done = 0, runs_primed = 0, relaunches = 0;
  std::uint64_t virtual_ns = 0;
  std::vector<std::string> timeline;  // if asked for
};

/// Plays `sim_case`. Deterministic: the same case, the same result.
WorldResult play(const SimCase& sim_case, bool timeline = false);

}  // namespace ccks::test::sim
