// Ropes folded into the products that make their rows: a decode step has a rope of a row or two behind two products of each layer, and
// while its few tiles run all other workers wait.
#pragma once

#include "codegen/plan_image.hpp"

namespace ccks::codegen {

/// fold_ropes changes `program`: a rope with a table (plan_angles.hpp) that alone reads what a product of few rows makes is gone, and the
/// product turns the heads itself (spec::MatmulAttrs::rope). Tensors keep their ids; one that nobody writes or reads may be left.
void fold_ropes(spec::Program& program, const PlanOptions& options);

inline bool turns_heads(const spec::Op& op) {
  const auto* matmul = std::get_if<spec::MatmulAttrs>(&op.attrs);
  return matmul != nullptr && matmul->rope;
}
/// Inputs of `op` from this one on are no operands of its code: of a product a table, then the weight of a norm.
inline std::size_t epilogue_end(const spec::Op& op) {
  const auto* matmul = std::get_if<spec::MatmulAttrs>(&op.attrs);
  return matmul == nullptr ? op.inputs.size() : op.inputs.size() - (matmul->norm ? 1 : 0) - (matmul->rope ? 1 : 0);
}
/// Of a product that turns heads.
inline std::size_t table_input(const spec::Op& op) { return epilogue_end(op); }

}  // namespace ccks::codegen
