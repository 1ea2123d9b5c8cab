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
constexpr std::uint64_t kTeardownNs = 5'000'000'000;  // far longer than any op, short enough to wait for

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

Result<std::unique_ptr<Device>> HostDevice::open(const DeviceOptions& options, std::string notice) {
  auto transport = make_system_transport(options.transport == "auto" ? "coherent" : options.transport);
  if (!transport.ok()) return transport.status();
  if (options.workers > kMaxWorkers) {
    return {ErrorCode::invalid_argument, fmt::format("{} workers; the host device has at most {}", options.workers,
                                                     kMaxWorkers)};
  }
  Topology topology = read_topology();
  const std::uint32_t workers = options.workers != 0 ? options.workers : default_workers(topology);
  std::unique_ptr<HostDevice> device(
      new HostDevice(options, std::move(topology), workers, std::move(transport.value())));
  device->info_.notice = std::move(notice);
  return std::unique_ptr<Device>(std::move(device));
}

HostDevice::HostDevice(const DeviceOptions& options, Topology topology, std::uint32_t workers,
                       std::unique_ptr<Transport> transport)
    : topology_(std::move(topology)), transport_(std::move(transport)), crew_{std::make_shared<Crew>(workers)} {
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
  if (!abandon_and_join()) return;
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
  crew_->contexts.assign(workers, {});
  for (std::uint32_t i = 0; i < workers; ++i) {
    worker::HostWorkerContext& context = crew_->contexts[i];
    context.scratch = static_cast<wire::u8*>(scratch_.address) + bytes * i;
    context.scratch_bytes = static_cast<std::uint32_t>(bytes);
    context.pause_spins = few_cores ? kPauseSpinsFewCores : kPauseSpinsManyCores;
    context.yield_spins = kYieldSpins;
    context.bell = &crew_->bells.worker(i);
    context.sleep = &Bells::worker_sleep;
    context.posted = &Bells::worker_posted;
  }
  return {};
}

Status HostDevice::launch(const WorkerImage& image, const wire::WorkerParams& params) {
  const std::lock_guard lock(launch_mutex_);
  CCKS_RETURN_IF_ERROR(check_params(params, info_.workers));
  if (!threads_.empty()) return {ErrorCode::invalid_argument, "launch while workers are alive: join them first"};
  if (given_up_) return {ErrorCode::device_fault, "a worker of an earlier launch is still in an op that does not end"};
  CCKS_RETURN_IF_ERROR(prepare_contexts(params.workers, params.scratch_bytes));
  const HostWorkerEntry entry = image.host != nullptr ? image.host : best_host_isa().entry;
  set_params(crew_->params, params);
  set_park(params, wire::kParkNo);
  clear_states(params);
  launched_.store(true, std::memory_order_release);  // [H1] the crew's params are visible to health() [H2]
  CCKS_RETURN_IF_ERROR(start_threads(entry));
  return wait_until_running();
}

Status HostDevice::start_threads(HostWorkerEntry entry) {
  for (std::uint32_t i = 0; i < crew_->params.workers; ++i) {
    try {
      {
        const std::lock_guard lock(crew_->alive_mutex);
        ++crew_->alive;
      }
      threads_.emplace_back([crew = crew_, entry, i] {
        entry(&crew->params, i, &crew->contexts[i]);
        const std::lock_guard lock(crew->alive_mutex);
        if (--crew->alive == 0) crew->all_left.notify_all();
      });
    } catch (const std::system_error& error) {
      {
        const std::lock_guard lock(crew_->alive_mutex);
        --crew_->alive;
      }
      (void)abandon_and_join();  // workers without work leave at once
      return {ErrorCode::unavailable, fmt::format("could not start worker thread {}: {}", i, error.what())};
    }
    // Not being pinned costs speed at most, so a refusal (a container, a changed mask) is no error.
    if (pin_) (void)pin_thread(threads_.back(), topology_.cores[(i + 1) % topology_.cores.size()]);
  }
  return {};
}

Status HostDevice::wait_until_running() {
  const auto deadline = std::chrono::steady_clock::now() + kStartTimeout;
  const wire::WorkerLine* lines = reinterpret_cast<const wire::WorkerLine*>(crew_->params.worker_lines);
  for (std::uint32_t i = 0; i < crew_->params.workers; ++i) {
    while (line_state(&lines[i]) == static_cast<wire::u32>(wire::WorkerState::absent)) {
      if (std::chrono::steady_clock::now() > deadline) {
        (void)abandon_and_join();  // remembers if it had to give up
        return {ErrorCode::deadline_exceeded, fmt::format("worker {} did not start within {} s", i,
                                                          kStartTimeout.count())};
      }
      std::this_thread::yield();
    }
  }
  return {};
}

bool HostDevice::wait_until_left(std::uint64_t timeout_ns) {
  std::unique_lock lock(crew_->alive_mutex);
  const auto timeout = std::chrono::nanoseconds(std::min<std::uint64_t>(timeout_ns, INT64_MAX / 2));
  const auto deadline = std::chrono::steady_clock::now() + timeout;
  return crew_->all_left.wait_until(lock, deadline, [this] { return crew_->alive == 0; });
}

Status HostDevice::join(std::uint64_t timeout_ns) {
  const std::lock_guard launch_lock(launch_mutex_);
  if (!wait_until_left(timeout_ns)) {
    const std::lock_guard lock(crew_->alive_mutex);
    return {ErrorCode::deadline_exceeded, fmt::format("{} of {} workers are still there after {} ms", crew_->alive,
                                                      crew_->params.workers, timeout_ns / 1'000'000)};
  }
  for (std::thread& thread : threads_) thread.join();
  threads_.clear();
  return {};
}

/// False: a worker is in an op that does not end. It keeps the crew, and its memory must stay.
bool HostDevice::abandon_and_join() {
  if (threads_.empty()) return !given_up_;
  set_park(crew_->params, wire::kParkAbandon);
  for (std::uint32_t i = 0; i < crew_->params.workers; ++i) crew_->bells.ring_worker(i);
  const bool left = wait_until_left(kTeardownNs);
  for (std::thread& thread : threads_) left ? thread.join() : thread.detach();
  threads_.clear();
  given_up_ = !left;
  return left;
}

Status HostDevice::health() {
  if (!launched_.load(std::memory_order_acquire)) return {};  // [H2] pairs with [H1]
  return lines_status(crew_->params);
}

std::uint64_t HostDevice::clock_pair(std::uint64_t& host_ns) {
  host_ns = steady_ns();
  return host_ns;
}

void HostDevice::doorbell(std::uint32_t index) {
  if (index < info_.workers) crew_->bells.ring_worker(index);
}

}  // namespace ccks::gpu
