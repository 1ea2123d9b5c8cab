// Evaluation of a plan's symbolic values, and the checks that stand in front of every run (R2).
#pragma once

#include <cstdint>
#include <span>
#include <string_view>
#include <utility>
#include <vector>

#include "ccks/plan.hpp"
#include "ccks/ragged.hpp"
#include "ccks/result.hpp"

namespace ccks::scheduler {

using DimValues = std::vector<std::pair<std::string_view, std::int64_t>>;

/// bind_symbols fills one value per symbol from `given` and the presets. invalid_argument for an unknown or missing
/// name, out_of_range for a value outside its declared range.
Status bind_symbols(const plan::PlanView& plan, const DimValues& given, std::span<std::int64_t> symbols);

/// One ragged dim of a run and the lengths that were given for it.
struct GivenLengths {
  const plan::RaggedDesc* ragged;
  RaggedRows rows;
};
using Lengths = std::vector<std::pair<std::string_view, std::span<const std::int32_t>>>;

/// bind_lengths finds the ragged dims that `lengths` name and gives their symbols values in `dims`, where they have none. invalid_argument for an unknown
/// name, out_of_range for a length outside its range or a value in `dims` that is too small for them.
Result<std::vector<GivenLengths>> bind_lengths(const plan::PlanView& plan, const Lengths& lengths, DimValues& dims);
/// out_of_range where there are not as many lengths as sequences.
Status check_lengths(const plan::PlanView& plan, std::span<const GivenLengths> given, std::span<const std::int64_t> dims);

/// evaluate_plan fills one value per dim node and holds the plan's run-time checks against them. Nothing is allocated
/// on success.
Status evaluate_plan(const plan::PlanView& plan, std::span<const std::int64_t> symbols, std::span<std::int64_t> dims);

/// Bytes of `tensor` at these dim values.
std::uint64_t tensor_bytes(const plan::TensorDesc& tensor, std::span<const std::int64_t> dims);

}  // namespace ccks::scheduler
