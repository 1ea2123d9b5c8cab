// Differential test: random specs through parser, planner, checker, co-pilot and workers against the reference
// interpreter. Seeds take turns over policies and arms; each runs several times in one engine, states carried on.
// CCKS_DIFFERENTIAL_SEEDS sets how many seeds (default 40 a shard); CCKS_DIFFERENTIAL_DEVICE the device (default host).
#include <gtest/gtest.h>

#include <cstdlib>
#include <map>

#include "ccks/engine.hpp"
#include "spec/parse.hpp"
#include "spec/reference.hpp"
#include "tests/support/engine_runs.hpp"
#include "tests/support/random_program.hpp"
#include "tests/support/ways.hpp"

namespace ccks::test {
namespace {

constexpr std::uint64_t kShards = 8;

std::uint64_t seeds_per_shard() {
  const char* text = std::getenv("CCKS_DIFFERENTIAL_SEEDS");
  return text == nullptr ? 40 : std::strtoull(text, nullptr, 10);
}

std::string device_kind() {
  const char* text = std::getenv("CCKS_DIFFERENTIAL_DEVICE");
  return text == nullptr ? "host" : text;
}

// One random program, bound to values, and what the reference says of each of its runs.
class Case {
 public:
  explicit Case(std::uint64_t seed) : random_(random_program(seed)), seed_(seed) {
    spec::ParseResult parsed = spec::parse_text(random_.yaml, "random.yaml");
    EXPECT_TRUE(parsed.ok) << spec::format_diagnostics(parsed) << random_.yaml;
    program_ = std::move(parsed.program);
    for (const spec::Symbol& symbol : program_.symbols) dims_.push_back(value_of(symbol));
    for (spec::TensorId id = 0; id < program_.tensors.size(); ++id) {
      const spec::Tensor& tensor = program_.tensor(id);
      if (tensor.kind == spec::TensorKind::input || tensor.kind == spec::TensorKind::weight) {
        bound_[tensor.name] = spec::seeded_values(program_, id, dims_, seed_);
      }
    }
  }

  const std::string& yaml() const { return random_.yaml; }
  const spec::Program& program() const { return program_; }
  std::vector<std::byte> bytes(spec::TensorId id) const {
    const spec::DenseTensor& values = bound_.at(program_.tensor(id).name);
    const spec::Dtype dtype = program_.tensor(id).dtype;
    std::vector<std::byte> out(values.values.size() * wire::dtype_bytes(dtype));
    spec::pack_values(dtype, values.values, out);
    return out;
  }
  std::vector<std::pair<std::string_view, std::int64_t>> dims() const {
    std::vector<std::pair<std::string_view, std::int64_t>> out;
    for (std::size_t i = 0; i < dims_.size(); ++i) out.emplace_back(program_.symbols[i].name, dims_[i]);
    return out;
  }
  // What one more run gives; states go on from one call to the next.
  Result<spec::TensorMap> reference(spec::TensorMap& states) const {
    spec::TensorMap bound = bound_;
    for (const auto& [name, values] : states) bound[name] = values;
    Result<spec::TensorMap> out = spec::interpret(program_, dims_, bound);
    if (!out.ok()) return out;
    for (const spec::Tensor& tensor : program_.tensors) {
      if (tensor.kind == spec::TensorKind::state) states[tensor.name] = out->at(tensor.name);
    }
    return out;
  }

 private:
  std::int64_t value_of(const spec::Symbol& symbol) const {
    for (const auto& [name, value] : random_.set) {
      if (name == symbol.name) return value;
    }
    return symbol.preset.value_or(symbol.range.lo);
  }

  RandomProgram random_;
  std::uint64_t seed_;
  spec::Program program_;
  std::vector<std::int64_t> dims_;
  spec::TensorMap bound_;
};

// Those of the co-pilot, and the other arms that the device has.
std::vector<std::string> ways() {
  return device_kind() == "cuda" ? ways_and({"stream", "gpu_queue", "graph", "graph_pdl"}) : ways_and({"stream", "gpu_queue"});
}

Result<Engine> open_engine(const Case& test, const std::string& way, const std::string& transport) {
  DeviceOptions device;
  device.kind = device_kind();
  device.transport = transport;
  Result<std::unique_ptr<Device>> opened = open_device(device);
  if (!opened.ok()) return opened.status();
  SpecOptions options;
  options.device = (*opened)->info().kind;
  options.workers_hint = (*opened)->info().workers;
  Result<Program> program = Program::from_spec_text(test.yaml(), "random.yaml", options);
  if (!program.ok()) return program.status();
  EngineOptions engine = options_of(way);
  engine.slots = 2;
  return Engine::create(std::move(*opened), std::move(*program), engine);
}

void bind_and_start(const Case& test, Engine& engine) {
  for (spec::TensorId id = 0; id < test.program().tensors.size(); ++id) {
    const spec::Tensor& tensor = test.program().tensor(id);
    if (tensor.kind != spec::TensorKind::weight) continue;
    const Status bound = engine.bind_weight(tensor.name, test.bytes(id));
    ASSERT_TRUE(bound.ok()) << bound.to_string();
  }
  const Status started = engine.start();
  ASSERT_TRUE(started.ok()) << started.to_string();
}

void expect_close(const Case& test, const Run& run, const spec::TensorMap& want) {
  for (const spec::Tensor& tensor : test.program().tensors) {
    if (tensor.kind != spec::TensorKind::output) continue;
    Result<std::uint64_t> bytes = run.tensor_bytes(tensor.name);
    ASSERT_TRUE(bytes.ok()) << bytes.status().to_string();
    std::vector<std::byte> raw(*bytes);
    ASSERT_TRUE(run.read_output(tensor.name, raw).ok());
    std::vector<double> got(raw.size() / wire::dtype_bytes(tensor.dtype));
    spec::unpack_values(tensor.dtype, raw, got);
    const double error = spec::max_relative_error(got, want.at(tensor.name));
    EXPECT_LE(error, spec::default_tolerance(tensor.dtype)) << "output " << tensor.name;
  }
}

void expect_states(const Case& test, Engine& engine, const spec::TensorMap& states) {
  for (const spec::Tensor& tensor : test.program().tensors) {
    if (tensor.kind != spec::TensorKind::state) continue;
    const spec::DenseTensor& want = states.at(tensor.name);
    std::vector<std::byte> raw(want.values.size() * wire::dtype_bytes(tensor.dtype));
    ASSERT_TRUE(engine.read_state(0, tensor.name, raw).ok());
    std::vector<double> got(want.values.size());
    spec::unpack_values(tensor.dtype, raw, got);
    EXPECT_LE(spec::max_relative_error(got, want), spec::default_tolerance(tensor.dtype))
        << "state " << tensor.name;
  }
}

void run_seed(std::uint64_t seed, const std::string& way, const std::string& transport) {
  const Case test(seed);
  Result<Engine> engine = open_engine(test, way, transport);
  ASSERT_TRUE(engine.ok()) << engine.status().to_string() << "\n" << test.yaml();
  ASSERT_NO_FATAL_FAILURE(bind_and_start(test, *engine));
  spec::TensorMap states;
  for (int repeat = 0; repeat < 2; ++repeat) {
    RunRequest request;
    request.dims = test.dims();
    std::vector<std::vector<std::byte>> kept;
    for (spec::TensorId id = 0; id < test.program().tensors.size(); ++id) {
      if (test.program().tensor(id).kind != spec::TensorKind::input) continue;
      kept.push_back(test.bytes(id));
      request.inputs.push_back({test.program().tensor(id).name, kept.back()});
    }
    Result<Run> run = engine->submit(std::move(request));
    ASSERT_TRUE(run.ok()) << run.status().to_string();
    const Status done = run->wait_for(std::chrono::seconds(60));
    ASSERT_TRUE(done.ok()) << done.to_string();
    Result<spec::TensorMap> want = test.reference(states);
    ASSERT_TRUE(want.ok()) << want.status().to_string();
    expect_close(test, *run, *want);
  }
  expect_states(test, *engine, states);
}

class Differential : public testing::TestWithParam<std::uint64_t> {};

TEST_P(Differential, AgreesWithTheReference) {
  DeviceOptions device;
  device.kind = device_kind();
  const auto opened = open_device(device);
  if (!opened.ok() && device.kind != "host") GTEST_SKIP() << opened.status().to_string();
  const std::vector<std::string> all = ways();
  const bool host = device_kind() == "host";
  for (std::uint64_t i = 0; i < seeds_per_shard(); ++i) {
    const std::uint64_t seed = i * kShards + GetParam();
    SCOPED_TRACE("seed " + std::to_string(seed));
    const std::string transport = host && seed % 2 == 1 ? "pinned" : "auto";
    run_seed(seed, all[i % all.size()], transport);
    if (HasFailure()) {
      ADD_FAILURE() << random_program(seed).yaml;
      return;
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Shards, Differential, testing::Range<std::uint64_t>(0, kShards));

}  // namespace
}  // namespace ccks::test
