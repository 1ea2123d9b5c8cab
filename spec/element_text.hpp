// Reads element expressions: what `map`, epilogues and custom references compute for each element.
#pragma once

#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "spec/diagnostics.hpp"

namespace ccks::spec {

/// A name inside an element expression: operand number `argument`, or a constant.
struct ElementName {
  ScalarType type = ScalarType::f32;
  std::uint32_t argument = kNone;
  double constant = 0;  // where argument == kNone
};

/// What the names of an expression mean.
struct ElementNames {
  /// Nothing where the name is unknown and nothing has been said about it yet; `said` where a complaint was made.
  std::function<std::optional<ElementName>(const std::string& name, const Span& where, bool& said)> find;
  std::function<std::vector<std::string>()> all;  // for hints
  std::size_t rank = kMaxRank;                    // index(k) is known for k < rank
};

/// Nothing after a complaint. The last node is the result, converted to nothing in particular.
std::optional<ElementExpr> parse_element(const Text& text, const ElementNames& names, Diagnostics& diagnostics);

/// ScalarType that a tensor of `dtype` has inside an expression.
ScalarType scalar_type(Dtype dtype);
const char* scalar_type_name(ScalarType type);

}  // namespace ccks::spec
