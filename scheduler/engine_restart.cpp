// EngineCore: another scheduler in the place of one that was lost. restart.hpp has what is done to rings, lines and events.
//
// The lost thread may have stood anywhere: in the middle of a queue's push, between the end of a run and the word that says so. So
// nothing that it shared with clients is believed but words that change in one access: each slot's holders and state. Queues are made
// anew from them, under a gate that keeps clients out meanwhile.
#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>

#include "scheduler/engine_core.hpp"
#include "scheduler/restart.hpp"
#include "scheduler/tuning.hpp"

namespace ccks::scheduler {
namespace {

constexpr useconds_t kGateLookUs = 50;

}  // namespace

struct EngineCore::Lost {
  std::vector<RunSlot*> runs;
  std::uint64_t kept = 0;
};

Status EngineCore::can_restart() const {
  CCKS_RETURN_IF_ERROR(ready_to_run());
  if (arm_ != Arm::copilot && arm_ != Arm::fixed) {
    return {ErrorCode::unsupported, fmt::format("arm {}: its scheduler cannot be replaced", options_.arm)};
  }
  if (record_ != nullptr || !options_.replay_path.empty()) {
    return {ErrorCode::unsupported, "a scheduler that records or replays cannot be replaced"};
  }
  return {};
}

Result<RestartOutcome> EngineCore::restart_scheduler(std::uint64_t grace_ns, std::uint64_t timeout_ns) {
  const std::lock_guard one_at_a_time(restart_mutex_);
  CCKS_RETURN_IF_ERROR(can_restart());
  const std::uint64_t since = now_ns();
  Lost lost;
  const Status done = replace_scheduler(timeout_ns, lost, grace_ns);
  report_lost(lost);
  CCKS_RETURN_IF_ERROR(done);
  return RestartOutcome{lost.runs.size(), lost.kept, std::chrono::nanoseconds(now_ns() - since)};
}

Status EngineCore::replace_scheduler(std::uint64_t timeout_ns, Lost& lost, std::uint64_t grace_ns) {
  if (!thread_->lose(grace_ns, timeout_ns)) {
    // It has been told to leave, and will when it goes on; until then nothing that it may touch can be given to another.
    engine_failed(ErrorCode::deadline_exceeded, "the scheduler thread could not be stopped");
    return failure();
  }
  Status status = failure();  // the lost thread was in the middle of failing
  if (status.ok()) status = keeper_->begin_anew(timeout_ns, [&] { return take_stock(timeout_ns, true, lost); });
  if (!status.ok()) {
    if (failure().ok()) engine_failed(status.code(), ("the scheduler was lost, and could not be replaced: " + status.message()).c_str());
    (void)take_stock(timeout_ns, false, lost);
    return failure();
  }
  // Relaxed, both: a counter. Before the new thread ends runs, whose clients may ask.
  restarts_.fetch_add(1, std::memory_order_relaxed);
  const Status started = start_thread();
  if (!started.ok()) restarts_.fetch_sub(1, std::memory_order_relaxed);
  return started;
}

/// Sorts out what the lost thread had, and leaves everything as at the beginning. Without the workers gone: nothing will run again.
Status EngineCore::take_stock(std::uint64_t timeout_ns, bool workers_left, Lost& lost) {
  const std::uint64_t since = now_ns();
  while (!gate_.try_lock()) {
    if (now_ns() - since > timeout_ns) return {ErrorCode::deadline_exceeded, "a client does not let go of the engine's queues"};
    usleep(kGateLookUs);
  }
  const std::lock_guard alone(gate_, std::adopt_lock);
  std::vector<Submission> waiting;
  for (Submission item; submissions_->pop(item);) {
    if (item.kind != Submission::Kind::fence_end) waiting.push_back(item);  // states have nobody in them any more
  }
  if (!workers_left) waiting.clear();
  attended_ = workers_left;
  sort_runs(waiting, lost);
  sort_fences(waiting);
  refill_queues(waiting, lost);
  const std::uint32_t taken = primed_.last_taken();
  primed_.reset();
  if (!workers_left) return {};
  for (RunSlot* run : lost.runs) {
    if (run->index == taken) mark_begun(*run);
  }
  for (RunSlot* run : lost.runs) CCKS_RETURN_IF_ERROR(spend_run(*device_, tables_, *run));
  clear_links(memory_.params);
  policy_ = make_policy(policy_kind_, tables_, options_.slots);
  make_guesses();
  return {};
}

void EngineCore::sort_runs(const std::vector<Submission>& waiting, Lost& lost) {
  lost = {};
  std::vector<bool> kept(slots_.size(), false);
  for (const Submission& item : waiting) {
    if (item.kind == Submission::Kind::run) kept[item.index] = true;
  }
  const auto held = [](const RunSlot& run) {
    // relaxed: the gate and the lost thread's end order it.
    return (run.holders.load(std::memory_order_relaxed) & kHeldByScheduler) != 0;
  };
  // What a state instance is after half a run nobody knows: runs behind it must not go on from there.
  std::vector<bool> spoilt(options_.states, false);
  for (const RunSlot& run : slots_) {
    const bool ended = run.state.peek() >= static_cast<std::uint32_t>(RunState::done);
    if (tables_.plan.state_bytes > 0 && held(run) && !kept[run.index] && !ended) spoilt[run.state_id] = true;
  }
  for (RunSlot& run : slots_) {
    if (!held(run)) continue;
    if (kept[run.index] && !spoilt[run.state_id]) {
      ++lost.kept;
    } else {
      lost.runs.push_back(&run);
    }
  }
}

void EngineCore::sort_fences(const std::vector<Submission>& waiting) {
  std::vector<bool> kept(fences_.size(), false);
  for (const Submission& item : waiting) {
    if (item.kind == Submission::Kind::fence) kept[item.index] = true;
  }
  for (std::size_t i = 0; i < fences_.size(); ++i) {
    if (kept[i] || fences_[i].phase != StateFence::asked) continue;
    fences_[i].phase = StateFence::lost;
    fences_[i].reached.store(1);
  }
}

void EngineCore::refill_queues(const std::vector<Submission>& waiting, const Lost& lost) {
  submissions_ = std::make_unique<SubmissionQueue>(slots_.size() + 2 * fences_.size());
  for (const Submission& item : waiting) {
    const bool is_lost = item.kind == Submission::Kind::run && std::find(lost.runs.begin(), lost.runs.end(), &slots_[item.index]) != lost.runs.end();
    if (!is_lost) submissions_->push(item);
  }
  free_slots_ = std::make_unique<SlotStack>(slots_.size());
  for (RunSlot& run : slots_) {
    if (run.holders.load(std::memory_order_relaxed) == 0) free_slots_->push(run.index);  // relaxed: as in sort_runs
  }
  unfinished_.store(static_cast<std::uint32_t>(lost.kept + lost.runs.size()));
  slot_freed_.add(1);
}

/// Outside the gate: callbacks may let go of handles.
void EngineCore::report_lost(const Lost& lost) {
  for (RunSlot* run : lost.runs) {
    if (run->state.peek() < static_cast<std::uint32_t>(RunState::done)) {
      run->code = ErrorCode::internal;
      std::strncpy(run->message, "the scheduler was lost while it had this run", sizeof(run->message) - 1);
      run->end_ns = now_ns();
      runs_lost_.fetch_add(1, std::memory_order_relaxed);  // relaxed: a counter
    }
    run_ended(*run);
    const std::shared_lock lock(gate_);
    run_released(*run);
  }
}

}  // namespace ccks::scheduler
