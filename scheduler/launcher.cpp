#include "scheduler/launcher.hpp"

#include <fmt/format.h>

#include <algorithm>

#include "ccks/wire/atoms.hpp"
#include "scheduler/fault_text.hpp"
#include "scheduler/op_steps.hpp"
#include "scheduler/tuning.hpp"

namespace ccks::scheduler {
namespace {

// The words of an OpStatus are relaxed on the host: a launch is ordered behind the clearing, and its end before the reading.
std::uint32_t word(const std::uint32_t& of) { return wire::HostAtoms::link_load_relaxed(&of); }

std::uint32_t* published(wire::OpStatus* status) { return reinterpret_cast<std::uint32_t*>(status + 1); }

}  // namespace

std::uint64_t op_status_bytes(std::uint32_t reports) {
  return (sizeof(wire::OpStatus) + reports * sizeof(std::uint32_t) + 255) / 256 * 256;
}

Launcher::Launcher(const CopilotSetup& setup, const LauncherSetup& own) : setup_(setup), own_(own) {
  order_.reserve(slot_count(), static_cast<std::uint32_t>(setup.fences->size()), setup.states);
  places_.resize(slot_count());
}

wire::OpStatus* Launcher::status_of(const RunSlot& run) const {
  return reinterpret_cast<wire::OpStatus*>(own_.status + run.index * own_.status_stride);
}

bool Launcher::step() {
  bool worked = take_submissions();
  worked |= look_at_runs();
  return worked;
}

void Launcher::rest() {
  if (order_.active().empty()) return setup_.device->scheduler_wait(kIdleSleepNs);
  (void)places_[order_.active().front()].sequence->wait(kLauncherRestNs);  // step() looks again and hears of failures
}

// ---- intake ---------------------------------------------------------------------------------------------------------

bool Launcher::take_submissions() {
  Submission item;
  std::uint32_t taken = 0;
  while (taken < kIntakePerStep && setup_.submissions->pop(item)) {
    ++taken;
    if (item.kind == Submission::Kind::fence_end) {
      leave_state(item.index);
    } else {
      enter(item.kind == Submission::Kind::run ? item.index : slot_count() + item.index);
    }
  }
  return taken > 0;
}

void Launcher::enter(std::uint32_t entry) {
  if (failed_) return abandon_entry(entry);
  const bool ordered = setup_.stateful || is_fence(entry);
  const std::uint32_t state = is_fence(entry) ? fence(entry).state : slot(entry).state_id;
  if (!ordered || order_.enter(entry, state)) begin(entry);
}

void Launcher::begin(std::uint32_t entry) {
  if (is_fence(entry)) return setup_.events->fence_reached(fence(entry));
  RunSlot& run = slot(entry);
  check_deadline(run, now_ns());
  if (is_cancelled(run, *setup_.tables)) {  // one that comes later finds the run launched
    end(run, ErrorCode::cancelled, "run cancelled");
    return let_go(run);
  }
  run.epoch = run.next_epoch;
  run.ordinal = next_ordinal_++;
  run.progress.start(*setup_.tables, run.instance);
  run.state.reset(static_cast<std::uint32_t>(RunState::running));
  const Status launched = launch(run);
  if (launched.ok()) return order_.active().push_back(entry);
  end(run, launched.code(), launched.message().c_str());
  let_go(run);
  // A driver that has failed once fails for ever; a plan that does not fit concerns its own run.
  if (launched.code() == ErrorCode::device_fault) fail_all(launched.code(), launched.message().c_str());
}

Status Launcher::launch(RunSlot& run) {
  CCKS_RETURN_IF_ERROR(prepare(run));
  clear_status(run);
  Place& place = places_[run.index];
  place.launched_ns = now_ns();
  CCKS_RETURN_IF_ERROR(place.sequence->launch());
  setup_.stats->tasks_sent.add(static_cast<std::uint64_t>(
      std::count_if(place.tiles.begin(), place.tiles.end(), [](std::uint32_t tiles) { return tiles != 0; })));
  setup_.stats->publications.add(1);
  return {};
}

// A sequence holds addresses and grids, both of which stay as long as the dims do; all else is read from the frame.
Status Launcher::prepare(RunSlot& run) {
  Place& place = places_[run.index];
  const std::span<const OpInstance> ops = run.instance.ops();
  const auto same = [](const OpInstance& op, std::uint32_t tiles) { return op.tiles == tiles; };
  if (place.sequence != nullptr && std::equal(ops.begin(), ops.end(), place.tiles.begin(), place.tiles.end(), same))
    return {};
  place.sequence.reset();
  place.tiles.clear();
  for (const OpInstance& op : ops) place.tiles.push_back(op.tiles);
  const OpSteps steps = make_op_steps(*setup_.tables, place.tiles);
  OpSequencePlan plan;
  plan.mode = own_.mode;
  plan.frame = run.memory.frame;
  plan.status = reinterpret_cast<std::uint64_t>(status_of(run));
  plan.scratch_bytes = own_.scratch_bytes;
  plan.steps = steps.steps;
  plan.dependencies = steps.dependencies;
  Result<std::unique_ptr<OpSequence>> made = setup_.device->make_op_sequence(own_.image, plan);
  if (!made.ok()) return made.status();
  place.sequence = std::move(*made);
  return {};
}

void Launcher::clear_status(const RunSlot& run) {
  wire::OpStatus* status = status_of(run);
  wire::HostAtoms::link_store_relaxed(&status->fault, std::uint32_t{0});  // relaxed: as word()
  for (std::uint32_t r = 0; r < setup_.tables->report_count(); ++r)
    wire::HostAtoms::link_store_relaxed(published(status) + r, std::uint32_t{0});
}

// ---- runs under way -------------------------------------------------------------------------------------------------

bool Launcher::look_at_runs() {
  const std::uint64_t now = now_ns();
  std::vector<std::uint32_t>& runs = order_.active();
  bool any = false;
  for (std::size_t i = 0; i < runs.size();) {
    RunSlot& run = slot(runs[i]);
    if (!look_at(run, now)) {
      if (failed_) return true;
      ++i;
      continue;
    }
    runs.erase(runs.begin() + static_cast<std::ptrdiff_t>(i));  // the oldest stays in front
    any = true;
    finish(run);
  }
  check_waiting(now);
  return any;
}

// True once the run's launches have ended.
bool Launcher::look_at(RunSlot& run, std::uint64_t now) {
  const Place& place = places_[run.index];
  const Result<bool> ended = place.sequence->wait(0);
  if (!ended.ok()) {
    fail_all(ended.status().code(), ended.status().message().c_str());
    return false;
  }
  if (*ended) return true;
  check_deadline(run, now);
  if (now > place.launched_ns + own_.patience_ns) {
    std::array<char, 232> text{};
    fmt::format_to_n(text.begin(), text.size() - 1, "the ops of slot {} have not ended within {} ms", run.index,
                     own_.patience_ns / 1'000'000);
    fail_all(ErrorCode::deadline_exceeded, text.data());
  }
  return false;
}

void Launcher::finish(RunSlot& run) {
  wire::OpStatus* status = status_of(run);
  for (std::uint32_t r = 0; r < setup_.tables->report_count(); ++r) {
    if (word(published(status)[r]) != 0) run.progress.report_arrived(r);
  }
  if (const std::uint32_t fault = word(status->fault); fault != 0) {
    std::array<char, 232> text{};
    describe_op_fault(setup_.tables->plan, static_cast<wire::FaultCode>(fault), word(status->op), word(status->tile),
                      run.index, text);
    end(run, ErrorCode::device_fault, text.data());
  } else {
    const bool cancelled = is_cancelled(run, *setup_.tables);
    end(run, cancelled ? ErrorCode::cancelled : ErrorCode::ok, cancelled ? "run cancelled" : "");
  }
  let_go(run);
}

void Launcher::check_waiting(std::uint64_t now) {
  order_.for_each_waiting([&](std::uint32_t entry) {
    if (!is_fence(entry)) check_deadline(slot(entry), now);
  });
}

void Launcher::check_deadline(RunSlot& run, std::uint64_t now) {
  if (run.deadline_ns == 0 || now < run.deadline_ns) return;
  end(run, ErrorCode::deadline_exceeded, "the run's deadline passed");
  run.cancel.store(true, std::memory_order_relaxed);  // relaxed: read by this thread
}

// ---- ends -----------------------------------------------------------------------------------------------------------

void Launcher::end(RunSlot& run, ErrorCode code, const char* message) {
  if (run.state.peek() >= static_cast<std::uint32_t>(RunState::done)) return;
  run.code = code;
  const auto text = fmt::format_to_n(run.message, sizeof(run.message) - 1, "{}", message);
  *text.out = 0;
  run.end_ns = now_ns();
  SchedulerStats& stats = *setup_.stats;
  (code == ErrorCode::ok          ? stats.runs_done
   : code == ErrorCode::cancelled ? stats.runs_cancelled
                                  : stats.runs_failed)
      .add(1);
  setup_.events->run_ended(run);
}

void Launcher::let_go(RunSlot& run) {
  const std::uint32_t state = run.state_id;
  setup_.events->run_released(run);
  if (setup_.stateful) leave_state(state);
}

void Launcher::leave_state(std::uint32_t state) {
  const std::uint32_t next = order_.leave(state);
  if (next != plan::kNone) begin(next);
}

void Launcher::abandon_entry(std::uint32_t entry) {
  if (is_fence(entry)) return setup_.events->fence_reached(fence(entry));
  end(slot(entry), fail_code_, fail_message_.data());
  setup_.events->run_released(slot(entry));
}

void Launcher::fail_all(ErrorCode code, const char* message) {
  if (failed_) return;
  failed_ = true;
  fail_code_ = code;
  fmt::format_to_n(fail_message_.begin(), fail_message_.size() - 1, "{}", message);
  setup_.events->engine_failed(code, fail_message_.data());
  for (const std::uint32_t entry : order_.active()) abandon_entry(entry);
  order_.for_each_waiting([&](std::uint32_t entry) { abandon_entry(entry); });
  order_.active().clear();
}

}  // namespace ccks::scheduler
