// What a checkpoint's config.json says of a program's dims (spec::ConfigDim).
#pragma once

#include <string>
#include <utility>
#include <vector>

#include "ccks/result.hpp"
#include "scheduler/tools/run_options.hpp"
#include "spec/program.hpp"

namespace ccks::run {

using Constants = std::vector<std::pair<std::string, std::int64_t>>;

/// The file to read: --config, or the one that lies beside the weights; empty: there is none.
std::string config_path(const Options& options);

/// Values for the config dims of `program` but those in `given`, which a user has set.
Result<Constants> config_constants(const spec::Program& program, const std::string& path, const Constants& given);

}  // namespace ccks::run
