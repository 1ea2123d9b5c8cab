// Products folded into others of the same rows: of a gated feed-forward each worker has a tile of the gate and then one of what it gates, and
// what lies between two tiles of a worker takes as long as a fifth of one.
#pragma once

#include "codegen/plan_image.hpp"
#include "spec/view.hpp"

namespace ccks::codegen {

/// fold_twins gives the program that is planned and checked in place of `program`, behind fold_norms: a product of few rows of which another
/// product of the same rows alone reads each element beside its own is gone, and is the other's twin (spec::MatmulAttrs::twin). The same of experts'
/// (spec::ExpertMatmulAttrs::twin), on a GPU of any number of rows. Tensors keep their ids; one that nobody writes or reads is left.
spec::Program fold_twins(spec::Program program, const PlanOptions& options);

/// Null: `op` has no twin.
inline const spec::ElementExpr* twin_of(const spec::Op& op) {
  const std::optional<spec::ElementExpr>* twin = nullptr;
  if (const auto* matmul = std::get_if<spec::MatmulAttrs>(&op.attrs)) twin = &matmul->twin;
  if (const auto* experts = std::get_if<spec::ExpertMatmulAttrs>(&op.attrs)) twin = &experts->twin;
  return twin != nullptr && twin->has_value() ? &**twin : nullptr;
}
inline bool has_twin(const spec::Op& op) { return twin_of(op) != nullptr; }

/// The input that is argument 1 of the epilogue of a matmul or expert_matmul, and of one with a twin the second b.
inline std::size_t epilogue_first(const spec::Op& op) { return spec::fixed_inputs(op); }
inline bool is_twin_operand(const spec::Op& op, std::size_t input) { return has_twin(op) && input == epilogue_first(op); }

}  // namespace ccks::codegen
