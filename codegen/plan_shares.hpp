// Products of the same rows, as those of queries, keys and values are, run at the same time: what counts is what each worker has of all of them.
#pragma once

#include "codegen/plan_internal.hpp"

namespace ccks::codegen {

/// Columns that a tile of each lowered op is to have so that products of the same rows come out even over the workers; 0: as it has.
std::vector<std::int64_t> even_shares(const Planner& planner);

}  // namespace ccks::codegen
