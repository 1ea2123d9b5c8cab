// Element code against the expression it was made from, by running both on seeded values.
#pragma once

#include <span>
#include <string>
#include <vector>

#include "codegen/check_model.hpp"

namespace ccks::codegen::check {

/// What an element expression is applied to.
struct CodeContext {
  std::vector<wire::Dtype> arguments;  // map: the inputs; else the accumulator, then the epilogue operands
  wire::Dtype out = wire::Dtype::f32;
  std::size_t rank = 0;  // of the output in the program: index k is axis k + 4 - rank of the code
};

CodeContext code_context(const Model& model, std::size_t op);
/// Empty where `code` computes `expr`; else what is wrong. Registers, arguments and reads before writes are checked
/// too.
std::string compare_code(const spec::ElementExpr& expr, std::span<const wire::ExprInstr> code,
                         const CodeContext& context);

}  // namespace ccks::codegen::check
