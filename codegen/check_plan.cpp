// check_plan: the stages in order; each relies on what those before it have proved.
#include "codegen/check_plan.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <optional>

#include "codegen/check_model.hpp"

namespace ccks::codegen {
namespace {

using check::Faults;
using check::Model;

/// Both sides keep the same relations at the same dims, and count the same sequences.
void check_checks(const Model& m, Faults& faults) {
  for (std::size_t i = 0; i < m.plan->ragged.size(); ++i)
    if (m.program->ragged[i].count.evaluate(m.symbols) != m.values[m.plan->ragged[i].count])
      faults.add("table.ragged", fmt::format("ragged dim '{}' counts something else", m.plan->symbols[m.plan->ragged[i].symbol].name));
  for (std::size_t i = 0; i < m.plan->checks.size(); ++i) {
    const plan::CheckDesc& have = m.plan->checks[i];
    const spec::RuntimeCheck& want = m.program->checks[i];
    const auto lhs = want.lhs.evaluate(m.symbols), rhs = want.rhs.evaluate(m.symbols);
    if (static_cast<int>(have.relation) != static_cast<int>(want.relation) || lhs != m.values[have.lhs] ||
        rhs != m.values[have.rhs])
      faults.add("table.check", fmt::format("run-time check '{}' tests something else", want.message));
  }
}

void check_at(const spec::Program& program, const plan::PlanView& plan, std::span<const std::int64_t> dims,
              const CheckLimits& limits, CheckReport& report) {
  Faults faults(report, dims, limits.max_faults);
  report.points.emplace_back(dims.begin(), dims.end());
  Model model;
  if (!check::build_model(program, plan, dims, faults, model)) return;
  using Stage = void (*)(Model&, Faults&);
  constexpr Stage kStages[] = {
      [](Model& m, Faults& f) { check_checks(m, f); },
      [](Model& m, Faults& f) { check::check_operands(m, f); },
      [](Model& m, Faults& f) { check::check_reports(m, f); },
      [](Model& m, Faults& f) {
        check::check_guards(m, f);
        check::check_attributes(m, f);
      },
      [](Model& m, Faults& f) {
        check::check_tensors(m, f);
        check::check_coverage(m, f);
      },
      [](Model& m, Faults& f) { check::check_events(m, f); },
  };
  for (const Stage stage : kStages) {
    stage(model, faults);
    if (faults.count() > 0) return;
  }
  check::check_order(model, limits, faults, report);
}

bool allowed(const spec::Program& program, std::span<const std::int64_t> dims) {
  return std::all_of(program.checks.begin(), program.checks.end(), [&](const spec::RuntimeCheck& check) {
    const auto lhs = check.lhs.evaluate(dims), rhs = check.rhs.evaluate(dims);
    return lhs && rhs && (check.relation == spec::RuntimeCheck::Relation::equal ? *lhs == *rhs : *lhs <= *rhs);
  });
}

}  // namespace

Status CheckReport::status() const {
  if (ok()) return {};
  std::string text = "the plan is unsound";
  for (std::size_t i = 0; i < faults.size() && i < 5; ++i)
    text += fmt::format("\n  {}: {}", faults[i].code, faults[i].message);
  if (faults.size() > 5) text += fmt::format("\n  and {} more", faults.size() - 5);
  return {ErrorCode::internal, text};
}

CheckReport check_plan(const spec::Program& program, const plan::PlanView& plan, std::span<const std::int64_t> dims,
                       const CheckLimits& limits) {
  CheckReport report;
  Faults faults(report, {}, limits.max_faults);
  if (dims.size() != program.symbols.size())
    faults.add("table.symbol", "as many dims as the program has symbols are needed");
  else if (check::check_tables(program, plan, faults))
    check_at(program, plan, dims, limits, report);
  return report;
}

CheckReport check_plan(const spec::Program& program, const plan::PlanView& plan, const CheckLimits& limits) {
  CheckReport report;
  Faults faults(report, {}, limits.max_faults);
  if (!check::check_tables(program, plan, faults)) return report;
  for (const std::vector<std::int64_t>& point : check_points(program, limits)) {
    check_at(program, plan, point, limits, report);
    if (!report.ok()) break;
  }
  return report;
}

std::vector<std::vector<std::int64_t>> check_points(const spec::Program& program, const CheckLimits& limits) {
  std::vector<std::vector<std::int64_t>> points;
  const auto add = [&](auto value_of) {
    std::vector<std::int64_t> point;
    for (const spec::Symbol& s : program.symbols) point.push_back(std::clamp(value_of(s), s.range.lo, s.range.hi));
    if (points.size() < limits.max_points && allowed(program, point) &&
        std::find(points.begin(), points.end(), point) == points.end())
      points.push_back(std::move(point));
  };
  const auto between = [](const spec::Symbol& s, std::int64_t part) {
    return s.range.lo + (s.range.hi - s.range.lo) / part;
  };
  add([](const spec::Symbol& s) { return s.range.lo; });
  add([](const spec::Symbol& s) { return s.preset.value_or(s.range.lo + 1); });
  add([](const spec::Symbol& s) { return s.range.hi; });
  add([](const spec::Symbol& s) { return s.range.lo + 16; });  // odd sizes end in partial tiles
  add([&](const spec::Symbol& s) { return between(s, 3) | 1; });
  add([&](const spec::Symbol& s) { return between(s, 50) + 2; });
  return points;
}

}  // namespace ccks::codegen
