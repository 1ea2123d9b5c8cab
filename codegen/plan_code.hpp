// Element expressions to register code (wire::ExprInstr).
#pragma once

#include <vector>

#include "ccks/result.hpp"
#include "ccks/wire/frame.hpp"
#include "spec/program.hpp"

namespace ccks::codegen {

/// compile_element_expr makes code whose last instruction leaves the result in its dst: f32 where `out` is a float
/// type, i64 otherwise. Arguments of the types of `args` (the first dtype is argument 0). `rank` is that of the output:
/// index k of the program becomes axis k + 4 - rank. An identity between types of one class is empty code.
Result<std::vector<wire::ExprInstr>> compile_element_expr(const spec::ElementExpr& expr,
                                                          std::span<const wire::Dtype> args, wire::Dtype out,
                                                          std::size_t rank);

}  // namespace ccks::codegen
