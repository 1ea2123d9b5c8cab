// Counted dims in a plan: which ops' tiles a report counts, what they are waited for, and that the checker knows.
#include <gtest/gtest.h>

#include "codegen/check_plan.hpp"
#include "codegen/explain_plan.hpp"
#include "tests/unit/codegen/plan_fixture.hpp"

namespace ccks::codegen {
namespace {

constexpr const char* kSpec = R"yaml(ccks: 1
program: p
dims:
  n: {range: [1, 64], default: 64}
  rows: {counted: count, max: 32 * n}
  d: 64
tensors:
  some: {shape: [n], dtype: i32, kind: input}
  x: {shape: [32 * n, d], kind: input}
  w: {shape: [d, d], kind: weight}
  g: {shape: [d], kind: weight}
  q: {shape: [8, d], kind: input}
  y: {shape: [rows, d], kind: output}
  best: {shape: [rows], dtype: i32, kind: output}
  pooled: {shape: [8, d], kind: output}
ops:
  - {op: reduce, fn: sum, x: some, axes: [0], keepdims: true, out: count}
  - {op: map, expr: "index(0) % 7", shape: [rows], dtype: i32, out: place}
  - {op: gather, table: x, index: place, out: h}
  - {op: rmsnorm, x: h, weight: g, out: m}
  - {op: matmul, a: m, b: w, epilogue: acc + h, out: y}
  - {op: argmax, x: y, out: best}
  - {op: map, expr: "select(index(1) == 0, 0, c)", with: {c: count}, shape: [8, 2], dtype: i32, out: reach}
  - {op: attention, q: q, k: y, v: m, heads: 2, reach: reach, out: pooled}
)yaml";

class PlanCounted : public test::PlanOfText {
 protected:
  void SetUp() override { plan_text(kSpec); }
  std::uint32_t op(spec::OpKind kind, int which = 0) const {
    for (std::uint32_t i = 0; i < image_.ops.size(); ++i)
      if (static_cast<spec::OpKind>(image_.ops[i].kind) == kind && which-- == 0) return i;
    ADD_FAILURE() << "no such op";
    return 0;
  }
  /// Whether some wait of `consumer` names `producer`.
  bool waits(std::uint32_t consumer, std::uint32_t producer) const {
    const plan::OpDesc& d = image_.ops[consumer];
    for (std::uint32_t w = d.wait_first; w < d.wait_first + d.wait_count; ++w)
      if (image_.waits[w].producer == producer) return true;
    return false;
  }
};

TEST_P(PlanCounted, OpsOfCountedRowsAreCountedAlongTheirRows) {
  const std::pair<std::uint32_t, int> kRanks[] = {{op(spec::OpKind::map, 0), 1}, {op(spec::OpKind::gather), 2}, {op(spec::OpKind::matmul), 2}, {op(spec::OpKind::argmax), 2}};
  for (const auto& [i, rank] : kRanks) {
    EXPECT_EQ(image_.ops[i].counted_rank, rank) << image_.ops[i].name;
    EXPECT_NE(image_.ops[i].flags & wire::kOpDynamic, 0) << image_.ops[i].name;
    EXPECT_EQ(image_.ops[i].dynamic_report, 0u) << image_.ops[i].name;
  }
  // The index that gather is given is made for all rows, and the pool has rows of its own.
  for (const std::uint32_t i : {op(spec::OpKind::reduce), op(spec::OpKind::report), op(spec::OpKind::map, 1), op(spec::OpKind::attention)}) {
    EXPECT_EQ(image_.ops[i].counted_rank, 0) << image_.ops[i].name;
    EXPECT_EQ(image_.ops[i].flags & wire::kOpDynamic, 0) << image_.ops[i].name;
    EXPECT_EQ(image_.ops[i].dynamic_report, plan::kNone) << image_.ops[i].name;
  }
  const test::PlanAt at(image_.view(), {64});
  EXPECT_GT(at.value(image_.ops[op(spec::OpKind::matmul)].grid[2]), 8) << "or there is nothing to leave out";
  EXPECT_TRUE(at.totals_hold());
}

// What a tile waited for is not known from one that was left out: whoever reads further back waits for that itself.
TEST_P(PlanCounted, NobodyReliesOnWhatCountedOpsWaitedFor) {
  const std::uint32_t pool = op(spec::OpKind::attention), product = op(spec::OpKind::matmul), norm = op(spec::OpKind::rmsnorm);
  EXPECT_TRUE(waits(product, norm));
  EXPECT_TRUE(waits(pool, product));
  EXPECT_TRUE(waits(pool, norm)) << "which the product has waited for, where it ran";
  EXPECT_TRUE(check().ok()) << check().to_string();
  plan::OpDesc& d = image_.ops[pool];
  for (std::uint32_t w = d.wait_first; w < d.wait_first + d.wait_count; ++w) {
    if (image_.waits[w].producer != norm) continue;
    std::swap(image_.waits[w], image_.waits[d.wait_first + d.wait_count - 1]);
    --d.wait_count;
    break;
  }
  EXPECT_NE(check().to_string().find("order.raw"), std::string::npos) << check().to_string();
}

TEST_P(PlanCounted, TheCheckerKnowsWhatIsCounted) {
  const codegen::PlanImage good = image_;
  const auto refused = [&](auto&& change) {
    image_ = good;
    change(image_);
    const std::string said = check().to_string();
    image_ = good;
    return said.find("op.flags") != std::string::npos;
  };
  const std::uint32_t product = op(spec::OpKind::matmul), pool = op(spec::OpKind::attention);
  EXPECT_TRUE(refused([&](PlanImage& i) { i.ops[product].counted_rank = 1; })) << "columns";
  EXPECT_TRUE(refused([&](PlanImage& i) { i.ops[product].counted_rank = 3; })) << "an axis that has one tile only";
  EXPECT_TRUE(refused([&](PlanImage& i) { i.ops[product].counted_rank = 0; })) << "of experts";
  EXPECT_TRUE(refused([&](PlanImage& i) { i.ops[pool].counted_rank = 2, i.ops[pool].flags |= wire::kOpDynamic, i.ops[pool].dynamic_report = 0; })) << "rows of its own";
  EXPECT_TRUE(refused([&](PlanImage& i) { i.ops[product].flags &= static_cast<std::uint8_t>(~wire::kOpDynamic); }));
  image_ = good;
  image_.ops[product].dynamic_report = plan::kNone;
  EXPECT_TRUE(check().ok()) << "then all tiles run: " << check().to_string();
}

TEST_P(PlanCounted, ExplainSaysThatTilesAreCounted) {
  const std::vector<std::int64_t> dims = {64};
  const auto explained = explain_plan(program_, image_, dims, *gpu_figures("h200"));
  ASSERT_TRUE(explained.ok()) << explained.status().to_string();
  const std::string text = explanation_to_text(*explained);
  EXPECT_NE(text.find("at most; counted at run time"), std::string::npos) << text;
  EXPECT_NE(text.find("How many rows there are is counted on the way"), std::string::npos) << text;
}

INSTANTIATE_TEST_SUITE_P(Devices, PlanCounted, testing::Values("host", "cuda"), [](const auto& device) { return std::string(device.param); });

}  // namespace
}  // namespace ccks::codegen
