#include "codegen/predict_bodies.hpp"

#include <algorithm>
#include <cmath>

#include "ccks/wire/op_shape.hpp"
#include "ccks/worker/tile_hints.hpp"

namespace ccks::codegen {
namespace {

using check::Model;
using wire::OpCode;

OpCode kind_of(const Model& m, std::size_t op) { return static_cast<OpCode>(m.ops[op].desc->kind); }

/// By four warps together: workers have room for it, and operands are what units take.
bool takes_units(const Model& m, std::size_t op) {
  const check::Operand& b = m.operands_of(op)[1];
  return m.plan->scratch_bytes >= worker::kCudaGroupedScratchBytes && m.operands_of(op)[0].element_bytes() == 2 && b.element_bytes() == 2 && m.ops[op].tile[2] >= worker::kRoomyRows;
}

/// A product's walk over k, 64 at a time.
double product_us(const Model& m, const GroupCost& cost, std::size_t op) {
  const check::OpNow& now = m.ops[op];
  const bool shared = now.desc->output_count == 3;  // wire::shares_depth, along axis 0
  const double steps = static_cast<double>(m.operands_of(op)[0].dim[3]) / (shared ? static_cast<double>(now.grid[0]) : 1.0) / 64;
  const std::int64_t rows = std::min(now.tile[2], m.operands_of(op)[now.desc->input_count].dim[2]);  // a plan for many may have few
  if (now.tile[3] <= 128 && rows <= 64) return cost.narrow_fixed_us + steps * cost.narrow_us;
  const std::int64_t columns = std::min<std::int64_t>(now.tile[3], wire::kGroupedColumns);
  const double blocks = std::ceil(static_cast<double>(now.tile[3]) / wire::kGroupedColumns);
  return cost.fixed_us + static_cast<double>(columns) * cost.column_us + blocks * steps * cost.step_us[wire::product_columns(static_cast<std::uint32_t>(columns)) / 64 - 1];
}

/// Of an expert's rows: weights of one tile as they come from memory, and what each row adds.
double expert_us(const Model& m, const GroupCost& cost, std::size_t op) {
  const check::OpNow& now = m.ops[op];
  const auto operands = m.operands_of(op);
  const double weights = static_cast<double>(now.tile[3] * operands[0].dim[3] * 2) * (now.dims[wire::kTwinDim] != 0 ? 2 : 1);
  const auto pairs = static_cast<double>(operands[now.desc->input_count].dim[2]);
  const double rows = pairs * static_cast<double>(now.grid[3]) / static_cast<double>(std::max<std::int64_t>(1, tiles_there(m, op)));
  return cost.expert_us + weights / cost.expert_bytes_per_us + rows * cost.row_us;
}

double attention_us(const Model& m, const GroupCost& cost, std::size_t op, double operations) {
  const check::OpNow& now = m.ops[op];
  const double heads = static_cast<double>(now.tile[3]) / (static_cast<double>(m.operands_of(op)[0].dim[3]) / static_cast<double>(now.dims[0]));
  return cost.attention_us + heads * cost.head_us + operations / cost.attention_operations_per_us;
}

}  // namespace

std::int64_t tiles_there(const Model& m, std::size_t op) {
  const check::OpNow& now = m.ops[op];
  if (kind_of(m, op) != OpCode::expert_matmul || now.grid[3] <= 0) return now.tiles;
  const auto operands = m.operands_of(op);
  const auto experts = static_cast<double>(operands[1].dim[1]), pairs = static_cast<double>(operands[now.desc->input_count].dim[2]);
  const double active = experts * (1 - std::pow(1 - 1 / experts, pairs)), rows = static_cast<double>(std::max<std::int64_t>(1, now.tile[2]));
  const auto row_tiles = static_cast<std::int64_t>(std::ceil(active + pairs / rows / 2));  // an expert's last one is half full on average
  return std::min(now.tiles, row_tiles * now.grid[3]);
}

double body_us(const Model& m, const PredictCosts& costs, std::size_t op, std::size_t workers) {
  const check::OpNow& now = m.ops[op];
  const plan::OpDesc& d = *now.desc;
  const OpCode kind = kind_of(m, op);
  const auto tiles = static_cast<double>(std::max<std::int64_t>(1, now.tiles));
  const double bytes = static_cast<double>(m.values[d.bytes_read] + m.values[d.bytes_written]) / tiles;
  const double operations = static_cast<double>(m.values[d.operations]) / tiles;
  const double together = bytes * std::min(tiles, static_cast<double>(workers)) / costs.bytes_per_us;
  const bool products = kind == OpCode::matmul || kind == OpCode::expert_matmul, attends = kind == OpCode::attention && now.tile[2] > 32;
  if (costs.groups.step_us[3] > 0 && (products || attends) && takes_units(m, op)) {
    const GroupCost& cost = costs.groups;
    return std::max(together, kind == OpCode::matmul ? product_us(m, cost, op) : attends ? attention_us(m, cost, op, operations) : expert_us(m, cost, op));
  }
  const BodyCost& cost = costs.of(kind, std::min(now.tile[2], m.operands_of(op)[d.input_count].dim[2]));
  double us = 0;
  if (cost.bytes_per_us > 0) us = std::max(us, bytes / cost.bytes_per_us);
  if (cost.operations_per_us > 0) us = std::max(us, operations / cost.operations_per_us);
  return std::max(cost.fixed_us + us, together);
}

}  // namespace ccks::codegen
