#include "tests/sim/mutant.hpp"

#include "ccks/wire/frame.hpp"

namespace ccks::test::sim {
namespace {

constexpr MutationText kTexts[kMutations] = {
    {"none", "the protocol as it is"},
    {"task_slot_relaxed", "[R1] of the scheduler: the half with the sequence number may arrive before the other"},
    {"record_slot_relaxed", "[R1] of the worker: a done record may arrive before what its task has stored"},
    {"report_record_relaxed", "[R1] of the worker: a report record may arrive before the report's words"},
    {"task_slot_read_relaxed", "[R2] of the worker: what the host wrote before the task need not be seen with it"},
    {"record_slot_read_relaxed", "[R2] of the scheduler: the half without the sequence number may be that of the last lap"},
    {"record_slot_torn", "a worker writes a record in two halves, in no order"},
    {"event_add_relaxed", "[E1]: an event may arrive before what its tile has stored"},
    {"event_read_relaxed", "[E2]: what was stored before the event need not be seen with it"},
    {"event_reread_relaxed", "[E2] of a wait that does not succeed at once: only the first look acquires"},
    {"event_add_lost", "now and then an add to an event is left out"},
    {"event_add_twice", "now and then an add to an event is made twice"},
    {"sequence_ahead", "slots carry the sequence number of the next position"},
    {"sequence_wraps_early", "sequence numbers have six bits"},
    {"sequence_unchecked", "a worker takes slots of its last lap for new ones"},
    {"credit_ahead", "the scheduler grants credit for records that it has not read"},
    {"credit_ignored", "a worker does not wait for room in its outbox"},
    {"done_count_ahead", "done records answer one task too many"},
    {"done_count_behind", "now and then a done record answers one task too few"},
    {"task_epoch_behind", "tasks carry the epoch of the run before"},
    {"task_tile_beyond", "tasks of several tiles begin one tile late"},
    {"record_lost", "now and then a done record is not written, and its slot is used for the next"},
    {"report_words_late", "a report's words are written after its record"},
    {"relaunch_loses_task", "a worker resumes behind a task that it has not run"},
    {"relaunch_repeats_task", "a worker resumes at a task that it has run"},
    {"relaunch_forgets_tiles", "a suspended task begins again with its first tile"},
    {"relaunch_forgets_list", "a suspended list begins again with its first task"},
    {"relaunch_rewrites_record", "a worker resumes its outbox one record back"},
    {"guard_ignored", "frames come without guards"},
    {"wait_ignored", "ops wait for all but the last of their producers"},
    {"signal_elsewhere", "ops with an event a tile signal the first of them"},
    {"wait_for_too_few", "ops wait for all tiles of a producer but one"},
    {"verdict_lost", "a verdict is not written now and then"},
    {"verdict_turned", "drafts run that should not, and do not that should"},
    {"turn_ignored", "a run does not wait for the one before it on its state"},
    {"credit_twice", "what the scheduler adds to an event is one too many"},
};

template <class T>
T* table(std::byte* frame, u32 offset) {
  return reinterpret_cast<T*>(frame + offset);
}

}  // namespace

const MutationText& text_of(Mutation mutation) { return kTexts[static_cast<std::size_t>(mutation)]; }

void Mutant::break_frame(std::byte* bytes) {
  const auto& frame = *reinterpret_cast<const wire::RunFrame*>(bytes);
  auto* ops = table<wire::OpParams>(bytes, frame.ops);
  for (u32 i = 0; i < frame.op_count; ++i) {
    if (is(Mutation::guard_ignored)) ops[i].guard_count = 0;
    if (is(Mutation::wait_ignored) && ops[i].wait_count > 0) --ops[i].wait_count;
    const bool turn = ops[i].wait_count > 0 && table<wire::WaitParams>(bytes, frame.waits)[ops[i].wait_first].event_first + 1 == frame.event_count;
    if (is(Mutation::turn_ignored) && turn) ops[i].wait_count = 0;
    for (u32 s = 0; is(Mutation::signal_elsewhere) && s < ops[i].signal_count; ++s) {
      wire::SignalParams& signal = table<wire::SignalParams>(bytes, frame.signals)[ops[i].signal_first + s];
      signal.grid_axis[0] = signal.grid_axis[1] = -1;
    }
    for (u32 w = 0; is(Mutation::wait_for_too_few) && w < ops[i].wait_count; ++w) {
      wire::WaitParams& wait = table<wire::WaitParams>(bytes, frame.waits)[ops[i].wait_first + w];
      // Events that stand at `amount` less one let the waiter through; the totals of later runs grow all the same.
      if (wait.total > 1) wait.total -= 1;
    }
  }
}

bool MutantAtoms::is_credit(const u32* word) {
  const u64 at = reinterpret_cast<u64>(word) - Mutant::params.host_lines;
  return at < Mutant::params.workers * sizeof(wire::HostLine) && at % sizeof(wire::HostLine) == offsetof(wire::HostLine, outbox_consumed);
}

// Forges the number that the reader expects, where the slot holds that of the last lap.
wire::SlotWords MutantAtoms::unchecked(wire::SlotWords words, const void*) const {
  if (!Mutant::is(Mutation::sequence_unchecked) || !device() || words.high == 0 || !now_and_then()) return words;
  words.high += static_cast<u64>(Mutant::params.inbox_slots) << 32;
  return words;
}

// What a launch reads of its line.
u32 MutantAtoms::resumed(const u32* word, u32 value) const {
  const u64 at = reinterpret_cast<u64>(word) - Mutant::params.worker_lines;
  if (at >= Mutant::params.workers * sizeof(wire::WorkerLine) || !device()) return value;
  const u64 field = at % sizeof(wire::WorkerLine);
  if (!Mutant::resumes) return value;
  if (field == offsetof(wire::WorkerLine, inbox_position)) {
    if (Mutant::is(Mutation::relaunch_loses_task)) return value + 1;
    if (Mutant::is(Mutation::relaunch_repeats_task)) return value - 1;
  }
  if (field == offsetof(wire::WorkerLine, resume_tile) && Mutant::is(Mutation::relaunch_forgets_tiles)) return 0;
  if (field == offsetof(wire::WorkerLine, resume_list_task) && Mutant::is(Mutation::relaunch_forgets_list)) return 0;
  if (field == offsetof(wire::WorkerLine, outbox_position) && Mutant::is(Mutation::relaunch_rewrites_record)) return value - 1;
  return value;
}

void MutantAtoms::event_add_release(u32* event, u32 count) const {
  if (Mutant::is(Mutation::event_add_lost) && now_and_then()) return;
  if (Mutant::is(Mutation::event_add_twice) && now_and_then()) count *= 2;
  if (Mutant::is(Mutation::event_add_relaxed)) return atoms().event_add_relaxed(event, count);
  atoms().event_add_release(event, count);
}

void MutantAtoms::link_store_relaxed(u32* word, u32 value) const {
  const u64 lines = reinterpret_cast<u64>(word) - Mutant::params.worker_lines;
  const bool report = device() && lines >= Mutant::params.workers * sizeof(wire::WorkerLine);
  if (!report || !Mutant::is(Mutation::report_words_late)) return atoms().link_store_relaxed(word, value);
  machine->begin_link_store(Order::relaxed);
  machine->put_link(word, 4, value, Order::relaxed, 20'000 + machine->link_delay(Order::relaxed));
}

void MutantAtoms::store_slot(void* slot, wire::SlotWords value, Order order) const {
  if (Mutant::is(Mutation::sequence_ahead)) value.high += u64{1} << 32;
  if (Mutant::is(Mutation::sequence_wraps_early)) value.high &= 0x3fffffffffull;
  if (device()) return store_record(slot, value, order);
  store_task(slot, value, order);
}

void MutantAtoms::store_task(void* slot, wire::SlotWords value, Order order) const {
  if (Mutant::is(Mutation::task_slot_relaxed)) order = Order::relaxed;
  if (Mutant::is(Mutation::task_epoch_behind)) value.low -= u64{1} << 32;
  if (Mutant::is(Mutation::task_tile_beyond) && (value.low >> wire::kTileBits & 0xff) != 0 && (value.high & 0xffff) < wire::kMaxOps) value.low += 1;
  if (Mutant::is(Mutation::credit_twice) && (value.high & 0xffff) == wire::kOpSignal) value.low += u64{1} << 32;
  const wire::SlotWords before = atoms().look_at_slot_acquire(slot);
  const bool verdict = wire::slot_seq(before) == wire::slot_seq(value) && (before.high >> 16 & wire::kTaskDraft) != 0;
  if (verdict && Mutant::is(Mutation::verdict_lost) && now_and_then()) return;
  if (verdict && Mutant::is(Mutation::verdict_turned)) value.high ^= u64{wire::kTaskSkip} << 16;
  atoms().store_slot(slot, value, order);
}

void MutantAtoms::store_record(void* slot, wire::SlotWords value, Order order) const {
  const auto kind = static_cast<wire::RecordKind>(value.high >> 16 & 0xf000);
  const bool done = kind == wire::RecordKind::done;
  if (Mutant::is(Mutation::done_count_ahead) && done) value.low += 1;
  if (Mutant::is(Mutation::done_count_behind) && done && now_and_then()) value.low -= 1;
  if (Mutant::is(Mutation::record_lost) && done && now_and_then()) return;
  if (Mutant::is(Mutation::record_slot_relaxed) && done) order = Order::relaxed;
  if (Mutant::is(Mutation::report_record_relaxed) && kind == wire::RecordKind::report) order = Order::relaxed;
  if (Mutant::is(Mutation::report_words_late) && kind == wire::RecordKind::report) order = Order::relaxed;
  if (!Mutant::is(Mutation::record_slot_torn)) return atoms().store_slot(slot, value, order);
  u64* halves = static_cast<u64*>(slot);
  machine->store_link(halves + 1, 8, value.high, order);
  machine->store_link(halves, 8, value.low, Order::relaxed);
}

}  // namespace ccks::test::sim
