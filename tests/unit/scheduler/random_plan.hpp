// RandomPlan: plans without programs, for what the scheduler derives from waits and signals.
#pragma once

#include <random>
#include <vector>

#include "ccks/plan.hpp"

namespace ccks::scheduler {

using wire::u32;

// Ops of one axis that wait for windows of earlier ops at random; an op has an event for each tile, or one for all.
struct RandomPlan {
  std::vector<plan::DimNode> dims;
  std::vector<plan::OpDesc> ops;
  std::vector<plan::WaitDesc> waits;
  std::vector<plan::SignalDesc> signals;
  plan::PlanView view;
  std::mt19937 random;

  explicit RandomPlan(u32 seed) : random(seed) {
    const u32 count = 2 + random() % 8;
    for (u32 i = 0; i < count; ++i) add_op(i);
    view.name = "random";
    view.dims = dims;
    view.ops = ops;
    view.waits = waits;
    view.signals = signals;
    view.max_tasks = 1 << 16;
  }

  plan::DimId constant(std::int64_t value) {
    dims.push_back({plan::DimOp::constant, 0, 0, value});
    return static_cast<plan::DimId>(dims.size() - 1);
  }
  std::int64_t tiles_of(u32 op) const { return dims[ops[op].grid[3]].value; }

  void add_op(u32 index) {
    plan::OpDesc op{};
    op.name = "op";
    const std::int64_t tiles = random() % 6 == 0 ? 0 : 1 + random() % 40;
    for (int i = 0; i < 4; ++i) op.grid[i] = op.tile[i] = constant(1);
    op.grid[3] = constant(tiles);
    for (plan::DimId& dim : op.dims) dim = constant(0);
    op.bytes_read = op.bytes_written = constant(0);
    op.operations = constant(index % 3 == 2 ? tiles * 64'000 : 0);  // 4 us a tile, by estimate
    op.report = op.dynamic_report = plan::kNone;
    op.wait_first = static_cast<u32>(waits.size());
    for (u32 w = random() % 3; index > 0 && w > 0; --w) add_wait(random() % index);
    op.wait_count = static_cast<u32>(waits.size()) - op.wait_first;
    op.signal_first = static_cast<u32>(signals.size());
    op.signal_count = 1;
    const bool each = random() % 2 == 0;
    signals.push_back({index, view.event_count, 64, constant(each ? tiles : 1), constant(each ? 1 : tiles),
                       {each ? 3 : -1, -1}, {constant(each ? 1 : 0), constant(0)}});
    view.event_count += 64;
    ops.push_back(op);
  }

  void add_wait(u32 producer) {
    plan::WaitDesc wait{};
    wait.signal = wait.producer = producer;  // one signal an op
    const std::int64_t tiles = tiles_of(producer);
    const bool each = signals[producer].grid_axis[0] == 3;
    const bool window = each && random() % 2 == 0;
    wait.axis[0] = {window ? 3 : -1,         constant(1 + random() % 3), constant(static_cast<std::int64_t>(random() % 3) - 1),
                    constant(random() % 4), constant(each ? tiles : 1), constant(1),
                    constant(each ? 1 : 0)};
    wait.axis[1] = {-1, constant(0), constant(0), constant(0), constant(1), constant(1), constant(0)};
    waits.push_back(wait);
  }
};

}  // namespace ccks::scheduler
