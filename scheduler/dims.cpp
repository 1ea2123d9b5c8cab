#include "scheduler/dims.hpp"

#include <fmt/format.h>

#include <algorithm>

#include "ccks/plan_eval.hpp"

namespace ccks::scheduler {

Status bind_symbols(const plan::PlanView& plan, const DimValues& given, std::span<std::int64_t> symbols) {
  for (const auto& [name, value] : given) {
    const bool known =
        std::any_of(plan.symbols.begin(), plan.symbols.end(), [&](const auto& s) { return name == s.name; });
    if (!known) return {ErrorCode::invalid_argument, fmt::format("program '{}' has no symbol '{}'", plan.name, name)};
  }
  for (std::size_t i = 0; i < plan.symbols.size(); ++i) {
    const plan::SymbolDesc& symbol = plan.symbols[i];
    const auto found =
        std::find_if(given.rbegin(), given.rend(), [&](const auto& g) { return g.first == symbol.name; });
    if (found == given.rend() && !symbol.has_preset) {
      return {ErrorCode::invalid_argument,
              fmt::format("symbol '{}' has no value: give one from {} to {}", symbol.name, symbol.lo, symbol.hi)};
    }
    const std::int64_t value = found == given.rend() ? symbol.preset : found->second;
    if (value < symbol.lo || value > symbol.hi) {
      return {ErrorCode::out_of_range,
              fmt::format("{} = {} is outside its range {} to {}", symbol.name, value, symbol.lo, symbol.hi)};
    }
    symbols[i] = value;
  }
  return {};
}

Result<std::vector<GivenLengths>> bind_lengths(const plan::PlanView& plan, const Lengths& lengths, DimValues& dims) {
  std::vector<GivenLengths> out;
  for (const auto& [name, values] : lengths) {
    const auto found = std::find_if(plan.ragged.begin(), plan.ragged.end(), [&](const auto& r) { return name == plan.symbols[r.symbol].name; });
    if (found == plan.ragged.end()) return {ErrorCode::invalid_argument, fmt::format("program '{}' has no ragged dim '{}'", plan.name, name)};
    for (std::size_t i = 0; i < values.size(); ++i) {
      if (values[i] >= found->length_lo && values[i] <= found->length_hi) continue;
      return {ErrorCode::out_of_range,
              fmt::format("{}: length {} of sequence {} is outside its range {} to {}", name, values[i], i, found->length_lo, found->length_hi)};
    }
    const RaggedRows rows{values, found->pad, found->round};
    const auto value = std::find_if(dims.rbegin(), dims.rend(), [&, dim = name](const auto& d) { return d.first == dim; });
    if (value == dims.rend())
      dims.emplace_back(name, rows.rows());
    else if (value->second < rows.rows())
      return {ErrorCode::out_of_range, fmt::format("{} = {} is too few for sequences of {} rows", name, value->second, rows.rows())};
    out.push_back({&*found, rows});
  }
  return out;
}

Status check_lengths(const plan::PlanView& plan, std::span<const GivenLengths> given, std::span<const std::int64_t> dims) {
  for (const GivenLengths& g : given) {
    const std::int64_t want = dims[g.ragged->count];
    if (static_cast<std::int64_t>(g.rows.lengths.size()) == want) continue;
    return {ErrorCode::out_of_range,
            fmt::format("{}: {} lengths for {} sequences", plan.symbols[g.ragged->symbol].name, g.rows.lengths.size(), want)};
  }
  return {};
}

Status evaluate_plan(const plan::PlanView& plan, std::span<const std::int64_t> symbols, std::span<std::int64_t> dims) {
  if (!plan::evaluate_dims(plan.dims, symbols, dims)) {
    return {ErrorCode::out_of_range, fmt::format("a size of program '{}' overflows or divides by zero", plan.name)};
  }
  for (const plan::CheckDesc& check : plan.checks) {
    const std::int64_t lhs = dims[check.lhs];
    const std::int64_t rhs = dims[check.rhs];
    const bool equal = check.relation == plan::Relation::equal;
    if (equal ? lhs == rhs : lhs <= rhs) continue;
    return {ErrorCode::out_of_range, fmt::format("{}: {} {} {}", check.message, lhs, equal ? "!=" : ">", rhs)};
  }
  return {};
}

std::uint64_t tensor_bytes(const plan::TensorDesc& tensor, std::span<const std::int64_t> dims) {
  std::uint64_t elements = 1;
  for (std::uint8_t i = 0; i < tensor.rank; ++i) elements *= static_cast<std::uint64_t>(dims[tensor.shape[i]]);
  return elements * wire::dtype_bytes(tensor.dtype);
}

}  // namespace ccks::scheduler
