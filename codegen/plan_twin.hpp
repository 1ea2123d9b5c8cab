// Products folded into others of the same rows: of a gated feed-forward each worker has a tile of the gate and then one of what it gates, and
// what lies between two tiles of a worker takes as long as a fifth of one.
#pragma once

#include "codegen/plan_image.hpp"

namespace ccks::codegen {

/// fold_twins gives the program that is planned and checked in place of `program`, behind fold_norms: a product of few rows of which another
/// product of the same rows alone reads each element beside its own is gone, and is the other's twin (spec::MatmulAttrs::twin). Tensors keep
/// their ids; one that nobody writes or reads is left.
spec::Program fold_twins(spec::Program program, const PlanOptions& options);

inline bool has_twin(const spec::Op& op) {
  const auto* matmul = std::get_if<spec::MatmulAttrs>(&op.attrs);
  return matmul != nullptr && matmul->twin.has_value();
}

}  // namespace ccks::codegen
