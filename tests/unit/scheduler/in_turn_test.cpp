// Tiles that take unevenly long (Cut::in_turn): who gets them, by lists and one by one.
#include <gtest/gtest.h>

#include <algorithm>

#include "scheduler/list_dealer.hpp"
#include "scheduler/policy_lookahead.hpp"

namespace ccks::scheduler {
namespace {

constexpr std::uint32_t kWorkers = 4, kTiles = 10;

// One stretch of some ops alike.
struct OneOp {
  std::vector<plan::OpDesc> descs;
  std::vector<OpInstance> ops;
  PlanTables tables;
  ListDealer dealer;

  OneOp(bool uneven, std::uint32_t record_capacity, std::uint32_t count = 1) : descs(count), ops(count) {
    tables.plan.ops = descs;
    tables.workers = kWorkers;
    tables.record_capacity = record_capacity;
    tables.stretch_of.assign(count, 0);
    for (std::uint32_t op = 0; op < count; ++op) tables.stretch_ops.push_back(op);
    tables.stretches.push_back({});
    tables.stretches[0].ops = count;
    for (OpInstance& op : ops) {
      op.tiles = kTiles;
      static_cast<Cut&>(op) = cut_tiles(kTiles, kWorkers, uneven);
    }
    dealer.reserve(tables);
    dealer.begin();
  }
  std::vector<DealtTiles> dealt() {
    std::vector<DealtTiles> out;
    dealer.deal(tables, ops, 0, [&](const DealtTiles& tiles) { out.push_back(tiles); });
    return out;
  }
};

TEST(InTurn, OnlyWhereThereAreMoreTilesThanWorkers) {
  EXPECT_TRUE(cut_tiles(kTiles, kWorkers, true).in_turn);
  EXPECT_EQ(cut_tiles(1000 * kWorkers, kWorkers, true).chunk, 1u);
  EXPECT_FALSE(cut_tiles(kWorkers, kWorkers, true).in_turn);
  EXPECT_FALSE(cut_tiles(kTiles, kWorkers, false).in_turn);
}

TEST(InTurn, ListsOfRecordsGetATileEach) {
  OneOp one(true, 1024);
  const auto dealt = one.dealt();
  ASSERT_EQ(dealt.size(), kTiles);
  for (std::uint32_t tile = 0; tile < kTiles; ++tile) {
    EXPECT_EQ(dealt[tile].first, tile);
    EXPECT_EQ(dealt[tile].count, 1u);
    EXPECT_EQ(dealt[tile].worker, tile % kWorkers);
  }
}

// Whoever had one more of the first op has one less of the next, as often as that can be.
TEST(InTurn, TheNextOpBeginsBehindTheLastTile) {
  OneOp two(true, 1024, 2);
  for (int again = 0; again < 2; ++again) {
    std::vector<std::uint32_t> tiles(kWorkers);
    for (const DealtTiles& dealt : two.dealt()) {
      EXPECT_EQ(dealt.worker, (dealt.op * kTiles + dealt.first) % kWorkers) << again;
      ++tiles[dealt.worker];
    }
    for (const std::uint32_t count : tiles) EXPECT_EQ(count, 2 * kTiles / kWorkers) << again;
  }
  RunSlot run;
  Cut cut = cut_tiles(kTiles, kWorkers, true);
  cut.begin = kTiles % kWorkers;
  for (std::uint32_t tile = 0; tile < kTiles; ++tile) EXPECT_EQ(tile_worker(run, cut, tile, kWorkers), (kTiles + tile) % kWorkers);
}

// Of all tiles that there may be only the first so many are there, of each op its own number, and nobody knows how many when they are dealt out.
TEST(InTurn, WhatTwoCountedOpsHaveLeftOverGoesToDifferentWorkers) {
  OneOp two(true, 1024, 2);
  for (plan::OpDesc& desc : two.descs) desc.flags = wire::kOpDynamic;
  two.tables.plan.ops = two.descs;
  const auto dealt = two.dealt();
  ASSERT_EQ(dealt.size(), 2 * kTiles);
  for (std::uint32_t first = 0; first <= kTiles; ++first)
    for (std::uint32_t second = 0; second <= kTiles; ++second) {
      std::vector<std::uint32_t> tiles(kWorkers);
      for (const DealtTiles& one : dealt)
        if (one.first < (one.op == 0 ? first : second)) ++tiles[one.worker];
      const auto [least, most] = std::minmax_element(tiles.begin(), tiles.end());
      EXPECT_LE(*most - *least, 1u) << first << " and " << second;
    }
}

TEST(InTurn, ListsOfTasksAndEvenTilesGoByNeighbourhoods) {
  for (OneOp one : {OneOp(true, 0), OneOp(false, 1024)}) {
    const auto dealt = one.dealt();
    ASSERT_EQ(dealt.size(), kWorkers);
    std::uint32_t tiles = 0;
    for (const DealtTiles& of_worker : dealt) {
      EXPECT_EQ(of_worker.first, tiles);
      tiles += of_worker.count;
    }
    EXPECT_EQ(tiles, kTiles);
  }
}

TEST(InTurn, TilesThatAreSentGoToTheNextWorkerToo) {
  RunSlot run;
  run.worker_base = 3;
  const Cut cut = cut_tiles(kTiles, kWorkers, true);
  for (std::uint32_t tile = 0; tile < kTiles; ++tile) EXPECT_EQ(tile_worker(run, cut, tile, kWorkers), (3 + tile) % kWorkers);
}

}  // namespace
}  // namespace ccks::scheduler
