// Ragged dims (RaggedDim): their tables, made where a program names them.
#pragma once

#include <optional>
#include <string>
#include <string_view>

#include "spec/builder.hpp"

namespace ccks::spec {

/// The ragged dim that `name`, "dim" or "dim.table", belongs to, or null.
const RaggedDim* ragged_of(const Program& program, std::string_view name);
/// The table "dim.reach", "dim.spans" or "dim.position", made by the first who asks for it. Nothing where there is none of that name.
std::optional<View> ragged_table(Builder& b, const std::string& name);

}  // namespace ccks::spec
