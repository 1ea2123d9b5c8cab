// Programs whose values decide what is computed: each instance goes its own way, right for every seed, and where each has workers of its
// own, one that takes long delays no other.
#include <gtest/gtest.h>

#include <chrono>
#include <cmath>
#include <cstdlib>
#include <set>

#include "ccks/engine.hpp"
#include "scheduler/tools/run_data.hpp"
#include "spec/parse.hpp"
#include "spec/reference.hpp"
#include "tests/support/engine_runs.hpp"
#include "tests/support/examples.hpp"
#include "tests/support/sanitized.hpp"
#include "tests/support/ways.hpp"

namespace ccks::test {
namespace {

constexpr std::uint64_t kSeeds = 1000, kFewSeeds = 60;

struct Net {
  const char* name;
  const char* steps;   // i32 output that tells what was computed
  std::size_t kinds;   // least number of different values of it over kFewSeeds
};
constexpr Net kNets[] = {{"exit_per_layer", "depth", 3}, {"stack_machine", "taken", 3}, {"varying_depth", "depths", 5}, {"length_regulator", "count", 8},
                         {"bi_rnn", "read", 5},          {"tree_lstm", "joined", 5},    {"mv_rnn", "joined", 5},        {"drnn", "parents", 8}};

const Example& example_of(const char* name) {
  for (const Example& example : examples()) {
    if (std::string_view(example.name) == name) return example;
  }
  std::abort();
}

/// One of the nets with an engine of its own and weights of seed 1.
class Instances {
 public:
  Instances(const Net& net, const std::string& way, std::uint32_t slots) {
    const Example& example = example_of(net.name);
    spec::ParseOptions parse;
    parse.constants = example.dims;
    parsed_ = spec::parse_file(spec_of(example), parse);
    SpecOptions spec;
    spec.constants = example.dims;
    spec.workers_hint = 3;
    const Result<Program> program = Program::from_spec_file(spec_of(example), spec);
    EXPECT_TRUE(parsed_.ok && program.ok());
    EngineOptions options;
    set_way(options, way);
    options.slots = slots;
    DeviceOptions device;
    device.kind = "host";
    device.workers = 3;
    engine_.emplace(std::move(Engine::create(open_device(device).value(), *program, options).value()));
    for (const spec::Symbol& symbol : parsed_.program.symbols) {
      dims_.push_back(std::min<std::int64_t>(symbol.preset.value_or(1), 4));
      request_dims_.emplace_back(symbol.name, dims_.back());
    }
    for (spec::TensorId id = 0; id < parsed_.program.tensors.size(); ++id) {
      const spec::Tensor& tensor = parsed_.program.tensor(id);
      if (tensor.kind != spec::TensorKind::weight) continue;
      weights_[tensor.name] = spec::seeded_values(parsed_.program, id, dims_, 1);
      EXPECT_TRUE(engine_->bind_weight(tensor.name, run::encode(tensor.dtype, weights_[tensor.name].values)).ok());
    }
    EXPECT_TRUE(engine_->start().ok());
  }

  Result<ccks::Run> submit(std::uint64_t seed) {
    std::vector<std::pair<std::string, std::vector<std::byte>>> bytes;
    for (const auto& [name, values] : inputs(seed)) bytes.emplace_back(name, run::encode(parsed_.program.tensor(*parsed_.program.find_tensor(name)).dtype, values.values));
    RunRequest request;
    for (const auto& [name, value] : request_dims_) request.dims.push_back({name, value});
    for (const auto& [name, data] : bytes) request.inputs.push_back({name, data});
    return engine_->submit(std::move(request));
  }
  spec::TensorMap expected(std::uint64_t seed) const {
    spec::TensorMap bound = weights_;
    for (auto& [name, values] : inputs(seed)) bound[name] = std::move(values);
    return spec::interpret(parsed_.program, dims_, bound).value();
  }
  std::vector<double> output(const ccks::Run& run, const std::string& name) const {
    const spec::TensorId id = *parsed_.program.find_tensor(name);
    std::vector<std::byte> bytes(run.tensor_bytes(name).value());
    EXPECT_TRUE(run.read_output(name, bytes).ok());
    return run::decode(parsed_.program.tensor(id).dtype, bytes);
  }
  void expect_right(const ccks::Run& run, std::uint64_t seed, const spec::TensorMap& want) const {
    for (const spec::Tensor& tensor : parsed_.program.tensors) {
      if (tensor.kind != spec::TensorKind::output) continue;
      const spec::DenseTensor& right = want.at(tensor.name);
      const std::vector<double> got = output(run, tensor.name);
      ASSERT_EQ(got.size(), right.values.size());
      for (std::size_t i = 0; i < right.counted().size(); ++i) ASSERT_NEAR(got[i], right.values[i], 1e-4 * std::max(1.0, std::fabs(right.values[i]))) << tensor.name << " of seed " << seed;
    }
  }
  Engine& engine() { return *engine_; }

 private:
  spec::TensorMap inputs(std::uint64_t seed) const {
    spec::TensorMap out;
    for (spec::TensorId id = 0; id < parsed_.program.tensors.size(); ++id) {
      const spec::Tensor& tensor = parsed_.program.tensor(id);
      if (tensor.kind == spec::TensorKind::input) out[tensor.name] = spec::seeded_values(parsed_.program, id, dims_, 1000 + seed);
    }
    return out;
  }

  spec::ParseResult parsed_;
  std::optional<Engine> engine_;
  std::vector<std::int64_t> dims_;
  std::vector<std::pair<std::string, std::int64_t>> request_dims_;
  spec::TensorMap weights_;
};

class ControlFlow : public testing::TestWithParam<std::tuple<std::size_t, std::string>> {};

TEST_P(ControlFlow, EachInstanceGoesItsOwnWay) {
  const auto& [index, way] = GetParam();
  const Net& net = kNets[index];
  constexpr std::size_t kTogether = 4;
  Instances instances(net, way, kTogether);
  const std::uint64_t seeds = sanitized() || way == "stream" ? kFewSeeds : kSeeds;  // a launch for each op takes its time
  std::set<std::vector<double>> taken;
  for (std::uint64_t first = 0; first < seeds && !HasFailure(); first += kTogether) {
    std::vector<ccks::Run> runs;
    for (std::uint64_t seed = first; seed < first + kTogether; ++seed) runs.push_back(instances.submit(seed).value());
    for (std::uint64_t i = 0; i < kTogether && !HasFailure(); ++i) {
      const spec::TensorMap want = instances.expected(first + i);
      ASSERT_TRUE(runs[i].wait().ok());
      instances.expect_right(runs[i], first + i, want);
      taken.insert(instances.output(runs[i], net.steps));
    }
  }
  EXPECT_GE(taken.size(), net.kinds);
}

INSTANTIATE_TEST_SUITE_P(All, ControlFlow, testing::Combine(testing::Range<std::size_t>(0, std::size(kNets)), testing::ValuesIn(ways_and({"stream", "gpu_queue"}))),
                         [](const auto& p) { return std::string(kNets[std::get<0>(p.param)].name) + "_" + std::get<1>(p.param); });

/// Where report 0 says so, one tile takes four seconds: thirty runs take less on a machine that is busy otherwise, too.
GraphPlan sometimes_slow() {
  std::vector<GraphOp> ops;
  ops.push_back({.tiles = 1, .report = 0});
  ops.push_back({.tiles = 1, .edges = {{0, Reads::all}}, .guard_report = 0, .spin_us = 4'000'000});
  for (std::uint32_t i = 1; i < 8; ++i) ops.push_back({.tiles = 4, .edges = {{i, Reads::all}}, .spin_us = 20});
  return GraphPlan(ops);
}

class OneSlowInstance : public testing::TestWithParam<const char*> {};

TEST_P(OneSlowInstance, DelaysNoOther) {
  const GraphPlan plan = sometimes_slow();
  std::uint64_t slow = 0;
  while (plan.expected(1, slow)[1][0] == 0) ++slow;
  EngineOptions options;
  options.policy = GetParam();
  options.slots = 2;
  options.workers_per_run = 2;
  DeviceOptions device;
  device.kind = "host";
  device.workers = 4;
  Engine engine = std::move(Engine::create(open_device(device).value(), plan.program(), options).value());
  ASSERT_TRUE(engine.start().ok());
  ccks::Run late = submit_graph(engine, slow, 1).value();
  std::chrono::nanoseconds longest{0};
  int others = 0;
  for (std::uint64_t seed = slow + 1; others < 30; ++seed) {
    if (plan.expected(1, seed)[1][0] != 0) continue;
    ccks::Run run = submit_graph(engine, seed, 1).value();
    ASSERT_TRUE(run.wait().ok());
    longest = std::max(longest, run.latency());
    ++others;
    expect_graph_outputs(plan, run, seed, 1);
    EXPECT_EQ(late.poll(), RunState::running) << "after " << others << " others, the longest of which took " << longest.count() / 1000 << " us";
    if (HasFailure()) break;
  }
  ASSERT_TRUE(late.wait().ok());
  expect_graph_outputs(plan, late, slow, 1);
}

INSTANTIATE_TEST_SUITE_P(Policies, OneSlowInstance, testing::Values("static", "lookahead", "reactive"), [](const auto& p) { return std::string(p.param); });

}  // namespace
}  // namespace ccks::test
