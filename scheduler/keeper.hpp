// Keeper: brings workers back that have left, and hands them new code. The scheduler thread may not wait for a device, so
// joining, loading and launching happen on a thread of the keeper's, or in handoff() on a client's.
//
// Workers leave on their own: idle, left alone by a stopped process, or out of credit. Some may be gone while others wait
// for events of theirs, and a grid is launched as a whole. So all are asked to suspend: out of event waits too, which the
// next launch takes up again (wire/control.hpp). Rings, lines and events stay as they are; nothing is lost or run twice.
//
// Memory ordering
//   failure_   written once, under mutex_, before `failed_` [K1], read by the scheduler thread after it [K2]
//   states     worker lines, see worker_link.hpp: [W1] by the worker, [W2] here
#pragma once

#include <atomic>
#include <functional>
#include <mutex>
#include <thread>

#include "ccks/engine.hpp"
#include "scheduler/futex.hpp"
#include "scheduler/stats.hpp"

namespace ccks::scheduler {

class Keeper {
 public:
  /// `device` must outlive the keeper. Starts no thread yet.
  Keeper(Device& device, const wire::WorkerParams& params) : device_(device), params_(params) {}
  ~Keeper() { stop(); }
  Keeper(const Keeper&) = delete;
  Keeper& operator=(const Keeper&) = delete;

  /// The first launch. `program` is kept for as long as its code may run.
  Status launch(const Program& program);
  /// Suspends, loads, launches. On a failure the code that ran before goes on. The workers have `timeout_ns` to leave.
  Result<HandoffTimes> handoff(const Program& program, std::uint64_t timeout_ns);
  /// After the scheduler was lost: all workers leave at once, out of whatever they wait for, `between` is done while nobody runs,
  /// and they begin anew. deadline_exceeded if they have not left within `timeout_ns`.
  Status begin_anew(std::uint64_t timeout_ns, const std::function<Status()>& between);
  /// Ends the thread: from here on nobody is brought back.
  void stop();

  std::uint64_t relaunches() const { return relaunches_.get(); }

  /// Scheduler thread: workers are away that have work. Cheap if the keeper knows already.
  void call() {
    if (called_.peek() == 0) called_.store(1);
  }
  /// Scheduler thread: why workers could not be brought back; null while all is well.
  const char* failure() const {
    return failed_.load(std::memory_order_acquire) ? failure_.c_str() : nullptr;  // [K2] pairs with [K1]
  }
  /// The engine has failed: its workers are not to come back.
  void give_up() { giving_up_.store(true, std::memory_order_relaxed); }  // relaxed: a lone word

 private:
  void main();
  bool somebody_is_away() const;
  void ask_all(wire::ParkRequest request);
  Status suspend(std::uint64_t timeout_ns);
  Status bring_back();
  Status relaunch(const Program& program);
  /// Nobody can bring the workers back any more. Under mutex_.
  void fail(const Status& why);
  bool ending() const;

  Device& device_;
  const wire::WorkerParams params_;
  std::mutex mutex_;  // guards program_ and the order of launches
  Program program_;
  Counter relaunches_;  // under mutex_, read by anybody
  std::thread thread_;
  WaitWord called_;
  std::atomic<bool> giving_up_{false};
  std::atomic<bool> stopping_{false};
  std::string failure_;
  std::atomic<bool> failed_{false};
};

}  // namespace ccks::scheduler
