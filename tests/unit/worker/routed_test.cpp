// Experts' weights through a ring, on emulated warps: which rows a tile has by the table of a route, and the products, gathered or not, with a twin and without, against
// sums in f64.
#include "ccks/worker/product_routed.hpp"
#include "ccks/worker/typed_ops.hpp"
#include "tests/unit/worker/emulated_stream.hpp"
#include "tests/unit/worker/ops_fixture.hpp"
#include "tests/unit/worker/twin_codes.hpp"

namespace ccks::worker::test {
namespace {

/// Workers with a ring that run a tile whose weights do not come through it.
class CopyingWarps : public RoomyWarps {
 public:
  using RoomyWarps::RoomyWarps;
  u32 scratch_bytes() const { return WarpBlock::scratch_bytes(); }
};

struct Case {
  std::vector<int> counts;  // of each expert
  int top_k, k, n, tile_rows, tile_columns;
  bool gather;
};

/// x, w [e, n, k] seen as [e, k, n], source, count, v as w (a twin), added, factor, out.
struct Routed {
  Routed(std::uint32_t seed, Dtype d, const Case& c, bool with_twin) : b(seed), is(c), twins(with_twin) {
    for (const int n : c.counts) rows += n;
    const int experts = static_cast<int>(c.counts.size());
    x = filled(d, {1, 1, c.gather ? (rows + c.top_k - 1) / c.top_k : rows, c.k});
    for (Tensor* t : {&w, &v}) {
      if (t == &v && !twins) break;
      *t = filled(d, {1, experts, c.n, c.k});
      std::swap(t->dim[2], t->dim[3]);
      std::swap(t->stride[2], t->stride[3]);
      t->flags = wire::kOperandStreamed;
      t->space = static_cast<std::uint8_t>(wire::Space::weights);
    }
    source = b.tensor(Dtype::i32, {1, 1, 1, rows}, true);
    count = b.tensor(Dtype::i32, {1, 1, 1, experts}, true);
    for (int i = 0; i < rows; ++i) b.set(source, {0, 0, 0, i}, (i * 7 + 3) % rows);
    for (int e = 0; e < experts; ++e) b.set(count, {0, 0, 0, e}, c.counts[static_cast<std::size_t>(e)]);
    added = filled(d, {1, 1, rows, c.n});
    factor = filled(d, {1, 1, rows, c.n});
    out = b.tensor(d, {1, 1, rows, c.n}, true);
    b.fill(out, 77, 77);
    b.operands = {x, w, source, count};
    if (twins) {
      b.operands.insert(b.operands.end(), {v, added, factor, out});
      b.code = kScaled;
      b.code.insert(b.code.end(), kGated.begin(), kGated.end());
      b.op.dims[wire::kTwinDim] = 1 + static_cast<int>(kScaled.size());
    } else {
      b.operands.insert(b.operands.end(), {factor, out});
      b.code = {ins(ExprOp::arg_f, 0), ins(ExprOp::arg_f, 1, 0, 0, 1), ins(ExprOp::mul_f, 0, 0, 1)};
    }
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
  /// Of each row tile expert and rows, expert by expert.
  std::vector<ExpertRows> row_tiles() const {
    std::vector<ExpertRows> out;
    u32 first = 0;
    for (std::size_t e = 0; e < is.counts.size(); ++e) {
      const u32 end = first + static_cast<u32>(is.counts[e]);
      for (; first < end; first += out.back().count)
        out.push_back({static_cast<i32>(e), first, std::min(end - first, static_cast<u32>(is.tile_rows)), true});
    }
    return out;
  }
  /// As a worker runs them: a table by one of its warps, then tile by tile.
  template <class Op>
  FaultCode run() {
    return b.run_by(OpCode::expert_matmul, twins ? 7 : 5, [&](const auto& frame, const auto& op) {
      EXPECT_NE(op.flags & wire::kOpRouted, 0) << b.describe();
      const Call call(frame, op);
      std::vector<WeightPieces> pieces;
      const std::vector<ExpertRows> tiles = row_tiles();
      for (u32 tile = 0; tile < op.tile_count; ++tile) {
        const u32 row = tile / static_cast<u32>(op.grid[3]), column = tile % static_cast<u32>(op.grid[3]) * static_cast<u32>(op.tile[3]);
        if (row >= tiles.size()) break;
        for (WeightPieces piece(call, static_cast<u32>(tiles[row].expert), column, std::min(static_cast<u32>(op.tile[3]), static_cast<u32>(is.n) - column)); !piece.done(); piece.step())
          pieces.push_back(piece);
      }
      WarpBlock block;
      EmulatedRing ring(std::move(pieces));
      static RouteTable table;
      FaultCode fault = FaultCode::none;
      block.run([&](u32 lane) {
        StreamingWarps lanes(block, lane, ring);
        if (lane < StreamingWarps::kWarp) make_table(lanes, table, call);
        lanes.sync();
        for (u32 tile = 0; tile < op.tile_count; ++tile) {
          const ExpertRows found = table.find(RoutedTile(op, tile).row);
          multiply_routed(lanes, lanes.stream(), call, tile, table, found);
          const FaultCode f = Op::end_inline(lanes, frame, op, tile);
          if (f != FaultCode::none) fault = f;
          lanes.sync();
        }
      });
      EXPECT_TRUE(ring.is_spent());
      return fault;
    });
  }
  /// Copies of the first lane.
  template <class Op>
  u32 run_apart() {
    b.fill(out, 5, 5);
    u32 copies = 0;
    EXPECT_EQ(b.run_by(OpCode::expert_matmul, twins ? 7 : 5, [&](const auto& frame, const auto& op) {
      return run_on_warps<Op, CopyingWarps>(frame, op, op.tile_count, [&](const CopyingWarps& lanes) { copies = lanes.copies(); });
    }), FaultCode::none);
    return copies;
  }
  double product(const Tensor& by, int expert, int row, int column) {
    const int from = is.gather ? static_cast<int>(b.get(source, {0, 0, 0, row})) / is.top_k : row;
    double acc = 0;
    for (int i = 0; i < is.k; ++i) acc += b.get(x, {0, 0, from, i}) * b.get(by, {0, expert, i, column});
    return acc;
  }
  void expect_right() {
    int row = 0;
    for (std::size_t e = 0; e < is.counts.size(); ++e)
      for (int i = 0; i < is.counts[e]; ++i, ++row)
        for (int j = 0; j < is.n; ++j) {
          const int expert = static_cast<int>(e);
          double want = product(w, expert, row, j) * b.get(factor, {0, 0, row, j});
          if (twins) want = product(w, expert, row, j) * stored(out.dtype, product(v, expert, row, j) * b.get(factor, {0, 0, row, j})) + b.get(added, {0, 0, row, j});
          ASSERT_NEAR(b.get(out, {0, 0, row, j}), want, 0.02 * std::abs(want) + 0.05) << "row " << row << " column " << j << b.describe();
        }
  }

  Bench b;
  Case is;
  bool twins;
  int rows = 0;
  Tensor x, w, v, source, count, added, factor, out;
};

template <Dtype D>
using Product = TypedOp<OpCode::expert_matmul, Code<Ins<ExprOp::arg_f, 0, 0, 0, 0>, Ins<ExprOp::arg_f, 1, 0, 0, 1>, Ins<ExprOp::mul_f, 0, 0, 1, 0>>, D, D, Dtype::i32, Dtype::i32, D, D>;
template <Dtype D>
using Twins = TypedOp<OpCode::expert_matmul, Twinned<Scaled, Gated>, D, D, Dtype::i32, Dtype::i32, D, D, D, D>;

template <Dtype D>
void check(std::uint32_t seed, const Case& c) {
  Routed one(seed, D, c, false);
  EXPECT_EQ(one.run<Product<D>>(), FaultCode::none);
  one.expect_right();
  Routed both(seed + 1, D, c, true);
  EXPECT_EQ(both.run<Twins<D>>(), FaultCode::none);
  both.expect_right();
  EXPECT_GT(one.run_apart<Product<D>>(), 0u) << "another walk";
  one.expect_right();
  EXPECT_GT(both.run_apart<Twins<D>>(), 0u) << "another walk";
  both.expect_right();
}

TEST(RoutedWeights, GiveTheSums) {
  check<Dtype::bf16>(700, {{1, 0, 3, 8, 2}, 2, 1024, 32, 8, 16, true});
  check<Dtype::bf16>(710, {{0, 9, 1}, 3, 1032, 48, 8, 32, false});  // an expert of two tiles, columns and depth that end within a stage
  check<Dtype::f16>(720, {{0, 0, 7}, 1, 520, 16, 4, 16, true});
}

TEST(RoutedWeights, ATableOfAsManyExpertsAsThereMayBe) {
  Case c{std::vector<int>(wire::kRoutedExperts, 0), 1, 512, 16, 2, 16, true};
  for (const int e : {0, 1, 31, 33, 128, 254, 255}) c.counts[static_cast<std::size_t>(e)] = e % 3 + 1;
  Routed many(730, Dtype::bf16, c, false);
  EXPECT_EQ(many.run<Product<Dtype::bf16>>(), FaultCode::none);
  many.expect_right();
}

TEST(RoutedWeights, MoreRowsThanAreNamedAhead) { check<Dtype::bf16>(735, {{300, 221}, 1, 512, 16, 8, 16, true}); }

TEST(RoutedWeights, BadRowsAreFaultsAndTakeTheirStages) {
  Routed named(740, Dtype::bf16, {{2, 1}, 2, 512, 16, 8, 16, true}, false);
  named.b.set(named.source, {0, 0, 0, 1}, 4);  // of two rows, for two experts each
  EXPECT_EQ(named.run<Product<Dtype::bf16>>(), FaultCode::bad_index);
  named.b.set(named.source, {0, 0, 0, 1}, -1);
  EXPECT_EQ(named.run<Product<Dtype::bf16>>(), FaultCode::bad_index);
}

TEST(RoutedWeights, CountsOfMoreRowsThanThereAreGiveNoTiles) {
  Routed more(750, Dtype::bf16, {{2, 1}, 2, 512, 16, 8, 16, true}, false);
  for (const int wrong : {3, -1, 1 << 30}) {
    more.b.set(more.count, {0, 0, 0, 0}, wrong);
    more.is.counts = {};  // no tile takes a stage
    EXPECT_EQ(more.run<Product<Dtype::bf16>>(), FaultCode::bad_index) << wrong;
  }
}

wire::u8 flags_of(Routed& of) {
  wire::u8 flags = 0;
  (void)of.b.run_by(OpCode::expert_matmul, of.twins ? 7 : 5, [&](const auto&, const auto& op) {
    flags = op.flags;
    return FaultCode::none;
  });
  return flags;
}
TEST(RoutedWeights, OnlyThoseOfFewRowsATile) {
  const Case good{{2, 1}, 2, 512, 16, 8, 16, true};
  Routed fits(760, Dtype::bf16, good, true);
  EXPECT_NE(flags_of(fits) & wire::kOpRouted, 0);
  Case rows = good, shallow = good, deep = good, ragged = good;
  rows.tile_rows = 9;
  shallow.k = 504;
  deep.k = 4096;
  ragged.n = ragged.tile_columns = 24;
  for (const Case& c : {rows, shallow, deep, ragged}) {
    Routed of(761, Dtype::bf16, c, false);
    EXPECT_EQ(flags_of(of) & wire::kOpRouted, 0) << of.b.describe();
  }
  Routed written(762, Dtype::bf16, good, false);
  written.b.operands[1].flags = 0;
  EXPECT_EQ(flags_of(written) & wire::kOpRouted, 0);
  Routed apart(763, Dtype::bf16, good, true);
  apart.b.operands[wire::kExpertTwin].stride[1] *= 2;
  EXPECT_EQ(flags_of(apart) & wire::kOpRouted, 0);
}

}  // namespace
}  // namespace ccks::worker::test
