#include "gpu/host/host_device.hpp"

#include <gtest/gtest.h>

#include "ccks/wire/op_layout.hpp"
#include "gpu/host/isa.hpp"
#include "tests/unit/gpu/harness.hpp"

namespace ccks::gpu::testing {
namespace {

std::unique_ptr<Device> open_host(std::uint32_t workers, const char* transport = "auto") {
  DeviceOptions options;
  options.kind = "host";
  options.transport = transport;
  options.workers = workers;
  auto device = open_device(options);
  EXPECT_TRUE(device.ok()) << device.status().to_string();
  return device.ok() ? std::move(device.value()) : nullptr;
}

class HostDeviceOnTransport : public ::testing::TestWithParam<const char*> {};
INSTANTIATE_TEST_SUITE_P(Transports, HostDeviceOnTransport, ::testing::Values("coherent", "pinned"));

TEST_P(HostDeviceOnTransport, RunsATaskAndAnswers) {
  auto device = open_host(1, GetParam());
  EXPECT_EQ(device->info().transport, GetParam());
  Rig rig(*device, 1);
  FrameBuilder frame;
  frame.add_op(3, 8);
  frame.signal_one(0, 3);
  rig.install(frame);
  ASSERT_TRUE(device->launch(counting_image(), rig.params).ok());
  rig.send(0, 0, wire::Task::pack_tiles(0, 3), 0);
  const auto records = rig.take_until(0, 1);
  ASSERT_EQ(records.size(), 1u);
  EXPECT_EQ(records[0].kind(), wire::RecordKind::done);
  EXPECT_EQ(records[0].value, 1u);
  for (wire::u32 i = 8; i < 11; ++i) EXPECT_EQ(rig.word(i), 1u);
  EXPECT_EQ(rig.event(0), 3u);
  EXPECT_TRUE(rig.park_and_join().ok());
  EXPECT_TRUE(device->health().ok());
}

TEST_P(HostDeviceOnTransport, ConsumerSentFirstWaitsForItsProducer) {
  auto device = open_host(2, GetParam());
  Rig rig(*device, 2);
  FrameBuilder frame;
  frame.add_op(4, 8);
  frame.signal_one(0, 4);
  frame.add_op(1, 20).dims[1] = 11;  // faults unless tile 3 of op 0 is there
  frame.wait_one(0, 4);
  rig.install(frame);
  ASSERT_TRUE(device->launch(counting_image(), rig.params).ok());
  for (wire::u32 epoch = 0; epoch < 200; ++epoch) {
    rig.send(1, 1, 0, epoch);
    rig.send(0, 0, wire::Task::pack_tiles(0, 4), epoch);
    rig.take_until(0, 1);
    rig.take_until(1, 1);
  }
  EXPECT_EQ(rig.word(20), 200u);
  EXPECT_TRUE(device->health().ok()) << device->health().to_string();
  EXPECT_TRUE(rig.park_and_join().ok());
}

TEST(HostDevice, RelaunchResumesWithNothingLostOrDoubled) {
  auto device = open_host(1);
  Rig rig(*device, 1);
  FrameBuilder frame;
  frame.add_op(1, 8);
  rig.install(frame);
  wire::u32 answered = 0, sent = 0;
  for (wire::u32 launch = 0; launch < 50; ++launch) {
    ASSERT_TRUE(device->launch(counting_image(), rig.params).ok());
    for (int i = 0; i < 7; ++i, ++sent) rig.send(0, 0, 0, 0);
    rig.send(0, wire::kOpPark, 0);
    for (int i = 0; i < 5; ++i, ++sent) rig.send(0, 0, 0, 0);  // stay in the inbox for the next launch
    ASSERT_TRUE(device->join(10'000'000'000).ok());
    for (const auto& record : rig.take(0)) {
      if (record.kind() == wire::RecordKind::done) answered = record.value;
    }
    EXPECT_EQ(answered, sent - 5 + launch + 1) << "all but the last five tasks, and a park task for each launch";
  }
  EXPECT_EQ(rig.word(8), sent - 5);
}

TEST(HostDevice, ParkRequestInTheLineWakesASleepingWorker) {
  auto device = open_host(2);
  Rig rig(*device, 2);
  ASSERT_TRUE(device->launch(counting_image(), rig.params).ok());
  std::this_thread::sleep_for(std::chrono::milliseconds(50));
  auto* lines = reinterpret_cast<wire::HostLine*>(rig.params.host_lines);
  for (wire::u32 i = 0; i < 2; ++i) {
    wire::HostAtoms::link_store_relaxed(&lines[i].park, wire::kParkAfterTask);
    device->doorbell(i);
  }
  EXPECT_TRUE(device->join(5'000'000'000).ok());
  EXPECT_EQ(rig.line(0).state, static_cast<wire::u32>(wire::WorkerState::parked));
}

TEST(HostDevice, WaitDeadlineIsAFaultWithDetails) {
  auto device = open_host(1);
  Rig rig(*device, 1);
  rig.params.spin_deadline_ns = 20'000'000;
  FrameBuilder frame;
  frame.bases = {7, 0};
  frame.add_op(1, 8);
  frame.wait_one(0, 4);
  rig.install(frame);
  ASSERT_TRUE(device->launch(counting_image(), rig.params).ok());
  rig.send(0, 0, 0, 2);
  const auto records = rig.take_until(0, 1);
  ASSERT_EQ(records.size(), 1u);
  EXPECT_EQ(records[0].kind(), wire::RecordKind::fault);
  EXPECT_TRUE(device->join(5'000'000'000).ok());
  const Status health = device->health();
  EXPECT_EQ(health.code(), ErrorCode::device_fault);
  EXPECT_NE(health.message().find("event 0 stands at 0, waited for 19"), std::string::npos) << health.message();
  EXPECT_EQ(rig.word(8), 0u);
}

TEST(HostDevice, DestructionDuringAWaitDoesNotHang) {
  auto device = open_host(2);
  Rig rig(*device, 2);
  FrameBuilder frame;
  frame.bases = {0};
  frame.add_op(1, 8);
  frame.wait_one(0, 4);
  rig.install(frame);
  ASSERT_TRUE(device->launch(counting_image(), rig.params).ok());
  rig.send(0, 0, 0, 0);
  const std::uint64_t before = steady_ns();
  device.reset();
  EXPECT_LT(steady_ns() - before, 10'000'000'000u);
}

TEST(HostDevice, StaleHeartbeatAndIdleLimitPark) {
  auto device = open_host(1);
  Rig rig(*device, 1);
  rig.params.heartbeat_limit_ns = 30'000'000;
  ASSERT_TRUE(device->launch(counting_image(), rig.params).ok());
  ASSERT_TRUE(device->join(5'000'000'000).ok());
  EXPECT_EQ(rig.line(0).park_reason, static_cast<wire::u32>(wire::ParkReason::stale_heartbeat));
  rig.params.heartbeat_limit_ns = 0;
  rig.params.idle_limit_ns = 30'000'000;
  ASSERT_TRUE(device->launch(counting_image(), rig.params).ok());
  ASSERT_TRUE(device->join(5'000'000'000).ok());
  EXPECT_EQ(rig.line(0).park_reason, static_cast<wire::u32>(wire::ParkReason::idle));
}

TEST(HostDevice, RefusesBadOptionsAndParams) {
  DeviceOptions options;
  options.kind = "host";
  options.transport = "carrier pigeon";
  EXPECT_EQ(open_device(options).status().code(), ErrorCode::invalid_argument);
  options.transport = "auto";
  options.kind = "abacus";
  EXPECT_EQ(open_device(options).status().code(), ErrorCode::invalid_argument);
  auto device = open_host(1);
  Rig rig(*device, 1);
  rig.params.inbox_slots = 48;
  EXPECT_EQ(device->launch(counting_image(), rig.params).code(), ErrorCode::invalid_argument);
  rig.params.inbox_slots = 64;
  rig.params.workers = 2;
  EXPECT_EQ(device->launch(counting_image(), rig.params).code(), ErrorCode::invalid_argument);
  EXPECT_EQ(device->allocate(UINT64_MAX - 5, MemoryKind::device).status().code(), ErrorCode::out_of_memory);
}

TEST(OpenDevice, AutoFallsBackToTheHostAndCudaSaysWhyNot) {
  DeviceOptions options;
  options.kind = "cuda";
  const auto cuda = open_device(options);
  options.kind = "auto";
  const auto any = open_device(options);
  ASSERT_TRUE(any.ok()) << any.status().to_string();
  if (cuda.ok()) {
    EXPECT_EQ(any.value()->info().kind, "cuda");
    return;
  }
  EXPECT_EQ(cuda.status().code(), ErrorCode::unavailable) << cuda.status().to_string();
  EXPECT_FALSE(cuda.status().message().empty());
  EXPECT_EQ(any.value()->info().kind, "host");
}

TEST(HostDevice, GenericWorkerRunsInEveryInstructionSetHere) {
  for (const IsaEntry& isa : host_isas()) {
    if (!isa.runs_here) continue;
    auto device = open_host(1);
    Rig rig(*device, 1);
    FrameBuilder frame;
    auto& op = frame.add_op(1, 0);
    op.kind = static_cast<wire::u8>(wire::OpCode::report);  // copies one word
    op.input_count = op.output_count = 1;
    for (const wire::u64 offset : {0u, 64u}) {
      wire::OperandParams operand{};
      operand.offset = offset;
      operand.dtype = static_cast<wire::u8>(wire::Dtype::i32);
      for (int i = 0; i < 4; ++i) operand.dim[i] = operand.stride[i] = 1;
      frame.operands.push_back(operand);
    }
    rig.install(frame);
    *reinterpret_cast<wire::u32*>(rig.arena) = 4711;
    ASSERT_TRUE(device->launch({isa.entry, nullptr, 0}, rig.params).ok());
    rig.send(0, 0, 0);
    rig.take_until(0, 1);
    EXPECT_EQ(rig.word(16), 4711u) << isa.name;
    EXPECT_TRUE(rig.park_and_join().ok());
  }
}

TEST(HostDevice, AllocationsAreZeroedAndAligned) {
  auto device = open_host(1);
  for (const std::uint64_t bytes : {1ull, 100ull, 5000ull, 20ull << 20}) {
    for (const MemoryKind kind : {MemoryKind::link, MemoryKind::device}) {
      const auto address = device->allocate(bytes, kind);
      ASSERT_TRUE(address.ok());
      EXPECT_EQ(address.value() % 256, 0u);
      std::uint8_t last = 1;
      ASSERT_TRUE(device->read(&last, address.value() + bytes - 1, 1).ok());
      EXPECT_EQ(last, 0);
    }
  }
}

TEST(HostDevice, ClientsWakeASleepingScheduler) {
  auto device = open_host(1);
  device->scheduler_wait(0);
  std::thread client([&device] {
    std::this_thread::sleep_for(std::chrono::milliseconds(20));
    device->wake_scheduler();
  });
  const std::uint64_t before = steady_ns();
  device->scheduler_wait(20'000'000'000);
  EXPECT_LT(steady_ns() - before, 10'000'000'000u);
  client.join();
}

}  // namespace
}  // namespace ccks::gpu::testing
