// Litmus tests of a whole device: tasks handed over through the rings while workers and scheduler fall asleep and wake, and
// while workers are parked and launched again. CCKS_LITMUS as in litmus_test.cpp.
#include <gtest/gtest.h>

#include <cstdlib>
#include <random>

#include "tests/unit/gpu/harness.hpp"

namespace ccks::gpu::testing {
namespace {

std::uint64_t hand_overs() {
  const char* text = std::getenv("CCKS_LITMUS");
  const double wanted = text != nullptr ? std::atof(text) : 2e6;
  return static_cast<std::uint64_t>(std::max(wanted, 1000.0));
}

std::unique_ptr<Device> open_host(std::uint32_t workers) {
  DeviceOptions options;
  options.kind = "host";
  options.workers = workers;
  return std::move(open_device(options).value());
}

TEST(LitmusDevice, EveryTaskIsAnsweredOnceAndInOrder) {
  const std::uint64_t total = hand_overs() / 4;
  auto device = open_host(2);
  Rig rig(*device, 2, 256);
  FrameBuilder frame;
  frame.add_op(1, 8);
  frame.add_op(1, 9);
  rig.install(frame);
  ASSERT_TRUE(device->launch(counting_image(), rig.params).ok());
  std::uint64_t sent[2] = {}, answered[2] = {}, wrong = 0;
  while (answered[0] < total || answered[1] < total) {
    for (wire::u32 w = 0; w < 2; ++w) {
      wire::Task task;
      task.op = static_cast<wire::u16>(w);
      for (task.epoch = static_cast<wire::u32>(sent[w]); sent[w] < total && rig.inboxes[w].push(task); ++sent[w]) {
        task.epoch = static_cast<wire::u32>(sent[w] + 1);
      }
      if (rig.inboxes[w].publish() != 0) device->doorbell(w);
      for (const auto& record : rig.take(w)) wrong += record.epoch != static_cast<wire::u32>(answered[w]++);
    }
  }
  EXPECT_EQ(wrong, 0u);
  EXPECT_EQ(rig.word(8), static_cast<wire::u32>(total));
  EXPECT_EQ(rig.word(9), static_cast<wire::u32>(total));
  EXPECT_TRUE(rig.park_and_join().ok());
}

TEST(LitmusDevice, NoWakeUpIsLost) {
  // One task at a time, with pauses around the time a worker falls asleep. A lost wake-up would last until the sleeper
  // looks by itself (20 ms): one is enough to break the bound, and random pauses give the race every chance.
  const std::uint64_t total = std::min<std::uint64_t>(hand_overs() / 400, 200'000);
  auto device = open_host(1);
  Rig rig(*device, 1);
  ASSERT_TRUE(device->launch(counting_image(), rig.params).ok());
  std::mt19937 random(7);
  std::uint64_t slow = 0;
  for (std::uint64_t i = 0; i < total; ++i) {
    const std::uint64_t pause_until = steady_ns() + random() % 300'000;
    while (i % 4 == 0 && steady_ns() < pause_until) std::this_thread::yield();
    const std::uint64_t before = steady_ns();
    rig.send(0, wire::kOpNop, 0);
    rig.take_until(0, 1);
    slow += steady_ns() - before > 15'000'000;
  }
  // A loaded machine may delay a thread that long by itself, but not often.
  EXPECT_LE(slow, total / 200 + 2);
  EXPECT_TRUE(rig.park_and_join().ok());
}

TEST(LitmusDevice, RelaunchesLoseAndDoubleNothing) {
  const std::uint64_t total = hand_overs() / 100;
  auto device = open_host(2);
  Rig rig(*device, 2, 64);
  FrameBuilder frame;
  frame.add_op(1, 8);
  frame.add_op(1, 9);
  rig.install(frame);
  std::mt19937 random(11);
  std::uint64_t sent = 0;
  while (sent < total) {
    ASSERT_TRUE(device->launch(counting_image(), rig.params).ok());
    const std::uint64_t batch = random() % 400;
    for (std::uint64_t i = 0; i < batch; ++i, ++sent) rig.send(i % 2, static_cast<wire::u16>(i % 2), 0);
    auto* lines = reinterpret_cast<wire::HostLine*>(rig.params.host_lines);
    for (wire::u32 w = 0; w < 2; ++w) {
      wire::HostAtoms::link_store_relaxed(&lines[w].park, wire::kParkAfterTask);
      device->doorbell(w);
    }
    // A worker that waits for credit leaves too, so nobody needs to read records here.
    ASSERT_TRUE(device->join(20'000'000'000).ok());
    for (wire::u32 w = 0; w < 2; ++w) rig.take(w);
  }
  ASSERT_TRUE(device->launch(counting_image(), rig.params).ok());
  while (rig.inboxes[0].in_flight() + rig.inboxes[1].in_flight() > 0) {
    for (wire::u32 w = 0; w < 2; ++w) rig.take(w);
  }
  EXPECT_EQ(rig.word(8) + rig.word(9), sent);
  EXPECT_TRUE(rig.park_and_join().ok());
  EXPECT_TRUE(device->health().ok());
}

}  // namespace
}  // namespace ccks::gpu::testing
