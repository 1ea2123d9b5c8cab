#include "spec/expr_poly.hpp"

#include <algorithm>

namespace ccks::spec {
namespace {

constexpr std::size_t kMaxTerms = 64;  // beyond this a product stays a product: shapes never come near it
constexpr std::size_t kMaxDegree = 16;

int compare_atoms(const std::vector<Expr>& a, const std::vector<Expr>& b) {
  const std::size_t n = std::min(a.size(), b.size());
  for (std::size_t i = 0; i < n; ++i)
    if (int c = compare(a[i], b[i])) return c;
  return a.size() < b.size() ? -1 : a.size() > b.size();
}

bool before(const Expr& a, const Expr& b) { return compare(a, b) < 0; }

Term to_term(const Expr& e) {
  if (e.is_constant()) return {e.constant_value(), {}};
  if (e.op() != Expr::Op::mul || is_opaque(e)) return {1, {e}};
  const auto operands = e.operands();
  if (operands[0].is_constant())
    return {operands[0].constant_value(), std::vector<Expr>(operands.begin() + 1, operands.end())};
  return {1, std::vector<Expr>(operands.begin(), operands.end())};
}

Expr from_term(const Term& t) {
  if (t.atoms.empty()) return Expr(t.coefficient);
  if (t.coefficient == 1 && t.atoms.size() == 1) return t.atoms[0];
  std::vector<Expr> operands;
  operands.reserve(t.atoms.size() + 1);
  if (t.coefficient != 1) operands.push_back(Expr(t.coefficient));
  operands.insert(operands.end(), t.atoms.begin(), t.atoms.end());
  return Expr::Node::make(Expr::Op::mul, 0, std::move(operands), false);
}

/// Sorts, merges equal terms, drops zeros; false on overflow.
bool normalise(Poly& p) {
  std::sort(p.begin(), p.end(), [](const Term& a, const Term& b) { return compare_atoms(a.atoms, b.atoms) < 0; });
  Poly merged;
  for (Term& t : p) {
    if (!merged.empty() && compare_atoms(merged.back().atoms, t.atoms) == 0) {
      if (__builtin_add_overflow(merged.back().coefficient, t.coefficient, &merged.back().coefficient)) return false;
    } else {
      merged.push_back(std::move(t));
    }
  }
  std::erase_if(merged, [](const Term& t) { return t.coefficient == 0; });
  p = std::move(merged);
  return true;
}

}  // namespace

Poly to_poly(const Expr& e) {
  if (e.op() == Expr::Op::add && !is_opaque(e)) {
    Poly p;
    p.reserve(e.operands().size());
    for (const Expr& x : e.operands()) p.push_back(to_term(x));
    // An add is stored with its constant last, as people write it; a polynomial has it first.
    if (p.back().atoms.empty()) std::rotate(p.begin(), p.end() - 1, p.end());
    return p;
  }
  Term t = to_term(e);
  if (t.coefficient == 0) return {};
  return {std::move(t)};
}

Expr from_poly(const Poly& p) {
  if (p.empty()) return Expr(0);
  if (p.size() == 1) return from_term(p[0]);
  std::vector<Expr> operands;
  operands.reserve(p.size());
  for (const Term& t : p)
    if (!t.atoms.empty()) operands.push_back(from_term(t));
  if (p[0].atoms.empty()) operands.push_back(Expr(p[0].coefficient));
  return Expr::Node::make(Expr::Op::add, 0, std::move(operands), false);
}

Poly normalised(Poly p) {
  normalise(p);
  return p;
}

std::optional<Poly> add(const Poly& a, const Poly& b, std::int64_t sign) {
  if (a.size() + b.size() > 2 * kMaxTerms) return std::nullopt;
  Poly sum = a;
  sum.reserve(a.size() + b.size());
  for (const Term& t : b) {
    std::int64_t c = 0;
    if (__builtin_mul_overflow(t.coefficient, sign, &c)) return std::nullopt;
    sum.push_back({c, t.atoms});
  }
  if (!normalise(sum)) return std::nullopt;
  return sum;
}

std::optional<Poly> multiply(const Poly& a, const Poly& b) {
  if (a.size() * b.size() > kMaxTerms) return std::nullopt;
  Poly product;
  product.reserve(a.size() * b.size());
  for (const Term& x : a) {
    for (const Term& y : b) {
      Term t;
      if (__builtin_mul_overflow(x.coefficient, y.coefficient, &t.coefficient)) return std::nullopt;
      if (x.atoms.size() + y.atoms.size() > kMaxDegree) return std::nullopt;
      t.atoms = x.atoms;
      t.atoms.insert(t.atoms.end(), y.atoms.begin(), y.atoms.end());
      std::sort(t.atoms.begin(), t.atoms.end(), before);
      product.push_back(std::move(t));
    }
  }
  if (!normalise(product)) return std::nullopt;
  return product;
}

}  // namespace ccks::spec
