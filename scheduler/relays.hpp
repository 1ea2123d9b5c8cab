// Relays: which ops of a frame's lists run as steps of one record each (wire/relay.hpp), and those steps.
//
// The ops of a relay are the longest run of ops, in the order of the plan, that hand rows on to one another: products of one row, or of as many as workers were made for, and the attention between them. From one
// to the next there are words with tags and no events, so what else they rely on is held here:
// - what comes in front: every list's record waits for all of every op in front that any op of the relay waits for. Words carry no order with them, so a list must not
//   count on another's having waited;
// - what comes behind: whoever reads what a tile has stored waits for that tile's own signal, sent when its list is through; whoever overwrites what a tile has
//   read waits for one that cannot have ended before it;
// - the run in front: each list's record waits for the run's turn, or, where the first row is a table's and that run's pick says which, each worker for the pick's word, behind which all lists of that run
//   have stored what they store for others (worker/relay.cuh);
// - memory: words of an op lie where nothing else does, and results are stored where they lie only if somebody outside reads them there.
//
// Tiles are where the lists have them, but where all lists share columns out evenly: of the row that an argmax reads, of which each says what is largest of its own, so that one step is enough to
// find which it is; and of products of one row whose tiles would keep some list longer, as 96 of 32 columns do for 132 workers, or heads that a list has beside others.
#pragma once

#include <algorithm>
#include <span>
#include <vector>

#include "scheduler/list_dealer.hpp"
#include "scheduler/relay_ops.hpp"

namespace ccks::scheduler {

struct OpInstance;

inline std::uint32_t first_output(const plan::OpDesc& op) { return op.operand_first + op.input_count; }

/// Finds ops that may be part of relays, and room for their words behind the slot's arena and for their steps behind a frame's records. For an engine whose workers
/// know of relays (WorkerImage::cuda_row_tags), of products of `rows` rows each (WorkerImage::cuda_relay_rows).
/// experts: they know of steps by chosen experts, too (WorkerImage::cuda_relay_experts).
void find_relays(PlanTables& tables, std::uint32_t rows = 1, bool experts = false);

/// Steps of so many columns that all lists share, at most, `most` of them each.
inline std::uint64_t most_shared_steps(const PlanTables& tables, std::int64_t columns, std::uint32_t most) { return tables.workers + static_cast<std::uint64_t>(std::max<std::int64_t>(columns, 0)) / most; }

/// Of shares of `active` experts, at most: a list's, relay_share_slots, are 5 / 4 of its part of experts, and two.
inline std::uint64_t most_share_steps(std::uint64_t active, std::uint64_t workers) { return 2 * active + 2 * workers; }

/// Belongs to one client at a time; allocates in reserve() only. Use: decide(), add() for each tile in the order of the lists, sort(); then what the lists' records say,
/// lay_out() and write().
class Relays {
 public:
  struct Step {
    std::uint32_t list, op;
    RelayPart part;
  };
  /// An op that is one step, and who has it.
  struct Pick {
    std::uint32_t list, op;
  };
  /// What a list adds, at its end, to each event that a tile of an op signals.
  struct Arrivals {
    std::uint32_t list, op, tile, count;
  };

  void reserve(const PlanTables& tables);
  /// At the dims of a frame: whether there is a relay, and of which ops. `ops`: which stretch each goes out with.
  void decide(const RelaySource& source, std::span<const OpInstance> ops);
  /// Who runs it. workers 0: all.
  const RelayCrew& crew() const { return crew_; }
  void clear() { crew_ = {}, first_ = end_ = 0, added_.clear(), steps_.clear(), sorted_.clear(), arrivals_.clear(), picks_.clear(), turns_.clear(); }
  /// Whether an update of the ops `moved`, in the frame of `source`, leaves all steps right.
  bool stay(const RelaySource& source, std::span<const std::uint32_t> moved) const;

  bool any() const { return first_ != end_; }
  bool has(std::uint32_t op) const { return op >= first_ && op < end_; }
  /// Whether it begins with a row of a table (wire::kRelayLookUpDim); first() is the gather then.
  bool looks_up() const { return any() && made_[first_].kind == wire::RelayKind::look_up; }
  std::uint32_t first() const { return first_; }
  /// Where the word is of the index that a step stores at `store` (an address); 0: there is none.
  std::uint64_t word_of(std::uint64_t store) const;
  /// Where a list's record waits for the run's turn. A relay whose first row the run in front names by a word waits there for the turn before, which has been.
  struct Turn {
    std::uint32_t record, wait;  // of the frame's records; of the record's waits
  };
  void note_turn(const Turn& turn) { turns_.push_back(turn); }
  std::span<const Turn> turns() const { return turns_; }
  bool is_behind(std::uint32_t op) const { return any() && op >= end_; }  // of ops outside
  std::uint32_t steps() const { return static_cast<std::uint32_t>(sorted_.size()); }
  /// Signals whose events, all of them, each list waits for.
  std::span<const std::uint32_t> waits() const { return waits_; }
  /// Whether anybody outside waits for events of this signal of an op of the relay.
  bool sends(std::uint32_t signal) const { return sends_[signal] != 0; }

  void add(std::uint32_t list, std::uint32_t op, std::uint32_t tile) { added_.push_back({list, op, tile}); }
  void sort();
  /// In the order in which they run.
  std::span<const Step> steps_of(std::uint32_t list) const {
    return std::span(sorted_).subspan(list_first_[list], list_first_[list + 1] - list_first_[list]);
  }
  std::span<const Arrivals> arrivals_of(std::uint32_t list) const;
  std::span<const Pick> picks() const { return picks_; }

  /// Places steps and ops of the lists from `begin` of the frame on; where they end.
  std::uint32_t lay_out(std::uint32_t begin);
  wire::BlockRef block_of(std::uint32_t list) const;
  void write(const RelaySource& source, std::byte* frame) const;

 private:
  bool step_goes_by_pieces(const wire::RelayStep& step, bool stays) const;
  bool decide(const RelaySource& source, std::span<const OpInstance> ops, bool looks_up);
  void find_range(std::span<const OpInstance> ops, bool looks_up);
  bool joins(std::span<const OpInstance> ops, std::uint32_t first, std::uint32_t op, bool looks_up);
  bool is_worth_it() const;
  void find_takers();
  bool find_stores();
  bool find_stores_for(std::uint32_t operand);
  bool stores_apart() const;
  bool is_ordered(std::uint32_t behind);
  bool reads_plainly(std::uint32_t op, const plan::TensorDesc& place) const;
  bool waits_for(std::uint32_t op, std::uint32_t producer) const;
  bool waits_for_its_own(std::uint32_t op, std::uint32_t producer) const;
  std::uint32_t places_shared(std::uint32_t op, std::uint32_t before) const;
  bool ends_behind(std::uint32_t op, std::uint32_t other);
  void mark_done(std::uint32_t op);
  void find_waits();
  void find_signals();
  void find_picks();
  void cut_hidden();
  bool must_be_hidden(std::uint32_t op) const;
  bool is_hidden(std::uint32_t op) const;
  bool leaves_word(std::uint32_t pick) const;
  bool may_be_shared(std::uint32_t op) const;
  bool is_beside(std::uint32_t op, std::uint32_t other) const;
  std::uint32_t unit_of(std::uint32_t op) const;
  std::uint32_t units_of(std::uint32_t op) const;
  void find_crew(std::span<const OpInstance> ops);
  bool is_ranked(std::uint32_t pick) const;
  std::uint64_t count_steps() const;
  void deal_out();
  struct Tile {
    std::uint32_t list, op, tile;
  };
  std::span<const Tile> added(std::uint32_t op) const;
  bool is_crowded(std::uint32_t op);
  void take_tiles(std::uint32_t op);
  std::uint32_t deal_row(std::uint32_t op);
  void share_out(std::uint32_t first, std::uint32_t end);
  bool is_routed(std::uint32_t op) const;
  void deal_to_first(std::uint32_t op);
  bool is_share(std::uint32_t op) const { return made_[op].experts == wire::RelayExperts::share; }
  void deal_experts(std::uint32_t op);
  std::uint32_t list_of_columns(std::uint32_t op, std::uint32_t tile) const;
  void add_share(std::uint32_t list, std::uint32_t op, std::uint32_t first, std::uint32_t count, std::uint32_t& number);
  std::uint32_t longest(std::span<const Step> steps);
  std::uint32_t workers() const { return crew_.workers != 0 ? crew_.workers : source_.tables->workers; }
  std::uint32_t runs(std::uint32_t op) const { return has_runs(made_[op]) ? 2 : 1; }
  std::uint32_t heads_of(std::uint32_t op) const { return made_[op].heads; }
  bool by_experts(std::uint32_t op) const { return made_[op].experts != wire::RelayExperts::none; }
  std::uint32_t most_units(std::uint32_t op) const { return by_experts(op) ? wire::kMostRelayExpertColumns / wire::kRelayExpertColumns : (made_[op].end == wire::RelayEnd::plain ? kMostPlainColumns : wire::relay_columns(rows()) / runs(op)) / unit_of(op); }  // of a step
  std::uint32_t tiles_of_columns(std::uint32_t op) const { return source_.ops[op].tile_count / static_cast<std::uint32_t>(is_product(op) ? source_.ops[op].grid[2] : 1); }  // a step is of all rows
  std::uint32_t steps_of_tile(std::uint32_t op) const { return is_product(op) ? (made_[op].tile + most_units(op) * unit_of(op) - 1) / (most_units(op) * unit_of(op)) : 1; }
  std::uint32_t rows() const { return source_.tables->relay_rows; }
  bool has_row_of(std::uint32_t op, std::uint32_t other) const { return is_product(op) && is_product(other) && made_[op].row == made_[other].row && made_[op].norm == made_[other].norm && made_[op].k == made_[other].k; }
  void place_pick(std::uint32_t op);
  void place_route(std::uint32_t op);
  bool signals(std::uint32_t op) const;
  bool is_product(std::uint32_t op) const { return made_[op].kind == wire::RelayKind::product; }
  std::uint32_t row_of_pick(std::uint32_t op) const { return source_.tables->last_writers[plan().ops[op].operand_first]; }
  void put_parts_first(std::uint32_t list);

  const plan::TensorDesc& tensor_of(std::uint32_t operand) const { return plan().tensors[plan().operands[operand].tensor]; }
  const plan::PlanView& plan() const { return source_.tables->plan; }

  RelaySource source_{};
  std::uint32_t first_ = 0, end_ = 0;
  RelayCrew crew_;
  std::vector<RelayOp> made_;          // per op
  std::vector<std::uint8_t> gives_, stores_, done_;  // per op
  std::vector<std::uint32_t> ranked_;  // per op: the argmax of its row; kNone
  std::vector<std::uint32_t> open_;    // ops, while mark_done() runs
  std::vector<std::uint32_t> waits_;   // signals
  std::vector<std::uint8_t> sends_;    // per signal
  std::vector<Tile> added_;
  std::vector<Step> steps_, sorted_;  // row by row, and list by list
  std::vector<Step> shares_;          // of a row
  std::vector<Arrivals> arrivals_;    // list by list
  std::vector<Pick> picks_;
  std::vector<Turn> turns_;
  std::uint32_t lists_ = 0;                // the first list of the relay's stretch
  std::vector<std::uint32_t> list_first_;  // per list, and the end
  std::vector<std::uint32_t> block_;       // per list: which of the ops
  std::vector<std::uint32_t> loads_;       // per worker, while longest() counts
  std::uint32_t steps_at_ = 0, blocks_at_ = 0;
};

}  // namespace ccks::scheduler
