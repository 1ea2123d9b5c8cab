#include "tests/sim/figures.hpp"

#include <algorithm>
#include <cstdlib>
#include <fstream>

#include "ccks/wire/ring.hpp"
#include "scheduler/tools/sim_engine.hpp"
#include "tests/paths.hpp"
#include "tests/support/engine_graph.hpp"

namespace ccks::test::sim {
namespace {

using gpu::sim::Explorer;
using gpu::sim::Nanos;
using scheduler::PolicyKind;
using scheduler::Spine;

constexpr std::uint32_t kRows = 2;    // of what a report calls for, as in the reaction bench
constexpr std::uint32_t kPairs = 8;   // reports of a run
constexpr std::uint32_t kRounds = 20; // runs measured, one at a time
// What a body of the reaction bench takes that looks at who was before it, three loads of what others have stored: 448 cycles with two
// stamps of the clock.
constexpr Nanos kStampNs = 226;

struct EmptyOps {
  static void run(gpu::sim::SimLanes&, const wire::RunFrame&, const wire::OpParams&, wire::u32) {}
};

/// Reports say that kRows rows exist.
struct ReportingOps {
  static void run(gpu::sim::SimLanes&, const wire::RunFrame& frame, const wire::OpParams& op, wire::u32) {
    if (op.report < 0) return;
    const auto* bytes = reinterpret_cast<const char*>(&frame);
    const auto* operands = reinterpret_cast<const wire::OperandParams*>(bytes + frame.operands) + op.operand_first;
    *reinterpret_cast<wire::i32*>(frame.arena + operands[2].offset) = kRows;
  }
};

double median(std::vector<double> values) {
  if (values.empty()) return 0;
  std::sort(values.begin(), values.end());
  return values[values.size() / 2];
}

gpu::sim::MachineOptions machine_options(const Simulated& simulated) {
  gpu::sim::MachineOptions out;
  out.link = simulated.link;
  out.side_by_side = true;
  return out;
}

/// One plan, runs of it, `rounds` times `runs` in flight; the first round is not measured.
class Bench : public run::SimRuns, public gpu::sim::BodyWatch {
 public:
  Bench(const Simulated& simulated, const GraphPlan& plan, run::SimEngineOptions options, HostWorkerEntry entry)
      : plan_(plan), runs_(options.slots), machine_(machine_options(simulated)),
        device_(machine_, device_options(simulated, entry)), engine_(machine_, device_, with_costs(options, simulated), *this) {}

  /// Nanoseconds of the last round; 0: it failed.
  double play(std::uint32_t rounds) {
    if (!engine_.set_up(plan_.view()).ok() || !engine_.start().ok()) return 0;
    machine_.explorer().add("client", gpu::sim::Side::host, [this, rounds] { client(rounds); });
    machine_.explorer().run(~std::uint64_t{0}, ~std::uint64_t{0} - 1);
    return failed_ ? 0 : static_cast<double>(took_);
  }
  void run_ended(const scheduler::RunSlot& run) override {
    failed_ |= run.code != ErrorCode::ok;
    ended_at_ = machine_.now();
  }
  void run_released(const scheduler::RunSlot&) override { --open_; }
  void engine_failed(ErrorCode, const char*) override { failed_ = true; }
  Nanos begin(wire::u32, const wire::RunFrame&, const wire::OpParams&, wire::u32) override { return 0; }
  wire::u32 end(wire::u32, const wire::RunFrame&, const wire::OpParams&, wire::u32) override { return 0; }

 protected:
  Nanos now() const { return machine_.now(); }
  bool warm() const { return warm_; }

 private:
  gpu::sim::SimDeviceOptions device_options(const Simulated& simulated, HostWorkerEntry entry) {
    gpu::sim::SimDeviceOptions out;
    out.workers = simulated.workers;
    out.entry = entry;
    out.costs = simulated.costs.stages;
    out.watch = this;
    return out;
  }
  static run::SimEngineOptions with_costs(run::SimEngineOptions options, const Simulated& simulated) {
    options.costs = simulated.costs.scheduler;
    return options;
  }
  void submit_all() {
    const std::int64_t n = 1;
    for (std::uint32_t i = 0; i < runs_; ++i) {
      auto slot = engine_.acquire({&n, 1});
      if (!slot.ok()) return;
      ++open_;
      engine_.submit(**slot);
    }
    while (open_ > 0 && !failed_) machine_.explorer().sleep(1000);
  }
  void client(std::uint32_t rounds) {
    submit_all();  // frames are written, caches warm
    warm_ = true;
    for (std::uint32_t i = 0; i < rounds && !failed_; ++i) {
      const Nanos since = machine_.now();
      submit_all();
      took_ = ended_at_ - since;
    }
    machine_.explorer().stop();
  }

  const GraphPlan& plan_;
  std::uint32_t runs_;
  gpu::sim::Machine machine_;
  gpu::sim::SimDevice device_;
  run::SimEngine<gpu::sim::SimAtoms> engine_;
  std::uint32_t open_ = 0;
  bool failed_ = false, warm_ = false;
  Nanos ended_at_ = 0, took_ = 0;
};

GraphPlan dispatch_plan(const DispatchCase& dispatch) {
  std::vector<GraphOp> ops(dispatch.ops);
  for (std::uint32_t i = 0; i < dispatch.ops; ++i) {
    ops[i].bare = dispatch.bare;
    ops[i].tiles = dispatch.tiles;
    if (dispatch.chain && i > 0) ops[i].edges = {{i - 1, Reads::all}};
  }
  return GraphPlan(ops, 1);
}

/// report, its rows, report, its rows, ...
GraphPlan report_chain() {
  std::vector<GraphOp> ops(2 * kPairs);
  for (std::uint32_t i = 0; i < ops.size(); ++i) {
    if (i > 0) ops[i].edges = {{i - 1, Reads::all}};
    if (i % 2 == 0) {
      ops[i].report = static_cast<int>(i / 2);
    } else {
      ops[i].tiles = kRows;
      ops[i].dynamic_report = static_cast<int>(i / 2);
    }
  }
  return GraphPlan(ops, 1);
}

/// Notes when the bodies of a report chain ran. They come in pairs, one run at a time.
class ReactionBench final : public Bench {
 public:
  ReactionBench(const Simulated& simulated, const GraphPlan& plan, run::SimEngineOptions options, HostWorkerEntry entry)
      : Bench(simulated, plan, options, entry), look_ns_(simulated.link.read_ns + simulated.link.crowd_ns) {}
  Nanos begin(wire::u32, const wire::RunFrame&, const wire::OpParams& op, wire::u32 tile) override {
    if (warm() && op.report < 0) delays_[tile].push_back(static_cast<double>(now() - reported_at_));
    // Each report comes at another moment between two looks at the host's memory: golden sections of a look.
    return (op.dims[1] > 0 ? kStampNs : 0) + (op.report >= 0 ? reports_++ * 618 % 1000 * look_ns_ / 1000 : 0);
  }
  wire::u32 end(wire::u32, const wire::RunFrame&, const wire::OpParams& op, wire::u32) override {
    if (op.report >= 0) reported_at_ = now();
    return 0;
  }
  const std::vector<double>& delays(std::uint32_t row) const { return delays_[row]; }

 private:
  Nanos reported_at_ = 0;
  Nanos look_ns_;
  std::uint64_t reports_ = 0;
  std::vector<double> delays_[kRows];
};

template <class Bodies>
HostWorkerEntry entry_of() {
  return &gpu::sim::sim_worker_main<gpu::sim::SimAtoms, Bodies>;
}

}  // namespace

double predict_dispatch(const DispatchCase& dispatch, const Simulated& simulated) {
  run::SimEngineOptions options;
  options.policy = dispatch.policy;
  options.spine = dispatch.spine;
  options.slots = dispatch.runs;
  const GraphPlan plan = dispatch_plan(dispatch);
  return Bench(simulated, plan, options, entry_of<EmptyOps>()).play(1);
}

Reaction predict_reaction(PolicyKind policy, const Simulated& simulated) {
  run::SimEngineOptions options;
  options.policy = policy;
  options.slots = 1;
  if (policy == PolicyKind::fixed) options.spine = Spine::whole;
  const GraphPlan plan = report_chain();
  ReactionBench bench(simulated, plan, options, entry_of<ReportingOps>());
  if (bench.play(kRounds) == 0) return {};
  return {median(bench.delays(0)), median(bench.delays(1))};
}

double predict_ping_pong(const Simulated& simulated) {
  constexpr std::uint32_t kSlots = 64, kTurns = 200;
  gpu::sim::Machine machine(machine_options(simulated));
  std::vector<wire::Record> records(kSlots);
  std::vector<wire::Task> tasks(kSlots);
  std::uint32_t value = 0;
  std::vector<double> took;
  const gpu::sim::SimAtoms atoms{&machine};
  machine.explorer().add("kernel", gpu::sim::Side::device, [&] {
    wire::RingWriter<wire::Record, gpu::sim::SimAtoms> outbox(records.data(), kSlots, 0, atoms);
    wire::RingConsumer<wire::Task, gpu::sim::SimAtoms> inbox(tasks.data(), kSlots, 0, atoms);
    wire::Task task;
    for (std::uint32_t round = 0; round < kTurns; ++round) {
      const Nanos since = machine.now();
      atoms.link_store_relaxed(&value, round);  // relaxed: published by the record's [R1]
      outbox.put_release({round, 0, 0, 0, 0});  // [R1]
      while (!inbox.poll(task)) {               // [R2]
      }
      took.push_back(static_cast<double>(machine.now() - since));
    }
    machine.explorer().stop();
  });
  machine.explorer().add("host", gpu::sim::Side::host, [&] {
    wire::RingConsumer<wire::Record, gpu::sim::SimAtoms> outbox(records.data(), kSlots, 0, atoms);
    wire::RingWriter<wire::Task, gpu::sim::SimAtoms> inbox(tasks.data(), kSlots, 0, atoms);
    wire::Record record;
    for (;;) {
      if (outbox.poll(record)) inbox.put_release({atoms.link_load_relaxed(&value), 0, 0, 0, 0});  // [R2], [R1]; relaxed: as above
    }
  });
  machine.explorer().run(~std::uint64_t{0}, ~std::uint64_t{0} - 1);
  return median(took);
}

namespace {

Figure chain(const char* arm, bool held, const DispatchCase& dispatch) {
  return {"dispatch", arm, "ns_per_layer_p50", held,
          [dispatch](const Simulated& s) { return predict_dispatch(dispatch, s) / dispatch.ops / dispatch.runs; }};
}

Figure independent(const char* arm, bool held, DispatchCase dispatch) {
  dispatch.chain = false;
  dispatch.runs = 8;
  return {"dispatch", arm, "million_tasks_per_second_p50", held, [dispatch](const Simulated& s) {
            const double ns = predict_dispatch(dispatch, s);
            return ns == 0 ? 0 : 1e3 * dispatch.ops * dispatch.tiles * dispatch.runs / ns;
          }};
}

Figure reaction(const char* arm, bool held, PolicyKind policy, double Reaction::* which) {
  return {"reaction", arm, "ns_p50", held, [policy, which](const Simulated& s) { return predict_reaction(policy, s).*which; }};
}

}  // namespace

const std::vector<Figure>& figures() {
  constexpr auto kStatic = PolicyKind::fixed, kAhead = PolicyKind::lookahead, kReactive = PolicyKind::reactive;
  constexpr auto kWhole = Spine::whole, kFitting = Spine::fitting, kTiles = Spine::tiles;
  constexpr std::uint32_t kWide = 4 * 132;
  static const std::vector<Figure> all = {
      chain("chain, static, one run at a time", true, {kStatic, kWhole, 200}),
      chain("chain, static, runs back to back", true, {kStatic, kWhole, 200, 132, true, true, 8}),
      chain("chain, copilot, one run at a time", true, {kAhead, kFitting, 200}),
      chain("chain, copilot, runs back to back", true, {kAhead, kFitting, 200, 132, true, true, 8}),
      chain("chain, copilot, tiles, one run at a time", true, {kAhead, kTiles, 100}),
      chain("chain, copilot, tiles, runs back to back", true, {kAhead, kTiles, 50, 132, true, true, 8}),
      chain("chain of ops with operands, static, one run at a time", true, {kStatic, kWhole, 200, 132, true, false}),
      chain("chain of ops with operands, static, runs back to back", true, {kStatic, kWhole, 200, 132, true, false, 8}),
      chain("chain of ops with operands, copilot, one run at a time", true, {kAhead, kFitting, 200, 132, true, false}),
      chain("chain of ops with operands, copilot, runs back to back", true, {kAhead, kFitting, 200, 132, true, false, 8}),
      chain("chain of ops with operands, copilot, tiles, one run at a time", true, {kAhead, kTiles, 100, 132, true, false}),
      chain("chain of ops with operands, copilot, tiles, runs back to back", true, {kAhead, kTiles, 50, 132, true, false, 8}),
      independent("independent, static, ops of four tasks a worker", true, {kStatic, kWhole, 64, kWide}),
      independent("independent, copilot, ops of four tasks a worker", true, {kAhead, kFitting, 64, kWide}),
      independent("independent, copilot, ops of one task", true, {kAhead, kFitting, 512, 1}),
      independent("independent, copilot, tiles, ops of four tasks a worker", true, {kAhead, kTiles, 32, kWide}),
      independent("independent, copilot, tiles, ops of one task", true, {kAhead, kTiles, 512, 1}),
      independent("independent, reactive, ops of four tasks a worker", true, {kReactive, kFitting, 32, kWide}),
      independent("independent, reactive, ops of one task", true, {kReactive, kFitting, 512, 1}),
      {"reaction", "raw ping-pong", "ns_p50", true, predict_ping_pong},
      reaction("lookahead, another worker", true, kAhead, &Reaction::another_ns),
      reaction("lookahead, same worker", true, kAhead, &Reaction::same_ns),
      reaction("reactive, another worker", true, kReactive, &Reaction::another_ns),
      reaction("reactive, same worker", true, kReactive, &Reaction::same_ns),
      reaction("static, another worker", true, kStatic, &Reaction::another_ns),
      reaction("static, same worker", true, kStatic, &Reaction::same_ns),
  };
  return all;
}

double recorded(const std::string& file, const Figure& figure) {
  const std::string path = file.find('/') == std::string::npos ? std::string(CCKS_SOURCE_DIR) + "/bench/results/" + file : file;
  const std::string bench = std::string("\"bench\": \"") + figure.bench + "\"", arm = std::string("\"arm\": \"") + figure.arm + "\"";
  const std::string name = std::string("\"") + figure.field + "\": ";
  std::ifstream in(path);
  for (std::string line; std::getline(in, line);) {
    const std::size_t field = line.find(name);
    if (line.find(bench) == std::string::npos || line.find(arm) == std::string::npos || field == std::string::npos) continue;
    return std::strtod(line.c_str() + field + name.size(), nullptr);
  }
  return 0;
}

}  // namespace ccks::test::sim
