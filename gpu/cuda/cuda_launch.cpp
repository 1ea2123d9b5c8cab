// Launch, handshake, watch and join of the workers' grid, and the clock sample that goes with the first launch.
#include <fmt/format.h>
#include <pthread.h>

#include <algorithm>
#include <chrono>
#include <utility>

#include "ccks/wire/atoms.hpp"
#include "ccks/worker/tile_hints.hpp"
#include "ccks/worker/weight_stream.hpp"
#include "gpu/cuda/cuda_device.hpp"
#include "gpu/line_status.hpp"

namespace ccks::gpu {
namespace {

using Clock = std::chrono::steady_clock;
constexpr std::chrono::seconds kStartTimeout{20};       // a first launch may still build PTX or wait for other work
constexpr std::chrono::milliseconds kWatchPeriod{5};
constexpr std::chrono::microseconds kQueryPeriod{200};  // device threads need not start while the host only spins
constexpr wire::u32 kClockRounds = 16;
constexpr unsigned kSharedLine = 128;  // the head of a ring begins at one
constexpr std::uint64_t kEagerJoinNs = 1'000'000;  // whoever hands over code waits without sleeping for so long

std::uint64_t steady_ns() {
  return static_cast<std::uint64_t>(
      std::chrono::duration_cast<std::chrono::nanoseconds>(Clock::now().time_since_epoch()).count());
}

}  // namespace

Status CudaDevice::prepare(const WorkerImage& image) {
  const std::lock_guard lock(launch_mutex_);
  CCKS_RETURN_IF_ERROR(failure());
  const ScopedContext current(driver_, context_);
  return code_.prepare(image);
}

Status CudaDevice::load(const WorkerImage& image) {
  const std::lock_guard lock(launch_mutex_);
  CCKS_RETURN_IF_ERROR(failure());
  if (resident()) return {ErrorCode::invalid_argument, "load while workers are resident: join them first"};
  const ScopedContext current(driver_, context_);
  const auto paused = copies_.pause();
  return code_.load(image);
}

/// What workers of this device can have is theirs alone if there is no more than one on a processor; then what shared memory is
/// left becomes a ring for weights, if whoever launches says that something may stream.
Status CudaDevice::fit_worker(std::uint32_t scratch_bytes, unsigned& shared_bytes, std::uint32_t& stream_stages) {
  // Scratch is a wish: ops run in what Lanes offers, kMinScratchBytes at least. A plan made for the host wishes for more
  // than a block can have, and runs here too.
  const unsigned taken = code_.kernel().takes.static_shared_bytes + (code_.bodies_entry() != 0 ? worker::kCudaApartBytes : 0);
  const unsigned room = static_cast<unsigned>(std::max(0, max_shared_bytes_ - static_cast<int>(taken)));
  const unsigned wanted = std::max(scratch_bytes, worker::kCudaScratchBytes);
  shared_bytes = wanted <= room ? wanted : worker::kCudaScratchBytes;
  if (shared_bytes > room) {
    return {ErrorCode::unsupported, fmt::format("a worker needs {} bytes of shared memory; {} has {} left a block",
                                                shared_bytes, info_.name, room)};
  }
  const bool alone = params_.workers <= static_cast<std::uint32_t>(processors_);
  stream_stages = copies_in_bulk_ && alone && params_.stream_stages != 0 ? worker::stages_in(room - shared_bytes) : 0;
  if (stream_stages != 0) shared_bytes = room / kSharedLine * kSharedLine;  // what makes no stage is scratch
  if (code_.bodies_entry() != 0) shared_bytes += worker::kCudaApartBytes;
  const std::tuple fit_for(code_.kernels(), shared_bytes, params_.workers);
  if (fitted_ == fit_for) return {};
  CCKS_CU(driver_, cuFuncSetAttribute(code_.kernel().function, CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES,
                                      static_cast<int>(shared_bytes)));
  int blocks = 0;
  CCKS_CU(driver_, cuOccupancyMaxActiveBlocksPerMultiprocessor(&blocks, code_.kernel().function,
                                                               static_cast<int>(code_.kernel().threads), shared_bytes));
  const std::uint32_t fit = static_cast<std::uint32_t>(blocks) * static_cast<std::uint32_t>(processors_);
  if (fit < params_.workers) {
    return {ErrorCode::invalid_argument, fmt::format("{} workers asked for, but only {} of {} threads fit on {}",
                                                     params_.workers, fit, code_.kernel().threads, info_.name)};
  }
  fitted_ = fit_for;
  return {};
}

Status CudaDevice::launch(const WorkerImage& image, const wire::WorkerParams& params) {
  const std::lock_guard lock(launch_mutex_);
  CCKS_RETURN_IF_ERROR(failure());
  CCKS_RETURN_IF_ERROR(check_params(params, info_.workers));
  if (resident()) return {ErrorCode::invalid_argument, "launch while workers are resident: join them first"};
  const ScopedContext current(driver_, context_);
  set_params(params_, params);
  CCKS_RETURN_IF_ERROR(load_and_start(image));
  const Status started = wait_until_running();
  if (started.ok()) {
    set_watching(true);
    return started;
  }
  set_park(params_, wire::kParkAbandon);
  if (wait_until_left(static_cast<std::uint64_t>(std::chrono::nanoseconds(kStartTimeout).count())).ok()) resident_ = false;
  return started;
}

Status CudaDevice::load_and_start(const WorkerImage& image) {
  const auto paused = copies_.pause();
  CCKS_RETURN_IF_ERROR(code_.load(image));
  unsigned shared_bytes = 0;
  std::uint32_t stream_stages = 0;
  CCKS_RETURN_IF_ERROR(fit_worker(params_.scratch_bytes, shared_bytes, stream_stages));
  // Once: a relaunch in the middle of runs should cost nothing but the launch.
  if (clock_host_ns_ == 0) CCKS_RETURN_IF_ERROR(sample_clock());
  set_park(params_, wire::kParkNo);
  clear_states(params_);
  lanes_.store(code_.kernel().threads, std::memory_order_relaxed);  // relaxed: a number for people, alone
  return start_grid(shared_bytes, stream_stages);
}

Status CudaDevice::start_grid(unsigned shared_bytes, std::uint32_t stream_stages) {
  wire::WorkerParams params = params_;
  params.stream_stages = stream_stages;
  params.verdict_rest_ns = transport_->verdict_rest_ns();
  params.bodies = code_.bodies_entry();
  void* arguments[] = {&params};
  CCKS_CU(driver_, cuLaunchCooperativeKernel(code_.kernel().function, params_.workers, 1, 1, code_.kernel().threads, 1, 1, shared_bytes,
                                             worker_stream_, arguments));
  resident_ = true;
  launched_.store(true, std::memory_order_release);  // [C3] pairs with [C4]: params_ is set
  return {};
}

Status CudaDevice::wait_until_running() {
  const wire::WorkerLine* lines = reinterpret_cast<const wire::WorkerLine*>(params_.worker_lines);
  const auto deadline = Clock::now() + kStartTimeout;
  auto next_query = Clock::now();
  for (std::uint32_t i = 0; i < params_.workers;) {
    if (line_state(&lines[i]) != static_cast<wire::u32>(wire::WorkerState::absent)) {
      ++i;
      continue;
    }
    const auto now = Clock::now();
    if (now < next_query) continue;
    next_query = now + kQueryPeriod;
    const auto left = grid_left();
    if (!left.ok()) return left.status();
    if (now > deadline) {
      return {ErrorCode::deadline_exceeded, fmt::format("worker {} of {} did not start within {} s: is the GPU busy?", i,
                                                        params_.workers, kStartTimeout.count())};
    }
  }
  return {};
}

Result<bool> CudaDevice::grid_left() {
  const CUresult result = driver_.cuStreamQuery(worker_stream_);
  if (result == CUDA_ERROR_NOT_READY) return false;
  if (result == CUDA_SUCCESS) return true;
  const Status status = driver_error(driver_, result, "cuStreamQuery(worker_stream_)", __FILE__, __LINE__);
  set_failure(status);
  return status;
}

Status CudaDevice::wait_until_left(std::uint64_t timeout_ns) {
  const ScopedContext current(driver_, context_);
  const std::uint64_t since = steady_ns();
  for (;;) {
    const auto left = grid_left();
    if (!left.ok()) return left.status();
    if (left.value()) return {};
    const std::uint64_t waited = steady_ns() - since;
    if (waited > timeout_ns) {
      return {ErrorCode::deadline_exceeded,
              fmt::format("workers are still resident after {} ms", timeout_ns / 1'000'000)};
    }
    if (waited > kEagerJoinNs) std::this_thread::sleep_for(std::chrono::microseconds(50));
  }
}

Status CudaDevice::join(std::uint64_t timeout_ns) {
  const std::lock_guard lock(launch_mutex_);
  if (!resident()) return {};
  const Status status = wait_until_left(timeout_ns);
  if (status.code() == ErrorCode::deadline_exceeded) return status;
  set_watching(false);
  resident_ = false;
  return status;
}

void CudaDevice::watch() {
  pthread_setname_np(pthread_self(), "ccks-watch");
  const ScopedContext current(driver_, context_);
  std::unique_lock lock(watch_mutex_);
  while (!watch_stop_) {
    if (!watching_) {
      watch_wake_.wait(lock);
      continue;
    }
    const auto left = grid_left();
    if (!left.ok() || left.value()) watching_ = false;
    watch_wake_.wait_for(lock, kWatchPeriod);
  }
}

void CudaDevice::set_watching(bool on) {
  {
    const std::lock_guard lock(watch_mutex_);
    watching_ = on;
  }
  if (on) watch_wake_.notify_all();
}

void CudaDevice::stop_watcher() {
  {
    const std::lock_guard lock(watch_mutex_);
    watch_stop_ = true;
  }
  watch_wake_.notify_all();
  if (watcher_.joinable()) watcher_.join();
}

Status CudaDevice::sample_clock() {
  auto* box = static_cast<wire::u32*>(clock_box_.address);
  wire::HostAtoms::link_store_relaxed(&box[0], 0);  // relaxed, both: the launch orders them before the kernel
  wire::HostAtoms::link_store_relaxed(&box[1], 0);
  wire::u32 rounds = kClockRounds;
  void* arguments[] = {&box, &rounds};
  const CUresult result =
      driver_.cuLaunchKernel(clock_.function, 1, 1, 1, 1, 1, 1, 0, worker_stream_, arguments, nullptr);
  Status status = result == CUDA_SUCCESS ? ask_clock(box)
                                         : driver_error(driver_, result, "cuLaunchKernel(ccks_clock)", __FILE__, __LINE__);
  const CUresult finished = driver_.cuStreamSynchronize(worker_stream_);
  if (status.ok() && finished != CUDA_SUCCESS) {
    status = driver_error(driver_, finished, "cuStreamSynchronize(worker_stream_)", __FILE__, __LINE__);
  }
  return status;
}

Status CudaDevice::ask_clock(wire::u32* box) {
  std::uint64_t best = UINT64_MAX;
  for (wire::u32 round = 1; round <= kClockRounds; ++round) {
    const std::uint64_t before = steady_ns();
    wire::HostAtoms::link_store_release(&box[0], round);  // [K1] pairs with [K2]
    CCKS_RETURN_IF_ERROR(wait_for_clock(box, round));
    const std::uint64_t after = steady_ns();
    if (after - before >= best) continue;
    best = after - before;
    clock_host_ns_ = before + (after - before) / 2;
    // Relaxed: published by [K3].
    clock_device_ns_ = wire::HostAtoms::link_load_relaxed(reinterpret_cast<const wire::u64*>(box + 2));
  }
  return {};
}

Status CudaDevice::wait_for_clock(const wire::u32* box, wire::u32 round) {
  const auto since = Clock::now();
  auto next_query = since + kQueryPeriod;
  while (wire::HostAtoms::link_load_acquire(&box[1]) != round) {  // [K4] pairs with [K3]
    const auto now = Clock::now();
    if (now < next_query) continue;
    next_query = now + kQueryPeriod;
    const auto left = grid_left();
    if (!left.ok()) return left.status();
    // The kernel gives up when the host is silent for a second; its last answer may still be under way.
    if (now > since + kStartTimeout || (left.value() && now > since + std::chrono::seconds(2))) {
      return {ErrorCode::deadline_exceeded, "the GPU did not answer with its clock"};
    }
  }
  return {};
}

}  // namespace ccks::gpu
