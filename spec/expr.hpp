// Integer expressions over dim symbols: canonical form, interval, three-valued equality (R1).
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

namespace ccks::spec {

enum class Truth { no, yes, unknown };

/// Closed integer interval; arithmetic on it saturates, it never wraps.
struct Interval {
  std::int64_t lo = 0;
  std::int64_t hi = 0;
};

/// A dim symbol as the program declares it: lo <= value <= hi, chosen at dispatch.
struct Symbol {
  std::string name;
  Interval range;
  std::optional<std::int64_t> preset;  // value used where dispatch names none
};

/// Index of a Symbol in Program::symbols.
using SymbolId = std::uint32_t;

/// Expr is an immutable integer expression in canonical form (a sum of products of atoms, where an atom is a symbol
/// or a floordiv, floormod, min or max of canonical expressions). Equal canonical forms compare equal; copies are
/// cheap and share nodes. Symbols are non-owning indices: ranges are passed in where they matter.
class Expr {
 public:
  enum class Op : std::uint8_t { constant, symbol, add, mul, floordiv, floormod, min, max };
  struct Node;  // children and cached hash; see expr.cpp

  Expr() : Expr(0) {}
  Expr(std::int64_t constant);
  static Expr symbol(SymbolId id);

  friend Expr operator+(const Expr& a, const Expr& b);
  friend Expr operator-(const Expr& a, const Expr& b);
  friend Expr operator*(const Expr& a, const Expr& b);
  /// floor(a / b), rounding towards minus infinity. Division by a constant zero is the caller's bug.
  friend Expr floordiv(const Expr& a, const Expr& b);
  friend Expr floormod(const Expr& a, const Expr& b);
  friend Expr ceildiv(const Expr& a, const Expr& b);
  friend Expr min(const Expr& a, const Expr& b);
  friend Expr max(const Expr& a, const Expr& b);

  /// Structural equality of canonical forms: true means equal for all values.
  friend bool operator==(const Expr& a, const Expr& b);

  bool is_constant() const;
  std::optional<std::int64_t> as_constant() const;
  Op op() const;
  std::int64_t constant_value() const;     // op() == constant
  SymbolId symbol_id() const;              // op() == symbol
  std::span<const Expr> operands() const;  // two or more for add and mul, two for the rest
  std::size_t hash() const;
  /// Nodes of the expression written out as a tree; the parser refuses what grows past kMaxWeight.
  std::size_t weight() const;
  static constexpr std::size_t kMaxWeight = 1000;

  /// Value with `values[id]` for each symbol; nothing on overflow of int64 or division by zero. Canonical forms cancel
  /// first: (n*m)//m has a value where m is zero, and n*k - n*k where n*k would overflow.
  std::optional<std::int64_t> evaluate(std::span<const std::int64_t> values) const;
  /// Sound bounds over the symbols' ranges.
  Interval bounds(std::span<const Symbol> symbols) const;
  void collect_symbols(std::vector<SymbolId>& out) const;
  /// Reads like the spec language, e.g. "ceildiv(n, 64)*4".
  std::string to_string(std::span<const Symbol> symbols) const;

 private:
  explicit Expr(std::shared_ptr<const Node> node) : node_(std::move(node)) {}
  std::shared_ptr<const Node> node_;
};

/// prove_equal says whether a == b for all (yes), for no (no) or for possibly some (unknown) values in the ranges.
/// `yes` and `no` are never wrong.
Truth prove_equal(const Expr& a, const Expr& b, std::span<const Symbol> symbols);
/// The same for a <= b.
Truth prove_less_equal(const Expr& a, const Expr& b, std::span<const Symbol> symbols);

}  // namespace ccks::spec
