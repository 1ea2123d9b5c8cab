// The ways to run that the conformance suite goes through: every policy of the co-pilot, lookahead with every spine, and
// the other arms.
#pragma once

#include <initializer_list>
#include <string>
#include <vector>

namespace ccks::test {

/// Those with resident workers.
inline const std::string kWays[] = {"static", "lookahead", "lookahead_lists", "lookahead_tiles", "reactive", "lookahead_grouped"};

/// Those, and `arms`.
inline std::vector<std::string> ways_and(std::initializer_list<std::string> arms) {
  std::vector<std::string> out(std::begin(kWays), std::end(kWays));
  out.insert(out.end(), arms);
  return out;
}

/// Sets arm, policy, spine and groups of EngineOptions, or of ccks-run's options, as `way` names them.
template <class Options>
void set_way(Options& options, std::string way) {
  if (way.ends_with("_grouped")) {
    options.workers_per_run = 1;
    way.resize(way.size() - 8);
  }
  const bool lookahead = way.starts_with("lookahead");
  (lookahead || way == "reactive" ? options.policy : options.arm) = lookahead ? "lookahead" : way;
  if (lookahead && way.size() > 10) options.spine = way.substr(10);
}

}  // namespace ccks::test
