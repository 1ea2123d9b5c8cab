// Progress: how far one run has been sent. The part that every policy shares: an op may be sent once all its direct
// producers have been sent, and its tiles go out in order; a stretch that goes out as lists may be sent once all producers
// outside it have been, and then in one go. That makes the order of sending a linear extension of the waits, so that
// in-order inboxes cannot deadlock, whoever picks the workers.
#pragma once

#include <algorithm>
#include <bit>
#include <cstdint>
#include <span>
#include <vector>

#include "scheduler/instance.hpp"
#include "scheduler/plan_tables.hpp"

namespace ccks::scheduler {

/// Next piece of an op to send.
struct Piece {
  enum class Kind : std::uint8_t { none, tiles, skip, signal } kind = Kind::none;
  std::uint32_t first = 0;  // tile; signal: event
  std::uint32_t count = 0;  // tiles; signal: how much to add
};

/// Owned by the scheduler thread; all memory is reserved by reserve().
class Progress {
 public:
  void reserve(const PlanTables& tables);
  /// Begins a run of `instance`.
  void start(const PlanTables& tables, const Instance& instance);

  /// Lowest op at or after `from` that may be sent and is not sent yet; kNone if there is none.
  std::uint32_t next_open(std::uint32_t from) const;
  bool is_open(std::uint32_t op) const { return open_[op / 64] >> (op % 64) & 1; }
  bool all_sent() const { return ops_left_ == 0; }
  std::uint32_t next_tile(std::uint32_t op) const { return next_tile_[op]; }
  std::uint32_t existing_tiles(std::uint32_t op) const { return existing_[op]; }
  /// How the tiles of `op` that exist are cut and laid out: by their own number, so that few of many are spread as well.
  const Cut& cut(std::uint32_t op) const {
    const OpInstance& info = instance_->ops()[op];
    return existing_[op] < info.tiles ? limited_[op] : info;
  }

  /// What to send next of open op `op`; at most its chunk. Pure: take() commits it.
  Piece peek(std::uint32_t op) const;
  /// Commits a piece of `op`; closes the op and opens its successors after the last one.
  void take(std::uint32_t op, const Piece& piece);

  /// Lowest stretch whose lists may be sent and are not sent yet; kNone.
  std::uint32_t next_stretch() const { return open_stretches_ == 0 ? plan::kNone : first_stretch(); }
  /// Commits all lists of open `stretch` and opens what comes after.
  void take_stretch(std::uint32_t stretch);
  /// Commits `tiles` tiles of open `op`, all of which exist.
  void take_tiles(std::uint32_t op, std::uint32_t tiles);

  /// From now on tiles go out as skipped: the run was cancelled or is late.
  void skip_rest() { skip_ = true; }
  bool skipping() const { return skip_; }

  /// Report `report` is there, with the tile count it implies for the ops it holds.
  void report_arrived(std::uint32_t report);
  /// The report will not come (its op was skipped): ops held by it go out whole, the device decides.
  void report_absent(std::uint32_t report);
  bool report_seen(std::uint32_t report) const { return seen_[report] == kArrived; }
  bool report_settled(std::uint32_t report) const { return seen_[report] != kUnknown; }

  // ---- drafts: tiles of a held op that are sent before its report, to be confirmed or dropped by a verdict (wire/task.hpp) ----

  /// An op that only its report still holds and of which nothing has been drafted; kNone.
  std::uint32_t next_draft();
  /// How many tiles of it to send: as many as its last report said, in whole rows of the grid.
  std::uint32_t draft_tiles(std::uint32_t op) const;
  /// The first `tiles` tiles of `op` have been sent as drafts. If these are all, it is closed: its successors wait for events.
  void take_draft(std::uint32_t op, std::uint32_t tiles);
  /// Nothing of what next_draft() named can be drafted in this run.
  void leave_draft() { candidates_.pop_back(); }
  /// The verdict on a draft that begins with `tile`: whether it runs. Once the report is settled.
  bool draft_runs(std::uint32_t op, std::uint32_t tile) const { return tile < existing_[op]; }

  /// Whether `op` is what may be sent next, whole, and the same as `model`, an op without a report.
  bool is_next_alike(std::uint32_t op, const OpInstance& model) const;

  /// Declares that no tile of `op` will run: all are credited.
  void drop_tiles(std::uint32_t op) { existing_[op] = next_tile_[op]; }
  std::uint64_t skipped_tiles() const { return skipped_tiles_; }

 private:
  enum Seen : std::uint8_t { kUnknown, kArrived, kAbsent };
  void release(std::uint32_t op);
  void open(std::uint32_t op);
  std::uint32_t first_stretch() const;
  void open_stretch(std::uint32_t stretch);
  void open_ready();
  void close(std::uint32_t op);
  void limit_tiles(std::uint32_t op, std::uint32_t report);
  void settle_held(std::uint32_t op);
  void take_credit(std::uint32_t op, const Piece& piece);
  Piece credit_piece(std::uint32_t op) const;
  std::uint32_t signals_to_credit(std::uint32_t op) const;
  Piece signal_at(std::uint32_t op, std::uint32_t index) const;

  const PlanTables* tables_ = nullptr;
  const Instance* instance_ = nullptr;
  std::vector<std::uint32_t> waiting_;    // per op: producers not sent, plus one while held
  std::vector<std::uint32_t> next_tile_;  // per op
  std::vector<std::uint32_t> existing_;   // per op: tiles that exist; those behind are credited
  std::vector<Cut> limited_;              // per op: of those tiles, where fewer exist than might
  std::vector<std::uint32_t> credited_;   // per op: signals sent for missing tiles
  std::vector<std::uint64_t> open_;       // bitmap of ops
  std::vector<std::uint32_t> guess_;      // per op: tiles that existed when a report last told
  std::vector<std::uint8_t> drafted_;     // per op: all of it has been sent as drafts
  std::vector<std::uint32_t> candidates_; // ops that wait for their report only, when they came to that
  std::vector<std::uint8_t> seen_;        // per report
  std::vector<std::uint32_t> stretch_waiting_;  // per stretch: edges from outside whose producers are not sent
  std::vector<std::uint8_t> stretch_open_;
  std::uint32_t open_stretches_ = 0;
  mutable std::size_t first_word_ = 0;    // no op is open in the words of open_ before this
  std::uint32_t ops_left_ = 0;
  std::uint32_t turn_ = 0;  // Cut::begin of the next op whose tiles are dealt in turn
  std::uint64_t skipped_tiles_ = 0;
  bool skip_ = false;
};

// ---- what every decision goes through: inline ----------------------------------------------------------------------

inline void Progress::release(std::uint32_t op) {
  const std::uint32_t stretch = instance_->ops()[op].stretch;
  if (stretch == plan::kNone) {
    const std::uint32_t left = --waiting_[op];
    if (left == 0) {
      open(op);
    } else if (left == 1 && tables_->op_held[op] != 0) {
      candidates_.push_back(op);
    }
  } else if (--stretch_waiting_[stretch] == 0) {
    open_stretch(stretch);
  }
}

inline void Progress::open(std::uint32_t op) {
  open_[op / 64] |= std::uint64_t{1} << (op % 64);
  first_word_ = std::min<std::size_t>(first_word_, op / 64);
  if (instance_->ops()[op].tiles == 0) close(op);
}

inline void Progress::close(std::uint32_t op) {
  open_[op / 64] &= ~(std::uint64_t{1} << (op % 64));
  --ops_left_;
  const std::uint32_t* first = tables_->successor_first.data() + op;
  for (std::uint32_t i = first[0]; i < first[1]; ++i) release(tables_->successors[i]);
}

inline std::uint32_t Progress::next_open(std::uint32_t from) const {
  std::size_t word = from / 64;
  std::uint64_t mask = ~std::uint64_t{0} << (from % 64);
  if (word < first_word_) {
    word = first_word_;
    mask = ~std::uint64_t{0};
  }
  if (word >= open_.size()) return plan::kNone;
  std::uint64_t bits = open_[word] & mask;
  while (bits == 0) {
    if (++word == open_.size()) return plan::kNone;
    bits = open_[word];
  }
  if (from == 0) first_word_ = word;
  return static_cast<std::uint32_t>(word * 64 + static_cast<std::size_t>(std::countr_zero(bits)));
}

inline bool Progress::is_next_alike(std::uint32_t op, const OpInstance& model) const {
  if (op / 64 >= open_.size() || !is_open(op) || open_stretches_ != 0) return false;
  const OpInstance& info = instance_->ops()[op];
  return info.tiles == model.tiles && info.tile_cost == model.tile_cost && !info.reports && existing_[op] == info.tiles &&
         next_tile_[op] == 0;
}

inline Piece Progress::peek(std::uint32_t op) const {
  const OpInstance& info = instance_->ops()[op];
  const std::uint32_t first = next_tile_[op];
  if (skip_ && credited_[op] == 0) {
    return {Piece::Kind::skip, first, std::min(info.tiles - first, wire::kMaxTilesPerTask)};
  }
  if (first < existing_[op]) return {Piece::Kind::tiles, first, std::min(existing_[op] - first, cut(op).chunk)};
  return credit_piece(op);
}

inline void Progress::take(std::uint32_t op, const Piece& piece) {
  if (piece.kind != Piece::Kind::tiles) return take_credit(op, piece);
  take_tiles(op, piece.count);
}

inline void Progress::take_tiles(std::uint32_t op, std::uint32_t tiles) {
  next_tile_[op] += tiles;
  if (next_tile_[op] == instance_->ops()[op].tiles) close(op);
}

}  // namespace ccks::scheduler
