// scatter and attention over pages in a plan: layout, tiles, who waits for whom, and that the checker refuses a plan that forgets it.
#include <gtest/gtest.h>

#include <functional>

#include "ccks/wire/op_shape.hpp"
#include "codegen/check_model.hpp"
#include "codegen/check_plan.hpp"
#include "codegen/plan_split.hpp"
#include "tests/unit/codegen/plan_fixture.hpp"

namespace ccks::codegen {
namespace {

// Ops: 0 product, 1 and 2 scatters into the pools, 3 attention, 4 a map, 5 a scatter behind who reads the pool.
constexpr const char* kSpec = R"(ccks: 1
program: p
dtype: bf16
dims:
  n: {range: [1, 256], default: 64}
  d: 512
  kv: 128
tensors:
  x: {shape: [n, d], kind: input}
  w: {shape: [d + 2 * kv, d], kind: weight}
  slot: {shape: [n], dtype: i32, kind: input}
  reach: {shape: [n, 2], dtype: i32, kind: input}
  pages: {shape: [n, 16], dtype: i32, kind: input}
  k: {shape: [4096, kv], kind: state}
  v: {shape: [4096, kv], kind: state}
  y: {shape: [n, d], kind: output}
ops:
  - {op: matmul, a: x, b: w.T, out: qkv}
  - {op: scatter, x: "qkv[:, d:d + kv]", index: slot, out: k}
  - {op: scatter, x: "qkv[:, d + kv:d + 2 * kv]", index: slot, out: v}
  - {op: attention, q: "qkv[:, 0:d]", k: k, v: v, heads: 8, kv_heads: 2, reach: reach, pages: pages, page: 64, out: s}
  - {op: map, expr: s + x, out: y}
  - {op: scatter, x: "y[:, 0:kv]", index: slot, out: k}
)";

class PlanPaged : public test::PlanOfText {
 protected:
  void SetUp() override { plan_text(kSpec); }
  std::vector<std::int64_t> dims(const test::PlanAt& at, std::uint32_t op, std::uint32_t k) const {
    std::vector<std::int64_t> out;
    for (const plan::DimId d : image_.operands[image_.ops[op].operand_first + k].dim) out.push_back(at.value(d));
    return out;
  }
  /// Tiles of `producer` that every tile of `op` waits for.
  std::set<std::int64_t> waited(const test::PlanAt& at, std::uint32_t op, std::uint32_t producer, const test::Coordinate& c) const {
    std::set<std::int64_t> tiles;
    for (std::uint32_t w = 0; w < image_.ops[op].wait_count; ++w)
      if (at.wait(op, w).producer == producer) tiles.merge(at.waited_tiles(op, w, c));
    return tiles;
  }
  std::string refused(const std::function<void(PlanImage&)>& change) const {
    PlanImage changed = image_;
    change(changed);
    return check_plan(program_, changed.view()).status().to_string();
  }
};

TEST_P(PlanPaged, Layout) {
  const test::PlanAt at(image_.view(), {64});
  EXPECT_EQ(image_.ops[1].kind, wire::OpCode::scatter);
  EXPECT_EQ(dims(at, 1, 0), (std::vector<std::int64_t>{1, 1, 64, 128}));
  EXPECT_EQ(dims(at, 1, 1), (std::vector<std::int64_t>{1, 1, 1, 64}));
  EXPECT_EQ(dims(at, 1, 2), (std::vector<std::int64_t>{1, 1, 4096, 128}));
  EXPECT_EQ(at.value(image_.ops[1].grid[2]) * at.value(image_.ops[1].tile[2]) >= 64, true) << "tiles are of rows of x";
  EXPECT_LE(at.tiles(1), 64 * 128);
  EXPECT_EQ(at.value(image_.ops[1].bytes_written), 64 * 128 * 2) << "rows, not the pool";
  EXPECT_EQ(dims(at, 3, 4), (std::vector<std::int64_t>{1, 1, 64, 16}));
  EXPECT_EQ(at.value(image_.ops[3].dims[wire::kPageDim]), 64);
  EXPECT_EQ(at.value(image_.ops[3].dims[3]), 0);
  EXPECT_EQ(image_.ops[3].output_count, 1) << "its context is not split over tiles";
  EXPECT_EQ(at.value(image_.ops[3].tile[2]), 1) << "a row a tile";
  EXPECT_EQ(at.value(image_.ops[3].operations), 64 * 512 * 16 * 64 * 4);
}

TEST_P(PlanPaged, ReadersWaitForAllRowsThatMayHaveBeenWritten) {
  const test::PlanAt at(image_.view(), {200});
  for (const std::uint32_t scatter : {1u, 2u}) {
    at.for_each_tile(3, [&](const test::Coordinate& c) {
      const std::set<std::int64_t> tiles = waited(at, 3, scatter, c);
      at.for_each_tile(scatter, [&](const test::Coordinate& t) {
        const std::int64_t columns = at.value(image_.ops[scatter].tile[3]), first = c[3] * at.value(image_.ops[3].tile[3]) / 4;
        const bool meet = t[3] * columns < first + 64 && (t[3] + 1) * columns > first;
        EXPECT_TRUE(!meet || tiles.count(at.linear(scatter, t))) << "row tile " << t[2];
      });
    });
  }
  // Whoever writes the pool next waits for them: here through the map that reads what they have made, or by itself.
  std::set<std::uint32_t> producers;
  for (std::uint32_t w = 0; w < image_.ops[5].wait_count; ++w) producers.insert(at.wait(5, w).producer);
  EXPECT_TRUE(producers.count(3) || producers.count(4));
  EXPECT_TRUE(check().ok()) << check().to_string();
}

TEST_P(PlanPaged, TheCheckerRefusesWhatIsUnsafe) {
  EXPECT_NE(refused([](PlanImage& p) { p.ops[3].wait_count = 0; }).find("order.raw"), std::string::npos);
  EXPECT_NE(refused([](PlanImage& p) { p.ops[1].wait_count = 0; }).find("order.raw"), std::string::npos) << "of the product";
  const std::string behind = refused([](PlanImage& p) { p.ops[5].wait_count = 0; });
  EXPECT_TRUE(behind.find("order.war") != std::string::npos || behind.find("order.raw") != std::string::npos || behind.find("order.waw") != std::string::npos) << behind;
  EXPECT_NE(refused([](PlanImage& p) { p.ops[3].dims[wire::kPageDim] = p.ops[3].dims[0]; }).find("op.dims"), std::string::npos);
  EXPECT_NE(refused([](PlanImage& p) { std::swap(p.operands[p.ops[3].operand_first + 3], p.operands[p.ops[3].operand_first + 4]); }).find("operand.view"), std::string::npos);
  EXPECT_NE(refused([](PlanImage& p) { p.operands[p.ops[1].operand_first + 2].dim[2] = p.operands[p.ops[1].operand_first].dim[2]; }).find("operand.view"), std::string::npos);
  EXPECT_NE(refused([](PlanImage& p) { p.ops[1].grid[2] = p.ops[1].grid[0]; }).find("tile.cover"), std::string::npos) << "rows that nobody writes";
}

// What a frame of this plan would say to bodies on a GPU: any number of rows has the body of a decode step.
TEST_P(PlanPaged, TilesAreThoseOfTheStepBody) {
  for (const std::int64_t n : {1, 7, 64, 256}) {
    const test::PlanAt at(image_.view(), {n});
    const plan::OpDesc& d = image_.ops[3];
    wire::OpParams op{};
    op.kind = static_cast<std::uint8_t>(d.kind);
    op.input_count = d.input_count;
    op.output_count = d.output_count;
    op.tile_count = static_cast<std::uint32_t>(at.tiles(3));
    for (int i = 0; i < 4; ++i) op.tile[i] = static_cast<std::int32_t>(at.value(d.tile[i])), op.grid[i] = static_cast<std::int32_t>(at.value(d.grid[i]));
    for (int i = 0; i < 8; ++i) op.dims[i] = static_cast<std::int32_t>(at.value(d.dims[i]));
    wire::OperandParams operands[6]{};
    for (std::uint32_t k = 0; k < 6; ++k) {
      const plan::OperandDesc& from = image_.operands[d.operand_first + k];
      for (int i = 0; i < 4; ++i) operands[k].dim[i] = static_cast<std::int32_t>(at.value(from.dim[i])), operands[k].stride[i] = at.value(from.stride[i]);
      operands[k].offset = static_cast<std::uint64_t>(at.value(from.offset));
      operands[k].dtype = static_cast<std::uint8_t>(from.dtype);
    }
    EXPECT_EQ(op.tile_count, static_cast<std::uint32_t>(2 * n));
    wire::mark_shape(op, operands);
    EXPECT_EQ(op.dims[4], 4 | 1 << 8 | 64 << 16) << n;
    EXPECT_EQ(op.dims[wire::kPageDim], 64);
    EXPECT_EQ(op.flags & wire::kOpGroups, 0);
  }
}

INSTANTIATE_TEST_SUITE_P(Devices, PlanPaged, testing::Values("host", "cuda"), [](const auto& p) { return std::string(p.param); });

// Two scatters of one pool, one behind the other and nothing between: the second waits for all of the first, and readers of the first wait too.
TEST(PlanScatter, OneBehindTheOther) {
  using namespace ccks::test;
  const spec::ParseResult parsed = spec::parse_text(R"(ccks: 1
program: p
dims: {n: {range: [1, 3000]}, m: {range: [1, 3000]}}
tensors:
  x: {shape: [n, 64], kind: input}
  z: {shape: [m, 64], kind: input}
  i: {shape: [n], dtype: i32, kind: input}
  j: {shape: [m], dtype: i32, kind: input}
  t: {shape: [500, 64], kind: state}
  y: {shape: [500, 64], kind: output}
ops:
  - {op: scatter, x: x, index: i, out: t}
  - {op: scatter, x: z, index: j, out: t}
  - {op: map, expr: t, out: y}
)", "p.yaml");
  ASSERT_TRUE(parsed.ok) << spec::format_diagnostics(parsed);
  for (const char* device : {"host", "cuda"}) {
    PlanOptions options;
    options.device = device;
    const PlanFixture p(parsed.program, options);
    const auto at = p.at({3000, 1});
    ASSERT_GT(at.value(p.view.ops[0].grid[2]), 1);
    ASSERT_EQ(p.view.ops[1].wait_count, 1u);
    EXPECT_EQ(at.waited_tiles(1, 0, {0, 0, 0, 0}).size(), static_cast<std::size_t>(at.tiles(0)) / static_cast<std::size_t>(at.value(p.view.ops[0].grid[3])));
    ASSERT_EQ(p.view.ops[2].wait_count, 1u) << "the second stands for the first";
    EXPECT_EQ(at.wait(2, 0).producer, 1u);
    EXPECT_TRUE(check_plan(parsed.program, p.view).ok());
    check::Model model;
    CheckReport report;
    const std::vector<std::int64_t> dims{3000, 1};
    check::Faults faults(report, dims, 9);
    ASSERT_TRUE(check::check_tables(parsed.program, p.view, faults) && check::build_model(parsed.program, p.view, dims, faults, model));
    check::check_operands(model, faults);
    check::TileRange last = check::all_tiles(model.ops[0]);
    last.lo[2] = last.hi[2] - 1;
    const check::Window written = check::window_of(model, 0, 2, last);
    EXPECT_EQ(written.lo[2], 0) << "any tile may write any row";
    EXPECT_EQ(written.hi[2], 500);
    EXPECT_GT(check::window_of(model, 0, 0, last).lo[2], 0);
    EXPECT_EQ(check::window_of(model, 0, 1, last).lo[3], check::window_of(model, 0, 0, last).lo[2]);
    plan::PlanView without = p.view;
    std::vector<plan::OpDesc> ops(p.view.ops.begin(), p.view.ops.end());
    ops[1].wait_count = 0;
    without.ops = ops;
    EXPECT_NE(check_plan(parsed.program, without).status().to_string().find("order.waw"), std::string::npos);
  }
}

}  // namespace
}  // namespace ccks::codegen
