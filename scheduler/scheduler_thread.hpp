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

/// Starts in the constructor, ends in stop() or the destructor. What `setup` borrows must outlive it.
class SchedulerThread {
 public:
  SchedulerThread(const CopilotSetup& setup, const SchedulerThreadOptions& options);
  ~SchedulerThread();
  SchedulerThread(const SchedulerThread&) = delete;
  SchedulerThread& operator=(const SchedulerThread&) = delete;

  /// Asks the workers to leave and ends the thread. `abandon`: also out of event waits.
  void stop(bool abandon);

 private:
  void main();
  template <class AnyCopilot>
  void drive(AnyCopilot& copilot);
  struct State;
  std::unique_ptr<State> state_;
  std::thread thread_;
};

}  // namespace ccks::scheduler
