// Progress: how far one run has been sent. The part that every policy shares: an op may be sent once all its direct
// producers have been sent, and its tiles go out in order. That makes the order of sending a linear extension of the
// waits, so that in-order inboxes cannot deadlock, whoever picks the workers.
#pragma once

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

  /// What to send next of open op `op`; at most its chunk. Pure: take() commits it.
  Piece peek(std::uint32_t op) const;
  /// Commits a piece of `op`; closes the op and opens its successors after the last one.
  void take(std::uint32_t op, const Piece& piece);

  /// From now on tiles go out as skipped: the run was cancelled or is late.
  void skip_rest() { skip_ = true; }
  bool skipping() const { return skip_; }

  /// Report `report` is there, with the tile count it implies for the ops it holds.
  void report_arrived(std::uint32_t report);
  /// The report will not come (its op was skipped): ops held by it go out whole, the device decides.
  void report_absent(std::uint32_t report);
  bool report_seen(std::uint32_t report) const { return seen_[report] == kArrived; }
  bool report_settled(std::uint32_t report) const { return seen_[report] != kUnknown; }

  /// Declares that no tile of `op` will run: all are credited.
  void drop_tiles(std::uint32_t op) { existing_[op] = next_tile_[op]; }
  std::uint64_t skipped_tiles() const { return skipped_tiles_; }

 private:
  enum Seen : std::uint8_t { kUnknown, kArrived, kAbsent };
  void release(std::uint32_t op);
  void open(std::uint32_t op);
  void open_ready();
  void close(std::uint32_t op);
  void limit_tiles(std::uint32_t op, std::uint32_t report);
  Piece credit_piece(std::uint32_t op) const;
  std::uint32_t signals_to_credit(std::uint32_t op) const;
  Piece signal_at(std::uint32_t op, std::uint32_t index) const;

  const PlanTables* tables_ = nullptr;
  const Instance* instance_ = nullptr;
  std::vector<std::uint32_t> waiting_;    // per op: producers not sent, plus one while held
  std::vector<std::uint32_t> next_tile_;  // per op
  std::vector<std::uint32_t> existing_;   // per op: tiles that exist; those behind are credited
  std::vector<std::uint32_t> credited_;   // per op: signals sent for missing tiles
  std::vector<std::uint64_t> open_;       // bitmap of ops
  std::vector<std::uint8_t> seen_;        // per report
  mutable std::size_t first_word_ = 0;    // no op is open in the words of open_ before this
  std::uint32_t ops_left_ = 0;
  std::uint64_t skipped_tiles_ = 0;
  bool skip_ = false;
};

}  // namespace ccks::scheduler
