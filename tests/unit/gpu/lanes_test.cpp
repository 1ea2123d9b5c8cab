// The worker loop with several lanes: the shape of a thread block, run by threads.
#include <gtest/gtest.h>

#include <atomic>

#include "tests/unit/gpu/fake_platform.hpp"
#include "tests/unit/gpu/harness.hpp"

namespace ccks::gpu::testing {
namespace {

/// Every lane adds its share; the sum over lanes goes to one word, so a lane that runs another tile shows.
struct SummingOps {
  template <class Lanes>
  static wire::FaultCode run(Lanes& lanes, const wire::RunFrame& frame, const wire::OpParams& op, u32 tile) {
    auto* words = reinterpret_cast<u32*>(frame.arena);
    if (op.dims[1] != 0 && words[op.dims[1]] == 0) return wire::FaultCode::op_fault;
    const float total = lanes.sum(static_cast<float>(tile + lanes.lane()));
    if (lanes.lane() == 0) words[op.dims[2] + static_cast<int>(tile)] += static_cast<u32>(total);
    if (op.dims[0] != 0 && lanes.lane() == lanes.lanes() - 1) return wire::FaultCode::bad_index;
    return wire::FaultCode::none;
  }
};

class LanesTest : public ::testing::Test {
 protected:
  void SetUp() override {
    DeviceOptions options;
    options.kind = "host";
    options.workers = 2;
    device_ = std::move(open_device(options).value());
    rig_ = std::make_unique<Rig>(*device_, 2, 8);
  }
  ~LanesTest() override { join(); }

  void start(u32 worker) {
    for (u32 lane = 0; lane < LaneGroup::kLanes; ++lane) {
      threads_.emplace_back([this, worker, lane] {
        LanePlatform platform(groups_[worker], lane);
        worker::WorkerLoop<LanePlatform, SummingOps>(platform, rig_->params, worker).run();
      });
    }
  }
  void join() {
    for (auto& thread : threads_) thread.join();
    threads_.clear();
  }

  std::unique_ptr<Device> device_;
  std::unique_ptr<Rig> rig_;
  LaneGroup groups_[2];
  std::vector<std::thread> threads_;
};

TEST_F(LanesTest, ProducerAndConsumerOnTwoWorkers) {
  FrameBuilder frame;
  frame.add_op(9, 8);
  frame.signal_one(0, 9);
  frame.add_op(2, 30).dims[1] = 16;  // faults unless the last tile of op 0 is there
  frame.wait_one(0, 9);
  rig_->install(frame);
  start(0);
  start(1);
  const u32 epochs = 60;
  for (u32 epoch = 0; epoch < epochs; ++epoch) {
    rig_->send(1, 1, wire::Task::pack_tiles(0, 2), epoch);
    rig_->send(0, wire::kOpNop, 0);
    rig_->send(0, 0, wire::Task::pack_tiles(0, 5), epoch);
    rig_->send(0, 0, wire::Task::pack_tiles(5, 4), epoch);
    rig_->take_until(0, 3);
    rig_->take_until(1, 1);
  }
  for (u32 w = 0; w < 2; ++w) rig_->send(w, wire::kOpPark, 0);
  join();
  // Lanes 0..5 add tile + lane each.
  for (u32 tile = 0; tile < 9; ++tile) EXPECT_EQ(rig_->word(8 + tile), epochs * (6 * tile + 15));
  EXPECT_EQ(rig_->word(31), epochs * (6 + 15));
  EXPECT_EQ(rig_->event(0), epochs * 9);
}

TEST_F(LanesTest, FaultOfOneLaneStopsTheWorker) {
  FrameBuilder frame;
  frame.add_op(3, 8).dims[0] = 1;
  rig_->install(frame);
  start(0);
  rig_->send(0, 0, wire::Task::pack_tiles(0, 3), 0);
  join();
  EXPECT_EQ(static_cast<wire::FaultCode>(rig_->line(0).fault), wire::FaultCode::bad_index);
  EXPECT_EQ(rig_->line(0).fault_tile, 0u);
}

TEST_F(LanesTest, DeadlineNamesTheEventThatIsMissing) {
  FrameBuilder frame;
  frame.add_op(1, 8);
  frame.wait_one(0, 2);
  frame.waits[0].axis[0] = {-1, 0, 0, 0, 7, 1, 1, 0};  // seven events on four control lanes
  frame.bases.assign(7, 0);
  rig_->install(frame);
  rig_->params.spin_deadline_ns = 30'000'000;
  for (u32 i = 0; i < 7; ++i) reinterpret_cast<u32*>(rig_->events)[i] = i == 5 ? 1 : 2;
  start(0);
  rig_->send(0, 0, 0, 0);
  join();
  EXPECT_EQ(static_cast<wire::FaultCode>(rig_->line(0).fault), wire::FaultCode::wait_deadline);
  EXPECT_EQ(rig_->line(0).fault_event, 5u);
  EXPECT_EQ(rig_->line(0).fault_value, 1u);
}

TEST_F(LanesTest, ReportsAreCopiedByAllControlLanes) {
  FrameBuilder frame;
  frame.add_op(1, 8);
  frame.ops[0].report = 0;
  frame.ops[0].report_bytes = 44;
  wire::OperandParams operand{};
  operand.offset = 128;
  frame.operands = {operand};
  rig_->install(frame);
  for (u32 i = 0; i < 11; ++i) reinterpret_cast<u32*>(rig_->arena)[32 + i] = 100 + i;
  start(0);
  rig_->send(0, 0, 0, 0);
  const auto records = rig_->take_until(0, 2);
  ASSERT_EQ(records.size(), 2u);
  EXPECT_EQ(records[0].kind(), wire::RecordKind::report);
  for (u32 i = 0; i < 11; ++i) EXPECT_EQ(reinterpret_cast<const u32*>(rig_->reports)[i], 100 + i);
  rig_->send(0, wire::kOpPark, 0);
  join();
}

}  // namespace
}  // namespace ccks::gpu::testing
