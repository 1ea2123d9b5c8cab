#include "gpu/cuda/cuda_sequence.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <thread>

#include "ccks/worker/tile_hints.hpp"
#include "gpu/cuda/cuda_device.hpp"
#include "gpu/cuda/kernels.hpp"

namespace ccks::gpu {
namespace {

using Clock = std::chrono::steady_clock;
constexpr std::uint64_t kTeardownNs = 5'000'000'000;  // far longer than any op, short enough to wait for

Status too_old(const char* what) {
  return {ErrorCode::unsupported, fmt::format("the CUDA driver is too old: it lacks {}", what)};
}

Status graphs_supported(const Driver& driver, SequenceMode mode) {
  if (mode == SequenceMode::stream) return {};
  const bool graphs = driver.cuGraphCreate != nullptr && driver.cuGraphAddKernelNode != nullptr &&
                      driver.cuGraphInstantiate != nullptr && driver.cuGraphLaunch != nullptr &&
                      driver.cuGraphExecDestroy != nullptr && driver.cuGraphDestroy != nullptr;
  if (!graphs) return too_old("graphs");
  if (mode == SequenceMode::graph) return {};
  const bool capture = driver.cuLaunchKernelEx != nullptr && driver.cuStreamBeginCapture != nullptr &&
                       driver.cuStreamEndCapture != nullptr;
  return capture ? Status() : too_old("launch attributes");
}

}  // namespace

// ---- the kernel -----------------------------------------------------------------------------------------------------

Result<std::shared_ptr<OpKernel>> OpKernel::load(const Driver& driver, CUcontext context, const void* image) {
  std::shared_ptr<OpKernel> kernel(new OpKernel(driver, context));
  CCKS_RETURN_IF_ERROR(kernel->open(image));
  return kernel;
}

Status OpKernel::open(const void* image) {
  CCKS_CU(driver_, cuModuleLoadData(&module_, image));
  CCKS_CU(driver_, cuModuleGetFunction(&function_, module_, "ccks_op"));
  int threads = 0, shared = 0;
  CCKS_CU(driver_, cuFuncGetAttribute(&threads, CU_FUNC_ATTRIBUTE_MAX_THREADS_PER_BLOCK, function_));
  CCKS_CU(driver_, cuFuncGetAttribute(&shared, CU_FUNC_ATTRIBUTE_SHARED_SIZE_BYTES, function_));
  threads_ = static_cast<unsigned>(threads) / 32 * 32;  // whole warps
  static_shared_bytes_ = static_cast<unsigned>(shared);
  return {};
}

OpKernel::~OpKernel() {
  const ScopedContext current(driver_, context_);
  if (module_ != nullptr) (void)driver_.cuModuleUnload(module_);  // nobody to tell
}

Result<unsigned> OpKernel::reserve_scratch(std::uint32_t wanted, unsigned room) {
  // Scratch is a wish, as for workers: ops run in what they are offered, 48 KB at least.
  const unsigned left = room > static_shared_bytes_ ? room - static_shared_bytes_ : 0;
  const unsigned wish = std::max(wanted, worker::kCudaScratchBytes);
  const unsigned bytes = wish <= left ? wish : worker::kCudaScratchBytes;
  if (bytes > left) {
    return {ErrorCode::unsupported, fmt::format("an op needs {} bytes of shared memory; a block has {} left", bytes, left)};
  }
  CCKS_CU(driver_, cuFuncSetAttribute(function_, CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES, static_cast<int>(bytes)));
  return bytes;
}

// ---- the sequence ---------------------------------------------------------------------------------------------------

Status CudaOpSequence::open(const OpSequencePlan& plan, unsigned shared_bytes) {
  shared_bytes_ = shared_bytes;
  steps_.assign(plan.steps.begin(), plan.steps.end());
  const wire::u32 flags = plan.mode == SequenceMode::graph_overlapped ? wire::u32{wire::kOpLaunchOverlapped} : 0u;
  for (const OpStep& step : steps_) launches_.push_back({plan.frame, plan.status, step.op, 0, flags, 0});
  const ScopedContext current(driver_, context_);
  CCKS_CU(driver_, cuStreamCreate(&stream_, CU_STREAM_NON_BLOCKING));
  if (steps_.empty() || plan.mode == SequenceMode::stream) return {};
  return plan.mode == SequenceMode::graph ? build_graph(plan) : capture_graph();
}

CudaOpSequence::~CudaOpSequence() {
  if (stream_ == nullptr) return;
  const Result<bool> ended = wait(kTeardownNs);
  if (ended.ok() && !*ended) {
    // Nothing can end a launch from outside, and every call below would wait for it.
    lost_.store(true, std::memory_order_relaxed);  // relaxed: read by the thread that ends the device, later
    new std::shared_ptr<OpKernel>(std::move(kernel_));  // kept until the process ends: unloading would wait, too
    return;
  }
  const ScopedContext current(driver_, context_);
  if (graph_ != nullptr) (void)driver_.cuGraphExecDestroy(graph_);
  (void)driver_.cuStreamDestroy(stream_);
}

Status CudaOpSequence::launch_one(const OpStep& step, wire::OpLaunch& launch, bool overlapped) {
  void* arguments[] = {&launch};
  if (!overlapped) {
    CCKS_CU(driver_, cuLaunchKernel(kernel_->function(), step.tiles, 1, 1, kernel_->threads(), 1, 1, shared_bytes_, stream_,
                                    arguments, nullptr));
    return {};
  }
  CUlaunchAttribute attribute{};
  attribute.id = CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION;
  attribute.value.programmaticStreamSerializationAllowed = 1;
  CUlaunchConfig config{};
  config.gridDimX = step.tiles;
  config.gridDimY = config.gridDimZ = config.blockDimY = config.blockDimZ = 1;
  config.blockDimX = kernel_->threads();
  config.sharedMemBytes = shared_bytes_;
  config.hStream = stream_;
  config.attrs = &attribute;
  config.numAttrs = 1;
  CCKS_CU(driver_, cuLaunchKernelEx(&config, kernel_->function(), arguments, nullptr));
  return {};
}

// The first launch of a chain has nothing in front of it to overlap with.
Status CudaOpSequence::launch_all(bool overlapped) {
  for (std::size_t i = 0; i < steps_.size(); ++i) {
    CCKS_RETURN_IF_ERROR(launch_one(steps_[i], launches_[i], overlapped && i > 0));
  }
  return {};
}

Status CudaOpSequence::launch() {
  const ScopedContext current(driver_, context_);
  if (graph_ == nullptr) return launch_all(false);
  CCKS_CU(driver_, cuGraphLaunch(graph_, stream_));
  return {};
}

Result<bool> CudaOpSequence::wait(std::uint64_t timeout_ns) {
  const ScopedContext current(driver_, context_);
  const auto since = Clock::now();
  for (;;) {
    const CUresult result = driver_.cuStreamQuery(stream_);
    if (result == CUDA_SUCCESS) return true;
    if (result != CUDA_ERROR_NOT_READY) {
      return driver_error(driver_, result, "cuStreamQuery(ops)", __FILE__, __LINE__);
    }
    const auto waited = static_cast<std::uint64_t>((Clock::now() - since).count());
    if (waited >= timeout_ns) return false;
    if (waited > 10'000'000) std::this_thread::sleep_for(std::chrono::microseconds(50));  // no longer a matter of latency
  }
}

// ---- graphs ---------------------------------------------------------------------------------------------------------

Status CudaOpSequence::build_graph(const OpSequencePlan& plan) {
  CUgraph graph = nullptr;
  CCKS_CU(driver_, cuGraphCreate(&graph, 0));
  std::vector<CUgraphNode> nodes(steps_.size()), before;
  CUresult result = CUDA_SUCCESS;
  for (std::size_t i = 0; i < steps_.size() && result == CUDA_SUCCESS; ++i) {
    void* arguments[] = {&launches_[i]};
    CUDA_KERNEL_NODE_PARAMS node{};
    node.func = kernel_->function();
    node.gridDimX = steps_[i].tiles;
    node.gridDimY = node.gridDimZ = node.blockDimY = node.blockDimZ = 1;
    node.blockDimX = kernel_->threads();
    node.sharedMemBytes = shared_bytes_;
    node.kernelParams = arguments;
    before.clear();
    for (const std::uint32_t step : plan.dependencies.subspan(steps_[i].dependency_first, steps_[i].dependency_count))
      before.push_back(nodes[step]);
    result = driver_.cuGraphAddKernelNode(&nodes[i], graph, before.data(), before.size(), &node);
  }
  const Status status = result == CUDA_SUCCESS
                            ? instantiate(graph)
                            : driver_error(driver_, result, "cuGraphAddKernelNode", __FILE__, __LINE__);
  (void)driver_.cuGraphDestroy(graph);
  return status;
}

// Captured, so that the driver writes the programmatic edges. Other threads may use CUDA meanwhile: only this stream counts.
Status CudaOpSequence::capture_graph() {
  CCKS_CU(driver_, cuStreamBeginCapture(stream_, CU_STREAM_CAPTURE_MODE_RELAXED));
  Status status = launch_all(true);
  CUgraph graph = nullptr;
  const CUresult ended = driver_.cuStreamEndCapture(stream_, &graph);
  if (status.ok() && ended != CUDA_SUCCESS) status = driver_error(driver_, ended, "cuStreamEndCapture", __FILE__, __LINE__);
  if (status.ok()) status = instantiate(graph);
  if (graph != nullptr) (void)driver_.cuGraphDestroy(graph);
  return status;
}

Status CudaOpSequence::instantiate(CUgraph graph) {
  CCKS_CU(driver_, cuGraphInstantiate(&graph_, graph, 0));
  return {};
}

// ---- the device's side ----------------------------------------------------------------------------------------------

Result<std::unique_ptr<OpSequence>> CudaDevice::make_op_sequence(const WorkerImage& image, const OpSequencePlan& plan) {
  CCKS_RETURN_IF_ERROR(graphs_supported(driver_, plan.mode));
  if (image.cuda_loop != nullptr) return {ErrorCode::unsupported, "the program's op bodies are an image of their own, without a kernel for single ops: compile them with their worker"};
  if (plan.mode == SequenceMode::graph_overlapped) {
    const auto major = attribute(CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR);
    CCKS_RETURN_IF_ERROR(major.status());
    if (major.value() < 9) {
      return {ErrorCode::unsupported, fmt::format("{} has no programmatic dependent launch: that takes sm_90", info_.name)};
    }
  }
  const void* code = image.cuda_image != nullptr ? image.cuda_image : ccks_image_generic_worker;
  const ScopedContext current(driver_, context_);
  const std::lock_guard lock(op_mutex_);
  std::shared_ptr<OpKernel> kernel = op_kernels_[code].lock();
  if (kernel == nullptr) {
    auto loaded = OpKernel::load(driver_, context_, code);
    if (!loaded.ok()) return loaded.status();
    kernel = loaded.value();
    op_kernels_[code] = kernel;
  }
  const Result<unsigned> shared = kernel->reserve_scratch(plan.scratch_bytes, static_cast<unsigned>(max_shared_bytes_));
  if (!shared.ok()) return shared.status();
  auto sequence = std::make_unique<CudaOpSequence>(driver_, context_, std::move(kernel), ops_lost_);
  CCKS_RETURN_IF_ERROR(sequence->open(plan, *shared));
  return std::unique_ptr<OpSequence>(std::move(sequence));
}

}  // namespace ccks::gpu
