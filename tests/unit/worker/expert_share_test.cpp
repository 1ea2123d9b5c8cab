// Shares of an expert_matmul: parts of all of them are every column of every row once, and none is longer than the others by more than a step of columns.
#include <gtest/gtest.h>

#include <algorithm>
#include <random>

#include "ccks/worker/ops_matmul.hpp"

namespace ccks::worker::test {
namespace {

struct Counts {
  std::vector<i32> of;
  u32 rows = 0;

  View<Fixed<Dtype::i32>> view() {
    const i32 n = static_cast<i32>(of.size());
    return {reinterpret_cast<u8*>(of.data()), {n, n, n, 1}, {1, 1, 1, n}, {}};
  }
};

Counts some_counts(std::mt19937& random, u32 experts) {
  Counts counts;
  for (u32 e = 0; e < experts; ++e) {
    const u32 most[] = {0, 1, 8, 40, 700};
    counts.of.push_back(static_cast<i32>(random() % (most[random() % 5] + 1)));
    counts.rows += static_cast<u32>(counts.of.back());
  }
  return counts;
}

/// Columns that each row has been multiplied by, and what the longest share costs.
struct Dealt {
  std::vector<std::vector<u32>> times;
  u64 longest = 0, all = 0;
  u32 steepest = 0;  // what a step of columns costs at most
};

void take_parts(Counts& counts, const ShareOf& of, Dealt& dealt) {
  const u32 experts = static_cast<u32>(counts.of.size());
  const FoundShare found = find_share(counts.view(), experts, of);
  ASSERT_TRUE(found.sound);
  ExpertShare share(counts.view(), experts, of, found);
  u64 cost = 0;
  for (ExpertPart part; share.next(part);) {
    ASSERT_GT(part.columns, 0u);
    ASSERT_GT(part.rows.count, 0u);
    ASSERT_LE(part.rows.count, of.rows_per_tile);
    u32 first = 0;
    for (i32 e = 0; e < part.rows.expert; ++e) first += static_cast<u32>(counts.of[static_cast<std::size_t>(e)]);
    ASSERT_GE(part.rows.first, first);
    ASSERT_LE(part.rows.first + part.rows.count, first + static_cast<u32>(counts.of[static_cast<std::size_t>(part.rows.expert)]));
    for (u32 i = 0; i < part.rows.count; ++i)
      for (u32 j = 0; j < part.columns; ++j) ++dealt.times[part.rows.first + i][static_cast<u32>(part.column) + j];
    cost += u64{expert_column_cost(part.rows.count)} * part.columns;
    dealt.steepest = std::max(dealt.steepest, expert_column_cost(part.rows.count) * expert_share_columns(part.rows.count, of.block));
  }
  dealt.all += cost;
  dealt.longest = std::max(dealt.longest, cost);
}

TEST(ExpertShares, AreAllOfItOnceAndAlike) {
  std::mt19937 random(5);
  for (int turn = 0; turn < 60; ++turn) {
    Counts counts = some_counts(random, static_cast<u32>(1 + random() % 40));
    ShareOf of{0, static_cast<u32>(1 + random() % 50), static_cast<u32>(1 + random() % 400), counts.rows, 128, turn % 2 == 0 ? 64u : 128u};
    Dealt dealt{std::vector<std::vector<u32>>(counts.rows, std::vector<u32>(of.columns))};
    for (; of.index < of.shares; ++of.index) take_parts(counts, of, dealt);
    for (const std::vector<u32>& row : dealt.times) ASSERT_TRUE(std::all_of(row.begin(), row.end(), [](u32 times) { return times == 1; })) << turn;
    EXPECT_LE(dealt.longest, dealt.all / of.shares + dealt.steepest + 1) << turn;
  }
}

TEST(ExpertShares, CountsThatCannotBeAreFaults) {
  Counts counts{{3, -1, 4}, 7};
  EXPECT_FALSE(find_share(counts.view(), 3, {0, 2, 64, 7, 128, 64}).sound);
  counts.of[1] = 1;
  EXPECT_FALSE(find_share(counts.view(), 3, {0, 2, 64, 7, 128, 64}).sound);
  counts.of[1] = 0;
  EXPECT_TRUE(find_share(counts.view(), 3, {0, 2, 64, 7, 128, 64}).sound);
}

}  // namespace
}  // namespace ccks::worker::test
