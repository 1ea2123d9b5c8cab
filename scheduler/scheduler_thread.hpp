// SchedulerThread: the one thread of an engine. Everything it does in flight is Copilot::step().
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <thread>

#include "scheduler/copilot_setup.hpp"

namespace ccks::scheduler {

struct SchedulerThreadOptions {
  bool pin = true;
  std::uint32_t busy_workers = 0;  // cores to leave alone: workers of the host device
};

/// While one is there a scheduler's thread is not stopped for good: around calls that may hold a lock of the process, as malloc does.
class Shield {
 public:
  Shield();
  ~Shield();
  Shield(const Shield&) = delete;
  Shield& operator=(const Shield&) = delete;
};

/// Starts in the constructor, ends in stop() or the destructor. What `setup` borrows must outlive it.
class SchedulerThread {
 public:
  SchedulerThread(const CopilotSetup& setup, const SchedulerThreadOptions& options);
  ~SchedulerThread();
  SchedulerThread(const SchedulerThread&) = delete;
  SchedulerThread& operator=(const SchedulerThread&) = delete;

  /// Asks the workers to leave and ends the thread. `abandon`: also out of event waits.
  void stop(bool abandon);
  /// Steps and naps so far: stands still only if the thread does.
  std::uint64_t beats() const;
  /// Ends the thread wherever it stands, so that another may take over: it will touch nothing any more. It may leave between two steps
  /// for as long as `grace_ns`; then a signal (SIGURG) stops it for good, and its stack stays with the process. False if that
  /// did not reach it within `timeout_ns`.
  [[nodiscard]] bool lose(std::uint64_t grace_ns, std::uint64_t timeout_ns);

 private:
  struct State;
  static void main(const std::shared_ptr<State>& state);
  template <class AnyCopilot>
  static void drive(State& state, AnyCopilot& copilot);
  std::shared_ptr<State> state_;  // a thread that was stopped for good keeps its share
  std::thread thread_;
};

}  // namespace ccks::scheduler
