// Operands as they are written: `x`, `u[:, 0:f]`, `kc[l, 0:pos+n].T`, and where results go.
#pragma once

#include <optional>

#include "spec/builder.hpp"

namespace ccks::spec {

/// A view, or nothing: after a complaint, or silently where the name's own definition was at fault.
std::optional<View> parse_operand(Builder& b, const Text& text);
/// Slices `v` by what stands between brackets, e.g. ":, 0:f".
std::optional<View> parse_slice(Builder& b, const View& v, const Text& text);
/// The same elements of a whole tensor under another shape: an alias, made once for each shape.
std::optional<View> reshape(Builder& b, const View& v, const Shape& shape, const Span& where);

/// Where an op writes.
struct OutTarget {
  std::string name;
  Span where;
  bool global = false;         // the name was spelled out with '{...}'
  std::optional<View> window;  // of a declared tensor; else a name to bind anew
};
std::optional<OutTarget> parse_out(Builder& b, const Text& text);
/// The view to write, once shape and dtype are known; makes the tensor where the target is a new name.
std::optional<View> open_out(Builder& b, const OutTarget& target, const Shape& shape, Dtype dtype, DtypeRule rule);
/// Binds `name` to a view, so that later ops see it.
void bind_name(Builder& b, const std::string& name, const View& v, const Span& where, bool global = false);
/// Binds what `text` names to nothing, so that uses of it say nothing more.
void poison(Builder& b, const std::string& text, const Span& where);

}  // namespace ccks::spec
