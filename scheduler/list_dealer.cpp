#include "scheduler/list_dealer.hpp"

#include <algorithm>

#include "scheduler/instance.hpp"
#include "scheduler/tuning.hpp"

namespace ccks::scheduler {

void ListDealer::reserve(const PlanTables& tables) {
  workers_ = tables.workers;
  free_at_.assign(workers_, 0);
  finish_.assign(tables.op_count(), 0);
  home_.assign(std::size_t{tables.op_count()} * workers_, 0);
  dealt_.reserve(workers_);
}

void ListDealer::start(const PlanTables& tables) {
  in_turn_ = {};
  std::fill(free_at_.begin(), free_at_.end(), 0);
  std::fill_n(finish_.begin(), tables.op_count(), 0);
}

ListDealer::Range ListDealer::range_of(const PlanTables& tables, std::span<const OpInstance> ops, std::uint32_t op, std::uint32_t stretch) const {
  if (crew_.workers == 0 || stretch != crew_.stretch) return {0, workers_};
  if (crew_.has(op)) return {0, crew_.workers};
  const bool early = tables.chained() && tables.early[op] != 0;
  const std::uint32_t last = workers_ - (crew_.early ? 1 : 0), between = last - crew_.workers;
  if (ops[op].tiles > kMostTilesBeside * (early ? 1 : between)) return {0, last};
  return early ? Range{last, 1} : Range{crew_.workers, between};
}

// What an op waits for inside its stretch sets when it may start; producers outside are long through.
void ListDealer::place(const PlanTables& tables, std::span<const OpInstance> ops, std::uint32_t op,
                       std::uint32_t stretch) {
  dealt_.clear();
  const std::uint32_t behind = (in_turn_.first + in_turn_.tiles) % range_.count;  // the last of the op before, which has what is left over
  if (!in_turn_.counted) in_turn_.first = behind;
  in_turn_.tiles = 0;
  if (ops[op].tiles == 0) return;
  ready_ = 0;
  producer_ = plan::kNone;
  const plan::OpDesc& desc = tables.plan.ops[op];
  for (std::uint32_t w = 0; w < desc.wait_count; ++w) {
    const std::uint32_t from = tables.plan.waits[desc.wait_first + w].producer;
    if (tables.stretch_of[from] != stretch || ops[from].tiles == 0) continue;
    ready_ = std::max(ready_, finish_[from]);
    if (producer_ == plan::kNone) producer_ = from;
  }
  done_ = ready_;
  const bool root = producer_ == plan::kNone;
  // Of an op of fewer tiles than workers it is the first that have them: the last have done with the run in front before others have.
  early_ = tables.chained() && tables.early[op] != 0;
  if (ops[op].tiles < workers_) {
    place_narrow(ops, op, root);
  } else if (ops[op].in_turn && tables.record_capacity > 0) {  // lists of records: a tile alone takes no more room
    place_in_turn(ops[op], (desc.flags & wire::kOpDynamic) != 0);
  } else {
    place_wide(ops[op], op, root);
  }
  finish_[op] = done_;
}

void ListDealer::run_on(std::uint32_t worker, std::uint64_t cost) {
  free_at_[worker] = std::max(free_at_[worker], ready_) + cost;
  done_ = std::max(done_, free_at_[worker]);
}

// At least one tile each. Where the tiles do not come out even, ops that begin a stretch take turns in who gets more; the
// others keep their fractions, so that a chain of tiles stays where it is.
void ListDealer::place_wide(const OpInstance& info, std::uint32_t op, bool root) {
  const std::uint64_t tiles = info.tiles;
  const std::uint32_t shift = root ? turn_ : 0;
  const std::uint32_t workers = range_.count;
  const std::uint64_t extra = tiles % workers;
  const auto extras_before = [&](std::uint64_t share) { return share * extra / workers; };
  std::uint32_t first = 0;
  for (std::uint32_t worker = 0; worker < workers; ++worker) {
    const std::uint32_t share = (worker + shift) % workers;
    const auto count =
        static_cast<std::uint32_t>(tiles / workers + extras_before(share + 1ull) - extras_before(share));
    dealt_.push_back({op, range_.first + worker, first, count});
    first += count;
    run_on(range_.first + worker, std::uint64_t{count} * info.tile_cost);
  }
  if (root && extra != 0) turn_ = turn_ + 1 == workers_ ? 0 : turn_ + 1;
}

// Of counted tiles nobody knows yet which is the last, and so who has what is left over: the next op's go back from where they began, and whatever both have left over goes to
// different workers, as far as that can be.
void ListDealer::place_in_turn(const OpInstance& info, bool counted) {
  in_turn_.tiles = info.tiles;
  in_turn_.back = counted && in_turn_.counted && !in_turn_.back;
  in_turn_.counted = counted;
  for (std::uint32_t tile = 0; tile < info.tiles; ++tile) run_on(worker_in_turn(tile), info.tile_cost);
}

std::uint32_t ListDealer::preferred(std::span<const OpInstance> ops, std::uint32_t op, std::uint32_t tile,
                                    bool root) const {
  if (early_ && root) return range_.first + range_.count - 1 - (early_turn_ + tile) % range_.count;
  if (root) return range_.first + (turn_ + tile) % range_.count;
  const std::uint64_t tiles = ops[op].tiles;
  const std::uint64_t others = ops[producer_].tiles;
  const std::uint32_t alike = range_.first + static_cast<std::uint32_t>(std::uint64_t{tile} * range_.count / tiles);  // the same fraction of the workers
  if (others >= workers_) return alike;
  const std::uint32_t home = home_[std::size_t{producer_} * workers_ + std::uint64_t{tile} * others / tiles];
  return range_.has(home) ? home : alike;
}

std::uint32_t ListDealer::soonest() const {
  const auto begin = free_at_.begin() + range_.first;
  return static_cast<std::uint32_t>(std::min_element(begin, begin + range_.count) - free_at_.begin());
}

void ListDealer::place_narrow(std::span<const OpInstance> ops, std::uint32_t op, bool root) {
  const OpInstance& info = ops[op];
  for (std::uint32_t tile = 0; tile < info.tiles; ++tile) {
    std::uint32_t worker = preferred(ops, op, tile, root);
    if (free_at_[worker] > ready_ + kHopCost) {
      const std::uint32_t other = soonest();
      if (std::max(free_at_[other], ready_ + kHopCost) < free_at_[worker]) worker = other;
    }
    home_[std::size_t{op} * workers_ + tile] = static_cast<std::uint16_t>(worker);
    dealt_.push_back({op, worker, tile, 1});
    run_on(worker, info.tile_cost);
  }
  std::uint32_t& turn = early_ ? early_turn_ : turn_;
  if (root) turn = static_cast<std::uint32_t>((std::uint64_t{turn} + info.tiles) % workers_);
}

}  // namespace ccks::scheduler
