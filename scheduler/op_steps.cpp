#include "scheduler/op_steps.hpp"

#include <algorithm>

#include "scheduler/tuning.hpp"

namespace ccks::scheduler {
namespace {

// Bit sets of steps: who stands before whom. Quadratic, so only for plans of sane length.
class Ancestors {
 public:
  explicit Ancestors(std::size_t steps) : words_((steps + 63) / 64), bits_(words_ * steps) {}
  bool has(std::uint32_t step, std::uint32_t other) const { return bits_[step * words_ + other / 64] >> other % 64 & 1; }
  void add(std::uint32_t step, std::uint32_t other) {
    for (std::size_t w = 0; w < words_; ++w) bits_[step * words_ + w] |= bits_[other * words_ + w];
    bits_[step * words_ + other / 64] |= std::uint64_t{1} << other % 64;
  }

 private:
  std::size_t words_;
  std::vector<std::uint64_t> bits_;
};

// Steps that op `op` stands directly behind, latest first.
std::vector<std::uint32_t> producers(const plan::PlanView& plan, std::uint32_t op,
                                     const std::vector<std::vector<std::uint32_t>>& stands_for) {
  std::vector<std::uint32_t> out;
  const plan::OpDesc& desc = plan.ops[op];
  for (std::uint32_t w = 0; w < desc.wait_count; ++w) {
    const auto& steps = stands_for[plan.waits[desc.wait_first + w].producer];
    out.insert(out.end(), steps.begin(), steps.end());
  }
  std::sort(out.begin(), out.end(), std::greater<>());
  out.erase(std::unique(out.begin(), out.end()), out.end());
  return out;
}

}  // namespace

OpSteps make_op_steps(const PlanTables& tables, std::span<const std::uint32_t> tiles) {
  OpSteps out;
  const std::size_t launches = tiles.size() - static_cast<std::size_t>(std::count(tiles.begin(), tiles.end(), 0u));
  const bool reduce = launches <= kMaxReducedSteps;
  Ancestors ancestors(reduce ? launches : 0);
  std::vector<std::vector<std::uint32_t>> stands_for(tiles.size());  // per op: the steps its consumers depend on
  for (std::uint32_t op = 0; op < tiles.size(); ++op) {
    std::vector<std::uint32_t> before = producers(tables.plan, op, stands_for);
    if (tiles[op] == 0) {
      stands_for[op] = std::move(before);
      continue;
    }
    const auto step = static_cast<std::uint32_t>(out.steps.size());
    const auto first = static_cast<std::uint32_t>(out.dependencies.size());
    for (const std::uint32_t producer : before) {
      if (reduce && ancestors.has(step, producer)) continue;
      out.dependencies.push_back(producer);
      if (reduce) ancestors.add(step, producer);
    }
    out.steps.push_back({op, tiles[op], first, static_cast<std::uint32_t>(out.dependencies.size()) - first});
    stands_for[op] = {step};
  }
  return out;
}

}  // namespace ccks::scheduler
