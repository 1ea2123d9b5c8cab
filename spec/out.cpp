// Where results go: a new name, a declared tensor, or a window of one.
#include <fmt/format.h>

#include "spec/operand.hpp"
#include "spec/view.hpp"

namespace ccks::spec {
namespace {

std::string plain_name(const std::string& text) {
  std::size_t n = 0;
  while (n < text.size() && (is_name_part(text[n]) || text[n] == '.')) ++n;
  return text.substr(0, n);
}

bool same_category(Dtype a, Dtype b) {
  const auto category = [](Dtype d) { return wire::dtype_is_float(d) ? 0 : d == Dtype::boolean ? 1 : 2; };
  return category(a) == category(b);
}

bool may_write(Builder& b, const Tensor& tensor, const Span& where) {
  if (tensor.kind != TensorKind::input && tensor.kind != TensorKind::weight) return true;
  b.diagnostics.error(code::kReadOnly, where,
                      fmt::format("'{}' is {}; no op may write it", tensor.name,
                                  tensor.kind == TensorKind::input ? "an input" : "a weight"),
                      "write to a new name, or declare it with kind: state");
  return false;
}

std::optional<View> write_declared(Builder& b, const OutTarget& target, const Shape& shape, Dtype dtype,
                                   DtypeRule rule) {
  const View& v = *target.window;
  if (v.dims.size() != shape.size()) {
    b.diagnostics.error(
        code::kWrongRank, target.where,
        fmt::format("the result has shape {}, but '{}' has {}", b.print(shape), target.name, b.print_shape(v)));
    return std::nullopt;
  }
  for (std::size_t i = 0; i < shape.size(); ++i)
    if (!(shape[i] == v.dims[i].extent) &&
        !b.require_equal(
            shape[i], v.dims[i].extent, code::kShapeMismatch, target.where,
            fmt::format("the result has shape {}, but '{}' has {}", b.print(shape), target.name, b.print_shape(v))))
      return std::nullopt;
  const Dtype declared = b.dtype_of(v);
  if (declared == dtype || (rule == DtypeRule::same_category && same_category(declared, dtype))) return v;
  b.diagnostics.error(
      code::kDtypeMismatch, target.where,
      fmt::format("the result is {}, but '{}' is {}", wire::dtype_name(dtype), target.name, wire::dtype_name(declared)),
      "convert with a map: float(x), int(x) or bool(x)");
  return std::nullopt;
}

}  // namespace

std::optional<OutTarget> parse_out(Builder& b, const Text& text) {
  OutTarget target;
  target.name = plain_name(text.text);
  target.where = text.span;
  target.global = text.substituted;
  const bool has_window = target.name.size() != text.text.size();
  Text name = text;
  name.text = target.name;
  if (!b.check_name(name)) return std::nullopt;
  const Binding* binding = b.scopes.find(target.name);
  if (binding && binding->poisoned && (binding->declared || has_window)) return std::nullopt;
  if (binding && binding->declared) {
    if (!may_write(b, b.program.tensors[binding->view.tensor], text.span)) return std::nullopt;
    target.window = binding->view;
    if (!has_window) return target;
    const std::size_t open = target.name.size();
    if (text.text[open] != '[' || text.text.back() != ']') {
      b.diagnostics.error(code::kViewSyntax, text.at(open), "only a window such as 'y[0:n, :]' can be written");
      return std::nullopt;
    }
    Text inside = text;
    inside.text = text.text.substr(open + 1, text.text.size() - open - 2);
    inside.span = text.at(open + 1, inside.text.size());
    target.window = parse_slice(b, binding->view, inside);
    return target.window ? std::optional(target) : std::nullopt;
  }
  if (has_window) {
    b.diagnostics.error(code::kReadOnly, text.span,
                        fmt::format("'{}' is not declared, so no window of it can be written", target.name),
                        "declare it under tensors with kind: intermediate");
    return std::nullopt;
  }
  if (b.find_dim(target.name)) {
    b.diagnostics.error(code::kDefinedTwice, text.span, fmt::format("'{}' is a dim already", target.name));
    return std::nullopt;
  }
  return target;
}

std::optional<View> open_out(Builder& b, const OutTarget& target, const Shape& shape, Dtype dtype, DtypeRule rule) {
  if (target.window) return write_declared(b, target, shape, dtype, rule);
  if (!b.check_elements(shape, target.where)) return std::nullopt;
  Tensor tensor;
  tensor.name = b.unique_tensor_name(target.global ? target.name : b.scopes.top().prefix + target.name);
  tensor.dtype = dtype;
  tensor.shape = shape;
  tensor.location = target.where.location;
  const View v = b.whole_view(b.add_tensor(std::move(tensor)));
  bind_name(b, target.name, v, target.where, target.global);
  return v;
}

void bind_name(Builder& b, const std::string& name, const View& v, const Span& where, bool global) {
  Binding binding;
  binding.view = v;
  binding.defined = where;
  b.scopes.scope_to_bind(name, global).names[name] = std::move(binding);
}

void poison(Builder& b, const std::string& text, const Span& where) {
  const std::string name = plain_name(text);
  if (Binding* known = b.scopes.find(name); known && known->declared) {
    if (!known->poisoned) b.mark_written(known->view.tensor, true);
    return;
  }
  Binding binding;
  binding.poisoned = true;
  binding.defined = where;
  b.scopes.scope_to_bind(name, false).names[name] = std::move(binding);
}

}  // namespace ccks::spec
