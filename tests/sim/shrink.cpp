#include "tests/sim/shrink.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>

namespace ccks::test::sim {
namespace {

constexpr std::uint64_t kSchedules = 24;  // tried for each case: rare schedules are found again in most of them

// What can be changed, as text for change_case. Parts that are not set stay as the seed has them.
struct Parts {
  std::vector<std::uint32_t> ops;
  std::vector<std::string> faults;
  std::uint64_t runs = 0, workers = 0, slots = 0, schedule = 0, from_step = 0, to_step = 0;
  bool plain_order = false, no_stale = false, no_cancel = false, no_deadline = false;

  std::string text() const {
    std::string out = fmt::format("schedule={};workers={};slots={};runs={};ops={};faults={};noise={}-{}", schedule, workers, slots, runs,
                                  fmt::join(ops, ","), fmt::join(faults, ","), from_step, to_step);
    if (plain_order) out += ";reorder=0";
    if (no_stale) out += ";stale=0";
    if (no_cancel) out += ";cancel=0";
    if (no_deadline) out += ";deadline=0";
    return out;
  }
};

class Shrinker {
 public:
  Shrinker(std::uint64_t seed, const std::string& change) : seed_(seed) {
    SimCase c = make_case(seed);
    (void)change_case(c, change);
    const WorldResult result = play(c);
    best_.ops = c.kept;
    for (std::size_t i = 0; i < kFaults; ++i) {
      if (c.faults[i]) best_.faults.emplace_back(fault_name(static_cast<Fault>(i)));
    }
    best_.runs = std::max<std::uint64_t>(result.runs, 1);
    best_.workers = c.workers;
    best_.slots = c.slots;
    best_.schedule = c.schedule;
    best_.from_step = c.noise.from_step;
    best_.to_step = std::min(c.noise.to_step, result.steps + 1);
    out_ = {change, result.complaint, result.steps};
  }

  Shrunk run() {
    if (!accept(best_)) return out_;  // even this much changes the schedule too far
    fewer_runs();
    drop([](Parts& p) -> auto& { return p.faults; });
    drop([](Parts& p) -> auto& { return p.ops; });
    for (const auto part : {&Parts::workers, &Parts::slots}) {
      for (std::uint64_t n = 1; n < best_.*part; ++n) {
        if (with([&](Parts& p) { p.*part = n; })) break;
      }
    }
    fewer_runs();
    for (const auto flag : {&Parts::plain_order, &Parts::no_stale, &Parts::no_cancel, &Parts::no_deadline}) with([&](Parts& p) { p.*flag = true; });
    narrow_noise();
    return out_;
  }

 private:
  // Tries `parts` under its own schedule and some others.
  bool accept(Parts parts) {
    const std::uint64_t own = parts.schedule;
    for (std::uint64_t i = 0; i <= kSchedules; ++i) {
      parts.schedule = i == 0 ? own : i;
      if (fails(parts)) return true;
    }
    return false;
  }
  bool fails(const Parts& parts) {
    SimCase c = make_case(seed_);
    const std::string text = parts.text();
    if (!change_case(c, text).ok()) return false;
    const WorldResult result = play(c);
    if (result.complaint.empty()) return false;
    best_ = parts;
    out_ = {text, result.complaint, result.steps};
    return true;
  }
  template <class Change>
  bool with(Change&& change) {
    Parts parts = best_;
    change(parts);
    return accept(parts);
  }
  void fewer_runs() {
    for (std::uint64_t n = 1; n < best_.runs; n = n * 3 / 2 + 1) {
      if (with([&](Parts& p) { p.runs = n; })) return;
    }
  }
  template <class List>
  void drop(List&& list) {
    for (std::size_t i = list(best_).size(); i-- > 0;) {
      with([&](Parts& p) { list(p).erase(list(p).begin() + static_cast<std::ptrdiff_t>(i)); });
    }
  }
  // Chance only where it is needed, without another schedule: that would be another chance.
  void narrow_noise() {
    for (std::uint64_t cut = best_.to_step; cut > 0; cut /= 2) {
      Parts parts = best_;
      if (parts.to_step > parts.from_step + cut) parts.to_step -= cut, (void)fails(parts);
      parts = best_;
      if (parts.from_step + cut < parts.to_step) parts.from_step += cut, (void)fails(parts);
    }
  }

  std::uint64_t seed_;
  Parts best_;
  Shrunk out_;
};

}  // namespace

Shrunk shrink(std::uint64_t seed, const std::string& change) { return Shrinker(seed, change).run(); }

}  // namespace ccks::test::sim
