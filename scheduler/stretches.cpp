// Cuts a plan into stretches: sets of ops that go out without waiting for a report.
#include <algorithm>

#include "scheduler/stretches.hpp"

namespace ccks::scheduler {
namespace {

// How many held ops stand before an op, one after the other. A held op also comes after the op whose report it needs, which
// its waits need not say.
std::vector<std::uint32_t> op_levels(const PlanTables& tables) {
  const std::uint32_t count = tables.op_count();
  std::vector<std::uint32_t> reporter(tables.report_count(), plan::kNone);
  std::vector<std::uint32_t> level(count, 0);
  for (std::uint32_t op = 0; op < count; ++op) {
    if (tables.op_held[op] != 0) {
      const std::uint32_t from = reporter[tables.plan.ops[op].dynamic_report];
      level[op] = std::max(level[op], from == plan::kNone ? 0 : level[from]) + 1;
    }
    if (tables.op_report[op] != plan::kNone) reporter[tables.op_report[op]] = op;
    for (const std::uint32_t next : tables.successors_of(op)) level[next] = std::max(level[next], level[op]);
  }
  return level;
}

// Levels that only held ops have give no stretch.
void number_stretches(PlanTables& tables, const std::vector<std::uint32_t>& level) {
  const std::uint32_t count = tables.op_count();
  const std::uint32_t levels = count == 0 ? 0 : *std::max_element(level.begin(), level.end()) + 1;
  std::vector<std::uint32_t> number(levels, plan::kNone);
  for (std::uint32_t op = 0; op < count; ++op) {
    if (tables.op_held[op] == 0) number[level[op]] = 0;
  }
  std::uint32_t stretches = 0;
  for (std::uint32_t& n : number) {
    if (n == 0) n = stretches++;
  }
  tables.stretches.assign(stretches, Stretch{});
  for (std::uint32_t op = 0; op < count; ++op) {
    if (tables.op_held[op] == 0) tables.stretch_of[op] = number[level[op]];
  }
}

// Calls visit(op, stretch) for each op of a stretch, stretch by stretch in plan order.
template <class Visit>
void for_each_member(const PlanTables& tables, Visit&& visit) {
  std::vector<std::uint32_t> next(tables.stretches.size());
  std::vector<std::uint32_t> ordered(tables.op_count());
  for (const std::uint32_t s : tables.stretch_of) {
    if (s != plan::kNone && s + 1 < next.size()) ++next[s + 1];
  }
  for (std::size_t s = 1; s < next.size(); ++s) next[s] += next[s - 1];
  std::uint32_t members = 0;
  for (std::uint32_t op = 0; op < tables.op_count(); ++op) {
    if (tables.stretch_of[op] != plan::kNone) ordered[next[tables.stretch_of[op]]++] = op, ++members;
  }
  for (std::uint32_t i = 0; i < members; ++i) visit(ordered[i], tables.stretch_of[ordered[i]]);
}

}  // namespace

void build_stretches(PlanTables& tables) {
  tables.stretch_of.assign(tables.op_count(), plan::kNone);
  if (tables.spine == Spine::tiles) return;
  number_stretches(tables, op_levels(tables));
  for_each_member(tables, [&](std::uint32_t op, std::uint32_t index) {
    Stretch& s = tables.stretches[index];
    if (s.ops++ == 0) {
      s.first_op = static_cast<std::uint32_t>(tables.stretch_ops.size());
      s.first_output = static_cast<std::uint32_t>(tables.stretch_outputs.size());
      s.first_report = static_cast<std::uint32_t>(tables.stretch_reports.size());
    }
    tables.stretch_ops.push_back(op);
    if (tables.op_report[op] != plan::kNone) {
      tables.stretch_reports.push_back(tables.op_report[op]);
      ++s.reports;
    }
    for (const std::uint32_t next : tables.successors_of(op)) {
      if (tables.stretch_of[next] == index) continue;
      tables.stretch_outputs.push_back(next);
      ++s.outputs;
    }
  });
  for (std::uint32_t op = 0; op < tables.op_count(); ++op) {
    for (const std::uint32_t next : tables.successors_of(op)) {
      const std::uint32_t to = tables.stretch_of[next];
      if (to != plan::kNone && to != tables.stretch_of[op]) ++tables.stretches[to].inputs;
    }
  }
}

}  // namespace ccks::scheduler
