// Overtaking: where a product of one row whose weights come through a ring may take that row by its tags (wire::tagged_value), before the events of the op
// that makes it are there.
#pragma once

#include "scheduler/plan_tables.hpp"

namespace ccks::scheduler {

struct RecordSource;

/// Finds rows that an op without guards makes alone and such products multiply, or read in their epilogues, and room for their copies behind the slot's arena. Instance says at the dims
/// which ends have bodies for it.
void find_row_edges(PlanTables& tables);

/// Whether what is placed for an edge holds at the dims: that producer and consumer have bodies which leave and take one row of edge.elements.
bool gives_row(const RowEdge& edge, const wire::OpParams& op, const wire::OperandParams& output);
bool takes_row(const RowEdge& edge, const wire::OpParams& op, const wire::OperandParams& input);  // of that product

/// Which records of lists may begin so. Once a tile has all words of its row, every tile of the producer has begun to store; so have, before those began,
/// all tiles that these have waited for, and so on. What makes it right:
/// - each op that the tile waits for is among those, or its worker has waited for it before: then nobody has in use what the tile writes;
/// - of what it reads beside the row, everything that an op of the run writes is a row with tags, of an op that is one of these and of the same lists; or its
///   worker can see it: an earlier tile of its list has waited for all of that op's events, or of an op behind it. Tags carry no order with them.
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
  /// Whether all tiles of `producer` are through once a tile of `op`, which finds tags, has its row.
  bool is_implied(std::uint32_t op, std::uint32_t producer) const;
  /// A tile without guards on `worker` waits for an event of `wait`.
  void note(std::uint32_t worker, const wire::WaitParams& wait);

 private:
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
