// Launcher: runs each op of a run as a launch of its own, in place of co-pilot and workers. Same submissions, same outcomes.
//
// Events of a slot are never touched: order comes from the launches. So a slot's epoch stays where it is and its bases hold.
// Reports and faults lie in the slot's OpStatus once the last launch has ended. A fault ends the run, not the engine: ops
// behind it ran on what they found, which their bodies stand.
#pragma once

#include <array>
#include <atomic>
#include <memory>
#include <thread>
#include <vector>

#include "ccks/wire/op_launch.hpp"
#include "scheduler/arm.hpp"
#include "scheduler/copilot_setup.hpp"
#include "scheduler/run_order.hpp"

namespace ccks::scheduler {

/// What a Launcher needs besides a CopilotSetup, of which it leaves policy, sinks and params alone.
struct LauncherSetup {
  SequenceMode mode = SequenceMode::stream;
  WorkerImage image;
  std::uint64_t status = 0;         // link memory: `status_stride` bytes for each slot
  std::uint64_t status_stride = 0;
  std::uint64_t patience_ns = 0;    // launches that take longer never end
  std::uint32_t scratch_bytes = 0;
};

/// Bytes of one slot's OpStatus for `reports` reports, a multiple of 256.
std::uint64_t op_status_bytes(std::uint32_t reports);

/// One thread calls step(). It may block in the driver for as long as a launch takes to be accepted.
class Launcher {
 public:
  Launcher(const CopilotSetup& setup, const LauncherSetup& own);

  /// One round: take new runs, look at those that are under way. True if anything happened.
  bool step();
  /// Nothing to do: waits for the oldest run, or for a client.
  void rest();
  void fail_all(ErrorCode code, const char* message);

 private:
  /// What is kept for a slot from run to run.
  struct Place {
    std::unique_ptr<OpSequence> sequence;
    std::vector<std::uint32_t> tiles;  // of each op, as the sequence launches them
    std::uint64_t launched_ns = 0;
  };

  RunSlot& slot(std::uint32_t index) { return (*setup_.slots)[index]; }
  std::uint32_t slot_count() const { return static_cast<std::uint32_t>(setup_.slots->size()); }
  bool is_fence(std::uint32_t entry) const { return entry >= slot_count(); }
  StateFence& fence(std::uint32_t entry) { return (*setup_.fences)[entry - slot_count()]; }
  wire::OpStatus* status_of(const RunSlot& run) const;

  bool take_submissions();
  void enter(std::uint32_t entry);
  void begin(std::uint32_t entry);
  Status launch(RunSlot& run);
  Status prepare(RunSlot& run);
  void clear_status(const RunSlot& run);
  bool look_at_runs();
  bool look_at(RunSlot& run, std::uint64_t now);
  void finish(RunSlot& run);
  void check_waiting(std::uint64_t now);
  void check_deadline(RunSlot& run, std::uint64_t now);
  void end(RunSlot& run, ErrorCode code, const char* message);
  void let_go(RunSlot& run);
  void leave_state(std::uint32_t state);
  void abandon_entry(std::uint32_t entry);

  CopilotSetup setup_;
  LauncherSetup own_;
  RunOrder order_;
  std::vector<Place> places_;  // per slot
  std::uint32_t next_ordinal_ = 0;
  bool failed_ = false;
  ErrorCode fail_code_ = ErrorCode::ok;
  std::array<char, 232> fail_message_{};
};

/// The thread around a Launcher. Starts in the constructor, ends in stop() or the destructor.
class LauncherThread {
 public:
  LauncherThread(const CopilotSetup& setup, const LauncherSetup& own, bool pin);
  ~LauncherThread();
  LauncherThread(const LauncherThread&) = delete;
  LauncherThread& operator=(const LauncherThread&) = delete;
  /// Ends the thread; what it holds is ended as cancelled.
  void stop();

 private:
  void main();
  Launcher launcher_;
  Device& device_;
  bool pin_;
  std::atomic<bool> stop_{false};  // relaxed: it says only "leave", and joining the thread orders the rest
  std::thread thread_;
};

}  // namespace ccks::scheduler
