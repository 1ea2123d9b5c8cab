// The YAML that specs are written in: a subset, as a small tree that knows where each node stands.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "spec/diagnostics.hpp"

namespace ccks::spec {

/// One node. A mapping holds its keys and values in turn in `children`.
struct Yaml {
  enum class Kind : std::uint8_t { null, scalar, sequence, mapping };

  Kind kind = Kind::null;
  bool quoted = false;
  bool exact = true;  // see Text
  Span span;
  std::string text;
  std::vector<Yaml> children;

  bool is_null() const { return kind == Kind::null; }
  bool is_scalar() const { return kind == Kind::scalar; }
  bool is_sequence() const { return kind == Kind::sequence; }
  bool is_mapping() const { return kind == Kind::mapping; }
  Text as_text() const { return {text, span, exact}; }
  /// Value of `key` in a mapping, or null pointer.
  const Yaml* find(std::string_view key) const;
  const char* kind_name() const;
};

/// Limits that keep hostile text from costing more than it is worth. Real programs stay far below each.
inline constexpr std::size_t kMaxYamlDepth = 48;
inline constexpr std::size_t kMaxYamlNodes = 100'000;

/// read_yaml parses one document; complaints go to `diagnostics`, and nothing is returned where the text is not YAML.
std::optional<Yaml> read_yaml(const std::string& text, std::uint32_t file, Diagnostics& diagnostics);

}  // namespace ccks::spec
