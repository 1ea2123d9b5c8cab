// Event arithmetic: which events a tile waits for and adds to, and what count it waits for. The one definition for
// workers, scheduler, plan checker and tests; frame.hpp says what the fields mean.
//
// Events are u32 counters in device memory that only grow and wrap at 2^32; no target is more than 2^31 - 1 ahead.
//   [E1] Atoms::event_add_release, by the tile that finished   -> pairs with [E2]
//   [E2] Atoms::event_load_acquire, by the tile that waits     -> pairs with [E1]
#pragma once

#include "ccks/wire/frame.hpp"

namespace ccks::wire {

/// Coordinates of a tile in its op's grid.
struct TileCoord {
  i32 c[4] = {0, 0, 0, 0};
};

/// Blocks [lo, hi) along one axis of an event group; empty if lo >= hi.
struct EventSpan {
  u32 lo = 0;
  u32 hi = 0;
};

/// The events one tile waits for in one WaitParams: a rectangle of blocks.
struct EventRect {
  EventSpan span[2];
};

inline namespace CCKS_ISA {

/// Row-major in the grid, last coordinate fastest. A division costs a GPU as much as a load, so it is done where it is needed.
CCKS_HD constexpr TileCoord tile_coord(const i32 (&grid)[4], u32 tile) {
  TileCoord out;
  u32 rest = tile;
  for (int axis = 3; axis > 0; --axis) {
    const u32 extent = static_cast<u32>(grid[axis]);
    const u32 next = rest < extent ? 0 : rest / extent;
    out.c[axis] = static_cast<i32>(rest - next * extent);
    rest = next;
  }
  out.c[0] = static_cast<i32>(rest);
  return out;
}
/// Coordinate `axis`, 0 to 3. Without an index, so that coordinates can stay in registers.
CCKS_HD constexpr i32 coord_at(const TileCoord& coord, i32 axis) {
  return axis == 0 ? coord.c[0] : axis == 1 ? coord.c[1] : axis == 2 ? coord.c[2] : coord.c[3];
}

/// Count at which an event is complete for the run of `epoch`. All arithmetic wraps.
CCKS_HD constexpr u32 event_target(u32 base, u32 epoch, u32 epoch0, u32 total) {
  return base + (epoch - epoch0) * total + total;
}
CCKS_HD constexpr bool event_reached(u32 counter, u32 target) { return static_cast<i32>(counter - target) >= 0; }

/// Blocks of one axis that the tile at `coord` reads.
CCKS_HD constexpr EventSpan wait_span(const WaitAxis& axis, const TileCoord& coord) {
  i64 from = 0;
  i64 to = axis.extent;
  if (axis.grid_axis >= 0) {
    from = static_cast<i64>(coord_at(coord, axis.grid_axis)) * axis.step + axis.offset;
    to = from + axis.length;
    from = from < 0 ? 0 : from;
    to = to > axis.extent ? axis.extent : to;
  }
  // Not {} and {0, 1}: a GPU would load these from memory (tests/ptx/check.py).
  u32 lo = 0, hi = 0;
  if (from < to) {
    // Both lie in [0, 2^31), so 32 bits do, and a GPU divides 64 bits ten times slower.
    const u32 block = static_cast<u32>(axis.block);
    const bool one = static_cast<u32>(axis.extent) <= block;
    lo = one ? 0 : static_cast<u32>(from) / block;
    hi = one ? 1 : (static_cast<u32>(to) + (block - 1)) / block;
  }
  return {lo, hi};
}

CCKS_HD constexpr EventRect wait_rect(const WaitParams& wait, const TileCoord& coord) {
  return {{wait_span(wait.axis[0], coord), wait_span(wait.axis[1], coord)}};
}
CCKS_HD constexpr u32 span_count(const EventSpan& s) { return s.hi > s.lo ? s.hi - s.lo : 0; }
/// Events in the rectangle; 0 waits for nothing.
CCKS_HD constexpr u32 rect_count(const EventRect& r) { return span_count(r.span[0]) * span_count(r.span[1]); }
/// Event of the i-th block of the rectangle, i < rect_count, axis 1 fastest.
CCKS_HD constexpr u32 rect_event(const WaitParams& wait, const EventRect& r, u32 i) {
  const u32 width = span_count(r.span[1]);
  const u32 b0 = r.span[0].lo + i / width;
  const u32 b1 = r.span[1].lo + i % width;
  return wait.event_first + b0 * static_cast<u32>(wait.axis[0].stride) + b1 * static_cast<u32>(wait.axis[1].stride);
}
/// Whether every block of `inner` lies in `outer`.
CCKS_HD constexpr bool rect_covers(const EventRect& outer, const EventRect& inner) {
  for (int i = 0; i < 2; ++i) {
    if (inner.span[i].lo < outer.span[i].lo || inner.span[i].hi > outer.span[i].hi) return false;
  }
  return true;
}

/// Event that the finished tile at `coord` adds 1 to.
CCKS_HD constexpr u32 signal_event(const SignalParams& signal, const TileCoord& coord) {
  u32 event = signal.event_first;
  for (int i = 0; i < 2; ++i) {
    if (signal.grid_axis[i] >= 0) event += static_cast<u32>(coord_at(coord, signal.grid_axis[i]) * signal.stride[i]);
  }
  return event;
}

}  // namespace CCKS_ISA
}  // namespace ccks::wire
