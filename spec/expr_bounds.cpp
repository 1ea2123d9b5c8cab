// Values, sound bounds and proofs over Expr. Bounds are over the unbounded integers: INT64_MIN as a lower and INT64_MAX
// as an upper bound stand for infinity, so that a proof never rests on a clamped number.
#include <algorithm>

#include "spec/expr_poly.hpp"

namespace ccks::spec {
namespace {

using Wide = __int128;
constexpr std::int64_t kLowest = INT64_MIN;
constexpr std::int64_t kHighest = INT64_MAX;

/// Cases tried in one proof, each level doubling the work. Shapes have a dozen nodes; only hostile text has hundreds.
int allowed_splits(std::size_t weight) { return weight <= 64 ? 4 : weight <= 200 ? 1 : 0; }

std::int64_t clamp(Wide v) { return v < kLowest ? kLowest : v > kHighest ? kHighest : static_cast<std::int64_t>(v); }

Interval hull(const Interval& a, const Interval& b) { return {std::min(a.lo, b.lo), std::max(a.hi, b.hi)}; }

Interval add(const Interval& a, const Interval& b) {
  return {a.lo == kLowest || b.lo == kLowest ? kLowest : clamp(Wide{a.lo} + b.lo),
          a.hi == kHighest || b.hi == kHighest ? kHighest : clamp(Wide{a.hi} + b.hi)};
}

bool is_infinite(std::int64_t v) { return v == kLowest || v == kHighest; }

/// Product of two end points, where the extremes count as infinite and 0 * infinity is 0.
std::int64_t multiply(std::int64_t a, std::int64_t b) {
  if (a == 0 || b == 0) return 0;
  if (is_infinite(a) || is_infinite(b)) return (a < 0) == (b < 0) ? kHighest : kLowest;
  return clamp(Wide{a} * b);
}

Interval multiply(const Interval& a, const Interval& b) {
  const auto [lo, hi] =
      std::minmax({multiply(a.lo, b.lo), multiply(a.lo, b.hi), multiply(a.hi, b.lo), multiply(a.hi, b.hi)});
  return {lo, hi};
}

std::int64_t divide(std::int64_t a, std::int64_t b) {
  if (is_infinite(b)) return a == 0 || (a < 0) == (b < 0) ? 0 : -1;
  if (is_infinite(a)) return (a < 0) == (b < 0) ? kHighest : kLowest;
  const Wide q = Wide{a} / b;
  return clamp(q - ((Wide{a} % b != 0) && ((a < 0) != (b < 0))));
}

Interval divide_by_one_sign(const Interval& a, const Interval& b) {
  const auto [lo, hi] = std::minmax({divide(a.lo, b.lo), divide(a.lo, b.hi), divide(a.hi, b.lo), divide(a.hi, b.hi)});
  return {lo, hi};
}

Interval divide(const Interval& a, const Interval& b) {
  // A zero divisor has no value, so the bounds are those of the two sides of zero.
  const Interval negative{b.lo, std::min<std::int64_t>(b.hi, -1)};
  const Interval positive{std::max<std::int64_t>(b.lo, 1), b.hi};
  if (negative.lo > negative.hi && positive.lo > positive.hi) return {kLowest, kHighest};
  if (negative.lo > negative.hi) return divide_by_one_sign(a, positive);
  if (positive.lo > positive.hi) return divide_by_one_sign(a, negative);
  return hull(divide_by_one_sign(a, negative), divide_by_one_sign(a, positive));
}

Interval modulo(const Interval& a, const Interval& b) {
  if (a.lo >= 0 && b.lo > a.hi) return a;
  Interval r{0, 0};
  if (b.hi > 0) r.hi = b.hi == kHighest ? kHighest : b.hi - 1;
  if (b.lo < 0) r.lo = b.lo == kLowest ? kLowest : b.lo + 1;
  if (b.lo > 0 && a.lo >= 0) r.hi = std::min(r.hi, a.hi);
  return r;
}

std::optional<std::int64_t> apply(Expr::Op op, std::int64_t a, std::int64_t b) {
  std::int64_t r = 0;
  switch (op) {
    case Expr::Op::add:
      return __builtin_add_overflow(a, b, &r) ? std::nullopt : std::optional(r);
    case Expr::Op::mul:
      return __builtin_mul_overflow(a, b, &r) ? std::nullopt : std::optional(r);
    case Expr::Op::min:
      return std::min(a, b);
    case Expr::Op::max:
      return std::max(a, b);
    case Expr::Op::floordiv:
      if (b == 0 || (a == INT64_MIN && b == -1)) return std::nullopt;
      return a / b - ((a % b != 0) && ((a < 0) != (b < 0)));
    case Expr::Op::floormod:
      if (b == 0) return std::nullopt;
      if (b == -1) return 0;
      r = a % b;
      return r != 0 && ((r < 0) != (b < 0)) ? r + b : r;
    case Expr::Op::constant:
    case Expr::Op::symbol:
      break;
  }
  return std::nullopt;
}

Interval apply(Expr::Op op, const Interval& a, const Interval& b) {
  switch (op) {
    case Expr::Op::add:
      return add(a, b);
    case Expr::Op::mul:
      return multiply(a, b);
    case Expr::Op::min:
      return {std::min(a.lo, b.lo), std::min(a.hi, b.hi)};
    case Expr::Op::max:
      return {std::max(a.lo, b.lo), std::max(a.hi, b.hi)};
    case Expr::Op::floordiv:
      return divide(a, b);
    case Expr::Op::floormod:
      return modulo(a, b);
    case Expr::Op::constant:
    case Expr::Op::symbol:
      break;
  }
  return {kLowest, kHighest};
}

}  // namespace

std::optional<std::int64_t> Expr::evaluate(std::span<const std::int64_t> values) const {
  if (op() == Op::constant) return constant_value();
  if (op() == Op::symbol) return symbol_id() < values.size() ? std::optional(values[symbol_id()]) : std::nullopt;
  auto result = operands()[0].evaluate(values);
  for (std::size_t i = 1; result && i < operands().size(); ++i) {
    const auto next = operands()[i].evaluate(values);
    result = next ? apply(op(), *result, *next) : std::nullopt;
  }
  return result;
}

Interval Expr::bounds(std::span<const Symbol> symbols) const {
  if (op() == Op::constant) return {constant_value(), constant_value()};
  if (op() == Op::symbol)
    return symbol_id() < symbols.size() ? symbols[symbol_id()].range : Interval{kLowest, kHighest};
  Interval result = operands()[0].bounds(symbols);
  for (std::size_t i = 1; i < operands().size(); ++i) result = apply(op(), result, operands()[i].bounds(symbols));
  return result;
}

void Expr::collect_symbols(std::vector<SymbolId>& out) const {
  if (op() == Op::symbol && std::find(out.begin(), out.end(), symbol_id()) == out.end()) out.push_back(symbol_id());
  for (const Expr& e : operands()) e.collect_symbols(out);
}

namespace {

using Symbols = std::span<const Symbol>;

/// Replaces every term of the form m*k*floordiv(x, k) by m*(x - floormod(x, k)), and floormod(x, y) with a symbolic
/// divisor by x - y*floordiv(x, y): the two ways in which quotient and remainder of one division cancel.
Expr expand_divisions(const Expr& e) {
  Expr sum = 0;
  for (const Term& t : to_poly(e)) {
    const Poly alone{t};
    Expr term = from_poly(alone);
    if (t.atoms.size() == 1 && t.atoms[0].op() == Expr::Op::floordiv) {
      const auto k = t.atoms[0].operands()[1].as_constant();
      const Expr& x = t.atoms[0].operands()[0];
      if (k && *k > 0 && t.coefficient % *k == 0) term = Expr(t.coefficient / *k) * (x - floormod(x, Expr(*k)));
    } else if (t.atoms.size() == 1 && t.atoms[0].op() == Expr::Op::floormod) {
      const Expr& y = t.atoms[0].operands()[1];
      const Expr& x = t.atoms[0].operands()[0];
      if (!y.is_constant()) term = Expr(t.coefficient) * (x - y * floordiv(x, y));
    }
    sum = sum + term;
  }
  return sum;
}

/// x - floormod(x, k) turns into k*floordiv(x, k): the other way round, for sums such as (n // 8)*8 + n % 8.
Expr expand_remainders(const Expr& e) {
  Expr sum = 0;
  for (const Term& t : to_poly(e)) {
    if (t.atoms.size() == 1 && t.atoms[0].op() == Expr::Op::floormod) {
      const Expr& x = t.atoms[0].operands()[0];
      const Expr& y = t.atoms[0].operands()[1];
      sum = sum + Expr(t.coefficient) * (x - y * floordiv(x, y));
    } else {
      sum = sum + from_poly({t});
    }
  }
  return sum;
}

Expr substitute(const Expr& e, const Expr& atom, const Expr& value) {
  Expr sum = 0;
  for (const Term& t : to_poly(e)) {
    Expr product = t.coefficient;
    for (const Expr& a : t.atoms) product = product * (a == atom ? value : a);
    sum = sum + product;
  }
  return sum;
}

const Expr* find_case_split(const Poly& p) {
  for (const Term& t : p)
    for (const Expr& a : t.atoms)
      if (a.op() == Expr::Op::min || a.op() == Expr::Op::max) return &a;
  return nullptr;
}

bool mentions(const Expr& e, SymbolId id) {
  if (e.op() == Expr::Op::symbol) return e.symbol_id() == id;
  return std::any_of(e.operands().begin(), e.operands().end(), [&](const Expr& x) { return mentions(x, id); });
}

/// A symbol in which `p` is linear, together with its factor: p == factor * symbol + rest.
struct Linear {
  SymbolId id;
  Expr factor;
};
std::vector<Linear> linear_symbols(const Expr& e) {
  std::vector<SymbolId> ids;
  e.collect_symbols(ids);
  std::vector<Linear> out;
  for (SymbolId id : ids) {
    Expr factor = 0;
    bool linear = true;
    for (const Term& t : to_poly(e)) {
      Expr product = t.coefficient;
      int power = 0;
      for (const Expr& a : t.atoms) {
        if (a.op() == Expr::Op::symbol && a.symbol_id() == id) {
          ++power;
          continue;
        }
        linear = linear && !mentions(a, id);
        product = product * a;
      }
      linear = linear && power <= 1;
      if (power == 1) factor = factor + product;
    }
    if (linear) out.push_back({id, factor});
  }
  return out;
}

Interval intersect(const Interval& a, const Interval& b) { return {std::max(a.lo, b.lo), std::min(a.hi, b.hi)}; }

/// Coefficient of `atom` where it stands in one term of `p`, alone; else 0.
std::int64_t lone_coefficient(const Poly& p, const Expr& atom) {
  std::int64_t coefficient = 0;
  for (const Term& t : p) {
    if (std::find(t.atoms.begin(), t.atoms.end(), atom) == t.atoms.end()) continue;
    if (coefficient != 0 || t.atoms.size() != 1) return 0;
    coefficient = t.coefficient;
  }
  return coefficient;
}

/// Bounds of a polynomial from those with its min or max replaced by either operand. It is one of the two; and where it
/// stands alone, min is at most, and max at least, both.
Interval join_cases(Expr::Op op, std::int64_t coefficient, const Interval& a, const Interval& b) {
  Interval joined = hull(a, b);
  const bool at_least_both = (op == Expr::Op::min) == (coefficient < 0);
  if (coefficient != 0 && at_least_both) joined.lo = std::max(a.lo, b.lo);
  if (coefficient != 0 && !at_least_both) joined.hi = std::min(a.hi, b.hi);
  return joined;
}

/// Bounds that also use case splits on min and max, and end points of symbols in which `e` is monotone.
Interval refined_bounds(const Expr& e, Symbols symbols, int splits) {
  Interval best = e.bounds(symbols);
  if (e.is_constant() || splits == 0 || e.weight() > Expr::kMaxWeight) return best;
  const Poly p = to_poly(e);
  if (const Expr* atom = find_case_split(p)) {
    const Interval a = refined_bounds(substitute(e, *atom, atom->operands()[0]), symbols, splits - 1);
    const Interval b = refined_bounds(substitute(e, *atom, atom->operands()[1]), symbols, splits - 1);
    return intersect(best, join_cases(atom->op(), lone_coefficient(p, *atom), a, b));
  }
  if (p.size() < 2) return best;
  for (const Linear& s : linear_symbols(e)) {
    const Interval slope = s.factor.bounds(symbols);
    const Interval range = symbols[s.id].range;
    if (s.factor.is_constant() || (slope.lo < 0 && slope.hi > 0)) continue;
    const Interval at_lo = refined_bounds(substitute(e, Expr::symbol(s.id), Expr(range.lo)), symbols, splits - 1);
    const Interval at_hi = refined_bounds(substitute(e, Expr::symbol(s.id), Expr(range.hi)), symbols, splits - 1);
    return intersect(best, hull(at_lo, at_hi));
  }
  return best;
}

Interval difference_bounds(const Expr& d, Symbols symbols) {
  const Interval plain = refined_bounds(d, symbols, allowed_splits(d.weight()));
  const Expr expanded = expand_divisions(d);
  return intersect(plain, refined_bounds(expanded, symbols, allowed_splits(expanded.weight())));
}

/// True where no integer values of the atoms make `d` zero: a common factor of all terms does not divide the constant.
bool parity_excludes_zero(const Expr& d) {
  std::int64_t factor = 0, constant = 0;
  for (const Term& t : to_poly(d)) {
    if (t.coefficient == INT64_MIN) return false;
    if (t.atoms.empty()) {
      constant = t.coefficient;
      continue;
    }
    std::int64_t a = factor, b = t.coefficient < 0 ? -t.coefficient : t.coefficient;
    while (b != 0) {
      const std::int64_t r = a % b;
      a = b;
      b = r;
    }
    factor = a;
  }
  return factor > 1 && constant % factor != 0;
}

}  // namespace

Truth prove_equal(const Expr& a, const Expr& b, std::span<const Symbol> symbols) {
  if (a == b) return Truth::yes;
  const Expr d = a - b;
  if (d == Expr(0) || expand_divisions(d) == Expr(0) || expand_remainders(d) == Expr(0)) return Truth::yes;
  const Interval range = difference_bounds(d, symbols);
  if (range.lo > range.hi) return Truth::unknown;  // the ranges themselves are empty
  if (range.lo == 0 && range.hi == 0) return Truth::yes;
  if (range.lo > 0 || range.hi < 0 || parity_excludes_zero(d)) return Truth::no;
  return Truth::unknown;
}

Truth prove_less_equal(const Expr& a, const Expr& b, std::span<const Symbol> symbols) {
  if (a == b) return Truth::yes;
  const Interval range = difference_bounds(b - a, symbols);
  if (range.lo > range.hi) return Truth::unknown;
  return range.lo >= 0 ? Truth::yes : range.hi < 0 ? Truth::no : Truth::unknown;
}

}  // namespace ccks::spec
