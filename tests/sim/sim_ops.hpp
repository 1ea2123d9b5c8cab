// SimOps: op bodies of GraphPlans (tests/support/engine_graph.hpp) whose reads and writes go through the memory of a
// simulation, so that a body reads what the order of the protocol lets it see, not what was written last.
#pragma once

#include "gpu/sim/platform.hpp"
#include "tests/support/graph_ops.hpp"

namespace ccks::test::sim {

using gpu::sim::Order;
using wire::i32;
using wire::u32;
using wire::u64;

/// Element `i` of what a report publishes: 0, a guess that was wrong, in `wrong_percent` of all cases; else 1 to 3.
inline i32 sim_report(u64 hash, u32 i, u32 wrong_percent) {
  const u64 mixed = graph_mix(hash, i + 1);
  return mixed % 100 < wrong_percent ? 0 : static_cast<i32>(1 + mixed / 100 % 3);
}

struct SimOps {
  static inline u32 wrong_percent = 25;  // of the reports' elements that are 0

  static void run(gpu::sim::SimLanes& lanes, const wire::RunFrame& frame, const wire::OpParams& op, u32 tile) {
    gpu::sim::Memory& memory = lanes.machine().memory();
    const auto* operands =
        reinterpret_cast<const wire::OperandParams*>(reinterpret_cast<const char*>(&frame) + frame.operands) + op.operand_first;
    const auto words = [&](u32 operand) { return reinterpret_cast<u64*>(frame.arena + operands[operand].offset); };
    const auto read = [&](const u64* word) { return memory.load(word, 8, Order::relaxed); };
    if (missing(frame, operands[2], op, tile)) return;
    u64 value = graph_mix(read(words(0)), (static_cast<u64>(op.dims[0]) << 32) + tile);
    for (int e = 0; e < op.dims[1]; ++e) {
      const u64* in = words(4 + static_cast<u32>(e));
      const int count = op.dims[2 + e];
      for (int i = 0; i < count; ++i) value = graph_mix(value, read(&in[i]));
      if (count == 0) value = graph_mix(value, read(&in[tile]));
    }
    if (operands[3].space == static_cast<wire::u8>(wire::Space::state)) {
      auto* state = reinterpret_cast<u64*>(frame.state + operands[3].offset);
      value = graph_mix(read(state), value);
      memory.store(state, 8, value, Order::relaxed, lanes.machine().body_delay());
    }
    memory.store(&words(1)[tile], 8, value, Order::relaxed, lanes.machine().body_delay());
    if (op.report < 0 || tile != 0) return;
    // Plain: the worker's own copy into the report area, and guards, read these words as they stand.
    auto* report = reinterpret_cast<i32*>(words(2));
    for (u32 i = 0; i < op.report_bytes / sizeof(i32); ++i)
      report[i] = sim_report(value, i, wrong_percent);
  }

 private:
  static bool missing(const wire::RunFrame& frame, const wire::OperandParams& counted, const wire::OpParams& op, u32 tile) {
    if ((op.flags & wire::kOpDynamic) == 0) return false;
    const auto* counts = reinterpret_cast<const i32*>(frame.arena + counted.offset);
    u32 rows = 0;
    for (int i = 0; i < counted.dim[3]; ++i) rows += static_cast<u32>(counts[i]);
    return tile / static_cast<u32>(op.grid[3]) >= rows;
  }
};

}  // namespace ccks::test::sim
