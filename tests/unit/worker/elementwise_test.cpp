// map, report, select, and element expressions against a plain interpreter in f64.
#include "tests/unit/worker/ops_fixture.hpp"

namespace ccks::worker::test {
namespace {

constexpr Dtype kAll[] = {Dtype::f32, Dtype::f16, Dtype::bf16, Dtype::i32, Dtype::i64, Dtype::boolean};
Index any_shape(Bench& b, int most = 9) {
  return {b.pick(1, 3), b.pick(1, 3), b.pick(1, most), b.pick(1, b.coin() ? most : 300)};
}

double stored(Dtype d, double v) {
  if (d == Dtype::boolean) return v != 0;
  if (wire::dtype_is_float(d)) return v;
  if (std::isnan(v)) return 0;
  const double limit = d == Dtype::i32 ? 0x1p31 : 0x1p63;
  return std::min(std::max(std::nearbyint(v), -limit), limit - 1);
}

TEST(Map, CopiesAndConvertsEveryPairOfDtypes) {
  for (std::uint32_t seed = 0; seed < 72; ++seed) {
    Bench b(seed);
    const Index shape = any_shape(b);
    const Tensor x = b.coin() ? b.broadcast(kAll[seed % 6], shape) : b.tensor(kAll[seed % 6], shape);
    if (x.stride[0] != 0) b.fill(x, -3, 3);
    b.operands = {x, b.tensor(kAll[seed / 6 % 6], shape)};
    b.grid(shape);
    b.check(OpCode::map, 1,
            [&](std::size_t, const Index& c) { return stored(b.operands[1].dtype, b.get(b.operands[0], c)); });
    if (HasFailure()) return;
  }
}

TEST(Map, KeepsIntegersBeyondFloatPrecision) {
  Bench b(5);
  const Index shape{1, 1, 1, 2};
  const Tensor x = b.tensor(Dtype::i64, shape), y = b.tensor(Dtype::i64, shape), z = b.tensor(Dtype::i32, shape);
  b.set(x, {0, 0, 0, 0}, 9007199254740991.0);
  b.set(x, {0, 0, 0, 1}, -16777217);
  b.grid(shape);
  b.operands = {x, y};
  b.check(OpCode::map, 1, [&](std::size_t, const Index& c) { return b.get(x, c); });
  b.operands = {x, z};
  b.check(OpCode::map, 1, [&](std::size_t, const Index& c) { return c[3] == 0 ? 2147483647.0 : -16777217.0; });
}

TEST(Map, BroadcastsAndUsesIndices) {
  for (std::uint32_t seed = 0; seed < 60; ++seed) {
    Bench b(100 + seed);
    const Index shape = any_shape(b);
    const Tensor x = b.broadcast(Dtype::f32, shape), y = b.broadcast(b.coin() ? Dtype::bf16 : Dtype::f16, shape);
    const int axis = b.pick(0, 3);
    const bool indexed = b.coin();
    b.operands = {x, y, b.tensor(Dtype::f32, shape, b.coin())};
    b.code = {ins(ExprOp::arg_f, 0, 0, 0, 0), ins(ExprOp::arg_f, 1, 0, 0, 1), ins(ExprOp::mul_f, 0, 0, 1)};
    if (indexed) {
      b.code.push_back(ins(ExprOp::index_i, 1, 0, 0, static_cast<std::uint32_t>(axis)));
      b.code.push_back(ins(ExprOp::f_from_i, 1, 1));
      b.code.push_back(ins(ExprOp::add_f, 0, 0, 1));
    }
    b.grid(shape);
    b.check(OpCode::map, 2,
            [&](std::size_t, const Index& c) { return b.get(x, c) * b.get(y, c) + (indexed ? c[axis] : 0); });
    if (HasFailure()) return;
  }
}

TEST(Map, RowsThatCouldBeJoinedKeepTheirIndices) {
  for (int axis = 0; axis < 4; ++axis) {
    Bench b(200);
    const Index shape{2, 3, 5, 7};
    const Tensor x = b.tensor(Dtype::f32, shape, true);
    b.fill(x, -2, 2);
    b.operands = {x, b.tensor(Dtype::f32, shape, true)};
    b.code = {ins(ExprOp::arg_f, 0), ins(ExprOp::index_i, 1, 0, 0, static_cast<std::uint32_t>(axis)),
              ins(ExprOp::f_from_i, 1, 1), ins(ExprOp::add_f, 0, 0, 1)};
    for (int i = 0; i < 4; ++i) b.op.tile[i] = shape[i], b.op.grid[i] = 1;
    b.op.tile_count = 1;
    b.check(OpCode::map, 1, [&](std::size_t, const Index& c) { return b.get(x, c) + c[axis]; });
  }
}

// ---- single instructions --------------------------------------------------------------------------------------------

double float_result(ExprOp op, double a, double b) {
  switch (op) {
    case ExprOp::add_f:
      return a + b;
    case ExprOp::sub_f:
      return a - b;
    case ExprOp::mul_f:
      return a * b;
    case ExprOp::div_f:
      return a / b;
    case ExprOp::mod_f: {
      const double r = std::fmod(a, b);
      return r != 0 && (r < 0) != (b < 0) ? r + b : r;
    }
    case ExprOp::min_f:
      return std::isnan(a) || std::isnan(b) ? NAN : std::min(a, b);
    case ExprOp::max_f:
      return std::isnan(a) || std::isnan(b) ? NAN : std::max(a, b);
    default:
      return std::pow(a, b);
  }
}
double unary_result(ExprOp op, double a) {
  switch (op) {
    case ExprOp::neg_f:
      return -a;
    case ExprOp::abs_f:
      return std::abs(a);
    case ExprOp::floor_f:
      return std::floor(a);
    case ExprOp::ceil_f:
      return std::ceil(a);
    case ExprOp::round_f:
      return std::nearbyint(a);
    case ExprOp::sign_f:
      return (a > 0) - (a < 0);
    case ExprOp::exp_f:
      return std::exp(a);
    case ExprOp::log_f:
      return std::log(a);
    case ExprOp::sqrt_f:
      return std::sqrt(a);
    case ExprOp::rsqrt_f:
      return 1 / std::sqrt(a);
    case ExprOp::sin_f:
      return std::sin(a);
    case ExprOp::cos_f:
      return std::cos(a);
    case ExprOp::tanh_f:
      return std::tanh(a);
    case ExprOp::erf_f:
      return std::erf(a);
    case ExprOp::sigmoid_f:
      return 1 / (1 + std::exp(-a));
    case ExprOp::silu_f:
      return a / (1 + std::exp(-a));
    case ExprOp::gelu_f:
      return 0.5 * a * std::erfc(-a / std::sqrt(2.0));
    case ExprOp::gelu_tanh_f:
      return 0.5 * a * (1 + std::tanh(std::sqrt(2 / M_PI) * (a + 0.044715 * a * a * a)));
    case ExprOp::relu_f:
      return a > 0 ? a : 0;
    default:
      return std::log1p(std::exp(a));
  }
}
std::int64_t int_result(ExprOp op, std::int64_t a, std::int64_t b) {
  switch (op) {
    case ExprOp::add_i:
      return a + b;
    case ExprOp::sub_i:
      return a - b;
    case ExprOp::mul_i:
      return a * b;
    case ExprOp::div_i:
      return b == 0 ? 0 : static_cast<std::int64_t>(std::floor(static_cast<double>(a) / static_cast<double>(b)));
    case ExprOp::mod_i:
      return b == 0 ? 0
                    : a - b * static_cast<std::int64_t>(std::floor(static_cast<double>(a) / static_cast<double>(b)));
    case ExprOp::min_i:
      return std::min(a, b);
    case ExprOp::max_i:
      return std::max(a, b);
    case ExprOp::neg_i:
      return -a;
    case ExprOp::abs_i:
      return std::abs(a);
    case ExprOp::sign_i:
      return (a > 0) - (a < 0);
    case ExprOp::lt_i:
      return a < b;
    case ExprOp::le_i:
      return a <= b;
    case ExprOp::eq_i:
      return a == b;
    case ExprOp::ne_i:
      return a != b;
    case ExprOp::and_i:
      return a != 0 && b != 0;
    case ExprOp::or_i:
      return a != 0 || b != 0;
    default:
      return a == 0;
  }
}

bool between(ExprOp op, ExprOp first, ExprOp last) { return op >= first && op <= last; }
bool compares_floats(ExprOp op) { return between(op, ExprOp::lt_f, ExprOp::ne_f); }
bool takes_floats(ExprOp op) {
  return between(op, ExprOp::add_f, ExprOp::pow_f) || between(op, ExprOp::neg_f, ExprOp::sign_f) ||
         between(op, ExprOp::exp_f, ExprOp::softplus_f) || compares_floats(op) || op == ExprOp::i_from_f;
}
bool gives_float(ExprOp op) {
  return op == ExprOp::f_from_i || op == ExprOp::select_f ||
         (takes_floats(op) && !compares_floats(op) && op != ExprOp::i_from_f);
}

/// Floats x, y and ints i, j, k in registers 0, 2 and 1, 3, 5.
double want_of(ExprOp op, double x, double y, std::int64_t i, std::int64_t j, std::int64_t k) {
  switch (op) {
    case ExprOp::select_f:
      return i != 0 ? x : y;
    case ExprOp::select_i:
      return static_cast<double>(i != 0 ? j : k);
    case ExprOp::f_from_i:
      return static_cast<double>(i);
    case ExprOp::i_from_f:
      return std::trunc(x);
    case ExprOp::lt_f:
      return x < y;
    case ExprOp::le_f:
      return x <= y;
    case ExprOp::eq_f:
      return x == y;
    case ExprOp::ne_f:
      return x != y;
    default:
      break;
  }
  if (!takes_floats(op)) return static_cast<double>(int_result(op, i, j));
  return op <= ExprOp::pow_f ? float_result(op, x, y) : unary_result(op, x);
}

/// One instruction on three floats (registers 0, 2, 4) and three ints (1, 3, 5), into register 6.
void one_instruction(ExprOp op) {
  Bench b(static_cast<std::uint32_t>(op) + 500);
  const Index shape{1, 2, 3, 200};
  std::vector<Tensor> in;
  for (int i = 0; i < 6; ++i) {
    in.push_back(b.tensor(i % 2 == 0 ? Dtype::f32 : Dtype::i64, shape));
    b.fill(in.back(), -5, 5);
    b.code.push_back(ins(i % 2 == 0 ? ExprOp::arg_f : ExprOp::arg_i, i, 0, 0, static_cast<std::uint32_t>(i)));
  }
  const bool positive = op == ExprOp::log_f || op == ExprOp::sqrt_f || op == ExprOp::rsqrt_f || op == ExprOp::pow_f;
  if (positive) b.fill(in[0], 0.01, 20);
  if (compares_floats(op)) b.set(in[2], {0, 0, 0, 0}, b.get(in[0], {0, 0, 0, 0}));
  const int first = takes_floats(op) ? 0 : 1;
  if (op == ExprOp::select_f)
    b.code.push_back(ins(op, 6, 1, 0, 2));
  else if (op == ExprOp::select_i)
    b.code.push_back(ins(op, 6, 1, 3, 5));
  else
    b.code.push_back(ins(op, 6, first, first + 2));
  b.operands = in;
  b.operands.push_back(b.tensor(gives_float(op) ? Dtype::f32 : Dtype::i64, shape));
  b.grid(shape);
  const auto whole = [&](int i, const Index& c) {
    return static_cast<std::int64_t>(b.get(in[static_cast<std::size_t>(i)], c));
  };
  b.check(
      OpCode::map, 6,
      [&](std::size_t, const Index& c) {
        return want_of(op, b.get(in[0], c), b.get(in[2], c), whole(1, c), whole(3, c), whole(5, c));
      },
      2e-6);
}

TEST(Expression, EveryInstruction) {
  for (int op = static_cast<int>(ExprOp::add_f); op <= static_cast<int>(ExprOp::i_from_f); ++op) {
    SCOPED_TRACE("ExprOp " + std::to_string(op));
    one_instruction(static_cast<ExprOp>(op));
    if (testing::Test::HasFailure()) return;
  }
}

TEST(Expression, ConstantsAndRegistersThatAreWrittenOver) {
  Bench b(77);
  const Index shape{1, 1, 4, 130};
  const Tensor x = b.tensor(Dtype::f32, shape);
  b.fill(x, -4, 4);
  b.operands = {x, b.tensor(Dtype::f32, shape)};
  b.code = {ins(ExprOp::arg_f, 0),
            ins(ExprOp::const_f, 1, 0, 0, float_bits(0.5f)),
            ins(ExprOp::lt_f, 1, 1, 0),
            ins(ExprOp::const_i, 2, 0, 0, static_cast<std::uint32_t>(-3)),
            ins(ExprOp::mul_i, 1, 1, 2),
            ins(ExprOp::f_from_i, 1, 1),
            ins(ExprOp::select_f, 2, 2, 1, 0)};
  b.grid(shape);
  b.check(OpCode::map, 1, [&](std::size_t, const Index& c) { return b.get(x, c) > 0.5 ? -3.0 : 0.0; });
}

TEST(Report, ConvertsToI32) {
  Bench b(9);
  const Index shape{1, 1, 1, 37};
  for (const Dtype d : {Dtype::i64, Dtype::i32, Dtype::boolean}) {
    const Tensor x = b.tensor(d, shape);
    b.fill(x, -5, 5);
    b.operands = {x, b.tensor(Dtype::i32, shape, true)};
    b.grid(shape, true);
    b.check(OpCode::report, 1, [&](std::size_t, const Index& c) { return b.get(x, c); });
  }
}

TEST(Select, TakesThenWhereAllGuardsHold) {
  Bench b(10);
  const Index shape{1, 2, 5, 7};
  const Tensor yes = b.tensor(Dtype::bf16, shape), no = b.tensor(Dtype::bf16, shape),
               word = b.tensor(Dtype::i32, {1, 1, 1, 1}), level = b.tensor(Dtype::f32, {1, 1, 1, 1});
  b.fill(yes, -1, 1);
  b.fill(no, 5, 6);
  b.operands = {yes, no, b.tensor(Dtype::bf16, shape)};
  b.set(word, {}, 4);
  b.set(level, {}, 0.25);
  wire::GuardParams integer{};
  integer.offset = word.offset;
  integer.compare = static_cast<std::uint32_t>(wire::Compare::ge);
  wire::GuardParams real{};
  real.offset = level.offset;
  real.compare = static_cast<std::uint32_t>(wire::Compare::lt);
  real.is_float = 1;
  real.float_value = 0.5f;
  for (const int limit : {3, 4, 5}) {
    integer.int_value = limit;
    b.guards = {wire::GuardParams{}, real, integer};
    b.op.dims[0] = 1;
    b.op.dims[1] = 2;
    b.grid(shape);
    b.check(OpCode::select, 2, [&](std::size_t, const Index& c) { return b.get(limit <= 4 ? yes : no, c); });
  }
}

}  // namespace
}  // namespace ccks::worker::test
