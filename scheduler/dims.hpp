// Evaluation of a plan's symbolic values, and the checks that stand in front of every run (R2).
#pragma once

#include <cstdint>
#include <span>
#include <string_view>
#include <utility>
#include <vector>

#include "ccks/plan.hpp"
#include "ccks/result.hpp"

namespace ccks::scheduler {

using DimValues = std::vector<std::pair<std::string_view, std::int64_t>>;

/// bind_symbols fills one value per symbol from `given` and the presets. invalid_argument for an unknown or missing
/// name, out_of_range for a value outside its declared range.
Status bind_symbols(const plan::PlanView& plan, const DimValues& given, std::span<std::int64_t> symbols);

/// evaluate_plan fills one value per dim node and holds the plan's run-time checks against them. Nothing is allocated
/// on success.
Status evaluate_plan(const plan::PlanView& plan, std::span<const std::int64_t> symbols, std::span<std::int64_t> dims);

/// Bytes of `tensor` at these dim values.
std::uint64_t tensor_bytes(const plan::TensorDesc& tensor, std::span<const std::int64_t> dims);

}  // namespace ccks::scheduler
