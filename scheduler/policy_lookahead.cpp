#include "scheduler/policy_lookahead.hpp"

#include <algorithm>

namespace ccks::scheduler {

// Runs begin at different workers, so that ops of few tiles do not pile up on the first ones; lists that keep everybody busy
// stay where they are, with what the workers' caches hold.
void LookaheadPolicy::on_start(RunSlot& run) {
  const bool rotate = run.instance.has_tiles() || run.instance.has_idle_workers();
  run.worker_base = rotate ? run.ordinal % workers_ : 0;
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
    if (op == plan::kNone || loads.all_full(turn.window)) break;
    const Piece piece = progress.peek(op);
    const bool moved = piece.kind == Piece::Kind::tiles ? send_tiles(run, op, turn) : send_credit(run, op, piece, turn);
    if (!moved) break;
  }
  run.all_sent = progress.all_sent();
  return turn.sent;
}

// As many tiles of `op` as the turn and the workers have room for: those that prefer the same worker are one decision.
// False: a worker would have to be waited for.
bool LookaheadPolicy::send_tiles(RunSlot& run, std::uint32_t op, Turn& turn) {
  const OpInstance info = run.instance.ops()[op];
  const std::uint32_t end = run.progress.existing_tiles(op);
  const std::uint32_t begin = run.progress.next_tile(op);
  const std::uint32_t cost = info.chunk * info.tile_cost;
  const std::uint64_t fair = turn.loads.fair_load(cost);
  std::uint32_t first = begin;
  bool waits = false;
  while (first < end && !turn.over()) {
    const std::uint32_t preferred = tile_worker(run, info, first, workers_);
    const std::uint32_t worker = turn.loads.choose_fair(preferred, fair, turn.window);
    waits = worker == plan::kNone;
    if (waits) break;
    const std::uint32_t most = std::min(turn.loads.room(worker, turn.window), turn.budget - turn.sent);
    std::uint32_t tasks = 1;
    std::uint32_t next = first + info.chunk;
    while (next < end && tasks < most && tile_worker(run, info, next, workers_) == preferred) next += info.chunk, ++tasks;
    next = std::min(next, end);
    // An op of one task leads the run to its new worker: what follows would otherwise wait across workers each time.
    if (worker != preferred && next - first == info.tiles) run.worker_base = worker;
    Decision& out = turn.batch.items[turn.batch.count++];
    out.tile = wire::Task::pack_tiles(first, std::min(info.chunk, next - first));
    out.amount = next - first;
    out.cost = cost;
    out.tasks = static_cast<std::uint16_t>(tasks);
    out.op = static_cast<std::uint16_t>(op);
    out.target = static_cast<std::uint16_t>(op);
    out.worker = static_cast<std::uint16_t>(worker);
    out.slot_flags = static_cast<std::uint16_t>(run.index);
    out.reports = info.reports ? 1 : 0;
    turn.loads.add(worker, cost, tasks);
    turn.sent += tasks;
    first = next;
  }
  if (first > begin) run.progress.take_tiles(op, first - begin);
  return !waits;
}

bool LookaheadPolicy::send_credit(RunSlot& run, std::uint32_t op, const Piece& piece, Turn& turn) {
  const OpInstance& info = run.instance.ops()[op];
  const std::uint32_t preferred = preferred_worker(run, info, piece, workers_);
  const std::uint32_t worker = turn.loads.choose(preferred, 1, turn.window);
  if (worker == plan::kNone) return false;
  append(run, op, piece, worker, 1, turn.batch, turn.loads);
  ++turn.sent;
  return true;
}

}  // namespace ccks::scheduler
