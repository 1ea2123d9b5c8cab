// What every device must do, through the generic worker: one suite over host and GPU, coherent and pinned. A GPU that is not
// there is a skip.
#include <gtest/gtest.h>

#include <algorithm>

#include "ccks/wire/op_layout.hpp"
#include "tests/unit/gpu/harness.hpp"

namespace ccks::gpu::testing {
namespace {

struct Kind {
  const char* device;
  const char* transport;
};
void PrintTo(const Kind& kind, std::ostream* out) { *out << kind.device << ' ' << kind.transport; }

class AnyDevice : public ::testing::TestWithParam<Kind> {
 protected:
  void SetUp() override {
    DeviceOptions options;
    options.kind = GetParam().device;
    options.transport = GetParam().transport;
    auto device = open_device(options);
    if (!device.ok() && device.status().code() == ErrorCode::unavailable) GTEST_SKIP() << device.status().to_string();
    ASSERT_TRUE(device.ok()) << device.status().to_string();
    device_ = std::move(device.value());
    workers_ = device_->info().workers;
    rig_ = std::make_unique<Rig>(*device_, workers_, 64);
  }

  /// An op that copies the i32 at word `from` to word `to`.
  static void add_copy(FrameBuilder& frame, wire::u32 from, wire::u32 to) {
    auto& op = frame.add_op(1, 0);
    op.kind = static_cast<wire::u8>(wire::OpCode::report);
    op.input_count = op.output_count = 1;
    op.operand_first = static_cast<wire::u32>(frame.operands.size());
    op.report_operand = op.operand_first + 1;
    for (const wire::u32 word : {from, to}) {
      wire::OperandParams operand{};
      operand.offset = word * sizeof(wire::u32);
      operand.dtype = static_cast<wire::u8>(wire::Dtype::i32);
      operand.flags = wire::kOperandContiguous;
      for (int i = 0; i < 4; ++i) operand.dim[i] = operand.stride[i] = 1;
      frame.operands.push_back(operand);
    }
  }
  void set_word(wire::u32 index, wire::u32 value) {
    ASSERT_TRUE(device_->write(rig_->arena + index * sizeof(value), &value, sizeof(value)).ok());
  }
  void launch() {
    const Status status = device_->launch({}, rig_->params);
    ASSERT_TRUE(status.ok()) << status.to_string();
  }
  /// Waits until every worker has answered all it was sent.
  void settle() {
    const std::uint64_t deadline = steady_ns() + 20'000'000'000;
    for (wire::u32 w = 0; w < workers_; ++w) {
      while (rig_->inboxes[w].in_flight() > 0 && steady_ns() < deadline && device_->health().ok()) rig_->take(w);
      ASSERT_EQ(rig_->inboxes[w].in_flight(), 0u) << "worker " << w << ": " << device_->health().to_string();
    }
  }

  std::unique_ptr<Device> device_;
  std::unique_ptr<Rig> rig_;
  wire::u32 workers_ = 0;
};

INSTANTIATE_TEST_SUITE_P(Kinds, AnyDevice,
                         ::testing::Values(Kind{"host", "coherent"}, Kind{"host", "pinned"}, Kind{"cuda", "pinned"},
                                           Kind{"cuda", "coherent"}),
                         [](const auto& each) {
                           return std::string(each.param.device) + "_" + each.param.transport;
                         });

TEST_P(AnyDevice, EveryWorkerAnswersEmptyTasks) {
  launch();
  for (int round = 0; round < 200; ++round) {
    for (wire::u32 w = 0; w < workers_; ++w) rig_->send(w, wire::kOpNop, 0);
  }
  settle();
  EXPECT_TRUE(rig_->park_and_join().ok());
  EXPECT_TRUE(device_->health().ok());
}

TEST_P(AnyDevice, AChainOverAllWorkersSentBackToFront) {
  FrameBuilder frame;
  for (wire::u32 w = 0; w < workers_; ++w) {
    add_copy(frame, w, w + 1);
    frame.signal_one(w, 1);
    if (w > 0) frame.wait_one(w - 1, 1);
  }
  rig_->install(frame);
  launch();
  for (wire::u32 epoch = 0; epoch < 20; ++epoch) {
    set_word(0, 1000 + epoch);
    for (wire::u32 w = workers_; w-- > 0;) rig_->send(w, static_cast<wire::u16>(w), 0, epoch);
    settle();
    ASSERT_EQ(rig_->word(workers_), 1000 + epoch);
  }
  EXPECT_TRUE(rig_->park_and_join().ok());
}

TEST_P(AnyDevice, ReportsArriveWithTheirValue) {
  FrameBuilder frame;
  add_copy(frame, 0, 32);
  frame.ops[0].report = 7;
  frame.ops[0].report_offset = 8;
  frame.ops[0].report_bytes = 4;
  rig_->install(frame);
  launch();
  for (wire::u32 epoch = 0; epoch < 50; ++epoch) {
    set_word(0, 77 + epoch);
    rig_->send(0, 0, 0, epoch);
    const auto records = rig_->take_until(0, 2);
    ASSERT_EQ(records.size(), 2u);
    ASSERT_EQ(records[0].kind(), wire::RecordKind::word) << "a report of one word travels in its record";
    ASSERT_EQ(records[0].value, 77 + epoch);
    ASSERT_EQ(records[0].op, 0u);
    ASSERT_EQ(wire::HostAtoms::link_load_relaxed(reinterpret_cast<const wire::u32*>(rig_->reports + 8)), 0u);
  }
  frame.ops[0].report_bytes = 8;
  rig_->install(frame);
  for (wire::u32 epoch = 50; epoch < 100; ++epoch) {
    set_word(0, 77 + epoch);
    rig_->send(0, 0, 0, epoch);
    const auto records = rig_->take_until(0, 2);
    ASSERT_EQ(records.size(), 2u);
    ASSERT_EQ(records[0].kind(), wire::RecordKind::report);
    ASSERT_EQ(records[0].value, 7u);
    ASSERT_EQ(wire::HostAtoms::link_load_relaxed(reinterpret_cast<const wire::u32*>(rig_->reports + 8)), 77 + epoch);
  }
  EXPECT_TRUE(rig_->park_and_join().ok());
}

TEST_P(AnyDevice, ParkAndRelaunchGoesOn) {
  FrameBuilder frame;
  for (wire::u32 w = 0; w < workers_; ++w) {  // an op for each: no two workers write the same word
    add_copy(frame, 0, w + 1);
    frame.signal_one(0, 1);
  }
  rig_->install(frame);
  for (int round = 0; round < 5; ++round) {
    launch();
    for (wire::u32 w = 0; w < workers_; ++w) {
      rig_->send(w, static_cast<wire::u16>(w), 0);
      rig_->send(w, wire::kOpPark, 0);
      rig_->send(w, static_cast<wire::u16>(w), 0);  // for the next launch
    }
    ASSERT_TRUE(device_->join(20'000'000'000).ok());
    for (wire::u32 w = 0; w < workers_; ++w) rig_->take(w);
  }
  launch();
  settle();
  EXPECT_EQ(rig_->event(0), workers_ * 10);
  EXPECT_TRUE(rig_->park_and_join().ok());
}

TEST_P(AnyDevice, AMissingEventIsAFaultThatNamesIt) {
  FrameBuilder frame;
  add_copy(frame, 0, 1);
  frame.wait_one(3, 2);
  frame.bases.assign(4, 0);
  rig_->install(frame);
  rig_->params.spin_deadline_ns = 50'000'000;
  launch();
  rig_->send(0, 0, 0, 4);
  rig_->take_until(0, 1);
  const Status health = device_->health();
  EXPECT_EQ(health.code(), ErrorCode::device_fault);
  EXPECT_NE(health.message().find("event 3 stands at 0, waited for 10"), std::string::npos) << health.to_string();
}

TEST_P(AnyDevice, IdleWorkersLeaveAtTheIdleLimit) {
  rig_->params.idle_limit_ns = 20'000'000;
  launch();
  EXPECT_TRUE(device_->join(20'000'000'000).ok());
  EXPECT_EQ(rig_->line(0).park_reason, static_cast<wire::u32>(wire::ParkReason::idle));
}

TEST_P(AnyDevice, CopiesOfAnySizeAreExactWhileWorkersAreResident) {
  launch();
  std::vector<std::uint8_t> out((9u << 20) + 13), in(out.size());
  for (std::size_t i = 0; i < out.size(); ++i) out[i] = static_cast<std::uint8_t>(i * 31 + (i >> 11));
  const wire::u64 at = rig_->get(out.size(), MemoryKind::device);
  ASSERT_TRUE(device_->write(at, out.data(), out.size()).ok());
  ASSERT_TRUE(device_->read(in.data(), at, in.size()).ok());
  EXPECT_TRUE(in == out);
  ASSERT_TRUE(device_->fill_zero(at + 1, out.size() - 2).ok());
  ASSERT_TRUE(device_->read(in.data(), at, in.size()).ok());
  EXPECT_EQ(in.front(), out.front());
  EXPECT_EQ(in.back(), out.back());
  EXPECT_EQ(std::count(in.begin() + 1, in.end() - 1, 0), static_cast<std::ptrdiff_t>(in.size() - 2));
  EXPECT_TRUE(rig_->park_and_join().ok());
}

TEST_P(AnyDevice, ClocksAdvanceTogether) {
  launch();
  std::uint64_t host_first = 0;
  const std::uint64_t device_first = device_->clock_pair(host_first);
  EXPECT_GT(device_first, 0u);
  EXPECT_LE(host_first, steady_ns());
  EXPECT_TRUE(rig_->park_and_join().ok());
}

}  // namespace
}  // namespace ccks::gpu::testing
