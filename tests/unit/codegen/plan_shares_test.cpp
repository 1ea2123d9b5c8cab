// Products of the same rows get tiles that come out even together, others the tiles that suit each alone.
#include <gtest/gtest.h>

#include "codegen/check_plan.hpp"
#include "codegen/plan_image.hpp"
#include "spec/parse.hpp"

namespace ccks::codegen {
namespace {

/// x [n, 2048] by weights of 2,048, 512 and 512 columns.
constexpr const char* kThree = R"(
  - {op: matmul, a: x, b: wq.T, out: q}
  - {op: matmul, a: x, b: wk.T, out: k}
  - {op: matmul, a: x, b: wv.T, out: v}
)";

/// The tensor, if ops make it.
std::string output(const std::string& ops, const std::string& name, int columns) {
  return ops.find("out: " + name) == std::string::npos ? "" : "  " + name + ": {shape: [n, " + std::to_string(columns) + "], kind: output}\n";
}

std::vector<std::int64_t> tiles_of(const std::string& ops, const char* device = "cuda", const std::string& n = "1") {
  const std::string text = "ccks: 1\nprogram: p\ndtype: bf16\ndims: {n: " + n + R"(}
tensors:
  x: {shape: [n, 2048], kind: input}
  wq: {shape: [2048, 2048], kind: weight}
  wk: {shape: [512, 2048], kind: weight}
  wv: {shape: [512, 2048], kind: weight}
  w: {shape: [14336, 2048], kind: weight}
)" + output(ops, "q", 2048) + output(ops, "z", 2048) + output(ops, "k", 512) + output(ops, "v", 512) + output(ops, "y", 14336) + "ops:" + ops;
  const spec::ParseResult parsed = spec::parse_text(text, "p.yaml");
  EXPECT_TRUE(parsed.ok) << spec::format_diagnostics(parsed);
  PlanOptions options;
  options.device = device;
  options.workers = 132;
  const auto image = make_plan(parsed.program, options);
  EXPECT_TRUE(image.ok()) << image.status().to_string();
  EXPECT_TRUE(check_plan(parsed.program, (*image)->view()).ok());
  std::vector<std::int64_t> tiles;
  for (const plan::OpDesc& op : (*image)->ops) tiles.push_back((*image)->dims[op.grid[3]].value);
  return tiles;
}

using Tiles = std::vector<std::int64_t>;

TEST(PlanShares, ProductsOfTheSameRowsHaveATileAWorker) { EXPECT_EQ(tiles_of(kThree), (Tiles{64, 32, 32})); }

TEST(PlanShares, OnlyOfTheSameFewRowsOnAGpu) {
  EXPECT_EQ(tiles_of("\n  - {op: matmul, a: x, b: wq.T, out: q}\n"), (Tiles{128}));
  EXPECT_EQ(tiles_of(R"(
  - {op: matmul, a: x, b: wq.T, out: q}
  - {op: matmul, a: q, b: wk.T, out: k}
  - {op: matmul, a: q, b: wv.T, out: v}
)"), (Tiles{128, 32, 32})) << "other rows; and two that do not fill the workers stay as narrow as they are";
  const std::string two = "\n  - {op: matmul, a: x, b: wq.T, out: q}\n  - {op: matmul, a: x, b: wq.T, out: z";
  EXPECT_EQ(tiles_of(two + "}\n"), (Tiles{64, 64}));
  EXPECT_EQ(tiles_of(two + ", epilogue: acc * q, with: {q: q}}\n"), (Tiles{128, 128})) << "one waits for the other";
  EXPECT_NE(tiles_of(kThree, "host"), (Tiles{64, 32, 32})) << "a host";
}

TEST(PlanShares, OneProductTakesSixteensOfColumnsAsTheyComeOutEven) {
  EXPECT_EQ(tiles_of("\n  - {op: matmul, a: x, b: w.T, out: y}\n"), (Tiles{128})) << "of 112 columns";
}

}  // namespace
}  // namespace ccks::codegen
