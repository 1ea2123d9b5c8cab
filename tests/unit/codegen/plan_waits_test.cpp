// Which events a tile waits for: closed forms for every shape of dependency, at several sizes.
#include <gtest/gtest.h>

#include "codegen/plan_rewrite.hpp"
#include "spec/parse.hpp"
#include "tests/unit/codegen/plan_fixture.hpp"

namespace ccks::codegen {
namespace {

using namespace ccks::test;

PlanOptions small_tiles() {
  PlanOptions options;
  options.workers = 4096;  // many workers: tiles as small as the hints go
  return options;
}

constexpr const char* kLoop = R"yaml(
ccks: 1
program: loop
dims: {d: 64}
tensors:
  x: {shape: [1, d], kind: input}
  n: {shape: [1], dtype: i32, kind: input}
  w: {shape: [d, d], kind: weight}
  y: {shape: [1, d], kind: output}
ops:
  - {op: map, expr: x, out: h}
  - {op: map, expr: 0 * n, dtype: i32, out: k}
  - {op: report, x: n, name: go}
  - while: go > 0
    most: 8
    carry: [h, k]
    ops:
      - {op: matmul, a: h, b: w.T, epilogue: tanh(acc), out: u}
      - {op: matmul, a: u, b: w.T, epilogue: acc + h, out: h}
      - {op: map, expr: k + 1, dtype: i32, out: k}
      - {op: map, expr: n - k, dtype: i32, out: left}
      - {op: report, x: left, name: go}
  - {op: map, expr: h, out: y}
)yaml";

// What the guard's report waited for, directly or not, needs no wait of its own where the guard holds.
TEST(PlanWaits, APassOfALoopWaitsForItsGuardsAndWhatItReads) {
  const spec::ParseResult parsed = spec::parse_text(kLoop, "loop.yaml");
  ASSERT_TRUE(parsed.ok);
  const spec::Program program = rewrite_program(parsed.program, {});
  EXPECT_EQ(program.ops.size(), parsed.program.ops.size() - 8);  // k behind the loop is of no use
  const PlanFixture p(program);
  std::size_t in_passes = 0;
  for (std::uint32_t op = 0; op < p.view.ops.size(); ++op) {
    const plan::OpDesc& desc = p.view.ops[op];
    const bool select = std::string_view(desc.name).find("select") != std::string_view::npos;  // on two passes, and who had its space
    EXPECT_LE(desc.wait_count, desc.guard_count + (select ? 6u : 4u)) << desc.name;
    in_passes += desc.guard_count > 0;
  }
  EXPECT_EQ(in_passes, 8u * 5 + 7);  // and the selects of all passes but the first
}

TEST(PlanWaits, MatmulRowsWaitForRowsOfItsProducer) {
  ProgramBuilder b;
  const Expr n = b.symbol("n", 1, 1024);
  const auto x = b.input("x", {n, 512}), w = b.tensor("w", {512, 1024}, TensorKind::weight);
  const auto h = b.tensor("h", {n, 512}), y = b.output("y", {n, 1024});
  b.op(spec::RmsnormAttrs{1e-5}, {b.all(x), b.all(b.tensor("g", {512}, TensorKind::weight))}, {b.all(h)});
  b.op(spec::MatmulAttrs{}, {b.all(h), b.all(w)}, {b.all(y)});
  const PlanFixture p(b.program);
  ASSERT_EQ(p.view.ops[1].wait_count, 1u);
  for (const std::int64_t size : {1, 7, 64, 100, 1024}) {
    const auto at = p.at({size});
    const auto tile0 = at.value(p.view.ops[0].tile[2]), tile1 = at.value(p.view.ops[1].tile[2]);
    for (std::int64_t row = 0; row < at.value(p.view.ops[1].grid[2]); ++row) {
      const auto events = at.waited(1, 0, {0, 0, row, 0});
      const std::int64_t lo = row * tile1 / tile0,
                         hi = std::min((row * tile1 + tile1 + tile0 - 1) / tile0, (size + tile0 - 1) / tile0);
      EXPECT_EQ(events.size(), static_cast<std::size_t>(hi - lo)) << size << " " << row;
      EXPECT_EQ(*events.begin(), lo);
    }
    EXPECT_EQ(at.total(1, 0), 1);
  }
}

TEST(PlanWaits, MapAfterMatmulWaitsForTheTilesItReads) {
  ProgramBuilder b;
  const Expr n = b.symbol("n", 1, 512);
  const auto x = b.input("x", {n, 256}), w = b.tensor("w", {256, 2048}, TensorKind::weight);
  const auto u = b.tensor("u", {n, 2048}), y = b.output("y", {n, 1024});
  b.op(spec::MatmulAttrs{}, {b.all(x), b.all(w)}, {b.all(u)});
  View gate = b.all(u), up = b.all(u);
  gate.dims[1] = ProgramBuilder::window(1, 1024, 0);
  up.dims[1] = ProgramBuilder::window(1, 1024, 1024);
  ElementBuilder e;
  e.node(ExprFn::mul, ScalarType::f32, e.argument(0), e.argument(1));
  b.op(spec::MapAttrs{e.expr}, {gate, up}, {b.all(y)});
  const PlanFixture p(b.program, small_tiles());
  ASSERT_EQ(p.view.ops[1].wait_count, 2u);
  for (const std::int64_t size : {1, 33, 512}) {
    const auto at = p.at({size});
    at.for_each_tile(1, [&](const Coordinate& c) {
      const auto touched = at.tiles_touching(0, at.rows_of(1, c), at.columns_of(1, c, 0));
      const auto touched_up = at.tiles_touching(0, at.rows_of(1, c), at.columns_of(1, c, 1024));
      std::set<std::int64_t> want = touched, got;
      want.insert(touched_up.begin(), touched_up.end());
      for (const std::uint32_t wait : {0u, 1u}) got.merge(at.waited_tiles(1, wait, c));
      EXPECT_EQ(got, want);
    });
  }
}

TEST(PlanWaits, TransposedReadSwapsTheAxes) {
  ProgramBuilder b;
  const auto x = b.input("x", {384, 640}), h = b.tensor("h", {384, 640}), y = b.output("y", {640, 384});
  b.copy(x, h);
  b.op(spec::MapAttrs{}, {b.permuted(h, {1, 0})}, {b.all(y)});
  const PlanFixture p(b.program, small_tiles());
  const auto at = p.at({});
  at.for_each_tile(1, [&](const Coordinate& c) {
    const Range rows = at.rows_of(1, c), columns = at.columns_of(1, c, 0);
    EXPECT_EQ(at.waited_tiles(1, 0, c), at.tiles_touching(0, columns, rows));
  });
}

TEST(PlanWaits, BroadcastOperandIsNeededWholeByAll) {
  ProgramBuilder b;
  const auto s = b.input("s", {64}), h = b.tensor("h", {64}), x = b.input("x", {1000, 64}),
             y = b.output("y", {1000, 64});
  b.copy(s, h);
  ElementBuilder e;
  e.node(ExprFn::add, ScalarType::f32, e.argument(0), e.argument(1));
  View row{h, {ProgramBuilder::broadcast(1000), ProgramBuilder::window(0, 64)}, {}};
  b.op(spec::MapAttrs{e.expr}, {b.all(x), row}, {b.all(y)});
  const PlanFixture p(b.program);
  const auto at = p.at({});
  ASSERT_EQ(p.view.ops[1].wait_count, 1u);
  EXPECT_EQ(at.waited_tiles(1, 0, {0, 0, 0, 0}).size(), static_cast<std::size_t>(at.tiles(0)));
  EXPECT_EQ(at.total(1, 0), at.tiles(0));
}

TEST(PlanWaits, ConvolutionWaitsForItsHalo) {
  ProgramBuilder b;
  const Expr size = b.symbol("s", 8, 256);
  const auto x = b.input("x", {1, 16, size, 64}), h = b.tensor("h", {1, 16, size, 64});
  const auto w = b.tensor("w", {32, 16, 3, 3}, TensorKind::weight), y = b.output("y", {1, 32, size, 64});
  b.copy(x, h);
  b.op(spec::Conv2dAttrs{{1, 1}, {1, 1}, {1, 1}, {}}, {b.all(h), b.all(w)}, {b.all(y)});
  const PlanFixture p(b.program, small_tiles());
  for (const std::int64_t s : {8, 31, 256}) {
    const auto at = p.at({s});
    const std::int64_t t0 = at.value(p.view.ops[0].tile[2]), t1 = at.value(p.view.ops[1].tile[2]);
    for (std::int64_t c = 0; c < at.value(p.view.ops[1].grid[2]); ++c) {
      const std::int64_t lo = std::max<std::int64_t>(0, c * t1 - 1), hi = std::min(s, c * t1 + t1 + 1);
      std::set<std::int64_t> rows;
      for (const Coordinate& t : at.waited_coordinates(1, 0, {0, 0, c, 0})) rows.insert(t[2]);
      ASSERT_FALSE(rows.empty());
      EXPECT_EQ(*rows.begin(), lo / t0);
      EXPECT_EQ(*rows.rbegin(), (hi - 1) / t0);
    }
  }
}

TEST(PlanWaits, ConcatReaderSkipsThePartsItDoesNotTouch) {
  ProgramBuilder b;
  const Expr n = b.symbol("n", 1, 300), m = b.symbol("m", 1, 300);
  const auto x = b.input("x", {n, 64}), z = b.input("z", {m, 64}), c = b.tensor("c", {n + m, 64}),
             y = b.output("y", {n, 64});
  View first = b.all(c), second = b.all(c);
  first.dims[0] = ProgramBuilder::window(0, n, 0);
  second.dims[0] = ProgramBuilder::window(0, m, n);
  b.op(spec::MapAttrs{}, {b.all(x)}, {first});
  b.op(spec::MapAttrs{}, {b.all(z)}, {second});
  b.op(spec::MapAttrs{}, {first}, {b.all(y)});
  const PlanFixture p(b.program, small_tiles());
  EXPECT_EQ(p.view.ops[1].wait_count, 0u) << "windows are apart: no write-after-write";
  ASSERT_EQ(p.view.ops[2].wait_count, 1u);
  EXPECT_EQ(p.view.waits[p.view.ops[2].wait_first].producer, 0u);
}

TEST(PlanWaits, CausalPrefillWaitsForTheContextItMaySee) {
  ProgramBuilder b;
  const Expr n = b.symbol("n", 1, 256);
  const auto x = b.input("x", {n, 256}), k = b.tensor("k", {n, 256}), y = b.output("y", {n, 256});
  b.copy(x, k);
  b.op(spec::AttentionAttrs{4, 4, true, 0.125}, {b.all(x), b.all(k), b.all(k)}, {b.all(y)});
  const PlanFixture p(b.program, small_tiles());
  const auto at = p.at({256});
  const std::int64_t t0 = at.value(p.view.ops[0].tile[2]), t1 = at.value(p.view.ops[1].tile[2]);
  ASSERT_GT(at.value(p.view.ops[1].grid[2]), 2);
  for (std::int64_t c = 0; c < at.value(p.view.ops[1].grid[2]); ++c) {
    std::set<std::int64_t> rows;
    for (const Coordinate& t : at.waited_coordinates(1, 0, {0, 0, c, 0})) rows.insert(t[2]);
    EXPECT_EQ(*rows.rbegin(), (std::min<std::int64_t>(256, (c + 1) * t1) - 1) / t0);
    EXPECT_EQ(*rows.begin(), 0);
  }
}

TEST(PlanWaits, GranularityCanBeAskedFor) {
  ProgramBuilder b;
  const auto x = b.input("x", {512, 16384}), h = b.tensor("h", {512, 16384}), y = b.output("y", {512, 16384});
  b.copy(x, h);
  b.copy(h, y);
  for (const auto& [wish, axes] : {std::pair{Granularity::whole, 0}, {Granularity::row, 1}, {Granularity::tile, 2}}) {
    PlanOptions options = small_tiles();
    options.granularity = wish;
    const PlanFixture p(b.program, options);
    const plan::SignalDesc& s = p.view.signals[0];
    EXPECT_EQ((s.grid_axis[0] >= 0) + (s.grid_axis[1] >= 0), axes) << granularity_name(wish);
    EXPECT_EQ(p.image->dependencies[0].granularity, wish);
  }
}

TEST(PlanWaits, ReshapeKeepsLeadingDims) {
  ProgramBuilder b;
  const auto x = b.input("x", {600, 128}), h = b.tensor("h", {600, 128});
  const auto h3 = b.alias("h3", h, {600, 4, 32}), y = b.output("y", {600, 4, 32});
  b.copy(x, h);
  b.copy(h3, y);
  const PlanFixture p(b.program, small_tiles());
  const auto at = p.at({});
  ASSERT_GT(at.value(p.view.ops[0].grid[2]), 1);
  EXPECT_LT(at.waited_tiles(1, 0, {0, 0, 0, 0}).size(), static_cast<std::size_t>(at.tiles(0)));
}

TEST(PlanWaits, OverwriteWaitsForReadersOfTheOldValue) {
  ProgramBuilder b;
  const auto x = b.input("x", {64, 32}), s = b.tensor("s", {64, 32}, TensorKind::state), y = b.output("y", {64, 32});
  b.copy(s, y);  // reads the old state
  b.copy(x, s);  // then overwrites it
  const PlanFixture p(b.program);
  ASSERT_EQ(p.view.ops[1].wait_count, 1u);
  EXPECT_EQ(p.view.waits[p.view.ops[1].wait_first].producer, 0u);
  EXPECT_EQ(p.image->dependencies[0].kind, DependencyKind::war);
}

TEST(PlanWaits, OverwriteWaitsForReadersWhoseWindowsOverlap) {
  ProgramBuilder b;
  const auto x = b.input("x", {1, 8, 256, 64}), s = b.tensor("s", {1, 8, 256, 64}, TensorKind::state);
  const auto w = b.tensor("w", {16, 8, 5, 1}, TensorKind::weight), y = b.output("y", {1, 16, 256, 64});
  b.op(spec::Conv2dAttrs{{1, 1}, {2, 0}, {1, 1}, {}}, {b.all(s), b.all(w)}, {b.all(y)});
  b.copy(x, s);
  const PlanFixture p(b.program, small_tiles());
  const auto at = p.at({});
  const std::int64_t reader = at.value(p.view.ops[0].tile[2]), writer = at.value(p.view.ops[1].tile[2]);
  ASSERT_GT(at.value(p.view.ops[0].grid[2]), 2);
  for (std::int64_t c = 0; c < at.value(p.view.ops[1].grid[2]); ++c) {
    std::set<std::int64_t> got, want;
    for (const Coordinate& t : at.waited_coordinates(1, 0, {0, 0, c, 0})) got.insert(t[2]);
    for (std::int64_t r = 0; r < at.value(p.view.ops[0].grid[2]); ++r)
      if (r * reader - 2 < (c + 1) * writer && c * writer < r * reader + reader + 2) want.insert(r);
    EXPECT_EQ(got, want) << "rows from " << c * writer;
  }
}

TEST(PlanWaits, AnotherWaitImpliesAnOlderOne) {
  ProgramBuilder b;
  const auto x = b.input("x", {8, 64}), a = b.tensor("a", {8, 64}), r = b.tensor("r", {}), s = b.tensor("s", {}),
             y = b.output("y", {});
  b.copy(x, a);
  b.op(spec::ReduceAttrs{spec::ReduceFn::sum, {0, 1}, false}, {b.all(a)}, {b.all(r)});
  b.op(spec::MapAttrs{}, {b.all(r)}, {b.all(s)});
  ElementBuilder e;
  e.node(ExprFn::add, ScalarType::f32, e.argument(0), e.argument(1));
  b.op(spec::MapAttrs{e.expr}, {b.all(s), b.all(r)}, {b.all(y)});
  EXPECT_EQ(PlanFixture(b.program).view.ops[3].wait_count, 1u);
  PlanOptions keep_all;
  keep_all.drop_implied_waits = false;
  EXPECT_EQ(PlanFixture(b.program, keep_all).view.ops[3].wait_count, 2u);
}

}  // namespace
}  // namespace ccks::codegen
