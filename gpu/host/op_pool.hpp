// OpPool: threads that run the ops of a sequence one after the other, the tiles of an op side by side, with a barrier
// between two ops. What a stream is on a GPU.
#pragma once

#include <atomic>
#include <condition_variable>
#include <deque>
#include <memory>
#include <mutex>
#include <thread>
#include <vector>

#include "ccks/device.hpp"
#include "ccks/worker/host_entry.hpp"
#include "gpu/transport.hpp"

namespace ccks::gpu {

/// One sequence as the pool sees it. All but `running` is fixed.
struct OpJob {
  HostWorkerEntry entry = nullptr;
  wire::OpLaunch launch{};          // frame and status
  std::uint32_t scratch_bytes = 0;
  std::vector<OpStep> steps;
  bool running = false;             // queued or under way; under the crew's mutex
};

/// OpCrew is what the threads share; the last of them lets it go.
class OpCrew {
 public:
  explicit OpCrew(std::uint32_t threads) : threads_(threads) {}
  void start(std::shared_ptr<OpJob> job);
  bool wait(const OpJob& job, std::uint64_t timeout_ns);
  void ask_to_leave();
  bool wait_until_left(std::uint64_t timeout_ns);
  void count_in();
  void main();  // of each thread

 private:
  std::shared_ptr<OpJob> next_job(std::uint64_t& serial);
  void run(const OpJob& job, Block& scratch);
  void run_tiles(const OpJob& job, const OpStep& step, const Block& scratch);
  void meet();
  void next_step();

  const std::uint32_t threads_;

  std::mutex mutex_;  // guards what follows, and OpJob::running
  std::condition_variable work_, ended_;
  std::deque<std::shared_ptr<OpJob>> queue_;  // the first is under way
  std::uint64_t serial_ = 0;  // of the first, counted from 1: tells a thread that it is new
  std::uint32_t alive_ = 0;
  bool leave_ = false;

  // Of the job under way.
  std::condition_variable met_;
  std::uint32_t arrived_ = 0;
  std::uint64_t meetings_ = 0;  // that have ended
  std::size_t step_ = 0;

  // Both are relaxed: one shares out numbers, the other only saves work; meet() orders them and the data.
  std::atomic<std::uint32_t> next_tile_{0};  // relaxed, see above
  std::atomic<bool> failed_{false};          // relaxed, see above: an op reported a fault, what follows is not run
};

/// Thread-safe. Jobs run in the order of start(); each uses all threads.
class OpPool {
 public:
  /// Starts the threads. `unavailable` where the system refuses one.
  static Result<std::unique_ptr<OpPool>> create(std::uint32_t threads);
  ~OpPool();
  void start(std::shared_ptr<OpJob> job) { crew_->start(std::move(job)); }
  /// True once `job` is not running, false if `timeout_ns` passed first.
  bool wait(const OpJob& job, std::uint64_t timeout_ns) { return crew_->wait(job, timeout_ns); }
  /// Ends the threads. False if an op has not ended in time: its thread is let go and keeps what it may touch, the frame's
  /// memory apart, which the caller must leave where it is.
  bool stop(std::uint64_t timeout_ns);

 private:
  explicit OpPool(std::uint32_t threads) : crew_(std::make_shared<OpCrew>(threads)) {}
  std::shared_ptr<OpCrew> crew_;
  std::vector<std::thread> threads_;
};

}  // namespace ccks::gpu
