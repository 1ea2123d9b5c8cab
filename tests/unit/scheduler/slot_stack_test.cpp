// SlotStack: the last let go comes first, and nothing is lost or doubled by many threads.
#include "scheduler/slot_stack.hpp"

#include <gtest/gtest.h>

#include <thread>

namespace ccks::scheduler {
namespace {

TEST(SlotStack, TheLastLetGoComesFirst) {
  SlotStack stack(3);
  std::uint32_t slot = 9;
  EXPECT_FALSE(stack.pop(slot));
  for (const std::uint32_t i : {2u, 0u, 1u}) stack.push(i);
  for (const std::uint32_t want : {1u, 0u, 2u}) {
    ASSERT_TRUE(stack.pop(slot));
    EXPECT_EQ(slot, want);
  }
  EXPECT_FALSE(stack.pop(slot));
}

TEST(SlotStack, ManyThreadsNeverHoldTheSameSlot) {
  constexpr std::uint32_t kSlots = 3, kTurns = 50'000;
  SlotStack stack(kSlots);
  std::uint64_t uses[kSlots] = {};  // plain: a slot held twice is a race, and its count comes out too low
  for (std::uint32_t i = 0; i < kSlots; ++i) stack.push(i);
  std::vector<std::thread> threads;
  for (int t = 0; t < 4; ++t) {
    threads.emplace_back([&] {
      for (std::uint32_t turn = 0; turn < kTurns;) {
        std::uint32_t slot = 0;
        if (!stack.pop(slot)) {
          std::this_thread::yield();
          continue;
        }
        ++uses[slot];
        ++turn;
        stack.push(slot);
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(uses[0] + uses[1] + uses[2], 4u * kTurns);
}

}  // namespace
}  // namespace ccks::scheduler
