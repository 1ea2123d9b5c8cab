// WorkerLinks: what a done record answers.
#include "scheduler/worker_links.hpp"

#include <gtest/gtest.h>

#include <array>
#include <vector>

namespace ccks::scheduler {
namespace {

constexpr wire::u32 kSlots = 8;

class WorkerLinksTest : public ::testing::Test {
 protected:
  WorkerLinksTest() {
    wire::WorkerParams params{};
    params.inboxes = reinterpret_cast<wire::u64>(inbox_.data());
    params.outboxes = reinterpret_cast<wire::u64>(outbox_.data());
    params.host_lines = reinterpret_cast<wire::u64>(&line_);
    params.workers = params.slots = 1;
    params.inbox_slots = params.outbox_slots = kSlots;
    links_.reserve(params);
  }
  void send(wire::u32 first, wire::u32 tiles, wire::u32 chunk, std::uint16_t op) {
    Decision decision;
    decision.tile = wire::Task::pack_tiles(first, std::min(chunk, tiles));
    decision.amount = tiles;
    decision.tasks = static_cast<std::uint16_t>((tiles + chunk - 1) / chunk);
    decision.op = op;
    links_.send(decision, 5);
  }
  bool take(wire::u32 finished) {
    taken_.clear();
    return links_.take_answered(0, finished, last_, [this](const SentTasks& sent) { taken_.push_back(sent); });
  }

  std::array<wire::Task, kSlots> inbox_{};
  std::array<wire::Record, kSlots> outbox_{};
  wire::HostLine line_{};
  WorkerLinks<wire::HostAtoms> links_;
  std::vector<SentTasks> taken_;
  LastTask last_;
};

TEST_F(WorkerLinksTest, ADecisionOfManyTilesIsFullTasksAndARest) {
  send(10, 7, 3, 2);
  wire::RingConsumer<wire::Task, wire::HostAtoms> inbox(inbox_.data(), kSlots, 0);
  const wire::u32 want[][2] = {{10, 3}, {13, 3}, {16, 1}};
  for (const auto& [first, count] : want) {
    wire::Task task;
    ASSERT_TRUE(inbox.poll(task));
    EXPECT_EQ(task.first_tile(), first);
    EXPECT_EQ(task.tile_count(), count);
    EXPECT_EQ(task.epoch, 5u);
  }
  wire::Task none;
  EXPECT_FALSE(inbox.poll(none));
}

TEST_F(WorkerLinksTest, AVerdictChangesNothingOfADraftButItsFlags) {
  send(0, 1, 1, 1);
  Decision draft;
  draft.tile = wire::Task::pack_tiles(4, 2);
  draft.amount = 4;
  draft.tasks = 2;
  draft.op = 3;
  draft.slot_flags = wire::kTaskDraft;
  const std::uint32_t position = links_.send(draft, 5);
  EXPECT_EQ(position, 1u);
  const auto at = [this](std::uint32_t p) { return wire::from_words<wire::Task>(wire::HostAtoms::load_slot_acquire(&inbox_[p])); };
  EXPECT_EQ(at(1).slot_flags, wire::kTaskDraft);
  const wire::Task before = at(2);
  links_.send_verdict(0, {wire::Task::pack_tiles(6, 2), 5, 3, wire::kTaskSkip, 0}, position + 1);
  const wire::Task after = at(2);
  EXPECT_EQ(after.slot_flags, wire::kTaskSkip);
  EXPECT_EQ(after.tile, before.tile);
  EXPECT_EQ(after.epoch, before.epoch);
  EXPECT_EQ(after.op, before.op);
  EXPECT_EQ(after.seq, before.seq);
  EXPECT_EQ(at(1).slot_flags, wire::kTaskDraft) << "the other task has no verdict yet";
  EXPECT_TRUE(take(3));
}

TEST_F(WorkerLinksTest, ACountAnswersAllTasksUpToIt) {
  send(0, 7, 3, 1);
  send(20, 1, 1, 2);
  ASSERT_TRUE(take(2));
  ASSERT_EQ(taken_.size(), 1u);
  EXPECT_EQ(taken_[0].tasks, 2u);
  EXPECT_EQ(taken_[0].amount, 6u);
  EXPECT_EQ(last_.op, 1u);
  ASSERT_TRUE(take(4));
  ASSERT_EQ(taken_.size(), 2u);
  EXPECT_EQ(taken_[0].tasks, 1u);
  EXPECT_EQ(taken_[0].amount, 1u);
  EXPECT_EQ(last_.op, 2u);
}

TEST_F(WorkerLinksTest, WhoeverOwesAnAnswerIsBusy) {
  const auto busy = [this] {
    std::uint32_t found = 0;
    links_.for_each_busy([&](std::uint32_t worker) { found += worker + 1; });
    return found;
  };
  EXPECT_EQ(busy(), 0u);
  send(0, 3, 1, 1);
  EXPECT_EQ(busy(), 1u);
  ASSERT_TRUE(take(2));
  EXPECT_EQ(busy(), 1u);
  ASSERT_TRUE(take(3));
  EXPECT_EQ(busy(), 0u);
}

TEST_F(WorkerLinksTest, OneDecisionMaySendConsecutiveOps) {
  Decision decision;
  decision.tile = wire::Task::pack_tiles(0, 2);
  decision.amount = 8;
  decision.tasks = 4;
  decision.op = decision.target = 7;
  decision.op_step = 1;
  links_.send(decision, 5);
  for (const wire::u16 op : {7, 8, 9, 10}) {
    const wire::Task& task = inbox_[op - 7u];
    EXPECT_EQ(task.op, op);
    EXPECT_EQ(task.first_tile(), 0u);
    EXPECT_EQ(task.tile_count(), 2u);
    EXPECT_EQ(task.seq, op - 6u);
  }
  ASSERT_TRUE(take(3));
  EXPECT_EQ(taken_[0].op, 7u);
  EXPECT_EQ(taken_[0].tasks, 3u);
  EXPECT_EQ(last_.op, 9u) << "the record names the last op it answers";
  EXPECT_EQ(links_.unanswered(0, 0).op, 10u);
  EXPECT_EQ(links_.unanswered(0, 0).amount, 2u);
  ASSERT_TRUE(take(4));
  EXPECT_EQ(last_.op, 10u);
  EXPECT_EQ(links_.unanswered_count(0), 0u);
}

TEST_F(WorkerLinksTest, ACountThatAnswersNothingIsRefused) {
  EXPECT_FALSE(take(1)) << "nothing was sent";
  send(0, 3, 1, 1);
  EXPECT_FALSE(take(0)) << "stands still";
  EXPECT_FALSE(take(4)) << "past what was sent";
  ASSERT_TRUE(take(2));
  EXPECT_FALSE(take(2));
  EXPECT_FALSE(take(1)) << "goes back";
  EXPECT_TRUE(taken_.empty());
  EXPECT_TRUE(take(3));
}

TEST_F(WorkerLinksTest, CountsGoOnPastTheEndOfTheRing) {
  for (wire::u32 done = 0; done < 5 * kSlots; done += 5) {
    send(done, 5, 1, 3);
    ASSERT_TRUE(take(done + 3)) << done;
    ASSERT_TRUE(take(done + 5)) << done;
    ASSERT_EQ(taken_[0].tasks, 2u);
    EXPECT_EQ(taken_[0].tile, done + 3);
  }
}

}  // namespace
}  // namespace ccks::scheduler
