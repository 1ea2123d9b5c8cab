// Dims that a checkpoint's config may give, and what rope makes of them.
#include <gtest/gtest.h>

#include <cmath>
#include <numbers>

#include "spec/parse.hpp"
#include "spec/reference.hpp"

namespace ccks::spec {
namespace {

ParseResult parse(const std::string& dims, const std::string& rope = "theta: 100") {
  return parse_text("ccks: 1\nprogram: p\ndims:\n" + dims +
                        "tensors:\n  x: {shape: [3, 16], kind: input}\n  y: {shape: [3, 16], kind: output}\n"
                        "ops:\n  - {op: rope, x: x, heads: 2, position: 5, " + rope + ", out: y}\n",
                    "p.yaml");
}

TEST(ConfigDims, SayWhereTheirValueMayComeFrom) {
  const ParseResult r = parse("  d: {value: 8, from: hidden_size}\n  e: {value: 2 * d, from: a.b | c, absent: d + 1, values: {default: 0, llama3: 1}}\n");
  ASSERT_TRUE(r.ok) << format_diagnostics(r);
  ASSERT_EQ(r.program.config_dims.size(), 2u);
  EXPECT_EQ(r.program.config_dims[0].from, std::vector<std::string>{"hidden_size"});
  EXPECT_FALSE(r.program.config_dims[0].absent.has_value());
  const ConfigDim& e = r.program.config_dims[1];
  EXPECT_EQ(e.from, (std::vector<std::string>{"a.b", "c"}));
  EXPECT_EQ(e.absent, 9);
  EXPECT_EQ(e.values, (std::vector<std::pair<std::string, std::int64_t>>{{"default", 0}, {"llama3", 1}}));
  EXPECT_EQ(r.program.named_dims[1].second.as_constant(), 16);
}

TEST(ConfigDims, RefuseWhatTheyCannotBe) {
  EXPECT_FALSE(parse("  d: {value: 8}\n").ok);
  EXPECT_FALSE(parse("  d: {value: 8, from: \" | \"}\n").ok);
  EXPECT_FALSE(parse("  d: {value: 8, from: x, other: 1}\n").ok);
  EXPECT_FALSE(parse("  n: {range: [1, 4], default: 1}\n  d: {value: n, from: x}\n").ok);
  EXPECT_FALSE(parse("  d: {value: 8, from: x, values: 3}\n").ok);
}

double frequency(int j, double theta, double factor, double low, double high, double original) {
  const double plain = std::pow(theta, -2.0 * j / 8);
  const double wave = 2 * std::numbers::pi / plain;
  if (wave < original / high) return plain;
  if (wave > original / low) return plain / factor;
  const double smooth = (original / wave - low) / (high - low);
  return (1 - smooth) * plain / factor + smooth * plain;
}

// Heads of 8: waves of 6, 20, 63 and 199 positions, of which two lie between 40 / 4 and 40 / 0.25.
TEST(RopeScaling, StretchesLongWavesAndMixesThoseBetween) {
  const ParseResult r = parse("  t: 100\n  f: 8\n", "theta: t, scaling: {factor: f, low: 0.25, high: 4, original: 40}");
  ASSERT_TRUE(r.ok) << format_diagnostics(r);
  TensorMap bound;
  DenseTensor x{{3, 16}, std::vector<double>(48, 0.0)};
  for (int row = 0; row < 3; ++row)
    for (int j = 0; j < 4; ++j) x.values[static_cast<std::size_t>(row * 16 + j)] = 1;
  bound["x"] = x;
  const Result<TensorMap> out = interpret(r.program, {}, bound);
  ASSERT_TRUE(out.ok()) << out.status().message();
  for (int row = 0; row < 3; ++row) {
    for (int j = 0; j < 4; ++j) {
      const double angle = (5 + row) * frequency(j, 100, 8, 0.25, 4, 40);
      EXPECT_NEAR(out->at("y").values[static_cast<std::size_t>(row * 16 + j)], std::cos(angle), 1e-5) << j;
      EXPECT_NEAR(out->at("y").values[static_cast<std::size_t>(row * 16 + j + 4)], std::sin(angle), 1e-5) << j;
    }
  }
}

TEST(RopeScaling, RefusesNonsense) {
  EXPECT_FALSE(parse("", "scaling: {factor: 0, original: 8}").ok);
  EXPECT_FALSE(parse("", "scaling: {low: 4, high: 4, original: 8}").ok);
  EXPECT_FALSE(parse("", "scaling: {speed: 4}").ok);
  EXPECT_FALSE(parse("", "scaling: 4").ok);
  EXPECT_FALSE(parse("", "theta: nothing").ok);
  EXPECT_TRUE(parse("", "scaling: {factor: 8}").ok);
}

}  // namespace
}  // namespace ccks::spec
