#include "codegen/predict_plan.hpp"

#include <algorithm>
#include <cmath>
#include <optional>

#include "ccks/wire/op_shape.hpp"
#include "ccks/wire/relay.hpp"
#include "codegen/check_events.hpp"
#include "codegen/predict_bodies.hpp"
#include "codegen/predict_relay.hpp"

namespace ccks::codegen {
namespace {

class Player {
 public:
  Player(const check::Model& model, const PredictCosts& costs, std::uint32_t workers)
      : m_(model), costs_(costs), free_(std::max(1u, workers)), ends_(model.ops.size()), bodies_(model.ops.size(), 0) {
    if (costs.step.piece_us <= 0) return;
    steps_ = find_steps(model);
    rows_ = std::max<std::int64_t>(relay_rows(model), 1);
    streams_.assign(free_.size(), PieceStream(costs_.step, costs_.bytes_per_us / static_cast<double>(free_.size())));
  }

  Prediction run() {
    Prediction out;
    out.workers = static_cast<std::uint32_t>(free_.size());
    for (std::size_t op = 0; op < m_.ops.size(); ++op) {
      out.ops.push_back(play(op));
      out.busy_us += out.ops.back().busy_us;
      out.run_us = std::max(out.run_us, out.ops.back().end_us);
    }
    out.run_us += costs_.ends_us + answers_us_;
    return out;
  }

 private:
  struct End {
    double us = 0;
    std::size_t worker = 0;
  };

  /// What of its producer a tile waits for: [first, end) of its tiles. `late`: the last of them are later than what they take on average.
  struct Awaited {
    std::size_t first = 0, end = 0;
    bool late = true;
  };
  /// The tile in the same place, or those of the same rows. nullopt: the whole op.
  std::optional<Awaited> awaited(std::size_t op, const check::WaitNow& wait, std::size_t index, std::size_t tiles) const {
    const check::SignalNow& signal = m_.signals[wait.signal];
    const std::size_t all = ends_[wait.producer].size();
    if (signal.total == 1 && all >= tiles) {
      const std::size_t first = index * all / tiles;
      return Awaited{first, std::max(first + 1, (index + 1) * all / tiles), false};
    }
    const auto &own = m_.ops[op].grid, &grid = m_.ops[wait.producer].grid;
    if (own[0] * own[1] != 1 || grid[0] * grid[1] != 1 || grid[2] == 1) return std::nullopt;
    for (std::size_t i = 0; i < wait.axis.size(); ++i) {
      if (signal.axis[i] != 2 || wait.axis[i].grid_axis != 2) continue;
      const check::Blocks rows = check::blocks_at(wait.axis[i], static_cast<std::int64_t>(index) / own[3]);
      const auto columns = static_cast<std::size_t>(grid[3]);
      return Awaited{static_cast<std::size_t>(rows.lo) * columns, std::min(static_cast<std::size_t>(rows.hi) * columns, all), true};
    }
    return std::nullopt;
  }
  double end_of(const check::WaitNow& wait, const Awaited& of, std::size_t worker) const {
    const double late = of.late ? costs_.spread * bodies_[wait.producer] : 0;
    double at = 0;
    for (std::size_t i = of.first; i < of.end; ++i) {
      const End& end = ends_[wait.producer][i];
      at = std::max(at, end.us + late + (end.worker == worker ? 0 : costs_.hop_us));
    }
    return at;
  }
  /// When all ops of which a tile waits for everything have ended, for `worker`.
  double ready(std::size_t op, std::size_t tiles, std::size_t worker) const {
    double at = 0;
    for (const check::WaitNow& wait : m_.waits_of(op))
      if (!awaited(op, wait, 0, tiles)) at = std::max(at, end_of(wait, {0, ends_[wait.producer].size()}, worker));
    return at;
  }
  /// When what the tile `index` of `tiles` waits for besides has, for `worker`.
  double ready(std::size_t op, std::size_t index, std::size_t tiles, std::size_t worker) const {
    double at = 0;
    for (const check::WaitNow& wait : m_.waits_of(op))
      if (const std::optional<Awaited> some = awaited(op, wait, index, tiles); some && !ends_[wait.producer].empty()) at = std::max(at, end_of(wait, *some, worker));
    return at;
  }

  PredictedOp play(std::size_t op) {
    PredictedOp out;
    if (!m_.ops[op].exists()) return out;
    if (is_step(op)) return play_steps(op);
    const auto tiles = static_cast<std::size_t>(m_.ops[op].tiles);
    const auto there = static_cast<std::size_t>(tiles_there(m_, op));
    out.body_us = bodies_[op] = body_us(m_, costs_, op, free_.size());
    out.busy_us = (out.body_us * static_cast<double>(there) + costs_.groups.missing_us * static_cast<double>(tiles - there)) / static_cast<double>(free_.size());
    ends_[op].resize(tiles);
    double whole = 0;  // the same for all tiles
    for (std::size_t i = 0; i < tiles; ++i) {
      const std::size_t worker = choose(op, i, tiles);
      if (i == 0) whole = ready(op, tiles, worker);
      const double begin = std::max({free_[worker] + costs_.next_us, whole, ready(op, i, tiles, worker)});
      out.begin_us = i == 0 ? begin : std::min(out.begin_us, begin);
      free_[worker] = begin + (i < there ? out.body_us : costs_.groups.missing_us);
      ends_[op][i] = {free_[worker], worker};
      out.end_us = std::max(out.end_us, free_[worker]);
    }
    return out;
  }

  // ---- relays ---------------------------------------------------------------------------------------------------------------

  bool is_step(std::size_t op) const { return !steps_.empty() && steps_[op]; }

  /// When the rows of a step are there: those of other steps some time behind the last that made them, those of ops in front when the relay begins.
  double rows_there(std::size_t op) const {
    const plan::OpDesc& d = *m_.ops[op].desc;
    const auto elements = static_cast<double>(d.kind == wire::OpCode::combine ? row_of_experts(op) : m_.operands_of(op)[0].dim[3]);
    double at = 0;
    for (std::uint32_t w = d.wait_first; w < d.wait_first + d.wait_count; ++w) {
      const std::size_t producer = m_.waits[w].producer;
      const double late = is_step(producer) && m_.ops[producer].desc->kind == wire::OpCode::route ? 0 : is_step(producer) ? costs_.step.hop_us + (costs_.step.word_us + costs_.step.more_words_us * static_cast<double>(rows_ - 1)) * elements : costs_.step.begin_us;
      for (const End& end : ends_[producer]) at = std::max(at, end.us + late);
    }
    return at;
  }

  /// Nothing but norms is in front of it, which it takes over.
  bool begins_run(std::size_t op) const {
    const plan::OpDesc& d = *m_.ops[op].desc;
    for (std::uint32_t w = d.wait_first; w < d.wait_first + d.wait_count; ++w) {
      const std::size_t producer = m_.waits[w].producer;
      if (!is_step(producer) || m_.ops[producer].desc->kind != wire::OpCode::rmsnorm || m_.ops[producer].desc->wait_count != 0) return false;
    }
    return true;
  }

  PredictedOp play_steps(std::size_t op) {
    PredictedOp out;
    const plan::OpDesc& d = *m_.ops[op].desc;
    const StepCost& cost = costs_.step;
    if (d.kind == wire::OpCode::rmsnorm || is_addend(m_, op)) return pass_on(op);
    if (d.kind == wire::OpCode::route) return choose_experts(op, rows_there(op) + cost.route_us);
    const bool by_experts = d.kind == wire::OpCode::expert_matmul || d.kind == wire::OpCode::combine;  // which all workers share out evenly
    const auto tiles = by_experts ? free_.size() : static_cast<std::size_t>(m_.ops[op].tiles);
    const bool attends = d.kind == wire::OpCode::attention;
    const double bytes = static_cast<double>(m_.values[m_.ops[weights_of(op)].desc->bytes_read]) * (by_experts ? active_share(weights_of(op)) : 1.0) / static_cast<double>(tiles), there = std::max(rows_there(op), begins_run(op) ? cost.alone_us : 0.0);
    if (begins_run(op)) answers_us_ = cost.answers_us;
    const bool parts = attends && wire::part_count(static_cast<wire::u32>(m_.operands_of(op)[1].dim[2]), static_cast<wire::u32>(m_.ops[op].grid[0])) > 1;
    const double attention = cost.attention_us + (parts ? cost.parts_us : 0);
    const double fixed = cost.fixed_us * steps_of_tile(op, bytes);
    ends_[op].resize(tiles);
    for (std::size_t i = 0; i < tiles; ++i) {
      const std::size_t worker = by_experts ? i : choose(op, i, tiles);
      const double begin = std::max(free_[worker], there);
      out.begin_us = i == 0 ? begin : std::min(out.begin_us, begin);
      free_[worker] = attends ? begin + attention + bytes / cost.bytes_per_us : streams_[worker].multiply(begin + fixed / 2, bytes) + fixed / 2;
      ends_[op][i] = {free_[worker], worker};
      out.busy_us += (free_[worker] - begin) / static_cast<double>(free_.size());
      out.body_us = std::max(out.body_us, free_[worker] - begin);
      out.end_us = std::max(out.end_us, free_[worker]);
    }
    bodies_[op] = out.body_us;
    return out;
  }

  /// A step of several rows has fewer columns.
  double steps_of_tile(std::size_t op, double bytes) const {
    if (m_.ops[op].desc->kind == wire::OpCode::combine) return 1;
    const auto depth = static_cast<double>(m_.operands_of(op)[0].dim[3]), columns = bytes / (2 * depth);
    return rows_ == 1 ? 1 : std::max(1.0, std::ceil(columns / wire::relay_columns(rows_walked(op)) - 0.1));  // bytes are a little more than the weights'
  }

  /// Of a step: those that chose its expert, where there is one.
  wire::u32 rows_walked(std::size_t op) const {
    if (m_.ops[op].desc->kind != wire::OpCode::expert_matmul) return static_cast<wire::u32>(rows_);
    return static_cast<wire::u32>(std::ceil(1 / active_share(op)));
  }

  /// By each list for itself.
  PredictedOp choose_experts(std::size_t op, double at) {
    for (PieceStream& stream : streams_) stream.know_from(at);
    return pass_on(op, at);
  }
  /// The op that reads what a step multiplies by: of a combine the one whose results it adds up.
  std::size_t weights_of(std::size_t op) const {
    const plan::OpDesc& d = *m_.ops[op].desc;
    for (std::uint32_t w = d.wait_first; d.kind == wire::OpCode::combine && w < d.wait_first + d.wait_count; ++w)
      if (is_addend(m_, m_.waits[w].producer)) return m_.waits[w].producer;
    return op;
  }
  std::int64_t row_of_experts(std::size_t combine) const {
    const check::Operand& made = m_.operands_of(weights_of(combine))[0];
    return made.dim[2] * made.dim[3] / rows_;
  }
  /// Of as many experts as all rows could choose, those that are active where each row chooses any of them as likely as others.
  double active_share(std::size_t op) const {
    const auto experts = static_cast<double>(m_.operands_of(op)[1].dim[1]), chosen = static_cast<double>(m_.ops[op].dims[0]), rows = static_cast<double>(rows_);
    return experts * (1 - std::pow(1 - chosen / experts, rows)) / (chosen * rows);
  }

  /// A norm: what takes its rows has them as they were in front of it. Others that are no step, or that each list does for itself, likewise.
  PredictedOp pass_on(std::size_t op, double not_before = 0) {
    const plan::OpDesc& d = *m_.ops[op].desc;
    End last{not_before, 0};
    for (std::uint32_t w = d.wait_first; w < d.wait_first + d.wait_count; ++w) {
      for (const End& end : ends_[m_.waits[w].producer])
        if (end.us > last.us) last = end;
    }
    ends_[op].assign(static_cast<std::size_t>(m_.ops[op].tiles), last);
    PredictedOp out;
    out.begin_us = out.end_us = last.us;
    return out;
  }

  /// The worker of the tile in the same place of an op that this one waits for, unless another is free sooner by more than a hop.
  std::size_t choose(std::size_t op, std::size_t index, std::size_t tiles) const {
    const auto soonest = static_cast<std::size_t>(std::min_element(free_.begin(), free_.end()) - free_.begin());
    const plan::OpDesc& d = *m_.ops[op].desc;
    for (std::uint32_t w = d.wait_first; w < d.wait_first + d.wait_count; ++w) {
      const std::vector<End>& producer = ends_[m_.waits[w].producer];
      if (m_.signals[m_.waits[w].signal].total != 1 || producer.size() < tiles) continue;
      const std::size_t same = producer[index * producer.size() / tiles].worker;
      if (free_[same] <= free_[soonest] + costs_.hop_us) return same;
    }
    return soonest;
  }

  const check::Model& m_;
  const PredictCosts& costs_;
  std::vector<double> free_;
  std::vector<std::vector<End>> ends_;
  std::vector<double> bodies_;
  std::vector<bool> steps_;             // per op; empty: none is a relay's
  std::int64_t rows_ = 1;               // of the relay's products
  double answers_us_ = 0;               // more, where a relay begins the run
  std::vector<PieceStream> streams_;    // per worker
};

}  // namespace

const BodyCost& PredictCosts::of(wire::OpCode kind, std::int64_t rows) const {
  constexpr std::int64_t kFewRows = 8;  // worker/tile_hints.hpp
  switch (kind) {
    case wire::OpCode::matmul:
      return rows <= kFewRows ? few_rows : block;
    case wire::OpCode::expert_matmul:
    case wire::OpCode::conv2d:
      return block;
    case wire::OpCode::attention:
      return attention;
    case wire::OpCode::softmax:
    case wire::OpCode::rmsnorm:
    case wire::OpCode::layernorm:
    case wire::OpCode::argmax:
      return this->rows;
    case wire::OpCode::gather:
    case wire::OpCode::scatter:
      return gather;
    case wire::OpCode::combine:
      return combine;
    default:
      return other;
  }
}

Prediction predict_plan(const check::Model& model, const PredictCosts& costs, std::uint32_t workers) {
  return Player(model, costs, workers).run();
}

}  // namespace ccks::codegen
