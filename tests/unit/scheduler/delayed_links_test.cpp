#include "scheduler/delayed_links.hpp"

#include <gtest/gtest.h>

#include <array>

namespace ccks::scheduler {
namespace {

constexpr wire::u32 kSlots = 4;
constexpr std::uint64_t kDelayNs = 1000;

/// One worker's end of the rings, by hand.
class DelayedLinksTest : public ::testing::Test {
 protected:
  DelayedLinksTest() {
    wire::WorkerParams params{};
    params.inboxes = reinterpret_cast<wire::u64>(inbox_.data());
    params.outboxes = reinterpret_cast<wire::u64>(outbox_.data());
    params.host_lines = reinterpret_cast<wire::u64>(&line_);
    params.workers = params.slots = 1;
    params.inbox_slots = params.outbox_slots = kSlots;
    links_.reserve(params, {}, kDelayNs);
    tasks_ = {inbox_.data(), kSlots, 0};
    records_ = {outbox_.data(), kSlots, 0};
  }

  void send(wire::u32 tile) {
    Decision decision;
    decision.tile = tile;
    links_.send(decision, 7);
  }
  bool turn(std::uint64_t now_ns) {
    return links_.turn(now_ns, [this](std::uint32_t worker) { rung_ += worker + 1; });
  }

  std::array<wire::Task, kSlots> inbox_{};
  std::array<wire::Record, kSlots> outbox_{};
  wire::HostLine line_{};
  DelayedLinks<wire::HostAtoms> links_;
  wire::RingConsumer<wire::Task, wire::HostAtoms> tasks_;
  wire::RingWriter<wire::Record, wire::HostAtoms> records_;
  std::uint32_t rung_ = 0;
};

TEST_F(DelayedLinksTest, TasksArriveInOrderWhenTheirTimeHasCome) {
  turn(100);
  send(1);
  turn(600);
  send(2);
  wire::Task task;
  EXPECT_TRUE(turn(100 + kDelayNs - 1));
  EXPECT_FALSE(tasks_.poll(task));
  EXPECT_TRUE(turn(100 + kDelayNs));
  ASSERT_TRUE(tasks_.poll(task));
  EXPECT_EQ(task.tile, 1u);
  EXPECT_EQ(task.epoch, 7u);
  EXPECT_FALSE(tasks_.poll(task));
  EXPECT_FALSE(turn(600 + kDelayNs));
  ASSERT_TRUE(tasks_.poll(task));
  EXPECT_EQ(task.tile, 2u);
  EXPECT_EQ(rung_, 2u);
}

TEST_F(DelayedLinksTest, RecordsAreSeenWhenTheirTimeHasCome) {
  records_.put_release({1, 0, 0, 0, 0});
  wire::Record record;
  EXPECT_TRUE(turn(50));
  EXPECT_FALSE(links_.poll(0, record));
  turn(50 + kDelayNs - 1);
  EXPECT_FALSE(links_.poll(0, record));
  turn(50 + kDelayNs);
  ASSERT_TRUE(links_.poll(0, record));
  EXPECT_EQ(record.value, 1u);
  EXPECT_FALSE(turn(50 + kDelayNs));
}

TEST_F(DelayedLinksTest, NothingIsLostWhereMoreArrivesThanIsHeld) {
  std::uint32_t next = 0, seen = 0;
  wire::Record record;
  for (std::uint64_t now = 0; now < 40'000; now += 300) {
    // A worker writes as far as its credit goes.
    while (next - line_.outbox_consumed < kSlots) records_.put_release({next++, 0, 0, 0, 0});
    turn(now);
    while (links_.poll(0, record)) EXPECT_EQ(record.value, seen++);
    links_.acknowledge(0);
  }
  EXPECT_GT(seen, 100u);
  EXPECT_LE(next - seen, 2 * kSlots);
}

}  // namespace
}  // namespace ccks::scheduler
