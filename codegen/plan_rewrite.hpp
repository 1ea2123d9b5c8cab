// What a planner makes of a program before it places anything: the same values by other ops.
#pragma once

#include <vector>

#include "codegen/plan_image.hpp"

namespace ccks::codegen {

/// rewrite_program gives the program that is planned, checked and emitted in place of `given`: without selects that nobody reads, norms folded (plan_fold.hpp), twins (plan_twin.hpp),
/// then contexts of attention and depths of products split (plan_split.hpp). Tensors keep their ids.
spec::Program rewrite_program(const spec::Program& given, const PlanOptions& options);

/// drop_ops takes the ops away for which `gone` is true; what reports on an op follows it. gone: one for each op.
void drop_ops(spec::Program& program, const std::vector<bool>& gone);
/// Of `e` where symbols are what they are preset to, or most; else its upper bound.
std::int64_t typical_value(const spec::Program& program, const spec::Expr& e);

}  // namespace ccks::codegen
