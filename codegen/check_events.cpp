// check_events: event groups are disjoint, get exactly the signals they are said to get, and waits name events that
// exist.
#include "codegen/check_events.hpp"

#include <fmt/format.h>

#include <algorithm>

namespace ccks::codegen::check {
namespace {

std::int64_t clip(std::int64_t v, std::int64_t extent) { return std::clamp<std::int64_t>(v, 0, extent); }
std::int64_t ceil_div(std::int64_t a, std::int64_t b) { return a / b + (a % b != 0 ? 1 : 0); }

/// Index of a tile's event is a one-to-one map of the coordinates' values onto [0, count).
bool one_to_one(const SignalNow& s) {
  const std::int64_t v0 = s.values[0], v1 = s.values[1];
  if (s.axis[0] >= 0 && s.axis[0] == s.axis[1]) return false;
  if (v0 * v1 != s.count) return false;
  if (v0 == 1) return v1 == 1 || s.stride[1] == 1;
  if (v1 == 1) return s.stride[0] == 1;
  return (s.stride[1] == 1 && s.stride[0] == v1) || (s.stride[0] == 1 && s.stride[1] == v0);
}

void check_group(const Model& m, std::size_t g, Faults& faults) {
  const SignalNow& s = m.signals[g];
  const OpNow& op = m.ops[s.op];
  if (!op.exists()) {
    if (s.count > 0 && s.total != 0)
      faults.add("event.total", fmt::format("op '{}' has no tiles, yet {} signals are awaited", m.name(s.op), s.total));
    return;
  }
  if (!one_to_one(s))
    return faults.add("event.map",
                      fmt::format("op '{}': tiles do not map onto its {} events ({} x {} by {}, {})", m.name(s.op),
                                  s.count, s.values[0], s.values[1], s.stride[0], s.stride[1]));
  const std::int64_t sent = op.tiles / s.count;  // the map is one-to-one: every event gets as many
  if (s.total != sent || s.total > 0x7fffffff)
    faults.add("event.total",
               fmt::format("op '{}': each event gets {} signals, {} are awaited", m.name(s.op), sent, s.total));
}

void check_ownership(const Model& m, Faults& faults) {
  std::vector<bool> sent(m.signals.size());
  for (std::size_t op = 0; op < m.ops.size(); ++op) {
    const plan::OpDesc& d = *m.ops[op].desc;
    for (std::uint32_t g = d.signal_first; g < d.signal_first + d.signal_count; ++g) {
      if (m.signals[g].op != op || sent[g])
        faults.add("event.owner", fmt::format("op '{}' sends signals of another op", d.name));
      sent[g] = true;
    }
  }
  for (std::size_t g = 0; g < sent.size(); ++g)
    if (!sent[g])
      faults.add("event.owner", fmt::format("nobody sends signal {} of op '{}'", g, m.name(m.signals[g].op)));
}

void check_ranges(const Model& m, Faults& faults) {
  std::vector<std::size_t> order(m.signals.size());
  for (std::size_t g = 0; g < order.size(); ++g) order[g] = g;
  std::sort(order.begin(), order.end(),
            [&](auto a, auto b) { return m.signals[a].event_first < m.signals[b].event_first; });
  const SignalNow* last = nullptr;
  for (const std::size_t g : order) {
    const SignalNow& s = m.signals[g];
    if (s.event_max == 0) continue;
    if (last && std::uint64_t{last->event_first} + last->event_max > s.event_first)
      faults.add("event.overlap",
                 fmt::format("ops '{}' and '{}' count on the same events", m.name(last->op), m.name(s.op)));
    last = &s;
  }
}

bool is_routed(const Model& m, std::size_t op) { return m.spec_op(op).kind() == spec::OpKind::expert_matmul; }

/// Row tile c of `op` waits for row tile c of the wait's producer, along its axis `i`.
bool own_row_tile(const OpNow& op, const WaitNow& w, const SignalNow& s, std::size_t i) {
  const WaitAxisNow &a = w.axis[i], &other = w.axis[1 - i];
  return s.axis[i] == 2 && a.grid_axis == 2 && other.grid_axis != 2 && a.step == a.block && a.length == a.block && a.offset == 0 && a.stride == s.stride[i] &&
         a.extent >= op.grid[2] * a.block;
}

/// Row tiles that no expert has rows for are signalled by whoever counts, before anything that they wait for. So an event of some row tiles tells
/// something only to tiles that exist where they do; and what tiles wait for by their row tile, only if tiles of those rows are there.
void check_row_tiles(const Model& m, std::size_t op, const WaitNow& w, Faults& faults) {
  const SignalNow& s = m.signals[w.signal];
  const bool by_row = is_routed(m, op) && (w.axis[0].grid_axis == 2 || w.axis[1].grid_axis == 2);
  const bool of_row = is_routed(m, s.op) && (s.axis[0] == 2 || s.axis[1] == 2);
  if (!by_row && !of_row) return;
  const bool all = w.axis[0].grid_axis < 0 && w.axis[1].grid_axis < 0 && covers_group(w, s, blocks_at(w.axis[0], 0), blocks_at(w.axis[1], 0));
  const bool own = (own_row_tile(m.ops[op], w, s, 0) || own_row_tile(m.ops[op], w, s, 1)) && same_row_tiles(m, s.op, op);
  if (!all && !own)
    faults.add("event.routed", fmt::format("op '{}' waits for row tiles of '{}' that need not exist where its own do", m.name(op), m.name(s.op)));
}

void check_wait(const Model& m, std::size_t op, const WaitNow& w, Faults& faults) {
  const SignalNow& s = m.signals[w.signal];
  if (w.producer != s.op)
    return faults.add("event.producer", fmt::format("op '{}' waits for events of '{}' under the name of '{}'",
                                                    m.name(op), m.name(s.op), m.name(w.producer)));
  if (s.op >= op)
    return faults.add("order.cycle",
                      fmt::format("op '{}' waits for '{}', which stands behind it", m.name(op), m.name(s.op)));
  if (!m.ops[op].exists()) return;
  check_row_tiles(m, op, w, faults);
  std::int64_t lo = 0, hi = 0;  // lowest and highest event named, relative to the group
  for (const WaitAxisNow& axis : w.axis) {
    const std::int64_t last = coordinate_values(m.ops[op], axis) - 1;
    const Blocks a = blocks_at(axis, 0), b = blocks_at(axis, last);
    const bool ends = !a.empty() && !b.empty();  // else the windows enter and leave: any block may be named
    const std::int64_t from = ends ? std::min(a.lo, b.lo) : 0;
    const std::int64_t to = (ends ? std::max(a.hi, b.hi) : ceil_div(axis.extent, axis.block)) - 1;
    if (to < from) return;
    lo += std::min(from * axis.stride, to * axis.stride);
    hi += std::max(from * axis.stride, to * axis.stride);
  }
  if (lo < 0 || hi >= s.count)
    faults.add("event.bounds", fmt::format("op '{}' waits for events {} to {} of '{}', which has {}", m.name(op), lo,
                                           hi, m.name(s.op), s.count));
}

}  // namespace

Blocks blocks_at(const WaitAxisNow& a, std::int64_t c) {
  if (a.grid_axis < 0) return {0, ceil_div(a.extent, a.block)};
  const std::int64_t base = c * a.step + a.offset;
  const std::int64_t lo = clip(base, a.extent), hi = clip(base + a.length, a.extent);
  if (lo >= hi) return {};
  return {lo / a.block, ceil_div(hi, a.block)};
}

std::int64_t coordinate_values(const OpNow& op, const WaitAxisNow& axis) {
  return axis.grid_axis < 0 ? 1 : op.grid[static_cast<std::size_t>(axis.grid_axis)];
}

// Both ends of a range move in one direction only as the coordinate grows, so the ends of the grid bound all between.
Blocks blocks_always(const OpNow& op, const WaitAxisNow& axis) {
  const Blocks a = blocks_at(axis, 0), b = blocks_at(axis, coordinate_values(op, axis) - 1);
  if (a.empty() || b.empty()) return {};
  return {std::max(a.lo, b.lo), std::min(a.hi, b.hi)};
}

bool waits_always(const OpNow& op, const WaitNow& wait) {
  for (const WaitAxisNow& axis : wait.axis) {
    const std::int64_t last = coordinate_values(op, axis) - 1;
    if (blocks_at(axis, 0).empty() || blocks_at(axis, last).empty()) return false;
  }
  return true;
}

bool covers_group(const WaitNow& w, const SignalNow& s, Blocks a, Blocks b) {
  if (s.count == 0 || a.empty() || b.empty()) return false;
  const std::int64_t wide = a.hi - a.lo, high = b.hi - b.lo;
  if (s.count == 1) return a.lo * w.axis[0].stride + b.lo * w.axis[1].stride == 0;
  if (wide > s.count + 1 || high > s.count + 1 || wide * high > 4 * s.count + 16) return false;
  std::vector<bool> seen(static_cast<std::size_t>(s.count));
  std::int64_t left = s.count;
  for (std::int64_t i = a.lo; i < a.hi; ++i) {
    for (std::int64_t j = b.lo; j < b.hi; ++j) {
      const auto e = static_cast<std::size_t>(i * w.axis[0].stride + j * w.axis[1].stride);
      if (!seen[e]) --left;
      seen[e] = true;
    }
  }
  return left == 0;
}

bool all_waited(const OpNow& op, const WaitNow& w, const SignalNow& s) {
  if (w.axis[0].grid_axis >= 0 && w.axis[0].grid_axis == w.axis[1].grid_axis) return false;
  std::array<Blocks, 2> together;
  for (std::size_t i = 0; i < 2; ++i) {
    const std::int64_t values = coordinate_values(op, w.axis[i]);
    together[i] = blocks_at(w.axis[i], 0);
    for (std::int64_t c = 1; c < values; ++c) {
      const Blocks next = blocks_at(w.axis[i], c);
      if (next.empty() || next.lo > together[i].hi || next.hi < together[i].lo)
        return false;  // gaps: not worth proving
      together[i] = {std::min(together[i].lo, next.lo), std::max(together[i].hi, next.hi)};
    }
  }
  return covers_group(w, s, together[0], together[1]);
}

std::array<std::int64_t, 2> cell_of(const SignalNow& s, std::int64_t index) {
  if (s.values[0] == 1) return {0, index};
  if (s.values[1] == 1) return {index, 0};
  if (s.stride[1] == 1) return {index / s.stride[0], index % s.stride[0]};
  return {index % s.stride[1], index / s.stride[1]};
}

void check_events(const Model& m, Faults& faults) {
  check_ownership(m, faults);
  check_ranges(m, faults);
  for (std::size_t g = 0; g < m.signals.size(); ++g) check_group(m, g, faults);
  if (faults.count() > 0) return;
  for (std::size_t op = 0; op < m.ops.size(); ++op)
    for (const WaitNow& w : m.waits_of(op)) check_wait(m, op, w, faults);
}

}  // namespace ccks::codegen::check
