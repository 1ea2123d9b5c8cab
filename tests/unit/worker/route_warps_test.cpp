// Routing and combining on emulated warps, at the sizes that have bodies of their own: a sort by warps, a route of what a topk has found, rows in vectors.
#include <algorithm>

#include "ccks/worker/generic_ops.hpp"
#include "ccks/worker/typed_ops.hpp"
#include "tests/unit/worker/combine_case.hpp"
#include "tests/unit/worker/emulated_warps.hpp"

namespace ccks::worker::test {
namespace {

struct Pairs {
  std::vector<int> expert, count, row, source;
  Pairs(std::vector<int> chosen, int experts) : expert(std::move(chosen)), row(expert.size()) {
    for (int e = 0; e < experts; ++e) {
      count.push_back(static_cast<int>(std::count(expert.begin(), expert.end(), e)));
      for (std::size_t p = 0; p < expert.size(); ++p)
        if (expert[p] == e) row[p] = static_cast<int>(source.size()), source.push_back(static_cast<int>(p));
    }
  }
};

/// values and indices of k different experts a token, as a topk gives them; by tiles of so many tokens, or by one.
void check_found(std::uint32_t seed, int tokens, int experts, int k, int tile_tokens = 0) {
  Bench b(seed);
  const Index shape{1, 1, tokens, k};
  const Tensor values = b.tensor(Dtype::f32, shape, true), indices = b.tensor(Dtype::i32, shape, true);
  std::vector<int> chosen;
  for (int t = 0; t < tokens; ++t) {
    const int first = b.pick(0, experts - 1), step = experts % 2 == 0 ? 1 : 2;
    double value = b.pick(0, 3);
    for (int j = 0; j < k; ++j) {
      chosen.push_back((first + j * step) % experts);
      b.set(indices, {0, 0, t, j}, chosen.back());
      b.set(values, {0, 0, t, j}, value);
      value -= 0.25 * b.pick(0, 4);
    }
  }
  const bool dense = seed % 2 == 0;
  b.operands = {values, indices, b.tensor(Dtype::f32, shape, dense), b.tensor(Dtype::i32, shape, dense), b.tensor(Dtype::i32, {1, 1, 1, experts}),
                b.tensor(Dtype::i32, shape), b.tensor(Dtype::i32, {1, 1, 1, tokens * k})};
  b.op.dims[0] = k;
  b.op.dims[2] = 1;
  if (tile_tokens == 0)
    b.grid({1, 1, 1, 1});
  else
    b.tiles(shape, {1, 1, tile_tokens, k});
  const Pairs want(chosen, experts);
  b.check(OpCode::route, 2, [&](std::size_t o, const Index& c) -> double {
    const auto pair = static_cast<std::size_t>(c[2] * k + c[3]), last = static_cast<std::size_t>(c[3]);
    if (o != 0) return o == 1 ? want.expert[pair] : o == 2 ? want.count[last] : o == 3 ? want.row[pair] : want.source[last];
    double sum = 0;
    for (int j = 0; j < k; ++j) sum += std::exp(b.get(values, {0, 0, c[2], j}));
    return std::exp(b.get(values, c)) / sum;
  });
  b.set(indices, {0, 0, tokens - 1, 0}, experts);
  for (const Machine m : {Machine::host, Machine::emulated_warps}) EXPECT_EQ(b.run(m, OpCode::route, 2), FaultCode::bad_index);
  b.set(indices, {0, 0, tokens - 1, 0}, chosen[static_cast<std::size_t>(tokens - 1) * static_cast<std::size_t>(k)]);
  for (std::size_t o = 2; o < b.operands.size(); ++o) b.fill(b.operands[o], 77, 77);
  const auto run_roomy = [&] {
    return b.run_by(OpCode::route, 2, [](const auto& frame, const auto& op) { return run_on_warps<GenericOps, RoomyWarps>(frame, op, op.tile_count, [](const RoomyWarps&) {}); });
  };
  const double right = b.get(indices, {0, 0, tokens / 2, k - 1});
  b.set(indices, {0, 0, tokens / 2, k - 1}, -1);
  EXPECT_EQ(run_roomy(), FaultCode::bad_index);
  b.set(indices, {0, 0, tokens / 2, k - 1}, right);
  ASSERT_EQ(run_roomy(), FaultCode::none);
  for (int t = 0; t < tokens; ++t)
    for (int j = 0; j < k; ++j) {
      double sum = 0;
      for (int i = 0; i < k; ++i) sum += std::exp(b.get(values, {0, 0, t, i}));
      ASSERT_NEAR(b.get(b.operands[2], {0, 0, t, j}), std::exp(b.get(values, {0, 0, t, j})) / sum, 1e-5);
      ASSERT_EQ(b.get(b.operands[3], {0, 0, t, j}), want.expert[static_cast<std::size_t>(t * k + j)]);
    }
  for (int pair = 0; pair < tokens * k; ++pair) {
    ASSERT_EQ(b.get(b.operands[5], {0, 0, pair / k, pair % k}), want.row[static_cast<std::size_t>(pair)]) << "pair " << pair;
    ASSERT_EQ(b.get(b.operands[6], {0, 0, 0, pair}), want.source[static_cast<std::size_t>(pair)]);
  }
  for (int e = 0; e < experts; ++e) ASSERT_EQ(b.get(b.operands[4], {0, 0, 0, e}), want.count[static_cast<std::size_t>(e)]) << "expert " << e;
}

TEST(RouteFound, SortsPairs) {
  check_found(1, 1, 128, 8);
  check_found(2, 37, 128, 8);
  check_found(3, 300, 16, 8);
  check_found(4, 70, 7, 3);
  check_found(5, 513, 1, 1);
  check_found(7, 40, 64, 11);   // more than a flight
  check_found(8, 300, 64, 11);  // a lane a token
}
TEST(RouteFound, SortsManyPairsByLanes) {
  check_found(20, 256, 128, 8);
  check_found(21, 2000, 100, 8);
  check_found(22, 777, 31, 5);
  check_found(23, 4200, 16, 4);
}
TEST(RouteFound, ByTiles) {
  check_found(30, 37, 128, 8, 8);
  check_found(31, 37, 128, 8, 9);  // not one after the other
  check_found(32, 300, 16, 8, 64);
  check_found(33, 70, 7, 3, 1);
  check_found(34, 513, 2, 1, 16);
  check_found(36, 130, 300, 11, 64);  // more pairs and experts than lanes
}
TEST(RouteFound, MorePairsThan16BitsCount) { check_found(24, 16400, 8, 4); }
/// Of logits, by one tile: few tokens by a warp each, others as ever.
void check_logits(std::uint32_t seed, int tokens, int experts, int k, bool over_all, bool renormalize) {
  Bench b(seed);
  const Tensor logits = b.tensor(Dtype::f32, {1, 1, tokens, experts}, true);
  b.fill(logits, -2, 2);
  for (int e = 0; e < experts; e += 5) b.set(logits, {0, 0, tokens - 1, e}, 1.5);  // equal ones
  const Index shape{1, 1, tokens, k};
  b.operands = {logits, b.tensor(Dtype::f32, shape), b.tensor(Dtype::i32, shape), b.tensor(Dtype::i32, {1, 1, 1, experts}), b.tensor(Dtype::i32, shape),
                b.tensor(Dtype::i32, {1, 1, 1, tokens * k})};
  b.op.dims[0] = k;
  b.op.dims[1] = over_all;
  b.op.dims[2] = renormalize;
  b.grid({1, 1, 1, 1});
  std::vector<int> chosen;
  for (int t = 0; t < tokens; ++t) {
    std::vector<int> order(static_cast<std::size_t>(experts));
    for (int e = 0; e < experts; ++e) order[static_cast<std::size_t>(e)] = e;
    std::stable_sort(order.begin(), order.end(), [&](int l, int r) { return b.get(logits, {0, 0, t, l}) > b.get(logits, {0, 0, t, r}); });
    chosen.insert(chosen.end(), order.begin(), order.begin() + k);
  }
  const Pairs want(chosen, experts);
  b.check(OpCode::route, 1, [&](std::size_t o, const Index& c) -> double {
    const auto pair = static_cast<std::size_t>(c[2] * k + c[3]), last = static_cast<std::size_t>(c[3]);
    if (o != 0) return o == 1 ? want.expert[pair] : o == 2 ? want.count[last] : o == 3 ? want.row[pair] : want.source[last];
    double sum = 0;
    const int summed = over_all && !renormalize ? experts : k;
    for (int j = 0; j < summed; ++j) sum += std::exp(b.get(logits, {0, 0, c[2], summed == k ? want.expert[static_cast<std::size_t>(c[2] * k + j)] : j}));
    return std::exp(b.get(logits, {0, 0, c[2], want.expert[pair]})) / sum;
  });
}
TEST(RouteFew, FindsAndSorts) {
  check_logits(11, 1, 128, 8, true, true);
  check_logits(12, 8, 128, 8, false, false);
  check_logits(13, 5, 250, 3, false, true);
  check_logits(14, 8, 32, 32, true, true);
  check_logits(15, 3, 128, 8, true, false);  // weights want all logits
  check_logits(16, 9, 16, 4, true, true);    // too many
  check_logits(17, 2, 300, 4, true, true);
}
TEST(RouteFound, MoreExpertsThanScratchHasRoomFor) { check_found(6, 5, 1500, 2); }

TEST(TopkWarps, RowsOfUpTo256) {
  for (const int width : {3, 32, 128, 250, 256, 257}) {
    Bench b(static_cast<std::uint32_t>(width));
    const int k = std::min(width, 12);
    const Tensor x = b.tensor(Dtype::f32, {1, 1, 11, width}, true);
    b.fill(x, -1, 1);
    for (int row = 5; row < 11; ++row) {  // one lane has all of the largest
      for (int i = row; i < width; i += 32) b.set(x, {0, 0, row, i}, 2 + b.pick(0, 9));
    }
    for (int i = 0; i < width; i += 3) b.set(x, {0, 0, 4, i}, 0.5);  // equal ones
    b.operands = {x, b.tensor(Dtype::f32, {1, 1, 11, k}), b.tensor(Dtype::i32, {1, 1, 11, k})};
    b.op.dims[0] = k;
    b.tiles({1, 1, 11, 1}, {1, 1, 9, 1});
    b.check(OpCode::topk, 1, [&](std::size_t o, const Index& c) -> double {
      std::vector<int> order(static_cast<std::size_t>(width));
      for (int i = 0; i < width; ++i) order[static_cast<std::size_t>(i)] = i;
      std::stable_sort(order.begin(), order.end(), [&](int l, int r) { return b.get(x, {0, 0, c[2], l}) > b.get(x, {0, 0, c[2], r}); });
      const int at = order[static_cast<std::size_t>(c[3])];
      return o == 1 ? at : b.get(x, {0, 0, c[2], at});
    });
    if (HasFailure()) return;
  }
}

void check_combine(std::uint32_t seed, Dtype d, int tokens, int k, int width, Index tile, bool ends = false) {
  Bench b(seed);
  CombineCase combine(b, d, d, tokens, k, width, true, ends);
  b.tiles({1, 1, tokens, width}, tile);
  combine.check({Machine::host, Machine::emulated_warps}, -1);
}
TEST(CombineWarps, Vectors) {
  check_combine(4, Dtype::bf16, 7, 8, 64, {1, 1, 4, 64}, true);
  check_combine(5, Dtype::f32, 3, 5, 36, {1, 1, 2, 36}, true);
  check_combine(1, Dtype::bf16, 5, 8, 64, {1, 1, 3, 32});
  check_combine(2, Dtype::f32, 1, 1, 2048, {1, 1, 1, 256});
  check_combine(3, Dtype::f16, 9, 11, 20, {1, 1, 8, 20});
}

/// By lanes that copy in the background, rows in packets; packets: else vectors.
template <Dtype D>
void check_combined_packets(std::uint32_t seed, int tokens, int k, int width, Index tile, bool packets = true) {
  using Op = TypedOp<OpCode::combine, Code<Ins<ExprOp::arg_f, 0, 0, 0, 0>, Ins<ExprOp::arg_f, 1, 0, 0, 1>, Ins<ExprOp::add_f, 0, 0, 1, 0>>, D, Dtype::f32, Dtype::i32, D, D>;
  Bench b(seed);
  CombineCase combine(b, D, D, tokens, k, width, true, true);
  b.tiles({1, 1, tokens, width}, tile);
  u32 copies = 0;
  const auto run = [&] {
    return b.run_by(OpCode::combine, 4, [&](const wire::RunFrame& frame, const wire::OpParams& op) {
      WarpBlock block;
      FaultCode faults[WarpBlock::kLanes] = {};
      block.run([&](u32 lane) {
        RoomyWarps lanes(block, lane);
        for (u32 at = 0; at < op.tile_count; ++at) {
          const FaultCode fault = Op::run(lanes, frame, op, at);
          if (fault != FaultCode::none) faults[lane] = fault;
          lanes.sync();
        }
        if (lane == 0) copies = lanes.copies();
      });
      for (const FaultCode fault : faults) EXPECT_EQ(fault, faults[0]) << "lanes disagree about a fault";
      return faults[0];
    });
  };
  ASSERT_EQ(run(), FaultCode::none);
  EXPECT_EQ(copies > 0, packets) << b.describe();
  for (int t = 0; t < tokens; ++t)
    for (int c = 0; c < width; ++c) {
      const double want = combine.want(t, c);
      ASSERT_NEAR(b.get(combine.out, {0, 0, t, c}), want, 0.008 * std::abs(want) + 1e-3) << "token " << t << " column " << c << b.describe();
    }
  b.set(combine.row, {0, 0, 0, k - 1}, tokens * k);
  EXPECT_EQ(run(), FaultCode::bad_index);
}
TEST(CombineWarps, Packets) {
  check_combined_packets<Dtype::bf16>(11, 9, 8, 2048, {1, 1, 5, 2048});  // a packet a lane
  check_combined_packets<Dtype::bf16>(12, 7, 2, 4096, {1, 1, 4, 4096});  // two
  check_combined_packets<Dtype::f16>(13, 21, 3, 64, {1, 1, 16, 64});     // tokens side by side
  check_combined_packets<Dtype::f32>(14, 6, 1, 1024, {1, 1, 6, 512});
  check_combined_packets<Dtype::bf16>(15, 1, 8, 256, {1, 1, 1, 128});
  check_combined_packets<Dtype::bf16>(16, 3, 4, 48, {1, 1, 2, 48}, false);     // lanes cannot share six packets out
  check_combined_packets<Dtype::bf16>(17, 3, 60, 2048, {1, 1, 2, 2048}, false);  // no room for three tokens' rows
}

}  // namespace
}  // namespace ccks::worker::test
