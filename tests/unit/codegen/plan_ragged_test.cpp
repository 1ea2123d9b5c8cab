// Ragged dims in a plan: what it tells the engine of them, and that the checker knows.
#include <gtest/gtest.h>

#include <functional>

#include "ccks/worker/tile_hints.hpp"
#include "codegen/check_plan.hpp"
#include "tests/unit/codegen/plan_fixture.hpp"

namespace ccks::codegen {
namespace {

constexpr const char* kSpec = R"(ccks: 1
program: p
dtype: bf16
dims:
  n: {range: [1, 64], default: 32}
  rows: {ragged: n, length: [1, 500], default: 100, pad: 8, round: 16}
  d: 512
tensors:
  x: {shape: [rows, d], kind: input}
  w: {shape: [3 * d, d], kind: weight}
  y: {shape: [rows, d], kind: output}
ops:
  - {op: matmul, a: x, b: w.T, out: qkv}
  - {op: attention, q: "qkv[:, 0:d]", k: "qkv[:, d:2*d]", v: "qkv[:, 2*d:3*d]", heads: 8, reach: rows.reach, out: s}
  - {op: map, expr: s + x, out: y}
)";

class PlanRagged : public test::PlanOfText {
 protected:
  void SetUp() override { plan_text(kSpec); }
};

TEST_P(PlanRagged, TellsWhatTheEngineWants) {
  ASSERT_EQ(image_.ragged.size(), 1u);
  const plan::RaggedDesc& r = image_.ragged[0];
  EXPECT_STREQ(image_.symbols[r.symbol].name, "rows");
  EXPECT_EQ(test::PlanAt(image_.view(), {7, 96}).value(r.count), 7);
  EXPECT_EQ(r.length_lo, 1);
  EXPECT_EQ(r.length_hi, 500);
  EXPECT_EQ(r.pad, 8);
  EXPECT_EQ(r.round, 16);
  EXPECT_STREQ(image_.tensors[r.tables[spec::RaggedDim::reach]].name, "rows.reach");
  EXPECT_EQ(r.tables[spec::RaggedDim::spans], plan::kNone);
  EXPECT_EQ(r.tables[spec::RaggedDim::position], plan::kNone);
}

// A GPU's, where a typical run has more rows than there are workers: on the host a tile has as many as suit the most rows that there may be.
TEST_P(PlanRagged, WorkersHaveAsManyTilesOfANormAndThoseAsManyRows) {
  const auto rows_of_tile = [&](const std::string& each, std::int64_t rows) {
    plan_text(R"(ccks: 1
program: p
dtype: bf16
dims:
  n: {range: [1, 128], default: 32}
  rows: {ragged: n, length: [1, 512], default: )" + each + R"(}
tensors: {x: {shape: [rows, 512], kind: input}, y: {shape: [rows, 512], kind: output}}
ops: [{op: softmax, x: x, out: y}]
)");
    return test::PlanAt(image_.view(), {128, rows}).value(image_.ops[0].tile[2]);
  };
  if (std::string(GetParam()) == "cuda") {
    EXPECT_EQ(rows_of_tile("43", 1), 1);
    EXPECT_EQ(rows_of_tile("43", 1376), 11);    // 132 workers
    EXPECT_EQ(rows_of_tile("400", 16896), 128);
    EXPECT_EQ(rows_of_tile("43", 44055), 112);  // three tiles each
    EXPECT_EQ(rows_of_tile("2", 1376), rows_of_tile("2", 5364)) << "of few rows, typically, tiles do not vary";
  } else {
    EXPECT_EQ(rows_of_tile("43", 1376), rows_of_tile("400", 44055));
  }
}

TEST_P(PlanRagged, AttentionWaitsForAllKeysAndReadsItsOwnLimits) {
  const test::PlanAt at(image_.view(), {32, 3200});
  const std::uint32_t attention = 1;
  ASSERT_GT(at.value(image_.ops[attention].grid[2]), 1);
  std::set<std::int64_t> waited;
  for (std::uint32_t w = 0; w < image_.ops[attention].wait_count; ++w)
    for (const std::int64_t tile : at.waited_tiles(attention, w, {0, 0, 0, 0})) waited.insert(tile);
  std::set<std::int64_t> keys;  // tiles of the product that make keys of the first heads, of whatever row
  at.for_each_tile(0, [&](const test::Coordinate& c) {
    const std::int64_t first = c[3] * at.value(image_.ops[0].tile[3]), end = first + at.value(image_.ops[0].tile[3]);
    const std::int64_t columns = at.value(image_.ops[attention].tile[3]);
    if (first < 512 + columns && end > 512) keys.insert(at.linear(0, c));
  });
  for (const std::int64_t tile : keys) EXPECT_TRUE(waited.count(tile)) << tile;
}

TEST_P(PlanRagged, ProductsOfManyRowsHaveRoomOnAGpu) {
  const bool cuda = std::string(GetParam()) == "cuda";
  EXPECT_EQ(image_.scratch_bytes, cuda ? worker::kCudaGroupedScratchBytes : worker::kHostScratchBytes);
  if (cuda) {
    EXPECT_EQ(test::PlanAt(image_.view(), {32, 3200}).value(image_.ops[0].tile[2]), 128);
  }
}

TEST_P(PlanRagged, TheCheckerKnows) {
  const auto refused = [&](const std::function<void(plan::RaggedDesc&)>& change) {
    PlanImage changed = image_;
    change(changed.ragged[0]);
    return check_plan(program_, changed.view()).status().to_string();
  };
  EXPECT_TRUE(check().ok()) << check().to_string();
  const std::function<void(plan::RaggedDesc&)> kChanges[] = {
      [](auto& r) { r.symbol = 0; },     [](auto& r) { r.count = 1u << 30; }, [](auto& r) { r.length_hi = 501; },
      [](auto& r) { r.pad = 1; },        [](auto& r) { r.round = 8; },        [](auto& r) { std::swap(r.tables[0], r.tables[1]); },
  };
  for (const auto& change : kChanges) EXPECT_NE(refused(change).find("table.ragged"), std::string::npos);
  const plan::DimId other = image_.tensors[image_.ragged[0].tables[0]].shape[0];  // rows, not sequences
  EXPECT_NE(refused([&](auto& r) { r.count = other; }).find("table.ragged"), std::string::npos);
}

INSTANTIATE_TEST_SUITE_P(Devices, PlanRagged, testing::Values("host", "cuda"), [](const auto& p) { return std::string(p.param); });

}  // namespace
}  // namespace ccks::codegen
