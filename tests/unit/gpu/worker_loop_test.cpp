// The worker loop, one lane, stepped by hand: what it does for each kind of task, and how it leaves.
#include "ccks/worker/worker_loop.hpp"

#include <gtest/gtest.h>

#include "tests/unit/gpu/fake_platform.hpp"
#include "tests/unit/gpu/harness.hpp"

namespace ccks::gpu::testing {
namespace {

/// CountingOps that also notes the order of prefetches and bodies.
struct NotingOps : CountingOps {
  static inline std::vector<std::string> notes;
  template <class Lanes>
  static wire::FaultCode run(Lanes& lanes, const wire::RunFrame& frame, const wire::OpParams& op, u32 tile) {
    notes.push_back("run " + std::to_string(tile));
    return CountingOps::run(lanes, frame, op, tile);
  }
  static void prefetch(u32, u32, const wire::RunFrame&, const wire::OpParams&, u32 tile) {
    notes.push_back("prefetch " + std::to_string(tile));
  }
};

class WorkerLoopTest : public ::testing::Test {
 protected:
  using Loop = worker::WorkerLoop<FakePlatform, NotingOps>;

  void SetUp() override {
    DeviceOptions options;
    options.kind = "host";
    options.workers = 1;
    device_ = std::move(open_device(options).value());
    rig_ = std::make_unique<Rig>(*device_, 1, 8);
    rig_->params.spin_deadline_ns = 1'000'000;
    platform_.counts.events = rig_->events;
    NotingOps::notes.clear();
    // Unless a test says otherwise, a worker with nothing to do is told to leave.
    platform_.on_idle = [this] { host_line().park = wire::kParkAfterTask; };
  }

  /// Runs a worker until it leaves; its state.
  wire::WorkerState run() {
    host_line().park = wire::kParkNo;
    rig_->install(frame_);
    Loop loop(platform_, rig_->params, 0);
    loop.run();
    return static_cast<wire::WorkerState>(rig_->line(0).state);
  }
  std::vector<wire::Record> records() { return rig_->take(0); }
  wire::HostLine& host_line() { return *reinterpret_cast<wire::HostLine*>(rig_->params.host_lines); }
  u32* events() { return reinterpret_cast<u32*>(rig_->events); }
  u32* words() { return reinterpret_cast<u32*>(rig_->arena); }
  void expect_fault(wire::FaultCode code) {
    EXPECT_EQ(run(), wire::WorkerState::faulted);
    EXPECT_EQ(static_cast<wire::FaultCode>(rig_->line(0).fault), code);
    const auto all = records();
    ASSERT_FALSE(all.empty());
    EXPECT_EQ(all.back().kind(), wire::RecordKind::fault);
    EXPECT_EQ(all.back().value, static_cast<u32>(code));
  }

  std::unique_ptr<Device> device_;
  std::unique_ptr<Rig> rig_;
  FakePlatform platform_;
  FrameBuilder frame_;
};

TEST_F(WorkerLoopTest, AnswersEveryInboxTaskInOrder) {
  frame_.add_op(4, 8);
  rig_->send(0, 0, wire::Task::pack_tiles(1, 2), 5);
  rig_->send(0, wire::kOpNop, 77, 6);
  rig_->send(0, 0, 3, 7);
  EXPECT_EQ(run(), wire::WorkerState::parked);
  const auto all = records();
  ASSERT_EQ(all.size(), 4u);
  EXPECT_EQ(all[0].value, wire::Task::pack_tiles(1, 2));
  EXPECT_EQ(all[0].epoch, 5u);
  EXPECT_EQ(all[1].op, wire::kOpNop);
  EXPECT_EQ(all[1].value, 77u);
  EXPECT_EQ(all[2].epoch, 7u);
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

TEST_F(WorkerLoopTest, WaitDeadlineOnTheVirtualClock) {
  frame_.add_op(1, 8);
  frame_.wait_one(0, 4);
  frame_.bases = {0};
  events()[0] = 3;
  platform_.on_relax = [&] { platform_.clock += 10'000; };
  rig_->send(0, 0, 0, 0);
  expect_fault(wire::FaultCode::wait_deadline);
  EXPECT_EQ(rig_->line(0).fault_event, 0u);
  EXPECT_EQ(rig_->line(0).fault_value, 3u);
  EXPECT_EQ(rig_->line(0).fault_target, 4u);
}

TEST_F(WorkerLoopTest, AbandonEndsAWait) {
  frame_.add_op(1, 8);
  frame_.wait_one(0, 4);
  frame_.bases = {0};
  platform_.on_relax = [&] { host_line().park = wire::kParkAbandon; };
  rig_->send(0, 0, 0, 0);
  expect_fault(wire::FaultCode::abandoned);
}

TEST_F(WorkerLoopTest, ParkRequestDoesNotEndAWait) {
  frame_.add_op(1, 8);
  frame_.wait_one(0, 1);
  frame_.bases = {0};
  int turns = 0;
  platform_.on_relax = [&] {
    host_line().park = wire::kParkAfterTask;
    if (++turns == 500) events()[0] = 1;
  };
  rig_->send(0, 0, 0, 0);
  EXPECT_EQ(run(), wire::WorkerState::parked);
  EXPECT_EQ(words()[8], 1u);
}

TEST_F(WorkerLoopTest, WithoutCreditNoTaskIsBegun) {
  frame_.add_op(1, 8);
  // Seven of eight outbox slots are taken and not yet consumed.
  for (int i = 0; i < 7; ++i) rig_->send(0, wire::kOpNop, 0);
  rig_->send(0, 0, 0);
  EXPECT_EQ(run(), wire::WorkerState::parked);  // eight done records; no room for the parked record
  EXPECT_EQ(words()[8], 1u);
  EXPECT_EQ(rig_->line(0).outbox_position, 8u);
  rig_->inboxes[0].credit_more(2);
  rig_->send(0, 0, 0);
  int turns = 0;
  platform_.on_relax = [&] {
    ++turns;
    EXPECT_EQ(words()[8], 1u);
    if (turns == 3) records();  // now the scheduler reads, and gives credit
  };
  EXPECT_EQ(run(), wire::WorkerState::parked);
  EXPECT_EQ(turns, 3);
  EXPECT_EQ(words()[8], 2u);
}

TEST_F(WorkerLoopTest, OutboxThatStaysFullIsAFault) {
  for (int i = 0; i < 8; ++i) rig_->send(0, wire::kOpNop, 0);
  EXPECT_EQ(run(), wire::WorkerState::parked);
  rig_->inboxes[0].credit_more(1);
  rig_->send(0, wire::kOpNop, 0);
  platform_.on_relax = [&] { platform_.clock += 10'000; };
  EXPECT_EQ(run(), wire::WorkerState::faulted);
  EXPECT_EQ(static_cast<wire::FaultCode>(rig_->line(0).fault), wire::FaultCode::outbox_full);
  EXPECT_EQ(rig_->line(0).inbox_position, 8u);
}

TEST_F(WorkerLoopTest, ParkTaskLeavesTheRestOfTheInboxForTheNextLaunch) {
  frame_.add_op(1, 8);
  rig_->send(0, 0, 0);
  rig_->send(0, wire::kOpPark, 0);
  rig_->send(0, 0, 0);  // staged with the others, but not begun
  EXPECT_EQ(run(), wire::WorkerState::parked);
  EXPECT_EQ(words()[8], 1u);
  EXPECT_EQ(rig_->line(0).inbox_position, 2u);
  const auto first = records();
  ASSERT_EQ(first.size(), 3u);
  EXPECT_EQ(first[1].op, wire::kOpPark);
  EXPECT_EQ(first[2].kind(), wire::RecordKind::parked);
  EXPECT_EQ(first[2].value, static_cast<u32>(wire::ParkReason::requested));
  EXPECT_EQ(run(), wire::WorkerState::parked);
  EXPECT_EQ(words()[8], 2u);
  EXPECT_EQ(records().size(), 2u);
}

TEST_F(WorkerLoopTest, HeartbeatMustMove) {
  rig_->params.heartbeat_limit_ns = 50'000;
  int polls = 0;
  platform_.on_idle = [&] {
    platform_.clock += 20'000;
    if (++polls < 20) ++host_line().heartbeat_ns;
  };
  EXPECT_EQ(run(), wire::WorkerState::parked);
  EXPECT_EQ(rig_->line(0).park_reason, static_cast<u32>(wire::ParkReason::stale_heartbeat));
  EXPECT_GT(polls, 20);
  EXPECT_LT(polls, 26);
}

TEST_F(WorkerLoopTest, IdleLimitCountsFromTheLastTask) {
  rig_->params.idle_limit_ns = 50'000;
  int polls = 0;
  platform_.on_idle = [&] {
    platform_.clock += 20'000;
    if (++polls == 2) rig_->send(0, wire::kOpNop, 0);
  };
  EXPECT_EQ(run(), wire::WorkerState::parked);
  EXPECT_EQ(rig_->line(0).park_reason, static_cast<u32>(wire::ParkReason::idle));
  EXPECT_GT(polls, 4);
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
