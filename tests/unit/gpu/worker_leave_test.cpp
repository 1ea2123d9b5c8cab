// How a worker leaves: parked, idle, left alone, out of credit, out of patience; and what it leaves behind.

#include <gtest/gtest.h>

#include "tests/unit/gpu/worker_loop_fixture.hpp"

namespace ccks::gpu::testing {
namespace {

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
  rig_->params.spin_deadline_ns = 3'600'000'000'000;
  frame_.add_op(1, 8);
  frame_.wait_one(0, 4);
  frame_.bases = {0};
  int turns = 0;
  platform_.on_relax = [&] {
    host_line().park = wire::kParkAbandon;
    if (++turns == 10'000) events()[0] = 4;  // lets a worker go that does not listen
  };
  rig_->send(0, 0, 0, 0);
  expect_fault(wire::FaultCode::abandoned);
  EXPECT_LT(turns, 1000);
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

TEST_F(WorkerLoopTest, SuspendEndsAWaitAndTheNextLaunchGoesOnAtItsTile) {
  // Four tiles, each waiting for an event of its own; two have arrived.
  frame_.add_op(4, 8);
  frame_.signal_one(4, 4);
  frame_.wait_one(0, 1);
  frame_.waits.back().axis[0] = {3, 1, 0, 1, 4, 1, 1, 0};
  frame_.bases = {0, 0, 0, 0, 0};
  events()[0] = events()[1] = 1;
  platform_.on_relax = [&] { host_line().park = wire::kParkSuspend; };
  rig_->send(0, 0, wire::Task::pack_tiles(0, 4), 0);
  EXPECT_EQ(run(), wire::WorkerState::parked);
  EXPECT_EQ(rig_->line(0).inbox_position, 0u);
  EXPECT_EQ(rig_->line(0).resume_tile, 2u);
  EXPECT_EQ(events()[4], 2u) << "what is finished is signalled before the worker leaves";
  for (u32 word = 8; word < 12; ++word) EXPECT_EQ(words()[word], word < 10 ? 1u : 0u);
  events()[2] = events()[3] = 1;
  EXPECT_EQ(run(), wire::WorkerState::parked);
  for (u32 word = 8; word < 12; ++word) EXPECT_EQ(words()[word], 1u) << "lost, or run twice: tile " << word - 8;
  EXPECT_EQ(events()[4], 4u);
  EXPECT_EQ(rig_->line(0).inbox_position, 1u);
  EXPECT_EQ(rig_->line(0).resume_tile, 0u);
}

TEST_F(WorkerLoopTest, ALaunchThatLeavesBeforeItBeginsKeepsWhereToGoOn) {
  frame_.add_op(4, 8);
  frame_.wait_one(0, 1);
  frame_.waits.back().axis[0] = {3, 1, 0, 1, 4, 1, 1, 0};
  frame_.bases = {0, 0, 0, 0};
  events()[0] = events()[1] = 1;
  platform_.on_relax = [&] { host_line().park = wire::kParkSuspend; };
  rig_->send(0, 0, wire::Task::pack_tiles(0, 4), 0);
  EXPECT_EQ(run(), wire::WorkerState::parked);
  EXPECT_EQ(rig_->line(0).resume_tile, 2u);
  host_line().outbox_consumed = rig_->line(0).outbox_position - 8;  // full
  EXPECT_EQ(run(), wire::WorkerState::parked);
  EXPECT_EQ(rig_->line(0).resume_tile, 2u) << "it has not begun: nothing has changed";
  host_line().outbox_consumed = rig_->line(0).outbox_position;
  events()[2] = events()[3] = 1;
  EXPECT_EQ(run(), wire::WorkerState::parked);
  for (u32 word = 8; word < 12; ++word) EXPECT_EQ(words()[word], 1u) << "lost, or run twice: tile " << word - 8;
}

TEST_F(WorkerLoopTest, ASuspendedListGoesOnWithItsTask) {
  frame_.add_op(3, 8);
  frame_.add_op(3, 16);
  frame_.wait_one(0, 1);
  frame_.bases = {0};
  frame_.lists = {{0, 3}};
  frame_.list_tasks.resize(3);
  for (u32 i = 0; i < 3; ++i) {
    frame_.list_tasks[i].op = i == 1 ? 1 : 0;
    frame_.list_tasks[i].tile = wire::Task::pack_tiles(0, i == 2 ? 1 : 3);
  }
  platform_.on_relax = [&] { host_line().park = wire::kParkSuspend; };
  rig_->send(0, wire::kOpList, 0);
  EXPECT_EQ(run(), wire::WorkerState::parked);
  EXPECT_EQ(rig_->line(0).resume_list_task, 1u);
  EXPECT_EQ(words()[8], 1u);
  EXPECT_EQ(words()[16], 0u);
  for (int again = 0; again < 3; ++again) EXPECT_EQ(run(), wire::WorkerState::parked);  // still nothing to do
  events()[0] = 1;
  EXPECT_EQ(run(), wire::WorkerState::parked);
  EXPECT_EQ(words()[8], 2u);
  for (u32 word : {9u, 10u, 16u, 17u, 18u}) EXPECT_EQ(words()[word], 1u) << word;
  EXPECT_EQ(rig_->line(0).inbox_position, 1u);
}

TEST_F(WorkerLoopTest, AStaleHeartbeatEndsAWaitWithoutAFault) {
  rig_->params.heartbeat_limit_ns = 50'000;
  frame_.add_op(1, 8);
  frame_.wait_one(0, 1);
  frame_.bases = {0};
  platform_.on_relax = [&] { platform_.clock += 1'000; };
  rig_->send(0, 0, 0, 0);
  EXPECT_EQ(run(), wire::WorkerState::parked);
  EXPECT_EQ(rig_->line(0).park_reason, static_cast<u32>(wire::ParkReason::stale_heartbeat));
  events()[0] = 1;
  EXPECT_EQ(run(), wire::WorkerState::parked);
  EXPECT_EQ(words()[8], 1u);
}

TEST_F(WorkerLoopTest, TimeInWhichTheProcessWasStoppedIsNoPatienceSpent) {
  rig_->params.spin_deadline_ns = 1'000'000'000;
  frame_.add_op(1, 8);
  frame_.wait_one(0, 1);
  frame_.bases = {0};
  int turns = 0;
  platform_.on_relax = [&] {
    if (++turns == 200) platform_.clock += 3'600'000'000'000;  // an hour
    if (turns == 400) events()[0] = 1;
  };
  rig_->send(0, 0, 0, 0);
  EXPECT_EQ(run(), wire::WorkerState::parked);
  EXPECT_EQ(words()[8], 1u);
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

}  // namespace
}  // namespace ccks::gpu::testing
