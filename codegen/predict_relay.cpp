#include "codegen/predict_relay.hpp"

#include <algorithm>

#include "ccks/wire/op_shape.hpp"
#include "ccks/wire/relay.hpp"

namespace ccks::codegen {
namespace {

bool has_rows(const check::Operand& o, int axis, std::int64_t rows) { return o.dim[axis] == rows && (axis == 2 || o.dim[2] == 1) && o.dtype == wire::Dtype::bf16; }

/// Of a product that a relay may take, its rows; 0: it is none.
std::int64_t rows_of_product(const check::Model& m, std::size_t op) {
  const auto operands = m.operands_of(op);
  const plan::OpDesc& d = *m.ops[op].desc;
  if (d.kind != wire::OpCode::matmul || d.output_count != 1) return 0;
  const check::Operand &a = operands[0], &b = operands[1];
  const std::int64_t rows = a.dim[2];
  const bool weights = b.space == wire::Space::weights && b.dtype == wire::Dtype::bf16 && b.stride[2] == 1;
  const bool fits = rows <= wire::kMostRelayRows && a.dtype == wire::Dtype::bf16 && operands[d.input_count].dim[2] == rows;
  return fits && weights && b.dim[2] >= wire::kStreamedDepth && b.dim[2] % wire::kRelayRow == 0 ? rows : 0;
}
bool is_attention(const check::Model& m, std::size_t op, std::int64_t rows) {
  const plan::OpDesc& d = *m.ops[op].desc;
  return d.kind == wire::OpCode::attention && d.input_count == 3 && has_rows(m.operands_of(op)[0], 1, rows);
}
bool is_norm(const check::Model& m, std::size_t op, std::int64_t rows) { return m.ops[op].desc->kind == wire::OpCode::rmsnorm && has_rows(m.operands_of(op)[0], 2, rows); }

/// Of rows whose experts lists find for themselves.
bool is_route(const check::Model& m, std::size_t op, std::int64_t rows) {
  const auto operands = m.operands_of(op);
  const plan::OpDesc& d = *m.ops[op].desc;
  if (d.kind != wire::OpCode::route || d.input_count != 1) return false;
  return operands[0].dim[2] == rows && operands[0].dim[3] <= std::int64_t{wire::kMostRelayExperts} && operands[1].dim[3] <= std::int64_t{wire::kMostChosenExperts};
}
bool is_by_experts(const check::Model& m, std::size_t op) {
  const plan::OpDesc& d = *m.ops[op].desc;
  if (d.kind == wire::OpCode::combine) return true;
  return d.kind == wire::OpCode::expert_matmul && (is_addend(m, op) || m.ops[op].dims[wire::kTwinDim] != 0);
}

}  // namespace

bool is_addend(const check::Model& m, std::size_t op) { return m.ops[op].desc->kind == wire::OpCode::expert_matmul && m.ops[op].dims[1] == 0; }

std::int64_t relay_rows(const check::Model& m) {
  std::int64_t found = 0;
  for (std::size_t op = 0; op < m.ops.size(); ++op) {
    const std::int64_t rows = m.ops[op].exists() ? rows_of_product(m, op) : 0;
    if (rows != 0 && (found == 0 || rows == 1)) found = rows;
  }
  return found;
}

std::vector<bool> find_steps(const check::Model& m) {
  constexpr std::ptrdiff_t kLeastProducts = 4, kProductsOfExperts = 2;  // scheduler/tuning.hpp
  const std::int64_t rows = relay_rows(m);
  const auto is_product = [&](std::size_t op) { return rows != 0 && rows_of_product(m, op) == rows; };
  std::size_t routes = 0;  // a relay has one at most
  for (std::size_t op = 0; op < m.ops.size(); ++op) routes += rows != 0 && m.ops[op].exists() && is_route(m, op, rows) ? 1 : 0;
  const auto is_of_experts = [&](std::size_t op) { return routes == 1 && (is_route(m, op, rows) || is_by_experts(m, op)); };
  std::size_t first = 0, best = 0, best_end = 0;
  for (std::size_t op = 0; op < m.ops.size(); ++op) {
    const bool may_be = m.ops[op].exists() && m.ops[op].desc->guard_count == 0;
    if (!may_be || !(is_product(op) || is_attention(m, op, rows) || is_norm(m, op, rows) || is_of_experts(op)))
      first = op + 1;
    else if (op + 1 - first > best_end - best)
      best = first, best_end = op + 1;
  }
  std::ptrdiff_t products = 0, all = 0;  // of the run, and of the program: rows_handed_on
  for (std::size_t op = 0; op < m.ops.size(); ++op) {
    if (m.ops[op].exists() && op >= best && op < best_end && is_of_experts(op) && is_by_experts(m, op) && !is_addend(m, op)) products += kProductsOfExperts;
    if (!m.ops[op].exists() || !is_product(op)) continue;
    ++all;
    products += op >= best && op < best_end ? 1 : 0;
  }
  std::vector<bool> out(m.ops.size(), false);
  if (products >= kLeastProducts && (rows == 1 || 2 * products >= all)) std::fill(out.begin() + static_cast<std::ptrdiff_t>(best), out.begin() + static_cast<std::ptrdiff_t>(best_end), true);
  return out;
}

// Memory brings a piece once there is room for it in the stages or in the L2 behind them, and it lands once there is a stage.
double PieceStream::multiply(double begin_us, double bytes) {
  const auto pieces = static_cast<int>((bytes + cost_->piece_bytes - 1) / cost_->piece_bytes);
  double us = begin_us;
  for (int i = 0; i < pieces; ++i) {
    brought_us_ = std::max(brought_us_, taken(cost_->stages + cost_->ahead)) + memory_us_;
    landed_us_ = std::max({brought_us_, taken(cost_->stages) + cost_->latency_us, landed_us_ + cost_->landing_us});
    us = std::max(us, landed_us_) + cost_->piece_us;
    taken_.push_back(us);
    if (taken_.size() > static_cast<std::size_t>(cost_->stages + cost_->ahead)) taken_.pop_front();
  }
  return us;
}

}  // namespace ccks::codegen
