// What stamp_worker.cu and the reaction bench agree on.
#pragma once

#include "ccks/wire/base.hpp"

namespace ccks::bench {

inline constexpr wire::i32 kStampRows = 2;                   // what every report says: two tiles of the next op exist
inline constexpr wire::u32 kStampLimitNs = 1'000'000'000;    // a producer that ended longer ago was of another run

}  // namespace ccks::bench
