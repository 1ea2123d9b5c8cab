#include "gpu/host/host_device.hpp"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstring>
#include <system_error>

#include "ccks/worker/tile_hints.hpp"
#include "gpu/host/isa.hpp"
#include "gpu/host/memory.hpp"
#include "gpu/line_status.hpp"

namespace ccks::gpu {
namespace {

constexpr std::uint32_t kMaxWorkers = 1024;
constexpr std::uint64_t kOpTeardownNs = 5'000'000'000;  // far longer than any op, short enough to wait for
constexpr std::chrono::seconds kStartTimeout{30};  // far beyond any thread start on a loaded machine

// Spins are cpu_pause() calls, 20 to 50 ns each. With a core for everybody a worker stays awake about 200 us: longer than
// most gaps between tasks, short enough that an idle engine costs nothing. On a shared core whoever spins keeps the
// other from working, so it pauses about 1 us and yields.
constexpr std::uint32_t kPauseSpinsManyCores = 5000;
constexpr std::uint32_t kPauseSpinsFewCores = 30;
constexpr std::uint32_t kYieldSpins = 100;

std::uint64_t steady_ns() {
  const auto now = std::chrono::steady_clock::now().time_since_epoch();
  return static_cast<std::uint64_t>(std::chrono::duration_cast<std::chrono::nanoseconds>(now).count());
}

std::uint64_t physical_memory_bytes() {
  const long pages = sysconf(_SC_PHYS_PAGES), page = sysconf(_SC_PAGE_SIZE);
  return pages > 0 && page > 0 ? static_cast<std::uint64_t>(pages) * static_cast<std::uint64_t>(page) : 0;
}

}  // namespace

Result<std::unique_ptr<Device>> HostDevice::open(const DeviceOptions& options) {
  auto transport = make_system_transport(options.transport == "auto" ? "coherent" : options.transport);
  if (!transport.ok()) return transport.status();
  if (options.workers > kMaxWorkers) {
    return {ErrorCode::invalid_argument, fmt::format("{} workers; the host device has at most {}", options.workers,
                                                     kMaxWorkers)};
  }
  Topology topology = read_topology();
  const std::uint32_t workers = options.workers != 0 ? options.workers : default_workers(topology);
  return std::unique_ptr<Device>(
      new HostDevice(options, std::move(topology), workers, std::move(transport.value())));
}

HostDevice::HostDevice(const DeviceOptions& options, Topology topology, std::uint32_t workers,
                       std::unique_ptr<Transport> transport)
    : topology_(std::move(topology)), transport_(std::move(transport)), bells_{workers} {
  info_.kind = "host";
  info_.name = topology_.cpu_name;
  info_.transport = transport_->name();
  info_.workers = workers;
  info_.lanes = 1;
  info_.memory_bytes = physical_memory_bytes();
  info_.workers_sleep = true;
  // One core stays for the scheduler; where there is none, pinning would only take freedom from the system.
  pin_ = options.pin_threads && workers + 1 <= topology_.usable();
}

HostDevice::~HostDevice() {
  if (op_pool_ != nullptr && !op_pool_->stop(kOpTeardownNs)) return;  // an op that does not end keeps its memory
  abandon_and_join();
  unmap_pages(scratch_);
  for (const Block& block : link_blocks_) transport_->release(block);
  for (const Block& block : device_blocks_) unmap_pages(block);
}

Result<std::uint64_t> HostDevice::allocate(std::uint64_t bytes, MemoryKind kind) {
  auto block = kind == MemoryKind::link ? transport_->allocate(bytes) : map_pages(bytes, Placement::spread);
  if (!block.ok()) return block.status();
  const std::lock_guard lock(memory_mutex_);
  (kind == MemoryKind::link ? link_blocks_ : device_blocks_).push_back(block.value());
  return reinterpret_cast<std::uint64_t>(block.value().address);
}

Status HostDevice::write(std::uint64_t to, const void* from, std::uint64_t bytes) {
  if (bytes != 0) std::memcpy(reinterpret_cast<void*>(to), from, bytes);
  return {};
}

Status HostDevice::read(void* to, std::uint64_t from, std::uint64_t bytes) {
  if (bytes != 0) std::memcpy(to, reinterpret_cast<const void*>(from), bytes);
  return {};
}

Status HostDevice::fill_zero(std::uint64_t to, std::uint64_t bytes) {
  if (bytes != 0) std::memset(reinterpret_cast<void*>(to), 0, bytes);
  return {};
}

Status HostDevice::prepare_contexts(std::uint32_t workers, std::uint32_t wanted) {
  const bool few_cores = workers + 1 > topology_.usable();
  const std::uint64_t line = wire::kCacheLineBytes;
  const std::uint64_t bytes = (std::max<std::uint64_t>(wanted, worker::kHostScratchBytes) + line - 1) / line * line;
  if (scratch_.bytes < bytes * workers) {
    auto block = map_pages(bytes * workers, Placement::spread);
    if (!block.ok()) return block.status();
    unmap_pages(scratch_);
    scratch_ = block.value();
  }
  contexts_.assign(workers, {});
  for (std::uint32_t i = 0; i < workers; ++i) {
    contexts_[i].scratch = static_cast<wire::u8*>(scratch_.address) + bytes * i;
    contexts_[i].scratch_bytes = static_cast<std::uint32_t>(bytes);
    contexts_[i].pause_spins = few_cores ? kPauseSpinsFewCores : kPauseSpinsManyCores;
    contexts_[i].yield_spins = kYieldSpins;
    contexts_[i].bell = &bells_.worker(i);
    contexts_[i].sleep = &Bells::worker_sleep;
    contexts_[i].posted = &Bells::worker_posted;
  }
  return {};
}

Status HostDevice::launch(const WorkerImage& image, const wire::WorkerParams& params) {
  const std::lock_guard lock(launch_mutex_);
  CCKS_RETURN_IF_ERROR(check_params(params, info_.workers));
  if (!threads_.empty()) return {ErrorCode::invalid_argument, "launch while workers are alive: join them first"};
  CCKS_RETURN_IF_ERROR(prepare_contexts(params.workers, params.scratch_bytes));
  const HostWorkerEntry entry = image.host != nullptr ? image.host : best_host_isa().entry;
  params_ = params;
  set_park(params_, wire::kParkNo);
  clear_states(params_);
  launched_.store(true, std::memory_order_release);  // [H1] params_ is visible to health() [H2]
  CCKS_RETURN_IF_ERROR(start_threads(entry));
  return wait_until_running();
}

Status HostDevice::start_threads(HostWorkerEntry entry) {
  for (std::uint32_t i = 0; i < params_.workers; ++i) {
    try {
      {
        const std::lock_guard lock(alive_mutex_);
        ++alive_;
      }
      threads_.emplace_back([this, entry, i] {
        entry(&params_, i, &contexts_[i]);
        const std::lock_guard lock(alive_mutex_);
        if (--alive_ == 0) all_left_.notify_all();
      });
    } catch (const std::system_error& error) {
      {
        const std::lock_guard lock(alive_mutex_);
        --alive_;
      }
      abandon_and_join();
      return {ErrorCode::unavailable, fmt::format("could not start worker thread {}: {}", i, error.what())};
    }
    // Not being pinned costs speed at most, so a refusal (a container, a changed mask) is no error.
    if (pin_) (void)pin_thread(threads_.back(), topology_.cores[(i + 1) % topology_.cores.size()]);
  }
  return {};
}

Status HostDevice::wait_until_running() {
  const auto deadline = std::chrono::steady_clock::now() + kStartTimeout;
  const wire::WorkerLine* lines = reinterpret_cast<const wire::WorkerLine*>(params_.worker_lines);
  for (std::uint32_t i = 0; i < params_.workers; ++i) {
    while (line_state(&lines[i]) == static_cast<wire::u32>(wire::WorkerState::absent)) {
      if (std::chrono::steady_clock::now() > deadline) {
        abandon_and_join();
        return {ErrorCode::deadline_exceeded, fmt::format("worker {} did not start within {} s", i,
                                                          kStartTimeout.count())};
      }
      std::this_thread::yield();
    }
  }
  return {};
}

Status HostDevice::join(std::uint64_t timeout_ns) {
  const std::lock_guard launch_lock(launch_mutex_);
  {
    std::unique_lock lock(alive_mutex_);
    const auto timeout = std::chrono::nanoseconds(std::min<std::uint64_t>(timeout_ns, INT64_MAX / 2));
    const auto deadline = std::chrono::steady_clock::now() + timeout;
    if (!all_left_.wait_until(lock, deadline, [this] { return alive_ == 0; })) {
      return {ErrorCode::deadline_exceeded, fmt::format("{} of {} workers are still there after {} ms", alive_,
                                                        params_.workers, timeout_ns / 1'000'000)};
    }
  }
  for (std::thread& thread : threads_) thread.join();
  threads_.clear();
  return {};
}

void HostDevice::abandon_and_join() {
  if (threads_.empty()) return;
  set_park(params_, wire::kParkAbandon);
  for (std::uint32_t i = 0; i < params_.workers; ++i) bells_.ring_worker(i);
  for (std::thread& thread : threads_) thread.join();
  threads_.clear();
}

Status HostDevice::health() {
  if (!launched_.load(std::memory_order_acquire)) return {};  // [H2] pairs with [H1]
  return lines_status(params_);
}

std::uint64_t HostDevice::clock_pair(std::uint64_t& host_ns) {
  host_ns = steady_ns();
  return host_ns;
}

void HostDevice::doorbell(std::uint32_t index) {
  if (index < info_.workers) bells_.ring_worker(index);
}

}  // namespace ccks::gpu
