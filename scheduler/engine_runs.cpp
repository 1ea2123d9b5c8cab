// EngineCore: the life of a run, from submit to the last handle.
#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <optional>
#include <utility>

#include "ccks/wire/atoms.hpp"
#include "scheduler/engine_core.hpp"
#include "scheduler/record_file.hpp"
#include "scheduler/tuning.hpp"

namespace ccks::scheduler {

// ---- submit ---------------------------------------------------------------------------------------------------------

Status EngineCore::ready_to_run() const {
  CCKS_RETURN_IF_ERROR(failure());
  if (stopping_.load(std::memory_order_relaxed))
    return {ErrorCode::cancelled, "the engine is stopping"};  // see shut_down
  if (!started_.load(std::memory_order_acquire)) {            // [C4] pairs with [C3]
    return {ErrorCode::invalid_argument, "the engine has not been started"};
  }
  return {};
}

Status EngineCore::check_request(const RunRequest& request, std::span<const GivenLengths> lengths, std::span<std::int64_t> symbols,
                                 std::span<std::int64_t> dims) const {
  if (request.state >= options_.states) {
    return {ErrorCode::out_of_range, fmt::format("state {} of {}", request.state, options_.states)};
  }
  CCKS_RETURN_IF_ERROR(bind_symbols(tables_.plan, request.dims, symbols));
  CCKS_RETURN_IF_ERROR(evaluate_plan(tables_.plan, symbols, dims));
  CCKS_RETURN_IF_ERROR(check_lengths(tables_.plan, lengths, dims));
  for (const RunRequest::Input& input : request.inputs) {
    Result<const plan::TensorDesc*> tensor = find_tensor(input.name);
    if (!tensor.ok()) return tensor.status();
    const plan::TensorKind kind = (*tensor)->kind;
    if (kind != plan::TensorKind::input && kind != plan::TensorKind::output) {
      return {ErrorCode::invalid_argument, fmt::format("'{}' is neither an input nor an output", input.name)};
    }
    const std::uint64_t want = tensor_bytes(**tensor, dims);
    if (input.bytes.size() != want) return size_error(**tensor, input.bytes.size(), want);
  }
  return {};
}

// Of those whose frame is of these dims, so that nothing has to be made anew, the one let go last, whose tasks workers know (wire::kTaskAgain); or else the one
// that has been free the longest: sizes that come again and again keep their slots, as far as there are enough.
bool EngineCore::pop_slot(std::span<const std::int64_t> symbols, std::uint32_t& index) {
  if (!free_slots_->pop(index)) return false;
  if (symbols.empty() || slots_[index].instance.matches(symbols)) return true;
  std::vector<std::uint32_t> others = {index};
  bool matches = false;
  while (!matches && free_slots_->pop(index)) {
    matches = slots_[index].instance.matches(symbols);
    if (!matches) others.push_back(index);
  }
  if (!matches) {
    index = others.back();
    others.pop_back();
  }
  std::for_each(others.rbegin(), others.rend(), [&](std::uint32_t other) { free_slots_->push(other); });
  if (!others.empty()) slot_freed_.add(1);  // who has looked meanwhile has found none
  return true;
}

Result<RunSlot*> EngineCore::acquire_slot(std::span<const std::int64_t> symbols) {
  std::uint64_t held_since = 0;
  for (;;) {
    const std::uint32_t releases = slot_freed_.load();
    std::uint32_t index = 0;
    {
      const std::shared_lock lock(gate_);
      if (pop_slot(symbols, index)) {
        slots_[index].holders.store(kHeldByClient, std::memory_order_relaxed);  // relaxed: the slot is this client's
        return &slots_[index];
      }
    }
    CCKS_RETURN_IF_ERROR(ready_to_run());
    slot_freed_.wait([releases](std::uint32_t now) { return now != releases; }, kIdleSleepNs);
    if (unfinished_.peek() != 0) {
      held_since = 0;
    } else if (held_since == 0) {
      held_since = now_ns();
    } else if (now_ns() - held_since > kHeldSlotsPatienceNs) {
      return {ErrorCode::deadline_exceeded,
              fmt::format("all {} slots are held by runs that have ended: drop their handles, or ask for more slots",
                          slots_.size())};
    }
  }
}

// What a run puts out stays where it is as long as its slot is held, and runs of one state go one after the other.
Status EngineCore::check_feeds(const RunRequest& request, std::span<const std::int64_t> dims) const {
  for (const RunRequest::Feed& feed : request.feeds) {
    const RunSlot* from = feed.run == nullptr ? nullptr : slot_of(*feed.run);
    if (from == nullptr) return {ErrorCode::invalid_argument, fmt::format("'{}' is fed by no run of this engine", feed.name)};
    if (tables_.plan.state_bytes == 0 || from->state_id != request.state) {
      return {ErrorCode::invalid_argument, fmt::format("'{}' is fed by a run that nothing keeps in front of this one", feed.name)};
    }
    const Result<const plan::TensorDesc*> input = find_tensor(feed.name), output = find_tensor(feed.output);
    if (!input.ok()) return input.status();
    if (!output.ok()) return output.status();
    if ((*input)->kind != plan::TensorKind::input || (*output)->kind != plan::TensorKind::output) {
      return {ErrorCode::invalid_argument, fmt::format("'{}' is no output that input '{}' could be", feed.output, feed.name)};
    }
    const std::uint64_t want = tensor_bytes(**input, dims), have = tensor_bytes(**output, from->instance.dims());
    if ((*input)->dtype != (*output)->dtype) return {ErrorCode::invalid_argument, fmt::format("'{}' is of another type than '{}'", feed.output, feed.name)};
    if (have != want) return size_error(**input, have, want);
  }
  return {};
}

// It must have ended when this run begins to end, and its report be there still.
Status EngineCore::check_unless(const RunRequest& request) const {
  const RunRequest::Unless& unless = request.unless;
  if (unless.run == nullptr) return {};
  const RunSlot* on = slot_of(*unless.run);
  if (on == nullptr || tables_.plan.state_bytes == 0 || on->state_id != request.state) {
    return {ErrorCode::invalid_argument, fmt::format("report '{}' is of no run that something keeps in front of this one", unless.report)};
  }
  const plan::ReportDesc* report = find_report(unless.report);
  if (report == nullptr) return {ErrorCode::not_found, fmt::format("the program has no report '{}'", unless.report)};
  if (report->dtype != wire::Dtype::i32) {
    return {ErrorCode::invalid_argument, fmt::format("report '{}' is not of i32, so no run can hang on its values", unless.report)};
  }
  return {};
}

void EngineCore::place_unless(RunSlot& run, const RunRequest& request) {
  run.unless.run = nullptr;
  if (request.unless.run == nullptr) return;
  RunSlot& on = const_cast<RunSlot&>(*slot_of(*request.unless.run));
  run.unless.run = &on;
  run.unless.report = static_cast<std::uint32_t>(find_report(request.unless.report) - tables_.plan.reports.data());
  run.unless.values.assign(request.unless.values.begin(), request.unless.values.end());
  hold(run, on);
}

void EngineCore::hold(RunSlot& run, RunSlot& other) {
  other.holders.fetch_add(kHeldByFeed, std::memory_order_relaxed);  // relaxed: the caller's handle holds it already
  run.fed_by.push_back(&other);
}

const plan::ReportDesc* EngineCore::find_report(std::string_view name) const {
  const auto reports = tables_.plan.reports;
  const auto found = std::find_if(reports.begin(), reports.end(), [&](const auto& r) { return name == r.name; });
  return found == reports.end() ? nullptr : &*found;
}

// All of it where lists change, else what has changed.
Status EngineCore::write_frame(RunSlot& run, const RunRequest& request, std::span<const std::int64_t> symbols,
                               std::span<const std::int64_t> dims) {
  const std::uint64_t state = memory_.state(request.state);
  Instance& instance = run.instance;
  bool whole = !instance.matches(symbols);
  if (whole && record_ == nullptr && options_.replay_path.empty()) {  // records name dims, which then say all
    Result<bool> updated = instance.update(tables_, symbols, dims);
    if (!updated.ok()) return updated.status();
    whole = !*updated;
  }
  if (whole) {
    CCKS_RETURN_IF_ERROR(instance.rebuild(tables_, symbols, dims, run.memory, memory_.weights, state, run.next_epoch));
    if (arm_ == Arm::gpu_queue) CCKS_RETURN_IF_ERROR(queues_.place(*device_, tables_, run.index, instance));
  }
  run.tag = wire::value_tag(run.next_epoch);
  whole = place_feeds(run, request) || whole;
  const bool moved = instance.state() != state;
  if (moved) instance.set_state(state);
  const std::span<const FrameRange> changes = instance.take_changes();
  const std::span<const std::byte> frame = instance.frame();
  if (whole || moved || !changes.empty()) run.written_for = run.next_epoch;
  if (whole) return device_->write(run.memory.frame, frame.data(), frame.size());
  for (const FrameRange& range : changes) {
    CCKS_RETURN_IF_ERROR(device_->write(run.memory.frame + range.first, frame.data() + range.first, range.end - range.first));
  }
  if (!moved) return {};
  return device_->write(run.memory.frame + offsetof(wire::RunFrame, state), &state, sizeof(state));
}

// True: lists have changed.
bool EngineCore::place_feeds(RunSlot& run, const RunRequest& request) {
  std::vector<Feed> feeds;
  run.ticket = tickets_.empty() ? 0 : tickets_[request.state].fetch_add(1, std::memory_order_relaxed);  // relaxed: it counts
  run.answered_by = nullptr;
  for (const RunRequest::Feed& feed : request.feeds) {
    const plan::TensorDesc* input = find_tensor(feed.name).value();
    const plan::TensorDesc* output = find_tensor(feed.output).value();
    RunSlot& from = const_cast<RunSlot&>(*slot_of(*feed.run));
    const plan::TensorDesc* tensors = tables_.plan.tensors.data();
    const bool next = from.ticket + 1 == run.ticket;  // the turn keeps all runs of a state apart, the word only these two
    const std::uint64_t word = next ? from.instance.word_of(tables_, static_cast<std::uint32_t>(output - tensors)) : 0;
    feeds.push_back({static_cast<std::uint32_t>(input - tensors), from.memory.arena + output->offset, word, from.tag});
    if (run.instance.is_answered_by(tables_, feeds.back())) run.answered_by = &from;
    hold(run, from);
  }
  return run.instance.feed(tables_, feeds);
}

void EngineCore::let_go_of_feeds(RunSlot& run) {
  for (RunSlot* from : run.fed_by) let_go(*from, kHeldByFeed);
  run.fed_by.clear();
}

// The slot is ours: no task of it is in flight, so frame and arena may be written.
Status EngineCore::prepare_slot(RunSlot& run, const RunRequest& request, std::span<const std::int64_t> symbols,
                                std::span<const std::int64_t> dims, std::span<const GivenLengths> lengths) {
  CCKS_RETURN_IF_ERROR(write_frame(run, request, symbols, dims));
  place_unless(run, request);
  for (const RunRequest::Input& input : request.inputs) {
    const plan::TensorDesc& tensor = *find_tensor(input.name).value();
    CCKS_RETURN_IF_ERROR(device_->write(run.memory.arena + tensor.offset, input.bytes.data(), input.bytes.size()));
  }
  return write_ragged(run, dims, lengths);
}

// By the client's thread, while other runs are under way: whose rows are whose is found out before any task of the run exists.
Status EngineCore::write_ragged(RunSlot& run, std::span<const std::int64_t> dims, std::span<const GivenLengths> lengths) {
  std::vector<std::int32_t> values;
  for (const GivenLengths& given : lengths) {
    for (std::size_t table = 0; table < std::size(given.ragged->tables); ++table) {
      if (given.ragged->tables[table] == plan::kNone) continue;
      const plan::TensorDesc& tensor = tables_.plan.tensors[given.ragged->tables[table]];
      values.resize(tensor_bytes(tensor, dims) / sizeof(std::int32_t));
      given.rows.write(table, values);
      CCKS_RETURN_IF_ERROR(device_->write(run.memory.arena + tensor.offset, values.data(), values.size() * sizeof(std::int32_t)));
    }
  }
  return {};
}

Result<RunSlot*> EngineCore::submit(RunRequest& request) {
  const std::uint64_t submit_ns = now_ns();
  CCKS_RETURN_IF_ERROR(ready_to_run());
  std::vector<std::int64_t> symbols(tables_.plan.symbols.size());
  std::vector<std::int64_t> dims(tables_.plan.dims.size());
  Result<std::vector<GivenLengths>> lengths = bind_lengths(tables_.plan, request.lengths, request.dims);
  if (!lengths.ok()) return lengths.status();
  CCKS_RETURN_IF_ERROR(check_request(request, *lengths, symbols, dims));
  CCKS_RETURN_IF_ERROR(check_feeds(request, dims));
  CCKS_RETURN_IF_ERROR(check_unless(request));
  Result<RunSlot*> slot = acquire_slot(symbols);
  if (!slot.ok()) return slot.status();
  RunSlot& run = **slot;
  if (const Status status = prepare_slot(run, request, symbols, dims, *lengths); !status.ok()) {
    {
      const std::shared_lock lock(gate_);
      let_go_of_feeds(run);
    }
    release(run);
    return status;
  }
  run.state_id = request.state;
  run.submit_ns = submit_ns;
  run.deadline_ns = request.deadline.count() > 0 ? submit_ns + static_cast<std::uint64_t>(request.deadline.count()) : 0;
  run.on_done = std::move(request.on_done);
  run.code = ErrorCode::ok;
  run.message[0] = 0;
  run.end_ns = 0;
  // Relaxed, all three: the queue orders them before the scheduler's look, or PrimedRun::take does.
  run.cancel.store(false, std::memory_order_relaxed);
  run.state.reset(static_cast<std::uint32_t>(RunState::queued));
  run.told = false;
  if (!hand_over(run)) {
    {
      const std::shared_lock lock(gate_);
      let_go_of_feeds(run);
    }
    release(run);
    return failure();
  }
  if (record_ != nullptr) (void)record_->flush();  // a failure stays, and drain() reports it
  return &run;
}

/// False: there is no scheduler any more that could take it.
bool EngineCore::hand_over(RunSlot& run) {
  const std::shared_lock lock(gate_);
  if (!attended_) return false;
  run.holders.store(kHeldByClient | kHeldByScheduler, std::memory_order_relaxed);  // relaxed: ordered as above
  unfinished_.add(1);
  runs_submitted_.fetch_add(1, std::memory_order_relaxed);  // relaxed: a counter
  if (primed_.take(run)) {
    primed_.send(wire::HostAtoms{});
    device_->wake_scheduler();
    return true;
  }
  push({Submission::Kind::run, run.index});
  return true;
}

void EngineCore::push(Submission submission) {
  submissions_->push(submission);
  device_->wake_scheduler();
}

// ---- scheduler thread -----------------------------------------------------------------------------------------------

void EngineCore::run_ended(RunSlot& run) {
  const bool ok = run.code == ErrorCode::ok;
  // First the state: the callback may read outputs. The scheduler's hold keeps the slot until it returns.
  run.state.store(static_cast<std::uint32_t>(ok ? RunState::done : RunState::failed));
  std::optional<Status> end;
  {
    // It counts as told once it is sure to be: behind a shield there is time to begin.
    const Shield whole;
    if (std::exchange(run.told, true) || !run.on_done) return;
    end.emplace(ok ? ErrorCode::ok : run.code, ok ? "" : run.message);
  }
  run.on_done(*end);
  const Shield frees;
  end.reset();
}

void EngineCore::run_released(RunSlot& run) {
  const Shield whole;  // slots are let go, or they are not
  let_go_of_feeds(run);
  let_go(run, kHeldByScheduler);
  unfinished_.add(~std::uint32_t{0});
}

void EngineCore::release(RunSlot& run) {
  const std::shared_lock lock(gate_);
  let_go(run, kHeldByClient);
}

void EngineCore::let_go(RunSlot& run, Holder who) {
  // acq_rel: whoever frees the slot has seen what the other holders did with it.
  if (run.holders.fetch_sub(who, std::memory_order_acq_rel) != who) return;
  run.on_done = nullptr;
  free_slots_->push(run.index);
  slot_freed_.add(1);
}

void EngineCore::fence_reached(StateFence& fence) { fence.reached.store(1); }

void EngineCore::engine_failed(ErrorCode code, const char* message) {
  fail_code_ = code;
  std::strncpy(fail_message_, message, sizeof(fail_message_) - 1);
  keeper_->give_up();
  failed_.store(true, std::memory_order_release);  // [C1] pairs with [C2]
}

// ---- handles --------------------------------------------------------------------------------------------------------

Status EngineCore::wait(RunSlot& run, std::uint64_t timeout_ns) {
  const auto ended = [](std::uint32_t state) { return state >= static_cast<std::uint32_t>(RunState::done); };
  if (!run.state.wait(ended, timeout_ns)) return {ErrorCode::deadline_exceeded, "the run has not ended yet"};
  if (record_ != nullptr) (void)record_->flush();  // a failure stays, and drain() reports it
  return run.code == ErrorCode::ok ? Status() : Status(run.code, run.message);
}

void EngineCore::cancel(RunSlot& run) {
  run.cancel.store(true, std::memory_order_relaxed);  // relaxed: no data comes with it
  device_->wake_scheduler();
}

Result<std::uint64_t> EngineCore::bytes_of(const RunSlot& run, std::string_view name) const {
  Result<const plan::TensorDesc*> tensor = find_tensor(name);
  if (!tensor.ok()) return tensor.status();
  return tensor_bytes(**tensor, run.instance.dims());
}

Status EngineCore::read_output(const RunSlot& run, std::string_view name, std::span<std::byte> bytes) const {
  const auto state = static_cast<RunState>(run.state.load());
  if (state == RunState::failed) return {run.code, run.message};
  if (state != RunState::done) return {ErrorCode::invalid_argument, "the run has not ended yet"};
  Result<const plan::TensorDesc*> found = find_tensor(name);
  if (!found.ok()) return found.status();
  const plan::TensorDesc& tensor = **found;
  if (tensor.kind != plan::TensorKind::output && tensor.kind != plan::TensorKind::state) {
    return {ErrorCode::invalid_argument, fmt::format("'{}' is neither an output nor a state", name)};
  }
  const std::uint64_t want = tensor_bytes(tensor, run.instance.dims());
  if (bytes.size() != want) return size_error(tensor, bytes.size(), want);
  const bool in_state = tensor.space == wire::Space::state;
  const std::uint64_t base = in_state ? memory_.state(run.state_id) : run.memory.arena;
  return const_cast<Device&>(*device_).read(bytes.data(), base + tensor.offset, want);
}

Result<std::vector<double>> EngineCore::report(const RunSlot& run, std::string_view name) const {
  if (static_cast<RunState>(run.state.load()) != RunState::done)
    return {ErrorCode::invalid_argument, "the run is not done"};
  const plan::ReportDesc* found = find_report(name);
  if (found == nullptr) return {ErrorCode::not_found, fmt::format("the program has no report '{}'", name)};
  if (!run.progress.report_seen(static_cast<std::uint32_t>(found - tables_.plan.reports.data()))) {
    return {ErrorCode::not_found,
            fmt::format("report '{}' was not published: the condition of its op was false", name)};
  }
  const std::byte* from = run.instance.reports() + found->offset;
  std::vector<double> values(static_cast<std::size_t>(run.instance.dims()[found->elements]));
  for (double& value : values) {
    std::int32_t word = 0;
    std::memcpy(&word, from, sizeof(word));
    float real = 0;
    std::memcpy(&real, from, sizeof(real));
    value = found->dtype == wire::Dtype::f32 ? static_cast<double>(real) : static_cast<double>(word);
    from += sizeof(word);
  }
  return values;
}

Status EngineCore::drain(std::uint64_t timeout_ns) {
  const bool drained = unfinished_.wait([](std::uint32_t left) { return left == 0; }, timeout_ns);
  CCKS_RETURN_IF_ERROR(failure());
  if (!drained) return {ErrorCode::deadline_exceeded, fmt::format("{} runs have not ended", unfinished_.peek())};
  return record_ != nullptr ? record_->flush() : Status();
}

// ---- states ---------------------------------------------------------------------------------------------------------

Status EngineCore::with_state(std::uint32_t state, const std::function<Status(std::uint64_t)>& use) {
  if (state >= options_.states) return {ErrorCode::out_of_range, fmt::format("state {} of {}", state, options_.states)};
  CCKS_RETURN_IF_ERROR(failure());
  std::uint32_t index = 0;
  // One fence for each state instance; further clients take turns.
  while (!free_fences_->pop(index)) slot_freed_.wait([](std::uint32_t) { return false; }, 100'000);
  StateFence& fence = fences_[index];
  fence.state = state;
  fence.reached.reset(0);
  {
    const std::shared_lock lock(gate_);
    if (!attended_) return free_fences_->push(index), failure();
    fence.phase = StateFence::asked;
    push({Submission::Kind::fence, index});
  }
  fence.reached.wait([](std::uint32_t reached) { return reached != 0; }, kForever);
  const std::shared_lock lock(gate_);
  const bool lost = std::exchange(fence.phase, StateFence::idle) == StateFence::lost;
  Status status = failure();
  if (status.ok() && lost) status = {ErrorCode::internal, "the scheduler was lost while it had this request"};
  if (status.ok()) status = use(memory_.state(state));
  if (!lost) push({Submission::Kind::fence_end, state});
  free_fences_->push(index);
  return status;
}

Status EngineCore::reset_state(std::uint32_t state) {
  if (memory_.state_stride == 0) return {};
  return with_state(state, [&](std::uint64_t address) { return device_->fill_zero(address, memory_.state_stride); });
}

Status EngineCore::write_state(std::uint32_t state, std::string_view name, std::span<const std::byte> bytes) {
  Result<const plan::TensorDesc*> found = find_tensor(name);
  if (!found.ok()) return found.status();
  const plan::TensorDesc& tensor = **found;
  if (tensor.kind != plan::TensorKind::state)
    return {ErrorCode::invalid_argument, fmt::format("'{}' is not a state", name)};
  if (bytes.size() > tensor.max_bytes) return size_error(tensor, bytes.size(), tensor.max_bytes);
  return with_state(
      state, [&](std::uint64_t base) { return device_->write(base + tensor.offset, bytes.data(), bytes.size()); });
}

Status EngineCore::read_state(std::uint32_t state, std::string_view name, std::span<std::byte> bytes) {
  Result<const plan::TensorDesc*> found = find_tensor(name);
  if (!found.ok()) return found.status();
  const plan::TensorDesc& tensor = **found;
  if (tensor.kind != plan::TensorKind::state)
    return {ErrorCode::invalid_argument, fmt::format("'{}' is not a state", name)};
  if (bytes.size() > tensor.max_bytes) return size_error(tensor, bytes.size(), tensor.max_bytes);
  return with_state(
      state, [&](std::uint64_t base) { return device_->read(bytes.data(), base + tensor.offset, bytes.size()); });
}

}  // namespace ccks::scheduler
