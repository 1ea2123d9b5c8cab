#include "codegen/plan_dims.hpp"

namespace ccks::codegen {

using plan::DimId;
using plan::DimOp;
using spec::Expr;

DimId DimTable::node(DimOp op, std::uint32_t a, std::uint32_t b, std::int64_t value) {
  const auto [it, fresh] = known_.try_emplace({op, a, b, value}, static_cast<DimId>(nodes_.size()));
  if (fresh) nodes_.push_back({op, a, b, value});
  return it->second;
}

DimId DimTable::of(const Expr& e) {
  if (const auto it = compiled_.find(e); it != compiled_.end()) return it->second;
  const DimId id = compile(e);
  compiled_.emplace(e, id);
  return id;
}

namespace {

/// The positive part of a term with a negative leading constant, so that sums can subtract it.
std::optional<Expr> negated(const Expr& term) {
  const Expr* lead = &term;
  if (term.op() == Expr::Op::mul) lead = &term.operands()[0];
  if (!lead->is_constant() || lead->constant_value() >= 0 || lead->constant_value() == INT64_MIN) return std::nullopt;
  return Expr(-1) * term;
}

}  // namespace

DimId DimTable::sum(const Expr& e) {
  // Positive terms first, so that differences of large products stay small on the way.
  std::optional<DimId> total;
  for (const Expr& term : e.operands())
    if (!negated(term)) total = total ? node(DimOp::add, *total, of(term), 0) : of(term);
  for (const Expr& term : e.operands()) {
    const auto positive = negated(term);
    if (positive) total = node(DimOp::sub, total ? *total : constant(0), of(*positive), 0);
  }
  return *total;
}

DimId DimTable::compile(const Expr& e) {
  const auto binary = [&](DimOp op) {
    const DimId a = of(e.operands()[0]), b = of(e.operands()[1]);
    return node(op, a, b, 0);
  };
  switch (e.op()) {
    case Expr::Op::constant:
      return constant(e.constant_value());
    case Expr::Op::symbol:
      return node(DimOp::symbol, 0, 0, e.symbol_id());
    case Expr::Op::add:
      return sum(e);
    case Expr::Op::mul: {
      DimId total = of(e.operands()[0]);
      for (const Expr& factor : e.operands().subspan(1)) {
        const DimId next = of(factor);
        total = node(DimOp::mul, total, next, 0);
      }
      return total;
    }
    case Expr::Op::floordiv:
      return binary(DimOp::floordiv);
    case Expr::Op::floormod:
      return binary(DimOp::floormod);
    case Expr::Op::min:
      return binary(DimOp::min);
    case Expr::Op::max:
      return binary(DimOp::max);
  }
  return constant(0);
}

}  // namespace ccks::codegen
