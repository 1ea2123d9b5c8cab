#include "ccks/wire/event.hpp"

#include <gtest/gtest.h>

#include <random>
#include <set>

namespace ccks::wire {
namespace {

TEST(Event, TargetGrowsWithTheRunAndWraps) {
  EXPECT_EQ(event_target(0, 0, 0, 4), 4u);
  EXPECT_EQ(event_target(10, 7, 5, 4), 10u + 2 * 4 + 4);
  EXPECT_EQ(event_target(0xfffffffeu, 0, 0, 4), 2u);
  EXPECT_EQ(event_target(0, 1, 0xffffffffu, 3), 9u);  // the epoch has wrapped since epoch0
}

TEST(Event, ReachedHoldsAcrossTheWrap) {
  EXPECT_TRUE(event_reached(4, 4));
  EXPECT_FALSE(event_reached(3, 4));
  EXPECT_TRUE(event_reached(5, 4));
  EXPECT_FALSE(event_reached(0xffffffffu, 2));
  EXPECT_TRUE(event_reached(2, 0xffffffffu));
}

TEST(Event, AMillionRunsAcrossTheWrapNeverConfuseTwoRuns) {
  const u32 base = 0xfff00000u, total = 3;
  u32 counter = base;
  for (u32 epoch = 0; epoch < 1'000'000; ++epoch) {
    const u32 target = event_target(base, epoch, 0, total);
    for (u32 i = 0; i < total; ++i) {
      ASSERT_FALSE(event_reached(counter, target));
      ++counter;
    }
    ASSERT_TRUE(event_reached(counter, target));
  }
}

TEST(Event, TileCoordinatesAreRowMajor) {
  const i32 grid[4] = {2, 3, 4, 5};
  u32 tile = 0;
  for (i32 a = 0; a < 2; ++a)
    for (i32 b = 0; b < 3; ++b)
      for (i32 c = 0; c < 4; ++c)
        for (i32 d = 0; d < 5; ++d, ++tile) {
          const TileCoord coord = tile_coord(grid, tile);
          EXPECT_EQ(coord.c[0], a);
          EXPECT_EQ(coord.c[1], b);
          EXPECT_EQ(coord.c[2], c);
          EXPECT_EQ(coord.c[3], d);
        }
}

/// The blocks an axis window touches, index by index.
std::set<i64> touched(const WaitAxis& axis, i64 coordinate) {
  std::set<i64> blocks;
  if (axis.grid_axis < 0) {
    for (i64 i = 0; i < axis.extent; ++i) blocks.insert(i / axis.block);
    return blocks;
  }
  for (i64 i = 0; i < axis.length; ++i) {
    const i64 index = coordinate * axis.step + axis.offset + i;
    if (index >= 0 && index < axis.extent) blocks.insert(index / axis.block);
  }
  return blocks;
}

TEST(Event, WindowsMatchIndexByIndexCounting) {
  std::mt19937 random(20240607);
  const auto pick = [&random](int lo, int hi) { return std::uniform_int_distribution<int>(lo, hi)(random); };
  for (int round = 0; round < 20'000; ++round) {
    WaitAxis axis{pick(-1, 3), pick(0, 9), pick(-12, 12), pick(0, 12), pick(0, 40), pick(1, 9), 1, 0};
    TileCoord coord;
    for (i32& c : coord.c) c = pick(0, 6);
    const EventSpan span = wait_span(axis, coord);
    const std::set<i64> expected = touched(axis, axis.grid_axis < 0 ? 0 : coord.c[axis.grid_axis]);
    ASSERT_EQ(span_count(span), expected.size());
    if (!expected.empty()) {
      ASSERT_EQ(span.lo, static_cast<u32>(*expected.begin()));
      ASSERT_EQ(span.hi, static_cast<u32>(*expected.rbegin() + 1));
    }
  }
}

TEST(Event, LargeCoordinatesDoNotOverflow) {
  const WaitAxis axis{3, 1 << 20, -(1 << 20), 1 << 20, 0x7fffffff, 1 << 10, 1, 0};
  TileCoord coord;
  coord.c[3] = 2000;
  const EventSpan span = wait_span(axis, coord);
  EXPECT_EQ(span.lo, (1999u << 20) >> 10);
  EXPECT_EQ(span.hi, 2000u << 10);
}

TEST(Event, RectangleListsItsEventsOnce) {
  WaitParams wait{};
  wait.event_first = 100;
  wait.axis[0] = {0, 1, 0, 3, 10, 1, 16, 0};
  wait.axis[1] = {1, 2, 0, 4, 8, 2, 1, 0};
  TileCoord coord;
  coord.c[0] = 2;
  coord.c[1] = 1;
  const EventRect rect = wait_rect(wait, coord);
  ASSERT_EQ(rect_count(rect), 6u);
  std::set<u32> events;
  for (u32 i = 0; i < rect_count(rect); ++i) events.insert(rect_event(wait, rect, i));
  EXPECT_EQ(events, (std::set<u32>{133, 134, 149, 150, 165, 166}));
  EXPECT_EQ(rect_event(wait, rect, 0), 133u);
}

TEST(Event, WindowClippedToNothingWaitsForNothing) {
  WaitParams wait{};
  wait.axis[0] = {0, 1, -5, 3, 10, 1, 1, 0};
  wait.axis[1] = {-1, 0, 0, 0, 4, 4, 0, 0};
  EXPECT_EQ(rect_count(wait_rect(wait, TileCoord{})), 0u);
  wait.axis[0].extent = 0;
  wait.axis[0].grid_axis = -1;
  EXPECT_EQ(rect_count(wait_rect(wait, TileCoord{})), 0u);
}

TEST(Event, CoverMeansEveryBlock) {
  const EventRect big{{{2, 6}, {0, 3}}};
  EXPECT_TRUE(rect_covers(big, big));
  EXPECT_TRUE(rect_covers(big, {{{3, 4}, {1, 2}}}));
  EXPECT_FALSE(rect_covers(big, {{{1, 4}, {1, 2}}}));
  EXPECT_FALSE(rect_covers(big, {{{3, 4}, {1, 4}}}));
}

TEST(Event, SignalUsesOnlyTheAxesItIsSplitOn) {
  const SignalParams signal{50, 4, {1, 3}, {10, 1}, 30, 0};
  TileCoord coord;
  coord.c[0] = 9;
  coord.c[1] = 2;
  coord.c[3] = 4;
  EXPECT_EQ(signal_event(signal, coord), 74u);
  EXPECT_EQ(signal_event({50, 4, {-1, 2}, {10, 1}, 30, 0}, coord), 50u);
}

}  // namespace
}  // namespace ccks::wire
