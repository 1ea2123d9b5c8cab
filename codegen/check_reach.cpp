// Reach: chains of waits between whole ops.
//
// A wait of j gives before(i, j) where all its tiles wait for all events of i. Chains: before(i, m) and every tile of k
// waits for some tile of m give before(i, k); touches(i, m) and before(m, k) give before(i, k).
//
// A guarded op whose guards fail may be passed over without its other waits. So what its tiles waited for counts only
// where it is sure to run: i and k run, and together they run under all its conditions. Else its completion says no
// more than that its reports were published.
//
// Tiles that a count says are not there are signalled once it is known, before anything that they wait for: of an op with
// such tiles completion says nothing but that its own tiles are done.
#include "codegen/check_reach.hpp"

#include <algorithm>

namespace ccks::codegen::check {

Guards::Guards(const Model& m) : program_(*m.program), reports_(m.ops.size()) {
  for (std::size_t op = 0; op < m.ops.size(); ++op) {
    std::vector<std::uint32_t> set;
    add_chain(m.spec_op(op).condition, set);
    condition_.push_back(m.spec_op(op).condition);
    context_.push_back(number_of(std::move(set)));
    const plan::OpDesc& d = *m.ops[op].desc;
    counted_.push_back(d.counted_rank != 0);
    for (std::uint32_t g = d.guard_first; g < d.guard_first + d.guard_count && !counted_.back(); ++g)
      reports_[op].push_back(m.plan->reports[m.plan->guards[g].report].op);
  }
}

void Guards::add_chain(std::uint32_t condition, std::vector<std::uint32_t>& set) const {
  for (; condition != spec::kNone; condition = program_.conditions[condition].parent) set.push_back(condition);
}

std::size_t Guards::number_of(std::vector<std::uint32_t> set) {
  std::sort(set.begin(), set.end());
  set.erase(std::unique(set.begin(), set.end()), set.end());
  const auto known = std::find(sets_.begin(), sets_.end(), set);
  const auto number = static_cast<std::size_t>(known - sets_.begin());
  if (known == sets_.end()) {
    holds_.emplace_back(program_.conditions.size(), false);
    for (const std::uint32_t c : set) holds_.back()[c] = true;
    sets_.push_back(std::move(set));
  }
  return number;
}

std::size_t Guards::context_with(std::size_t op, std::uint32_t first, std::uint32_t second) {
  if (first == spec::kNone && second == spec::kNone) return context_[op];
  std::vector<std::uint32_t> set = sets_[context_[op]];
  add_chain(first, set);
  add_chain(second, set);
  return number_of(std::move(set));
}

bool Guards::runs_with(std::size_t other, std::size_t op, std::size_t context) const {
  if (counted_[other]) return false;
  const std::uint32_t c = condition_[other];  // a set that has it has its parents too
  return c == spec::kNone || holds_[context_[op]][c] || holds_[context][c];
}

Reach::Reach(const Model& m, const Guards& g, std::size_t of_context)
    : before(m.ops.size()), touches(m.ops.size()), guards(g), context(of_context) {
  for (std::size_t op = 0; op < m.ops.size(); ++op) {
    touches.set(op, op);
    if (!m.ops[op].exists()) continue;
    for (const WaitNow& w : m.waits_of(op)) add(m, op, w);
  }
}

void Reach::add(const Model& m, std::size_t op, const WaitNow& w) {
  const SignalNow& s = m.signals[w.signal];
  if (!m.ops[s.op].exists()) return;
  const OpNow& now = m.ops[op];
  const bool whole = covers_group(w, s, blocks_always(now, w.axis[0]), blocks_always(now, w.axis[1]));
  const bool always = whole || waits_always(now, w), all = whole || all_waited(now, w, s);
  if (!guards.runs_with(s.op, op, context)) return add_guarded(op, s.op, whole, always, all);
  if (whole) before.add_row(op, touches, s.op);
  if (always) before.add_row(op, before, s.op);
  if (all) touches.add_row(op, touches, s.op);
}

void Reach::add_guarded(std::size_t op, std::size_t producer, bool whole, bool always, bool all) {
  if (whole) before.set(producer, op);
  if (all) touches.set(producer, op);
  for (const std::uint32_t report : guards.reports(producer)) {
    if (!always || !guards.runs_with(report, op, context)) continue;
    before.set(report, op);  // one tile, and published before the guard was looked at
    before.add_row(op, before, report);
  }
}

}  // namespace ccks::codegen::check
