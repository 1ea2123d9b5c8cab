// Every example on every device and transport under every policy and arm, against the reference interpreter.
#include <gtest/gtest.h>

#include <cstring>

#include "scheduler/tools/run_session.hpp"
#include "spec/parse.hpp"
#include "tests/paths.hpp"
#include "tests/support/examples.hpp"
#include "tests/support/no_gpu.hpp"
#include "tests/support/ways.hpp"

namespace ccks::test {
namespace {

struct Place {
  const char* device;
  const char* transport;
};

using Param = std::tuple<std::size_t, Place, std::string>;

class Examples : public testing::TestWithParam<Param> {};

TEST_P(Examples, MatchTheReference) {
  const auto& [index, place, way] = GetParam();
  run::Options options;
  options.spec = spec_of(examples()[index]);
  options.dims = examples()[index].dims;
  options.device = place.device;
  options.transport = place.transport;
  options.workers = options.device == "host" ? 3 : 0;
  set_way(options, way);
  options.verify = true;
  options.iterations = 3;
  options.slots = 2;
  const std::atomic<bool> interrupted{false};
  for (const std::uint64_t seed : {1, 2, 3}) {
    options.seed = seed;
    run::Outcome outcome;
    const run::Failure failure = run_session(options, interrupted, false, outcome);
    if (no_gpu(options, failure)) GTEST_SKIP() << failure.message;
    if (failure.message.starts_with("unsupported")) {
      ASSERT_TRUE(options.device == "host" && std::string_view(way).starts_with("graph")) << failure.message;
      return;  // said so before anything ran
    }
    ASSERT_EQ(failure.exit_code, run::kDone) << failure.message;
    ASSERT_TRUE(outcome.verified);
    EXPECT_TRUE(outcome.verification.passed) << outcome.verification.worst;
  }
}

// The verification itself must be able to fail.
TEST(Verification, OneWrongElementIsFound) {
  spec::ParseResult parsed = spec::parse_file(std::string(CCKS_SOURCE_DIR) + "/spec/examples/pipeline.yaml");
  ASSERT_TRUE(parsed.ok);
  run::Options options;
  Result<std::vector<std::int64_t>> dims = run::bind_dims(parsed.program, options, {});
  ASSERT_TRUE(dims.ok());
  Result<run::RunData> data = run::RunData::open(parsed.program, *dims, {}, options);
  ASSERT_TRUE(data.ok());
  spec::TensorMap bound;
  std::map<std::string, std::vector<std::byte>> outputs;
  for (spec::TensorId id = 0; id < parsed.program.tensors.size(); ++id) {
    const spec::Tensor& tensor = parsed.program.tensor(id);
    const bool given = tensor.kind == spec::TensorKind::input || tensor.kind == spec::TensorKind::weight;
    if (given) bound[tensor.name] = {data->shape(id), run::decode(tensor.dtype, data->bytes(id).value())};
  }
  Result<spec::TensorMap> want = spec::interpret(parsed.program, data->dims(), bound);
  ASSERT_TRUE(want.ok());
  for (const spec::Tensor& tensor : parsed.program.tensors) {
    if (tensor.kind == spec::TensorKind::output)
      outputs[tensor.name] = run::encode(tensor.dtype, want->at(tensor.name).values);
  }
  EXPECT_TRUE(run::verify(*data, outputs)->passed);
  auto wrong = outputs;
  float value = 0;
  std::memcpy(&value, wrong["energy"].data() + 20, sizeof(value));
  value *= 1.01f;
  std::memcpy(wrong["energy"].data() + 20, &value, sizeof(value));
  EXPECT_FALSE(run::verify(*data, wrong)->passed);
  auto unwritten = outputs;
  unwritten["energy"] = run::poison(wire::Dtype::f32, unwritten["energy"].size() / 4);
  EXPECT_FALSE(run::verify(*data, unwritten)->passed);
}

std::string name_of(const testing::TestParamInfo<Param>& p) {
  const auto& [index, place, way] = p.param;
  return std::string(examples()[index].name) + "_" + place.device + "_" + place.transport + "_" + way;
}

INSTANTIATE_TEST_SUITE_P(All, Examples,
                         testing::Combine(testing::Range<std::size_t>(0, examples().size()),
                                          testing::Values(Place{"host", "coherent"}, Place{"host", "pinned"},
                                                          Place{"cuda", "auto"}),
                                          testing::ValuesIn(ways_and({"stream", "gpu_queue", "graph", "graph_pdl"}))),
                         name_of);

}  // namespace
}  // namespace ccks::test
