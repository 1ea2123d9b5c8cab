// Lists of programs with conditions: workers that look at guards when their records say so run every tile whose condition holds and no other, never before
// what it reads is there, and get through, whatever reports say and whatever lies where a report was not made. With the waits of a plan that drops none as
// the judge.
#include <gtest/gtest.h>

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <optional>
#include <random>
#include <tuple>

#include "codegen/plan_image.hpp"
#include "scheduler/dims.hpp"
#include "scheduler/instance.hpp"
#include "spec/parse.hpp"
#include "tests/support/examples.hpp"
#include "tests/support/random_program.hpp"

namespace ccks::test {
namespace {

using namespace scheduler;
using wire::u32;

constexpr u32 kWorkers = 5;

/// A plan at its dims, as workers see it.
struct Planned {
  std::shared_ptr<const codegen::PlanImage> image;
  PlanTables tables;
  Instance instance;
  std::vector<u32> counters;  // of the events

  Planned(const spec::Program& program, bool drops_waits, bool records) {
    codegen::PlanOptions options;
    options.device = "cuda";
    options.workers = kWorkers;
    options.drop_implied_waits = drops_waits;
    image = codegen::make_plan(program, options).value();
    const plan::PlanView& view = image->view();
    tables = make_plan_tables(view, kWorkers, records ? Spine::whole : Spine::tiles, records).value();
    std::vector<std::int64_t> symbols, dims(view.dims.size());
    for (const plan::SymbolDesc& symbol : view.symbols) symbols.push_back(symbol.has_preset ? symbol.preset : symbol.lo);
    EXPECT_TRUE(evaluate_plan(view, symbols, dims).ok());
    instance.reserve(tables);
    EXPECT_TRUE(instance.rebuild(tables, symbols, dims, SlotMemory{}, 0, 0, 0).ok());
    counters.assign(tables.event_count, 0);
  }
  const wire::RunFrame& head() const { return *reinterpret_cast<const wire::RunFrame*>(instance.frame().data()); }
  void complete(u32 op, u32 tile) {
    const wire::OpParams& params = instance.op(op);
    const wire::TileCoord coord = wire::tile_coord(params.grid, tile);
    for (u32 s = 0; s < params.signal_count; ++s) ++counters[wire::signal_event(instance.signals()[params.signal_first + s], coord)];
  }
};

/// What a guard asks of which report.
using Asked = std::tuple<u32, u32, double>;
Asked asked(const plan::GuardDesc& guard) { return {guard.report, guard.compare, guard.value}; }

class GuardedRun {
 public:
  GuardedRun(Planned& lists, Planned& judge, u32 seed)
      : lists_(lists), judge_(judge), random_(seed), next_(lists.tables.list_count(), 0), failed_(lists.tables.list_count()), left_(lists.tables.op_count()) {
    for (const plan::GuardDesc& guard : view().guards) {
      says_.emplace(asked(guard), random_() % 4 != 0);
      lies_.emplace(asked(guard), random_() % 2 != 0);
    }
    for (u32 op = 0; op < left_.size(); ++op) left_[op] = lists.instance.op(op).tile_count;
    std::fill(lists.counters.begin(), lists.counters.end(), 0);
    std::fill(judge.counters.begin(), judge.counters.end(), 0);
  }

  void go() {
    std::vector<u32> open;
    do {
      open.clear();
      for (u32 list = 0; list < next_.size(); ++list)
        if (next_[list] < lists_.instance.lists()[list].count && verdict(list)) open.push_back(list);
      if (!open.empty()) step(open[random_() % open.size()]);
    } while (!open.empty() && !testing::Test::HasFailure());
    for (u32 list = 0; list < next_.size(); ++list) EXPECT_EQ(next_[list], lists_.instance.lists()[list].count) << "list " << list << " is stuck";
    for (u32 op = 0; op < left_.size(); ++op) EXPECT_EQ(left_[op], 0u) << name(op);
  }
  u32 ran() const { return ran_; }
  u32 passed() const { return passed_; }
  u32 early() const { return early_; }

 private:
  const plan::PlanView& view() const { return lists_.tables.plan; }
  const char* name(u32 op) const { return view().ops[op].name; }
  std::span<const plan::GuardDesc> guards(u32 op) const { return view().guards.subspan(view().ops[op].guard_first, view().ops[op].guard_count); }
  /// By what the reports say.
  bool runs(u32 op) const {
    const auto all = guards(op);
    return std::all_of(all.begin(), all.end(), [&](const plan::GuardDesc& g) { return says_.at(asked(g)); });
  }
  /// What a worker finds where the report lies now.
  bool holds(const plan::GuardDesc& guard) const {
    const u32 maker = view().reports[guard.report].op;
    return left_[maker] == 0 && runs(maker) ? says_.at(asked(guard)) : lies_.at(asked(guard));
  }
  const wire::TileRecord& record(u32 list) const {
    const auto* records = reinterpret_cast<const wire::TileRecord*>(lists_.instance.frame().data() + lists_.head().records);
    return records[lists_.instance.lists()[list].first + next_[list]];
  }
  bool reached(const wire::TileRecord& r, u32 first, u32 end) const {
    for (u32 i = first; i < end; ++i)
      if (!wire::event_reached(lists_.counters[r.wait_event[i]], r.wait_from[i])) return false;
    return true;
  }
  /// What the gate says of a list's next record: whether it lets it run or passes it over; nothing: it waits.
  std::optional<bool> verdict(u32 list) const {
    const wire::TileRecord& r = record(list);
    const auto all = guards(r.op);
    const auto hold = [&] { return std::all_of(all.begin(), all.end(), [&](const plan::GuardDesc& g) { return holds(g); }); };
    if ((r.flags & wire::kRecordBody) == 0 && r.signal_count > 0) return true;
    if (r.guards != wire::GuardTime::behind_waits) {
      if (failed_[list] && std::any_of(all.begin(), all.end(), [&](const plan::GuardDesc& g) { return asked(g) == *failed_[list]; })) return false;
      if (r.guards == wire::GuardTime::behind_first) {
        if (!reached(r, 0, 1)) return std::nullopt;
        if (!hold()) return false;
      }
    }
    if (!reached(r, 0, r.wait_count)) return std::nullopt;
    return hold();
  }
  void step(u32 list) {
    const wire::TileRecord& r = record(list);
    const bool lets = *verdict(list), waits_open = !reached(r, 0, r.wait_count);
    ++next_[list];
    if (!lets) {
      const auto all = guards(r.op);
      const auto failed = std::find_if(all.begin(), all.end(), [&](const plan::GuardDesc& g) { return !holds(g); });
      if (failed != all.end()) failed_[list] = asked(*failed);
    }
    if ((r.flags & wire::kRecordBody) != 0) {
      EXPECT_EQ(lets, runs(r.op)) << name(r.op);
      (lets ? ran_ : passed_) += 1;
      early_ += !lets && waits_open;
      if (lets) expect_inputs(r.op, r.tile);
      expect_reports(r.op);
      judge_.complete(r.op, r.tile);
      --left_[r.op];
    }
    for (u32 i = 0; i < r.signal_count; ++i) ++lists_.counters[r.signal_event[i]];
  }
  void expect_inputs(u32 op, u32 tile) const {
    const wire::OpParams& params = judge_.instance.op(op);
    const wire::TileCoord coord = wire::tile_coord(params.grid, tile);
    for (u32 w = params.wait_first; w < params.wait_first + params.wait_count; ++w) {
      const wire::WaitParams& wait = judge_.instance.waits()[w];
      if (!runs(wait.producer)) continue;
      const wire::EventRect rect = wire::wait_rect(wait, coord);
      for (u32 i = 0; i < wire::rect_count(rect); ++i)
        EXPECT_GE(judge_.counters[wire::rect_event(wait, rect, i)], wait.total) << name(op) << " tile " << tile << " runs before " << name(wait.producer);
    }
  }
  /// Plans take from an op's completion that the reports it hangs on are there.
  void expect_reports(u32 op) const {
    for (const plan::GuardDesc& guard : guards(op)) {
      const u32 maker = view().reports[guard.report].op;
      if (runs(maker)) EXPECT_EQ(left_[maker], 0u) << name(op) << " is through before " << name(maker);
    }
  }

  Planned &lists_, &judge_;
  std::mt19937 random_;
  std::vector<u32> next_;                     // per list
  std::vector<std::optional<Asked>> failed_;  // per list: what its worker has found to fail last
  std::vector<u32> left_;                     // per op: tiles that are not through
  std::map<Asked, bool> says_, lies_;
  u32 ran_ = 0, passed_ = 0, early_ = 0;
};

struct Counts {
  u32 ran = 0, passed = 0, early = 0;
};
void check(const spec::Program& program, u32 seeds, Counts& counts) {
  Planned lists(program, true, true), judge(program, false, false);
  ASSERT_EQ(lists.tables.op_count(), judge.tables.op_count());
  for (u32 seed = 0; seed < seeds; ++seed) {
    SCOPED_TRACE(fmt::format("seed {}", seed));
    GuardedRun run(lists, judge, seed);
    run.go();
    counts.ran += run.ran();
    counts.passed += run.passed();
    counts.early += run.early();
    if (testing::Test::HasFailure()) return;
  }
}

TEST(GuardedLists, OfExamplesRunWhatReportsSayAndNothingBeforeItsInputs) {
  u32 guarded = 0;
  for (const Example& example : examples()) {
    SCOPED_TRACE(example.name);
    spec::ParseOptions options;
    options.constants = example.dims;
    const spec::ParseResult parsed = spec::parse_file(spec_of(example), options);
    ASSERT_TRUE(parsed.ok) << spec::format_diagnostics(parsed);
    if (parsed.program.conditions.empty()) continue;
    ++guarded;
    Counts counts;
    check(parsed.program, 100, counts);
    if (HasFailure()) return;
    EXPECT_GT(counts.ran, 100u);
    EXPECT_GT(counts.passed, 100u);
    EXPECT_GT(counts.early, 20u) << "every tile that is passed over has waited for all that it would read";
  }
  EXPECT_EQ(guarded, 8u);
}

// The second report is made whatever the first says, and so tells nothing of it.
TEST(GuardedLists, WhoseGuardsAreNotNestedWaitForAllReports) {
  const char* text = R"(
ccks: 1
program: apart
dtype: f32
dims: {n: 64, d: 16}
tensors:
  x: {shape: [n, d], kind: input}
  a: {shape: [1], dtype: i32, kind: input, init: {integers: [0, 2]}}
  b: {shape: [1], dtype: i32, kind: input, init: {integers: [0, 2]}}
  y: {shape: [n, d], kind: output}
ops:
  - {op: map, expr: a + 0, dtype: i32, out: first}
  - {op: map, expr: b + 0, dtype: i32, out: second}
  - {op: report, x: first, name: first}
  - {op: report, x: second, name: second}
  - {op: map, expr: 0.5 * x, out: h}
  - if: first == 1
    ops:
      - {op: map, expr: tanh(h), out: t}
      - if: second == 1
        ops: [{op: map, expr: t + 1.0, out: u}]
        out: {v: {then: u, else: t}}
    out: {w: {then: v, else: h}}
  - {op: map, expr: w, out: y}
)";
  const spec::ParseResult parsed = spec::parse_text(text, "apart.yaml");
  ASSERT_TRUE(parsed.ok) << spec::format_diagnostics(parsed);
  Counts counts;
  check(parsed.program, 200, counts);
  EXPECT_GT(counts.passed, 100u);
}

TEST(GuardedLists, OfRandomProgramsRunWhatReportsSayAndNothingBeforeItsInputs) {
  Counts counts;
  for (std::uint64_t seed = 0; seed < 150; ++seed) {
    const test::RandomProgram random = test::random_program(seed);
    const spec::ParseResult parsed = spec::parse_text(random.yaml, "random.yaml");
    ASSERT_TRUE(parsed.ok) << seed;
    if (parsed.program.conditions.empty()) continue;
    SCOPED_TRACE(random.yaml);
    check(parsed.program, 20, counts);
    if (HasFailure()) return;
  }
  EXPECT_GT(counts.passed, 1000u);
}

}  // namespace
}  // namespace ccks::test
