// What a tile's body takes, as predict_plan plays it: by its op's bytes and operations, or, of products and attention of many rows in 16-bit floats, by the blocks that
// four warps multiply together (include/ccks/worker/product_group.hpp), of which one with few columns takes nearly as long as a whole one.
#pragma once

#include "codegen/predict_plan.hpp"

namespace ccks::codegen {

/// Microseconds of a tile of `op` where `workers` run tiles at the same time.
double body_us(const check::Model& model, const PredictCosts& costs, std::size_t op, std::size_t workers);

/// Tiles of `op` that have something to do: all, but of products of experts those of as many as rows choose if each expert is as likely. The others are the last.
std::int64_t tiles_there(const check::Model& model, std::size_t op);

}  // namespace ccks::codegen
