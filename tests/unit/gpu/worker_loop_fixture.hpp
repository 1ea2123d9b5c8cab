// WorkerLoopTest: a worker of one lane on a FakePlatform, with a Rig as its host.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "ccks/worker/worker_loop.hpp"
#include "tests/unit/gpu/fake_platform.hpp"
#include "tests/unit/gpu/harness.hpp"

namespace ccks::gpu::testing {

/// CountingOps that also notes the order of prefetches and bodies.
struct NotingOps : CountingOps {
  static inline std::vector<std::string> notes;
  template <class Lanes>
  static wire::FaultCode run(Lanes& lanes, const wire::RunFrame& frame, const wire::OpParams& op, u32 tile) {
    notes.push_back("run " + std::to_string(tile));
    return CountingOps::run(lanes, frame, op, tile);
  }
  static void prefetch(u32, u32, const wire::RunFrame&, const wire::OpParams&, u32 tile) {
    notes.push_back("prefetch " + std::to_string(tile));
  }
};

class WorkerLoopTest : public ::testing::Test {
 protected:
  using Loop = worker::WorkerLoop<FakePlatform, NotingOps>;

  void SetUp() override {
    DeviceOptions options;
    options.kind = "host";
    options.workers = 1;
    device_ = std::move(open_device(options).value());
    rig_ = std::make_unique<Rig>(*device_, 1, 8);
    rig_->params.spin_deadline_ns = 1'000'000;
    platform_.counts.events = rig_->events;
    NotingOps::notes.clear();
    // Unless a test says otherwise, a worker with nothing to do is told to leave.
    platform_.on_idle = [this] { host_line().park = wire::kParkAfterTask; };
  }

  /// Runs a worker until it leaves; its state.
  wire::WorkerState run() {
    host_line().park = wire::kParkNo;
    rig_->install(frame_);
    Loop loop(platform_, rig_->params, 0);
    loop.run();
    return static_cast<wire::WorkerState>(rig_->line(0).state);
  }
  std::vector<wire::Record> records() { return rig_->take(0); }
  wire::HostLine& host_line() { return *reinterpret_cast<wire::HostLine*>(rig_->params.host_lines); }
  u32* events() { return reinterpret_cast<u32*>(rig_->events); }
  u32* words() { return reinterpret_cast<u32*>(rig_->arena); }
  void expect_fault(wire::FaultCode code) {
    EXPECT_EQ(run(), wire::WorkerState::faulted);
    EXPECT_EQ(static_cast<wire::FaultCode>(rig_->line(0).fault), code);
    const auto all = records();
    ASSERT_FALSE(all.empty());
    EXPECT_EQ(all.back().kind(), wire::RecordKind::fault);
    EXPECT_EQ(all.back().value, static_cast<u32>(code));
  }

  std::unique_ptr<Device> device_;
  std::unique_ptr<Rig> rig_;
  FakePlatform platform_;
  FrameBuilder frame_;
};

}  // namespace ccks::gpu::testing
