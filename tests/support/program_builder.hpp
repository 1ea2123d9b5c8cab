// Builds Programs by hand, for tests of what comes after the parser. Nothing is checked: a wrong program stays wrong.
#pragma once

#include <string>
#include <utility>
#include <vector>

#include "spec/program.hpp"
#include "spec/reference.hpp"

namespace ccks::test {

using spec::Dtype;
using spec::ElementExpr;
using spec::Expr;
using spec::ExprFn;
using spec::ExprNode;
using spec::kNone;
using spec::ScalarType;
using spec::TensorId;
using spec::TensorKind;
using spec::View;
using spec::ViewDim;

/// Writes element expressions: each call adds a node and returns its index.
struct ElementBuilder {
  ElementExpr expr;

  std::uint32_t constant(double value, ScalarType type = ScalarType::f32) {
    return push({.fn = ExprFn::constant, .type = type, .value = value});
  }
  std::uint32_t argument(std::uint32_t k, ScalarType type = ScalarType::f32) {
    return push({.fn = ExprFn::argument, .type = type, .index = k});
  }
  std::uint32_t index(std::uint32_t dim) { return push({.fn = ExprFn::index, .type = ScalarType::i64, .index = dim}); }
  std::uint32_t node(ExprFn fn, ScalarType type, std::uint32_t a, std::uint32_t b = kNone, std::uint32_t c = kNone) {
    return push({.fn = fn, .type = type, .a = a, .b = b, .c = c});
  }

 private:
  std::uint32_t push(ExprNode node) {
    expr.nodes.push_back(node);
    return static_cast<std::uint32_t>(expr.nodes.size()) - 1;
  }
};

class ProgramBuilder {
 public:
  spec::Program program;

  Expr symbol(const std::string& name, std::int64_t lo, std::int64_t hi) {
    program.symbols.push_back({name, {lo, hi}, {}});
    return Expr::symbol(static_cast<spec::SymbolId>(program.symbols.size()) - 1);
  }

  TensorId tensor(const std::string& name, std::vector<Expr> shape, TensorKind kind = TensorKind::intermediate,
                  Dtype dtype = Dtype::f32) {
    spec::Tensor t;
    t.name = name;
    t.dtype = dtype;
    t.kind = kind;
    t.shape = std::move(shape);
    program.tensors.push_back(std::move(t));
    return static_cast<TensorId>(program.tensors.size()) - 1;
  }
  TensorId input(const std::string& name, std::vector<Expr> shape, Dtype dtype = Dtype::f32) {
    return tensor(name, std::move(shape), TensorKind::input, dtype);
  }
  TensorId output(const std::string& name, std::vector<Expr> shape, Dtype dtype = Dtype::f32) {
    return tensor(name, std::move(shape), TensorKind::output, dtype);
  }
  /// The same elements as `of` under another shape.
  TensorId alias(const std::string& name, TensorId of, std::vector<Expr> shape,
                 TensorKind kind = TensorKind::intermediate) {
    const TensorId id = tensor(name, std::move(shape), kind, program.tensors[of].dtype);
    program.tensors[id].alias_of = of;
    return id;
  }

  View all(TensorId id) const {
    View view{id, {}, {}};
    for (std::uint32_t d = 0; d < program.tensors[id].shape.size(); ++d)
      view.dims.push_back({program.tensors[id].shape[d], d, 0, 1});
    return view;
  }
  /// The dims of `id` in another order.
  View permuted(TensorId id, const std::vector<std::uint32_t>& order) const {
    View view{id, {}, {}};
    for (const std::uint32_t d : order) view.dims.push_back({program.tensors[id].shape[d], d, 0, 1});
    return view;
  }
  static ViewDim window(std::uint32_t base_dim, Expr extent, Expr offset = 0, std::int64_t step = 1) {
    return {extent, base_dim, offset, step};
  }
  static ViewDim broadcast(Expr extent) { return {extent, kNone, 0, 1}; }

  spec::Op& op(spec::OpAttrs attrs, std::vector<View> inputs, std::vector<View> outputs) {
    spec::Op& added = program.ops.emplace_back();
    added.name = "op" + std::to_string(program.ops.size() - 1);
    added.attrs = std::move(attrs);
    added.inputs = std::move(inputs);
    added.outputs = std::move(outputs);
    return added;
  }
  /// Copies `from` to `to`, whole.
  spec::Op& copy(TensorId from, TensorId to) { return op(spec::MapAttrs{}, {all(from)}, {all(to)}); }

  /// Adds report `name` of `source`; returns its index.
  std::uint32_t report(const std::string& name, TensorId source, Dtype dtype) {
    const auto id = static_cast<std::uint32_t>(program.reports.size());
    const TensorId copy_of = tensor("report." + name, program.tensors[source].shape, TensorKind::intermediate, dtype);
    program.reports.push_back({name, copy_of, static_cast<spec::OpId>(program.ops.size())});
    op(spec::ReportAttrs{id}, {all(source)}, {all(copy_of)});
    return id;
  }
  std::uint32_t condition(spec::Condition::Cmp cmp, std::uint32_t report, double value, std::uint32_t parent = kNone) {
    program.conditions.push_back({cmp, report, value, parent});
    return static_cast<std::uint32_t>(program.conditions.size()) - 1;
  }
};

}  // namespace ccks::test
