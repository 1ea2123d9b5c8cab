#include "scheduler/policy_lookahead.hpp"

#include <algorithm>

namespace ccks::scheduler {

void LookaheadPolicy::on_start(RunSlot& run) {
  run.worker_base = run.instance.has_tiles() ? run.ordinal % workers_ : first_worker(run, tables_, run.instance.has_idle_workers());
}

std::uint32_t LookaheadPolicy::advance(RunSlot& run, Batch& batch, WorkerLoads& loads, std::uint32_t budget) {
  Progress& progress = run.progress;
  Turn turn{batch, loads, budget, std::min(kLookaheadWindow, loads.inbox_slots())};
  while (!turn.over()) {
    const std::uint32_t stretch = progress.next_stretch();
    if (stretch != plan::kNone) {
      if (!append_lists(run, tables_, stretch, batch, loads)) break;
      ++turn.sent;
      continue;
    }
    const std::uint32_t op = progress.next_open(0);
    if (op == plan::kNone && run.alone && send_draft(run, turn)) continue;
    if (op == plan::kNone || loads.all_full(turn.window) || !send_op(run, op, turn)) break;
  }
  run.all_sent = progress.all_sent();
  return turn.sent;
}

inline void LookaheadPolicy::decide(const RunSlot& run, std::uint32_t op, const Share& share, Turn& turn) {
  Decision& out = turn.batch.items[turn.batch.count++];
  out.tile = wire::Task::pack_tiles(share.first, std::min(share.chunk, share.tiles));
  out.amount = share.tiles;
  out.cost = share.cost;
  out.tasks = static_cast<std::uint16_t>(share.tasks);
  out.op = static_cast<std::uint16_t>(op);
  out.target = static_cast<std::uint16_t>(op);
  out.worker = static_cast<std::uint16_t>(share.worker);
  out.slot_flags = static_cast<std::uint16_t>(run.index | (share.draft ? wire::kTaskDraft : 0));
  out.reports = share.reports && share.first == 0 ? 1 : 0;  // whoever has the first tile
  out.op_step = static_cast<std::uint16_t>(share.op_step);
  turn.loads.add(share.worker, share.cost, share.tasks);
  turn.sent += share.tasks;
}

bool LookaheadPolicy::send_op(RunSlot& run, std::uint32_t op, Turn& turn) {
  const Progress& progress = run.progress;
  const bool exists = progress.next_tile(op) < progress.existing_tiles(op);
  if (!exists || progress.skipping()) return send_credit(run, op, progress.peek(op), turn);
  const OpInstance& info = run.instance.ops()[op];
  if (info.tiles > info.chunk || progress.existing_tiles(op) < info.tiles) return send_tiles(run, op, info, turn);
  return send_ops(run, op, info, turn);
}

// `op`, which is one task, and the ops behind it that look the same, as far as they would go to the same worker one by one.
bool LookaheadPolicy::send_ops(RunSlot& run, std::uint32_t op, const OpInstance& info, Turn& turn) {
  const std::uint32_t cost = info.tiles * info.tile_cost;
  const std::uint32_t worker = turn.loads.choose_fair(run.worker_base, turn.loads.fair_load(cost), turn.window);
  if (worker == plan::kNone) return false;
  // An op of one task leads the run to its new worker: what follows would otherwise wait across workers each time.
  run.worker_base = worker;
  const std::uint32_t room = std::min(turn.loads.room(worker, turn.window), turn.budget - turn.sent);
  const std::uint32_t most = info.reports ? 1 : std::min(turn.loads.fair_tasks(worker, cost, turn.window), room);
  Progress& progress = run.progress;
  std::uint32_t ops = 1;
  progress.take_tiles(op, info.tiles);
  for (; ops < most && progress.is_next_alike(op + ops, info); ++ops) progress.take_tiles(op + ops, info.tiles);
  decide(run, op, {0, ops * info.tiles, ops, info.tiles, cost, worker, info.reports, ops > 1 ? 1u : 0u}, turn);
  return true;
}

// As many tiles of `op` as the turn and the workers have room for: those that prefer the same worker are one decision.
// False: a worker would have to be waited for.
bool LookaheadPolicy::send_tiles(RunSlot& run, std::uint32_t op, const OpInstance& info, Turn& turn) {
  const std::uint32_t end = run.progress.existing_tiles(op);
  const std::uint32_t begin = run.progress.next_tile(op);
  const Cut& cut = run.progress.cut(op);
  const std::uint32_t cost = cut.chunk * info.tile_cost;
  const double fair = turn.loads.fair_load(cost);
  std::uint32_t first = begin;
  std::uint32_t task = begin / cut.chunk;
  bool waits = false;
  while (first < end && !turn.over()) {
    const std::uint32_t preferred = tile_worker(run, cut, first, workers_);
    const std::uint32_t worker = turn.loads.choose_fair(preferred, fair, turn.window);
    waits = worker == plan::kNone;
    if (waits) break;
    const std::uint32_t share = preferred >= run.worker_base ? preferred - run.worker_base
                                                             : preferred + workers_ - run.worker_base;
    const auto share_end = static_cast<std::uint32_t>(static_cast<float>(share + 1) * cut.tasks_each);
    const std::uint32_t wanted = !cut.in_turn && share_end > task + 1 ? share_end - task : 1;
    const std::uint32_t most = std::min(turn.loads.room(worker, turn.window), turn.budget - turn.sent);
    const std::uint32_t left = end - first;
    std::uint32_t tasks = std::min(wanted, most);
    if (tasks * cut.chunk > left) tasks = (left + cut.chunk - 1) / cut.chunk;
    const std::uint32_t tiles = std::min(tasks * cut.chunk, left);
    decide(run, op, {first, tiles, tasks, cut.chunk, cost, worker, info.reports}, turn);
    first += tiles;
    task += tasks;
  }
  if (first > begin) run.progress.take_tiles(op, first - begin);
  return !waits;
}

// The first `tiles` tiles of an op, neighbourhood by neighbourhood: visit(worker, first tile, tiles, tasks).
template <class Visit>
void LookaheadPolicy::for_each_share(const RunSlot& run, const Cut& cut, std::uint32_t tiles, Visit&& visit) const {
  for (std::uint32_t first = 0; first < tiles;) {
    const std::uint32_t worker = tile_worker(run, cut, first, workers_);
    std::uint32_t tasks = 0, end = first;
    while (end < tiles && tile_worker(run, cut, end, workers_) == worker) end = std::min(end + cut.chunk, tiles), ++tasks;
    visit(worker, first, end - first, tasks);
    first = end;
  }
}

// What a report will call for, if it says what it said last. Each worker gets its neighbourhood, since nothing else is on its
// way; or the op waits for its report like that of a run among others.
bool LookaheadPolicy::send_draft(RunSlot& run, Turn& turn) {
  Progress& progress = run.progress;
  const std::uint32_t op = progress.next_draft();
  if (op == plan::kNone || progress.skipping()) return false;
  const OpInstance& info = run.instance.ops()[op];
  const std::uint32_t tiles = progress.draft_tiles(op);
  const Cut cut = tiles == info.tiles ? static_cast<const Cut&>(info) : cut_tiles(tiles, workers_, info.goes_in_turn);
  std::uint32_t shares = 0;
  bool fits = true;
  for_each_share(run, cut, tiles, [&](std::uint32_t worker, std::uint32_t, std::uint32_t, std::uint32_t tasks) {
    ++shares;
    fits = fits && turn.loads.room(worker, turn.window) >= tasks;
  });
  if (shares == 0 || shares > kBatchDecisions) {
    progress.leave_draft();
    return false;
  }
  if (!fits || turn.batch.count + shares > kBatchDecisions || run.drafts_taken + shares > kRunDrafts) return false;
  for_each_share(run, cut, tiles, [&](std::uint32_t worker, std::uint32_t first, std::uint32_t count, std::uint32_t tasks) {
    decide(run, op, {first, count, tasks, cut.chunk, cut.chunk * info.tile_cost, worker, info.reports, 0, true}, turn);
  });
  run.drafts_taken += shares;
  progress.take_draft(op, tiles);
  return true;
}

bool LookaheadPolicy::send_credit(RunSlot& run, std::uint32_t op, const Piece& piece, Turn& turn) {
  const std::uint32_t preferred = preferred_worker(run, op, piece, workers_);
  const std::uint32_t worker = turn.loads.choose(preferred, 1, turn.window);
  if (worker == plan::kNone) return false;
  append(run, op, piece, worker, 1, turn.batch, turn.loads);
  ++turn.sent;
  return true;
}

}  // namespace ccks::scheduler
