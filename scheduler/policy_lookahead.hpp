// lookahead (default): sends tiles ahead of their producers' completion; the device waits. Ops whose tile count is not
// yet known, and what depends on them, are held back; everything else goes on.
#pragma once

#include <algorithm>

#include "scheduler/policy.hpp"

namespace ccks::scheduler {

class LookaheadPolicy final : public Policy {
 public:
  explicit LookaheadPolicy(const PlanTables& tables) : workers_(tables.workers) {}
  void on_start(RunSlot& run) override;
  std::uint32_t advance(RunSlot& run, Batch& batch, WorkerLoads& loads, std::uint32_t budget) override;

 private:
  std::uint32_t workers_;
};

/// Worker that holds the neighbourhood of a piece: equal fractions of all grids go to the same worker.
inline std::uint32_t preferred_worker(const RunSlot& run, const OpInstance& op, const Piece& piece,
                                      std::uint32_t workers) {
  if (piece.kind == Piece::Kind::signal) return run.worker_base;
  const auto share = static_cast<std::uint32_t>(static_cast<float>(piece.first) * op.affinity);
  const std::uint32_t worker = run.worker_base + std::min(share, workers - 1);
  return worker >= workers ? worker - workers : worker;
}

/// Estimated time of a piece.
inline std::uint32_t piece_cost(const OpInstance& op, const Piece& piece) {
  return piece.kind == Piece::Kind::tiles ? piece.count * op.tile_cost : 1;
}

}  // namespace ccks::scheduler
