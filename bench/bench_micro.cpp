// Question: what does a program of many small dependent ops take, from submit to done, with everything resident?
// Arms: every way to run one plan. micro.py runs the same programs in PyTorch beside these.
//
// Latency is what a client sees: submit() to the moment its spinning poll() says done. Inputs lie in the slots already. Runs follow
// each other at once, or after pauses of random length, as requests of a server that has little to do.
#include "bench/bench_micro.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <optional>
#include <random>

#include "bench/bench_report.hpp"
#include "ccks/engine.hpp"
#include "scheduler/tools/run_code.hpp"
#include "scheduler/tools/run_session.hpp"
#include "spec/parse.hpp"

namespace ccks::bench {
namespace {

struct Workload {
  const char* name;
  const char* spec;
  std::vector<std::pair<std::string, std::int64_t>> set;
  double goal_us;
};

const std::vector<Workload>& workloads() {
  static const std::vector<Workload> kAll = {
      {"micro/chain200", "chain200", {}, 60},
      {"micro/chain200_fused", "chain200_fused", {}, 20},
      {"micro/mlp6x256_B1", "mlp6x256", {}, 14},
      {"micro/mlp6x256_B8", "mlp6x256", {{"n", 8}}, 18},
      {"micro/attn8", "attn8", {}, 30},
  };
  return kAll;
}

struct Arm {
  const char* name;
  const char* arm;
  const char* policy;
};
constexpr Arm kArms[] = {
    {"copilot", "copilot", "lookahead"},     {"reactive", "copilot", "reactive"}, {"static", "static", "static"},
    {"gpu_queue", "gpu_queue", "lookahead"}, {"stream", "stream", "lookahead"},   {"graph", "graph", "lookahead"},
    {"graph_pdl", "graph_pdl", "lookahead"},
};
constexpr std::uint32_t kSlots = 4;
constexpr std::uint32_t kWarmRuns = 20;

using Bytes = std::map<std::string, std::vector<std::byte>>;

class Measurement {
 public:
  Measurement(const Workload& workload, const Arm& arm, const MicroOptions& options)
      : workload_(workload), arm_(arm), options_(options) {}

  Status run() {
    CCKS_RETURN_IF_ERROR(open());
    CCKS_RETURN_IF_ERROR(fill_slots());
    for (std::uint32_t i = 0; i < kWarmRuns + options_.runs; ++i) CCKS_RETURN_IF_ERROR(sample(i >= kWarmRuns));
    CCKS_RETURN_IF_ERROR(check_last());
    print();
    return {};
  }

 private:
  Status open() {
    run_options_.spec = fmt::format("{}/{}.yaml", options_.specs, workload_.spec);
    run_options_.dims = workload_.set;
    run_options_.code = options_.code;
    run_options_.arm = arm_.arm;
    spec::ParseOptions parse;
    parse.constants = workload_.set;
    spec::ParseResult parsed = spec::parse_file(run_options_.spec, parse);
    if (!parsed.ok) return {ErrorCode::not_found, spec::format_diagnostics(parsed)};
    spec_ = std::move(parsed.program);
    auto data = run::RunData::open(spec_, {}, {}, run_options_);
    if (!data.ok()) return data.status();
    data_.emplace(std::move(*data));
    auto device = open_device({.kind = options_.device});
    if (!device.ok()) return device.status();
    info_ = (*device)->info();
    auto program = run::load_program(run_options_, spec_, {info_.kind, info_.architecture, info_.workers}, code_);
    if (!program.ok()) return program.status();
    EngineOptions engine_options;
    engine_options.arm = arm_.arm;
    engine_options.policy = arm_.policy;
    engine_options.slots = kSlots;
    engine_options.prime_runs = !options_.no_prime;
    auto engine = Engine::create(std::move(*device), std::move(*program), engine_options);
    if (!engine.ok()) return engine.status();
    engine_.emplace(std::move(*engine));
    return bind();
  }

  Status bind() {
    for (spec::TensorId id = 0; id < spec_.tensors.size(); ++id) {
      const spec::Tensor& tensor = spec_.tensor(id);
      if (tensor.alias_of != spec::kNone) continue;
      const bool weight = tensor.kind == spec::TensorKind::weight;
      if (tensor.kind == spec::TensorKind::output) outputs_[tensor.name] = {};
      if (!weight && tensor.kind != spec::TensorKind::input) continue;
      auto bytes = data_->bytes(id);
      if (!bytes.ok()) return bytes.status();
      if (weight) CCKS_RETURN_IF_ERROR(engine_->bind_weight(tensor.name, *bytes));
      if (!weight) inputs_[tensor.name] = std::move(*bytes);
    }
    return engine_->start();
  }

  /// As many runs at once as there are slots, so that every slot holds the inputs; each is verified.
  Status fill_slots() {
    std::vector<Run> runs;
    for (std::uint32_t i = 0; i < kSlots; ++i) {
      RunRequest request;
      for (const auto& [name, bytes] : inputs_) request.inputs.push_back({name, bytes});
      auto run = engine_->submit(std::move(request));
      if (!run.ok()) return run.status();
      runs.push_back(std::move(*run));
    }
    for (Run& run : runs) {
      CCKS_RETURN_IF_ERROR(run.wait());
      CCKS_RETURN_IF_ERROR(check(run));
    }
    return {};
  }

  Status check(const Run& run) {
    for (auto& [name, bytes] : outputs_) {
      auto size = run.tensor_bytes(name);
      if (!size.ok()) return size.status();
      bytes.resize(*size);
      CCKS_RETURN_IF_ERROR(run.read_output(name, bytes));
    }
    if (!verified_.empty()) {
      if (outputs_ == verified_) return {};
      return {ErrorCode::invalid_data, "two runs on the same inputs gave different results"};
    }
    auto verification = run::verify(*data_, outputs_);
    if (!verification.ok()) return verification.status();
    error_ = verification->max_rel_err;
    verified_ = outputs_;
    if (!verification->passed) return {ErrorCode::invalid_data, "not what the reference says: " + verification->worst};
    return {};
  }

  void pause() {
    const double ns = 1e3 * options_.pause_us * std::uniform_real_distribution(0.5, 1.5)(random_);
    for (const std::uint64_t since = now_ns(); static_cast<double>(now_ns() - since) < ns;) {
    }
  }

  Status sample(bool keep) {
    last_ = Run();
    if (options_.pause_us > 0) pause();
    const std::uint64_t start = now_ns();
    auto run = engine_->submit({});
    if (!run.ok()) return run.status();
    while (run->poll() < RunState::done) {
    }
    const std::uint64_t end = now_ns();
    if (keep) us_.push_back(static_cast<double>(end - start) / 1e3);
    last_ = std::move(*run);
    return last_.wait();
  }

  Status check_last() {
    CCKS_RETURN_IF_ERROR(check(last_));
    last_ = Run();
    return {};
  }

  void print() const {
    Line line(workload_.name, arm_.name);
    line.text("device", info_.name).text("code", code_.kind).number("workers", info_.workers);
    if (options_.pause_us > 0) line.number("pause_us", options_.pause_us);
    line.number("runs_primed", static_cast<double>(engine_->stats().runs_primed));
    line.number("goal_us", workload_.goal_us).number("max_rel_err", error_).samples("us", us_).print();
  }

  const Workload& workload_;
  const Arm& arm_;
  const MicroOptions& options_;
  run::Options run_options_;
  spec::Program spec_;
  std::optional<run::RunData> data_;
  run::CodeReport code_;
  DeviceInfo info_;
  Bytes inputs_, outputs_, verified_;
  std::optional<Engine> engine_;
  Run last_;
  double error_ = 0;
  std::vector<double> us_;
  std::mt19937 random_{1};
};

bool wanted(const std::vector<std::string>& names, const char* name) {
  return names.empty() || std::find(names.begin(), names.end(), name) != names.end();
}

template <class Named>
std::vector<std::string> names_of(const Named& all) {
  std::vector<std::string> names;
  for (const auto& one : all) names.emplace_back(one.name);
  return names;
}

}  // namespace

std::vector<std::string> micro_workloads() { return names_of(workloads()); }
std::vector<std::string> micro_arms() { return names_of(kArms); }

int bench_micro(const MicroOptions& asked) {
  // One device for all arms: `auto` asked for again, behind a device that has failed, would be another.
  MicroOptions options = asked;
  {
    const auto device = open_device({.kind = options.device});
    if (!device.ok()) return fmt::print(stderr, "{}\n", device.status().to_string()), 4;
    options.device = (*device)->info().kind;
  }
  int worst = 0;
  for (const Workload& workload : workloads()) {
    if (!wanted(options.only, workload.name)) continue;
    for (const Arm& arm : kArms) {
      if (!wanted(options.arms, arm.name)) continue;
      const Status status = Measurement(workload, arm, options).run();
      if (status.ok()) continue;
      fmt::print(stderr, "{}, {}: {}\n", workload.name, arm.name, status.to_string());
      // An arm that a device does not have is no failure of the bench.
      if (status.code() == ErrorCode::unsupported) continue;
      worst = std::max(worst, status.code() == ErrorCode::invalid_data ? 3 : 4);
    }
  }
  return worst;
}

}  // namespace ccks::bench
