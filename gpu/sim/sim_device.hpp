// SimDevice: workers as fibers of a simulation. Everything of one simulation happens on the thread that runs its explorer,
// so the engine, whose scheduler and clients are threads, cannot use it: who simulates drives the co-pilot himself.
#pragma once

#include <memory>
#include <vector>

#include "ccks/device.hpp"
#include "gpu/sim/platform.hpp"

namespace ccks::gpu::sim {

struct SimDeviceOptions {
  u32 workers = 4;
  HostWorkerEntry entry = nullptr;  // a sim_worker_main; an image's own entries are for threads and are not called
  BodyWatch* watch = nullptr;       // must outlive the device; null: bodies take no time
  StageCosts costs;
  Nanos launch_ns = 12'500;         // a launch until all workers run
  Nanos load_ns = 0;                // new code
};

/// Calls that wait (launch, join, scheduler_wait) let time pass for the agent that calls; from outside they cost nothing.
class SimDevice final : public Device {
 public:
  /// `machine` must outlive the device.
  SimDevice(Machine& machine, const SimDeviceOptions& options) : machine_(machine), options_(options), agents_(options.workers, Explorer::kNobody) {}

  DeviceInfo info() const override;
  Result<std::uint64_t> allocate(std::uint64_t bytes, MemoryKind kind) override;
  Status write(std::uint64_t to, const void* from, std::uint64_t bytes) override;
  Status read(void* to, std::uint64_t from, std::uint64_t bytes) override;
  Status fill_zero(std::uint64_t to, std::uint64_t bytes) override;
  Status load(const WorkerImage& image) override;
  Status launch(const WorkerImage& image, const wire::WorkerParams& params) override;
  Status join(std::uint64_t timeout_ns) override;
  Status health() override;
  std::uint64_t clock_pair(std::uint64_t& host_ns) override { return host_ns = machine_.now(); }
  void doorbell(std::uint32_t index) override;
  void scheduler_wait(std::uint64_t timeout_ns) override;
  void wake_scheduler() override;

  Explorer::Agent agent_of(u32 worker) const { return agents_[worker]; }
  std::uint64_t allocated_bytes() const { return allocated_; }

 private:
  bool all_left() const;
  void pass(Nanos ns);

  Machine& machine_;
  SimDeviceOptions options_;
  std::vector<std::unique_ptr<std::byte[]>> blocks_;
  std::unique_ptr<std::byte[]> scratch_;
  std::vector<SimWorker> contexts_;
  wire::WorkerParams params_{};
  std::vector<Explorer::Agent> agents_;  // of the workers; the same over all launches
  Explorer::Agent scheduler_ = Explorer::kNobody;  // who waits
  std::uint64_t allocated_ = 0;
  bool launched_ = false;
};

}  // namespace ccks::gpu::sim
