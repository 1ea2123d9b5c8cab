// Canonical forms: every Expr is kept as a polynomial (a sum of integer multiples of products of atoms).
#include "spec/expr.hpp"

#include <algorithm>
#include <cassert>
#include <numeric>

#include "spec/expr_poly.hpp"

namespace ccks::spec {
namespace {

std::size_t mix(std::size_t seed, std::size_t value) {
  // Multiplier: the 64-bit golden ratio; spreads small ids over all bits.
  return (seed ^ value) * 0x9e3779b97f4a7c15ull + (seed >> 29);
}

}  // namespace

Expr Expr::Node::make(Op op, std::int64_t value, std::vector<Expr> operands, bool opaque) {
  auto node = std::make_shared<Node>();
  node->op = op;
  node->opaque = opaque;
  node->value = value;
  node->hash = mix(mix(static_cast<std::size_t>(op) + 1, static_cast<std::size_t>(value)), opaque);
  for (const Expr& e : operands) {
    node->hash = mix(node->hash, e.hash());
    node->weight = std::min<std::size_t>(node->weight + e.weight(), std::size_t{1} << 40);
  }
  node->operands = std::move(operands);
  return Expr(std::shared_ptr<const Node>(std::move(node)));
}

Expr::Expr(std::int64_t constant) {
  // Most constants are 0 (offsets) and 1: shared, since views carry several of each.
  static const Expr kZero = Node::make(Op::constant, 0, {}, false);
  static const Expr kOne = Node::make(Op::constant, 1, {}, false);
  if (constant == 0)
    node_ = kZero.node_;
  else if (constant == 1)
    node_ = kOne.node_;
  else
    node_ = Node::make(Op::constant, constant, {}, false).node_;
}

Expr Expr::symbol(SymbolId id) { return Node::make(Op::symbol, id, {}, false); }

bool Expr::is_constant() const { return node_->op == Op::constant; }
std::optional<std::int64_t> Expr::as_constant() const {
  return is_constant() ? std::optional(node_->value) : std::nullopt;
}
Expr::Op Expr::op() const { return node_->op; }
std::int64_t Expr::constant_value() const {
  assert(is_constant());
  return node_->value;
}
SymbolId Expr::symbol_id() const {
  assert(op() == Op::symbol);
  return static_cast<SymbolId>(node_->value);
}
std::span<const Expr> Expr::operands() const { return node_->operands; }
std::size_t Expr::hash() const { return node_->hash; }
std::size_t Expr::weight() const { return node_->weight; }
bool is_opaque(const Expr& e) { return Expr::Node::of(e).opaque; }

int compare(const Expr& a, const Expr& b) {
  const Expr::Node& x = Expr::Node::of(a);
  const Expr::Node& y = Expr::Node::of(b);
  if (&x == &y) return 0;
  if (x.op != y.op) return x.op < y.op ? -1 : 1;
  if (x.value != y.value) return x.value < y.value ? -1 : 1;
  if (x.opaque != y.opaque) return x.opaque < y.opaque ? -1 : 1;
  if (x.operands.size() != y.operands.size()) return x.operands.size() < y.operands.size() ? -1 : 1;
  for (std::size_t i = 0; i < x.operands.size(); ++i)
    if (int c = compare(x.operands[i], y.operands[i])) return c;
  return 0;
}

bool operator==(const Expr& a, const Expr& b) { return a.hash() == b.hash() && compare(a, b) == 0; }

Expr operator+(const Expr& a, const Expr& b) {
  auto sum = add(to_poly(a), to_poly(b), 1);
  return sum ? from_poly(*sum) : Expr::Node::make(Expr::Op::add, 0, {a, b}, true);
}

Expr operator-(const Expr& a, const Expr& b) {
  auto difference = add(to_poly(a), to_poly(b), -1);
  if (difference) return from_poly(*difference);
  return Expr::Node::make(Expr::Op::add, 0, {a, Expr(-1) * b}, true);
}

Expr operator*(const Expr& a, const Expr& b) {
  auto product = multiply(to_poly(a), to_poly(b));
  return product ? from_poly(*product) : Expr::Node::make(Expr::Op::mul, 0, {a, b}, true);
}

namespace {

/// Divides `c` rounding towards minus infinity; `b` > 0.
std::int64_t floor_quotient(std::int64_t c, std::int64_t b) { return c / b - (c % b < 0); }

struct Split {
  Poly quotient;   // a == b * quotient + remainder
  Poly remainder;  // coefficients in [0, b)
};

Split split_by(const Poly& a, std::int64_t b) {
  Split s;
  for (const Term& t : a) {
    const std::int64_t q = floor_quotient(t.coefficient, b);
    const std::int64_t r = t.coefficient - q * b;
    if (q != 0) s.quotient.push_back({q, t.atoms});
    if (r != 0) s.remainder.push_back({r, t.atoms});
  }
  return s;
}

/// Greatest common divisor of the coefficients of terms with atoms, and of `b`.
std::int64_t common_factor(const Poly& p, std::int64_t b) {
  for (const Term& t : p)
    if (!t.atoms.empty()) b = std::gcd(b, t.coefficient);
  return b;
}

bool is_constant_poly(const Poly& p) { return p.empty() || (p.size() == 1 && p[0].atoms.empty()); }

/// floordiv(floordiv(x, k) + c, b) == floordiv(x + k*c, k*b), for b, k > 0. Nothing where `r` is not of that shape.
std::optional<Expr> flatten_nested(const Poly& r, std::int64_t b) {
  std::int64_t c = 0;
  const Expr* inner = nullptr;
  for (const Term& t : r) {
    if (t.atoms.empty()) {
      c = t.coefficient;
      continue;
    }
    if (inner || t.coefficient != 1 || t.atoms.size() != 1 || t.atoms[0].op() != Expr::Op::floordiv)
      return std::nullopt;
    inner = &t.atoms[0];
  }
  if (!inner) return std::nullopt;
  const auto k = inner->operands()[1].as_constant();
  std::int64_t kc = 0, kb = 0;
  if (!k || *k <= 0 || __builtin_mul_overflow(*k, c, &kc) || __builtin_mul_overflow(*k, b, &kb)) return std::nullopt;
  return floordiv(inner->operands()[0] + Expr(kc), Expr(kb));
}

Expr floordiv_by_positive(const Expr& a, std::int64_t b) {
  if (b == 1) return a;
  Split s = split_by(to_poly(a), b);
  if (is_constant_poly(s.remainder)) return from_poly(s.quotient);
  // floor((g*x + c) / (g*b')) == floor((x + floor(c / g)) / b')
  const std::int64_t g = common_factor(s.remainder, b);
  if (g > 1) {
    Poly reduced;
    for (const Term& t : s.remainder)
      if (const std::int64_t q = floor_quotient(t.coefficient, g)) reduced.push_back({q, t.atoms});
    return from_poly(s.quotient) + floordiv_by_positive(from_poly(reduced), b / g);
  }
  if (auto nested = flatten_nested(s.remainder, b)) return from_poly(s.quotient) + *nested;
  return from_poly(s.quotient) + Expr::Node::make(Expr::Op::floordiv, 0, {from_poly(s.remainder), Expr(b)}, false);
}

Expr floormod_by_positive(const Expr& a, std::int64_t b) {
  const Poly r = split_by(to_poly(a), b).remainder;
  if (is_constant_poly(r)) return from_poly(r);
  std::int64_t g = b;
  for (const Term& t : r) g = std::gcd(g, t.coefficient);
  if (g > 1) {
    Poly reduced = r;
    for (Term& t : reduced) t.coefficient /= g;
    return Expr(g) * floormod_by_positive(from_poly(reduced), b / g);
  }
  return Expr::Node::make(Expr::Op::floormod, 0, {from_poly(r), Expr(b)}, false);
}

/// The quotient where every term of `a` is a multiple of the single term `b`.
std::optional<Expr> exact_quotient(const Poly& a, const Poly& b) {
  if (b.size() != 1) return std::nullopt;
  Poly quotient;
  for (const Term& t : a) {
    if (t.coefficient % b[0].coefficient != 0 || b[0].coefficient == -1) return std::nullopt;
    Term q{t.coefficient / b[0].coefficient, t.atoms};
    for (const Expr& atom : b[0].atoms) {
      auto it = std::find(q.atoms.begin(), q.atoms.end(), atom);
      if (it == q.atoms.end()) return std::nullopt;
      q.atoms.erase(it);
    }
    quotient.push_back(std::move(q));
  }
  return from_poly(normalised(std::move(quotient)));
}

/// -c for a constant divisor, where it has a negative.
bool is_negatable(std::int64_t b) { return b < 0 && b != INT64_MIN; }

void flatten(Expr::Op op, const Expr& e, std::vector<Expr>& out) {
  if (e.op() != op) {
    out.push_back(e);
    return;
  }
  for (const Expr& x : e.operands()) flatten(op, x, out);
}

Expr extreme(Expr::Op op, const Expr& a, const Expr& b) {
  std::vector<Expr> all;
  flatten(op, a, all);
  flatten(op, b, all);
  std::vector<Expr> kept;
  for (const Expr& e : all) {
    bool merged = false;
    for (Expr& k : kept) {
      const auto d = (e - k).as_constant();
      if (!d) continue;
      if (op == Expr::Op::min ? *d < 0 : *d > 0) k = e;
      merged = true;
      break;
    }
    if (!merged) kept.push_back(e);
  }
  std::sort(kept.begin(), kept.end(), [](const Expr& x, const Expr& y) { return compare(x, y) < 0; });
  Expr result = kept.back();
  for (std::size_t i = kept.size() - 1; i-- > 0;) result = Expr::Node::make(op, 0, {kept[i], result}, false);
  return result;
}

}  // namespace

Expr floordiv(const Expr& a, const Expr& b) {
  if (const auto k = b.as_constant()) {
    assert(*k != 0);
    if (*k > 0) return floordiv_by_positive(a, *k);
    if (is_negatable(*k)) return floordiv_by_positive(Expr(-1) * a, -*k);
  } else {
    if (a == b) return Expr(1);
    if (a == Expr(0)) return a;
    if (auto q = exact_quotient(to_poly(a), to_poly(b))) return *q;
  }
  return Expr::Node::make(Expr::Op::floordiv, 0, {a, b}, false);
}

Expr floormod(const Expr& a, const Expr& b) {
  if (const auto k = b.as_constant()) {
    assert(*k != 0);
    if (*k > 0) return floormod_by_positive(a, *k);
    if (is_negatable(*k)) return Expr(-1) * floormod_by_positive(Expr(-1) * a, -*k);
  } else if (a == Expr(0) || exact_quotient(to_poly(a), to_poly(b))) {
    return Expr(0);
  }
  return Expr::Node::make(Expr::Op::floormod, 0, {a, b}, false);
}

Expr ceildiv(const Expr& a, const Expr& b) {
  const auto k = b.as_constant();
  if (k && *k > 0) return floordiv(a + Expr(*k - 1), b);
  return Expr(-1) * floordiv(Expr(-1) * a, b);
}

Expr min(const Expr& a, const Expr& b) { return extreme(Expr::Op::min, a, b); }
Expr max(const Expr& a, const Expr& b) { return extreme(Expr::Op::max, a, b); }

}  // namespace ccks::spec
