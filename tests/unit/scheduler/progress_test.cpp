// Progress: the order of sending, and credits for tiles that do not exist.
#include "scheduler/progress.hpp"

#include <gtest/gtest.h>

#include <map>
#include <random>
#include <set>

#include "ccks/wire/event.hpp"
#include "scheduler/dims.hpp"
#include "scheduler/tuning.hpp"
#include "tests/support/engine_graph.hpp"

namespace ccks::scheduler {
namespace {

// A plan of one op whose grid, signal axes and report are given; small enough to count by hand.
struct OneOp {
  std::vector<plan::DimNode> dims;
  plan::OpDesc op{};
  plan::SignalDesc signal{};
  plan::OperandDesc operand{};
  plan::ReportDesc report{};
  plan::PlanView view;

  plan::DimId constant(std::int64_t value) {
    dims.push_back({plan::DimOp::constant, 0, 0, value});
    return static_cast<plan::DimId>(dims.size()) - 1;
  }
  OneOp(const std::int64_t (&grid)[4], int axis0, std::int64_t stride0, int axis1, std::int64_t stride1,
        std::int64_t events) {
    op.name = "op";
    for (int i = 0; i < 4; ++i) op.grid[i] = constant(grid[i]);
    for (plan::DimId& t : op.tile) t = constant(1);
    for (plan::DimId& d : op.dims) d = constant(0);
    op.flags = wire::kOpDynamic;
    op.signal_count = 1;
    op.report = plan::kNone;
    op.dynamic_report = 0;
    op.bytes_read = op.bytes_written = op.operations = constant(0);
    const std::int64_t tiles = grid[0] * grid[1] * grid[2] * grid[3];
    signal = {0,
              0,
              static_cast<std::uint32_t>(events),
              constant(events),
              constant(tiles / events),
              {axis0, axis1},
              {constant(stride0), constant(stride1)}};
    report = {"count", 0, 0, wire::Dtype::i32, constant(2), 0, 8};
    operand.offset = constant(0);
    for (int i = 0; i < 4; ++i) operand.dim[i] = operand.stride[i] = constant(1);
    view.dims = dims;
    view.ops = {&op, 1};
    view.signals = {&signal, 1};
    view.operands = {&operand, 1};
    view.reports = {&report, 1};
    view.event_count = static_cast<std::uint32_t>(events);
    view.max_tasks = static_cast<std::uint32_t>(tiles);
    view.report_bytes = 8;
  }
};

// The same with rows of a counted dim, four to a tile, along the axis that is `rank`-th from the last.
struct CountedOp : OneOp {
  CountedOp(const std::int64_t (&grid)[4], int rank, int axis0, std::int64_t stride0, int axis1, std::int64_t stride1, std::int64_t events)
      : OneOp(grid, axis0, stride0, axis1, stride1, events) {
    op.counted_rank = static_cast<std::uint8_t>(rank);
    op.tile[4 - rank] = constant(4);
    report.elements = constant(1);
    view.dims = dims;
  }
};

// Sends everything and returns what each event has been credited with.
std::map<std::uint32_t, std::uint32_t> send_all(const OneOp& one, const std::int32_t (&counts)[2],
                                                std::uint32_t& existing, std::uint32_t* skipped = nullptr) {
  Result<PlanTables> tables = make_plan_tables(one.view, 2, Spine::tiles);
  EXPECT_TRUE(tables.ok());
  std::vector<std::int64_t> values(one.dims.size());
  EXPECT_TRUE(evaluate_plan(one.view, {}, values).ok());
  Instance instance;
  instance.reserve(*tables);
  SlotMemory memory;
  memory.reports = reinterpret_cast<std::uint64_t>(&counts[0]);
  EXPECT_TRUE(instance.rebuild(*tables, {}, values, memory, 0, 0, 0).ok());
  Progress progress;
  progress.reserve(*tables);
  progress.start(*tables, instance);
  EXPECT_EQ(progress.next_open(0), plan::kNone) << "held until its report";
  progress.report_arrived(0);
  existing = progress.existing_tiles(0);
  std::map<std::uint32_t, std::uint32_t> credited;
  while (progress.next_open(0) == 0) {
    const Piece piece = progress.peek(0);
    if (piece.kind == Piece::Kind::signal) {
      credited[piece.first] += piece.count;
    } else {
      for (std::uint32_t i = 0; i < piece.count; ++i) {
        ++credited[wire::signal_event(instance.signals()[0], wire::tile_coord(instance.op(0).grid, piece.first + i))];
        EXPECT_EQ(piece.kind == Piece::Kind::tiles, piece.first + i < existing);
      }
    }
    if (skipped != nullptr && piece.kind == Piece::Kind::skip) *skipped += piece.count;
    progress.take(0, piece);
  }
  EXPECT_TRUE(progress.all_sent());
  return credited;
}

TEST(Held, UnlessListsOfAllTilesThatThereMayBeAreShort) {
  const auto held = [](std::int64_t tiles, Spine spine, bool records) {
    const OneOp one({1, 1, tiles / 2, 2}, 2, 1, -1, 0, tiles / 2);
    Result<PlanTables> tables = make_plan_tables(one.view, 4, spine, records);
    EXPECT_TRUE(tables.ok());
    EXPECT_EQ(tables->op_held[0] == 0, tables->stretch_count() == 1);
    return tables->op_held[0] != 0;
  };
  constexpr std::int64_t kFew = 4 * kFoundTiles;
  EXPECT_FALSE(held(kFew, Spine::fitting, true));
  EXPECT_TRUE(held(kFew + 2, Spine::fitting, true));
  EXPECT_TRUE(held(kFew, Spine::fitting, false)) << "who takes tasks";
  EXPECT_TRUE(held(kFew, Spine::stretches, true)) << "who asks for it";
  EXPECT_FALSE(held(kFew + 2, Spine::whole, true));
}

TEST(Progress, EveryEventGetsItsTotalWhateverTilesExist) {
  const OneOp plans[] = {
      OneOp({1, 1, 12, 1}, -1, 0, -1, 0, 1),  OneOp({1, 1, 12, 1}, 2, 1, -1, 0, 12),
      OneOp({1, 1, 6, 4}, 2, 1, -1, 0, 6),    OneOp({1, 1, 6, 4}, 3, 1, -1, 0, 4),
      OneOp({1, 1, 6, 4}, 2, 4, 3, 1, 24),    OneOp({1, 1, 500, 3}, 2, 1, -1, 0, 500),
      OneOp({1, 1, 500, 3}, -1, 0, -1, 0, 1),
  };
  for (const OneOp& one : plans) {
    for (const std::int32_t rows : {0, 1, 3, 5, 6, 12, 600, -4}) {
      std::uint32_t existing = 0;
      const std::int32_t counts[2] = {rows, 0};
      const auto credited = send_all(one, counts, existing);
      const auto total = static_cast<std::uint32_t>(one.dims[one.signal.total].value);
      ASSERT_EQ(credited.size(), one.signal.event_max) << rows;
      for (const auto& [event, count] : credited) ASSERT_EQ(count, total) << "event " << event << ", rows " << rows;
    }
  }
}

// A worker skips tiles one after the other, and who waits for their events waits for that.
TEST(Progress, ManyMissingTilesAreCreditedByFewSignals) {
  std::uint32_t existing = 0, skipped = 0;
  send_all(OneOp({1, 1, 64, 12}, 3, 1, -1, 0, 12), {3, 0}, existing, &skipped);
  EXPECT_EQ(skipped, 0u) << "twelve signals for all tiles but 36";
  send_all(OneOp({1, 1, 159, 3}, 2, 1, -1, 0, 159), {134, 0}, existing, &skipped);
  EXPECT_EQ(skipped, 0u) << "25 signals to 25 workers for 75 tiles";
  send_all(OneOp({1, 1, 4, 8}, 3, 1, -1, 0, 8), {3, 0}, existing, &skipped);
  EXPECT_EQ(skipped, 8u) << "as many signals as tiles, and few of them";
}

TEST(Progress, NoMoreTilesThanTheReportSays) {
  const OneOp one({1, 1, 12, 2}, 2, 1, -1, 0, 12);
  std::uint32_t existing = 0;
  send_all(one, {2, 3}, existing);
  EXPECT_EQ(existing, 10u);
  send_all(one, {2, -3}, existing);
  EXPECT_EQ(existing, 4u);
  send_all(one, {2000000000, 2000000000}, existing);
  EXPECT_EQ(existing, 24u);
}

TEST(Progress, RowsOfACountedDimAreLimitedAlongTheirAxis) {
  const CountedOp plans[] = {
      CountedOp({1, 1, 12, 1}, 2, -1, 0, -1, 0, 1),  CountedOp({1, 1, 12, 5}, 2, 2, 5, 3, 1, 60), CountedOp({1, 1, 12, 5}, 2, 3, 1, -1, 0, 5),
      CountedOp({1, 1, 1, 12}, 1, 3, 1, -1, 0, 12),  CountedOp({1, 12, 2, 3}, 3, 1, 1, -1, 0, 12), CountedOp({1, 12, 2, 3}, 3, 2, 3, 3, 1, 6),
      CountedOp({12, 2, 1, 3}, 4, 0, 3, 3, 1, 36),
  };
  const std::pair<std::int32_t, std::uint32_t> kPlaces[] = {{0, 0}, {1, 1}, {3, 1}, {4, 1}, {5, 2}, {8, 2}, {47, 12}, {48, 12}, {49, 12}, {INT32_MAX, 12}, {-1, 0}, {INT32_MIN, 0}};
  for (const CountedOp& one : plans) {
    for (const auto& [rows, places] : kPlaces) {
      std::uint32_t existing = 0;
      const std::int32_t counts[2] = {rows, 5};  // what lies behind the count counts nothing
      const auto credited = send_all(one, counts, existing);
      const auto tiles = static_cast<std::uint32_t>(one.dims[one.signal.total].value) * one.signal.event_max;
      EXPECT_EQ(existing, tiles / 12 * places) << rows;
      ASSERT_EQ(credited.size(), one.signal.event_max) << rows;
      for (const auto& [event, count] : credited) ASSERT_EQ(count, tiles / one.signal.event_max) << "event " << event << ", rows " << rows;
    }
  }
}

TEST(Progress, RowsThatAreNotOutermostAreAllThere) {
  std::uint32_t existing = 0;
  send_all(CountedOp({1, 2, 12, 5}, 2, 2, 1, -1, 0, 12), {1, 0}, existing);
  EXPECT_EQ(existing, 120u) << "those of the second half lie between those that are there";
}

TEST(Held, CountedRowsUnlessEachWorkerHasOneTile) {
  const auto held = [](std::int64_t rows, Spine spine, bool records) {
    const CountedOp one({1, 1, rows, 1}, 2, 2, 1, -1, 0, rows);
    Result<PlanTables> tables = make_plan_tables(one.view, 4, spine, records);
    EXPECT_TRUE(tables.ok());
    return tables->op_held[0] != 0;
  };
  EXPECT_FALSE(held(4, Spine::fitting, true));
  EXPECT_TRUE(held(5, Spine::fitting, true)) << "nobody but the host leaves them out";
  EXPECT_TRUE(held(4, Spine::fitting, false));
  EXPECT_FALSE(held(5, Spine::whole, true));
}

TEST(Progress, FewTilesOfManyAreSpreadOverAllWorkersToo) {
  const OneOp one({1, 1, 4096, 1}, -1, 0, -1, 0, 1);
  Result<PlanTables> tables = make_plan_tables(one.view, 2, Spine::tiles);
  ASSERT_TRUE(tables.ok());
  std::vector<std::int64_t> values(one.dims.size());
  ASSERT_TRUE(evaluate_plan(one.view, {}, values).ok());
  const std::int32_t counts[2] = {5, 3};
  SlotMemory memory;
  memory.reports = reinterpret_cast<std::uint64_t>(&counts[0]);
  Instance instance;
  instance.reserve(*tables);
  ASSERT_TRUE(instance.rebuild(*tables, {}, values, memory, 0, 0, 0).ok());
  Progress progress;
  progress.reserve(*tables);
  progress.start(*tables, instance);
  EXPECT_EQ(progress.cut(0).chunk, 256u);
  progress.report_arrived(0);
  EXPECT_EQ(progress.cut(0).chunk, 1u);
  EXPECT_FLOAT_EQ(progress.cut(0).affinity, 2.0f / 8);
  EXPECT_FLOAT_EQ(progress.cut(0).tasks_each, 4.0f);
  EXPECT_EQ(progress.peek(0).count, 1u);
}

// A report, twelve rows of which so many exist as it says, and an op that reads them.
class Drafts : public ::testing::Test {
 protected:
  Drafts() : plan_({{.report = 0}, {.tiles = 12, .edges = {{0, test::Reads::all}}, .dynamic_report = 0}, {.edges = {{1, test::Reads::all}}}}, 1) {
    Result<PlanTables> tables = make_plan_tables(plan_.view(), 2, Spine::tiles);
    EXPECT_TRUE(tables.ok()) << tables.status().to_string();
    tables_ = std::move(*tables);
    const std::vector<std::int64_t> symbols(plan_.view().symbols.size(), 1);
    std::vector<std::int64_t> dims(plan_.view().dims.size());
    EXPECT_TRUE(evaluate_plan(plan_.view(), symbols, dims).ok());
    SlotMemory memory;
    memory.reports = reinterpret_cast<std::uint64_t>(&count_);
    instance_.reserve(tables_);
    EXPECT_TRUE(instance_.rebuild(tables_, symbols, dims, memory, 0, 0, 0).ok());
    progress_.reserve(tables_);
  }
  /// A run up to the point where only the report is missing.
  void begin() {
    progress_.start(tables_, instance_);
    EXPECT_EQ(progress_.next_draft(), plan::kNone) << "the report's op comes first";
    progress_.take_tiles(0, 1);
    EXPECT_EQ(progress_.next_open(0), plan::kNone);
    EXPECT_EQ(progress_.next_draft(), 1u);
  }
  void report(std::int32_t count) {
    count_ = count;
    progress_.report_arrived(0);
  }

  test::GraphPlan plan_;
  std::int32_t count_ = 0;
  PlanTables tables_;
  Instance instance_;
  Progress progress_;
};

TEST_F(Drafts, AnOpThatIsAllDraftsLetsItsConsumersGoAhead) {
  begin();
  EXPECT_EQ(progress_.draft_tiles(1), 12u);
  progress_.take_draft(1, 12);
  EXPECT_EQ(progress_.next_draft(), plan::kNone);
  EXPECT_EQ(progress_.next_open(0), 2u);
  progress_.take_tiles(2, 1);
  EXPECT_TRUE(progress_.all_sent());
  report(5);
  EXPECT_TRUE(progress_.draft_runs(1, 4));
  EXPECT_FALSE(progress_.draft_runs(1, 5));
  EXPECT_EQ(progress_.skipped_tiles(), 7u);
  EXPECT_EQ(progress_.next_open(0), plan::kNone) << "it is not sent twice";
}

TEST_F(Drafts, NextTimeThereAreAsManyAsTheReportSaid) {
  begin();
  report(5);
  for (const std::int32_t now : {8, 5, 3, 0}) {
    begin();
    const std::uint32_t guess = progress_.draft_tiles(1);
    EXPECT_EQ(guess, now == 8 ? 5u : static_cast<std::uint32_t>(count_));
    progress_.take_draft(1, guess);
    EXPECT_EQ(progress_.next_open(0), plan::kNone) << "what reads it waits for the rest";
    report(now);
    EXPECT_EQ(progress_.next_open(0), 1u);
    const Piece piece = progress_.peek(1);
    EXPECT_EQ(piece.kind == Piece::Kind::tiles, now == 8);
    EXPECT_TRUE(now != 8 || piece.first == 5u);
    while (progress_.next_open(0) == 1) progress_.take(1, progress_.peek(1));
    EXPECT_EQ(progress_.skipped_tiles(), 12u - static_cast<std::uint32_t>(now));
    EXPECT_EQ(progress_.next_open(0), 2u);
  }
}

TEST_F(Drafts, AReportThatDoesNotComeLeavesAllToTheDevice) {
  begin();
  progress_.take_draft(1, 12);
  progress_.report_absent(0);
  EXPECT_TRUE(progress_.draft_runs(1, 11));
  EXPECT_EQ(progress_.skipped_tiles(), 0u);
}

}  // namespace
}  // namespace ccks::scheduler
