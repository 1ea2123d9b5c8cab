// WorkerLoads::choose and RunOrder.
#include <gtest/gtest.h>

#include "scheduler/policy.hpp"
#include "scheduler/run_order.hpp"

namespace ccks::scheduler {
namespace {

TEST(WorkerLoads, PrefersAffinityUntilTheLoadIsUneven) {
  WorkerLoads loads;
  loads.reserve(4, 256);
  EXPECT_EQ(loads.choose(2, 100, 64), 2u);
  for (int i = 0; i < 20; ++i) loads.add(2, 100);
  EXPECT_NE(loads.choose(2, 100, 64), 2u);
  for (int i = 0; i < 20; ++i) loads.remove(2, 100);
  EXPECT_EQ(loads.choose(2, 100, 64), 2u);
  EXPECT_EQ(loads.total_tasks(), 0u);
}

TEST(WorkerLoads, NeverChoosesAFullWorker) {
  WorkerLoads loads;
  loads.reserve(3, 256);
  for (int i = 0; i < 3 * 4; ++i) {
    // Everybody is preferred in turn, so that nobody is full before the others are nearly.
    const std::uint32_t worker = loads.choose(static_cast<std::uint32_t>(i) % 3, 10, 4);
    ASSERT_NE(worker, plan::kNone);
    ASSERT_LT(loads.tasks(worker), 4u);
    loads.add(worker, 10);
  }
  EXPECT_EQ(loads.choose(0, 10, 4), plan::kNone);
}

TEST(WorkerLoads, SpillsFromAFullWorkerOnlyIfOthersHaveLittle) {
  WorkerLoads loads;
  loads.reserve(2, 256);
  for (int i = 0; i < 64; ++i) loads.add(0, 10);
  EXPECT_EQ(loads.choose(0, 10, 64), 1u);
  for (int i = 0; i < 60; ++i) loads.add(1, 10);
  EXPECT_EQ(loads.choose(0, 10, 64), plan::kNone);
}

TEST(WorkerLoads, FairTasksIsAsManyAsChoosingOneByOneWouldGiveAWorker) {
  for (const std::uint32_t workers : {1u, 2u, 7u, 132u}) {
    for (const std::uint32_t before : {0u, 1u, 5u, 30u}) {
      WorkerLoads one_by_one;
      one_by_one.reserve(workers, 256);
      for (std::uint32_t i = 0; i < before; ++i) one_by_one.add(i % workers, 40);
      WorkerLoads at_once = one_by_one;
      std::uint32_t count = 0;
      do {
        one_by_one.add(0, 100);
        ++count;
      } while (count < 64 && one_by_one.choose_fair(0, one_by_one.fair_load(100), 1000) == 0);
      EXPECT_EQ(at_once.fair_tasks(0, 100, 64), count) << workers << " workers, " << before << " tasks before";
    }
  }
}

TEST(RunOrder, OneHolderAtATimeInOrder) {
  RunOrder order;
  order.reserve(4, 2, 2);
  EXPECT_TRUE(order.enter(0, 0));
  EXPECT_FALSE(order.enter(1, 0));
  EXPECT_FALSE(order.enter(4, 0));
  EXPECT_TRUE(order.enter(2, 1));
  std::vector<std::uint32_t> waiting;
  order.for_each_waiting([&](std::uint32_t e) { waiting.push_back(e); });
  EXPECT_EQ(waiting, (std::vector<std::uint32_t>{1, 4}));
  EXPECT_EQ(order.leave(0), 1u);
  EXPECT_EQ(order.leave(0), 4u);
  EXPECT_EQ(order.leave(0), plan::kNone);
  EXPECT_TRUE(order.enter(3, 0));
}

TEST(Policies, NamesAreParsed) {
  EXPECT_EQ(*parse_policy("static"), PolicyKind::fixed);
  EXPECT_EQ(*parse_policy("lookahead"), PolicyKind::lookahead);
  EXPECT_EQ(parse_policy("").status().code(), ErrorCode::invalid_argument);
}

}  // namespace
}  // namespace ccks::scheduler
