// RelayOp: what the steps of one op share where it is part of a relay, found out at the dims.
#pragma once

#include <cstdint>

#include "ccks/wire/relay.hpp"
#include "scheduler/plan_tables.hpp"

namespace ccks::scheduler {

/// A frame that is being built, as far as relays look at it. The tables must outlive it.
struct RelaySource {
  const PlanTables* tables;
  const wire::OpParams* ops;
  const wire::OperandParams* operands;
  const wire::SignalParams* signals;
  std::uint64_t arena, weights, frame;  // addresses
};

/// Fields as in wire::RelayStep, of the op's first columns or tile, and how far they are from others.
struct RelayOp {
  wire::RelayKind kind = wire::RelayKind::product;
  wire::RelayEnd end = wire::RelayEnd::plain;
  wire::RelayAct act = wire::RelayAct::none;
  std::uint8_t flags = 0;
  std::uint64_t row = 0, words = 0, store = 0, columns = 0, norm = 0, beside = 0;
  // look_up: row: the table's first. pick: words: of the index. route: k: chosen experts, width: all
  std::uint64_t other = 0;          // product: bytes from a column of the first run to that of the second. attention: RelayStep::beyond
  std::uint32_t column_bytes = 0, k = 0, second = 0, sines = 0;
  std::uint32_t width = 0, tile = 0;  // product: columns of a run in all, and in a tile. attention: dims of a head, queries of a kv head
  std::uint32_t head_elements = 0;  // from one head to the next, of the output
  std::uint64_t head_bytes = 0;     // of b
  std::uint32_t element_bytes = 2;  // of what is stored
  std::uint32_t beside_bytes = 0;   // of an element of it, as words or as it is
  std::uint32_t row_pitch = 0, words_pitch = 0, store_pitch = 0, beside_pitch = 0;  // where there are several rows, and of attention, where there is one, too: from row to row
  float scale = 0;
  std::uint32_t heads = 1;            // product: of how many runs of `width` columns its row is made
  wire::RelayExperts experts = wire::RelayExperts::none;
  std::uint32_t expert_bytes = 0, active = 0;  // RelayExperts::share: active: as many may be
  std::uint32_t routed_by = plan::kNone;  // the op whose experts it takes. Of a route: the product whose results it looks at
  bool operator==(const RelayOp&) const = default;
};

/// Whether it is part of a relay by what other steps do.
inline bool has_no_steps(const RelayOp& op) { return op.kind == wire::RelayKind::look_up || op.kind == wire::RelayKind::norm || op.kind == wire::RelayKind::addend; }
/// Whether it has two runs of columns.
inline bool has_runs(const RelayOp& op) { return op.end == wire::RelayEnd::twin || op.end == wire::RelayEnd::turned; }

/// Of a step that has no runs.
inline constexpr std::uint32_t kMostPlainColumns = 0xffff / wire::kRelayColumns * wire::kRelayColumns;

/// describe says what op `index` would be in a relay that begins with op `first`. False: it cannot be part of it.
bool describe(const RelaySource& source, std::uint32_t first, std::uint32_t index, RelayOp& to);

/// What a step is of: of a product so many columns of each run, from `first` of head `head` on, or of a list's share of experts the head-th; of a route the number-th list of `count`, which share `first` columns of each expert; of a pick so many pairs of words; attention: a tile. number: of the tile, or among the op's steps.
struct RelayPart {
  std::uint32_t number, head = 0, first = 0, count = 0;
};
RelayPart part_of_tile(const RelayOp& op, const wire::OpParams& params, std::uint32_t tile);

/// gives, stores: whether somebody takes its words, and reads what it stores.
wire::RelayStep step_of(const RelaySource& source, std::uint32_t index, const RelayOp& op, const RelayPart& part, bool gives, bool stores);

}  // namespace ccks::scheduler
