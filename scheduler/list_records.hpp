// ListRecords: lists as workers with staged ops take them: wire::TileRecord, one a tile, with its events found out here and
// once, instead of by every worker in every run.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "ccks/wire/event.hpp"
#include "scheduler/list_dealer.hpp"
#include "scheduler/overtaking.hpp"
#include "scheduler/plan_tables.hpp"
#include "scheduler/relays.hpp"

namespace ccks::scheduler {

/// The tables of a frame that is being built.
struct RecordSource {
  const wire::OpParams* ops;
  const wire::OperandParams* operands;
  const wire::WaitParams* waits;
  const wire::SignalParams* signals;
  const std::uint32_t* bases;  // per event
};

/// Belongs to one client at a time; allocates in reserve() only. Use: begin(), for each listed stretch begin_stretch(),
/// add() in the order of the lists and end_stretch(), for each op that is sent as tiles watch(), then count() and place().
class ListRecords {
 public:
  void reserve(const PlanTables& tables);
  /// `relays`: what of the lists are steps; it is told their tiles, and must outlive the records. Null: nothing is.
  void begin(const PlanTables& tables, const RecordSource& source, Relays* relays = nullptr);
  void begin_stretch();
  /// False: as add().
  bool end_stretch() { return end_relay(); }
  /// Records for `tiles`, which go to list `list` and take about `tile_ns` each. False: there are more than were reserved, and the lists must
  /// do without.
  bool add(std::uint32_t list, const DealtTiles& tiles, std::uint32_t tile_ns);
  /// Op `op` goes out as tiles: what it waits for is signalled.
  void watch(std::uint32_t op);

  /// Adds the records of each list to `counts`.
  void count(std::span<std::uint32_t> counts) const;
  /// Writes all records; `next` says per list where its next one goes.
  void place(wire::TileRecord* to, std::span<std::uint32_t> next);
  /// Whether somebody waits for an event of this signal, so that tiles add to it.
  bool watched(std::uint32_t signal) const { return watched_[signal] != 0; }

 private:
  struct Made {
    wire::TileRecord record;
    std::uint32_t list;
    std::uint32_t signal_first;  // of the op's signals, those that this record sends
    std::uint32_t tile_ns;
    bool overtakes;  // it may take its row by tags
    bool tagged;  // an end of an edge of which tags say all
    bool relay;   // of a relay: all its signals are sent
    static constexpr std::uint8_t kNoTurn = 0xff;
    std::uint8_t turn_wait = kNoTurn;  // of a relay: which of the record's waits is for the run's turn
  };
  /// The end of a list as far as it is written.
  struct Strand {
    bool goes_on = false;  // another record may be joined to the last
    bool tagged = false;   // and must be of a tagged edge, or must not
    std::uint64_t ns = 0;  // what those that are joined take
  };
  /// Who adds to an event within a stretch.
  struct Adds {
    std::uint32_t list = kNobody;
    std::uint32_t count = 0;
  };
  static constexpr std::uint32_t kNobody = 0xffffffffu, kSeveral = 0xfffffffeu;

  /// `made`: what all tiles of the op share, and the tile.
  bool add_tile(Made made, const wire::OpParams& op, std::uint32_t worker);
  bool add_waits(Made& made, const wire::OpParams& op, std::uint32_t worker, const wire::TileCoord& coord);
  bool add_decider(Made& made, const wire::OpParams& op, const wire::TileCoord& coord);
  /// Whether it is for a report that the op's guards look at.
  bool is_guards_wait(std::uint32_t op, const wire::WaitParams& wait) const;
  bool has_tags_alone(const wire::OpParams& op, std::uint32_t operand) const;
  bool is_tagged(const wire::OpParams& op) const;
  bool add_wait(Made& made, std::uint32_t event, std::uint32_t total);
  bool add_signals(Made& made, const wire::OpParams& op, const wire::TileCoord& coord);
  void add_steps(std::uint32_t list, const DealtTiles& tiles);
  bool end_relay();
  bool add_relay(std::uint32_t list);
  bool add_relay_waits(Made& made, std::uint32_t worker);
  bool add_relay_signals(Made& made);
  void note_pick(const Relays::Pick& pick);
  bool add_relay_signals(Made& made, const wire::OpParams& op, const wire::TileCoord& coord);
  void count_adds(const wire::OpParams& op, std::uint32_t list, const wire::TileCoord& coord);
  bool waited_before(std::uint32_t event, std::uint32_t worker, bool from_now_on);
  bool keep(const Made& made);
  void place_relay(std::uint32_t list, wire::TileRecord& record) const;
  void send_signals(const Made& made, wire::TileRecord& record) const;
  bool begins_early(const Made& made, const wire::TileRecord& record) const;
  bool may_precede(const wire::TileRecord& record) const;

  const PlanTables* tables_ = nullptr;
  RecordSource source_{};
  std::vector<Made> made_;
  std::size_t made_count_ = 0;
  std::vector<Adds> adds_;              // per event
  std::vector<std::uint64_t> waited_;   // bit per event and worker
  std::vector<std::uint8_t> watched_;   // per signal
  std::vector<Strand> strands_;         // per list
  Overtaking overtaking_;
  Relays* relays_ = nullptr;
  bool in_relay_ = false;  // tiles of one have been added, and no record for them
};

}  // namespace ccks::scheduler
