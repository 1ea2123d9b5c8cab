// Evaluation of a plan's dims. Header-only: planner, checker, scheduler and tools all need it.
#pragma once

#include <algorithm>
#include <cstddef>
#include <vector>

#include "ccks/plan.hpp"

namespace ccks::plan {

namespace detail {

inline std::int64_t floor_divide(std::int64_t a, std::int64_t b) {
  const std::int64_t q = a / b;
  return a % b != 0 && (a < 0) != (b < 0) ? q - 1 : q;
}

inline bool divide_dims(DimOp op, std::int64_t a, std::int64_t b, std::int64_t& out) {
  if (b == 0 || (b == -1 && a == INT64_MIN)) return false;
  const std::int64_t floor = floor_divide(a, b);
  if (op == DimOp::floordiv) {
    out = floor;
  } else if (op == DimOp::floormod) {
    out = a - floor * b;
  } else {
    out = floor * b == a ? floor : floor + 1;
  }
  return true;
}

inline bool apply_dim_op(DimOp op, std::int64_t a, std::int64_t b, std::int64_t& out) {
  switch (op) {
    case DimOp::add:
      return !__builtin_add_overflow(a, b, &out);
    case DimOp::sub:
      return !__builtin_sub_overflow(a, b, &out);
    case DimOp::mul:
      return !__builtin_mul_overflow(a, b, &out);
    case DimOp::min:
      out = std::min(a, b);
      return true;
    case DimOp::max:
      out = std::max(a, b);
      return true;
    case DimOp::floordiv:
    case DimOp::floormod:
    case DimOp::ceildiv:
      return divide_dims(op, a, b, out);
    case DimOp::constant:
    case DimOp::symbol:
      break;
  }
  return false;
}

}  // namespace detail

/// evaluate_dims fills `values` (one per node) for `symbols`; false on overflow, division by zero, or a malformed
/// table. Allocates nothing.
inline bool evaluate_dims(std::span<const DimNode> nodes, std::span<const std::int64_t> symbols,
                          std::span<std::int64_t> values) {
  if (values.size() < nodes.size()) return false;
  for (std::size_t i = 0; i < nodes.size(); ++i) {
    const DimNode& node = nodes[i];
    if (node.op == DimOp::constant) {
      values[i] = node.value;
    } else if (node.op == DimOp::symbol) {
      if (node.value < 0 || static_cast<std::size_t>(node.value) >= symbols.size()) return false;
      values[i] = symbols[static_cast<std::size_t>(node.value)];
    } else {
      if (node.a >= i || node.b >= i) return false;
      if (!detail::apply_dim_op(node.op, values[node.a], values[node.b], values[i])) return false;
    }
  }
  return true;
}

/// The values that a program is tuned for, one per symbol: presets, and upper bounds where there is none.
inline std::vector<std::int64_t> typical_symbols(std::span<const SymbolDesc> symbols) {
  std::vector<std::int64_t> values;
  for (const SymbolDesc& s : symbols) values.push_back(s.has_preset ? s.preset : s.hi);
  return values;
}

}  // namespace ccks::plan
