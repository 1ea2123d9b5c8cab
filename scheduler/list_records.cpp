#include "scheduler/list_records.hpp"

#include <algorithm>
#include <utility>

#include "scheduler/tuning.hpp"

namespace ccks::scheduler {
namespace {

std::uint8_t flags_of(const wire::OpParams& op, const wire::OperandParams* operands) {
  std::uint8_t flags = 0;
  if (op.guard_count > 0) flags |= wire::kRecordGuarded;
  if ((op.flags & wire::kOpSilent) != 0) flags |= wire::kRecordSilent;
  for (std::uint32_t i = 0; i < std::uint32_t{op.input_count} + op.output_count; ++i) {
    const wire::OperandParams& operand = operands[op.operand_first + i];
    if ((operand.flags & wire::kOperandStreamed) != 0) flags |= wire::kRecordStreamed;
    if (operand.space == static_cast<std::uint8_t>(wire::Space::state)) flags |= wire::kRecordState;
  }
  return flags;
}

// The head of a block: the op, its operands and its guards (wire::BlockRef).
std::uint16_t head_bytes(const wire::OpParams& op) {
  const std::size_t bytes = sizeof(wire::OpParams) +
                            (std::size_t{op.input_count} + op.output_count) * sizeof(wire::OperandParams) +
                            op.guard_count * sizeof(wire::GuardParams);
  return static_cast<std::uint16_t>(std::min<std::size_t>(bytes, 0xfff0));
}

}  // namespace

void ListRecords::reserve(const PlanTables& tables) {
  made_.assign(tables.record_capacity, Made{});
  adds_.assign(tables.event_count, Adds{});
  waited_.assign((std::size_t{tables.event_count} * tables.workers + 63) / 64, 0);
  watched_.assign(tables.plan.signals.size(), 0);
  strands_.assign(tables.list_count(), {});
  overtaking_.reserve(tables);
}

void ListRecords::begin(const PlanTables& tables, const RecordSource& source, Relays* relays) {
  tables_ = &tables;
  source_ = source;
  relays_ = relays != nullptr && relays->any() ? relays : nullptr;
  in_relay_ = false;
  made_count_ = 0;
  for (std::uint32_t signal = 0; signal < watched_.size(); ++signal) watched_[signal] = relays_ != nullptr && relays_->sends(signal) ? 1 : 0;
  overtaking_.begin(tables, source_);
}

void ListRecords::begin_stretch() {
  std::fill(adds_.begin(), adds_.end(), Adds{});
  std::fill(waited_.begin(), waited_.end(), 0);
  overtaking_.begin_stretch();
}

// Its own signals too: the scheduler may send them where tiles do not exist.
void ListRecords::watch(std::uint32_t op) {
  const plan::OpDesc& desc = tables_->plan.ops[op];
  for (std::uint32_t i = 0; i < desc.signal_count; ++i) watched_[desc.signal_first + i] = 1;
  for (std::uint32_t i = 0; i < desc.wait_count; ++i) watched_[tables_->plan.waits[desc.wait_first + i].signal] = 1;
}

bool ListRecords::add(std::uint32_t list, const DealtTiles& tiles, std::uint32_t tile_ns) {
  const wire::OpParams& op = source_.ops[tiles.op];
  if (relays_ != nullptr && relays_->has(tiles.op)) return add_steps(list, tiles), true;
  if (!end_relay()) return false;
  Made made{};
  made.list = list;
  made.tile_ns = tile_ns;
  made.record.op = static_cast<std::uint16_t>(tiles.op);
  made.record.flags = flags_of(op, source_.operands);
  made.tagged = is_tagged(op);
  overtaking_.list(tiles.op);
  made.record.block_offset = tables_->blocks[tiles.op].offset;
  made.record.block_bytes = head_bytes(op);
  for (std::uint32_t i = 0; i < tiles.count; ++i) {
    made.record.tile = tiles.first + i;
    if (!add_tile(made, op, tiles.worker)) return false;
  }
  return true;
}

bool ListRecords::add_tile(Made made, const wire::OpParams& op, std::uint32_t worker) {
  const wire::TileCoord coord = wire::tile_coord(op.grid, made.record.tile);
  const bool added = add_waits(made, op, worker, coord) && add_signals(made, op, coord);
  count_adds(op, made.list, coord);
  return added;
}

// What decides whether the tile runs comes first, and is waited for by every tile. The guards in front of it need no wait then.
bool ListRecords::add_decider(Made& made, const wire::OpParams& op, const wire::TileCoord& coord) {
  for (std::uint32_t w = op.wait_first; w < op.wait_first + op.wait_count; ++w) {
    const wire::WaitParams& wait = source_.waits[w];
    if (wait.decides == 0) continue;
    made.record.guards = wire::GuardTime::behind_first;
    watched_[tables_->plan.waits[w].signal] = 1;
    return add_wait(made, wire::rect_event(wait, wire::wait_rect(wait, coord), 0), wait.total);
  }
  return true;
}

bool ListRecords::is_guards_wait(std::uint32_t op, const wire::WaitParams& wait) const {
  const plan::PlanView& plan = tables_->plan;
  const auto guards = plan.guards.subspan(plan.ops[op].guard_first, plan.ops[op].guard_count);
  return std::any_of(guards.begin(), guards.end(), [&](const plan::GuardDesc& guard) { return plan.reports[guard.report].op == wait.producer; });
}

// A worker's bodies run one after the other, so it need not wait for an event whose whole count it has added itself; except
// where guards are looked at before the body in front has ended, and what they look at is not waited for apart. A tile that may be passed over without
// its waits has not waited for those behind it.
bool ListRecords::add_waits(Made& made, const wire::OpParams& op, std::uint32_t worker, const wire::TileCoord& coord) {
  if (op.input_count > 0 && has_tags_alone(op, 0)) return true;
  if (!add_decider(made, op, coord)) return false;
  const bool nested = made.record.guards != wire::GuardTime::behind_waits;
  // Behind a relay nobody knows by events of others what its own tiles have ended.
  made.overtakes = overtaking_.may_overtake(made.record.op, worker) && (relays_ == nullptr || !relays_->is_behind(made.record.op));
  for (std::uint32_t w = op.wait_first; w < op.wait_first + op.wait_count; ++w) {
    const wire::WaitParams& wait = source_.waits[w];
    if (nested && is_guards_wait(made.record.op, wait)) continue;
    const wire::EventRect rect = wire::wait_rect(wait, coord);
    const std::uint32_t events = wire::rect_count(rect);
    for (std::uint32_t i = 0; i < events; ++i) {
      const std::uint32_t event = wire::rect_event(wait, rect, i);
      const bool own = adds_[event].list == made.list && adds_[event].count == wait.total;
      if ((own && (op.guard_count == 0 || nested)) || waited_before(event, worker, !nested)) continue;
      if (w < tables_->plan.waits.size()) watched_[tables_->plan.waits[w].signal] = 1;  // the turn is no op's signal
      if (!add_wait(made, event, wait.total)) return false;
      if (w < tables_->plan.waits.size() && op.guard_count == 0 && (op.flags & wire::kOpSilent) == 0) overtaking_.note(worker, wait);
    }
  }
  return true;
}

bool ListRecords::has_tags_alone(const wire::OpParams& op, std::uint32_t operand) const {
  return (source_.operands[op.operand_first + operand].flags & wire::kOperandTagsAlone) != 0;
}
bool ListRecords::is_tagged(const wire::OpParams& op) const {
  return op.input_count > 0 && op.output_count > 0 && (has_tags_alone(op, 0) || has_tags_alone(op, op.input_count));
}

bool ListRecords::waited_before(std::uint32_t event, std::uint32_t worker, bool from_now_on) {
  const std::size_t bit = std::size_t{event} * tables_->workers + worker;
  const std::uint64_t mask = std::uint64_t{1} << (bit % 64);
  const bool before = (waited_[bit / 64] & mask) != 0;
  if (from_now_on) waited_[bit / 64] |= mask;
  return before;
}

bool ListRecords::add_wait(Made& made, std::uint32_t event, std::uint32_t total) {
  if (made.record.wait_count == wire::kRecordWaits) {
    if (!keep(made)) return false;
    made.record.wait_count = 0;
    made.turn_wait = Made::kNoTurn;
    if (made.record.guards == wire::GuardTime::behind_first) made.record.guards = wire::GuardTime::seen;
  }
  const std::uint32_t at = made.record.wait_count++;
  made.record.wait_event[at] = event;
  made.record.wait_from[at] = source_.bases[event] + total;
  made.record.wait_total[at] = total;
  return true;
}

// Which of the signals are sent is known once all waits are.
bool ListRecords::add_signals(Made& made, const wire::OpParams& op, const wire::TileCoord& coord) {
  made.record.flags |= wire::kRecordBody;
  for (std::uint32_t first = 0; first == 0 || first < op.signal_count; first += wire::kRecordSignals) {
    made.signal_first = op.signal_first + first;
    made.record.signal_count =
        static_cast<std::uint8_t>(std::min<std::uint32_t>(op.signal_count - first, wire::kRecordSignals));
    for (std::uint32_t i = 0; i < made.record.signal_count; ++i) {
      made.record.signal_event[i] = wire::signal_event(source_.signals[made.signal_first + i], coord);
    }
    if (!keep(made)) return false;
    made.record.flags &= static_cast<std::uint8_t>(~wire::kRecordBody);
    made.record.wait_count = 0;
  }
  return true;
}

// ---- relays -----------------------------------------------------------------------------------------------------------------

void ListRecords::add_steps(std::uint32_t list, const DealtTiles& tiles) {
  in_relay_ = true;
  for (std::uint32_t tile = tiles.first; tile < tiles.first + tiles.count; ++tile) relays_->add(list, tiles.op, tile);
}

// The ops of a relay follow one another in the plan, so in each list its tiles do.
bool ListRecords::end_relay() {
  if (!std::exchange(in_relay_, false)) return true;
  relays_->sort();
  for (std::uint32_t list = 0; list < tables_->list_count(); ++list) {
    if (!relays_->steps_of(list).empty() && !add_relay(list)) return false;
  }
  for (const Relays::Pick& pick : relays_->picks()) note_pick(pick);
  return true;
}

bool ListRecords::add_relay(std::uint32_t list) {
  Made made{};
  made.list = list;
  made.relay = true;
  made.record.op = static_cast<std::uint16_t>(relays_->steps_of(list).front().op);
  made.record.block_offset = tables_->blocks[made.record.op].offset;
  made.record.block_bytes = head_bytes(source_.ops[made.record.op]);
  return add_relay_waits(made, list % tables_->workers) && add_relay_signals(made);
}

// Also for the run's turn: who has waited for it in this list may be nobody.
bool ListRecords::add_relay_waits(Made& made, std::uint32_t worker) {
  const auto add = [&](std::uint32_t event, std::uint32_t total) {
    const bool own = adds_[event].list == made.list && adds_[event].count == total;
    return own || waited_before(event, worker, true) || add_wait(made, event, total);
  };
  if (tables_->chained()) {
    const std::uint32_t before = made.record.wait_count;
    if (!add(tables_->turn_event, tables_->workers)) return false;
    if (made.record.wait_count != before) made.turn_wait = static_cast<std::uint8_t>(before);
  }
  for (const std::uint32_t index : relays_->waits()) {
    const wire::SignalParams& signal = source_.signals[index];
    watched_[index] = 1;
    for (std::uint32_t i = 0; i < signal.event_count; ++i) {
      if (!add(signal.event_first + i, signal.total)) return false;
    }
  }
  return true;
}

bool ListRecords::add_relay_signals(Made& made) {
  made.record.flags = wire::kRecordBody;
  for (const Relays::Arrivals& arrivals : relays_->arrivals_of(made.list)) {
    const wire::OpParams& op = source_.ops[arrivals.op];
    const wire::TileCoord coord = wire::tile_coord(op.grid, arrivals.tile);
    for (std::uint32_t i = 0; i < arrivals.count; ++i) {
      count_adds(op, made.list, coord);
      if (!add_relay_signals(made, op, coord)) return false;
    }
  }
  return keep(made);
}
// Whoever has picked knows that all of it is done, whoever adds to its events.
void ListRecords::note_pick(const Relays::Pick& pick) {
  const wire::OpParams& op = source_.ops[pick.op];
  for (std::uint32_t s = op.signal_first; s < op.signal_first + op.signal_count; ++s) adds_[source_.signals[s].event_first] = {pick.list, source_.signals[s].total};
}
bool ListRecords::add_relay_signals(Made& made, const wire::OpParams& op, const wire::TileCoord& coord) {
  for (std::uint32_t s = op.signal_first; s < op.signal_first + op.signal_count; ++s) {
    if (!relays_->sends(s)) continue;
    if (made.record.signal_count == wire::kRecordSignals) {
      if (!keep(made)) return false;
      made.turn_wait = Made::kNoTurn;
      made.record.flags = 0;
      made.record.wait_count = made.record.signal_count = 0;
    }
    made.record.signal_event[made.record.signal_count++] = wire::signal_event(source_.signals[s], coord);
  }
  return true;
}

// ---- what becomes of them ---------------------------------------------------------------------------------------------------

void ListRecords::count_adds(const wire::OpParams& op, std::uint32_t list, const wire::TileCoord& coord) {
  for (std::uint32_t s = op.signal_first; s < op.signal_first + op.signal_count; ++s) {
    Adds& adds = adds_[wire::signal_event(source_.signals[s], coord)];
    adds.list = adds.list == kNobody || adds.list == list ? list : kSeveral;
    ++adds.count;
  }
}

bool ListRecords::keep(const Made& made) {
  if (made_count_ == made_.size()) return false;
  made_[made_count_++] = made;
  return true;
}

void ListRecords::count(std::span<std::uint32_t> counts) const {
  for (std::size_t i = 0; i < made_count_; ++i) ++counts[made_[i].list];
}

void ListRecords::place(wire::TileRecord* to, std::span<std::uint32_t> next) {
  std::fill(strands_.begin(), strands_.end(), Strand{});
  for (std::size_t i = 0; i < made_count_; ++i) {
    const std::uint32_t list = made_[i].list;
    wire::TileRecord& record = to[next[list]++];
    record = made_[i].record;
    if (made_[i].turn_wait != Made::kNoTurn) relays_->note_turn({static_cast<std::uint32_t>(&record - to), made_[i].turn_wait});
    if (made_[i].relay) {
      place_relay(list, record);
      strands_[list] = {};
      continue;
    }
    send_signals(made_[i], record);
    if (begins_early(made_[i], record)) record.flags |= wire::kRecordEarly;
    const bool alone = (record.flags & wire::kRecordBody) == 0 || (record.flags & wire::kRecordGuarded) != 0;
    Strand& strand = strands_[list];
    const bool joined = strand.goes_on && !alone && record.wait_count == 0 && strand.ns + made_[i].tile_ns <= kStrandNs && strand.tagged == made_[i].tagged;
    if (joined) record.flags |= wire::kRecordJoined;
    if (made_[i].tagged && !alone) record.flags |= wire::kRecordEarly;
    strand = {!alone && may_precede(record), made_[i].tagged, (joined ? strand.ns : 0) + made_[i].tile_ns};
  }
}

// Of all of them, since a worker takes those of an op that follow one another to have one block.
void ListRecords::place_relay(std::uint32_t list, wire::TileRecord& record) const {
  const wire::BlockRef block = relays_->block_of(list);
  record.block_offset = block.offset;
  record.block_bytes = static_cast<std::uint16_t>(block.bytes);
}

// Weights that come through a ring are on their way without the body, which has nothing to do but to look for tags.
bool ListRecords::begins_early(const Made& made, const wire::TileRecord& record) const {
  const std::uint32_t flags = source_.ops[record.op].flags & (wire::kOpEarly | wire::kOpStreams);
  const bool body = (record.flags & (wire::kRecordBody | wire::kRecordGuarded)) == wire::kRecordBody;
  return body && record.wait_count > 0 && (flags == wire::kOpEarly || (flags != 0 && made.overtakes));
}

// What it leaves for others need not wait for the end of the record joined to it.
bool ListRecords::may_precede(const wire::TileRecord& record) const {
  return record.signal_count == 0 && source_.ops[record.op].report < 0;
}

void ListRecords::send_signals(const Made& made, wire::TileRecord& record) const {
  record.signal_count = 0;
  for (std::uint32_t i = 0; i < made.record.signal_count; ++i) {
    if (watched(made.signal_first + i)) record.signal_event[record.signal_count++] = made.record.signal_event[i];
  }
}

}  // namespace ccks::scheduler
