// Which experts are guessed, and who asks for them.
#include "scheduler/expert_guesses.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <set>

#include "scheduler/dims.hpp"
#include "ccks/plan_eval.hpp"
#include "ccks/program.hpp"

namespace ccks::scheduler {
namespace {

constexpr std::uint32_t kExperts = 12, kWorkers = 4, kTop = 3, kTokens = 2;
constexpr const char* kSpec = R"yaml(
ccks: 1
program: guesses
dims: {t: {range: [1, 4]}, experts: 12, d: 32, ffn: 64}
tensors:
  x: {shape: [t, d], kind: input}
  router: {shape: [experts, d], kind: weight}
  w: {shape: [experts, ffn, d], kind: weight}
  v: {shape: [experts, d, ffn], kind: weight}
  y: {shape: [t, d], kind: output}
ops:
  - {op: matmul, a: x, b: router.T, out: logits}
  - {op: route, logits: logits, k: 3, out: rt}
  - {op: expert_matmul, x: x, route: rt, b: w, transpose_b: true, input: tokens, out: u}
  - {op: expert_matmul, x: u, route: rt, b: v, transpose_b: true, input: rows, out: z}
  - {op: combine, x: z, route: rt, out: y}
)yaml";

class ExpertGuess : public testing::Test {
 protected:
  ExpertGuess() {
    SpecOptions options;
    options.workers_hint = kWorkers;
    program_.emplace(std::move(Program::from_spec_text(kSpec, "guesses.yaml", options).value()));
    tables_ = make_plan_tables(program_->plan(), kWorkers, Spine::fitting).value();
    std::vector<std::int64_t> symbols(tables_.plan.symbols.size()), dims(tables_.plan.dims.size());
    EXPECT_TRUE(bind_symbols(tables_.plan, {{"t", kTokens}}, symbols).ok());
    EXPECT_TRUE(evaluate_plan(tables_.plan, symbols, dims).ok());
    area_.assign(tables_.plan.report_bytes + 64, std::byte{0});
    SlotMemory memory;
    memory.reports = reinterpret_cast<std::uint64_t>(area_.data());
    run_.instance.reserve(tables_);
    run_.progress.reserve(tables_);
    EXPECT_TRUE(run_.instance.rebuild(tables_, symbols, dims, memory, 0, 0, 0).ok());
    loads_.reserve(kWorkers, 64);
    for (std::uint32_t r = 0; r < tables_.report_count(); ++r) {
      if (tables_.plan.reports[r].max_bytes == kExperts * sizeof(std::int32_t)) report_ = r;
    }
  }

  /// A run whose router chooses `rows` of each expert.
  void run(ExpertGuesses& guesses, const std::vector<std::int32_t>& rows) {
    batch_.count = 0;
    run_.progress.start(tables_, run_.instance);
    guesses.begin(run_);
    EXPECT_TRUE(guesses.is_due(run_));
    guesses.send(run_, batch_, loads_);
    EXPECT_FALSE(guesses.is_due(run_));
    for (std::uint32_t i = 0; i < batch_.count; ++i) loads_.remove(batch_.items[i].worker, batch_.items[i].cost);
    std::copy(rows.begin(), rows.end(), reinterpret_cast<std::int32_t*>(run_.instance.report_place(report_, tables_)));
    guesses.on_report(run_, report_);
  }
  static std::vector<std::int32_t> rows_of(std::initializer_list<std::uint32_t> experts) {
    std::vector<std::int32_t> out(kExperts, 0);
    for (const std::uint32_t e : experts) ++out[e];
    return out;
  }
  std::uint32_t expert_of(const Decision& decision) const { return wire::Task{decision.tile, 0, 0, 0, 0}.first_tile() / static_cast<std::uint32_t>(run_.instance.op(decision.op).grid[3]); }

  std::optional<Program> program_;
  PlanTables tables_;
  std::vector<std::byte> area_;
  RunSlot run_;
  WorkerLoads loads_;
  Batch batch_;
  SchedulerStats stats_;
  std::uint32_t report_ = plan::kNone;
};

TEST_F(ExpertGuess, TakesThoseOfTheLastRunAndTellsWhichWereRight) {
  ExpertGuesses guesses(tables_, 1, {1 << 20}, stats_);
  run(guesses, rows_of({1, 5, 5, 9}));
  EXPECT_EQ(batch_.count, 0u) << "nothing is known of the first";
  run(guesses, rows_of({1, 2, 9}));
  std::set<std::uint32_t> asked;
  for (std::uint32_t i = 0; i < batch_.count; ++i) {
    EXPECT_EQ(batch_.items[i].slot_flags, wire::kTaskFetch);
    asked.insert(expert_of(batch_.items[i]));
  }
  EXPECT_EQ(asked, (std::set<std::uint32_t>{1, 5, 9}));
  EXPECT_EQ(stats_.guesses.get(), 3u);
  EXPECT_EQ(stats_.guesses_right.get(), 2u);
  EXPECT_EQ(stats_.guess_bytes.get(), 3 * 2 * 32 * 64 * sizeof(float));  // both products, whole experts
  EXPECT_EQ(stats_.guess_bytes_wrong.get(), 2 * 32 * 64 * sizeof(float));
}

TEST_F(ExpertGuess, SpendsItsBudgetOnThePopular) {
  constexpr std::uint64_t kOne = 32 * 64 * sizeof(float);
  ExpertGuesses guesses(tables_, 1, {kOne}, stats_);
  run(guesses, rows_of({1, 5, 5, 9}));
  run(guesses, rows_of({1, 5, 9}));
  ASSERT_GT(batch_.count, 0u);
  for (std::uint32_t i = 0; i < batch_.count; ++i) EXPECT_EQ(expert_of(batch_.items[i]), 5u);
  EXPECT_EQ(stats_.guess_bytes.get(), kOne);
  EXPECT_EQ(stats_.guesses.get(), 1u);
}

TEST_F(ExpertGuess, MakesWrongWhatShareItShould) {
  for (const double wrong : {0.0, 0.25, 0.5, 0.75, 1.0}) {
    SchedulerStats stats;
    ExpertGuesses guesses(tables_, 1, {1 << 20, wrong}, stats);
    for (int i = 0; i < 101; ++i) run(guesses, rows_of({0, 3, 4, 11}));
    EXPECT_EQ(stats.guesses.get(), 400u);
    EXPECT_EQ(stats.guesses_right.get(), static_cast<std::uint64_t>(400 * (1 - wrong)));
  }
}

TEST_F(ExpertGuess, WorkersTakeTurnsAndOneWithoutRoomIsLeftOut) {
  ExpertGuesses guesses(tables_, 1, {1 << 20}, stats_);
  run(guesses, rows_of({0, 3, 4, 11}));
  loads_.add(2, 1, 64);
  run(guesses, rows_of({0, 3, 4, 11}));
  std::set<std::uint32_t> workers;
  for (std::uint32_t i = 0; i < batch_.count; ++i) workers.insert(batch_.items[i].worker);
  EXPECT_EQ(workers, (std::set<std::uint32_t>{0, 1, 3}));
}

TEST_F(ExpertGuess, ARunThatIsSkippedAsksForNothing) {
  ExpertGuesses guesses(tables_, 1, {1 << 20}, stats_);
  run(guesses, rows_of({0, 3, 4}));
  run_.progress.start(tables_, run_.instance);
  run_.progress.skip_rest();
  guesses.begin(run_);
  EXPECT_FALSE(guesses.is_due(run_));
}

}  // namespace
}  // namespace ccks::scheduler
