// Overtaking: where a product of one row whose weights come through a ring may take that row by its tags (wire::tagged_value), before the events of the op
// that makes it are there.
#pragma once

#include "scheduler/plan_tables.hpp"

namespace ccks::scheduler {

struct RecordSource;

/// Finds rows that a product without guards makes alone and another multiplies, or reads in its epilogue, and room for their copies behind the slot's arena, for an engine
/// whose workers know of them (WorkerImage::cuda_row_tags). Without lists of records there are none. Instance says at the dims which ends have bodies for it: where a
/// program has more rows than it was made for, none has, and everybody waits for events. Where rows of an attention were tagged too, the product behind it
/// looked for them from the worker's own last tile on, and a step took 20 us longer (include/ccks/worker/README.md, 2026-11-25).
void find_row_edges(PlanTables& tables);

/// Whether what is placed for an edge holds at the dims: that producer and consumer have bodies which leave and take one row of edge.elements.
bool gives_row(const RowEdge& edge, const wire::OpParams& op, const wire::OperandParams& output);
bool takes_row(const RowEdge& edge, const wire::OpParams& op, const wire::OperandParams& input);  // of that product

/// Which records of lists may begin so. A body that overtakes its events stores nothing but words with tags before they are there (tagged_rows.hpp), so what it writes
/// nobody has in use, as ever. What makes right what it reads:
/// - its row: words say themselves of which run they are, and whoever does not find one waits for the events;
/// - everything else that an op of the run writes is a row with tags too, of an op whose tiles are in the same lists and have left their words by then; or its worker can
///   see it: an earlier tile of its list has waited for all of that op's events, or of an op behind it. Tags carry no order with them.
/// Use: begin() with the frame's tables, begin_stretch(), then for each op list() and for each of its tiles, in the order of the lists, may_overtake() before note().
class Overtaking {
 public:
  void reserve(const PlanTables& tables);
  void begin(const PlanTables& tables, const RecordSource& source);
  void begin_stretch();
  /// Tiles of `op` are in the lists of this stretch.
  void list(std::uint32_t op);
  /// Whether tiles of `op` find tags at all, and this worker sees what else they read.
  bool may_overtake(std::uint32_t op, std::uint32_t worker) const;
  /// A tile without guards on `worker` waits for an event of `wait`.
  void note(std::uint32_t worker, const wire::WaitParams& wait);

 private:
  bool is_implied(std::uint32_t op, std::uint32_t producer) const;
  bool is_behind(std::uint32_t op, std::uint32_t other) const { return (behind_[op * words_ + other / 64] >> (other % 64) & 1) != 0; }
  /// Whether the tiles of `op` that always run wait, all together, for every tile of the wait's producer.
  bool waits_for_all(std::uint32_t op, std::uint32_t wait);

  const PlanTables* tables_ = nullptr;
  const RecordSource* source_ = nullptr;
  std::size_t words_ = 0;
  std::vector<std::uint64_t> behind_;          // bit per op and op: all tiles of the second have ended before the last of the first begins
  std::vector<std::uint32_t> producer_;        // per op: of the row that it takes by tags; kNone
  struct Beside {
    std::uint32_t operand, writer;
  };
  std::vector<std::vector<Beside>> beside_;    // per consumer of an edge: ops in front of it that write what else it reads
  std::vector<std::uint32_t> seen_;            // per worker: the last op all of whose events it has waited for; kNone
  std::vector<std::uint8_t> listed_;           // per op
  std::vector<std::uint8_t> marked_;           // per event
};

}  // namespace ccks::scheduler
