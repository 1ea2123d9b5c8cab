// The functions of element expressions and their types; builds ElementExpr nodes.
#pragma once

#include <initializer_list>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "spec/program.hpp"

namespace ccks::spec {

struct ElementFunction {
  const char* name;
  ExprFn fn;
  std::size_t arity;
};

const ElementFunction* find_element_function(std::string_view name);
std::vector<std::string> element_function_names();

/// Appends typed nodes. Ints become floats where they meet floats; bools become ints in arithmetic.
class ElementBuilder {
 public:
  std::uint32_t constant(ScalarType type, double value);
  std::uint32_t argument(ScalarType type, std::uint32_t operand);
  std::uint32_t index(std::uint32_t dim);
  /// Nothing, with the reason in `why`, where the operands' types do not fit.
  std::optional<std::uint32_t> apply(ExprFn fn, std::initializer_list<std::uint32_t> operands, std::string& why);

  std::uint32_t as_float(std::uint32_t node) { return convert(node, ScalarType::f32); }
  std::uint32_t convert(std::uint32_t node, ScalarType type);
  ScalarType type(std::uint32_t node) const { return nodes_[node].type; }
  const ExprNode& node(std::uint32_t i) const { return nodes_[i]; }
  std::size_t size() const { return nodes_.size(); }
  /// What `root` needs, with `root` last; nodes that conversions left unused are dropped.
  ElementExpr take(std::uint32_t root);

 private:
  std::uint32_t add(ExprFn fn, ScalarType type, std::uint32_t a = kNone, std::uint32_t b = kNone,
                    std::uint32_t c = kNone);
  std::optional<std::uint32_t> arithmetic(ExprFn fn, std::uint32_t a, std::uint32_t b);
  std::optional<std::uint32_t> unary(ExprFn fn, std::uint32_t a);
  void unify(std::uint32_t& a, std::uint32_t& b);

  std::vector<ExprNode> nodes_;
};

}  // namespace ccks::spec
