#include "scheduler/relay_shares.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <numeric>
#include <random>
#include <vector>

namespace ccks::scheduler {
namespace {

std::vector<std::uint32_t> shares_of(const std::vector<std::uint32_t>& loads, std::uint32_t units, std::uint32_t unit) {
  std::vector<std::uint32_t> shares(loads.size());
  share_units(loads, units, unit, shares);
  return shares;
}

TEST(RelayShares, AreEvenWhereNobodyHasHadAnything) {
  EXPECT_EQ(shares_of({0, 0, 0, 0}, 8, 3), (std::vector<std::uint32_t>{2, 2, 2, 2}));
  EXPECT_EQ(shares_of({7}, 5, 2), (std::vector<std::uint32_t>{5}));
  EXPECT_EQ(shares_of({0, 0, 0, 0}, 0, 3), (std::vector<std::uint32_t>{0, 0, 0, 0}));
}

// A Llama's heads, eight stages and four, and pairs of columns of two stages.
TEST(RelayShares, WhoHasHadLessHasMore) { EXPECT_EQ(shares_of({8, 4, 8, 4}, 64, 2), (std::vector<std::uint32_t>{15, 17, 15, 17})); }

TEST(RelayShares, AreNoMoreThanAnEighthFromEven) {
  EXPECT_EQ(shares_of({100, 0}, 64, 2), (std::vector<std::uint32_t>{28, 36}));
  EXPECT_EQ(shares_of({100, 0}, 8, 2), (std::vector<std::uint32_t>{4, 4})) << "a unit is more than an eighth of it";
}

TEST(RelayShares, AreAllThereIs) {
  std::mt19937 random(5);
  for (int round = 0; round < 300; ++round) {
    std::vector<std::uint32_t> loads(1 + random() % 140);
    for (std::uint32_t& load : loads) load = random() % 60;
    const std::uint32_t units = random() % 3000, unit = 1 + random() % 8, even = units / static_cast<std::uint32_t>(loads.size());
    const std::vector<std::uint32_t> shares = shares_of(loads, units, unit);
    EXPECT_EQ(std::accumulate(shares.begin(), shares.end(), 0u), units);
    EXPECT_GE(*std::min_element(shares.begin(), shares.end()), even - even / 8);
    EXPECT_LE(*std::max_element(shares.begin(), shares.end()), even + 1 + even / 8);
  }
}

}  // namespace
}  // namespace ccks::scheduler
