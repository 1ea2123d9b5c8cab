// HostDevice: workers are threads of this process. Runs the same worker loop over the same protocol as a GPU.
#pragma once

#include <condition_variable>
#include <map>
#include <memory>
#include <mutex>
#include <thread>
#include <vector>

#include "ccks/device.hpp"
#include "gpu/bell.hpp"
#include "gpu/host/op_pool.hpp"
#include "gpu/host/topology.hpp"
#include "gpu/transport.hpp"
#include "ccks/worker/platform_host.hpp"

namespace ccks::gpu {

class HostDevice final : public Device {
 public:
  static Result<std::unique_ptr<Device>> open(const DeviceOptions& options);
  ~HostDevice() override;

  DeviceInfo info() const override { return info_; }
  Result<std::uint64_t> allocate(std::uint64_t bytes, MemoryKind kind) override;
  Status write(std::uint64_t to, const void* from, std::uint64_t bytes) override;
  Status read(void* to, std::uint64_t from, std::uint64_t bytes) override;
  Status fill_zero(std::uint64_t to, std::uint64_t bytes) override;
  Status launch(const WorkerImage& image, const wire::WorkerParams& params) override;
  Status join(std::uint64_t timeout_ns) override;
  Status health() override;
  Result<std::unique_ptr<OpSequence>> make_op_sequence(const WorkerImage& image, const OpSequencePlan& plan) override;
  std::uint64_t clock_pair(std::uint64_t& host_ns) override;
  void doorbell(std::uint32_t index) override;
  void scheduler_wait(std::uint64_t timeout_ns) override { bells_.scheduler_wait(timeout_ns); }
  void wake_scheduler() override { bells_.ring_scheduler(); }

 private:
  HostDevice(const DeviceOptions& options, Topology topology, std::uint32_t workers,
             std::unique_ptr<Transport> transport);
  Status prepare_contexts(std::uint32_t workers, std::uint32_t scratch_bytes);
  Status start_threads(HostWorkerEntry entry);
  Status wait_until_running();
  void abandon_and_join();

  const Topology topology_;
  const std::unique_ptr<Transport> transport_;
  DeviceInfo info_;
  bool pin_ = false;
  Bells bells_;

  std::mutex memory_mutex_;  // guards the two lists
  std::vector<Block> link_blocks_;
  std::vector<Block> device_blocks_;

  std::mutex launch_mutex_;  // guards launch and join against each other
  wire::WorkerParams params_{};
  std::atomic<bool> launched_{false};   // params_ is valid: health() may read the lines
  std::vector<worker::HostWorkerContext> contexts_;
  Block scratch_;
  std::vector<std::thread> threads_;

  std::mutex alive_mutex_;
  std::condition_variable all_left_;
  std::uint32_t alive_ = 0;  // threads that have not left, under alive_mutex_

  std::mutex op_pool_mutex_;
  std::unique_ptr<OpPool> op_pool_;  // made with the first sequence; its threads leave before memory is freed
};

}  // namespace ccks::gpu
