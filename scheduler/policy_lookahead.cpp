#include "scheduler/policy_lookahead.hpp"

#include <algorithm>

namespace ccks::scheduler {

// Runs begin at different workers, so that ops of few tiles do not pile up on the first ones.
void LookaheadPolicy::on_start(RunSlot& run) { run.worker_base = run.ordinal % workers_; }

std::uint32_t LookaheadPolicy::advance(RunSlot& run, Batch& batch, WorkerLoads& loads, std::uint32_t budget) {
  Progress& progress = run.progress;
  const std::uint32_t window = std::min(kLookaheadWindow, loads.inbox_slots());
  std::uint32_t sent = 0;
  while (sent < budget && !batch.full()) {
    const std::uint32_t op = progress.next_open(0);
    if (op == plan::kNone) break;
    const OpInstance& info = run.instance.ops()[op];
    const Piece piece = progress.peek(op);
    const std::uint32_t cost = piece_cost(info, piece);
    const std::uint32_t preferred = preferred_worker(run, info, piece, workers_);
    const std::uint32_t worker = loads.choose(preferred, cost, window);
    if (worker == plan::kNone) break;
    // An op of one task leads the run to its new worker: what follows would otherwise wait across workers each time.
    if (worker != preferred && piece.count == info.tiles) run.worker_base = worker;
    append(run, op, piece, worker, cost, batch, loads);
    ++sent;
  }
  run.all_sent = progress.all_sent();
  return sent;
}

}  // namespace ccks::scheduler
