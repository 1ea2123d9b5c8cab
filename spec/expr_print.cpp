// Writes an Expr the way the spec language reads it, so that every message can be pasted back.
#include "spec/expr_poly.hpp"

namespace ccks::spec {
namespace {

enum Precedence { kSum, kProduct, kAtom };

std::string print(const Expr& e, std::span<const Symbol> symbols, Precedence outer);

std::string call(const char* name, const Expr& a, const Expr& b, std::span<const Symbol> symbols) {
  return std::string(name) + "(" + print(a, symbols, kSum) + ", " + print(b, symbols, kSum) + ")";
}

std::string wrap(std::string text, bool needed) { return needed ? "(" + std::move(text) + ")" : std::move(text); }

std::string print_sum(const Expr& e, std::span<const Symbol> symbols) {
  std::string text;
  for (const Expr& term : e.operands()) {
    std::string part = print(term, symbols, kSum);
    if (text.empty())
      text = std::move(part);
    else if (part[0] == '-')
      text += " - " + part.substr(1);
    else
      text += " + " + part;
  }
  return text;
}

std::string print_product(const Expr& e, std::span<const Symbol> symbols) {
  std::string text;
  bool first = true;
  for (const Expr& factor : e.operands()) {
    if (first && factor == Expr(-1))
      text = "-";
    else if (first)
      text = print(factor, symbols, kProduct);
    else
      text += (text == "-" ? "" : "*") + print(factor, symbols, kAtom);
    first = false;
  }
  return text;
}

std::string print_quotient(const Expr& e, std::span<const Symbol> symbols) {
  const Expr& a = e.operands()[0];
  const Expr& b = e.operands()[1];
  // ceildiv is kept as floordiv(a + b - 1, b): say it back as it was written.
  const auto k = b.as_constant();
  const Poly p = to_poly(a);
  if (k && *k > 1 && !p.empty() && p[0].atoms.empty() && p[0].coefficient == *k - 1)
    return call("ceildiv", a - Expr(*k - 1), b, symbols);
  return call("floordiv", a, b, symbols);
}

std::string print(const Expr& e, std::span<const Symbol> symbols, Precedence outer) {
  switch (e.op()) {
    case Expr::Op::constant:
      return wrap(std::to_string(e.constant_value()), outer == kAtom && e.constant_value() < 0);
    case Expr::Op::symbol:
      return e.symbol_id() < symbols.size() ? symbols[e.symbol_id()].name : "?" + std::to_string(e.symbol_id());
    case Expr::Op::add:
      return wrap(print_sum(e, symbols), outer != kSum);
    case Expr::Op::mul:
      return wrap(print_product(e, symbols), outer == kAtom);
    case Expr::Op::floordiv:
      return print_quotient(e, symbols);
    case Expr::Op::floormod:
      return call("floormod", e.operands()[0], e.operands()[1], symbols);
    case Expr::Op::min:
      return call("min", e.operands()[0], e.operands()[1], symbols);
    case Expr::Op::max:
      return call("max", e.operands()[0], e.operands()[1], symbols);
  }
  return {};
}

}  // namespace

std::string Expr::to_string(std::span<const Symbol> symbols) const { return print(*this, symbols, kSum); }

}  // namespace ccks::spec
