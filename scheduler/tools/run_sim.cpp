#include "scheduler/tools/run_sim.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <memory>

#include "ccks/worker/generic_ops.hpp"
#include "ccks/worker/tile_hints.hpp"
#include "codegen/explain_gpu.hpp"
#include "scheduler/decision_trace.hpp"
#include "scheduler/tools/sim_engine.hpp"
#include "scheduler/trace_json.hpp"

namespace ccks::run {
namespace {

using gpu::sim::Explorer;
using gpu::sim::Machine;
using gpu::sim::Nanos;
using gpu::sim::SimDevice;

constexpr std::uint32_t kGpuWorkers = 132;            // of an H200
constexpr std::uint64_t kMaxSteps = 20'000'000'000;   // an hour or so of this machine's time
constexpr Nanos kMaxTime = 3'600'000'000'000'000;     // a thousand hours of the other's
constexpr Nanos kClientLookNs = 200;                  // a client that spins on its run
constexpr std::size_t kMostDecisions = 1 << 20;

struct NoBodies {
  static void run(gpu::sim::SimLanes&, const wire::RunFrame&, const wire::OpParams&, std::uint32_t) {}
};

// Time of each tile: what it reads, writes and computes, at its worker's share of the GPU.
class TimedBodies final : public gpu::sim::BodyWatch {
 public:
  TimedBodies(Machine& machine, const SimCosts& costs, bool keep) : machine_(machine), costs_(costs), keep_(keep) {}
  void plan(const plan::PlanView& view, const RunSlot& run, std::span<const std::int64_t> dims) {
    frame_ = run.memory.frame;
    slot_ = run.index;
    op_ns_.clear();
    for (const plan::OpDesc& op : view.ops) {
      const auto value = [&](plan::DimId id) { return id == plan::kNone ? 0.0 : static_cast<double>(dims[id]); };
      const double memory = (value(op.bytes_read) + value(op.bytes_written)) / costs_.bytes_per_ns;
      const double time = std::max(memory, value(op.operations) / costs_.operations_per_ns);
      double tiles = 1;
      for (const plan::DimId grid : op.grid) tiles *= std::max(value(grid), 1.0);
      op_ns_.push_back(static_cast<Nanos>(time / tiles) + costs_.body_ns);
    }
  }
  Nanos begin(std::uint32_t worker, const wire::RunFrame& frame, const wire::OpParams& op, std::uint32_t tile) override {
    const auto index = op_index(frame, op);
    if (keep_) open_.resize(std::max<std::size_t>(open_.size(), worker + 1)), open_[worker] = {machine_.now(), tile};
    return op_ns_[index];
  }
  std::uint32_t end(std::uint32_t worker, const wire::RunFrame& frame, const wire::OpParams& op, std::uint32_t tile) override {
    if (keep_) {
      events_.push_back({worker, op_index(frame, op), slot_, epoch_, tile, 1, open_[worker].since, 0, machine_.now() - open_[worker].since});
    }
    return 0;
  }
  void next_run() { ++epoch_; }
  const std::vector<TraceEvent>& events() const { return events_; }

 private:
  struct Open {
    Nanos since;
    std::uint32_t tile;
  };
  static std::uint32_t op_index(const wire::RunFrame& frame, const wire::OpParams& op) {
    return static_cast<std::uint32_t>(&op - reinterpret_cast<const wire::OpParams*>(reinterpret_cast<const char*>(&frame) + frame.ops));
  }
  Machine& machine_;
  SimCosts costs_;
  bool keep_;
  std::uint64_t frame_ = 0;
  std::uint32_t slot_ = 0, epoch_ = 0;
  std::vector<Nanos> op_ns_;
  std::vector<Open> open_;  // per worker
  std::vector<TraceEvent> events_;
};

class Simulation final : public SimRuns {
 public:
  Simulation(const Options& options, const spec::Program& spec, RunData& data, const Program& program, const SimCosts& costs,
             const gpu::sim::LinkModel& link, bool values, Outcome& outcome)
      : options_(options), spec_(spec), data_(data), program_(program), outcome_(outcome), values_(values),
        machine_(machine_options(link)), bodies_(machine_, costs, !options.trace.empty()),
        device_(machine_, device_options(costs)), engine_(machine_, device_, engine_options(costs), *this),
        decisions_(options.trace.empty() ? 1 : kMostDecisions) {}

  Failure run(const std::atomic<bool>& interrupted) {
    outcome_.device = device_.info();
    engine_.add_sink(decisions_);
    if (const Status made = engine_.set_up(program_.plan()); !made.ok()) return {kInputAtFault, made.to_string()};
    if (const Status bound = bind(); !bound.ok()) return {kInputAtFault, bound.to_string()};
    if (const Status started = engine_.start(); !started.ok()) return {kDeviceError, started.to_string()};
    machine_.explorer().add("client", gpu::sim::Side::host, [&] { client(interrupted); });
    machine_.explorer().run(kMaxSteps, kMaxTime);
    if (interrupted.load(std::memory_order_relaxed)) return {kInterrupted, "interrupted"};  // relaxed: a lone flag
    if (!failure_.empty()) return {kDeviceError, failure_};
    if (!machine_.explorer().stopped()) return {kDeviceError, "the simulated run stands still"};
    return finish();
  }

  void run_ended(const RunSlot& run) override {
    if (run.code != ErrorCode::ok) failure_ = run.message;
    ended_at_ = machine_.now();
  }
  void run_released(const RunSlot&) override {
    released_ = true;
    machine_.explorer().wake(client_, machine_.now());
  }
  void engine_failed(ErrorCode, const char* message) override { failure_ = message; }

 private:
  static gpu::sim::MachineOptions machine_options(const gpu::sim::LinkModel& link) {
    gpu::sim::MachineOptions out;
    out.link = link;
    out.side_by_side = true;
    return out;
  }
  gpu::sim::SimDeviceOptions device_options(const SimCosts& costs) {
    gpu::sim::SimDeviceOptions out;
    out.workers = options_.workers == 0 ? kGpuWorkers : options_.workers;
    out.entry = values_ ? &gpu::sim::sim_worker_main<gpu::sim::SimAtoms, worker::GenericOps>
                        : &gpu::sim::sim_worker_main<gpu::sim::SimAtoms, NoBodies>;
    out.watch = &bodies_;
    out.costs = costs.machine.stages;
    return out;
  }
  SimEngineOptions engine_options(const SimCosts& costs) const {
    SimEngineOptions out;
    out.costs = costs.machine.scheduler;
    out.policy = options_.arm == "static" ? PolicyKind::fixed : parse_policy(options_.policy).value();
    out.spine = parse_spine(options_.spine).value();
    out.slots = options_.slots;
    out.workers_per_run = options_.workers_per_run;
    out.scratch_bytes = worker::kHostScratchBytes;
    out.speculation = {speculate_bytes(options_), options_.wrong_guesses / 100};
    return out;
  }

  Status bind() {
    const plan::PlanView& plan = program_.plan();
    symbols_.resize(plan.symbols.size());
    dims_.resize(plan.dims.size());
    DimValues given;
    for (std::size_t i = 0; i < spec_.symbols.size(); ++i) given.emplace_back(spec_.symbols[i].name, data_.dims()[i]);
    CCKS_RETURN_IF_ERROR(bind_symbols(plan, given, symbols_));
    CCKS_RETURN_IF_ERROR(evaluate_plan(plan, symbols_, dims_));
    if (!values_) return {};
    for (const plan::TensorDesc& tensor : plan.tensors) {
      const auto id = spec_.find_tensor(tensor.name);
      if (!id || (tensor.kind != plan::TensorKind::weight && tensor.kind != plan::TensorKind::input &&
                  tensor.kind != plan::TensorKind::state)) continue;
      if (spec_.tensor(*id).alias_of != spec::kNone) continue;
      Result<std::vector<std::byte>> bytes = data_.bytes(*id);
      if (!bytes.ok()) return bytes.status();
      if (tensor.kind == plan::TensorKind::weight) {
        CCKS_RETURN_IF_ERROR(device_.write(engine_.memory().weights + tensor.offset, bytes->data(), bytes->size()));
      } else {
        inputs_.push_back({&tensor, std::move(*bytes)});
      }
    }
    return {};
  }

  void client(const std::atomic<bool>& interrupted) {
    client_ = machine_.explorer().self();
    for (std::uint32_t i = 0; i < options_.iterations && failure_.empty(); ++i) {
      if (interrupted.load(std::memory_order_relaxed)) break;  // relaxed: a lone flag
      iterate();
    }
    machine_.explorer().stop();
  }

  void iterate() {
    Result<RunSlot*> slot = engine_.acquire(symbols_);
    if (!slot.ok()) {
      failure_ = slot.status().to_string();
      return;
    }
    RunSlot& run = **slot;
    last_ = &run;
    for (const auto& [tensor, bytes] : inputs_) {
      const std::uint64_t base = tensor->kind == plan::TensorKind::state ? engine_.memory().states : run.memory.arena;
      (void)device_.write(base + tensor->offset, bytes.data(), bytes.size());
    }
    bodies_.plan(program_.plan(), run, dims_);
    if (outcome_.tasks_per_iteration == 0) outcome_.tasks_per_iteration = run.instance.tasks();
    released_ = false;
    const Nanos since = machine_.now();
    engine_.submit(run);
    while (!released_) machine_.explorer().sleep(kClientLookNs << 10);
    outcome_.us.push_back(static_cast<double>(ended_at_ - since) / 1e3);
    bodies_.next_run();
  }

  Failure finish() {
    const SchedulerStats& stats = engine_.stats();
    outcome_.stats.tasks_sent = stats.tasks_sent.get();
    outcome_.stats.publications = stats.publications.get();
    outcome_.stats.skipped_tiles = stats.skipped_tiles.get();
    outcome_.stats.scheduler_busy_ns = stats.busy_ns.get();
    outcome_.stats.drafts = stats.drafts.get();
    outcome_.stats.drafts_dropped = stats.drafts_dropped.get();
    outcome_.stats.guesses = stats.guesses.get();
    outcome_.stats.guesses_right = stats.guesses_right.get();
    outcome_.stats.guess_tasks = stats.guess_tasks.get();
    outcome_.stats.guess_bytes = stats.guess_bytes.get();
    outcome_.stats.guess_bytes_wrong = stats.guess_bytes_wrong.get();
    if (values_) {
      collect_reports();
      if (Failure failure = collect_outputs()) return failure;
    }
    if (options_.trace.empty()) return {};
    const Status written = write_trace_json(options_.trace, program_.plan(), outcome_.device, bodies_.events(), decisions_.read());
    return written.ok() ? Failure{} : Failure{kInputAtFault, written.to_string()};
  }

  void collect_reports() {
    const plan::PlanView& plan = program_.plan();
    for (std::uint32_t r = 0; r < plan.reports.size(); ++r) {
      if (!last_->progress.report_seen(r)) continue;
      const plan::ReportDesc& report = plan.reports[r];
      const auto elements = static_cast<std::size_t>(dims_[report.elements]);
      const std::byte* from = last_->instance.reports() + report.offset;
      outcome_.reports.emplace_back(report.name, decode(report.dtype, {from, elements * 4}));
    }
  }

  Failure collect_outputs() {
    std::map<std::string, std::vector<std::byte>> outputs;
    for (const plan::TensorDesc& tensor : program_.plan().tensors) {
      if (tensor.kind != plan::TensorKind::output) continue;
      std::vector<std::byte>& bytes = outputs[tensor.name];
      bytes.resize(tensor_bytes(tensor, dims_));
      (void)device_.read(bytes.data(), last_->memory.arena + tensor.offset, bytes.size());
    }
    for (const auto& [name, path] : options_.outputs) {
      const spec::TensorId id = *spec_.find_tensor(name);
      const std::vector<std::int64_t> shape = data_.shape(id);
      const Status written = write_npy(path, {spec_.tensor(id).dtype, shape, outputs[name]});
      if (!written.ok()) return {kInputAtFault, written.to_string()};
    }
    if (!options_.verify) return {};
    Result<Verification> result = verify(data_, outputs);
    if (!result.ok()) return {kInputAtFault, result.status().to_string()};
    outcome_.verified = true;
    outcome_.verification = *result;
    return {};
  }

  const Options& options_;
  const spec::Program& spec_;
  RunData& data_;
  Program program_;
  Outcome& outcome_;
  bool values_;
  Machine machine_;
  TimedBodies bodies_;
  SimDevice device_;
  SimEngine<gpu::sim::SimAtoms> engine_;
  DecisionTrace decisions_;
  std::vector<std::int64_t> symbols_, dims_;
  std::vector<std::pair<const plan::TensorDesc*, std::vector<std::byte>>> inputs_;
  Explorer::Agent client_ = Explorer::kNobody;
  RunSlot* last_ = nullptr;
  bool released_ = false;
  Nanos ended_at_ = 0;
  std::string failure_;
};

// Values decide what runs, or are asked for.
bool needs_values(const Options& options, const plan::PlanView& plan) {
  return options.verify || !options.outputs.empty() || !plan.reports.empty();
}

Failure refuse(const Options& options) {
  if (options.arm != "copilot" && options.arm != "static") return {kUsage, fmt::format("--device sim: arm {} is not simulated", options.arm)};
  if (!options.module.empty() || options.code == "jit") return {kUsage, "--device sim runs the generic worker only: no --module, no --code jit"};
  if (!options.record.empty() || !options.replay.empty()) return {kUsage, "--device sim neither records nor replays"};
  return {};
}

}  // namespace

Result<SimCosts> sim_costs(const std::string& gpu, std::uint32_t workers) {
  const Result<codegen::GpuFigures> figures = codegen::gpu_figures(gpu);
  if (!figures.ok()) return figures.status();
  SimCosts out;
  out.bytes_per_ns = figures->bytes_per_s / 1e9 / workers;
  out.operations_per_ns = figures->operations_per_s / 1e9 / workers;
  out.machine = gpu::sim::h200_costs();  // whichever GPU it is: no other has been measured
  return out;
}

Failure run_simulated(const Options& options, const spec::Program& program, RunData& data, const std::atomic<bool>& interrupted,
                      Outcome& outcome) {
  if (Failure refused = refuse(options)) return refused;
  const Result<gpu::sim::LinkModel> link = gpu::sim::parse_link(options.link);
  if (!link.ok()) return {kUsage, link.status().message()};
  const std::uint32_t workers = options.workers == 0 ? kGpuWorkers : options.workers;
  const Result<SimCosts> costs = sim_costs(options.gpu, workers);
  if (!costs.ok()) return {kUsage, costs.status().message()};
  Options generic = options;
  generic.code = "generic";
  Result<Program> planned = load_program(generic, program, {"cuda", "", options.workers_per_run > 0 ? options.workers_per_run : workers}, outcome.code);  // its tile sizes
  if (!planned.ok()) return {kInputAtFault, planned.status().message()};
  Simulation simulation(options, program, data, *planned, *costs, *link, needs_values(options, planned->plan()), outcome);
  return simulation.run(interrupted);
}

}  // namespace ccks::run
