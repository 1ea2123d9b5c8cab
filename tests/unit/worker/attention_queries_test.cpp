// attention of warps with queries of their own: heads and contexts of any size, one query and many, limits of each row's own, beside plain sums.
#include <algorithm>

#include "ccks/worker/ops_attention.hpp"
#include "tests/support/sanitized.hpp"
#include "tests/unit/worker/emulated_warps.hpp"
#include "tests/unit/worker/ops_fixture.hpp"

namespace ccks::worker::test {
namespace {

struct Shape {
  int kv_heads, group, head_dim, n, context;
  int batch = 1;
  int tile_rows = 1 << 20, tile_heads = 1;
  bool causal = false, limited = false;
  Dtype dtype = Dtype::f32;
};

template <class Types>
FaultCode run_all(const wire::RunFrame& frame, const wire::OpParams& op) {
  static WarpBlock block;
  FaultCode faults[WarpBlock::kLanes];
  block.run([&](u32 lane) {
    EmulatedWarps lanes(block, lane);
    faults[lane] = FaultCode::none;
    for (u32 tile = 0; tile < op.tile_count && faults[lane] == FaultCode::none; ++tile) {
      const Call call(frame, op);
      if (!query_attention(lanes, call, tile, types_of<Types>(call))) faults[lane] = FaultCode::bad_op;  // no other body takes it
      lanes.sync();
    }
  });
  for (const FaultCode fault : faults) EXPECT_EQ(fault, faults[0]);
  return faults[0];
}
template <Dtype D>
FaultCode run_typed(bool limited, const wire::RunFrame& frame, const wire::OpParams& op) {
  return limited ? run_all<FixedTypes<D, D, D, Dtype::i32, D>>(frame, op) : run_all<FixedTypes<D, D, D, D>>(frame, op);
}

struct Case {
  Case(const Shape& of, std::uint32_t seed) : shape(of), b(seed) {
    const int heads = shape.kv_heads * shape.group;
    q = b.tensor(shape.dtype, {1, shape.batch, shape.n, heads * shape.head_dim}, true);
    k = b.tensor(shape.dtype, {1, shape.batch, shape.context, shape.kv_heads * shape.head_dim}, true);
    v = b.tensor(shape.dtype, k.dim, true);
    limits = b.tensor(Dtype::i32, {1, 1, shape.n, 2}, true);
    out = b.tensor(shape.dtype, q.dim, true);
    for (const Tensor& t : {q, k, v}) b.fill(t, -2, 2);
    for (int row = 0; row < shape.n; ++row) {
      b.set(limits, {0, 0, row, 0}, b.pick(-2, shape.context));
      b.set(limits, {0, 0, row, 1}, b.pick(-1, shape.context + 3));
    }
    b.operands = shape.limited ? std::vector<Tensor>{q, k, v, limits, out} : std::vector<Tensor>{q, k, v, out};
    b.op.dims[0] = heads, b.op.dims[1] = shape.kv_heads, b.op.dims[2] = shape.causal;
    b.op.scalars[0] = 0.3f;
    b.tiles(out.dim, {1, 1, std::min(shape.n, shape.tile_rows), shape.tile_heads * shape.head_dim});
  }

  double want(const Index& c) {
    const int head = c[3] / shape.head_dim, kv = head / shape.group * shape.head_dim, first = head * shape.head_dim;
    int begin = 0, end = shape.context;
    if (shape.causal) end = std::clamp(c[2] + 1 + shape.context - shape.n, 0, shape.context);
    if (shape.limited) begin = std::max(0, static_cast<int>(b.get(limits, {0, 0, c[2], 0}))), end = std::min(end, static_cast<int>(b.get(limits, {0, 0, c[2], 1})));
    double sum = 0, value = 0;
    for (int j = begin; j < end; ++j) {
      double score = 0;
      for (int d = 0; d < shape.head_dim; ++d) score += b.get(q, {0, c[1], c[2], first + d}) * b.get(k, {0, c[1], j, kv + d});
      const double weight = std::exp(score * static_cast<double>(b.op.scalars[0]));
      sum += weight;
      value += weight * b.get(v, {0, c[1], j, kv + c[3] - first});
    }
    return sum == 0 ? 0 : value / sum;
  }

  void run() {
    const std::size_t inputs = shape.limited ? 4 : 3;
    ASSERT_EQ(b.run_by(OpCode::attention, inputs,
                       [&](const auto& frame, const auto& op) {
                         return shape.dtype == Dtype::f32   ? run_typed<Dtype::f32>(shape.limited, frame, op)
                                : shape.dtype == Dtype::f16 ? run_typed<Dtype::f16>(shape.limited, frame, op)
                                                            : run_typed<Dtype::bf16>(shape.limited, frame, op);
                       }),
              FaultCode::none)
        << b.describe();
    b.expect_near(out, [&](const Index& c) { return want(c); }, shape.dtype == Dtype::f32 ? 2e-5 : shape.dtype == Dtype::f16 ? 2e-3 : 1e-2);
  }

  Shape shape;
  Bench b;
  Tensor q, k, v, limits, out;
};

void run_each(std::initializer_list<Shape> shapes, std::uint32_t seed) {
  for (const Shape& shape : shapes) {
    SCOPED_TRACE("head_dim " + std::to_string(shape.head_dim) + ", rows " + std::to_string(shape.n) + ", context " + std::to_string(shape.context));
    Case(shape, seed++).run();
    if (testing::Test::HasFailure()) return;
  }
}

TEST(AttentionQueries, HeadsAndContextsOfAnySize) {
  std::uint32_t seed = 1;
  for (const int head_dim : {4, 8, 20, 40, 64, 96, 128, 256}) {
    for (const int context : {1, 15, 16, 17, 300}) {
      if (context == 300 && head_dim > 40 && head_dim != 128 && ccks::test::short_sweeps()) continue;
      run_each({{2, 1, head_dim, 9, context, 1, 8}, {1, 1, head_dim, 1, context}}, seed);
      seed += 2;
      if (HasFailure()) return;
    }
  }
}

// Tiles of one to eight queries and more: warps share the context of one, or have several each.
TEST(AttentionQueries, QueriesOfATileInAnyNumber) {
  std::uint32_t seed = 100;
  for (const int n : {1, 2, 3, 4, 5, 8, 19}) {
    run_each({{1, 1, 64, n, 130}, {1, 2, 16, n, 77, 2, 3, 2}, {3, 2, 32, n, 33, 1, 4, 4}, {2, 3, 12, n, 40, 2, 2, 6}}, seed);
    seed += 4;
    if (HasFailure()) return;
  }
}

TEST(AttentionQueries, CausalRows) {
  run_each({{2, 2, 64, 9, 9, 1, 4, 2, true}, {1, 1, 40, 20, 15, 1, 8, 1, true}, {1, 4, 128, 1, 65, 2, 1, 4, true}, {1, 1, 8, 5, 200, 1, 5, 1, true}}, 200);
}

TEST(AttentionQueries, LimitsOfEachRow) {
  run_each({{2, 2, 64, 9, 40, 1, 4, 2, false, true}, {1, 1, 40, 30, 300, 1, 8, 1, false, true}, {1, 1, 64, 2, 300, 1, 1, 1, true, true},
            {2, 1, 64, 11, 50, 1, 8, 1, false, true, Dtype::bf16}},
           300);
}

TEST(AttentionQueries, SmallerFloats) {
  run_each({{2, 1, 40, 9, 33, 1, 8, 1, false, false, Dtype::bf16}, {1, 3, 32, 3, 100, 1, 2, 3, true, false, Dtype::f16}, {1, 1, 256, 4, 64, 1, 4, 1, false, false, Dtype::bf16}}, 400);
}

TEST(AttentionQueries, WhatARowDoesNotSeeMayHoldAnything) {
  Case c({1, 1, 64, 9, 40, 1, 8, 1, false, true}, 500);
  for (int row = 0; row < 9; ++row) c.b.set(c.limits, {0, 0, row, 0}, 7), c.b.set(c.limits, {0, 0, row, 1}, 30);
  for (const int j : {0, 6, 30, 39})
    for (int d = 0; d < 64; ++d) c.b.set(c.k, {0, 0, j, d}, NAN), c.b.set(c.v, {0, 0, j, d}, NAN);
  c.run();
}

TEST(AttentionQueries, OthersAreNotMarked) {
  const auto marked = [](const Shape& shape, auto change) {
    Case c(shape, 600);
    change(c);
    bool is = false;
    c.b.run_by(OpCode::attention, shape.limited ? 4 : 3, [&](const auto&, const auto& op) {
      is = op.dims[4] == 0 && op.dims[wire::kQueryDim] != 0;
      return FaultCode::none;
    });
    return is;
  };
  const auto same = [](Case&) {};
  EXPECT_TRUE(marked({2, 1, 64, 9, 16}, same));
  EXPECT_FALSE(marked({2, 1, 6, 9, 16}, same)) << "no vectors";
  EXPECT_FALSE(marked({1, 1, 260, 9, 16}, same));
  EXPECT_FALSE(marked({2, 1, 64, 9, 16}, [](Case& c) { c.b.op.tile[3] = 32; })) << "half a head";
  EXPECT_FALSE(marked({2, 1, 64, 9, 16}, [](Case& c) { c.b.operands[1].stride[2] += 1; }));
  EXPECT_FALSE(marked({2, 1, 64, 9, 16, 1, 1 << 20, 1, false, true}, [](Case& c) { c.b.operands[3].dim[2] = 8; })) << "limits of fewer rows";
  EXPECT_FALSE(marked({2, 1, 64, 1, 16, 1, 1, 1, false, false, Dtype::bf16}, same)) << "a decode step";
}

}  // namespace
}  // namespace ccks::worker::test
