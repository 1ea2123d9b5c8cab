// Products of many rows in blocks of each width that a plan may give them (worker/product_group.hpp), on a GPU.
#include <gtest/gtest.h>

#include <cstdint>
#include <string>
#include <vector>

#include "ccks/program.hpp"
#include "tests/support/verified_run.hpp"

namespace ccks::test {
namespace {

// Of the last tile's columns some are not there.
constexpr const char* kSpec = R"yaml(
ccks: 1
program: product_blocks
dtype: @DTYPE@
dims: {n: {range: [1, 2048], default: 1446}, d: 72}
tensors:
  x: {shape: [n, d], kind: input}
  w_64: {shape: [500, d], kind: input}
  w_128: {shape: [1000, d], kind: input}
  w_192: {shape: [1500, d], kind: input}
  w_256: {shape: [2260, d], kind: input}
  bias: {shape: [1500], kind: input}
  y_64: {shape: [n, 500], kind: output}
  y_128: {shape: [n, 1000], kind: output}
  y_192: {shape: [n, 1500], kind: output}
  y_256: {shape: [n, 2260], kind: output}
  again: {shape: [n, 500], kind: output}
ops:
  - {op: matmul, a: x, b: w_64.T, out: y_64}
  - {op: matmul, a: x, b: w_128.T, epilogue: relu(acc), out: y_128}
  - {op: matmul, a: x, b: w_192.T, epilogue: acc + bias, out: y_192}
  - {op: matmul, a: x, b: w_256.T, epilogue: gelu(acc), out: y_256}
  - {op: matmul, a: x, b: w_64.T, epilogue: acc + y_64, out: again}
)yaml";

TEST(ProductBlocks, APlanHasEachWidth) {
  SpecOptions options;
  options.device = "cuda";
  options.workers_hint = 132;
  const Result<Program> program = Program::from_spec_text(with_dtype(kSpec, "bf16"), "product_blocks.yaml", options);
  ASSERT_TRUE(program.ok()) << program.status().message();
  const plan::PlanView& plan = program->plan();
  std::vector<std::int64_t> columns;
  for (const plan::OpDesc& op : plan.ops) columns.push_back(plan.dims[op.tile[3]].value);
  EXPECT_EQ(columns, (std::vector<std::int64_t>{64, 128, 192, 256, 64}));
}

using Param = std::tuple<const char*, const char*, const char*>;  // arm, code, dtype

class ProductBlocks : public testing::TestWithParam<Param> {};

TEST_P(ProductBlocks, MatchTheReference) {
  const auto& [arm, code, dtype] = GetParam();
  const TemporaryFolder folder;
  run::Options options = options_of(folder, with_dtype(kSpec, dtype), "cuda", code);
  options.arm = arm;
  options.iterations = 2;
  for (const std::int64_t n : {1446, 1, 64, 65, 200, 383}) {
    options.dims = {{"n", n}};
    if (!expect_verified(options, "n = " + std::to_string(n))) return;
  }
}

INSTANTIATE_TEST_SUITE_P(All, ProductBlocks,
                         testing::Values(Param{"copilot", "jit", "bf16"}, Param{"static", "jit", "f16"}, Param{"graph_pdl", "jit", "bf16"}, Param{"copilot", "generic", "bf16"}),
                         [](const testing::TestParamInfo<Param>& p) {
                           return std::string(std::get<0>(p.param)) + "_" + std::get<1>(p.param) + "_" + std::get<2>(p.param);
                         });

}  // namespace
}  // namespace ccks::test
