// expert_matmul on emulated warps, alone and by four together, with copies in the background: every number of rows that an expert may have, ragged columns and k.
#include "ccks/worker/expert_product.hpp"

#include "ccks/worker/shaped_ops.hpp"
#include "tests/unit/worker/emulated_warps.hpp"
#include "tests/unit/worker/ops_fixture.hpp"

namespace ccks::worker::test {
namespace {

struct Case {
  std::vector<int> counts;  // of each expert
  int top_k, k, n, tile_rows, tile_columns;
  bool gather;
};

template <Dtype D>
using Gated = TypedOp<OpCode::expert_matmul, Code<Ins<ExprOp::arg_f, 0, 0, 0, 0>, Ins<ExprOp::arg_f, 1, 0, 0, 1>, Ins<ExprOp::mul_f, 0, 0, 1, 0>>, D,
                      D, Dtype::i32, Dtype::i32, D, D>;

template <class Op, class Lanes = RoomyWarps>
FaultCode run_roomy(const wire::RunFrame& frame, const wire::OpParams& op, u32& copies, u32* groups = nullptr) {
  WarpBlock block;
  FaultCode faults[WarpBlock::kLanes];
  block.run([&](u32 lane) {
    Lanes lanes(block, lane);
    faults[lane] = FaultCode::none;
    for (u32 tile = 0; tile < op.tile_count; ++tile) {
      const FaultCode f = Op::run(lanes, frame, op, tile);
      if (faults[lane] == FaultCode::none) faults[lane] = f;
      lanes.sync();
    }
    if (lane == 0) copies = lanes.copies();
    if constexpr (GroupLanes<Lanes>) {
      if (lane == 0 && groups != nullptr) *groups = lanes.groups();
    }
  });
  for (const FaultCode f : faults) EXPECT_EQ(f, faults[0]) << "lanes disagree about a fault";
  return faults[0];
}

/// x, b [e, n, k] seen as [e, k, n], source, count, gate, out.
struct Experts {
  Bench b;
  Case is;
  int rows = 0;
  Tensor x, weights, source, count, gate, out;

  Experts(std::uint32_t seed, Dtype d, const Case& c) : b(seed), is(c) {
    for (const int n : c.counts) rows += n;
    const int experts = static_cast<int>(c.counts.size());
    x = filled(d, {1, 1, c.gather ? (rows + c.top_k - 1) / c.top_k : rows, c.k});
    weights = filled(d, {1, experts, c.n, c.k});
    std::swap(weights.dim[2], weights.dim[3]);
    std::swap(weights.stride[2], weights.stride[3]);
    weights.flags = 0;
    source = b.tensor(Dtype::i32, {1, 1, 1, rows}, true);
    count = b.tensor(Dtype::i32, {1, 1, 1, experts}, true);
    for (int i = 0; i < rows; ++i) b.set(source, {0, 0, 0, i}, (i * 7 + 3) % rows);
    for (int e = 0; e < experts; ++e) b.set(count, {0, 0, 0, e}, c.counts[static_cast<std::size_t>(e)]);
    gate = filled(d, {1, 1, rows, c.n});
    out = b.tensor(d, {1, 1, rows, c.n}, true);
    b.operands = {x, weights, source, count, gate, out};
    b.code = {ins(ExprOp::arg_f, 0), ins(ExprOp::arg_f, 1, 0, 0, 1), ins(ExprOp::mul_f, 0, 0, 1)};
    b.op.dims[0] = c.top_k;
    b.op.dims[1] = c.gather;
    b.op.dims[2] = experts;
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
  /// near: from an op as a worker copies it.
  template <Dtype D, class Lanes = RoomyWarps>
  FaultCode run(u32& copies, u32* groups = nullptr, bool near = false) {
    return b.run_by(OpCode::expert_matmul, 5, [&](const auto& frame, const auto& op) {
      if (!near) return run_roomy<Gated<D>, Lanes>(frame, op, copies, groups);
      const Copied copied(frame, op);
      return run_roomy<Gated<D>, Lanes>(frame, copied.op, copies, groups);
    });
  }
  double want(int expert, int row, int column) {
    const int from = is.gather ? static_cast<int>(b.get(source, {0, 0, 0, row})) / is.top_k : row;
    double acc = 0;
    for (int i = 0; i < is.k; ++i) acc += b.get(x, {0, 0, from, i}) * b.get(weights, {0, expert, i, column});
    return acc * b.get(gate, {0, 0, row, column});
  }
};

template <Dtype D, class Lanes>
void check_on(std::uint32_t seed, const Case& c) {
  Experts e(seed, D, c);
  u32 copies = 0, groups = 0;
  ASSERT_EQ((e.run<D, Lanes>(copies, &groups, seed % 2 == 1)), FaultCode::none);
  EXPECT_GT(copies, 0u) << "another body ran" << e.b.describe();
  EXPECT_EQ(groups > 0, GroupLanes<Lanes>) << "another walk" << e.b.describe();
  int row = 0;
  for (std::size_t expert = 0; expert < c.counts.size(); ++expert)
    for (int i = 0; i < c.counts[expert]; ++i, ++row)
      for (int j = 0; j < c.n; ++j) {
        const double want = e.want(static_cast<int>(expert), row, j);
        ASSERT_NEAR(e.b.get(e.out, {0, 0, row, j}), want, 0.008 * std::abs(want) + 1e-3) << "row " << row << " column " << j << e.b.describe();
      }
}

template <Dtype D>
void check(std::uint32_t seed, const Case& c) {
  check_on<D, RoomyWarps>(seed, c);
  check_on<D, GroupWarps>(seed, c);
}

TEST(ExpertWarps, FewRows) {
  check<Dtype::bf16>(1, {{1, 0, 3, 8, 2}, 2, 256, 64, 128, 64, true});
  check<Dtype::bf16>(2, {{5, 1}, 3, 1032, 40, 8, 64, false});
  check<Dtype::f16>(3, {{0, 0, 7}, 1, 8, 100, 128, 64, true});
}
TEST(ExpertWarps, SixteenToOneHundredAndTwentyEight) {
  check<Dtype::bf16>(4, {{16, 9}, 4, 320, 64, 128, 64, true});
  check<Dtype::bf16>(5, {{17, 32}, 1, 136, 72, 128, 64, false});
  check<Dtype::f16>(6, {{33, 64}, 2, 128, 64, 64, 64, true});
  check<Dtype::bf16>(7, {{65, 128}, 8, 192, 64, 128, 64, true});
}
TEST(ExpertWarps, BlocksOf128Columns) {
  check<Dtype::bf16>(21, {{1, 0, 8, 9}, 2, 200, 128, 128, 128, true});
  check<Dtype::bf16>(22, {{32, 33}, 1, 72, 100, 128, 128, false});
  check<Dtype::f16>(23, {{64, 65}, 2, 40, 136, 128, 128, true});
  check<Dtype::bf16>(24, {{128, 3}, 4, 328, 128, 128, 128, true});
}
TEST(ExpertWarps, TilesOfTwoWideBlocks) {
  check<Dtype::bf16>(25, {{2, 0, 8, 9}, 2, 200, 256, 128, 256, true});
  check<Dtype::bf16>(26, {{32, 33}, 1, 72, 264, 128, 256, false});
  check<Dtype::f16>(27, {{64, 65}, 2, 40, 200, 128, 256, true});
  check<Dtype::bf16>(28, {{128, 3}, 4, 136, 256, 128, 256, true});
}
TEST(ExpertWarps, TilesOfAllRowsOfAnExpert) {
  check<Dtype::bf16>(41, {{47, 48, 49}, 2, 72, 128, 256, 128, true});
  check<Dtype::bf16>(42, {{95, 96, 97}, 4, 136, 72, 256, 128, true});
  check<Dtype::f16>(43, {{129, 0, 160}, 1, 64, 128, 256, 64, false});
  check<Dtype::bf16>(44, {{161, 192}, 2, 200, 100, 256, 128, true});
  check<Dtype::bf16>(45, {{193, 256, 1}, 8, 80, 128, 256, 128, true});
  check<Dtype::f16>(46, {{300, 257}, 2, 64, 64, 512, 64, true});
}
TEST(ExpertWarps, TilesLargerThanABlock) { check<Dtype::bf16>(8, {{0, 150, 1}, 2, 64, 136, 256, 136, true}); }
TEST(ExpertWarps, MostRowsByHalvesOfAStage) {
  // k of as many halves as are on their way, of one more and of one that is not whole; columns that leave a remainder.
  check<Dtype::bf16>(29, {{193, 256}, 2, 192, 130, 256, 130, true});
  check<Dtype::f16>(30, {{200, 1}, 1, 224, 136, 256, 136, false});
  check<Dtype::bf16>(31, {{255}, 4, 296, 72, 256, 72, true});
}
TEST(ExpertWarps, MoreExpertsThanLanes) {
  Case c{std::vector<int>(75, 0), 1, 64, 16, 2, 16, true};
  for (const int e : {0, 1, 31, 33, 40, 74}) c.counts[static_cast<std::size_t>(e)] = e % 5 + 1;
  check<Dtype::bf16>(9, c);
}

// A matmul of many rows where four warps multiply together: narrow blocks, and those of 128 and 256 columns, of which the last of a tile has fewer.
void check_matmul(std::uint32_t seed, int rows, int columns, int k, Index tile) {
  Bench b(seed);
  const auto filled = [&](Index dims) {
    const Tensor t = b.tensor(Dtype::bf16, dims, true);
    b.fill(t, -1, 1);
    return t;
  };
  Tensor a = filled({1, 1, rows, k}), w = filled({1, 1, columns, k});
  std::swap(w.dim[2], w.dim[3]);
  std::swap(w.stride[2], w.stride[3]);
  w.flags = 0;
  const Tensor out = b.tensor(Dtype::f32, {1, 1, rows, columns}, true);
  b.operands = {a, w, out};
  b.op.dims[wire::kEpilogueDim] = 2;
  b.tiles(out.dim, tile);
  u32 copies = 0, groups = 0;
  using Op = TypedOp<OpCode::matmul, Code<>, Dtype::bf16, Dtype::bf16, Dtype::f32>;
  ASSERT_EQ(b.run_by(OpCode::matmul, 2, [&](const auto& frame, const auto& op) { return run_roomy<Op, GroupWarps>(frame, op, copies, &groups); }), FaultCode::none);
  EXPECT_GT(groups, 0u) << "another body";
  Bench::each(out.dim, [&](const Index& c) {
    double want = 0;
    for (int i = 0; i < k; ++i) want += b.get(a, {0, 0, c[2], i}) * b.get(w, {0, 0, i, c[3]});
    ASSERT_NEAR(b.get(out, c), want, 1e-4 * k) << "row " << c[2] << ", column " << c[3];
  });
}
TEST(StagedMatmul, ByFourWarpsTogether) {
  check_matmul(40, 40, 24, 136, {1, 1, 32, 24});
  check_matmul(41, 64, 128, 72, {1, 1, 64, 128});
  check_matmul(42, 20, 200, 64, {1, 1, 20, 200});
  check_matmul(43, 150, 332, 136, {1, 1, 150, 332});
}

// A matmul of many rows goes the same way; batches share nothing.
TEST(StagedMatmul, ManyRows) {
  Bench b(20);
  const Index shape{1, 2, 40, 24};
  const int k = 136;
  const auto filled = [&](Index dims) {
    const Tensor t = b.tensor(Dtype::bf16, dims, true);
    b.fill(t, -1, 1);
    return t;
  };
  Tensor a = filled({1, 2, 40, k}), w = filled({1, 2, 24, k});
  std::swap(w.dim[2], w.dim[3]);
  std::swap(w.stride[2], w.stride[3]);
  w.flags = 0;
  const Tensor out = b.tensor(Dtype::f32, shape, true);
  b.operands = {a, w, out};
  b.op.dims[wire::kEpilogueDim] = 2;
  b.tiles(shape, {1, 2, 32, 24});
  u32 copies = 0;
  using Op = TypedOp<OpCode::matmul, Code<>, Dtype::bf16, Dtype::bf16, Dtype::f32>;
  ASSERT_EQ(b.run_by(OpCode::matmul, 2, [&](const auto& frame, const auto& op) { return run_roomy<Op>(frame, op, copies); }), FaultCode::none);
  EXPECT_GT(copies, 0u);
  const auto right = [&] {
    Bench::each(shape, [&](const Index& c) {
      double want = 0;
      for (int i = 0; i < k; ++i) want += b.get(a, {0, c[1], c[2], i}) * b.get(w, {0, c[1], i, c[3]});
      ASSERT_NEAR(b.get(out, c), want, 1e-4 * k);
    });
  };
  right();
  using Shaped = ShapedOp<OpCode::matmul, Code<>, Tiles<1, 1, 32, 24, 1, 2, 2, 1>,
                          Windows<Window<1, 2, 40, 136, 10880, 5440, 136, 1, wire::kOperandContiguous>, Window<1, 2, 136, 24, 6528, 3264, 1, 136, 0>,
                                  Window<1, 2, 40, 24, 1920, 960, 24, 1, wire::kOperandContiguous>>,
                          Dtype::bf16, Dtype::bf16, Dtype::f32>;
  b.tiles(shape, {1, 1, 32, 24});
  b.fill(out, 7, 7);
  ASSERT_EQ(b.run_by(OpCode::matmul, 2, [&](const auto& frame, const auto& op) { return run_roomy<Shaped>(frame, op, copies); }), FaultCode::none);
  EXPECT_GT(copies, 0u);
  right();
}

// Blocks of 256 columns, of more than 64 rows: the last of a tile may have fewer.
TEST(ExpertWarps, ManyRowsByManyColumns) {
  check<Dtype::bf16>(29, {{65, 0, 128, 7}, 2, 264, 512, 128, 512, true});
  check<Dtype::f16>(30, {{100}, 1, 200, 396, 128, 512, false});
}

template <class Lanes>
void check_bad_indices(int rows) {
  const int all = rows + 2;
  Experts e(10, Dtype::bf16, {{2, rows}, 1, 64, 16, 128, 16, true});
  u32 copies = 0;
  const auto run = [&] { return e.run<Dtype::bf16, Lanes>(copies); };
  EXPECT_EQ(run(), FaultCode::none);
  e.b.set(e.count, {0, 0, 0, 1}, rows + 1);
  EXPECT_EQ(run(), FaultCode::bad_index);
  e.b.set(e.count, {0, 0, 0, 1}, -1);
  EXPECT_EQ(run(), FaultCode::bad_index);
  e.b.set(e.count, {0, 0, 0, 1}, rows);
  for (const int bad : {all, -1}) {
    e.b.set(e.source, {0, 0, 0, all - 1}, bad);
    EXPECT_EQ(run(), FaultCode::bad_index);
  }
}
TEST(ExpertWarps, RowTilesAreWhatADivisionSays) {
  for (const u32 each : {1u, 2u, 3u, 5u, 64u, 100u, 128u, 136u, 256u}) {
    for (const u32 rows : {1u, 2u, 7u, 64u, 99u, 128u, 151u, 1000u}) {
      const RowTiles row_tiles(each, rows);
      for (u32 taken = 0; taken <= rows; ++taken) {
        const RowTiles::Of of = row_tiles.of(taken);
        ASSERT_EQ(of.full + (of.left != 0 ? 1 : 0), ceil_div(taken, each)) << taken << " of " << rows << " rows by " << each;
        ASSERT_EQ(of.full * each + of.left, taken) << taken << " of " << rows << " rows by " << each;
      }
    }
  }
}
/// Which expert and rows each number is, of `each` rows. keeps: by what the first that was asked for has kept for the rest, `kept` if it has.
std::vector<ExpertRows> row_tiles_of(const std::vector<int>& counts, u32 each, u32 numbers, bool keeps = false, bool* kept = nullptr) {
  Bench b(1);
  const int experts = static_cast<int>(counts.size());
  u32 rows = 0;
  const Tensor count = b.tensor(Dtype::i32, {1, 1, 1, experts}, true);
  for (int e = 0; e < experts; ++e) {
    b.set(count, {0, 0, 0, e}, counts[static_cast<std::size_t>(e)]);
    rows += static_cast<u32>(counts[static_cast<std::size_t>(e)]);
  }
  b.operands = {count};
  std::vector<ExpertRows> found(numbers);
  b.run_by(OpCode::expert_matmul, 1, [&](const wire::RunFrame& frame, const wire::OpParams& op) {
    WarpBlock block;
    block.run([&](u32 lane) {
      RoomyWarps lanes(block, lane);
      const Call call(frame, op);
      const auto view = view_of<0>(call, FixedTypes<Dtype::i32>{});
      KeptTiles& tiles = kept_tiles(lanes.scratch());
      tiles.op = 3;
      tiles.tag = 5;
      for (u32 number = 0; number < numbers; ++number) {
        const bool has = keeps && tiles.has(view.data);
        const ExpertRows of = has ? tiles.at(number) : find_expert_together(lanes, view, static_cast<u32>(experts), number, each, rows, keeps ? &tiles : nullptr);
        if (lane == 0) found[number] = of;
        if (lane == 0 && kept != nullptr) *kept = has;
        lanes.sync();
      }
    });
    return FaultCode::none;
  });
  return found;
}
void check_row_tiles(const std::vector<int>& counts, u32 each, const std::vector<std::vector<u32>>& want, bool may_be_kept = true) {
  for (const bool keeps : {false, true}) {
    bool kept = false;
    const std::vector<ExpertRows> found = row_tiles_of(counts, each, static_cast<u32>(want.size()), keeps, &kept);
    EXPECT_EQ(kept, keeps && may_be_kept);
    for (std::size_t i = 0; i < want.size(); ++i) {
      EXPECT_TRUE(found[i].sound) << i << ", kept: " << keeps;
      EXPECT_EQ((std::vector<u32>{static_cast<u32>(found[i].expert), found[i].first, found[i].count}), want[i]) << i << ", kept: " << keeps;
    }
  }
}
TEST(ExpertWarps, RowTilesOfManyRowsComeFirst) {
  // Of 600 rows two full ones and 88 left over, of 256 one, and of those of a size the first expert's first.
  std::vector<int> counts(70, 0);
  counts[1] = 5, counts[3] = 600, counts[6] = 256, counts[40] = 70, counts[41] = 130, counts[42] = 193, counts[43] = 17, counts[69] = 64;
  check_row_tiles(counts, 256, {{3, 5, 256}, {3, 261, 256}, {6, 605, 256}, {42, 1061, 193}, {41, 931, 130}, {3, 517, 88}, {40, 861, 70}, {69, 1271, 64}, {43, 1254, 17}, {1, 0, 5}, {0, 0, 0}});
  check_row_tiles({3, 0, 1}, 99, {{0, 0, 3}, {2, 3, 1}, {0, 0, 0}});
  check_row_tiles({9, 99, 12}, 10, {{1, 9, 10}, {1, 19, 10}, {1, 29, 10}, {1, 39, 10}, {1, 49, 10}, {1, 59, 10}, {1, 69, 10}, {1, 79, 10}, {1, 89, 10}, {2, 108, 10}, {0, 0, 9}, {1, 99, 9}, {2, 118, 2}, {0, 0, 0}});
}
TEST(ExpertWarps, RowTilesOfManyExperts) {
  // 255 experts of one row each fill a size; of more all are of one.
  std::vector<int> counts(255, 1);
  std::vector<std::vector<u32>> want;
  for (u32 e = 0; e < 255; ++e) want.push_back({e, e, 1});
  want.push_back({0, 0, 0});
  check_row_tiles(counts, 256, want);
  counts.assign(300, 0);
  counts[3] = 4, counts[100] = 255, counts[150] = 256, counts[299] = 1;
  check_row_tiles(counts, 256, {{150, 259, 256}, {3, 0, 4}, {100, 4, 255}, {299, 515, 1}, {0, 0, 0}});
}

TEST(ExpertWarps, MoreRowTilesThanAreKept) {
  std::vector<std::vector<u32>> want;
  for (u32 e = 0; e <= KeptTiles::kMost; ++e) want.push_back({e, e, 1});
  check_row_tiles(std::vector<int>(KeptTiles::kMost + 1, 1), 256, want, false);
  want.resize(KeptTiles::kMost);
  check_row_tiles(std::vector<int>(KeptTiles::kMost, 1), 256, want);
}
TEST(ExpertWarps, RowTilesAreFoundOnceARun) {
  // Once the first tile has run no row is anybody's: those behind it have theirs from what it has kept, and in another run, or of another op, nothing is.
  struct Turn {
    u32 op, tag;
  };
  for (const Turn other : {Turn{3, 6}, Turn{4, 5}}) {
    Experts e(5, Dtype::bf16, {{40, 3, 0, 20}, 2, 128, 128, 64, 128, true});
    std::vector<int> written;
    e.b.run_by(OpCode::expert_matmul, 5, [&](const wire::RunFrame& frame, const wire::OpParams& op) {
      const Copied copied(frame, op);
      WarpBlock block;
      block.run([&](u32 lane) {
        GroupWarps lanes(block, lane);
        for (const Turn turn : {Turn{3, 5}, other}) {
          for (u32 tile = 0; tile < op.tile_count; ++tile) {
            kept_tiles(lanes.scratch()).op = turn.op;
            kept_tiles(lanes.scratch()).tag = turn.tag;
            EXPECT_EQ((Gated<Dtype::bf16>::run(lanes, frame, copied.op, tile)), FaultCode::none);
            lanes.sync();
            for (int expert = 0; lane == 0 && expert < 4; ++expert) e.b.set(e.count, {0, 0, 0, expert}, 0);
            lanes.sync();
          }
          if (lane == 0) {
            written.push_back(0);
            for (int row = 0; row < e.rows; ++row) {
              written.back() += e.b.get(e.out, {0, 0, row, 5}) == 0 ? 0 : 1;
              e.b.set(e.out, {0, 0, row, 5}, 0);
            }
          }
          lanes.sync();
        }
      });
      return FaultCode::none;
    });
    EXPECT_EQ(written, (std::vector<int>{e.rows, 0})) << "op " << other.op << ", tag " << other.tag;
  }
}

TEST(ExpertWarps, BadIndicesAreFaults) {
  check_bad_indices<RoomyWarps>(3);
  for (const int rows : {3, 40, 70}) check_bad_indices<GroupWarps>(rows);
}

}  // namespace
}  // namespace ccks::worker::test
