// Which rows a step has: whatever comes and goes, no two sequences share a seat or a page, each gets the rows of its prompt and then one for each token, in order,
// and all comes back.
#include "scheduler/batcher.hpp"

#include <gtest/gtest.h>

#include <map>
#include <random>
#include <set>

namespace ccks::scheduler {
namespace {

constexpr BatchLimits kLimits = {.seats = 4, .pool = 12, .page = 4, .seat_pages = 6, .rows = 8};

std::shared_ptr<Sequence> sequence(std::uint64_t id, std::uint32_t prompt, std::uint32_t tokens, std::vector<std::int32_t> stop = {}) {
  auto s = std::make_shared<Sequence>();
  s->id = id;
  for (std::uint32_t i = 0; i < prompt; ++i) s->prompt.push_back(static_cast<std::int32_t>(100 * id + i));
  s->max_tokens = tokens;
  s->stop = std::move(stop);
  return s;
}
void drop(Sequence&, std::int32_t, bool) {}

TEST(Batcher, StepsAreSizedInPowersOfTwo) {
  EXPECT_EQ(step_size(1, 256), 1u);
  EXPECT_EQ(step_size(5, 256), 8u);
  EXPECT_EQ(step_size(64, 256), 64u);
  EXPECT_EQ(step_size(90, 100), 100u) << "no more than there is room for";
}

TEST(Batcher, RowsThatGoOnComeBeforePromptsWhichTakeWhatIsLeft) {
  Batcher batcher(kLimits);
  Step step;
  EXPECT_FALSE(batcher.compose(step));
  batcher.add(sequence(1, 3, 4));
  ASSERT_TRUE(batcher.compose(step));
  EXPECT_EQ(step.used_rows, 3u);
  EXPECT_EQ(step.rows, 4u);
  EXPECT_EQ(step.token, (std::vector<std::int32_t>{100, 101, 102, 0}));
  EXPECT_EQ(step.position, (std::vector<std::int32_t>{0, 1, 2, -1}));
  EXPECT_EQ(step.take, (std::vector<std::int32_t>{2, -1, -1, -1})) << "of the prompt the last row";
  EXPECT_EQ(step.keep[0], step.seat[2]);
  EXPECT_EQ(step.seat[3], -1);
  batcher.add(sequence(2, 9, 2));
  Step next;  // before anything is known of the first
  ASSERT_TRUE(batcher.compose(next));
  EXPECT_EQ(next.used_rows, 8u);
  EXPECT_EQ(next.token[0], -1) << "what the device has found last";
  EXPECT_EQ(next.position[0], 3);
  EXPECT_EQ(next.token[1], 200);
  EXPECT_EQ(next.take, (std::vector<std::int32_t>{0, -1, -1, -1})) << "two of the prompt's rows are left";
  Step third;
  ASSERT_TRUE(batcher.compose(third));
  EXPECT_EQ(third.used_rows, 3u);
  EXPECT_EQ(third.position[0], 4);
  EXPECT_EQ(third.position[1], 7);
  EXPECT_EQ(third.take, (std::vector<std::int32_t>{0, 2, -1, -1}));
}

TEST(Batcher, WhatIsFoundBehindAnEndIsDroppedAndItsSeatStaysUntilThen) {
  Batcher batcher(kLimits);
  batcher.add(sequence(1, 1, 8, {7}));
  Step first, second;
  ASSERT_TRUE(batcher.compose(first));
  ASSERT_TRUE(batcher.compose(second));
  std::vector<std::int32_t> told;
  const auto tell = [&](Sequence&, std::int32_t token, bool) { told.push_back(token); };
  batcher.complete(first, std::vector<std::int32_t>{7, 0, 0, 0}, tell);
  EXPECT_EQ(batcher.free_seats(), 3u) << "the second step names it";
  EXPECT_FALSE(batcher.idle());
  batcher.complete(second, std::vector<std::int32_t>{5, 0, 0, 0}, tell);
  EXPECT_EQ(told, (std::vector<std::int32_t>{7}));
  EXPECT_EQ(batcher.free_seats(), 4u);
  EXPECT_EQ(batcher.free_pages(), 12u);
  EXPECT_TRUE(batcher.idle());
}

TEST(Batcher, AsksForNoMoreTokensThanAreWanted) {
  Batcher batcher(kLimits);
  batcher.add(sequence(1, 2, 1));
  Step step;
  ASSERT_TRUE(batcher.compose(step));
  Step more;
  EXPECT_FALSE(batcher.compose(more));
  batcher.complete(step, std::vector<std::int32_t>{3, 0}, drop);
  EXPECT_TRUE(batcher.idle());
}

TEST(Batcher, RefusesWhatNeverFits) {
  const Batcher batcher(kLimits);
  EXPECT_TRUE(batcher.check(*sequence(1, 20, 5)).ok()) << "24 positions: the last token is not fed";
  EXPECT_EQ(batcher.check(*sequence(1, 20, 6)).code(), ErrorCode::out_of_range);
  EXPECT_EQ(batcher.check(*sequence(1, 0, 6)).code(), ErrorCode::invalid_argument);
  EXPECT_EQ(batcher.check(*sequence(1, 4, 0)).code(), ErrorCode::invalid_argument);
}

TEST(Batcher, WhoFindsNoPagesKeepsThoseBehindItWaiting) {
  Batcher batcher(kLimits);
  for (const std::uint64_t id : {1, 2}) batcher.add(sequence(id, 17, 2));  // five pages each
  batcher.add(sequence(3, 9, 2));                                          // three
  batcher.add(sequence(4, 1, 1));                                          // one
  Step step;
  ASSERT_TRUE(batcher.compose(step));
  EXPECT_EQ(batcher.running(), 2u);
}

// What a device would have: every row must lie in pages of its own sequence, at the position behind the last one fed.
struct World {
  std::map<std::int32_t, std::uint64_t> page_of;  // whose
  std::map<std::uint64_t, std::int32_t> fed;
  void look(const Step& step) {
    std::map<std::int32_t, std::uint64_t> by_seat;
    for (const auto& s : step.names) by_seat[s->seat] = s->id;
    for (std::uint32_t i = 0; i < step.used_rows; ++i) {
      ASSERT_TRUE(by_seat.contains(step.seat[i]));
      const std::uint64_t id = by_seat[step.seat[i]];
      EXPECT_EQ(step.position[i], fed[id]++);
      const std::int32_t page = step.pages[i * kLimits.seat_pages + static_cast<std::uint32_t>(step.position[i]) / kLimits.page];
      ASSERT_GE(page, 0);
      ASSERT_LT(page, static_cast<std::int32_t>(kLimits.pool));
      const auto [known, fresh] = page_of.emplace(page, id);
      EXPECT_EQ(known->second, id) << "page " << page << " is somebody else's";
    }
  }
};

TEST(Batcher, RandomTrafficSharesNothingAndLosesNothing) {
  for (std::uint32_t seed = 1; seed <= 50; ++seed) {
    std::mt19937 random(seed);
    Batcher batcher(kLimits);
    World world;
    std::deque<Step> under_way;
    std::map<std::uint64_t, std::uint32_t> tokens, wanted;
    std::uint64_t next = 1;
    for (std::uint32_t turn = 0; turn < 200 || !batcher.idle() || !under_way.empty(); ++turn) {
      ASSERT_LT(turn, 2000u);
      if (turn < 200 && random() % 3 == 0) {
        const auto s = sequence(next++, 1 + random() % 12, 1 + random() % 9, random() % 2 ? std::vector<std::int32_t>{0} : std::vector<std::int32_t>{});
        wanted[s->id] = s->max_tokens;
        batcher.add(s);
      }
      Step step;
      if (under_way.size() <= seed % 3 && batcher.compose(step)) {
        world.look(step);
        under_way.push_back(std::move(step));
      }
      if (under_way.empty() || random() % 2) continue;
      std::vector<std::int32_t> found(under_way.front().taken);
      for (std::int32_t& token : found) token = static_cast<std::int32_t>(random() % 6);
      std::set<std::uint64_t> ended;
      batcher.complete(under_way.front(), found, [&](Sequence& s, std::int32_t token, bool end) {
        ++tokens[s.id];
        EXPECT_EQ(end, tokens[s.id] == wanted[s.id] || (!s.stop.empty() && token == 0));
        if (end) wanted[s.id] = tokens[s.id];
      });
      under_way.pop_front();
      std::set<std::uint64_t> named;  // pages of the others are free again
      for (const Step& s : under_way)
        for (const auto& q : s.names) named.insert(q->id);
      std::erase_if(world.page_of, [&](const auto& p) { return tokens[p.second] == wanted[p.second] && !named.contains(p.second); });
    }
    for (const auto& [id, count] : wanted) EXPECT_EQ(tokens[id], count) << "of " << id;
    EXPECT_EQ(batcher.free_seats(), kLimits.seats);
    EXPECT_EQ(batcher.free_pages(), kLimits.pool);
  }
}

}  // namespace
}  // namespace ccks::scheduler
