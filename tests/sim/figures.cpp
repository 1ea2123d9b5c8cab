#include "tests/sim/figures.hpp"

#include "scheduler/tools/sim_engine.hpp"
#include "tests/support/engine_graph.hpp"

namespace ccks::test::sim {
namespace {

using gpu::sim::Explorer;
using gpu::sim::Nanos;

struct EmptyOps {
  static void run(gpu::sim::SimLanes&, const wire::RunFrame&, const wire::OpParams&, wire::u32) {}
};

GraphPlan make_plan(const DispatchCase& dispatch) {
  std::vector<GraphOp> ops(dispatch.ops);
  for (std::uint32_t i = 0; i < dispatch.ops; ++i) {
    ops[i].bare = true;
    ops[i].tiles = dispatch.tiles;
    if (dispatch.chain && i > 0) ops[i].edges = {{i - 1, Reads::all}};
  }
  return GraphPlan(ops, 1);
}

class Dispatch final : public run::SimRuns {
 public:
  Dispatch(const DispatchCase& dispatch, const gpu::sim::LinkModel& link, const gpu::sim::StageCosts& costs)
      : plan_(make_plan(dispatch)), runs_(dispatch.runs), machine_(machine_options(link)),
        device_(machine_, device_options(dispatch, costs)), engine_(machine_, device_, engine_options(dispatch), *this) {}

  double nanoseconds() {
    if (!engine_.set_up(plan_.view()).ok() || !engine_.start().ok()) return 0;
    machine_.explorer().add("client", gpu::sim::Side::host, [this] { client(); });
    machine_.explorer().run(~std::uint64_t{0}, ~std::uint64_t{0} - 1);
    return failed_ ? 0 : static_cast<double>(took_);
  }
  void run_ended(const scheduler::RunSlot& run) override {
    failed_ |= run.code != ErrorCode::ok;
    ended_at_ = machine_.now();
  }
  void run_released(const scheduler::RunSlot&) override { --open_; }
  void engine_failed(ErrorCode, const char*) override { failed_ = true; }

 private:
  static gpu::sim::MachineOptions machine_options(const gpu::sim::LinkModel& link) {
    gpu::sim::MachineOptions out;
    out.link = link;
    return out;
  }
  static gpu::sim::SimDeviceOptions device_options(const DispatchCase& dispatch, const gpu::sim::StageCosts& costs) {
    gpu::sim::SimDeviceOptions out;
    out.workers = dispatch.workers;
    out.entry = &gpu::sim::sim_worker_main<gpu::sim::SimAtoms, EmptyOps>;
    out.costs = costs;
    return out;
  }
  static run::SimEngineOptions engine_options(const DispatchCase& dispatch) {
    run::SimEngineOptions out;
    out.policy = dispatch.policy;
    out.spine = dispatch.spine;
    out.slots = dispatch.runs;
    return out;
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
  void client() {
    submit_all();  // frames are written, caches warm
    const Nanos since = machine_.now();
    submit_all();
    took_ = ended_at_ - since;
    machine_.explorer().stop();
  }

  GraphPlan plan_;
  std::uint32_t runs_;
  gpu::sim::Machine machine_;
  gpu::sim::SimDevice device_;
  run::SimEngine<gpu::sim::SimAtoms> engine_;
  std::uint32_t open_ = 0;
  bool failed_ = false;
  Nanos ended_at_ = 0, took_ = 0;
};

}  // namespace

double predict_dispatch(const DispatchCase& dispatch, const gpu::sim::LinkModel& link, const gpu::sim::StageCosts& costs) {
  return Dispatch(dispatch, link, costs).nanoseconds();
}

}  // namespace ccks::test::sim
