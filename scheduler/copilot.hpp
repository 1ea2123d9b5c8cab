// Copilot: the scheduler's brain. step() never blocks, allocates or calls the driver, so the same code runs on its own
// thread (scheduler_thread.hpp) and under a simulator with other Atoms and another Clock.
#pragma once

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cstdint>
#include <cstring>
#include <utility>

#include "scheduler/copilot_setup.hpp"
#include "scheduler/fault_text.hpp"
#include "scheduler/held_lists.hpp"
#include "scheduler/run_order.hpp"
#include "scheduler/task_watch.hpp"
#include "scheduler/worker_groups.hpp"
#include "scheduler/worker_links.hpp"

namespace ccks::scheduler {

/// One thread calls step(). Clock has `std::uint64_t now_ns() const`. Links are WorkerLinks, or DelayedLinks to simulate a
/// slower link.
template <class Atoms, class Clock, template <class> class Links = WorkerLinks>
class Copilot {
 public:
  explicit Copilot(const CopilotSetup& setup, Atoms atoms = {}, Clock clock = {})
      : setup_(setup), clock_(clock), wants_done_{setup.policy->wants_done()} {
    for (RunSlot& run : *setup.slots) {
      run.drafts.reserve(kRunDrafts);
      slots_.push_back(&run);
    }
    for (DecisionSink* sink : setup.sinks) has_sinks_ |= sink != nullptr;
    links_.reserve(setup.params, atoms, setup.link_delay_ns, setup.first_position);
    groups_.reserve(setup.params.workers, setup.tables->workers, setup.params.inbox_slots);
    order_.reserve(slot_count(), static_cast<std::uint32_t>(setup.fences->size()), setup.states);
    rung_.assign(setup.params.workers, 0);
    held_.reserve();
    late_.reserve(setup.params.workers);
    if (primes()) {
      lists_.reserve(setup.primed->capacity());
      ahead_.assign(setup.params.workers, 0);
    }
    watch_.reserve(setup.params.workers, setup.task_deadline_ns);
  }

  /// One round: take records, take new runs, decide, publish, look at the clock. True if anything happened.
  bool step() {
    const std::uint64_t now = clock_.now_ns();
    if (worked_) setup_.stats->busy_ns.add(now - stepped_at_);  // by the clock of the step behind it: a reading costs more than a record
    stepped_at_ = now;
    const bool begun = notice_primed();
    const bool on_its_way = links_.turn(now, [this](std::uint32_t worker) {
      if (setup_.doorbells) setup_.device->doorbell(worker);
    });
    const bool heard = drain_outboxes();
    bool worked = begun | heard;
    worked |= take_submissions();
    worked |= advance_runs(now);
    worked |= settle_runs();
    if (!heard || active().empty()) book_late(active().empty() ? late_.size() : kBookedAtOnce);
    if (!worked) prime_next();
    tick(now);
    worked_ = worked;
    return worked || on_its_way;
  }

  /// Whether step() has begun to look after the workers and not ended: no time to sleep.
  bool ticks() const { return ticked_ < links_.workers(); }
  /// How long the thread may sleep when step() found nothing to do.
  std::uint64_t sleep_ns() const { return in_flight() ? kTickNs : kIdleSleepNs; }
  bool in_flight() const { return !active().empty(); }
  bool failed() const { return failed_; }
  /// Ends every run with `code`. Nothing is sent any more; slots are let go at once.
  void fail_all(ErrorCode code, const char* message) {
    if (failed_) return;
    failed_ = true;
    fail_code_ = code;
    fmt::format_to_n(fail_message_.begin(), fail_message_.size() - 1, "{}", message);
    setup_.events->engine_failed(code, fail_message_.data());
    for (std::uint32_t w = 0; w < links_.workers(); ++w) park(w, wire::kParkAbandon);
    for (const std::uint32_t index : active()) abandon(slot(index));
    settle_primed();
    order_.for_each_waiting([&](std::uint32_t entry) { abandon_entry(entry); });
    order_.active().clear();
  }
  /// Relaxed: the request is a lone word (worker_link.hpp).
  void park(std::uint32_t worker, wire::ParkRequest request) {
    links_.atoms().link_store_relaxed(&links_.host_line(worker).park, wire::u32{request});
    setup_.device->doorbell(worker);
  }
  void beat(std::uint64_t now) {
    for (std::uint32_t w = 0; w < links_.workers(); ++w) beat(w, now);
  }

 private:
  WorkerLoads& loads_of(const RunSlot& run) { return groups_.loads_of(run); }
  RunSlot& slot(std::uint32_t index) { return *slots_[index]; }
  RunSlot& slot_of(std::uint16_t slot_flags) { return *slots_[slot_flags & (wire::kMaxSlots - 1)]; }
  std::uint32_t slot_count() const { return static_cast<std::uint32_t>(slots_.size()); }
  const std::vector<std::uint32_t>& active() const { return const_cast<RunOrder&>(order_).active(); }

  // ---- records -----------------------------------------------------------------------------------------------------

  // Workers that owe nothing have only news of themselves, for which a look now and then is enough.
  bool drain_outboxes() {
    bool any = false;
    const auto look = [&](std::uint32_t worker) { any |= drain_outbox(worker); };
    if (++steps_ % kStepsPerFullLook != 0) {
      links_.for_each_busy(look);
    } else {
      for (std::uint32_t w = 0; w < links_.workers(); ++w) look(w);
    }
    return any;
  }

  // Records change places and are not copied: one that was filled word by word would be read back as a whole, for which a core waits
  // until all of it has left its store buffer.
  bool drain_outbox(std::uint32_t worker) {
    std::array<wire::Record, 2> places;
    wire::Record* record = &places[0];
    wire::Record* next = &places[1];
    if (!links_.poll(worker, *record)) return false;
    notice_primed();  // whose record it may be
    if (is_booked_late(worker, *record)) {
      late_.emplace_back(worker, *record);
      links_.owes_nothing(worker);
      links_.acknowledge(worker);
      setup_.stats->records_received.add(1);
      return true;
    }
    std::uint32_t taken = 0;
    for (bool more = true; more; std::swap(record, next)) {
      more = ++taken < kRecordsPerTurn && may_have_more(worker, *record) && links_.poll(worker, *next);
      if (!more || !is_said_by(*next, *record)) on_record(worker, *record);
    }
    links_.acknowledge(worker);
    setup_.stats->records_received.add(taken);
    return true;
  }

  // ---- answers that are booked late: while a run is alone and sent whole nobody decides by what workers have, and it is over once all of them have
  // answered. So its client hears of that before it is booked.

  /// Whether `record` is the answer to all that `worker` has, and nothing but the books hang on it.
  bool is_booked_late(std::uint32_t worker, const wire::Record& record) {
    if (!Links<Atoms>::kAtOnce || wants_done_ || setup_.guesses != nullptr || active().size() != 1 || !slot(active().front()).all_sent) return false;
    LastTask last;
    return record.kind() == wire::RecordKind::done && links_.is_quiet_answer_to_all(worker, record.value, last) && matches(last, record);
  }

  /// Up to `most` of them. All, before another run begins: what workers have counts again.
  void book_late(std::size_t most) {
    for (const std::size_t end = std::min(late_.size(), late_booked_ + most); late_booked_ < end; ++late_booked_) {
      on_record(late_[late_booked_].first, late_[late_booked_].second);
    }
    if (late_booked_ < late_.size()) return;
    late_.clear();
    late_booked_ = 0;
  }

  // Behind the answer to all it has a worker says nothing that cannot wait, and the next slot may lie in a line that is far away.
  bool may_have_more(std::uint32_t worker, const wire::Record& record) const {
    return record.kind() != wire::RecordKind::done || !links_.is_answer_to_all(worker, record.value);
  }
  // The last of several done records says what all of them say, unless one of them goes back.
  static bool is_said_by(const wire::Record& next, const wire::Record& record) {
    return record.kind() == wire::RecordKind::done && next.kind() == wire::RecordKind::done &&
           static_cast<std::int32_t>(next.value - record.value) > 0;
  }

  void on_record(std::uint32_t worker, const wire::Record& record) {
    if (failed_) return;
    switch (record.kind()) {
      case wire::RecordKind::done:
        return on_done(worker, record);
      case wire::RecordKind::report:
        return on_report(worker, record);
      case wire::RecordKind::word:
        return on_word(worker, record);
      case wire::RecordKind::fault:
        return on_fault(worker, record.value);
      case wire::RecordKind::parked:
        return on_parked();
    }
    protocol_error(worker, "a record of unknown kind");
  }

  // One record answers all tasks up to its count; what it says besides is that of the last of them.
  void on_done(std::uint32_t worker, const wire::Record& record) {
    LastTask last;
    const bool answers = links_.take_answered(worker, record.value, last,
                                              [&](const SentTasks& done) { tasks_done(worker, done); });
    if (!answers || !matches(last, record)) protocol_error(worker, "a done record that answers no task");
  }

  bool matches(const LastTask& sent, const wire::Record& record) {
    const std::uint32_t slot_index = sent.slot_flags & (wire::kMaxSlots - 1);
    const std::uint32_t epoch = sent.op == wire::kOpSignal ? sent.amount : slots_[slot_index]->epoch;
    return sent.op == record.op && slot_index == record.slot() && epoch == record.epoch;
  }

  void tasks_done(std::uint32_t worker, const SentTasks& done) {
    RunSlot& run = slot_of(done.slot_flags);
    loads_of(run).remove(worker - run.first_worker, done.cost, done.tasks);
    run.outstanding -= done.tasks;
    if (wants_done_ && (done.slot_flags & wire::kTaskFetch) == 0) setup_.policy->on_done(run, done);
    if (done.reports != 0) settle_reports(run, done);
  }

  // What should have reported is through, and its report would stand before this record: if it is not there it was skipped.
  void settle_reports(RunSlot& run, const SentTasks& done) {
    const PlanTables& tables = *setup_.tables;
    if (done.op != wire::kOpList) {
      run.progress.report_absent(tables.op_report[done.target]);
      return send_verdicts(run);
    }
    for (const std::uint32_t report : tables.reports_of(tables.stretches[done.tile / tables.workers])) {
      if (run.instance.list_of_report(report) == done.tile) run.progress.report_absent(report);
    }
    send_verdicts(run);
  }

  void on_report(std::uint32_t worker, const wire::Record& record) {
    if (record.slot() >= slot_count() || record.value >= setup_.tables->report_count()) {
      return protocol_error(worker, "a report that the program does not have");
    }
    RunSlot& run = slot(record.slot());
    if (run.epoch != record.epoch) return;
    report_arrived(run, record.value);
  }

  void report_arrived(RunSlot& run, std::uint32_t report) {
    const bool news = !run.progress.report_settled(report);
    run.progress.report_arrived(report);
    send_verdicts(run);
    if (news && setup_.guesses != nullptr) setup_.guesses->on_report(run, report);
  }

  // The value lies in its place before anybody hears of it. No worker writes there.
  void on_word(std::uint32_t worker, const wire::Record& record) {
    if (record.slot() >= slot_count() || record.op >= setup_.tables->op_count() ||
        setup_.tables->op_report[record.op] == plan::kNone) {
      return protocol_error(worker, "a report that the program does not have");
    }
    RunSlot& run = slot(record.slot());
    if (run.epoch != record.epoch) return;
    const std::uint32_t report = setup_.tables->op_report[record.op];
    if (run.instance.op(record.op).report_bytes != sizeof(record.value)) return protocol_error(worker, "one word of a longer report");
    std::memcpy(run.instance.report_place(report, *setup_.tables), &record.value, sizeof(record.value));
    report_arrived(run, report);
  }

  // Workers wait for these: they go out before anything else is done about the report.
  void send_verdicts(RunSlot& run) {
    std::size_t left = 0;
    for (const Draft& draft : run.drafts) {
      if (run.progress.report_settled(setup_.tables->op_holder[draft.op])) {
        send_verdict(run, draft);
      } else {
        run.drafts[left++] = draft;
      }
    }
    run.drafts.resize(left);
    run.drafts_taken = static_cast<std::uint32_t>(left);
  }

  void send_verdict(const RunSlot& run, const Draft& draft) {
    wire::Task task{draft.tile, run.epoch, draft.op, 0, 0};
    const std::uint32_t chunk = task.tile_count(), first = task.first_tile();
    for (std::uint32_t at = 0, position = draft.position; at < draft.tiles; at += chunk, ++position) {
      const bool runs = run.progress.draft_runs(draft.op, first + at);
      task.tile = wire::Task::pack_tiles(first + at, std::min(chunk, draft.tiles - at));
      task.slot_flags = static_cast<std::uint16_t>(run.index | (runs ? 0u : std::uint32_t{wire::kTaskSkip}));
      links_.send_verdict(draft.worker, task, position);
      if (!runs) setup_.stats->drafts_dropped.add(1);
      if (has_sinks_) tell_verdict(run, draft, task);
    }
  }

  void tell_verdict(const RunSlot& run, const Draft& draft, const wire::Task& task) {
    Decision decision;
    decision.tile = task.tile;
    decision.amount = task.tile_count();
    decision.op = decision.target = draft.op;
    decision.worker = draft.worker;
    decision.slot_flags = task.slot_flags;
    for (DecisionSink* sink : setup_.sinks) {
      if (sink != nullptr) sink->on_verdict(run, decision, clock_.now_ns());
    }
  }

  void on_fault(std::uint32_t worker, std::uint32_t code) {
    std::array<char, 232> text{};
    describe_fault(setup_.tables->plan, worker, static_cast<wire::FaultCode>(code), links_.worker_line(worker), text);
    fail_all(ErrorCode::device_fault, text.data());
  }

  // Its line says the same, for as long as it is away. If it has work somebody must bring it back: look soon.
  void on_parked() { next_tick_ = 0; }

  void protocol_error(std::uint32_t worker, const char* what) {
    std::array<char, 232> text{};
    fmt::format_to_n(text.begin(), text.size() - 1, "worker {} sent {}", worker, what);
    fail_all(ErrorCode::device_fault, text.data());
  }

  // ---- intake ------------------------------------------------------------------------------------------------------

  bool take_submissions() {
    Submission item;
    std::uint32_t taken = 0;
    while (taken < kIntakePerStep && setup_.submissions->pop(item)) {
      ++taken;
      settle_primed();
      if (item.kind == Submission::Kind::fence_end) {
        leave_state(item.index);
      } else {
        enter(item.kind == Submission::Kind::run ? item.index : slot_count() + item.index);
      }
    }
    return taken > 0;
  }

  bool is_fence(std::uint32_t entry) const { return entry >= slot_count(); }
  StateFence& fence(std::uint32_t entry) { return (*setup_.fences)[entry - slot_count()]; }

  void enter(std::uint32_t entry) {
    if (failed_) return abandon_entry(entry);
    const bool ordered = setup_.stateful || is_fence(entry);
    const std::uint32_t state = is_fence(entry) ? fence(entry).state : slot(entry).state_id;
    if (!ordered || order_.enter(entry, state)) return begin(entry);
    follow(state);
  }

  void begin(std::uint32_t entry, bool follows = false) {
    if (is_fence(entry)) return setup_.events->fence_reached(fence(entry));
    RunSlot& run = slot(entry);
    if (ended(run) || is_cancelled(run, *setup_.tables) || is_orphan(run)) {
      end(run, ErrorCode::cancelled, "run cancelled");
      return let_go(run);
    }
    start(run, follows);
  }

  void start(RunSlot& run, bool follows) {
    book_late(late_.size());
    run.epoch = run.next_epoch;
    run.ordinal = next_ordinal_++;
    run.outstanding = 0;
    run.all_sent = false;
    run.drafts.clear();
    run.drafts_taken = 0;
    run.follows = follows;
    run.turns_left = !setup_.tables->chained() ? 0 : follows ? links_.workers() : 1;
    groups_.join(run);
    run.alone = groups_.is_alone(run);
    run.progress.start(*setup_.tables, run.instance);
    run.state.reset(static_cast<std::uint32_t>(RunState::running));
    setup_.policy->on_start(run);
    if (setup_.guesses != nullptr) setup_.guesses->begin(run);
    for (DecisionSink* sink : setup_.sinks) {
      if (sink != nullptr) sink->on_run_start(run);
    }
    order_.active().push_back(run.index);
    remember(run);
  }

  /// Who stands behind a run that has been sent whole begins too: the device keeps them apart (PlanTables::turn_event).
  void follow(std::uint32_t state) {
    if (!setup_.tables->chained()) return;
    for (;;) {
      const std::uint32_t before = order_.newest_holder(state), next = order_.next_in_line(state);
      if (before == plan::kNone || next == plan::kNone || is_fence(before) || is_fence(next)) return;
      if (!slot(before).all_sent || slot(next).instance.has_empty_ops()) return;
      begin(order_.join(state), true);
    }
  }

  /// Tells `run` that it is its turn: behind all tasks of the run before it, on every worker; by one worker where there is none.
  /// False: an inbox has no room.
  bool announce(RunSlot& run) {
    const std::uint32_t amount = run.follows ? 1 : links_.workers();
    for (; run.turns_left > 0 && !batch_.full(); --run.turns_left) {
      const std::uint32_t worker = run.turns_left - 1;
      if (!loads_of(run).has_room(worker, loads_of(run).inbox_slots())) return false;
      Decision& out = batch_.items[batch_.count++];
      out = {};
      out.tile = setup_.tables->turn_event;
      out.amount = amount;
      out.op = wire::kOpSignal;
      out.worker = static_cast<std::uint16_t>(worker);
      out.slot_flags = static_cast<std::uint16_t>(run.index);
      loads_of(run).add(worker, 0);
    }
    return run.turns_left == 0;
  }

  void leave_state(std::uint32_t state) {
    const std::uint32_t next = order_.leave(state);
    if (next != plan::kNone) begin(next);
  }

  // ---- decisions ---------------------------------------------------------------------------------------------------

  // Runs take turns until none can go on, or enough has gone out to look at the outboxes again.
  bool advance_runs(std::uint64_t now) {
    const std::size_t count = active().size();
    if (turn_ >= count) turn_ = 0;
    std::uint32_t sent = 0;
    for (bool more = count > 0; more && sent < kStepTasks && !failed_;) {
      more = false;
      for (std::size_t i = 0; i < count && !failed_; ++i) {
        const std::uint32_t tasks = advance_run(slot(active()[turn_]), now);
        turn_ = turn_ + 1 < count ? turn_ + 1 : 0;
        sent += tasks;
        more |= tasks > 0;
      }
    }
    commit(now);
    return sent > 0;
  }

  std::uint32_t advance_run(RunSlot& run, std::uint64_t now) {
    const bool guesses = setup_.guesses != nullptr && setup_.guesses->is_due(run);
    if (guesses && (run.all_sent || setup_.tables->spine == Spine::whole)) send_guesses(run, now);
    if (run.all_sent) return 0;
    run.alone = groups_.is_alone(run);
    if (run.turns_left > 0) {
      const std::uint32_t turns = run.turns_left;
      const bool announced = announce(run);
      if (batch_.full()) commit(now);
      if (!announced) return turns - run.turns_left;
    }
    if (is_cancelled(run, *setup_.tables)) run.progress.skip_rest();
    const std::uint32_t sent = setup_.policy->advance(run, batch_, loads_of(run), kRunTurn);
    if (const char* failure = setup_.policy->failure(); failure != nullptr) fail_all(ErrorCode::invalid_data, failure);
    if (batch_.full()) commit(now);
    if (guesses && setup_.guesses->is_due(run)) send_guesses(run, now);
    if (run.all_sent) follow(run.state_id);
    return sent;
  }

  /// Behind what the run begins with, which is its router: workers read ahead of what they wait for. But in front of lists of the whole run, which hold everything.
  void send_guesses(RunSlot& run, std::uint64_t now) {
    if (batch_.count > 0) commit(now);
    setup_.guesses->send(run, batch_, loads_of(run));
    if (batch_.full()) commit(now);
  }

  void commit(std::uint64_t now) {
    if (batch_.count == 0 || failed_) return;
    std::uint64_t sent = 0;
    if (Links<Atoms>::kAtOnce) held_.begin(batch_);
    for (std::uint32_t i = 0; i < batch_.count; ++i) {
      if (i + kSendsAhead < batch_.count) links_.prefetch_inbox(addressee(batch_.items[i + kSendsAhead]));
      const Decision& decision = batch_.items[i];
      RunSlot& run = slot_of(decision.slot_flags);
      run.outstanding += decision.tasks;
      sent += decision.tasks;
      send(run, decision);
      if (has_sinks_ && (decision.slot_flags & wire::kTaskFetch) == 0) tell_sinks(run, decision, now);
    }
    held_.let_out(links_.atoms());
    if (setup_.doorbells) ring_doorbells();
    setup_.stats->tasks_sent.add(sent);
    setup_.stats->decisions.add(sent);
    setup_.stats->publications.add(1);
    batch_.count = 0;
  }

  /// The worker's number among all.
  std::uint32_t addressee(const Decision& decision) { return decision.worker + slot_of(decision.slot_flags).first_worker; }
  /// The same decision with it.
  static Decision addressed(const RunSlot& run, const Decision& decision) {
    Decision out = decision;
    out.worker = static_cast<std::uint16_t>(decision.worker + run.first_worker);
    return out;
  }
  void send(RunSlot& run, const Decision& decided) {
    if (decided.op == wire::kOpList) {
      const std::uint32_t again = run.epoch != run.written_for ? wire::kTaskAgain : 0;
      return for_each_task(decided, run, setup_.tables->workers, [&](Decision list) {
        list.slot_flags = static_cast<std::uint16_t>(list.slot_flags | again);
        list.worker = static_cast<std::uint16_t>(list.worker + run.first_worker);
        send_list(list, run.epoch);
        rung_[list.worker] = 1;
      });
    }
    repeats_ = false;
    const Decision decision = addressed(run, decided);
    const std::uint32_t position = links_.send(decision, decision.op == wire::kOpSignal ? decision.amount : run.epoch);
    if ((decision.slot_flags & wire::kTaskDraft) != 0) {
      run.drafts.push_back({decision.tile, decision.amount, position, decision.op, decision.worker});
      setup_.stats->drafts.add(decision.tasks);
    }
    if (setup_.doorbells) rung_[decision.worker] = 1;
  }

  void send_list(const Decision& list, std::uint32_t epoch) {
    if (is_sent_) {
      check_primed(list, epoch);
      links_.send_elsewhere(list);
    } else if (held_.holds()) {
      held_.hold(links_, list, epoch);
    } else {
      links_.send(list, epoch);
    }
    repeats_ = repeats_ && (list.slot_flags & wire::kTaskSkip) == 0 && lists_.size() < lists_.capacity();
    if (repeats_) lists_.push_back({list.tile, list.worker, list.slot_flags});
  }

  void tell_sinks(RunSlot& run, const Decision& decision, std::uint64_t now) {
    for_each_task(decision, run, setup_.tables->workers, [&](const Decision& task) {
      for (DecisionSink* sink : setup_.sinks) {
        if (sink != nullptr) sink->on_decision(run, addressed(run, task), now);
      }
    });
  }

  void ring_doorbells() {
    for (std::uint32_t w = 0; w < links_.workers(); ++w) {
      if (rung_[w] == 0) continue;
      setup_.device->doorbell(w);
      rung_[w] = 0;
    }
  }

  // ---- the run that comes next (PrimedRun) ---------------------------------------------------------------------------

  struct SentList {
    std::uint32_t list;
    std::uint16_t worker;
    std::uint16_t slot_flags;
  };

  bool primes() const { return Links<Atoms>::kAtOnce && setup_.primed != nullptr; }

  /// Of a run that begins: whether it may come again with nothing else in between, sent the same. Then its lists are kept.
  void remember(const RunSlot& run) {
    repeated_ = run.index;
    repeats_ = primes() && order_.active().size() == 1 && groups_.is_one() && !setup_.stateful && !has_sinks_ && setup_.guesses == nullptr;
    is_prepared_ = false;
    lists_.clear();
  }

  /// What the next run of the slot will be sent, once this one has been sent whole: in a moment in which nothing else is to be done.
  void prime_next() {
    if (!repeats_ || is_prepared_ || failed_ || lists_.empty()) return;
    const RunSlot& run = slot(repeated_);
    if (!run.all_sent || !setup_.primed->begin()) return;
    std::fill(ahead_.begin(), ahead_.end(), 0);
    for (const SentList& list : lists_) {
      repeats_ = ahead_[list.worker] < setup_.params.inbox_slots;
      if (!repeats_) return;
      wire::Task task{list.list, run.epoch + 1, wire::kOpList, static_cast<std::uint16_t>(list.slot_flags | wire::kTaskAgain), 0};
      wire::Task* place = links_.place(list.worker, ahead_[list.worker]++, task.seq);
      setup_.primed->add(place, task);
    }
    is_prepared_ = true;
    if (active().empty()) setup_.primed->prime(run.index);  // it has ended meanwhile; else finish() does so
  }

  /// A run that a client has sent is booked as it would have been sent. True if there is one.
  bool notice_primed() {
    if (!primes()) return false;
    const std::uint32_t index = setup_.primed->taken();
    if (index == plan::kNone) return false;
    setup_.primed->notice();
    if (failed_) return abandon_entry(index), true;
    RunSlot& run = slot(index);
    start(run, false);
    setup_.stats->runs_primed.add(1);
    is_sent_ = true;
    sent_ahead_ = 0;
    for (bool more = true; more && !failed_ && !run.all_sent;) {
      more = setup_.policy->advance(run, batch_, loads_of(run), kRunTurn) > 0;
      commit(stepped_at_);
    }
    is_sent_ = false;
    if (!failed_ && (!run.all_sent || sent_ahead_ != setup_.primed->size())) other_than_primed(run);
    return true;
  }

  void check_primed(const Decision& list, std::uint32_t epoch) {
    const std::size_t at = sent_ahead_++;
    std::uint32_t seq = 0;
    const wire::Task* place = links_.place(list.worker, 0, seq);
    const bool same = at < setup_.primed->size() && setup_.primed->place(at) == place && setup_.primed->task(at).tile == list.tile &&
                      setup_.primed->task(at).epoch == epoch && setup_.primed->task(at).slot_flags == list.slot_flags && setup_.primed->task(at).seq == seq;
    if (!same) other_than_primed(slot_of(list.slot_flags));
  }

  void other_than_primed(const RunSlot& run) {
    std::array<char, 232> text{};
    fmt::format_to_n(text.begin(), text.size() - 1, "the run in slot {} was sent other lists than it was primed with", run.index);
    fail_all(ErrorCode::internal, text.data());
  }

  /// Before anything else is sent: nobody can send the primed run any more, or it is booked.
  void settle_primed() {
    if (primes() && !setup_.primed->withdraw()) notice_primed();
  }

  // ---- ends --------------------------------------------------------------------------------------------------------

  bool settle_runs() {
    std::vector<std::uint32_t>& runs = order_.active();
    bool any = false;
    for (std::size_t i = 0; i < runs.size();) {
      RunSlot& run = slot(runs[i]);
      if (!run.all_sent || owes_answers(run) || stands_behind(run, i)) {
        ++i;
        continue;
      }
      runs.erase(runs.begin() + static_cast<std::ptrdiff_t>(i));  // they stay in the order in which they began
      any = true;
      finish(run);
    }
    return any;
  }

  /// Whether workers have tasks of `run`, which has been sent whole. If answers are booked late it is the only one.
  bool owes_answers(const RunSlot& run) const { return run.outstanding != 0 && (late_.empty() || links_.is_any_busy()); }

  /// Whether a run that began before the `at`th is still under way on its state: the records of the later one may come first, and
  /// whether that is wanted is known once the earlier has ended.
  bool stands_behind(const RunSlot& run, std::size_t at) {
    if (!setup_.tables->chained()) return false;
    return std::any_of(active().begin(), active().begin() + static_cast<std::ptrdiff_t>(at), [&](std::uint32_t other) { return slot(other).state_id == run.state_id; });
  }

  void finish(RunSlot& run) {
    groups_.leave(run);
    run.next_epoch = run.epoch + 1;
    setup_.stats->skipped_tiles.add(run.progress.skipped_tiles());
    if (repeats_ && is_prepared_ && !failed_) setup_.primed->prime(run.index);  // before clients hear that the slot may be had again
    const bool cancelled = is_cancelled(run, *setup_.tables);
    end(run, cancelled ? ErrorCode::cancelled : ErrorCode::ok, cancelled ? "run cancelled" : "");
    let_go(run);
  }

  bool ended(const RunSlot& run) const { return run.state.peek() >= static_cast<std::uint32_t>(RunState::done); }

  void end(RunSlot& run, ErrorCode code, const char* message) {
    if (ended(run)) return;
    run.code = code;
    const std::size_t length = std::min(std::strlen(message), sizeof(run.message) - 1);
    std::memcpy(run.message, message, length);
    run.message[length] = 0;
    run.end_ns = clock_.now_ns();
    SchedulerStats& stats = *setup_.stats;
    (code == ErrorCode::ok          ? stats.runs_done
     : code == ErrorCode::cancelled ? stats.runs_cancelled
                                    : stats.runs_failed)
        .add(1);
    setup_.events->run_ended(run);
  }

  // The slot's next run may begin once this returns; its state instance goes to the next in line.
  void let_go(RunSlot& run) {
    const std::uint32_t state = run.state_id;
    setup_.events->run_released(run);
    if (setup_.stateful) leave_state(state);
  }

  void abandon(RunSlot& run) {
    end(run, fail_code_, fail_message_.data());
    setup_.events->run_released(run);
  }
  void abandon_entry(std::uint32_t entry) {
    if (is_fence(entry)) return setup_.events->fence_reached(fence(entry));
    abandon(slot(entry));
  }

  // ---- time --------------------------------------------------------------------------------------------------------

  /// A step does a part: lines that workers look at are in no cache of this core, and while it waits for those of
  /// a hundred workers no report is heard.
  void tick(std::uint64_t now) {
    if (now >= next_tick_) {
      next_tick_ = now + kTickNs;
      ticked_ = 0;
      away_ = false;
    }
    if (!ticks()) return;
    for (std::uint32_t i = 0; i < kWorkersPerTick && ticked_ < links_.workers(); ++i, ++ticked_) {
      beat(ticked_, now);
      if (!failed_) check_worker(ticked_);
    }
    if (ticks() || failed_) return;
    for (const std::uint32_t index : active()) check_time(slot(index), now);
    order_.for_each_waiting([&](std::uint32_t entry) {
      if (!is_fence(entry)) check_time(slot(entry), now);
    });
    check_device(now);
    check_progress(now);
  }

  // Runs are there, nothing is on its way, and nothing has moved for long: a policy that waits for what will not come.
  void check_progress(std::uint64_t now) {
    const std::uint64_t moved = setup_.stats->tasks_sent.get() + setup_.stats->records_received.get();
    if (failed_ || !in_flight() || groups_.any_tasks() || moved != moved_) {
      moved_ = moved;
      moved_at_ = now;
    } else if (now - moved_at_ > kStallNs) {
      fail_all(ErrorCode::internal, setup_.policy->stall_reason());
    }
  }

  void check_time(RunSlot& run, std::uint64_t now) {
    const bool late = run.deadline_ns != 0 && now >= run.deadline_ns;
    if (late && !ended(run)) {
      end(run, ErrorCode::deadline_exceeded, "the run's deadline passed");
      run.cancel.store(true, std::memory_order_relaxed);  // relaxed: read by this thread
    }
  }

  void beat(std::uint32_t worker, std::uint64_t now) {
    links_.atoms().link_store_relaxed(&links_.host_line(worker).heartbeat_ns, wire::u64{now});
  }
  // A worker whose outbox is full cannot send its fault, nor that it has left; its line tells.
  void check_worker(std::uint32_t worker) {
    wire::WorkerLine& line = links_.worker_line(worker);
    // [W2] acquire: the fault's details were stored before the state [W1] (worker_link.hpp).
    const auto state = static_cast<wire::WorkerState>(links_.atoms().link_load_acquire(&line.state));
    if (state == wire::WorkerState::faulted) on_fault(worker, line.fault);
    away_ |= state == wire::WorkerState::parked && groups_.tasks_of(worker) > 0;
  }
  void check_device(std::uint64_t now) {
    if (const Status health = setup_.device->health(); !health.ok()) {
      return on_device_failure(health.message());
    }
    if (const char* outside = setup_.events->outside_failure(); outside != nullptr) {
      return fail_all(ErrorCode::device_fault, outside);
    }
    if (away_) setup_.events->workers_away();
    const std::uint32_t stuck = watch_.find(links_, *setup_.tables, now);
    if (stuck != plan::kNone) on_stuck(stuck);
  }

  // The device cannot say who it was; the oldest task of some worker, most likely.
  void on_device_failure(const std::string& message) {
    std::array<char, 232> text{};
    std::uint32_t worker = 0;
    while (worker < links_.workers() && links_.unanswered_count(worker) == 0) ++worker;
    const SentTasks* oldest = worker < links_.workers() ? &links_.unanswered(worker, 0) : nullptr;
    describe_device_failure(setup_.tables->plan, message, worker, oldest, text);
    fail_all(ErrorCode::device_fault, text.data());
  }

  void on_stuck(std::uint32_t worker) {
    const SentTasks& task = links_.unanswered(worker, 0);
    const std::uint32_t epoch = slot(task.slot_flags & (wire::kMaxSlots - 1)).epoch;
    std::array<char, 232> text{};
    describe_stuck(setup_.tables->plan, worker, task, epoch, setup_.task_deadline_ns, text);
    fail_all(ErrorCode::deadline_exceeded, text.data());
  }

  CopilotSetup setup_;
  Clock clock_;
  bool wants_done_;
  bool has_sinks_ = false;
  std::vector<RunSlot*> slots_;  // of setup_.slots, which is a deque
  Links<Atoms> links_;
  WorkerGroups groups_;
  RunOrder order_;
  Batch batch_;
  std::vector<std::uint8_t> rung_;
  HeldLists held_;                     // of the batch that is being sent
  std::vector<SentList> lists_;        // of the run that began last, in the order of sending, as long as
  bool repeats_ = false;               // it has been alone, and been sent nothing else
  std::uint32_t repeated_ = 0;         // its slot
  bool is_prepared_ = false;           // setup_.primed holds what comes next, or somebody has taken it
  bool is_sent_ = false;               // what is decided now has been sent by a client
  std::size_t sent_ahead_ = 0;         // of that, tasks booked
  std::vector<std::uint32_t> ahead_;   // per worker: tasks primed
  std::vector<std::pair<std::uint32_t, wire::Record>> late_;  // a worker and what it has answered, in turn
  std::size_t late_booked_ = 0;  // of those
  TaskWatch watch_;
  bool worked_ = false;           // in the last step
  std::uint64_t stepped_at_ = 0;  // when that began
  std::size_t turn_ = 0;          // of the active runs, whose turn it is
  std::uint32_t steps_ = 0;
  std::uint32_t next_ordinal_ = 0;
  std::uint64_t next_tick_ = 0;
  std::uint32_t ticked_ = 0;  // workers seen to since the last
  bool away_ = false;         // of them, whether one has left that has tasks
  std::uint64_t moved_ = 0;  // what had moved at moved_at_
  std::uint64_t moved_at_ = 0;
  bool failed_ = false;
  ErrorCode fail_code_ = ErrorCode::ok;
  std::array<char, 232> fail_message_{};
};

}  // namespace ccks::scheduler
