// Ragged dims (RaggedDim): tables of the parser, and lengths for who gives none.
#pragma once

#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "spec/builder.hpp"
#include "spec/reference.hpp"

namespace ccks::spec {

/// The ragged dim that `name`, "dim" or "dim.table", belongs to, or null.
const RaggedDim* ragged_of(const Program& program, std::string_view name);
/// The table "dim.reach", "dim.spans" or "dim.position", made by the first who asks for it. Nothing where there is none of that name.
std::optional<View> ragged_table(Builder& b, const std::string& name);

}  // namespace ccks::spec
