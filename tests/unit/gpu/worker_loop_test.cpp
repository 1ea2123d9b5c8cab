// The worker loop, one lane, stepped by hand: what it does for each kind of task.

#include <gtest/gtest.h>

#include "tests/unit/gpu/worker_loop_fixture.hpp"

namespace ccks::gpu::testing {
namespace {

TEST_F(WorkerLoopTest, AnswersEveryInboxTaskInOrder) {
  frame_.add_op(4, 8);
  rig_->send(0, 0, wire::Task::pack_tiles(1, 2), 5);
  rig_->send(0, wire::kOpNop, 77, 6);
  rig_->send(0, 0, 3, 7);
  EXPECT_EQ(run(), wire::WorkerState::parked);
  const auto all = records();
  ASSERT_EQ(all.size(), 4u);
  EXPECT_EQ(all[0].value, 1u);
  EXPECT_EQ(all[0].epoch, 5u);
  EXPECT_EQ(all[1].op, wire::kOpNop);
  EXPECT_EQ(all[1].value, 2u);
  EXPECT_EQ(all[2].epoch, 7u);
  EXPECT_EQ(all[2].value, 3u);
  EXPECT_EQ(all[3].kind(), wire::RecordKind::parked);
  EXPECT_EQ(words()[8], 0u);
  EXPECT_EQ(words()[9], 1u);
  EXPECT_EQ(words()[11], 1u);
  EXPECT_EQ(rig_->line(0).inbox_position, 3u);
  EXPECT_EQ(rig_->line(0).outbox_position, 4u);
}

TEST_F(WorkerLoopTest, ListInheritsEpochSlotAndFlags) {
  frame_.add_op(2, 8);
  frame_.signal_one(0, 2);
  frame_.add_op(1, 20);
  frame_.wait_one(0, 2);
  frame_.bases = {0};
  wire::Task first, second, signal;
  first.tile = wire::Task::pack_tiles(0, 2);
  second.op = 1;
  signal.op = wire::kOpSignal;
  signal.epoch = 9;  // its own amount, not the run
  frame_.list_tasks = {second, first, second, signal};
  frame_.lists = {{0, 0}, {1, 3}};
  events()[0] = 3 * 2 + 9 * 0;  // three runs done
  rig_->send(0, wire::kOpList, 1, 3);
  EXPECT_EQ(run(), wire::WorkerState::parked);
  EXPECT_EQ(words()[20], 1u);
  EXPECT_EQ(events()[0], 3 * 2 + 2 + 9u);
  EXPECT_EQ(records().size(), 2u);
  rig_->send(0, wire::kOpList, 1, 4, wire::kTaskSkip);
  EXPECT_EQ(run(), wire::WorkerState::parked);
  EXPECT_EQ(words()[8], 1u) << "a skipped list runs no body";
  EXPECT_EQ(words()[20], 1u);
  EXPECT_EQ(events()[0], 3 * 2 + 2 + 9 + 2 + 9u) << "but it signals";
}

TEST_F(WorkerLoopTest, ListTasksWaitForTheEventsOfTheirRun) {
  frame_.add_op(1, 8);
  frame_.wait_one(0, 2);
  frame_.bases = {0};
  frame_.list_tasks.resize(1);
  frame_.lists = {{0, 1}};
  events()[0] = 3 * 2 + 1;  // one short of the fourth run
  int waits = 0;
  platform_.on_relax = [&] {
    ++waits;
    ++events()[0];
  };
  rig_->send(0, wire::kOpList, 0, 3);
  EXPECT_EQ(run(), wire::WorkerState::parked);
  EXPECT_EQ(waits, 1);
}

TEST_F(WorkerLoopTest, EmptyListIsAnswered) {
  frame_.lists = {{0, 0}};
  rig_->send(0, wire::kOpList, 0, 0);
  EXPECT_EQ(run(), wire::WorkerState::parked);
  EXPECT_EQ(records().size(), 2u);
}

TEST_F(WorkerLoopTest, SignalTaskAddsItsEpoch) {
  frame_.bases = {0, 0, 0};
  rig_->send(0, wire::kOpSignal, 2, 41);
  EXPECT_EQ(run(), wire::WorkerState::parked);
  EXPECT_EQ(events()[2], 41u);
}

TEST_F(WorkerLoopTest, ASignalsAmountIsNotTheEpochOfARun) {
  frame_.add_op(1, 8);
  frame_.wait_one(0, 1);
  frame_.bases = {0, 0};
  rig_->send(0, wire::kOpSignal, 1, 1);  // adds 1; the next run's epoch is 1, too
  bool sent = false;
  platform_.on_idle = [&] {
    if (sent) {
      host_line().park = wire::kParkAfterTask;
      return;
    }
    sent = true;
    frame_.bases = {0u - 3, 0};
    rig_->install(frame_, 1);
    events()[0] = 0u - 2;  // complete by these bases; by those before it would have to stand at 2
    rig_->send(0, 0, 0, 1);
  };
  platform_.on_relax = [&] { platform_.clock += 10'000; };
  EXPECT_EQ(run(), wire::WorkerState::parked);
  EXPECT_EQ(words()[8], 1u) << "the frame of the run before was taken for this one's";
}

TEST_F(WorkerLoopTest, SignalsOfOneEventAreSentOnce) {
  frame_.add_op(6, 8);
  frame_.signal_one(0, 6);
  frame_.signals[0] = {0, 3, {3, -1}, {1, 0}, 6, 0};
  frame_.bases.resize(6);
  frame_.add_op(5, 20);
  frame_.signal_one(1, 5);
  rig_->send(0, 1, wire::Task::pack_tiles(0, 5));
  rig_->send(0, 0, wire::Task::pack_tiles(1, 2));
  EXPECT_EQ(run(), wire::WorkerState::parked);
  const std::vector<std::pair<u32, u32>> expected = {{1, 5}, {1, 1}, {2, 1}};
  EXPECT_EQ(platform_.counts.event_adds, expected);
}

TEST_F(WorkerLoopTest, WhatIsFinishedIsSignalledBeforeAWaitThatBlocks) {
  frame_.add_op(2, 8);
  frame_.signal_one(0, 2);
  frame_.wait_one(1, 1);
  frame_.waits[0].axis[0] = {3, 1, 0, 1, 2, 1, 1, 0};  // tile i waits for event 1 + i
  frame_.bases = {0, 0, 0};
  events()[1] = 1;
  u32 seen = 0;
  platform_.on_relax = [&] {
    seen = events()[0];
    events()[2] = 1;
  };
  rig_->send(0, 0, wire::Task::pack_tiles(0, 2));
  EXPECT_EQ(run(), wire::WorkerState::parked);
  EXPECT_EQ(seen, 1u);
  EXPECT_EQ(events()[0], 2u);
}

TEST_F(WorkerLoopTest, ACompleteEventIsReadOnceInATask) {
  frame_.add_op(8, 8);
  frame_.wait_one(0, 1);
  frame_.bases = {0};
  events()[0] = 1;
  rig_->send(0, 0, wire::Task::pack_tiles(0, 8));
  EXPECT_EQ(run(), wire::WorkerState::parked);
  EXPECT_EQ(platform_.counts.event_loads, 1u);
  EXPECT_EQ(words()[15], 1u);
  rig_->send(0, 0, wire::Task::pack_tiles(0, 8), 1);  // the next run must not profit from what was seen
  platform_.on_relax = [&] { events()[0] = 2; };
  EXPECT_EQ(run(), wire::WorkerState::parked);
  EXPECT_EQ(platform_.counts.event_loads, 3u);
}

TEST_F(WorkerLoopTest, WhatWasSeenCompleteBelongsToOneOpOfOneRun) {
  // Ops 0 and 1 wait for different events through rectangles that look the same.
  frame_.add_op(1, 8);
  frame_.wait_one(0, 1);
  frame_.add_op(1, 9);
  frame_.wait_one(1, 1);
  frame_.bases = {0, 0};
  wire::Task first, second;
  second.op = 1;
  frame_.list_tasks = {first, second};
  frame_.lists = {{0, 2}};
  events()[0] = 2;
  int waits = 0;
  platform_.on_relax = [&] {
    ++waits;
    ++events()[1];
  };
  rig_->send(0, wire::kOpList, 0, 0);
  rig_->send(0, 1, 0, 1);
  EXPECT_EQ(run(), wire::WorkerState::parked);
  EXPECT_EQ(waits, 2);
}

TEST_F(WorkerLoopTest, EpochsAndEventsWrap) {
  frame_.add_op(1, 8);
  frame_.wait_one(0, 3);
  frame_.bases = {0xfffffff0u};
  events()[0] = 0xfffffff0u + 3 * 6 - 1;  // one short of the sixth run after epoch0
  int waits = 0;
  platform_.on_relax = [&] {
    ++waits;
    ++events()[0];
  };
  host_line().park = wire::kParkNo;
  rig_->install(frame_, 0xfffffffdu);
  rig_->send(0, 0, 0, 2);  // epochs fffffffd, fe, ff, 0, 1, 2
  Loop loop(platform_, rig_->params, 0);
  loop.run();
  EXPECT_EQ(waits, 1);
  EXPECT_EQ(words()[8], 1u);
}

TEST_F(WorkerLoopTest, GuardsSkipTheBodyButSignal) {
  struct Case {
    wire::Compare how;
    bool is_float, holds;
  };
  words()[0] = 5;
  const float half = 0.5f;
  std::memcpy(&words()[1], &half, sizeof(half));
  const Case cases[] = {{wire::Compare::eq, false, true}, {wire::Compare::ne, false, false}, {wire::Compare::lt, false, false},
                        {wire::Compare::le, false, true}, {wire::Compare::gt, true, true},   {wire::Compare::ge, true, true},
                        {wire::Compare::lt, true, false}};
  u32 ran = 0, signalled = 0;
  for (const Case& each : cases) {
    frame_ = {};
    frame_.add_op(1, 8);
    frame_.signal_one(0, 1);
    wire::GuardParams guard{};
    guard.offset = each.is_float ? 4 : 0;
    guard.compare = static_cast<u32>(each.how);
    guard.is_float = each.is_float;
    if (each.is_float) guard.float_value = 0.25f;
    else guard.int_value = 5;
    frame_.guards = {guard};
    frame_.ops[0].guard_count = 1;
    rig_->send(0, 0, 0);
    EXPECT_EQ(run(), wire::WorkerState::parked);
    ran += each.holds;
    EXPECT_EQ(words()[8], ran);
    EXPECT_EQ(events()[0], ++signalled);
    records();
  }
}

TEST_F(WorkerLoopTest, ReportIsCopiedAndAnnouncedBeforeDone) {
  frame_.add_op(1, 8);
  frame_.ops[0].report = 4;
  frame_.ops[0].report_offset = 16;
  frame_.ops[0].report_bytes = 12;
  frame_.ops[0].report_operand = 0;
  wire::OperandParams operand{};
  operand.offset = 32;  // word 8 of the arena
  frame_.operands = {operand};
  words()[9] = 123;
  rig_->send(0, 0, 0, 11);
  rig_->send(0, 0, 0, 12, wire::kTaskSkip);
  EXPECT_EQ(run(), wire::WorkerState::parked);
  const auto all = records();
  ASSERT_EQ(all.size(), 4u);
  EXPECT_EQ(all[0].kind(), wire::RecordKind::report);
  EXPECT_EQ(all[0].value, 4u);
  EXPECT_EQ(all[0].epoch, 11u);
  EXPECT_EQ(all[1].kind(), wire::RecordKind::done);
  EXPECT_EQ(all[2].kind(), wire::RecordKind::done) << "a skipped op reports nothing";
  const u32* report = reinterpret_cast<const u32*>(rig_->reports + 16);
  EXPECT_EQ(report[0], 1u);
  EXPECT_EQ(report[1], 123u);
}

TEST_F(WorkerLoopTest, TasksThatNameWhatIsNotThereAreFaults) {
  const struct {
    wire::u16 op;
    u32 tile;
    wire::u16 slot;
  } bad[] = {{1, 0, 0}, {0, 4, 0}, {0, wire::Task::pack_tiles(2, 3), 0}, {wire::kOpList, 1, 0}, {wire::kOpSignal, 1, 0}, {0, 0, 1}};
  frame_.add_op(4, 8);
  frame_.signal_one(0, 4);
  frame_.lists = {{0, 0}};
  for (const auto& each : bad) {
    SetUp();
    rig_->send(0, each.op, each.tile, 3, each.slot);
    expect_fault(wire::FaultCode::bad_op);
    EXPECT_EQ(rig_->line(0).fault_epoch, 3u);
    EXPECT_EQ(rig_->line(0).inbox_position, 0u);
    EXPECT_EQ(words()[8], 0u);
  }
}

TEST_F(WorkerLoopTest, FaultOfAnOpStopsTheWorkerAtThatTile) {
  frame_.add_op(3, 8).dims[0] = static_cast<int>(wire::FaultCode::bad_index);
  frame_.signal_one(0, 3);
  rig_->send(0, 0, wire::Task::pack_tiles(1, 2), 8);
  rig_->send(0, 0, 0, 8);
  expect_fault(wire::FaultCode::bad_index);
  EXPECT_EQ(rig_->line(0).fault_tile, 1u);
  EXPECT_EQ(NotingOps::notes.back(), "run 1");
  EXPECT_EQ(events()[0], 0u);
}

TEST_F(WorkerLoopTest, PrefetchesEachTileOnceAndAhead) {
  frame_.add_op(3, 8);
  rig_->send(0, 0, wire::Task::pack_tiles(0, 3));
  EXPECT_EQ(run(), wire::WorkerState::parked);
  const std::vector<std::string> expected = {"prefetch 0", "prefetch 1", "run 0", "prefetch 2", "run 1", "run 2"};
  EXPECT_EQ(NotingOps::notes, expected);
}

TEST_F(WorkerLoopTest, TraceKeepsTheNewestRecords) {
  rig_->params.trace_slots = 2;
  rig_->params.trace = rig_->get(2 * sizeof(wire::TraceRecord), MemoryKind::link);
  frame_.add_op(3, 8);
  for (u32 i = 0; i < 3; ++i) rig_->send(0, 0, i, 40 + i);
  EXPECT_EQ(run(), wire::WorkerState::parked);
  EXPECT_EQ(rig_->line(0).trace_count, 3u);
  const auto* trace = reinterpret_cast<const wire::TraceRecord*>(rig_->params.trace);
  EXPECT_EQ(trace[0].epoch, 42u);
  EXPECT_EQ(trace[0].tile, 2u);
  EXPECT_EQ(trace[1].epoch, 41u);
  EXPECT_GT(trace[0].start_ns, trace[1].start_ns);
  EXPECT_GT(trace[0].run_ns, 0u);
}

}  // namespace
}  // namespace ccks::gpu::testing
