// What blocks of ops share: conditions, and the joining of what was computed under one with what was not.
#pragma once

#include "spec/builder.hpp"

namespace ccks::spec {

/// False, with a complaint, where blocks are nested too deeply.
bool enter_block(Builder& b, const Yaml& node);

/// A name for what counts passes; complains where it means something else already.
std::optional<std::string> read_index(Builder& b, const Yaml& node);

/// `exit == 0`: a report, a comparison, a number. It holds only where the innermost condition here does.
std::optional<Condition> read_condition(Builder& b, const Yaml& node);

/// A name's value where a condition holds, and where it does not.
struct Joined {
  std::string name;
  View then_view, else_view;
  const Yaml* place;
};

/// Makes the name that `key` says mean the one or the other, as `condition` comes out.
void emit_select(Builder& b, const Yaml& key, const Joined& j, std::uint32_t condition);

}  // namespace ccks::spec
