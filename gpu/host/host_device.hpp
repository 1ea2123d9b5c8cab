// HostDevice: workers are threads of this process. Runs the same worker loop over the same protocol as a GPU.
//
// A thread cannot be stopped. If an op does not end, the device's destructor gives up after some seconds: it lets the thread
// go, which holds the crew, and leaves all memory mapped, since the op may still write there.
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
  /// `notice` becomes DeviceInfo::notice.
  static Result<std::unique_ptr<Device>> open(const DeviceOptions& options, std::string notice = {});
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
  void scheduler_wait(std::uint64_t timeout_ns) override { crew_->bells.scheduler_wait(timeout_ns); }
  void wake_scheduler() override { crew_->bells.ring_scheduler(); }

 private:
  HostDevice(const DeviceOptions& options, Topology topology, std::uint32_t workers,
             std::unique_ptr<Transport> transport);
  Status prepare_contexts(std::uint32_t workers, std::uint32_t scratch_bytes);
  Status start_threads(HostWorkerEntry entry);
  Status wait_until_running();
  bool wait_until_left(std::uint64_t timeout_ns);
  bool abandon_and_join();

  /// What worker threads touch besides link and device memory; the last of them lets it go.
  struct Crew {
    explicit Crew(std::uint32_t workers) : bells{workers} {}
    Bells bells;
    wire::WorkerParams params{};
    std::vector<worker::HostWorkerContext> contexts;
    std::mutex alive_mutex;
    std::condition_variable all_left;
    std::uint32_t alive = 0;  // threads that have not left, under alive_mutex
  };

  const Topology topology_;
  const std::unique_ptr<Transport> transport_;
  DeviceInfo info_;
  bool pin_ = false;
  const std::shared_ptr<Crew> crew_;

  std::mutex memory_mutex_;  // guards the two lists
  std::vector<Block> link_blocks_;
  std::vector<Block> device_blocks_;

  std::mutex launch_mutex_;  // guards launch and join against each other
  std::atomic<bool> launched_{false};  // crew_->params is valid: health() may read the lines
  Block scratch_;
  std::vector<std::thread> threads_;
  bool given_up_ = false;  // threads were let go that had not left

  std::mutex op_pool_mutex_;
  std::unique_ptr<OpPool> op_pool_;  // made with the first sequence; its threads leave before memory is freed
};

}  // namespace ccks::gpu
