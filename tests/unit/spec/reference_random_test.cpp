// Random programs: each seed gives a spec that parses, and that the reference interpreter runs to tame values.
#include <gtest/gtest.h>

#include <cmath>
#include <set>

#include "spec/parse.hpp"
#include "spec/reference.hpp"
#include "tests/support/random_program.hpp"

namespace ccks::spec {
namespace {

constexpr std::uint64_t kSeeds = 300;

std::vector<std::int64_t> dims_of(const Program& program, const test::RandomProgram& random) {
  std::vector<std::int64_t> dims;
  for (const Symbol& symbol : program.symbols)
    for (const auto& [name, value] : random.set)
      if (name == symbol.name) dims.push_back(value);
  return dims;
}

TensorMap seeded_inputs(const Program& program, std::span<const std::int64_t> dims, std::uint64_t seed) {
  TensorMap bound;
  for (TensorId id = 0; id < program.tensors.size(); ++id) {
    const TensorKind kind = program.tensors[id].kind;
    if (kind != TensorKind::output && kind != TensorKind::intermediate)
      bound[program.tensors[id].name] = seeded_values(program, id, dims, seed);
  }
  return bound;
}

// No NaN (an element that nothing wrote, but of rows that do not count), nothing out of hand, every value one that its tensor can hold. A report in a branch or pass
// that was not taken has no values.
void check_values(const Program& program, const std::string& name, const DenseTensor& tensor) {
  const TensorId id = *program.find_tensor(name);
  const Tensor& declared = program.tensor(id);
  const auto report = std::find_if(program.reports.begin(), program.reports.end(), [&](const Report& r) { return r.tensor == id; });
  if (report != program.reports.end() && program.ops[report->op].condition != kNone && std::isnan(tensor.values[0])) {
    for (const double v : tensor.values) ASSERT_TRUE(std::isnan(v)) << name << " was written in part";
    return;
  }
  for (const double v : tensor.counted()) {
    ASSERT_LT(std::abs(v), 2000) << name;
    ASSERT_EQ(round_to(declared.dtype, v), v) << name;
  }
}

TEST(RandomProgram, FirstSeedsParseAndRunTamely) {
  std::set<OpKind> kinds;
  for (std::uint64_t seed = 0; seed < kSeeds; ++seed) {
    const test::RandomProgram random = test::random_program(seed);
    SCOPED_TRACE("seed " + std::to_string(seed));
    const ParseResult parsed = parse_text(random.yaml, "random.yaml");
    ASSERT_TRUE(parsed.ok) << format_diagnostics(parsed);
    EXPECT_TRUE(parsed.diagnostics.empty()) << format_diagnostics(parsed);
    for (const Op& op : parsed.program.ops) kinds.insert(op.kind());
    const std::vector<std::int64_t> dims = dims_of(parsed.program, random);
    const auto result = interpret(parsed.program, dims, seeded_inputs(parsed.program, dims, seed));
    ASSERT_TRUE(result.ok()) << result.status().to_string();
    for (const auto& [name, tensor] : *result) {
      EXPECT_LE(tensor.values.size(), 12'000u) << name;
      check_values(parsed.program, name, tensor);
    }
  }
  EXPECT_EQ(kinds.size(), static_cast<std::size_t>(OpKind::scatter)) << "all op kinds but custom";
}

TEST(RandomProgram, DependsOnTheSeedOnly) {
  EXPECT_EQ(test::random_program(7).yaml, test::random_program(7).yaml);
  EXPECT_NE(test::random_program(7).yaml, test::random_program(8).yaml);
}

}  // namespace
}  // namespace ccks::spec
