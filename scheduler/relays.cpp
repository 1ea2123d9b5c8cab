#include "scheduler/relays.hpp"

#include <algorithm>
#include <cstring>
#include <tuple>
#include <utility>

#include "ccks/wire/op_shape.hpp"
#include "scheduler/instance.hpp"
#include "scheduler/tuning.hpp"

namespace ccks::scheduler {

void Relays::reserve(const PlanTables& tables) {
  clear();
  if (tables.relay_places.empty()) return;
  made_.assign(tables.op_count(), {});
  gives_.assign(tables.op_count(), 0);
  stores_.assign(tables.op_count(), 0);
  done_.assign(tables.op_count(), 0);
  open_.reserve(tables.op_count());
  waits_.reserve(tables.op_count());
  sends_.assign(tables.plan.signals.size(), 0);
  ranked_.assign(tables.op_count(), plan::kNone);
  added_.reserve(tables.record_capacity);
  steps_.reserve(tables.relay_steps);
  shares_.reserve(tables.relay_steps);
  arrivals_.reserve(tables.record_capacity);
  picks_.reserve(tables.op_count());
  turns_.reserve(tables.list_count());
  sorted_.reserve(tables.relay_steps);
  list_first_.assign(tables.list_count() + 1, 0);
  block_.assign(tables.list_count(), 0);
  loads_.assign(tables.workers, 0);
}

void Relays::decide(const RelaySource& source, std::span<const OpInstance> ops) {
  clear();
  if (source.tables->relay_places.empty()) return;
  if (decide(source, ops, true)) return;
  clear();
  if (!decide(source, ops, false)) clear();
}

// looks_up: its first row may be one of a table.
bool Relays::decide(const RelaySource& source, std::span<const OpInstance> ops, bool looks_up) {
  source_ = source;
  find_range(ops, looks_up);
  find_picks();
  cut_hidden();
  if (!is_worth_it()) return false;
  lists_ = ops[first_].stretch * source.tables->workers;
  find_takers();
  bool right = find_stores() && stores_apart();
  if (this->looks_up()) right = right && stores_[first_] == 0 && !signals(first_);
  for (std::uint32_t op = end_; right && op < source_.tables->op_count(); ++op) right = is_ordered(op);
  if (!right) return false;
  find_waits();
  find_crew(ops);
  return true;
}

// ---- which ops --------------------------------------------------------------------------------------------------------------

bool Relays::joins(std::span<const OpInstance> ops, std::uint32_t first, std::uint32_t op, bool looks_up) {
  if (!looks_up && static_cast<wire::OpCode>(source_.ops[op].kind) == wire::OpCode::gather) return false;
  if (ops[op].stretch == plan::kNone || ops[op].stretch != ops[first].stretch || !describe(source_, first, op, made_[op])) return false;
  // Who fills a worker's ring goes by the experts that were chosen last, and comes to a step before that is run.
  const auto routes = [](const RelayOp& made) { return made.kind == wire::RelayKind::route; };
  if (routes(made_[op]) && std::any_of(made_.begin() + first, made_.begin() + op, routes)) return false;
  // A route shares out columns of one product.
  const auto shares = [](const RelayOp& made) { return made.experts == wire::RelayExperts::share; };
  return !shares(made_[op]) || std::none_of(made_.begin() + first, made_.begin() + op, shares);
}

// The longest, and of those the first.
void Relays::find_range(std::span<const OpInstance> ops, bool looks_up) {
  std::uint32_t first = 0;
  for (std::uint32_t op = 0; op < ops.size(); ++op) {
    if (!joins(ops, first, op, looks_up)) {
      first = op;
      if (!joins(ops, first, op, looks_up)) {
        ++first;
        continue;
      }
    }
    const auto steps = [&](std::uint32_t from, std::uint32_t to) { return std::count_if(made_.begin() + from, made_.begin() + to, [](const RelayOp& made) { return !has_no_steps(made); }); };
    if (steps(first, op + 1) > steps(first_, end_)) first_ = first, end_ = op + 1;
  }
}

bool Relays::is_worth_it() const {
  std::ptrdiff_t products = 0;
  for (std::uint32_t op = first_; op < end_; ++op) products += !is_product(op) ? 0 : by_experts(op) ? kProductsOfExperts : 1;
  return products >= kLeastRelayProducts && count_steps() <= source_.tables->relay_steps;
}

// A row that is shared out takes as long whoever has it: memory is what it waits for.
void Relays::find_crew(std::span<const OpInstance> ops) {
  const std::uint32_t stretch = ops[first_].stretch, all = source_.tables->workers;
  std::uint32_t tiles = 0;  // of the widest of few tiles that others may have
  bool early = false;
  for (std::uint32_t op = 0; op < ops.size(); ++op) {
    if (has(op) || ops[op].stretch != stretch || ops[op].tiles == 0) continue;
    if (source_.tables->chained() && source_.tables->early[op] != 0)
      early = early || ops[op].tiles <= kMostTilesBeside;
    else if (ops[op].tiles <= kMostTilesBeside)
      tiles = std::max(tiles, ops[op].tiles);
  }
  const std::uint32_t most = std::min(kMostBeside, tiles + (early ? 1 : 0));
  const auto rounds = [](std::uint32_t of, std::uint32_t workers) { return (of + workers - 1) / workers; };
  std::uint32_t workers = all;
  const auto fits = [&](std::uint32_t fewer) {
    for (std::uint32_t op = first_; op < end_; ++op) {
      if (ranked_[op] == plan::kNone && !has_no_steps(made_[op]) && rounds(ops[op].tiles, fewer) != rounds(ops[op].tiles, all)) return false;
    }
    return true;
  };
  while (workers > 1 && all - workers < most && fits(workers - 1)) --workers;
  if (workers < all) crew_ = {first_, end_, stretch, workers, early};
}

// Whether the index of a pick is left as a word: every list that stores anything says in the step that ranks that it has.
bool Relays::leaves_word(std::uint32_t pick) const {
  return looks_up() && made_[row_of_pick(pick)].width / unit_of(row_of_pick(pick)) >= workers();
}

// Where a row cannot be shared out, its argmax is no step, and the relay ends.
void Relays::find_picks() {
  find_signals();
  for (std::uint32_t op = first_; op < end_; ++op) {
    ranked_[op] = plan::kNone;
    if (made_[op].kind != wire::RelayKind::pick) continue;
    if (!is_ranked(op)) {
      end_ = op;
      return find_signals();
    }
    ranked_[row_of_pick(op)] = op;
  }
}

// What nobody stores, or not as the op would: rows that are normed, which experts a row goes to, and what is made of it by each of them.
bool Relays::must_be_hidden(std::uint32_t op) const {
  const wire::RelayKind kind = made_[op].kind;
  return kind == wire::RelayKind::norm || kind == wire::RelayKind::route || kind == wire::RelayKind::addend || is_share(op);
}

// Where anybody outside reads or waits for that it is none of the relay, which ends in front of it.
void Relays::cut_hidden() {
  for (std::uint32_t op = first_; op < end_; ++op) {
    if (!must_be_hidden(op) || is_hidden(op)) continue;
    end_ = op;
    find_picks();
    op = first_ - 1;  // what stands in front of the end may be read behind it now
  }
}

bool Relays::is_hidden(std::uint32_t norm) const {
  const plan::OpDesc& hidden = plan().ops[norm];
  for (std::uint32_t o = first_output(hidden); o < first_output(hidden) + hidden.output_count; ++o) {
    const plan::TensorKind kind = tensor_of(o).kind;
    if (kind == plan::TensorKind::output || kind == plan::TensorKind::state) return false;
  }
  if (signals(norm)) return false;
  for (std::uint32_t op = end_; op < source_.tables->op_count(); ++op) {
    for (std::uint32_t o = plan().ops[op].operand_first; o < first_output(plan().ops[op]); ++o) {
      if (source_.tables->last_writers[o] == norm) return false;
    }
  }
  return true;
}

// Nobody waits for some of the row's tiles, nor for some of the argmax's.
bool Relays::is_ranked(std::uint32_t pick) const {
  const std::uint32_t row = row_of_pick(pick);
  const wire::OpParams& params = source_.ops[pick];
  const auto signals_apart = [&](std::uint32_t s) { return sends_[s] != 0 && source_.signals[s].event_count != 1; };
  for (std::uint32_t s = params.signal_first; s < params.signal_first + params.signal_count; ++s) {
    if (signals_apart(s)) return false;
  }
  return made_[row].end == wire::RelayEnd::plain && made_[row].width % wire::kRelayColumns == 0 && ranked_[row] == plan::kNone && !signals(row);
}

std::uint64_t Relays::count_steps() const {
  std::uint64_t steps = 0;
  for (std::uint32_t op = first_; op < end_; ++op) {
    const bool pick = made_[op].kind == wire::RelayKind::pick;
    std::uint64_t shares = 0;
    if (has_no_steps(made_[op])) continue;
    if (made_[op].kind == wire::RelayKind::route) {
      steps += 2 * std::uint64_t{source_.tables->workers};
      continue;
    }
    if (is_share(op)) {
      steps += most_share_steps(made_[op].active, source_.tables->workers);
      continue;
    }
    if (may_be_shared(op)) shares = most_shared_steps(*source_.tables, units_of(op), most_units(op)) + heads_of(op);
    steps += pick ? 1 : ranked_[op] != plan::kNone ? shares : std::max<std::uint64_t>(shares, std::uint64_t{tiles_of_columns(op)} * steps_of_tile(op));
  }
  return steps;
}

// ---- who reads what ---------------------------------------------------------------------------------------------------------

void Relays::find_takers() {
  std::fill(gives_.begin(), gives_.end(), std::uint8_t{0});
  for (std::uint32_t op = first_; op < end_; ++op) {
    if (made_[op].kind == wire::RelayKind::pick) continue;  // it takes ranks, not elements
    for (std::uint32_t o = plan().ops[op].operand_first; o < first_output(plan().ops[op]); ++o) {
      const std::uint32_t writer = source_.tables->last_writers[o];
      if (writer != plan::kNone && has(writer)) gives_[writer] = 1;
    }
  }
}

// False: somebody outside reads what no step stores.
bool Relays::find_stores() {
  std::fill(stores_.begin(), stores_.end(), std::uint8_t{0});
  for (std::uint32_t op = first_; op < end_; ++op) {
    const plan::TensorKind kind = tensor_of(first_output(plan().ops[op])).kind;
    stores_[op] = kind == plan::TensorKind::output || kind == plan::TensorKind::state ? 1 : 0;
  }
  for (std::uint32_t op = end_; op < source_.tables->op_count(); ++op) {
    for (std::uint32_t o = plan().ops[op].operand_first; o < first_output(plan().ops[op]); ++o) {
      if (!find_stores_for(o)) return false;
    }
  }
  return true;
}

// Whoever has written there last, and those before it as far as they wrote more.
bool Relays::find_stores_for(std::uint32_t operand) {
  const plan::TensorDesc& read = tensor_of(operand);
  std::uint32_t writer = source_.tables->last_writers[operand];
  for (writer = writer == plan::kNone ? 0 : writer + 1; writer-- > first_;) {
    const plan::OpDesc& op = plan().ops[writer];
    for (std::uint32_t o = first_output(op); o < first_output(op) + op.output_count; ++o) {
      const plan::TensorDesc& written = tensor_of(o);
      if (!share_bytes(written, read)) continue;
      if (has(writer) && o != first_output(op)) return false;
      if (has(writer)) stores_[writer] = 1;
      if (written.offset <= read.offset && written.offset + written.max_bytes >= read.offset + read.max_bytes) return true;
    }
  }
  return true;
}

bool Relays::reads_plainly(std::uint32_t op, const plan::TensorDesc& place) const {
  for (std::uint32_t o = plan().ops[op].operand_first; o < first_output(plan().ops[op]); ++o) {
    const std::uint32_t writer = source_.tables->last_writers[o];
    const bool words = writer != plan::kNone && has(writer);
    if (!words && plan().operands[o].space == wire::Space::arena && share_bytes(tensor_of(o), place)) return true;
  }
  return false;
}

// What steps store where it lies is nothing that other steps read there, or store.
bool Relays::stores_apart() const {
  for (std::uint32_t op = first_; op < end_; ++op) {
    const plan::TensorDesc& place = tensor_of(first_output(plan().ops[op]));
    if (stores_[op] == 0) continue;
    for (std::uint32_t other = first_; other < end_; ++other) {
      if (reads_plainly(other, place)) return false;
      if (other != op && stores_[other] != 0 && share_bytes(tensor_of(first_output(plan().ops[other])), place)) return false;
    }
  }
  return true;
}

// ---- order ------------------------------------------------------------------------------------------------------------------

bool Relays::waits_for(std::uint32_t op, std::uint32_t producer) const {
  const auto waits = plan().waits.subspan(plan().ops[op].wait_first, plan().ops[op].wait_count);
  return std::any_of(waits.begin(), waits.end(), [&](const plan::WaitDesc& wait) { return wait.producer == producer; });
}

// Whether each tile of `op` waits for all that it must of `producer`. A plan leaves out what other waits imply, but if the two share one place only, a wait that it has is for
// that.
bool Relays::waits_for_its_own(std::uint32_t op, std::uint32_t producer) const {
  const auto is_whole = [&](const plan::WaitDesc& wait) { return wait.producer == producer && wait.axis[0].grid_axis < 0 && wait.axis[1].grid_axis < 0; };
  const auto waits = plan().waits.subspan(plan().ops[op].wait_first, plan().ops[op].wait_count);
  if (std::any_of(waits.begin(), waits.end(), is_whole)) return true;
  return waits_for(op, producer) && places_shared(op, producer) == 1;
}

std::uint32_t Relays::places_shared(std::uint32_t op, std::uint32_t before) const {
  const plan::OpDesc &a = plan().ops[op], &b = plan().ops[before];
  std::uint32_t shared = 0;
  for (std::uint32_t x = a.operand_first; x < first_output(a) + a.output_count; ++x) {
    for (std::uint32_t y = b.operand_first; y < first_output(b) + b.output_count; ++y) {
      const bool written = x >= first_output(a) || y >= first_output(b);
      if (written && share_bytes(tensor_of(x), tensor_of(y))) ++shared;
    }
  }
  return shared;
}

// A product has had all of its row, and a pick all ranks, so all tiles of the op that made it have read what they read, and so on.
void Relays::mark_done(std::uint32_t op) {
  open_.assign(1, op);
  while (!open_.empty()) {
    const std::uint32_t at = open_.back();
    open_.pop_back();
    const std::uint32_t rows = made_[at].kind == wire::RelayKind::attention ? 3 : 1;
    for (std::uint32_t i = 0; i < rows; ++i) {
      const std::uint32_t writer = source_.tables->last_writers[plan().ops[at].operand_first + i];
      if (writer == plan::kNone || !has(writer) || done_[writer] != 0) continue;
      done_[writer] = 1;
      open_.push_back(writer);
    }
  }
}

// Whether all tiles of `other` have read what they read once one of `op` may run: it waits for that op itself, or for a product that cannot have ended before.
bool Relays::ends_behind(std::uint32_t op, std::uint32_t other) {
  if (waits_for_its_own(op, other)) return true;
  std::fill(done_.begin(), done_.end(), std::uint8_t{0});
  for (std::uint32_t product = first_; product < end_; ++product) {
    if (made_[product].kind != wire::RelayKind::attention && waits_for(op, product)) mark_done(product);
  }
  return done_[other] != 0;
}

// Of an op behind the relay.
bool Relays::is_ordered(std::uint32_t behind) {
  const plan::OpDesc& desc = plan().ops[behind];
  for (std::uint32_t o = desc.operand_first; o < first_output(desc) + desc.output_count; ++o) {
    if (plan().operands[o].space == wire::Space::weights) continue;
    const bool writes = o >= first_output(desc);
    for (std::uint32_t op = first_; op < end_; ++op) {
      const bool touches = stores_[op] != 0 && share_bytes(tensor_of(first_output(plan().ops[op])), tensor_of(o));
      if (touches && !waits_for_its_own(behind, op)) return false;
      const bool ends = made_[op].kind != wire::RelayKind::norm && ends_behind(behind, op);  // a norm's rows are read by those who take them
      if (writes && reads_plainly(op, tensor_of(o)) && !ends) return false;
    }
  }
  return true;
}

// Of each op in front the signal with the fewest events.
void Relays::find_waits() {
  waits_.clear();
  for (std::uint32_t op = first_; op < end_; ++op) {
    for (const plan::WaitDesc& wait : plan().waits.subspan(plan().ops[op].wait_first, plan().ops[op].wait_count)) {
      if (has(wait.producer)) continue;
      const auto same = std::find_if(waits_.begin(), waits_.end(), [&](std::uint32_t signal) { return plan().signals[signal].op == wait.producer; });
      if (same == waits_.end()) {
        waits_.push_back(wait.signal);
      } else if (source_.signals[wait.signal].event_count < source_.signals[*same].event_count) {
        *same = wait.signal;
      }
    }
  }
}

void Relays::find_signals() {
  std::fill(sends_.begin(), sends_.end(), std::uint8_t{0});
  for (std::uint32_t op = end_; op < source_.tables->op_count(); ++op) {
    for (const plan::WaitDesc& wait : plan().waits.subspan(plan().ops[op].wait_first, plan().ops[op].wait_count)) {
      if (has(wait.producer)) sends_[wait.signal] = 1;
    }
  }
}

// ---- updates ----------------------------------------------------------------------------------------------------------------

// What moves with a position lies in blocks; everything else that steps were made of must be what it was. Caches move with the product that writes them, so all
// attention is looked at.
bool Relays::stay(const RelaySource& source, std::span<const std::uint32_t> moved) const {
  if (std::none_of(moved.begin(), moved.end(), [&](std::uint32_t op) { return has(op); })) return true;
  RelayOp now;
  const auto stays = [&](std::uint32_t op) { return describe(source, first_, op, now) && now == made_[op]; };
  for (const std::uint32_t op : moved) {
    if (has(op) && !stays(op)) return false;
  }
  for (std::uint32_t op = first_; op < end_; ++op) {
    if (made_[op].kind == wire::RelayKind::attention && !stays(op)) return false;
  }
  return true;
}

// ---- steps ------------------------------------------------------------------------------------------------------------------

void Relays::sort() {
  deal_out();
  std::fill(list_first_.begin(), list_first_.end(), 0u);
  for (const Step& step : steps_) ++list_first_[step.list];
  std::uint32_t at = 0;
  for (std::uint32_t& first : list_first_) at += std::exchange(first, at);
  sorted_.resize(steps_.size());
  for (const Step& step : steps_) sorted_[list_first_[step.list]++] = step;
  for (std::size_t list = list_first_.size() - 1; list > 0; --list) list_first_[list] = list_first_[list - 1];
  list_first_[0] = 0;
  for (std::uint32_t list = 0; list + 1 < list_first_.size(); ++list) put_parts_first(list);
}

void Relays::deal_out() {
  steps_.clear();
  arrivals_.clear();
  picks_.clear();
  for (std::uint32_t op = first_; op < end_;) {
    if (has_no_steps(made_[op]))
      ++op;
    else if (made_[op].kind == wire::RelayKind::pick)
      place_pick(op++);
    else if (made_[op].kind == wire::RelayKind::route)
      place_route(op++);
    else if (is_share(op))
      deal_experts(op++);
    else if (may_be_shared(op))
      op = deal_row(op);
    else
      take_tiles(op++);
  }
  std::sort(arrivals_.begin(), arrivals_.end(), [](const Arrivals& a, const Arrivals& b) { return std::tie(a.list, a.op, a.tile) < std::tie(b.list, b.op, b.tile); });
}

bool Relays::signals(std::uint32_t op) const {
  const auto first = sends_.begin() + source_.ops[op].signal_first;
  return std::any_of(first, first + source_.ops[op].signal_count, [](std::uint8_t sends) { return sends != 0; });
}

std::span<const Relays::Tile> Relays::added(std::uint32_t op) const {
  const auto begin = std::partition_point(added_.begin(), added_.end(), [&](const Tile& tile) { return tile.op < op; });
  return {begin, std::partition_point(begin, added_.end(), [&](const Tile& tile) { return tile.op == op; })};
}

// Whether a list has more first parts of contexts of an attention than it must: lists deal out all parts alike, and of a short context there is but the first.
bool Relays::is_crowded(std::uint32_t op) {
  const std::uint32_t first_parts = static_cast<std::uint32_t>(source_.ops[op].grid[1] * source_.ops[op].grid[3]);
  std::fill(loads_.begin(), loads_.end(), 0u);
  for (const Tile& tile : added(op)) loads_[tile.list - lists_] += tile.tile < first_parts ? 1 : 0;
  return *std::max_element(loads_.begin(), loads_.end()) > (first_parts + workers() - 1) / workers();
}

// As the lists have them, but for crowded attention, in as many steps as each takes.
void Relays::take_tiles(std::uint32_t op) {
  const std::uint32_t most = is_product(op) ? most_units(op) * unit_of(op) : 0;
  const bool spreads = made_[op].kind == wire::RelayKind::attention && is_crowded(op), of_rows = is_product(op) && source_.ops[op].grid[2] != 1;
  for (Tile tile : added(op)) {
    if (of_rows && wire::tile_coord(source_.ops[op].grid, tile.tile).c[2] != 0) {  // whoever has the columns has all rows
      if (signals(op)) arrivals_.push_back({list_of_columns(op, tile.tile), op, tile.tile, 1});
      continue;
    }
    if (spreads) tile.list = lists_ + (source_.ops[op].tile_count > workers() ? tile.tile % workers() : tile.tile * workers() / source_.ops[op].tile_count);
    RelayPart part = part_of_tile(made_[op], source_.ops[op], tile.tile);
    for (const std::uint32_t end = part.first + part.count; is_product(op) && end - part.first > most; part.first += most) {
      part.count = most;
      steps_.push_back({tile.list, op, part});
      part.count = end - part.first - most;
    }
    steps_.push_back({tile.list, op, part});
    if (signals(op)) arrivals_.push_back({tile.list, op, tile.tile, 1});
  }
}

// Of the tile of the first rows.
std::uint32_t Relays::list_of_columns(std::uint32_t op, std::uint32_t tile) const {
  const wire::TileCoord coord = wire::tile_coord(source_.ops[op].grid, tile);
  const auto is_it = [&](const Tile& other) {
    const wire::TileCoord at = wire::tile_coord(source_.ops[op].grid, other.tile);
    return at.c[2] == 0 && at.c[3] == coord.c[3];
  };
  const auto all = added(op);
  return std::find_if(all.begin(), all.end(), is_it)->list;
}

// Where what comes behind it most likely is: by a worker that stands apart, or where its first tile was to be. Who has steps of the next run's beginning would be late for them. It ends behind
// all lists that have some of the row, so they send what the op's other tiles would.
void Relays::place_pick(std::uint32_t op) {
  const bool apart = crew_.workers != 0 && crew_.workers + (crew_.early ? 1 : 0) < source_.tables->workers;
  const std::uint32_t row = row_of_pick(op), list = apart ? lists_ + crew_.workers : added(op).front().list;
  const auto begin = std::partition_point(steps_.begin(), steps_.end(), [&](const Step& step) { return step.op < row; });
  const auto end = std::partition_point(begin, steps_.end(), [&](const Step& step) { return step.op == row; });
  const auto makers = static_cast<std::uint32_t>(end - begin), first = static_cast<std::uint32_t>(begin - steps_.begin());
  steps_.push_back({list, op, {0, 0, 0, makers * wire::relay_rank_pairs(rows())}});
  picks_.push_back({list, op});
  if (!signals(op)) return;
  arrivals_.push_back({list, op, 0, 1});
  const std::uint32_t others = source_.ops[op].tile_count - 1;
  for (std::uint32_t i = 0; i < makers; ++i) {
    const std::uint32_t count = others * (i + 1ull) / makers - others * std::uint64_t{i} / makers;
    if (count != 0) arrivals_.push_back({steps_[first + i].list, op, 0, count});
  }
}

// In each list. Who has none of the product that it looks at takes its row all the same, if experts multiply that, too: it is there then once they are known.
void Relays::place_route(std::uint32_t op) {
  const std::uint32_t logits = made_[op].routed_by;
  const auto takes_row = [&](std::uint32_t other) { return made_[other].routed_by == op && has_row_of(other, logits); };
  bool ahead = false;
  for (std::uint32_t other = op + 1; other < end_; ++other) ahead = ahead || takes_row(other);
  const auto is_before = [&](const Step& step) { return step.op < logits; };
  const auto is_of_logits = [&](const Step& step) { return step.op == logits; };
  const auto begin = std::partition_point(steps_.begin(), steps_.end(), is_before), end = std::partition_point(begin, steps_.end(), is_of_logits);
  const auto first = begin - steps_.begin(), made = end - steps_.begin();
  std::uint32_t number = static_cast<std::uint32_t>(made - first);
  for (std::uint32_t list = lists_; ahead && list < lists_ + workers(); ++list) {
    const bool has = std::any_of(steps_.begin() + first, steps_.begin() + made, [&](const Step& step) { return step.list == list; });
    if (!has) steps_.insert(steps_.begin() + made, {list, logits, {number++, 0, 0, 0}});
  }
  const auto shares = [&](const RelayOp& other) { return other.experts == wire::RelayExperts::share && other.routed_by == op; };
  const auto shared = std::find_if(made_.begin() + op, made_.begin() + end_, shares);
  const std::uint32_t columns = shared == made_.begin() + end_ ? 0 : shared->width;
  for (std::uint32_t list = lists_; list < lists_ + workers(); ++list) steps_.push_back({list, op, {list - lists_, 0, columns, workers()}});
}

std::span<const Relays::Arrivals> Relays::arrivals_of(std::uint32_t list) const {
  const auto begin = std::partition_point(arrivals_.begin(), arrivals_.end(), [&](const Arrivals& a) { return a.list < list; });
  const auto end = std::partition_point(begin, arrivals_.end(), [&](const Arrivals& a) { return a.list == list; });
  return {begin, end};
}

// ---- rows that lists share ----------------------------------------------------------------------------------------------------

// Nobody waits for some of its tiles.
bool Relays::may_be_shared(std::uint32_t op) const { return is_product(op) && !signals(op); }

// Whoever has one of them may go on with the other.
bool Relays::is_beside(std::uint32_t op, std::uint32_t other) const {
  return other < end_ && has_row_of(other, op) && may_be_shared(other) && !by_experts(op) && !by_experts(other) && !is_routed(other) && ranked_[op] == plan::kNone && ranked_[other] == plan::kNone;
}

/// Columns of a run that lists have a multiple of: of wide stages what one holds, as far as the row comes out even and there is one for each list.
std::uint32_t Relays::unit_of(std::uint32_t op) const {
  if (by_experts(op)) return wire::kRelayExpertColumns;
  const std::uint32_t wide = 2 * wire::kRelayColumns / runs(op);
  const bool fits = made_[op].width % wide == 0 && made_[op].width / wide * heads_of(op) >= source_.tables->workers;
  return fits && wire::relay_is_wide(made_[op].k, wide * runs(op)) ? wide : wire::kRelayColumns;
}
std::uint32_t Relays::units_of(std::uint32_t op) const { return heads_of(op) * (made_[op].width / unit_of(op)); }

// By tiles or by shares, whichever lets the last list be through sooner. The first op behind them.
std::uint32_t Relays::deal_row(std::uint32_t first) {
  std::uint32_t end = first + 1;
  if (is_routed(first)) return deal_to_first(first), end;
  while (is_beside(first, end)) ++end;
  share_out(first, end);
  const std::size_t before = steps_.size();
  if (ranked_[first] == plan::kNone && !by_experts(first)) {
    for (std::uint32_t op = first; op < end; ++op) take_tiles(op);
    if (longest(std::span(steps_).subspan(before)) <= longest(shares_)) return end;
    steps_.resize(before);
  }
  steps_.insert(steps_.end(), shares_.begin(), shares_.end());
  return end;
}

bool Relays::is_routed(std::uint32_t op) const {
  const auto looks_at = [&](const RelayOp& other) { return other.kind == wire::RelayKind::route && other.routed_by == op; };
  return std::any_of(made_.begin() + first_, made_.begin() + end_, looks_at);
}

// All lists wait for it, so those have it that are sent first.
void Relays::deal_to_first(std::uint32_t op) {
  const std::uint32_t units = units_of(op), each = (units + workers() - 1) / workers();
  std::uint32_t number = 0;
  shares_.clear();
  for (std::uint32_t list = 0, at = 0; at < units; ++list, at += each) add_share(lists_ + list, op, at, std::min(each, units - at), number);
  steps_.insert(steps_.end(), shares_.begin(), shares_.end());
}

// Who has which columns follows from what the route finds.
void Relays::deal_experts(std::uint32_t op) {
  const std::uint32_t slots = wire::relay_share_slots(made_[op].active, made_[op].width, workers());
  std::uint32_t number = 0;
  for (std::uint32_t list = 0; list < workers(); ++list) {
    for (std::uint32_t slot = 0; slot < slots; ++slot) steps_.push_back({lists_ + list, op, {number++, slot}});
  }
}

/// Of lists, in stages.
std::uint32_t Relays::longest(std::span<const Step> steps) {
  std::fill(loads_.begin(), loads_.end(), 0u);
  for (const Step& step : steps) loads_[step.list - lists_] += wire::relay_stages(made_[step.op].k, step.part.count * runs(step.op)) + kRelayStepStages;
  return *std::max_element(loads_.begin(), loads_.end());
}

// Columns of ops [first, end), one behind the other: to each list its part of all stages, as near as units let it.
void Relays::share_out(std::uint32_t first, std::uint32_t end) {
  const auto weight = [&](std::uint32_t op) { return wire::relay_stages(made_[op].k, unit_of(op) * runs(op)); };
  std::uint64_t all = 0, given = 0;
  for (std::uint32_t op = first; op < end; ++op) all += std::uint64_t{units_of(op)} * weight(op);
  shares_.clear();
  std::uint32_t worker = 0;
  for (std::uint32_t op = first; op < end; ++op) {
    std::uint32_t number = 0;
    for (std::uint32_t at = 0; at < units_of(op);) {
      const std::uint64_t upto = all * (worker + 1) / workers(), room = worker + 1 == workers() ? all : upto - std::min(upto, given);
      const auto count = static_cast<std::uint32_t>(std::min<std::uint64_t>(units_of(op) - at, (room + weight(op) / 2) / weight(op)));
      if (count == 0) {
        ++worker;
        continue;
      }
      add_share(lists_ + worker, op, at, count, number);
      at += count;
      given += std::uint64_t{count} * weight(op);
    }
  }
}

// Units [first, first + count) of all heads: of each head in as many steps as it takes, all about as long.
void Relays::add_share(std::uint32_t list, std::uint32_t op, std::uint32_t first, std::uint32_t count, std::uint32_t& number) {
  const std::uint32_t unit = unit_of(op), of_head = made_[op].width / unit, most = most_units(op);
  for (const std::uint32_t behind = first + count; first < behind;) {
    const std::uint32_t head = first / of_head, here = std::min(behind, (head + 1) * of_head) - first, steps = (here + most - 1) / most;
    for (std::uint32_t i = 0; i < steps; ++i) {
      const auto from = static_cast<std::uint32_t>(std::uint64_t{here} * i / steps), to = static_cast<std::uint32_t>(std::uint64_t{here} * (i + 1) / steps);
      shares_.push_back({list, op, {number++, head, (first % of_head + from) * unit, (to - from) * unit}});
    }
    first += here;
  }
}

// Who has part 0 of a context waits for the other parts, which wait for nothing of their op: in each list those come first, last tiles in front.
void Relays::put_parts_first(std::uint32_t list) {
  const auto begin = sorted_.begin() + list_first_[list], end = sorted_.begin() + list_first_[list + 1];
  for (auto first = begin; first != end;) {
    const auto behind = std::find_if(first, end, [&](const Step& step) { return step.op != first->op; });
    if (made_[first->op].kind == wire::RelayKind::attention) std::reverse(first, behind);
    first = behind;
  }
}

std::uint32_t Relays::lay_out(std::uint32_t begin) {
  constexpr auto kAlign = static_cast<std::uint32_t>(alignof(wire::RelayStep));
  steps_at_ = (begin + kAlign - 1) / kAlign * kAlign;
  blocks_at_ = steps_at_ + steps() * static_cast<std::uint32_t>(sizeof(wire::RelayStep));
  std::uint32_t blocks = 0;
  for (std::uint32_t list = 0; list < block_.size(); ++list) block_[list] = steps_of(list).empty() ? blocks : blocks++;
  return blocks_at_ + blocks * static_cast<std::uint32_t>(sizeof(wire::OpParams));
}

wire::BlockRef Relays::block_of(std::uint32_t list) const {
  constexpr auto kBytes = static_cast<std::uint32_t>(sizeof(wire::OpParams));
  return {blocks_at_ + block_[list] * kBytes, kBytes};
}

// Of a pick that stores its index there.
std::uint64_t Relays::word_of(std::uint64_t store) const {
  if (!looks_up()) return 0;
  const auto is_it = [&](const Pick& pick) { return made_[pick.op].store == store && leaves_word(pick.op); };
  const auto found = std::find_if(picks_.begin(), picks_.end(), is_it);
  return found == picks_.end() ? 0 : made_[found->op].words;
}

// Stages are worth more than rows that are whole, but for a row that several steps of a list multiply, which each would fetch.
bool Relays::step_goes_by_pieces(const wire::RelayStep& step, bool stays) const {
  if (rows() == 1 || step.experts != 0 || step.kind != static_cast<std::uint8_t>(wire::RelayKind::product) || step.norm != 0 || step.k <= wire::kRelayDepth || step.n > wire::relay_columns(rows())) return false;
  return wire::relay_step_bytes(step, wire::kMarkedLanes / 32, rows()) > (stays ? kMostKeptRowsBytes : kMostWholeRowsBytes);
}

void Relays::write(const RelaySource& source, std::byte* frame) const {
  std::byte* to = frame + steps_at_;
  std::uint32_t most = 0;
  const Step* front = nullptr;
  bool whole = false;  // the step in front has left its rows whole
  for (const Step& s : sorted_) {
    wire::RelayStep step = step_of(source, s.op, made_[s.op], s.part, gives_[s.op] != 0, stores_[s.op] != 0);
    if (ranked_[s.op] != plan::kNone) {
      step.flags |= wire::kRelayRanks;
      step.beside = made_[ranked_[s.op]].row + std::uint64_t{s.part.number} * wire::relay_rank_words(rows()) * sizeof(std::uint64_t);
      step.second = s.part.first;
    }
    if (made_[s.op].kind == wire::RelayKind::pick && leaves_word(s.op)) step.words = made_[s.op].words;
    const Step* behind = &s == &sorted_.back() ? nullptr : &s + 1;
    const auto goes_on = [&](const Step* other) { return other != nullptr && other->list == s.list && has_row_of(s.op, other->op); };
    if (step_goes_by_pieces(step, goes_on(front) || goes_on(behind)))
      step.by_pieces = 1, step.flags &= static_cast<std::uint8_t>(~wire::kRelayWide);
    else if (goes_on(front) && whole)
      step.part = 1;
    if (made_[s.op].kind != wire::RelayKind::route) {  // which leaves the row where it is
      front = &s;
      whole = step.by_pieces == 0;
    }
    most = std::max(most, wire::relay_step_bytes(step, wire::kMarkedLanes / 32, rows()));
    std::memcpy(to, &step, sizeof(step));
    to += sizeof(step);
  }
  const bool any_by_experts = std::any_of(made_.begin() + first_, made_.begin() + end_, [](const RelayOp& op) { return op.experts != wire::RelayExperts::none; });
  for (std::uint32_t list = 0; list < block_.size(); ++list) {
    if (steps_of(list).empty()) continue;
    wire::OpParams op{};
    op.kind = static_cast<std::uint8_t>(wire::OpCode::custom);
    op.body = wire::kRelayBody;
    op.tile_count = 1;
    std::fill(std::begin(op.grid), std::end(op.grid), 1);
    std::fill(std::begin(op.tile), std::end(op.tile), 1);
    op.dims[0] = static_cast<std::int32_t>(steps_of(list).size());
    op.dims[1] = static_cast<std::int32_t>(steps_at_ + list_first_[list] * sizeof(wire::RelayStep));
    op.dims[2] = static_cast<std::int32_t>((most + 15) / 16 * 16);
    op.dims[3] = static_cast<std::int32_t>(kRelayUnderWayWaiting);
    op.dims[4] = static_cast<std::int32_t>(rows() > 1 && any_by_experts ? 0 : kRelayAhead);
    op.dims[5] = static_cast<std::int32_t>(kRelayPace);
    op.dims[7] = static_cast<std::int32_t>(kRelayUnderWayMultiplying);
    if (looks_up()) op.dims[wire::kRelayLookUpDim] = static_cast<std::int32_t>(source.tables->blocks[first_].offset);
    op.report = -1;
    std::memcpy(frame + block_of(list).offset, &op, sizeof(op));
  }
}

}  // namespace ccks::scheduler
