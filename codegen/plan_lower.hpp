// OpLowering: what lowering one op works on. The rules of each kind are in plan_rules.cpp; tiles, views and costs in
// plan_lower.cpp.
#pragma once

#include <optional>
#include <vector>

#include "ccks/worker/tile_hints.hpp"
#include "codegen/plan_internal.hpp"
#include "codegen/plan_split.hpp"

namespace ccks::codegen {

/// How an operand looks to the tile op where that differs from its view right-aligned to rank 4: for each of the four
/// dims the view dims it flattens (outermost first; none: extent 1).
using OperandShape = std::array<std::vector<std::uint32_t>, 4>;

struct OpLowering {
  Planner& planner;
  const spec::Op& op;
  LoweredOp& out;
  worker::TileQuestion question = {};
  std::array<bool, 4> whole_axis{};                      // the tile is the whole extent
  std::vector<std::vector<Window>> windows = {};         // per operand, per view dim
  std::vector<std::optional<OperandShape>> shapes = {};  // per operand
  Expr granule = 1;                                      // tile[3] is a multiple of it
  std::int64_t columns = 0;                              // of a tile of a product that shares its rows with others; 0: as suits it

  std::size_t operand_count() const { return op.inputs.size() + op.outputs.size(); }
  const spec::View& view(std::size_t operand) const {
    return operand < op.inputs.size() ? op.inputs[operand] : op.outputs[operand - op.inputs.size()];
  }
  wire::Dtype dtype(std::size_t operand) const { return planner.program.tensor(view(operand).tensor).dtype; }
  std::size_t rank(std::size_t operand) const { return view(operand).dims.size(); }
  const Expr& dim(std::size_t operand, std::size_t d) const { return view(operand).dims[d].extent; }
  /// Dim counted from the last.
  const Expr& dim_back(std::size_t operand, std::size_t back) const { return dim(operand, rank(operand) - 1 - back); }

  void make_whole(std::size_t operand, std::size_t view_dim) { windows[operand][view_dim] = Window{}; }
  void make_routed(std::size_t operand, std::size_t view_dim) {
    make_whole(operand, view_dim);
    windows[operand][view_dim].routed = true;
  }
  void make_all_whole(std::size_t operand) { windows[operand].assign(rank(operand), Window{}); }
  /// The tile's own indices along `axis`.
  Window along(int axis) const {
    const auto a = static_cast<std::size_t>(axis);
    return {axis, out.tile[a], 0, out.tile[a], true};
  }
};

/// Whether a matmul's inputs are 16-bit floats that lie along depth.
bool lies_in_packets(const spec::Program& program, const spec::Op& matmul);
/// Whether a matmul of typical size is one for matrix units, warps together (worker/product_group.hpp).
bool takes_groups(const spec::Program& program, const spec::Op& matmul);
/// Sets tile space, dims, scalars, code and shapes; called before tiles are chosen.
Status describe_op(OpLowering& lowering);
/// Sets the windows that differ from "operands move with the output"; called once tiles are chosen.
Status describe_windows(OpLowering& lowering);
/// Arithmetic operations of the whole op, for cost models.
Expr count_operations(const OpLowering& lowering);

}  // namespace ccks::codegen
