// Canonical expressions against an evaluator that shares nothing with them: it keeps the tree as it was written.
#include "spec/expr.hpp"

#include <gtest/gtest.h>

#include <memory>
#include <random>

namespace ccks::spec {
namespace {

struct Tree {
  Expr::Op op;
  std::int64_t value = 0;
  std::shared_ptr<Tree> a, b;
  bool is_ceildiv = false;
};

using TreePtr = std::shared_ptr<Tree>;
using Wide = __int128;

/// Value in wide integers, or nothing where a divisor is zero.
std::optional<Wide> value_of(const Tree& t, const std::vector<std::int64_t>& values) {
  if (t.op == Expr::Op::constant) return t.value;
  if (t.op == Expr::Op::symbol) return values[static_cast<std::size_t>(t.value)];
  const auto a = value_of(*t.a, values), b = value_of(*t.b, values);
  if (!a || !b) return std::nullopt;
  const auto floor_div = [](Wide x, Wide y) { return x / y - ((x % y != 0) && ((x < 0) != (y < 0))); };
  switch (t.op) {
    case Expr::Op::add:
      return *a + *b;
    case Expr::Op::mul:
      return *a * *b;
    case Expr::Op::min:
      return *a < *b ? *a : *b;
    case Expr::Op::max:
      return *a > *b ? *a : *b;
    case Expr::Op::floordiv:
      if (*b == 0) return std::nullopt;
      return t.is_ceildiv ? -floor_div(-*a, *b) : floor_div(*a, *b);
    default:
      if (*b == 0) return std::nullopt;
      return *a - *b * floor_div(*a, *b);
  }
}

class RandomTrees {
 public:
  explicit RandomTrees(std::uint64_t seed) : random_(seed) {}

  std::int64_t pick(std::int64_t lo, std::int64_t hi) {
    return std::uniform_int_distribution<std::int64_t>(lo, hi)(random_);
  }

  TreePtr make(int depth, std::size_t symbols) {
    auto t = std::make_shared<Tree>();
    const auto kind = depth == 0 ? pick(0, 1) : pick(0, 8);
    if (kind == 0) {
      t->op = Expr::Op::constant;
      t->value = pick(-9, 17);
    } else if (kind == 1 || kind == 8) {
      t->op = Expr::Op::symbol;
      t->value = pick(0, static_cast<std::int64_t>(symbols) - 1);
    } else {
      static constexpr Expr::Op kOps[] = {Expr::Op::add,      Expr::Op::mul, Expr::Op::floordiv,
                                          Expr::Op::floormod, Expr::Op::min, Expr::Op::max};
      t->op = kOps[kind - 2];
      t->a = make(depth - 1, symbols);
      t->b = make(depth - 1, symbols);
      const bool divides = t->op == Expr::Op::floordiv || t->op == Expr::Op::floormod;
      if (divides && pick(0, 3) != 0) t->b = literal(pick(1, 8) * (pick(0, 5) == 0 ? -1 : 1));
      t->is_ceildiv = t->op == Expr::Op::floordiv && pick(0, 1) == 0;
    }
    return t;
  }

  TreePtr literal(std::int64_t v) {
    auto t = std::make_shared<Tree>();
    t->op = Expr::Op::constant;
    t->value = v;
    return t;
  }

 private:
  std::mt19937_64 random_;
};

/// Nothing where a divisor is a constant zero, which callers must not ask for.
std::optional<Expr> expr_of(const Tree& t) {
  if (t.op == Expr::Op::constant) return Expr(t.value);
  if (t.op == Expr::Op::symbol) return Expr::symbol(static_cast<SymbolId>(t.value));
  const auto a = expr_of(*t.a), b = expr_of(*t.b);
  if (!a || !b) return std::nullopt;
  switch (t.op) {
    case Expr::Op::add:
      return *a + *b;
    case Expr::Op::mul:
      return *a * *b;
    case Expr::Op::min:
      return min(*a, *b);
    case Expr::Op::max:
      return max(*a, *b);
    default:
      break;
  }
  if (*b == Expr(0)) return std::nullopt;
  if (t.op == Expr::Op::floormod) return floormod(*a, *b);
  return t.is_ceildiv ? ceildiv(*a, *b) : floordiv(*a, *b);
}

std::vector<Symbol> random_symbols(RandomTrees& random) {
  std::vector<Symbol> symbols;
  for (const char* name : {"n", "m", "k"}) {
    const std::int64_t lo = random.pick(-3, 6);
    symbols.push_back({name, {lo, lo + random.pick(0, 12)}, std::nullopt});
  }
  return symbols;
}

TEST(Expr, ValuesAndBoundsAgreeWithTheTreeAsWritten) {
  RandomTrees random(1);
  std::size_t compared = 0;
  while (compared < 120'000) {
    const auto symbols = random_symbols(random);
    const TreePtr tree = random.make(4, symbols.size());
    const auto e = expr_of(*tree);
    if (!e) continue;
    const Interval bounds = e->bounds(symbols);
    for (int i = 0; i < 12; ++i) {
      std::vector<std::int64_t> values;
      for (const Symbol& s : symbols) values.push_back(random.pick(s.range.lo, s.range.hi));
      const auto want = value_of(*tree, values);
      const auto got = e->evaluate(values);
      if (!want || *want > INT32_MAX || *want < INT32_MIN) continue;
      ++compared;
      ASSERT_TRUE(got) << e->to_string(symbols);
      ASSERT_EQ(*got, static_cast<std::int64_t>(*want)) << e->to_string(symbols);
      ASSERT_LE(bounds.lo, *got) << e->to_string(symbols);
      ASSERT_GE(bounds.hi, *got) << e->to_string(symbols);
    }
  }
}

void check_proofs(RandomTrees& random, const Tree& x, const Tree& y, const std::vector<Symbol>& symbols,
                  std::size_t (&counts)[3]) {
  const auto a = expr_of(x), b = expr_of(y);
  if (!a || !b) return;
  const Truth equal = prove_equal(*a, *b, symbols), below = prove_less_equal(*a, *b, symbols);
  ++counts[static_cast<int>(equal)];
  for (int i = 0; i < 12; ++i) {
    std::vector<std::int64_t> values;
    for (const Symbol& s : symbols) values.push_back(random.pick(s.range.lo, s.range.hi));
    const auto v = value_of(x, values), w = value_of(y, values);
    if (!v || !w) continue;
    const std::string what = a->to_string(symbols) + " and " + b->to_string(symbols);
    if (equal == Truth::yes) {
      ASSERT_TRUE(*v == *w) << what;
    }
    if (equal == Truth::no) {
      ASSERT_TRUE(*v != *w) << what;
    }
    if (below == Truth::yes) {
      ASSERT_TRUE(*v <= *w) << what;
    }
    if (below == Truth::no) {
      ASSERT_TRUE(*v > *w) << what;
    }
  }
}

TEST(Expr, ProofsAreNeverWrong) {
  RandomTrees random(2);
  std::size_t counts[3] = {};
  for (int round = 0; round < 20'000; ++round) {
    const auto symbols = random_symbols(random);
    const TreePtr x = random.make(3, symbols.size());
    TreePtr y = random.make(3, symbols.size());
    if (round % 3 == 0) {  // x plus something that may well be zero
      auto sum = std::make_shared<Tree>();
      sum->op = Expr::Op::add;
      sum->a = random.make(1, symbols.size());
      sum->b = x;
      y = sum;
    }
    check_proofs(random, *x, *y, symbols, counts);
    if (HasFatalFailure()) return;
  }
  // The proofs must decide something, or the test says nothing.
  EXPECT_GT(counts[static_cast<int>(Truth::yes)], 500u);
  EXPECT_GT(counts[static_cast<int>(Truth::no)], 2'000u);
  EXPECT_GT(counts[static_cast<int>(Truth::unknown)], 2'000u);
}

class ExprLaws : public ::testing::Test {
 protected:
  std::vector<Symbol> symbols{{"n", {1, 4096}, {}}, {"m", {1, 64}, {}}, {"pos", {0, 511}, {}}};
  Expr n = Expr::symbol(0), m = Expr::symbol(1), pos = Expr::symbol(2);
};

TEST_F(ExprLaws, EqualFormsCompareEqual) {
  EXPECT_EQ(n * (m + Expr(2)) - n * m, Expr(2) * n);
  EXPECT_EQ(floordiv(Expr(6) * n + Expr(9), Expr(3)), Expr(2) * n + Expr(3));
  EXPECT_EQ(floordiv(floordiv(n, Expr(4)), Expr(8)), floordiv(n, Expr(32)));
  EXPECT_EQ(floormod(Expr(8) * n + m, Expr(8)), floormod(m, Expr(8)));
  EXPECT_EQ(ceildiv(n + Expr(64), Expr(64)), ceildiv(n, Expr(64)) + Expr(1));
  EXPECT_EQ(min(n, n + Expr(1)), n);
  EXPECT_EQ(max(n, max(m, n)), max(m, n));
  EXPECT_EQ((n * m).hash(), (m * n).hash());
  EXPECT_FALSE(n == m);
}

TEST_F(ExprLaws, ProvesWhatShapesNeed) {
  const Expr tile(64);
  EXPECT_EQ(prove_equal(floordiv(n, tile) * tile + floormod(n, tile), n, symbols), Truth::yes);
  EXPECT_EQ(prove_less_equal(n, ceildiv(n, tile) * tile, symbols), Truth::yes);
  EXPECT_EQ(prove_less_equal(floordiv(n, tile) * tile, n, symbols), Truth::yes);
  EXPECT_EQ(prove_less_equal(n, n + pos, symbols), Truth::yes);
  EXPECT_EQ(prove_less_equal(min(n, m), m, symbols), Truth::yes);
  EXPECT_EQ(prove_less_equal(n, n * m, symbols), Truth::yes);
  EXPECT_EQ(prove_equal(Expr(2) * n + Expr(1), Expr(2) * m, symbols), Truth::no);
  EXPECT_EQ(prove_equal(n, m, symbols), Truth::unknown);
  EXPECT_EQ(prove_less_equal(n + pos, Expr(512), symbols), Truth::unknown);
  EXPECT_EQ(prove_less_equal(Expr(5000), n, symbols), Truth::no);
}

TEST_F(ExprLaws, OverflowGivesNoValueAndNoProof) {
  const Expr big = Expr(INT64_MAX);
  EXPECT_FALSE((big * n).evaluate(std::vector<std::int64_t>{2, 1, 0}));
  EXPECT_FALSE((big + n).evaluate(std::vector<std::int64_t>{2, 1, 0}));
  EXPECT_NE(prove_less_equal(big * n, big, symbols), Truth::yes);
  EXPECT_FALSE(floordiv(n, m - Expr(1)).evaluate(std::vector<std::int64_t>{2, 1, 0}));
}

TEST_F(ExprLaws, PrintsAsItIsWritten) {
  EXPECT_EQ((Expr(4) * n + Expr(-1)).to_string(symbols), "4*n - 1");
  EXPECT_EQ((ceildiv(n, Expr(64)) * Expr(4)).to_string(symbols), "4*ceildiv(n, 64)");
  EXPECT_EQ((n * (m + pos)).to_string(symbols), "n*m + n*pos");
  EXPECT_EQ(floormod(n - m, Expr(8)).to_string(symbols), "floormod(n + 7*m, 8)");
  EXPECT_EQ((Expr(0) - n).to_string(symbols), "-n");
}

}  // namespace
}  // namespace ccks::spec
