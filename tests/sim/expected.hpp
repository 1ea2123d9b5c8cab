// Expected: what a run of a GraphPlan has to do, tile by tile, worked out without any scheduler.
#pragma once

#include <vector>

#include "tests/sim/sim_ops.hpp"
#include "tests/support/engine_graph.hpp"

namespace ccks::test::sim {

struct Expected {
  std::vector<std::vector<u64>> values;      // per op and tile; 0 where it does not run
  std::vector<std::vector<bool>> exists;     // its body has something to do
  std::vector<bool> guarded_off;             // per op: its guard fails
  std::vector<std::vector<i32>> reports;     // per report: its elements
};

inline Expected expect(const GraphPlan& plan, u32 n, u64 seed, u32 wrong_percent) {
  Expected out;
  std::vector<std::vector<i32>>& reports = out.reports;
  for (u32 index = 0; index < plan.ops().size(); ++index) {
    const GraphOp& op = plan.ops()[index];
    const u32 tiles = plan.tiles(index, n);
    u32 rows = tiles;
    if (op.dynamic_report >= 0) {
      rows = 0;
      for (const i32 count : reports[static_cast<std::size_t>(op.dynamic_report)]) rows += static_cast<u32>(count);
    }
    const bool off = op.guard_report >= 0 && reports[static_cast<std::size_t>(op.guard_report)][0] == 0;
    out.values.emplace_back(tiles, 0);
    out.exists.emplace_back(tiles, false);
    out.guarded_off.push_back(off);
    for (u32 tile = 0; tile < (off ? 0 : std::min(rows, tiles)); ++tile) {
      u64 value = graph_mix(seed, (u64{index} << 32) + tile);
      for (const GraphEdge& edge : op.edges) {
        const std::vector<u64>& in = out.values[edge.producer];
        if (edge.reads == Reads::same_tile) value = graph_mix(value, in[tile]);
        if (edge.reads == Reads::all)
          for (const u64 v : in) value = graph_mix(value, v);
      }
      out.values[index][tile] = value;
      out.exists[index][tile] = true;
    }
    if (op.report < 0) continue;
    reports.resize(std::max(reports.size(), static_cast<std::size_t>(op.report) + 1));
    for (u32 i = 0; i < op.report_count; ++i)
      reports[static_cast<std::size_t>(op.report)].push_back(sim_report(out.values[index][0], i, wrong_percent));
  }
  return out;
}

}  // namespace ccks::test::sim
