// Products of experts on one route: whose row tiles wait for their own only, and whose for all.
#include <gtest/gtest.h>

#include <algorithm>

#include "tests/unit/codegen/plan_fixture.hpp"

namespace ccks::codegen {
namespace {

using test::PlanAt;

constexpr const char* kChain = R"(
  - {op: route, logits: logits, k: 2, out: r}
  - {op: route, logits: others, k: 2, out: s}
  - {op: expert_matmul, x: x, route: r, b: w1, input: tokens, epilogue: silu(acc), out: gate}
  - {op: expert_matmul, x: x, route: r, b: w3, input: tokens, epilogue: acc * gate, out: up}
  - {op: expert_matmul, x: up, route: r, b: w2, input: rows, out: down}
  - {op: combine, x: down, route: r, out: y}
)";
constexpr std::uint32_t kGate = 2, kUp = 3, kDown = 4, kCombine = 5;

std::string with(std::string text, const std::string& from, const std::string& to) {
  const std::size_t at = text.find(from);
  EXPECT_NE(at, std::string::npos) << from;
  return text.replace(at, from.size(), to);
}

class PlanExperts : public test::PlanOfText {
 protected:
  static constexpr std::int64_t kTokens = 300;  // several row tiles an expert, on either device

  void make(const std::string& ops) {
    plan_text(R"(ccks: 1
program: p
dtype: bf16
dims: {t: {range: [1, 400]}, d: 256, e: 8, f: 256}
tensors:
  x: {shape: [t, d], kind: input}
  logits: {shape: [t, e], kind: input}
  others: {shape: [t, e], kind: input}
  w1: {shape: [e, d, f], kind: weight}
  w2: {shape: [e, f, d], kind: weight}
  w3: {shape: [e, d, f], kind: weight}
  y: {shape: [t, d], kind: output}
ops:)" + ops);
  }
  PlanAt at() const { return PlanAt(image_.view(), {kTokens}); }
  /// Row tiles of `producer` that row tile 1, column tile 0 of `consumer` waits for.
  std::set<std::int64_t> rows_waited(std::uint32_t consumer, std::uint32_t producer) const {
    std::set<std::int64_t> rows;
    const PlanAt now = at();
    for (std::uint32_t w = 0; w < image_.ops[consumer].wait_count; ++w) {
      if (now.wait(consumer, w).producer != producer) continue;
      for (const test::Coordinate& c : now.waited_coordinates(consumer, w, {0, 0, consumer == kCombine ? 0 : 1, 0})) rows.insert(c[2]);
    }
    return rows;
  }
  std::int64_t row_tiles(std::uint32_t index) const { return at().value(image_.ops[index].grid[2]); }
};

TEST_P(PlanExperts, RowTilesWaitForTheirOwn) {
  make(kChain);
  ASSERT_GT(row_tiles(kGate), 4);
  EXPECT_EQ(rows_waited(kUp, kGate), std::set<std::int64_t>{1});
  EXPECT_EQ(rows_waited(kDown, kUp), std::set<std::int64_t>{1});
  EXPECT_EQ(rows_waited(kCombine, kDown).size(), static_cast<std::size_t>(row_tiles(kDown)));
  EXPECT_TRUE(at().totals_hold());
  EXPECT_TRUE(check().ok()) << check().to_string();
}

TEST_P(PlanExperts, AnotherRouteMeansOtherRows) {
  make(with(kChain, "x: up, route: r", "x: up, route: s"));
  EXPECT_EQ(rows_waited(kUp, kGate), std::set<std::int64_t>{1});
  EXPECT_EQ(rows_waited(kDown, kUp).size(), static_cast<std::size_t>(row_tiles(kUp)));
  EXPECT_TRUE(check().ok()) << check().to_string();
}

// Gathered by source, a tile's rows are rows of x wherever they lie. With one expert a token there are as many of both.
TEST_P(PlanExperts, GatheredRowsAreAnybodys) {
  make(with(with(with(kChain, "k: 2", "k: 1"), "k: 2", "k: 1"), "input: rows", "input: tokens"));
  EXPECT_EQ(rows_waited(kUp, kGate), std::set<std::int64_t>{1});
  EXPECT_EQ(rows_waited(kDown, kUp).size(), static_cast<std::size_t>(row_tiles(kUp)));
  EXPECT_TRUE(check().ok()) << check().to_string();
}

// ---- the checker, of plans that the planner does not make ----

/// Makes the wait of `consumer` on `producer` one for row tile c of row tile c.
void wait_by_row_tiles(PlanImage& image, std::uint32_t consumer, std::uint32_t producer) {
  const auto constant = [&](std::int64_t value) {
    image.dims.push_back({plan::DimOp::constant, 0, 0, value});
    return static_cast<plan::DimId>(image.dims.size() - 1);
  };
  const plan::OpDesc& from = image.ops[producer];
  for (plan::WaitDesc& w : image.waits) {
    if (&w < &image.waits[image.ops[consumer].wait_first] || &w >= &image.waits[image.ops[consumer].wait_first] + image.ops[consumer].wait_count) continue;
    if (w.producer != producer) continue;
    plan::SignalDesc& s = image.signals[w.signal];
    s.event_first = image.event_count;
    s.event_max = 400;
    image.event_count += 400;
    s.event_count = from.grid[2];
    s.total = from.grid[3];
    s.grid_axis[0] = 2, s.grid_axis[1] = -1;
    s.stride[0] = constant(1), s.stride[1] = constant(0);
    const plan::DimId one = constant(1), zero = constant(0);
    w.axis[0] = {2, one, zero, one, from.grid[2], one, one};
    w.axis[1] = {-1, zero, zero, one, one, one, zero};
  }
}

TEST_P(PlanExperts, TheCheckerRefusesRowTilesOfAnotherRoute) {
  make(with(kChain, "x: up, route: r", "x: up, route: s"));
  wait_by_row_tiles(image_, kDown, kUp);
  EXPECT_NE(check().to_string().find("event.routed"), std::string::npos) << check().to_string();
}

TEST_P(PlanExperts, TheCheckerTakesRowTilesOfTheSameRouteInThatForm) {
  make(kChain);
  wait_by_row_tiles(image_, kDown, kUp);
  EXPECT_TRUE(check().ok()) << check().to_string();
}

TEST_P(PlanExperts, TheCheckerRefusesTheNextRowTile) {
  make(kChain);
  for (plan::WaitDesc& w : image_.waits)
    if (w.producer == kUp && w.axis[0].grid_axis == 2) {
      image_.dims.push_back({plan::DimOp::constant, 0, 0, 1});
      w.axis[0].offset = static_cast<plan::DimId>(image_.dims.size() - 1);
    }
  EXPECT_NE(check().to_string().find("event.routed"), std::string::npos) << check().to_string();
}

TEST_P(PlanExperts, TheCheckerRefusesTilesOfAnotherHeight) {
  make(kChain);
  plan::OpDesc& down = image_.ops[kDown];
  image_.dims.push_back({plan::DimOp::constant, 0, 0, 2});
  image_.dims.push_back({plan::DimOp::mul, down.tile[2], static_cast<plan::DimId>(image_.dims.size() - 1), 0});
  down.tile[2] = static_cast<plan::DimId>(image_.dims.size() - 1);
  EXPECT_NE(check().to_string().find("event.routed"), std::string::npos) << check().to_string();
}

// Of a GPU, 132; no more than a tile takes. A host's tiles are as large as a task is worth.
TEST_P(PlanExperts, CombineHasATileForEachWorkerWhereTokensAreFew) {
  make(kChain);
  const bool cuda = std::string(GetParam()) == "cuda";
  for (const std::int64_t tokens : {1, 7, 132, 133, 300, 400}) {
    const PlanAt now(image_.view(), {tokens});
    const std::int64_t tile = now.value(image_.ops[kCombine].tile[2]), most = PlanAt(image_.view(), {100'000}).value(image_.ops[kCombine].tile[2]);
    EXPECT_EQ(tile, cuda ? std::min((tokens + 131) / 132, most) : most) << tokens;
    EXPECT_EQ(now.value(image_.ops[kCombine].grid[2]), (tokens + tile - 1) / tile) << tokens;
    EXPECT_GT(most, 1);
  }
}

INSTANTIATE_TEST_SUITE_P(Devices, PlanExperts, testing::Values("host", "cuda"));

}  // namespace
}  // namespace ccks::codegen
