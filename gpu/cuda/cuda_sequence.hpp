// Single ops on a GPU: kernel `ccks_op` of a worker image, launched on a stream or as a graph. No worker is resident then,
// or shares the GPU with these launches at their cost.
#pragma once

#include <array>
#include <atomic>
#include <memory>
#include <vector>

#include "ccks/device.hpp"
#include "ccks/wire/op_launch.hpp"
#include "gpu/cuda/driver.hpp"

namespace ccks::gpu {

/// OpKernel owns the module and knows its kernel; sequences share it. Driver and context must outlive it.
class OpKernel {
 public:
  static Result<std::shared_ptr<OpKernel>> load(const Driver& driver, CUcontext context, const void* image);
  ~OpKernel();
  OpKernel(const OpKernel&) = delete;
  OpKernel& operator=(const OpKernel&) = delete;

  /// Bytes of dynamic shared memory for `wanted` bytes of scratch, at most `room` with all else; sets them on the kernel.
  Result<unsigned> reserve_scratch(std::uint32_t wanted, unsigned room);
  CUfunction function() const { return function_; }
  unsigned threads() const { return threads_; }

 private:
  OpKernel(const Driver& driver, CUcontext context) : driver_(driver), context_(context) {}
  Status open(const void* image);

  const Driver& driver_;
  CUcontext context_;
  CUmodule module_ = nullptr;
  CUfunction function_ = nullptr;
  unsigned threads_ = 0;
  unsigned static_shared_bytes_ = 0;
};

class CudaOpSequence final : public OpSequence {
 public:
  /// `lost` is set if the destructor gives up on launches that do not end; it must outlive this.
  CudaOpSequence(const Driver& driver, CUcontext context, std::shared_ptr<OpKernel> kernel, std::atomic<bool>& lost)
      : driver_(driver), context_(context), kernel_(std::move(kernel)), lost_(lost) {}
  ~CudaOpSequence() override;
  Status open(const OpSequencePlan& plan, unsigned shared_bytes);

  Status launch() override;
  Result<bool> wait(std::uint64_t timeout_ns) override;

 private:
  Status launch_one(const OpStep& step, wire::OpLaunch& launch, bool overlapped);
  Status launch_all(bool overlapped);
  Status build_graph(const OpSequencePlan& plan);
  Status capture_graph();
  Status instantiate(CUgraph graph);

  const Driver& driver_;
  CUcontext context_;
  std::shared_ptr<OpKernel> kernel_;
  std::atomic<bool>& lost_;
  CUstream stream_ = nullptr;
  CUgraphExec graph_ = nullptr;  // null: launched one by one
  unsigned shared_bytes_ = 0;
  std::vector<OpStep> steps_;
  std::vector<wire::OpLaunch> launches_;  // arguments, one for each step
};

}  // namespace ccks::gpu
