// attention whose context is split over tiles, and its body for few queries: any order of tiles gives the same.
#include <algorithm>
#include <numeric>

#include "ccks/worker/ops_attention.hpp"
#include "ccks/worker/platform_host.hpp"
#include "tests/support/sanitized.hpp"
#include "tests/unit/worker/emulated_warps.hpp"
#include "tests/unit/worker/ops_fixture.hpp"

namespace ccks::worker::test {
namespace {

struct Shape {
  int kv_heads, group, head_dim, n, context, batch, chunks;
  Dtype dtype = Dtype::bf16;
};

template <class Types, class Lanes>
FaultCode run_order(Lanes& lanes, const wire::RunFrame& frame, const wire::OpParams& op, const std::vector<u32>& order) {
  for (const u32 tile : order) {
    const Call call(frame, op);
    const FaultCode fault = run_attention(lanes, call, tile, types_of<Types>(call));
    if (fault != FaultCode::none) return fault;
    lanes.sync();
  }
  return FaultCode::none;
}

template <class Types>
FaultCode run_everywhere(bool warps, const wire::RunFrame& frame, const wire::OpParams& op, const std::vector<u32>& order) {
  static WarpBlock block;
  if (!warps) {
    alignas(128) static u8 scratch[512 * 1024];
    HostLanes lanes(scratch, sizeof scratch);
    return run_order<Types>(lanes, frame, op, order);
  }
  FaultCode faults[WarpBlock::kLanes];
  block.run([&](u32 lane) {
    EmulatedWarps lanes(block, lane);
    faults[lane] = run_order<Types>(lanes, frame, op, order);
  });
  for (const FaultCode fault : faults) EXPECT_EQ(fault, faults[0]);
  return faults[0];
}

FaultCode run_typed(bool warps, Dtype dtype, const wire::RunFrame& frame, const wire::OpParams& op, const std::vector<u32>& order) {
  using Bf16 = FixedTypes<Dtype::bf16, Dtype::bf16, Dtype::bf16, Dtype::bf16, Dtype::f32, Dtype::i32>;
  using F32 = FixedTypes<Dtype::f32, Dtype::f32, Dtype::f32, Dtype::f32, Dtype::f32, Dtype::i32>;
  return dtype == Dtype::bf16 ? run_everywhere<Bf16>(warps, frame, op, order) : run_everywhere<F32>(warps, frame, op, order);
}

struct Case {
  Case(const Shape& of, bool causal_rows, std::uint32_t seed) : shape(of), causal(causal_rows), b(seed) {
    const int heads = shape.kv_heads * shape.group, columns = heads * shape.head_dim;
    q = b.tensor(shape.dtype, {1, shape.batch, shape.n, columns}, true);
    k = b.tensor(shape.dtype, {1, shape.batch, shape.context, shape.kv_heads * shape.head_dim}, true);
    v = b.tensor(shape.dtype, k.dim, true);
    out = b.tensor(shape.dtype, q.dim, true);
    parts = b.tensor(Dtype::f32, {shape.batch, std::max(1, shape.chunks), 8, columns + 2 * heads}, true);
    arrived = b.tensor(Dtype::i32, {1, 1, 1, shape.batch * shape.kv_heads}, true);
    for (const Tensor& t : {q, k, v}) b.fill(t, -2, 2);
    for (int i = 0; i < arrived.dim[3]; ++i) b.set(arrived, {0, 0, 0, i}, 0);
    b.operands = {q, k, v, out, parts, arrived};
    b.op.dims[0] = heads, b.op.dims[1] = shape.kv_heads, b.op.dims[2] = causal, b.op.dims[3] = shape.chunks;
    b.op.scalars[0] = 0.2f;
    b.tiles({std::max(1, shape.chunks), shape.batch, shape.n, columns}, {1, 1, shape.n, shape.group * shape.head_dim});
  }

  double want(int batch, int row, int column) {
    const int head = column / shape.head_dim, kv = head / shape.group * shape.head_dim, first = head * shape.head_dim;
    const int seen = causal ? std::clamp(row + 1 + shape.context - shape.n, 0, shape.context) : shape.context;
    double sum = 0, value = 0;
    for (int j = 0; j < seen; ++j) {
      double score = 0;
      for (int d = 0; d < shape.head_dim; ++d) score += b.get(q, {0, batch, row, first + d}) * b.get(k, {0, batch, j, kv + d});
      const double weight = std::exp(score * static_cast<double>(b.op.scalars[0]));
      sum += weight;
      value += weight * b.get(v, {0, batch, j, kv + column - first});
    }
    return value / sum;
  }

  void expect_right(const char* where) {
    const double tolerance = shape.dtype == Dtype::bf16 ? 0.01 : 1e-5;
    for (int batch = 0; batch < shape.batch; ++batch)
      for (int row = 0; row < shape.n; ++row)
        for (int column = batch + row; column < out.dim[3]; column += 7)
          ASSERT_NEAR(b.get(out, {0, batch, row, column}), want(batch, row, column), tolerance)
              << where << ", context " << shape.context << ", row " << row << ", column " << column;
    const auto active = static_cast<double>(std::min(shape.chunks, std::max(1, (shape.context + 127) / 128)));
    for (int i = 0; i < arrived.dim[3]; ++i) EXPECT_EQ(b.get(arrived, {0, 0, 0, i}), active > 1 ? active : 0);
  }

  void run() {
    std::vector<u32> order(b.op.tile_count);
    std::iota(order.begin(), order.end(), 0u);
    for (const bool warps : {false, true}) {
      std::shuffle(order.begin(), order.end(), b.rng);
      for (int i = 0; i < arrived.dim[3]; ++i) b.set(arrived, {0, 0, 0, i}, 0);
      for (int row = 0; row < shape.n; ++row) b.set(out, {0, 0, row, 0}, 99);
      const auto run_tiles = [&](const auto& frame, const auto& op) {
        const bool parts_in_vectors = shape.chunks == 1 || shape.kv_heads * shape.group % 2 == 0;
        const bool step = shape.dtype == Dtype::bf16 && shape.n == 1 && shape.head_dim >= 64 && parts_in_vectors;
        EXPECT_EQ(op.dims[4] != 0, step) << "which body takes it";
        return run_typed(warps, shape.dtype, frame, op, order);
      };
      ASSERT_EQ(b.run_by(OpCode::attention, 3, run_tiles), FaultCode::none);
      expect_right(warps ? "warps" : "host");
      if (testing::Test::HasFailure()) return;
    }
  }

  Shape shape;
  bool causal;
  Bench b;
  Tensor q, k, v, out, parts, arrived;
};

TEST(AttentionSplit, PartsTogetherAreTheWhole) {
  constexpr Shape kShapes[] = {
      {2, 4, 64, 1, 1, 1, 4},    {2, 4, 64, 1, 65, 1, 4},   {2, 4, 64, 1, 128, 1, 4},  {2, 4, 64, 1, 129, 1, 4}, {1, 4, 64, 1, 1000, 1, 5},
      {1, 3, 128, 1, 300, 2, 3}, {1, 4, 128, 2, 777, 1, 4}, {2, 2, 64, 3, 257, 1, 16}, {1, 4, 32, 8, 200, 1, 2}, {1, 1, 64, 1, 400, 1, 3},
      {3, 2, 64, 1, 1300, 2, 9}, {1, 8, 128, 1, 700, 1, 4}, {2, 5, 64, 1, 16, 3, 1},
  };
  std::uint32_t seed = 1;
  for (Shape shape : kShapes) {
    for (const Dtype dtype : {Dtype::bf16, Dtype::f32}) {
      if (++seed % 3 != 0 && ccks::test::short_sweeps()) continue;  // each dtype with every third shape
      shape.dtype = dtype;
      Case(shape, seed % 2 != 0 || shape.n > 1, seed - 1).run();
      if (HasFailure()) return;
    }
  }
}

TEST(AttentionSplit, FewQueriesWithoutParts) {
  constexpr Shape kShapes[] = {{2, 4, 64, 1, 97, 1, 1}, {2, 3, 128, 1, 64, 1, 1}, {1, 2, 64, 4, 33, 2, 1}, {1, 4, 128, 2, 201, 1, 1}};
  for (const Shape& shape : kShapes) {
    Case(shape, true, 77).run();
    if (HasFailure()) return;
  }
}

TEST(AttentionSplit, PartsCoverTheContextOnce) {
  for (u32 context = 0; context < 3000; context += 7) {
    for (const u32 most_parts : {2u, 3u, 16u}) {
      u32 at = 0;
      for (u32 i = 0; i < most_parts; ++i) {
        const ContextPart part = context_part(context, most_parts, i);
        if (i >= part.count) {
          EXPECT_EQ(part.begin, part.end);
          continue;
        }
        EXPECT_EQ(part.begin, at);
        at = part.end;
      }
      EXPECT_EQ(at, context);
    }
  }
}

}  // namespace
}  // namespace ccks::worker::test
