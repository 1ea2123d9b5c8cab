#include "gpu/host/op_pool.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <system_error>

#include "ccks/worker/tile_hints.hpp"
#include "gpu/host/memory.hpp"

namespace ccks::gpu {
namespace {

// Tiles taken in one go: an eighth of a thread's share keeps the threads even, and the shared counter cool.
constexpr std::uint32_t kTurnsPerThread = 8;
constexpr std::uint64_t kTeardownNs = 5'000'000'000;  // far longer than any op, short enough to wait for

std::chrono::nanoseconds limited(std::uint64_t timeout_ns) {
  return std::chrono::nanoseconds(std::min<std::uint64_t>(timeout_ns, INT64_MAX / 4));
}

}  // namespace

// ---- the crew -------------------------------------------------------------------------------------------------------

void OpCrew::start(std::shared_ptr<OpJob> job) {
  {
    const std::lock_guard lock(mutex_);
    job->running = true;
    queue_.push_back(std::move(job));
    if (queue_.size() == 1) ++serial_;
  }
  work_.notify_all();
}

bool OpCrew::wait(const OpJob& job, std::uint64_t timeout_ns) {
  std::unique_lock lock(mutex_);
  const auto ended = [&job] { return !job.running; };
  return timeout_ns == 0 ? ended() : ended_.wait_for(lock, limited(timeout_ns), ended);
}

void OpCrew::count_in() {
  const std::lock_guard lock(mutex_);
  ++alive_;
}

void OpCrew::ask_to_leave() {
  {
    const std::lock_guard lock(mutex_);
    leave_ = true;
  }
  work_.notify_all();
}

bool OpCrew::wait_until_left(std::uint64_t timeout_ns) {
  std::unique_lock lock(mutex_);
  return ended_.wait_for(lock, limited(timeout_ns), [this] { return alive_ == 0; });
}

// Every thread takes part in every job, in the same order.
std::shared_ptr<OpJob> OpCrew::next_job(std::uint64_t& serial) {
  std::unique_lock lock(mutex_);
  work_.wait(lock, [&] { return leave_ || serial_ != serial; });
  if (serial_ == serial) return nullptr;
  serial = serial_;
  return queue_.front();
}

void OpCrew::main() {
  Block scratch;
  std::uint64_t serial = 0;
  while (const std::shared_ptr<OpJob> job = next_job(serial)) run(*job, scratch);
  unmap_pages(scratch);
  const std::lock_guard lock(mutex_);
  if (--alive_ == 0) ended_.notify_all();
}

void OpCrew::run(const OpJob& job, Block& scratch) {
  const std::uint64_t wanted = std::max<std::uint64_t>(job.scratch_bytes, worker::kHostScratchBytes);
  if (scratch.bytes < wanted) {
    unmap_pages(scratch);
    auto block = map_pages(wanted, Placement::near_caller);
    scratch = block.ok() ? block.value() : Block{};
  }
  for (const OpStep& step : job.steps) {
    run_tiles(job, step, scratch);
    meet();
  }
}

void OpCrew::run_tiles(const OpJob& job, const OpStep& step, const Block& scratch) {
  const std::uint32_t share = std::max(1u, step.tiles / (threads_ * kTurnsPerThread));
  for (;;) {
    const std::uint32_t first = next_tile_.fetch_add(share, std::memory_order_relaxed);
    if (first >= step.tiles || failed_.load(std::memory_order_relaxed)) return;
    worker::HostOpCall call;
    call.launch = job.launch;
    call.launch.op = step.op;
    call.launch.first_tile = first;
    call.tiles = std::min(share, step.tiles - first);
    call.scratch = static_cast<wire::u8*>(scratch.address);
    call.scratch_bytes = static_cast<std::uint32_t>(scratch.bytes);
    job.entry(nullptr, 0, &call);
    if (call.fault != 0) failed_.store(true, std::memory_order_relaxed);
  }
}

// A barrier: the last thread to arrive moves the job on. A lock and a sleep: with fewer cores than threads, which is where
// this runs, whoever spins keeps the last one from arriving.
void OpCrew::meet() {
  std::unique_lock lock(mutex_);
  const std::uint64_t meeting = meetings_;
  if (++arrived_ < threads_) return met_.wait(lock, [&] { return meetings_ != meeting; });
  arrived_ = 0;
  next_step();
  ++meetings_;
  met_.notify_all();
}

void OpCrew::next_step() {
  next_tile_.store(0, std::memory_order_relaxed);  // all other threads wait
  if (++step_ < queue_.front()->steps.size()) return;
  step_ = 0;
  failed_.store(false, std::memory_order_relaxed);  // as above
  queue_.front()->running = false;
  queue_.pop_front();
  if (!queue_.empty()) ++serial_;
  ended_.notify_all();
  work_.notify_all();
}

// ---- the pool -------------------------------------------------------------------------------------------------------

Result<std::unique_ptr<OpPool>> OpPool::create(std::uint32_t threads) {
  std::unique_ptr<OpPool> pool(new OpPool(std::max(threads, 1u)));
  for (std::uint32_t i = 0; i < std::max(threads, 1u); ++i) {
    try {
      pool->threads_.emplace_back([crew = pool->crew_] { crew->main(); });
      pool->crew_->count_in();
    } catch (const std::system_error& error) {
      return {ErrorCode::unavailable, fmt::format("could not start thread {} for ops: {}", i, error.what())};
    }
  }
  return pool;
}

OpPool::~OpPool() { (void)stop(kTeardownNs); }

bool OpPool::stop(std::uint64_t timeout_ns) {
  if (threads_.empty()) return true;
  crew_->ask_to_leave();
  const bool left = crew_->wait_until_left(timeout_ns);
  for (std::thread& thread : threads_) left ? thread.join() : thread.detach();
  threads_.clear();
  return left;
}

}  // namespace ccks::gpu
