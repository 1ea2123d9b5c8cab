// attention over pages: every body on pools whose other slots hold no numbers, against a plain sum over positions.
#include <algorithm>
#include <numeric>

#include "ccks/worker/ops_attention.hpp"
#include "ccks/worker/platform_host.hpp"
#include "tests/unit/worker/emulated_warps.hpp"
#include "tests/unit/worker/ops_fixture.hpp"

namespace ccks::worker::test {
namespace {

struct Shape {
  int kv_heads, group, head_dim, n, page, per_row, pool;  // pool: pages; a few slots more are none
  Dtype dtype = Dtype::bf16;
};

template <Dtype D>
struct PagedOp {
  template <class Lanes>
  static FaultCode run(Lanes& lanes, const wire::RunFrame& frame, const wire::OpParams& op, u32 tile) {
    const Call call(frame, op);
    return run_attention(lanes, call, tile, FixedTypes<D, D, D, Dtype::i32, Dtype::i32, D>{});
  }
};

struct Case {
  Case(const Shape& of, std::uint32_t seed, bool dense = false) : shape(of), b(seed) {
    const int heads = shape.kv_heads * shape.group, columns = heads * shape.head_dim, slots = shape.pool * shape.page + shape.page / 2;
    q = b.tensor(shape.dtype, {1, 1, shape.n, columns}, true);
    k = b.tensor(shape.dtype, {1, 1, slots, shape.kv_heads * shape.head_dim}, true);
    v = b.tensor(shape.dtype, k.dim, true);
    reach = b.tensor(Dtype::i32, {1, 1, shape.n, 2}, dense);
    pages = b.tensor(Dtype::i32, {1, 1, shape.n, shape.per_row}, dense);
    out = b.tensor(shape.dtype, q.dim, true);
    b.fill(q, -2, 2);
    for (const Tensor& t : {k, v}) Bench::each(t.dim, [&](const Index& c) { b.set(t, c, NAN); });
    b.operands = {q, k, v, reach, pages, out};
    b.op.dims[0] = heads, b.op.dims[1] = shape.kv_heads, b.op.dims[wire::kPageDim] = shape.page;
    b.op.scalars[0] = 0.2f;
    b.tiles({1, 1, shape.n, columns}, {1, 1, 1, shape.group * shape.head_dim});
    draw_rows();
  }

  /// Rows share pages; some have none, some name pages that are not there. Numbers lie where a row looks, and nowhere else.
  void draw_rows() {
    const int context = shape.page * shape.per_row;
    for (int i = 0; i < shape.n; ++i) {
      for (int p = 0; p < shape.per_row; ++p) b.set(pages, {0, 0, i, p}, b.pick(0, 9) == 0 ? (b.coin() ? -1 - b.pick(0, 5) : shape.pool + b.pick(0, 3)) : b.pick(0, shape.pool - 1));
      const int kind = b.pick(0, 5);
      const int begin = kind < 3 ? 0 : b.pick(-3, context - 1), end = kind == 5 ? begin : b.pick(kind == 4 ? context - 5 : std::max(0, begin), context + 9);
      b.set(reach, {0, 0, i, 0}, begin);
      b.set(reach, {0, 0, i, 1}, end);
      for (const int slot : slots_of(i))
        for (int d = 0; d < k.dim[3]; ++d) {
          b.set(k, {0, 0, slot, d}, b.uniform(-2, 2));
          b.set(v, {0, 0, slot, d}, b.uniform(-2, 2));
        }
    }
  }

  std::vector<int> slots_of(int i) {
    std::vector<int> slots;
    const int end = std::min(shape.page * shape.per_row, static_cast<int>(b.get(reach, {0, 0, i, 1})));
    for (int j = std::max(0, static_cast<int>(b.get(reach, {0, 0, i, 0}))); j < end; ++j) {
      const int number = static_cast<int>(b.get(pages, {0, 0, i, j / shape.page}));
      if (number >= 0 && number < shape.pool) slots.push_back(number * shape.page + j % shape.page);
    }
    return slots;
  }

  double want(const Index& c) {
    const int head = c[3] / shape.head_dim, kv = head / shape.group * shape.head_dim, first = head * shape.head_dim;
    double sum = 0, value = 0;
    for (const int slot : slots_of(c[2])) {
      double score = 0;
      for (int d = 0; d < shape.head_dim; ++d) score += b.get(q, {0, 0, c[2], first + d}) * b.get(k, {0, 0, slot, kv + d});
      const double weight = std::exp(score * static_cast<double>(b.op.scalars[0]));
      sum += weight;
      value += weight * b.get(v, {0, 0, slot, kv + c[3] - first});
    }
    return sum == 0 ? 0 : value / sum;
  }

  /// By the body for warps that knows its types.
  void run_step(bool step) {
    const FaultCode fault = b.run_by(OpCode::attention, 5, [&](const auto& frame, const auto& op) {
      EXPECT_EQ(op.dims[4] != 0, step) << "which body takes it";
      EXPECT_EQ(op.flags & wire::kOpGroups, 0);
      return shape.dtype == Dtype::bf16  ? run_on_warps<PagedOp<Dtype::bf16>>(frame, op)
             : shape.dtype == Dtype::f16 ? run_on_warps<PagedOp<Dtype::f16>>(frame, op)
                                         : run_on_warps<PagedOp<Dtype::f32>>(frame, op);
    });
    ASSERT_EQ(fault, FaultCode::none);
    for (int row = 0; row < shape.n; ++row)
      for (int column = row % 13; column < out.dim[3]; column += 13)
        ASSERT_NEAR(b.get(out, {0, 0, row, column}), want({0, 0, row, column}), shape.dtype == Dtype::f32 ? 1e-5 : 0.012)
            << "row " << row << ", column " << column << ", reach " << b.get(reach, {0, 0, row, 0}) << " to " << b.get(reach, {0, 0, row, 1}) << b.describe();
  }

  Shape shape;
  Bench b;
  Tensor q, k, v, reach, pages, out;
};

// A page of 48 is three turns: positions are found by division.
TEST(AttentionPages, StepsFindTheirPages) {
  constexpr Shape kShapes[] = {
      {2, 4, 64, 5, 16, 9, 12}, {2, 4, 64, 9, 64, 7, 6}, {1, 8, 128, 6, 64, 5, 4}, {3, 3, 64, 4, 48, 11, 7}, {1, 1, 128, 7, 16, 40, 30}, {2, 2, 64, 3, 256, 3, 3},
      {1, 4, 64, 1, 16, 1, 2},
  };
  std::uint32_t seed = 1;
  for (Shape shape : kShapes)
    for (const Dtype dtype : {Dtype::bf16, Dtype::f16}) {
      shape.dtype = dtype;
      for (int i = 0; i < 2; ++i) Case(shape, ++seed, i == 0).run_step(true);
      if (HasFailure()) return;
    }
}

TEST(AttentionPages, OthersTakeTheBodyForAny) {
  std::uint32_t seed = 100;
  Case({2, 2, 32, 4, 16, 3, 5}, ++seed).run_step(false);
  Case({2, 2, 64, 4, 8, 3, 5}, ++seed).run_step(false);
  Case({1, 9, 64, 2, 16, 3, 5}, ++seed).run_step(false);
  Case({2, 2, 64, 3, 16, 3, 5, Dtype::f32}, ++seed).run_step(false);
  Case two({2, 2, 64, 4, 16, 3, 5}, ++seed);
  two.b.tiles({1, 1, 4, 256}, {1, 1, 2, 128});
  two.run_step(false);
  Case both({2, 2, 64, 4, 16, 3, 5}, ++seed);
  both.b.tiles({1, 1, 4, 256}, {1, 1, 1, 256});
  both.run_step(false);
}

TEST(AttentionPages, EveryMachine) {
  constexpr Dtype kTypes[] = {Dtype::f32, Dtype::bf16, Dtype::f16};
  for (std::uint32_t seed = 200; seed < 224; ++seed) {
    Bench draw(seed);
    const Shape shape{draw.pick(1, 3), draw.pick(1, 4), draw.coin() ? 8 : 12, draw.pick(1, 6), draw.pick(1, 20), draw.pick(1, 9), draw.pick(1, 7), kTypes[seed % 3]};
    Case c(shape, seed);
    if (draw.coin()) c.b.grid({1, 1, shape.n, c.out.dim[3]}, false, shape.head_dim);
    c.b.check(OpCode::attention, 5, [&](std::size_t, const Index& at) { return c.want(at); }, 1e-4);
    if (HasFailure()) return;
  }
}

TEST(AttentionPages, MalformedIsAFault) {
  Case c({2, 2, 8, 3, 4, 3, 5, Dtype::f32}, 300);
  c.b.op.dims[wire::kPageDim] = 0;
  for (const Machine m : {Machine::host, Machine::emulated}) EXPECT_EQ(c.b.run(m, OpCode::attention, 5), FaultCode::bad_op);
}

}  // namespace
}  // namespace ccks::worker::test
