// What tests of products with a twin (wire::kTwinDim) multiply and finish by.
#pragma once

#include "ccks/worker/typed_ops.hpp"
#include "tests/unit/worker/ops_fixture.hpp"

namespace ccks::worker::test {

/// What a store of `v` keeps.
inline double stored(Dtype d, double v) {
  const auto f = static_cast<float>(v);
  return d == Dtype::bf16 ? to_float<Dtype::bf16>(from_float<Dtype::bf16>(f)) : d == Dtype::f16 ? to_float<Dtype::f16>(from_float<Dtype::f16>(f)) : f;
}

// The twin: acc * argument 3. The op: acc * twin + argument 2.
inline const std::vector<wire::ExprInstr> kScaled = {ins(ExprOp::arg_f, 0), ins(ExprOp::arg_f, 1, 0, 0, 3), ins(ExprOp::mul_f, 0, 0, 1)};
inline const std::vector<wire::ExprInstr> kGated = {ins(ExprOp::arg_f, 0), ins(ExprOp::arg_f, 1, 0, 0, 1), ins(ExprOp::mul_f, 0, 0, 1),
                                             ins(ExprOp::arg_f, 1, 0, 0, 2), ins(ExprOp::add_f, 0, 0, 1)};
using Scaled = Code<Ins<ExprOp::arg_f, 0, 0, 0, 0>, Ins<ExprOp::arg_f, 1, 0, 0, 3>, Ins<ExprOp::mul_f, 0, 0, 1, 0>>;
using Gated = Code<Ins<ExprOp::arg_f, 0, 0, 0, 0>, Ins<ExprOp::arg_f, 1, 0, 0, 1>, Ins<ExprOp::mul_f, 0, 0, 1, 0>, Ins<ExprOp::arg_f, 1, 0, 0, 2>,
                   Ins<ExprOp::add_f, 0, 0, 1, 0>>;

}  // namespace ccks::worker::test
