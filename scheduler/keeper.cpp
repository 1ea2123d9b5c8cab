#include "scheduler/keeper.hpp"

#include <pthread.h>

#include "ccks/wire/atoms.hpp"
#include "scheduler/tuning.hpp"

namespace ccks::scheduler {
namespace {

/// A core that has slept is slow and has forgotten all: a load took 67 us on one that had been awake and 158 on one that had slept
/// for 3 ms (H200, p50). So it is woken while the workers still run.
void wake_core() {
  const std::uint64_t since = now_ns();
  while (now_ns() - since < kAwakeNs) {
  }
}

std::chrono::nanoseconds between(std::uint64_t from, std::uint64_t to) { return std::chrono::nanoseconds(to - from); }

}  // namespace

Status Keeper::launch(const Program& program) {
  const std::lock_guard lock(mutex_);
  CCKS_RETURN_IF_ERROR(device_.launch(program.worker(), params_));
  program_ = program;
  thread_ = std::thread([this] { main(); });
  return {};
}

void Keeper::stop() {
  if (!thread_.joinable()) return;
  stopping_.store(true, std::memory_order_relaxed);  // relaxed: a lone word; the call below wakes the thread
  called_.store(1);
  thread_.join();
}

bool Keeper::ending() const {
  // Relaxed, both: lone words.
  return stopping_.load(std::memory_order_relaxed) || giving_up_.load(std::memory_order_relaxed);
}

void Keeper::main() {
  pthread_setname_np(pthread_self(), "ccks-keeper");
  while (!stopping_.load(std::memory_order_relaxed)) {  // relaxed: as in stop()
    if (!called_.wait([](std::uint32_t called) { return called != 0; }, kKeeperPatienceNs)) continue;
    const std::lock_guard lock(mutex_);
    const Status status = !ending() && somebody_is_away() ? bring_back() : Status();
    called_.reset(0);  // who leaves from here on is noticed again: the scheduler looks at states, not at changes
    if (status.ok() || ending()) continue;
    return fail(status);
  }
}

bool Keeper::somebody_is_away() const {
  const auto* lines = reinterpret_cast<const wire::WorkerLine*>(params_.worker_lines);
  for (std::uint32_t w = 0; w < params_.workers; ++w) {
    // [W2] acquire: pairs with [W1].
    if (wire::HostAtoms::link_load_acquire(&lines[w].state) == static_cast<std::uint32_t>(wire::WorkerState::parked))
      return true;
  }
  return false;
}

void Keeper::ask_all(wire::ParkRequest request) {
  auto* lines = reinterpret_cast<wire::HostLine*>(params_.host_lines);
  for (std::uint32_t w = 0; w < params_.workers; ++w) {
    wire::HostAtoms::link_store_relaxed(&lines[w].park, wire::u32{request});  // relaxed: a lone word
    device_.doorbell(w);
  }
}

/// Returns when all have left.
Status Keeper::suspend(std::uint64_t timeout_ns) {
  ask_all(wire::kParkSuspend);
  const std::uint64_t since = now_ns();
  for (;;) {
    const Status left = device_.join(kKeeperPatienceNs);
    const bool late = now_ns() - since > timeout_ns;
    if (left.code() != ErrorCode::deadline_exceeded || late || ending()) return left;
  }
}

Status Keeper::bring_back() {
  CCKS_RETURN_IF_ERROR(suspend(kForever));
  CCKS_RETURN_IF_ERROR(device_.health());
  return relaunch(program_);
}

void Keeper::fail(const Status& why) {
  if (failed_.load(std::memory_order_relaxed)) return;  // relaxed: written under the mutex, which the caller has
  failure_ = "workers that had left could not be brought back: " + why.message();
  failed_.store(true, std::memory_order_release);  // [K1] pairs with [K2]
}

Status Keeper::relaunch(const Program& program) {
  CCKS_RETURN_IF_ERROR(device_.launch(program.worker(), params_));
  relaunches_.add(1);
  return {};
}

Status Keeper::begin_anew(std::uint64_t timeout_ns, const std::function<Status()>& between) {
  // Who waits for workers to leave must not go on doing so: they may wait for a scheduler.
  giving_up_.store(true, std::memory_order_relaxed);  // relaxed: a lone word
  const std::lock_guard lock(mutex_);
  const std::uint64_t since = now_ns();
  Status left;
  do {
    ask_all(wire::kParkAbandon);
    left = device_.join(kKeeperPatienceNs);
  } while (left.code() == ErrorCode::deadline_exceeded && now_ns() - since < timeout_ns);
  CCKS_RETURN_IF_ERROR(left);
  CCKS_RETURN_IF_ERROR(between());
  CCKS_RETURN_IF_ERROR(device_.health());
  giving_up_.store(false, std::memory_order_relaxed);  // relaxed: as above
  return relaunch(program_);
}

Result<HandoffTimes> Keeper::handoff(const Program& program, std::uint64_t timeout_ns) {
  const std::lock_guard lock(mutex_);
  HandoffTimes times;
  CCKS_RETURN_IF_ERROR(device_.prepare(program.worker()));
  if (!device_.info().workers_sleep) wake_core();
  const std::uint64_t start = now_ns();
  if (const Status left = suspend(timeout_ns); !left.ok()) {
    // Those that have left come back, with the code they had, as soon as the others have left too.
    call();
    return left;
  }
  CCKS_RETURN_IF_ERROR(device_.health());
  const std::uint64_t parked = now_ns();
  Status status = device_.load(program.worker());
  const std::uint64_t loaded = now_ns();
  if (status.ok()) status = relaunch(program);
  const std::uint64_t launched = now_ns();
  if (!status.ok()) {
    const Status back = relaunch(program_);
    if (!back.ok()) fail(back);
    return back.ok() ? status : Status(back.code(), status.message() + "; and the old code: " + back.message());
  }
  program_ = program;
  times.park = between(start, parked);
  times.load = between(parked, loaded);
  times.relaunch = between(loaded, launched);
  return times;
}

}  // namespace ccks::scheduler
