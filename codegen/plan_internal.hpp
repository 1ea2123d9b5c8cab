// What the planner's stages hand to each other. Private to codegen/plan_*.cpp.
//
// make_plan: lower every op (plan_lower) -> place tensors (plan_memory) -> derive edges (plan_depend) -> choose what to
// wait for (plan_waits) -> write tables (plan_tables).
#pragma once

#include <array>
#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "codegen/plan_image.hpp"
#include "spec/expr.hpp"
#include "spec/program.hpp"

namespace ccks::codegen {

using spec::Expr;
using OpIndex = std::uint32_t;
using TensorIndex = std::uint32_t;

/// What one tile touches of one view dim: indices [c * step + offset, + length) of it, where c is the tile's coordinate
/// on grid axis `axis`; axis -1: the whole dim whatever the tile.
struct Window {
  int axis = -1;
  Expr step, offset, length;
  bool gapless = true;  // over all tiles, every index of the dim is touched
  /// Routed rows (expert_matmul): the whole dim as far as anybody can say early, but at run time each tile coordinate on grid axis 2 has indices
  /// of its own, which counts and tile alone decide. Axis is -1.
  bool routed = false;
};

/// The same in coordinates of the tensor the view is on.
struct AccessDim {
  int axis = -1;
  Expr step, offset, length;
  Expr first, end;             // indices that the whole op touches lie in [first, end)
  std::int64_t view_step = 1;  // distance between touched indices
  bool gapless = true;
  bool routed = false;  // as in Window
};

struct LoweredOperand {
  TensorIndex tensor = 0, root = 0;
  wire::Dtype dtype = wire::Dtype::f32;
  bool write = false;
  std::uint8_t rank = 0, flags = 0;
  Expr offset;                      // elements from the start of the tensor
  std::array<Expr, 4> dim, stride;  // right-aligned
  std::vector<AccessDim> access;    // per dim of `tensor`
};

struct LoweredOp {
  OpIndex spec_op = 0;
  wire::OpCode kind = wire::OpCode::map;
  std::uint8_t flags = 0;
  std::uint8_t counted_rank = 0;  // as in plan::OpDesc
  bool guarded = false;
  bool has_tiles = false;        // at least one tile for all dims
  std::array<bool, 4> single{};  // exactly one tile along the axis, for all dims
  std::array<Expr, 4> extent, tile, grid;
  std::array<Expr, 8> dims;
  std::array<float, 4> scalars{};
  std::vector<LoweredOperand> operands;  // inputs, then outputs
  std::uint16_t inputs = 0, outputs = 0;
  std::vector<wire::ExprInstr> code;
  Expr bytes_read, bytes_written, operations;

  bool dynamic() const { return (flags & wire::kOpDynamic) != 0; }
};

/// Where a tensor lies. Aliases repeat their root's place.
struct Placement {
  wire::Space space = wire::Space::arena;
  std::uint64_t offset = 0;
  std::uint64_t bytes = 0;  // at the upper bounds
  bool shared = false;      // the space has other owners at other times
  bool used = false;
};

struct MemoryPlan {
  std::vector<Placement> placements;        // per tensor
  std::vector<LiveRange> live;              // per tensor
  std::vector<std::vector<OpIndex>> users;  // per root: ops that touch it, ascending
  std::uint64_t arena_bytes = 0, unplanned_arena_bytes = 0, weight_bytes = 0, state_bytes = 0;
};

/// One axis of a producer along which a consumer's tile needs only part: WaitAxisDesc with expressions.
struct AxisWindow {
  int producer_axis = -1;
  int consumer_axis = -1;
  Expr step, offset, length, extent, block;
};

struct Edge {
  OpIndex producer = 0, consumer = 0;
  TensorIndex tensor = 0;
  DependencyKind kind = DependencyKind::raw;
  bool covers = false;  // over all its tiles the consumer waits for all of the producer
  const char* why = "";
  std::vector<AxisWindow> windows;  // ascending by producer axis; at most two; empty: wait for the whole op
  bool kept = true;
  std::uint32_t wait = plan::kNone;
};

/// One program being planned.
struct Planner {
  const spec::Program& program;
  PlanOptions options;
  std::vector<std::int64_t> typical = {};  // per symbol: its preset, else its upper bound
  std::uint32_t scratch_bytes = 0;  // of a worker
  std::map<std::int64_t, std::int64_t> widest_products = {};  // for groups of warps, with nothing folded into them, by rows at the typical sizes: the most columns
  std::vector<LoweredOp> ops = {};
  MemoryPlan memory = {};
  std::vector<Edge> edges = {};  // ascending by consumer

  std::span<const spec::Symbol> symbols() const { return program.symbols; }
  /// Value at the typical sizes, for choices that any value leaves right.
  std::int64_t typical_value(const Expr& e) const;
  std::int64_t upper_bound(const Expr& e) const { return e.bounds(symbols()).hi; }
  bool proves_equal(const Expr& a, const Expr& b) const;
  bool proves_at_most(const Expr& a, const Expr& b) const;
};

/// Product of `factors`, 1 for none.
Expr product(std::span<const Expr> factors);
/// Names the op in front of what is wrong with it.
Status op_error(const spec::Op& op, ErrorCode code, const std::string& what);

// ---- stages -------------------------------------------------------------------------------------------------------
Status lower_ops(Planner& planner);
Status plan_memory(Planner& planner);
void derive_edges(Planner& planner);
/// Drops edges that others imply, so that what remains is waited for.
void prune_edges(Planner& planner);
Result<std::shared_ptr<const PlanImage>> write_tables(Planner& planner);

}  // namespace ccks::codegen
