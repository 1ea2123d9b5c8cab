// BoundedQueue: order with one consumer, bounds, and nothing lost or doubled with many of both.
#include "scheduler/bounded_queue.hpp"

#include <gtest/gtest.h>

#include <thread>

namespace ccks::scheduler {
namespace {

TEST(BoundedQueue, FirstInFirstOutOverManyRounds) {
  BoundedQueue<int> queue(4);
  int value = 0;
  EXPECT_FALSE(queue.pop(value));
  for (int round = 0; round < 100; ++round) {
    for (int i = 0; i < 3; ++i) ASSERT_TRUE(queue.push(round * 3 + i));
    for (int i = 0; i < 3; ++i) {
      ASSERT_TRUE(queue.pop(value));
      EXPECT_EQ(value, round * 3 + i);
    }
    EXPECT_FALSE(queue.pop(value));
  }
}

TEST(BoundedQueue, RefusesWhatDoesNotFit) {
  BoundedQueue<int> queue(4);
  for (int i = 0; i < 4; ++i) ASSERT_TRUE(queue.push(i));
  EXPECT_FALSE(queue.push(4));
  int value = -1;
  ASSERT_TRUE(queue.pop(value));
  EXPECT_EQ(value, 0);
  EXPECT_TRUE(queue.push(5));
}

TEST(BoundedQueue, ManyProducersAndConsumersLoseAndDoubleNothing) {
  constexpr std::uint32_t kThreads = 3, kEach = 20'000;
  BoundedQueue<std::uint32_t> queue(8);
  std::vector<std::atomic<std::uint32_t>> seen(kThreads * kEach);
  std::atomic<std::uint32_t> taken{0};
  std::vector<std::thread> threads;
  for (std::uint32_t t = 0; t < kThreads; ++t) {
    threads.emplace_back([&, t] {
      for (std::uint32_t i = 0; i < kEach; ++i) {
        while (!queue.push(t * kEach + i)) std::this_thread::yield();
      }
    });
    threads.emplace_back([&] {
      std::uint32_t value = 0;
      while (taken.load(std::memory_order_relaxed) < kThreads * kEach) {
        if (!queue.pop(value)) {
          std::this_thread::yield();
          continue;
        }
        seen[value].fetch_add(1, std::memory_order_relaxed);
        taken.fetch_add(1, std::memory_order_relaxed);
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  for (const auto& count : seen) ASSERT_EQ(count.load(std::memory_order_relaxed), 1u);
}

}  // namespace
}  // namespace ccks::scheduler
