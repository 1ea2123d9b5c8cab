// What ccks-run prints at the end.
#pragma once

#include <string>

#include "scheduler/tools/run_session.hpp"

namespace ccks::run {

std::string to_json(const Options& options, const Outcome& outcome);
/// One token, as it comes: a JSON line, or its id and a blank.
std::string token_line(const Options& options, const GeneratedToken& token);
std::string to_text(const Options& options, const Outcome& outcome);

}  // namespace ccks::run
