// Attention of few rows over a long context, and products of few columns over a long depth, split over workers that would have nothing to do.
#pragma once

#include "codegen/plan_image.hpp"

namespace ccks::codegen {

/// Rows of queries that a split attention takes at most: with more there are tiles enough. All of them are one tile's.
inline constexpr std::int32_t kSplitRows = 8;

/// Rows of a matmul whose depth is split, in its typical run: of as many chunks as there may be.
inline constexpr std::int64_t kSplitProductRows = 64;

/// split_attention gives the program that is planned and checked in place of `program`. Tensors keep their ids; where anything is split
/// there are more, and an op in front of all others. `chunks`: tiles that share a context or a depth: 0: as workers are left; 1: none do.
spec::Program split_attention(const spec::Program& program, const PlanOptions& options, std::uint32_t chunks = 0);

/// Whether an attention's context, or a matmul's depth, is split over tiles.
inline bool is_split(const spec::Op& op) { return (op.kind() == spec::OpKind::attention || op.kind() == spec::OpKind::matmul) && op.outputs.size() > 1; }
/// Whether tiles share out rows of an argmax: found is [..., tiles of a row].
inline bool shares_rows(const spec::Op& op) { return op.kind() == spec::OpKind::argmax && op.outputs.size() > 1; }
inline const spec::Expr& sharers_of(const spec::Op& op) { return op.outputs[1].dims.back().extent; }
/// Columns of each, a multiple of eight.
inline spec::Expr columns_of_sharer(const spec::Op& op) {
  return ceildiv(op.inputs[0].dims.back().extent, sharers_of(op) * spec::Expr(8)) * spec::Expr(8);
}
/// Whether a route reads what a topk in front of it has found: values and indices.
inline bool takes_found(const spec::Op& op) { return op.kind() == spec::OpKind::route && op.inputs.size() == 2; }
/// Over how many: parts are [batch, chunks, rows, ...].
inline const spec::Expr& chunks_of(const spec::Op& op) { return op.outputs[1].dims[1].extent; }

}  // namespace ccks::codegen
