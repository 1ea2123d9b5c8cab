// lookahead (default): sends work ahead of its producers' completion; the device waits. Stretches that need no report go
// out as lists where that pays (Spine), everything else as tiles. Ops whose tile count is not yet known, and what depends
// on them, are held back; everything else goes on. Of a run that is alone on the device even those are sent, as drafts: nobody
// but the run itself waits behind a worker that waits for a verdict, and the decision costs one write over the link.
#pragma once

#include <algorithm>

#include "scheduler/policy.hpp"

namespace ccks::scheduler {

class LookaheadPolicy final : public Policy {
 public:
  explicit LookaheadPolicy(const PlanTables& tables) : tables_(tables), workers_(tables.workers) {}
  void on_start(RunSlot& run) override;
  std::uint32_t advance(RunSlot& run, Batch& batch, WorkerLoads& loads, std::uint32_t budget) override;

 private:
  /// What one call of advance() has sent, and what it may still send.
  struct Turn {
    Batch& batch;
    WorkerLoads& loads;
    std::uint32_t budget;  // tasks
    std::uint32_t window;  // tasks on a worker
    std::uint32_t sent = 0;
    bool over() const { return sent >= budget || batch.full(); }
  };
  /// Consecutive tiles of one op, or whole consecutive ops, for one worker.
  struct Share {
    std::uint32_t first, tiles, tasks;
    std::uint32_t chunk;  // tiles of each task but the last
    std::uint32_t cost;   // of each task
    std::uint32_t worker;
    bool reports;
    std::uint32_t op_step = 0;
    bool draft = false;
  };
  bool send_op(RunSlot& run, std::uint32_t op, Turn& turn);
  bool send_ops(RunSlot& run, std::uint32_t op, const OpInstance& info, Turn& turn);
  bool send_tiles(RunSlot& run, std::uint32_t op, const OpInstance& info, Turn& turn);
  bool send_draft(RunSlot& run, Turn& turn);
  template <class Visit>
  void for_each_share(const RunSlot& run, const Cut& cut, std::uint32_t tiles, Visit&& visit) const;
  void decide(const RunSlot& run, std::uint32_t op, const Share& share, Turn& turn);
  bool send_credit(RunSlot& run, std::uint32_t op, const Piece& piece, Turn& turn);

  const PlanTables& tables_;
  std::uint32_t workers_;
};

/// Worker that holds the neighbourhood of a tile: equal fractions of all grids go to the same worker. Or whose turn it is.
inline std::uint32_t tile_worker(const RunSlot& run, const Cut& cut, std::uint32_t tile, std::uint32_t workers) {
  const auto share = cut.in_turn ? (cut.begin + tile) % workers : static_cast<std::uint32_t>(static_cast<float>(tile) * cut.affinity);
  const std::uint32_t worker = run.worker_base + std::min(share, workers - 1);
  return worker >= workers ? worker - workers : worker;
}
/// Signals go to a worker each: a message of its own takes one as long as some tiles that it skips.
inline std::uint32_t preferred_worker(const RunSlot& run, std::uint32_t op, const Piece& piece, std::uint32_t workers) {
  if (piece.kind == Piece::Kind::signal) return (run.worker_base + piece.first) % workers;
  return tile_worker(run, run.progress.cut(op), piece.first, workers);
}

/// Estimated time of a piece.
inline std::uint32_t piece_cost(const OpInstance& op, const Piece& piece) {
  return piece.kind == Piece::Kind::tiles ? piece.count * op.tile_cost : 1;
}

}  // namespace ccks::scheduler
