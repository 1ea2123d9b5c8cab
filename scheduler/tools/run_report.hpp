// What ccks-run prints at the end.
#pragma once

#include <string>

#include "scheduler/tools/run_session.hpp"

namespace ccks::run {

std::string to_json(const Options& options, const Outcome& outcome);
std::string to_text(const Options& options, const Outcome& outcome);

}  // namespace ccks::run
