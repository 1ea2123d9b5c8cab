#include "scheduler/policy_reactive.hpp"

#include <algorithm>

#include "ccks/wire/event.hpp"
#include "scheduler/guards.hpp"
#include "scheduler/policy_lookahead.hpp"

namespace ccks::scheduler {
ReactivePolicy::ReactivePolicy(const PlanTables& tables, std::uint32_t slots) : tables_(tables), mirrors_(slots) {
  for (Mirror& mirror : mirrors_) mirror.events.assign(tables.event_count, 0);
}

void ReactivePolicy::on_start(RunSlot& run) {
  run.worker_base = run.ordinal % tables_.workers;
  Mirror& mirror = mirrors_[run.index];
  std::fill(mirror.events.begin(), mirror.events.end(), 0);
  mirror.changed = true;
}

bool ReactivePolicy::is_ready(const RunSlot& run, std::uint32_t op, std::uint32_t tile) const {
  const wire::OpParams& params = run.instance.op(op);
  const wire::TileCoord coord = wire::tile_coord(params.grid, tile);
  const std::vector<std::uint32_t>& events = mirrors_[run.index].events;
  for (std::uint32_t w = 0; w < params.wait_count; ++w) {
    const wire::WaitParams& wait = run.instance.waits()[params.wait_first + w];
    const wire::EventRect rect = wire::wait_rect(wait, coord);
    const std::uint32_t count = wire::rect_count(rect);
    for (std::uint32_t i = 0; i < count; ++i) {
      if (events[wire::rect_event(wait, rect, i)] < wait.total) return false;
    }
  }
  return true;
}

// How many tiles of the piece may go, from its first on. Credits and skipped tiles wait for nobody.
std::uint32_t ReactivePolicy::ready_tiles(const RunSlot& run, std::uint32_t op, const Piece& piece) const {
  if (piece.kind != Piece::Kind::tiles) return piece.count;
  std::uint32_t ready = 0;
  while (ready < piece.count && is_ready(run, op, piece.first + ready)) ++ready;
  return ready;
}

std::uint32_t ReactivePolicy::send_op(RunSlot& run, std::uint32_t op, Batch& batch, WorkerLoads& loads,
                                      std::uint32_t budget) {
  const OpInstance& info = run.instance.ops()[op];
  std::uint32_t sent = 0;
  while (sent < budget && !batch.full() && run.progress.is_open(op)) {
    Piece piece = run.progress.peek(op);
    if (piece.kind == Piece::Kind::tiles && piece.first == 0 && is_ready(run, op, 0)) {
      // A guard known to be false saves the worker the trouble. By the time an op is ready its reports have arrived:
      // the report op's event is among its waits, and a report stands before the done record of its op.
      if (guards_known_false(tables_.plan, run, op)) run.progress.drop_tiles(op);
      piece = run.progress.peek(op);
    }
    const std::uint32_t ready = ready_tiles(run, op, piece);
    if (ready == 0) break;
    piece.count = ready;
    const std::uint32_t cost = piece_cost(info, piece);
    const std::uint32_t worker =
        loads.choose(preferred_worker(run, op, piece, tables_.workers), cost, std::min(kLookaheadWindow, loads.inbox_slots()));
    if (worker == plan::kNone) {
      inboxes_full_ = true;
      break;
    }
    append(run, op, piece, worker, cost, batch, loads);
    ++sent;
  }
  return sent;
}

std::uint32_t ReactivePolicy::advance(RunSlot& run, Batch& batch, WorkerLoads& loads, std::uint32_t budget) {
  Mirror& mirror = mirrors_[run.index];
  if (!mirror.changed && !run.progress.skipping()) return 0;
  inboxes_full_ = false;
  std::uint32_t sent = 0;
  for (std::uint32_t op = run.progress.next_open(0); op != plan::kNone; op = run.progress.next_open(op + 1)) {
    sent += send_op(run, op, batch, loads, budget - sent);
    if (sent == budget || batch.full() || inboxes_full_) break;
  }
  // Nothing is ready until something of this run finishes. Full inboxes are another matter: any run may empty them.
  if (sent == 0 && !inboxes_full_) mirror.changed = false;
  run.all_sent = run.progress.all_sent();
  return sent;
}

void ReactivePolicy::on_done(RunSlot& run, const SentTasks& done) {
  Mirror& mirror = mirrors_[run.index];
  mirror.changed = true;
  if (done.op == wire::kOpSignal) {
    mirror.events[done.tile] += done.amount;
    return;
  }
  const wire::OpParams& params = run.instance.op(done.op);
  const wire::Task task{done.tile, 0, 0, 0, 0};
  for (std::uint32_t i = 0; i < done.amount; ++i) {
    const wire::TileCoord coord = wire::tile_coord(params.grid, task.first_tile() + i);
    for (std::uint32_t s = 0; s < params.signal_count; ++s) {
      ++mirror.events[wire::signal_event(run.instance.signals()[params.signal_first + s], coord)];
    }
  }
}

}  // namespace ccks::scheduler
