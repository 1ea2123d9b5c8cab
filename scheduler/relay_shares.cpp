#include "scheduler/relay_shares.hpp"

#include <algorithm>
#include <numeric>

namespace ccks::scheduler {
namespace {

constexpr int kHalvings = 30;

}  // namespace

// Up to one level, as far as bounds let them; shares that are no whole number are rounded so that what is left over goes to the lists behind.
void share_units(std::span<const std::uint32_t> loads, std::uint32_t units, std::uint32_t unit, std::span<std::uint32_t> shares) {
  const auto lists = static_cast<std::uint32_t>(loads.size());
  const std::uint32_t even = units / lists, more = units % lists != 0 ? 1 : 0, least = even - even / 8, most = even + more + even / 8;
  const auto share_at = [&](double level, std::uint32_t list) {
    return std::clamp((level - loads[list]) / unit, static_cast<double>(least), static_cast<double>(most));
  };
  double low = *std::min_element(loads.begin(), loads.end()), high = *std::max_element(loads.begin(), loads.end()) + static_cast<double>(most) * unit;
  for (int i = 0; i < kHalvings; ++i) {
    const double level = (low + high) / 2;
    double sum = 0;
    for (std::uint32_t list = 0; list < lists; ++list) sum += share_at(level, list);
    (sum < units ? low : high) = level;
  }
  double sum = 0;
  std::uint32_t given = 0;
  for (std::uint32_t list = 0; list < lists; ++list) {
    sum += share_at(high, list);
    const std::uint32_t upto = list + 1 == lists ? units : std::min(units, static_cast<std::uint32_t>(sum + 0.5));
    shares[list] = upto - given;
    given = upto;
  }
}

}  // namespace ccks::scheduler
