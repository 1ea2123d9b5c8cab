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
        std::vector<u32> taken(active * columns, 0);
        const u32 slots = relay_share_slots(active, columns, lists);
        u32 least = active * columns, most = 0;
        for (u32 list = 0; list < lists; ++list) {
          u32 all = 0;
          for (u32 slot = 0; slot < slots + 2; ++slot) {
            const RelayShare share = relay_share(active, columns, list, lists, slot);
            EXPECT_EQ(share.columns % kRelayShareColumns, 0u);
            if (slot >= slots) EXPECT_EQ(share.columns, 0u) << "more experts than slots";
            for (u32 i = 0; i < share.columns; ++i) ++taken.at(share.active * columns + share.first + i);
            all += share.columns;
          }
          least = all < least ? all : least, most = all > most ? all : most;
        }
        EXPECT_LE(most - least, static_cast<u32>(kRelayShareColumns));
        for (const u32 times : taken) EXPECT_EQ(times, 1u);
      }
    }
  }
}

}  // namespace
}  // namespace ccks::wire
