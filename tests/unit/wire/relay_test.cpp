#include "ccks/wire/relay.hpp"

#include <gtest/gtest.h>

#include <vector>

namespace ccks::wire {
namespace {

// Whatever experts are active, lists share all their columns, each once, as evenly as stages are.
TEST(RelayShare, IsEverythingOnce) {
  for (const u32 active : {1u, 2u, 7u, 43u, 128u}) {
    for (const u32 columns : {2u, 6u, 768u}) {
      for (const u32 lists : {1u, 3u, 132u}) {
        SCOPED_TRACE(testing::Message() << active << " experts of " << columns << ", " << lists << " lists");
        std::vector<u32> taken(active * columns, 0), costs, begins{0};
        for (u32 i = 0; i < active; ++i) {
          costs.push_back(relay_share_cost(1 + i * 5 % 8));
          begins.push_back(begins.back() + costs.back() * (columns / kRelayShareColumns));
        }
        u32 least = ~0u, most = 0;
        for (u32 list = 0; list < lists; ++list) {
          u32 count = 0, experts = 0;
          for (u32 i = 0; i < active; ++i) {
            const RelayShare share = relay_share(relay_span(begins.back(), list, lists), begins[i], costs[i], columns);
            EXPECT_EQ(share.columns % kRelayShareColumns, 0u);
            for (u32 column = 0; column < share.columns; ++column) ++taken.at(i * columns + share.first + column);
            count += share.columns / kRelayShareColumns * costs[i];
            experts += share.columns != 0 ? 1 : 0;
          }
          EXPECT_LE(experts, relay_share_slots(active, columns, lists));
          least = count < least ? count : least, most = count > most ? count : most;
        }
        EXPECT_LE(most - least, 2 * kMostShareCost);
        for (const u32 times : taken) EXPECT_EQ(times, 1u);
      }
    }
  }
}

}  // namespace
}  // namespace ccks::wire
