#include "scheduler/policy_replay.hpp"

#include <fmt/format.h>

#include <algorithm>

#include "scheduler/guards.hpp"
#include "scheduler/policy_lookahead.hpp"

namespace ccks::scheduler {

// Starts of runs are taken out: they say what a run must look like, not when it starts.
ReplayPolicy::ReplayPolicy(const PlanTables& tables, Record record) : tables_(tables), record_(std::move(record)) {
  std::vector<RecordEntry> decisions;
  for (const RecordEntry& entry : record_.entries) {
    if (entry.kind == EntryKind::run_start) {
      dims_hash_.push_back(entry.tile | std::uint64_t{entry.amount} << 32);
    } else {
      decisions.push_back(entry);
    }
  }
  record_.entries = std::move(decisions);
}

ReplayPolicy::Step ReplayPolicy::diverged(const RunSlot& run, const char* what) {
  failed_ = true;
  fmt::format_to_n(message_.begin(), message_.size() - 1, "replay has diverged at decision {}, run {}: {}", at_,
                   run.ordinal, what);
  return Step::wait;
}

void ReplayPolicy::on_start(RunSlot& run) {
  run.cursor = 0;
  if (run.ordinal >= dims_hash_.size()) {
    diverged(run, "the record holds fewer runs");
  } else if (dims_hash_[run.ordinal] != run.instance.dims_hash()) {
    diverged(run, "its dims are others than recorded");
  }
}

// Whether no list of `stretch` from the cursor on holds anything.
bool ReplayPolicy::is_whole(std::uint32_t stretch, const RunSlot& run) const {
  std::uint32_t list = run.cursor;
  while (list < (stretch + 1) * tables_.workers && run.instance.lists()[list].count == 0) ++list;
  return list == (stretch + 1) * tables_.workers;
}

std::uint32_t ReplayPolicy::advance(RunSlot& run, Batch& batch, WorkerLoads& loads, std::uint32_t budget) {
  std::uint32_t sent = 0;
  while (sent < budget && !batch.full() && !failed_ && !(run.all_sent = run.progress.all_sent())) {
    if (at_ == record_.entries.size()) {
      diverged(run, "the record ends before the run");
      break;
    }
    const RecordEntry& entry = record_.entries[at_];
    if (entry.run != run.ordinal) break;
    const bool list = entry.kind == EntryKind::list;
    if ((list ? replay_list(run, entry, batch, loads) : replay_piece(run, entry, batch, loads)) != Step::sent) break;
    ++at_;
    ++sent;
  }
  return sent;
}

// Lists of a stretch come in their order, one entry each; run.cursor is the next of those that are partly sent.
ReplayPolicy::Step ReplayPolicy::replay_list(RunSlot& run, const RecordEntry& entry, Batch& batch, WorkerLoads& loads) {
  const std::uint32_t stretch = entry.tile / tables_.workers;
  const bool known = stretch < tables_.stretch_count() && run.instance.stretches()[stretch].listed;
  if (!known) return diverged(run, "it starts another list than the run needs");
  if (run.progress.next_stretch() != stretch) return Step::wait;
  const std::uint32_t first = stretch * tables_.workers;
  std::uint32_t next = std::max(run.cursor, first);
  while (next < entry.tile && run.instance.lists()[next].count == 0) ++next;
  const bool skip = entry.amount != 0;
  if (next != entry.tile || run.instance.lists()[next].count == 0) return diverged(run, "it starts other lists");
  if (skip != run.progress.skipping()) return diverged(run, "a run is cancelled that was not, or was and is not");
  if (!loads.has_room(entry.worker, loads.inbox_slots())) return Step::wait;
  Decision& out = batch.items[batch.count++];
  out = {};
  out.tile = entry.tile;
  out.amount = 1;
  out.op = wire::kOpList;
  out.worker = entry.worker;
  out.slot_flags = static_cast<std::uint16_t>(run.index | (skip ? wire::kTaskSkip : 0));
  out.reports = tables_.stretches[stretch].reports > 0 ? 1 : 0;
  loads.add(entry.worker, run.instance.list_cost(entry.tile));
  run.cursor = entry.tile + 1;
  if (is_whole(stretch, run)) run.progress.take_stretch(stretch);
  return Step::sent;
}

// A draft goes out once its verdict is known: what exists of it runs, the rest is skipped as the draft was.
ReplayPolicy::Step ReplayPolicy::replay_draft(RunSlot& run, const RecordEntry& entry, Batch& batch, WorkerLoads& loads) {
  const OpInstance& info = run.instance.ops()[entry.op];
  const wire::Task task{entry.tile, 0, 0, 0, 0};
  const bool fits = task.first_tile() == run.progress.next_tile(entry.op) && task.tile_count() <= info.tiles - task.first_tile();
  if (!fits) return diverged(run, "other tiles exist than recorded, or the run was cancelled");
  const bool runs = run.progress.draft_runs(entry.op, task.first_tile());
  const Piece piece{runs ? Piece::Kind::tiles : Piece::Kind::skip, task.first_tile(), task.tile_count()};
  append(run, entry.op, piece, entry.worker, piece_cost(info, piece), batch, loads);
  return Step::sent;
}

ReplayPolicy::Step ReplayPolicy::replay_piece(RunSlot& run, const RecordEntry& entry, Batch& batch,
                                              WorkerLoads& loads) {
  Progress& progress = run.progress;
  if (entry.op >= tables_.op_count()) return diverged(run, "no such op");
  const OpInstance& info = run.instance.ops()[entry.op];
  if (info.stretch != plan::kNone) return diverged(run, "the op goes out in lists");
  if (progress.next_tile(entry.op) == info.tiles) return diverged(run, "all tiles of the op have been sent");
  if (!progress.is_open(entry.op) || !loads.has_room(entry.worker, loads.inbox_slots())) return Step::wait;
  if (entry.kind == EntryKind::draft) return replay_draft(run, entry, batch, loads);
  const bool credit = entry.kind != EntryKind::tiles;
  if (credit && progress.next_tile(entry.op) == 0) {
    // A replay may be ahead of where the record was: it was credited since a guard was false, and that is not known yet.
    if (guards_known_false(tables_.plan, run, entry.op)) progress.drop_tiles(entry.op);
    else if (progress.peek(entry.op).kind == Piece::Kind::tiles && !guards_seen(tables_.plan, run, entry.op)) return Step::wait;
  }
  Piece piece = progress.peek(entry.op);
  if (entry.kind == EntryKind::signal) {
    const bool same = piece.kind == Piece::Kind::signal && piece.first == entry.tile && piece.count == entry.amount;
    if (!same) return diverged(run, "other tiles exist than recorded");
  } else {
    const wire::Task task{entry.tile, 0, 0, 0, 0};
    const std::uint32_t limit = credit ? info.tiles : progress.existing_tiles(entry.op);
    const bool allowed = !credit || progress.skipping() || task.first_tile() >= progress.existing_tiles(entry.op);
    const bool fits =
        task.first_tile() == progress.next_tile(entry.op) && task.tile_count() <= limit - task.first_tile();
    if (!allowed || !fits) return diverged(run, "other tiles exist than recorded, or the run was cancelled");
    piece = {credit ? Piece::Kind::skip : Piece::Kind::tiles, task.first_tile(), task.tile_count()};
  }
  append(run, entry.op, piece, entry.worker, piece_cost(info, piece), batch, loads);
  return Step::sent;
}

}  // namespace ccks::scheduler
