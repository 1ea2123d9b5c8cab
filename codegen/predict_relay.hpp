// Relays as predict_plan plays them: products of one row or a few, and attention between them, that workers run from row to row while memory brings weights ahead.
#pragma once

#include <algorithm>
#include <deque>
#include <vector>

#include "codegen/predict_plan.hpp"

namespace ccks::codegen {

/// Rows of each product of a relay of `model`, 0: it can have none (codegen/emit_sources.hpp, rows_handed_on).
std::int64_t relay_rows(const check::Model& model);
/// Whether it multiplies what each expert has made by a weight of its own, which a relay does where that is added up.
bool is_addend(const check::Model& model, std::size_t op);
/// Per op of `model`: whether it is a step, or a norm, of the relay, the longest run of ops that may be, or of nothing where that is short (scheduler/relays.hpp).
std::vector<bool> find_steps(const check::Model& model);

/// The weights of one worker, in the order of its steps.
class PieceStream {
 public:
  /// `bytes_per_us`: of memory, for this worker.
  PieceStream(const StepCost& cost, double bytes_per_us) : cost_(&cost), memory_us_(cost.piece_bytes / bytes_per_us) {}

  /// Nobody knows before then what to ask memory for next.
  void know_from(double us) { brought_us_ = std::max(brought_us_, us); }
  /// Multiplies `bytes` of weights from `begin_us` on; when it has.
  double multiply(double begin_us, double bytes);

 private:
  double taken(int pieces_before) const { return pieces_before < 1 || static_cast<std::size_t>(pieces_before) > taken_.size() ? 0 : taken_[taken_.size() - static_cast<std::size_t>(pieces_before)]; }

  const StepCost* cost_;
  double memory_us_;
  double brought_us_ = 0, landed_us_ = 0;  // the last piece: by memory, and where it is multiplied
  std::deque<double> taken_;               // when the last pieces had been multiplied
};

}  // namespace ccks::codegen
