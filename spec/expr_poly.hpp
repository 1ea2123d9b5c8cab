// How expr*.cpp look inside an Expr: as a polynomial over atoms. Not for other folders.
#pragma once

#include <optional>
#include <vector>

#include "spec/expr.hpp"

namespace ccks::spec {

struct Expr::Node {
  Op op = Op::constant;
  bool opaque = false;  // an add or mul that could not be expanded (too large): an atom to everything above it
  std::int64_t value = 0;
  std::vector<Expr> operands;
  std::size_t hash = 0;
  std::size_t weight = 1;

  static Expr make(Op op, std::int64_t value, std::vector<Expr> operands, bool opaque);
  static const Node& of(const Expr& e) { return *e.node_; }
};

/// coefficient * product of atoms; atoms in `compare` order, repeats are powers.
struct Term {
  std::int64_t coefficient = 0;
  std::vector<Expr> atoms;
};
/// Terms in order of their atoms, none zero, no two alike; the constant, if any, is first.
using Poly = std::vector<Term>;

/// Total order on structure: symbols by id, then compound atoms. Zero for equal canonical forms.
int compare(const Expr& a, const Expr& b);
bool is_opaque(const Expr& e);

Poly to_poly(const Expr& e);
Expr from_poly(const Poly& p);
Poly normalised(Poly p);
/// a + sign * b; nothing where a coefficient overflows.
std::optional<Poly> add(const Poly& a, const Poly& b, std::int64_t sign);
/// a * b; nothing on overflow, or where the product has more than a few dozen terms.
std::optional<Poly> multiply(const Poly& a, const Poly& b);

}  // namespace ccks::spec
