#include "gpu/cuda/cuda_device.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>

#include "gpu/cuda/kernels.hpp"
#include "gpu/jit/compiler.hpp"
#include "gpu/line_status.hpp"

namespace ccks::gpu {
namespace {

// Workers on a GPU cannot wake a host thread, so a scheduler that waits looks again this often; a client's wake-up ends
// the wait at once. Short enough not to show next to a task, long enough to leave the core to others.
constexpr std::uint64_t kSchedulerNapNs = 50'000;
// What a worker may take to leave when the device goes: far longer than any op, short enough to wait for.
constexpr std::uint64_t kTeardownNs = 5'000'000'000;

}  // namespace

Result<std::unique_ptr<Device>> open_cuda_device(const DeviceOptions& options) {
  auto driver = load_driver();
  if (!driver.ok()) return driver.status();
  auto device = std::make_unique<CudaDevice>(*driver.value());
  CCKS_RETURN_IF_ERROR(device->open(options));
  return std::unique_ptr<Device>(std::move(device));
}

Status CudaDevice::open(const DeviceOptions& options) {
  CCKS_RETURN_IF_ERROR(open_context(options));
  CCKS_RETURN_IF_ERROR(describe(options));
  CCKS_RETURN_IF_ERROR(choose_transport(options.transport));
  CCKS_RETURN_IF_ERROR(copies_.open(driver_, context_));
  const ScopedContext current(driver_, context_);
  CCKS_CU(driver_, cuStreamCreate(&worker_stream_, CU_STREAM_NON_BLOCKING));
  watcher_ = std::thread([this] { watch(); });
  auto box = transport_->allocate(4 * sizeof(wire::u32));
  if (!box.ok()) return box.status();
  clock_box_ = box.value();
  return load_kernel(driver_, ccks_image_clock, "ccks_clock", clock_);
}

Status CudaDevice::open_context(const DeviceOptions& options) {
  int count = 0;
  CCKS_CU(driver_, cuDeviceGetCount(&count));
  if (count == 0) return {ErrorCode::unavailable, "the CUDA driver finds no GPU"};
  if (options.ordinal < 0 || options.ordinal >= count) {
    return {ErrorCode::invalid_argument, fmt::format("there is no GPU {}: the driver finds {}", options.ordinal, count)};
  }
  CCKS_CU(driver_, cuDeviceGet(&device_, options.ordinal));
  CCKS_CU(driver_, cuDevicePrimaryCtxRetain(&context_, device_));
  return {};
}

Result<int> CudaDevice::attribute(CUdevice_attribute which) const {
  int value = 0;
  CCKS_CU(driver_, cuDeviceGetAttribute(&value, which, device_));
  return value;
}

Status CudaDevice::describe(const DeviceOptions& options) {
  char name[256] = "";
  CCKS_CU(driver_, cuDeviceGetName(name, sizeof(name), device_));
  std::size_t memory = 0;
  CCKS_CU(driver_, cuDeviceTotalMem(&memory, device_));
  const auto processors = attribute(CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT);
  const auto shared = attribute(CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK_OPTIN);
  const auto cooperative = attribute(CU_DEVICE_ATTRIBUTE_COOPERATIVE_LAUNCH);
  const auto major = attribute(CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR);
  const auto minor = attribute(CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR);
  for (const auto* each : {&processors, &shared, &cooperative, &major, &minor}) CCKS_RETURN_IF_ERROR(each->status());
  if (cooperative.value() == 0) return {ErrorCode::unsupported, fmt::format("{} cannot launch cooperative grids", name)};
  processors_ = processors.value();
  max_shared_bytes_ = shared.value();
  info_.kind = "cuda";
  info_.name = name;
  info_.workers = options.workers != 0 ? options.workers : static_cast<std::uint32_t>(processors_);
  info_.memory_bytes = memory;
  info_.architecture = architecture_of(major.value(), minor.value());
  info_.takes_records = major.value() >= 8;  // they are copied in the background, which sm_80 began with
  info_.workers_sleep = false;
  copies_in_bulk_ = major.value() >= 9;
  const bool alone = info_.workers <= static_cast<std::uint32_t>(processors_);
  info_.worker_bytes = copies_in_bulk_ && alone ? static_cast<std::uint64_t>(max_shared_bytes_) : 0;  // fit_worker
  return {};
}

Status CudaDevice::choose_transport(const std::string& wanted) {
  // A coherent platform is known by the GPU using the CPU's page tables and atomics across the link.
  const auto tables = attribute(CU_DEVICE_ATTRIBUTE_PAGEABLE_MEMORY_ACCESS_USES_HOST_PAGE_TABLES);
  const auto atomics = attribute(CU_DEVICE_ATTRIBUTE_HOST_NATIVE_ATOMIC_SUPPORTED);
  CCKS_RETURN_IF_ERROR(tables.status());
  CCKS_RETURN_IF_ERROR(atomics.status());
  const bool coherent = tables.value() != 0 && atomics.value() != 0;
  if (wanted == "pinned" || (wanted == "auto" && !coherent)) {
    transport_ = make_pinned_transport(driver_, context_);
  } else if (wanted == "coherent" && !coherent) {
    return {ErrorCode::unavailable, fmt::format("{} does not share coherent memory with the CPU: use pinned", info_.name)};
  } else {
    const auto node = attribute(CU_DEVICE_ATTRIBUTE_HOST_NUMA_ID);
    auto transport = make_system_transport(wanted == "auto" ? "coherent" : wanted, node.ok() ? node.value() : -1);
    if (!transport.ok()) return transport.status();
    transport_ = std::move(transport.value());
  }
  info_.transport = transport_->name();
  return {};
}

DeviceInfo CudaDevice::info() const {
  DeviceInfo info = info_;
  info.lanes = lanes_.load(std::memory_order_relaxed);  // relaxed: a number for people, alone
  return info;
}

CudaDevice::~CudaDevice() {
  if (context_ == nullptr) return;
  Status left;
  if (resident()) {
    set_park(params_, wire::kParkAbandon);
    left = wait_until_left(kTeardownNs);
  }
  stop_watcher();
  // A body that never ends cannot be stopped, and every call below would wait for it: memory, streams and modules stay with
  // the context until the process ends.
  // Relaxed: ops are lost by an earlier call.
  if (left.code() == ErrorCode::deadline_exceeded || ops_lost_.load(std::memory_order_relaxed)) return;
  copies_.close();
  if (clock_box_.address != nullptr) transport_->release(clock_box_);
  for (const Block& block : link_blocks_) transport_->release(block);
  const ScopedContext current(driver_, context_);
  // Failures here have nobody to go to; after a fault of the GPU every call fails and the driver cleans up at exit.
  for (const CUdeviceptr block : device_blocks_) (void)driver_.cuMemFree(block);
  code_.unload();
  unload_kernel(driver_, clock_);
  if (worker_stream_ != nullptr) (void)driver_.cuStreamDestroy(worker_stream_);
  (void)driver_.cuDevicePrimaryCtxRelease(device_);
}

Result<std::uint64_t> CudaDevice::allocate(std::uint64_t bytes, MemoryKind kind) {
  if (kind == MemoryKind::link) {
    auto block = transport_->allocate(bytes);
    if (!block.ok()) return block.status();
    const std::lock_guard lock(memory_mutex_);
    link_blocks_.push_back(block.value());
    return reinterpret_cast<std::uint64_t>(block.value().address);
  }
  CUdeviceptr address = 0;
  const std::uint64_t size = std::max<std::uint64_t>(bytes, 256);
  {
    const ScopedContext current(driver_, context_);
    CCKS_CU(driver_, cuMemAlloc(&address, size));
  }
  {
    const std::lock_guard lock(memory_mutex_);
    device_blocks_.push_back(address);
  }
  CCKS_RETURN_IF_ERROR(copies_.fill_zero(address, size));
  return static_cast<std::uint64_t>(address);
}

Status CudaDevice::write(std::uint64_t to, const void* from, std::uint64_t bytes) {
  return copies_.write(to, from, bytes);
}
Status CudaDevice::read(void* to, std::uint64_t from, std::uint64_t bytes) { return copies_.read(to, from, bytes); }
Status CudaDevice::fill_zero(std::uint64_t to, std::uint64_t bytes) { return copies_.fill_zero(to, bytes); }

std::uint64_t CudaDevice::clock_pair(std::uint64_t& host_ns) {
  const std::lock_guard lock(launch_mutex_);
  host_ns = clock_host_ns_;
  return clock_device_ns_;
}

void CudaDevice::scheduler_wait(std::uint64_t timeout_ns) {
  bells_.scheduler_wait(std::min(timeout_ns, kSchedulerNapNs));
}

Status CudaDevice::failure() {
  if (!failed_.load(std::memory_order_acquire)) return {};  // [C2] pairs with [C1]
  const std::lock_guard lock(failure_mutex_);
  return failure_;
}

Status CudaDevice::health() {
  CCKS_RETURN_IF_ERROR(failure());
  if (!launched_.load(std::memory_order_acquire)) return {};  // [C4] pairs with [C3]
  return lines_status(params_);
}

void CudaDevice::set_failure(const Status& status) {
  const std::lock_guard lock(failure_mutex_);
  if (failed_.load(std::memory_order_relaxed)) return;  // relaxed: written under this lock only; the first failure counts
  failure_ = status;
  failed_.store(true, std::memory_order_release);  // [C1] pairs with [C2]: failure_ is set
}

}  // namespace ccks::gpu
