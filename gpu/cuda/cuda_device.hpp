// CudaDevice: workers are the blocks of one cooperative grid that stays resident. Driver API only.
//
// Who may call CUDA. open, allocate, write, read, load, launch, join and the destructor do; health, doorbell, scheduler_wait
// and wake_scheduler never: they are for the scheduler thread. A watch thread asks the driver every few milliseconds whether
// the grid is alive, while there is one, and leaves its answer for health() to read.
//
// While workers are resident no module is loaded or unloaded and nothing is freed: all of that would wait for them to leave.
//
// Memory ordering
//   failure_     written once under its lock before `failed_` [C1], read after it [C2]
//   params_      written before `launched_` [C3], read by health() after it [C4]
#pragma once

#include <atomic>
#include <condition_variable>
#include <map>
#include <mutex>
#include <thread>
#include <tuple>
#include <vector>

#include "ccks/device.hpp"
#include "gpu/bell.hpp"
#include "gpu/cuda/cuda_memory.hpp"
#include "gpu/cuda/cuda_sequence.hpp"
#include "gpu/cuda/worker_code.hpp"

namespace ccks::gpu {

/// Opens GPU `options.ordinal`. `unavailable` where there is no driver or GPU.
Result<std::unique_ptr<Device>> open_cuda_device(const DeviceOptions& options);

class CudaDevice final : public Device {
 public:
  explicit CudaDevice(const Driver& driver) : driver_(driver), bells_{0}, code_(driver) {}
  ~CudaDevice() override;
  Status open(const DeviceOptions& options);

  DeviceInfo info() const override;
  Result<std::uint64_t> allocate(std::uint64_t bytes, MemoryKind kind) override;
  Status write(std::uint64_t to, const void* from, std::uint64_t bytes) override;
  Status read(void* to, std::uint64_t from, std::uint64_t bytes) override;
  Status fill_zero(std::uint64_t to, std::uint64_t bytes) override;
  Status prepare(const WorkerImage& image) override;
  Status load(const WorkerImage& image) override;
  Status launch(const WorkerImage& image, const wire::WorkerParams& params) override;
  Status join(std::uint64_t timeout_ns) override;
  Status health() override;
  Result<std::unique_ptr<OpSequence>> make_op_sequence(const WorkerImage& image, const OpSequencePlan& plan) override;
  std::uint64_t clock_pair(std::uint64_t& host_ns) override;
  void scheduler_wait(std::uint64_t timeout_ns) override;
  void wake_scheduler() override { bells_.ring_scheduler(); }

 private:
  Status open_context(const DeviceOptions& options);
  Status choose_transport(const std::string& wanted);
  Status describe(const DeviceOptions& options);
  Result<int> attribute(CUdevice_attribute which) const;

  Status fit_worker(std::uint32_t scratch_bytes, unsigned& shared_bytes, std::uint32_t& stream_stages);
  Status load_and_start(const WorkerImage& image);
  Status start_grid(unsigned shared_bytes, std::uint32_t stream_stages);
  Status wait_until_running();
  Status sample_clock();
  Status ask_clock(wire::u32* box);
  Status wait_for_clock(const wire::u32* box, wire::u32 round);

  bool resident() const { return resident_; }
  Result<bool> grid_left();           // asks the driver about the workers' stream
  Status wait_until_left(std::uint64_t timeout_ns);
  void watch();
  void set_watching(bool on);
  void stop_watcher();
  void set_failure(const Status& status);
  Status failure();

  const Driver& driver_;
  CUdevice device_ = 0;
  CUcontext context_ = nullptr;
  CUstream worker_stream_ = nullptr;
  std::unique_ptr<Transport> transport_;
  CopyEngine copies_;
  DeviceInfo info_;                         // fixed once open, but for lanes
  std::atomic<std::uint32_t> lanes_{256};   // threads of a block: of the generic worker, then of the last one launched
  Bells bells_;
  int max_shared_bytes_ = 0;   // of a block, with opt-in
  int processors_ = 0;
  bool copies_in_bulk_ = false;

  std::mutex memory_mutex_;  // guards the two lists
  std::vector<Block> link_blocks_;
  std::vector<CUdeviceptr> device_blocks_;

  std::mutex op_mutex_;  // guards the map
  std::map<const void*, std::weak_ptr<OpKernel>> op_kernels_;  // by image; sequences own them
  std::atomic<bool> ops_lost_{false};  // relaxed: an op never ended; its memory stays when the device goes

  std::mutex launch_mutex_;  // guards launch, join and what follows against each other
  WorkerCode code_;
  std::tuple<std::uint64_t, unsigned, std::uint32_t> fitted_{};  // WorkerCode::kernels(), shared memory and workers that were found to fit
  Kernel clock_;
  Block clock_box_;
  wire::WorkerParams params_{};
  bool resident_ = false;
  std::uint64_t clock_device_ns_ = 0, clock_host_ns_ = 0;  // of the last sample

  std::atomic<bool> launched_{false};
  std::atomic<bool> failed_{false};
  std::mutex failure_mutex_;
  Status failure_;

  std::thread watcher_;
  std::mutex watch_mutex_;  // guards the two flags
  std::condition_variable watch_wake_;
  bool watching_ = false;
  bool watch_stop_ = false;
};

}  // namespace ccks::gpu
