// expert_matmul with a twin (wire::kTwinDim), on all machines and on warps whose walk takes both weights: against two products in f64, the twin's rounded.
#include <algorithm>

#include "ccks/worker/shaped_ops.hpp"
#include "tests/unit/worker/emulated_warps.hpp"
#include "tests/unit/worker/ops_fixture.hpp"
#include "tests/unit/worker/twin_codes.hpp"

namespace ccks::worker::test {
namespace {

template <Dtype D>
using Op = TypedOp<OpCode::expert_matmul, Twinned<Scaled, Gated>, D, D, Dtype::i32, Dtype::i32, D, D, D, D>;
// No operands but the twin, which stays as it is: acc * twin.
using Plain = TypedOp<OpCode::expert_matmul, Twinned<Code<>, Code<Ins<ExprOp::arg_f, 0, 0, 0, 0>, Ins<ExprOp::arg_f, 1, 0, 0, 1>, Ins<ExprOp::mul_f, 0, 0, 1, 0>>>,
                      Dtype::bf16, Dtype::bf16, Dtype::i32, Dtype::i32, Dtype::bf16, Dtype::bf16>;

struct Case {
  std::vector<int> counts;  // of each expert
  int top_k, k, n, tile_rows, tile_columns;
  bool gather;
};

/// x, w [e, n, k] seen as [e, k, n], source, count, v as w, added, factor, out.
struct TwinExperts {
  TwinExperts(std::uint32_t seed, Dtype d, const Case& c, bool plain = false) : b(seed), is(c), scales(!plain) {
    for (const int n : c.counts) rows += n;
    const int experts = static_cast<int>(c.counts.size());
    x = filled(d, {1, 1, c.gather ? (rows + c.top_k - 1) / c.top_k : rows, c.k});
    for (Tensor* t : {&w, &v}) {
      *t = filled(d, {1, experts, c.n, c.k});
      std::swap(t->dim[2], t->dim[3]);
      std::swap(t->stride[2], t->stride[3]);
      t->flags = 0;
    }
    source = b.tensor(Dtype::i32, {1, 1, 1, rows}, true);
    count = b.tensor(Dtype::i32, {1, 1, 1, experts}, true);
    for (int i = 0; i < rows; ++i) b.set(source, {0, 0, 0, i}, (i * 7 + 3) % rows);
    for (int e = 0; e < experts; ++e) b.set(count, {0, 0, 0, e}, c.counts[static_cast<std::size_t>(e)]);
    added = filled(d, {1, 1, rows, c.n});
    factor = filled(d, {1, 1, rows, c.n});
    out = b.tensor(d, {1, 1, rows, c.n}, true);
    b.fill(out, 77, 77);
    b.operands = {x, w, source, count, v};
    if (scales) b.operands.insert(b.operands.end(), {added, factor});
    b.operands.push_back(out);
    if (scales) b.code = kScaled;
    b.code.insert(b.code.end(), kGated.begin(), kGated.begin() + (scales ? 5 : 3));
    b.op.dims[0] = c.top_k;
    b.op.dims[1] = c.gather;
    b.op.dims[2] = experts;
    b.op.dims[wire::kTwinDim] = scales ? 1 + static_cast<int>(kScaled.size()) : 1;
    b.op.dims[wire::kEpilogueDim] = 4;
    b.tiles({1, 1, rows, c.n}, {1, 1, c.tile_rows, c.tile_columns});
    b.op.grid[2] = (rows + c.tile_rows - 1) / c.tile_rows + experts;
    b.op.tile_count = static_cast<std::uint32_t>(b.op.grid[2] * b.op.grid[3]);
  }
  Tensor filled(Dtype d, Index shape) {
    const Tensor t = b.tensor(d, shape, true);
    b.fill(t, -1, 1);
    return t;
  }
  std::size_t inputs() const { return scales ? 7 : 5; }

  double product(const Tensor& by, int row, int column) {
    int expert = 0;
    for (int left = row; left >= is.counts[static_cast<std::size_t>(expert)]; ++expert) left -= is.counts[static_cast<std::size_t>(expert)];
    const int from = is.gather ? static_cast<int>(b.get(source, {0, 0, 0, row})) / is.top_k : row;
    double acc = 0;
    for (int i = 0; i < is.k; ++i) acc += b.get(x, {0, 0, from, i}) * b.get(by, {0, expert, i, column});
    return acc;
  }
  double want(const Index& c) {
    const double twin = stored(out.dtype, product(v, c[2], c[3]) * (scales ? b.get(factor, c) : 1));
    return product(w, c[2], c[3]) * twin + (scales ? b.get(added, c) : 0);
  }
  double tolerance() const { return out.dtype == Dtype::f32 ? 2e-4 : out.dtype == Dtype::f16 ? 4e-3 : 2.5e-2; }

  void check_everywhere() {
    b.check(OpCode::expert_matmul, inputs(), [&](std::size_t, const Index& c) { return want(c); }, tolerance());
  }
  /// Copies of the first lane.
  template <class Op, class Lanes>
  u32 run_by() {
    b.fill(out, 5, 5);
    u32 copies = 0;
    const FaultCode fault = b.run_by(OpCode::expert_matmul, inputs(), [&](const auto& frame, const auto& op) {
      return run_on_warps<Op, Lanes>(frame, op, op.tile_count, [&](const Lanes& lanes) {
        if constexpr (CopyLanes<Lanes>) copies = lanes.copies();
        if constexpr (GroupLanes<Lanes>) {
          EXPECT_TRUE(lanes.awaited_all());
          EXPECT_EQ(lanes.groups() > 0, copies > 0) << "another walk";
        }
      });
    });
    EXPECT_EQ(fault, FaultCode::none);
    return copies;
  }
  void expect_right() {
    b.expect_near(out, [&](const Index& c) { return want(c); }, tolerance());
  }

  Bench b;
  Case is;
  bool scales;
  int rows = 0;
  Tensor x, w, v, source, count, added, factor, out;
};

template <Dtype D>
void check(std::uint32_t seed, const Case& c) {
  TwinExperts e(seed, D, c);
  EXPECT_GT((e.run_by<Op<D>, RoomyWarps>()), 0u) << "another body ran" << e.b.describe();
  e.expect_right();
  EXPECT_GT((e.run_by<Op<D>, GroupWarps>()), 0u) << "another body ran" << e.b.describe();
  e.expect_right();
}

TEST(ExpertTwins, OnEveryMachine) {
  std::uint32_t seed = 900;
  for (const Dtype dtype : {Dtype::bf16, Dtype::f16, Dtype::f32})
    for (const bool plain : {false, true}) {
      TwinExperts(seed++, dtype, {{1, 0, 3, 8, 2}, 2, 40, 24, 4, 8, true}, plain).check_everywhere();
      TwinExperts(seed++, dtype, {{5, 1}, 3, 36, 20, 16, 20, false}, plain).check_everywhere();
      TwinExperts(seed++, dtype, {{0, 40, 7}, 1, 72, 36, 32, 16, true}, plain).check_everywhere();
    }
}

TEST(ExpertTwins, FewRows) {
  check<Dtype::bf16>(920, {{1, 0, 3, 8, 2}, 2, 256, 64, 128, 64, true});
  check<Dtype::bf16>(921, {{5, 1}, 3, 1032, 40, 8, 64, false});
  check<Dtype::f16>(922, {{0, 0, 7}, 1, 8, 102, 128, 64, true});
}
TEST(ExpertTwins, SixteenToOneHundredAndTwentyEight) {
  check<Dtype::bf16>(930, {{16, 9}, 4, 320, 64, 128, 64, true});
  check<Dtype::bf16>(931, {{17, 32}, 1, 136, 72, 128, 64, false});
  check<Dtype::f16>(932, {{33, 64}, 2, 128, 67, 64, 128, true});
  check<Dtype::bf16>(933, {{65, 128}, 8, 72, 64, 128, 64, true});
}
TEST(ExpertTwins, TilesOfManyBlocks) {
  check<Dtype::bf16>(940, {{2, 0, 8, 9}, 2, 200, 256, 128, 256, true});
  check<Dtype::bf16>(941, {{0, 150, 1}, 2, 40, 136, 256, 136, true});
  check<Dtype::bf16>(942, {{90, 3}, 2, 200, 200, 128, 256, true});
}

TEST(ExpertTwins, NoOperandsButTheTwin) {
  TwinExperts e(950, Dtype::bf16, {{2, 20, 1}, 1, 72, 70, 128, 70, true}, true);
  EXPECT_GT((e.run_by<Plain, RoomyWarps>()), 0u);
  e.expect_right();
  EXPECT_GT((e.run_by<Plain, GroupWarps>()), 0u);
  e.expect_right();
}

// One after the other, where scratch is small, or where the twin's columns lie elsewhere or otherwise than b's.
TEST(ExpertTwins, WithoutAWalkOfBoth) {
  const Case c{{3, 0, 18}, 1, 72, 40, 16, 40, true};
  TwinExperts e(960, Dtype::bf16, c);
  (void)e.run_by<Op<Dtype::bf16>, EmulatedWarps>();
  e.expect_right();
  TwinExperts apart(961, Dtype::bf16, c);
  Tensor longer = apart.filled(Dtype::bf16, {1, 3, c.n, c.k + 8});
  std::swap(longer.dim[2], longer.dim[3]);
  std::swap(longer.stride[2], longer.stride[3]);
  longer.dim[2] = c.k;
  longer.flags = 0;
  apart.v = apart.b.operands[4] = longer;
  EXPECT_EQ((apart.run_by<Op<Dtype::bf16>, RoomyWarps>()), 0u);
  apart.expect_right();
  TwinExperts shifted(962, Dtype::bf16, c);
  Tensor odd = shifted.filled(Dtype::bf16, {1, 3, c.n + 1, c.k});
  std::swap(odd.dim[2], odd.dim[3]);
  std::swap(odd.stride[2], odd.stride[3]);
  odd.dim[3] = c.n;
  odd.offset += 8;
  odd.flags = 0;
  shifted.v = shifted.b.operands[4] = odd;
  EXPECT_EQ((shifted.run_by<Op<Dtype::bf16>, RoomyWarps>()), 0u);
  shifted.expect_right();
}

// The twin's product is 1 + 2^-8, of which bf16 has 1: as a tensor between the two would.
TEST(ExpertTwins, WhatLiesBetweenIsRounded) {
  TwinExperts e(965, Dtype::bf16, {{3, 0, 18}, 1, 72, 66, 32, 66, true});
  e.b.fill(e.x, 1, 1);
  e.b.fill(e.factor, 1, 1);
  e.b.fill(e.added, -1, -1);
  Bench::each(e.w.dim, [&](const Index& c) {
    e.b.set(e.w, c, c[2] == 0 ? 1 : 0);
    e.b.set(e.v, c, c[2] == 0 ? 1 : c[2] == 40 ? 0x1p-8 : 0);
  });
  const auto expect_nothing = [&] { Bench::each(e.out.dim, [&](const Index& c) { EXPECT_EQ(e.b.get(e.out, c), 0) << c[2] << " " << c[3]; }); };
  (void)e.run_by<Op<Dtype::bf16>, RoomyWarps>();
  expect_nothing();
  (void)e.run_by<Op<Dtype::bf16>, EmulatedWarps>();
  expect_nothing();
}

TEST(ExpertTwins, BadIndicesAreFaults) {
  TwinExperts e(970, Dtype::bf16, {{2, 3}, 1, 64, 16, 4, 16, true});
  e.b.set(e.source, {0, 0, 0, 4}, 5);
  const auto fault = e.b.run_by(OpCode::expert_matmul, e.inputs(), [](const auto& frame, const auto& op) {
    return run_on_warps<Op<Dtype::bf16>, RoomyWarps>(frame, op, op.tile_count, [](const RoomyWarps&) {});
  });
  EXPECT_EQ(fault, FaultCode::bad_index);
}

}  // namespace
}  // namespace ccks::worker::test
