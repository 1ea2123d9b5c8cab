// CudaKernels: plain kernels of an embedded image, for litmus tests and benches that talk to the GPU without workers.
#pragma once

#include <chrono>
#include <cstdint>
#include <memory>

#include "ccks/device.hpp"
#include "gpu/cuda/driver.hpp"

namespace ccks::test {

class CudaKernels {
 public:
  /// `image` is a fatbin with static storage. `unavailable` where there is no GPU.
  static Result<std::unique_ptr<CudaKernels>> open(const void* image);
  ~CudaKernels();
  CudaKernels(const CudaKernels&) = delete;
  CudaKernels& operator=(const CudaKernels&) = delete;

  /// Memory comes from here and lives as long as this object.
  Device& device() { return *device_; }
  /// Blocks that a cooperative grid of one block a multiprocessor has.
  std::uint32_t processors() const { return device_->info().workers; }
  /// Launches `kernel` as a cooperative grid (blocks may wait for each other) with one argument, which is copied.
  Status launch(const char* kernel, std::uint32_t blocks, std::uint32_t threads, void* argument);
  /// Whether what was launched has ended.
  Result<bool> ended();
  Status wait(std::chrono::seconds timeout);

 private:
  explicit CudaKernels(const gpu::Driver& driver) : driver_(driver) {}
  Status init(const void* image);

  const gpu::Driver& driver_;
  std::unique_ptr<Device> device_;
  CUdevice gpu_ = 0;
  CUcontext context_ = nullptr;
  CUmodule module_ = nullptr;
  CUstream stream_ = nullptr;
};

}  // namespace ccks::test
