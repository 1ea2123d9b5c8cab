// Who has how much of a product that all lists share: as many of its units as leave lists with as much weights behind it as they can be.
#pragma once

#include <cstdint>
#include <span>

namespace ccks::scheduler {

/// Shares out `units` of a product, which weigh `unit` each, among lists that have had `loads` so far: into `shares`, one each. The lists that have had least get more of it, but none more or
/// less than its even share by over an eighth: an op is through when its longest share is, and what a list has had before counts as far as its weights come ahead.
void share_units(std::span<const std::uint32_t> loads, std::uint32_t units, std::uint32_t unit, std::span<std::uint32_t> shares);

}  // namespace ccks::scheduler
