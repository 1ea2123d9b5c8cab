#include "spec/view.hpp"

#include <fmt/format.h>

#include <algorithm>

namespace ccks::spec {
namespace {

bool dims_equal(const ViewDim& a, const ViewDim& b) {
  return a.base_dim == b.base_dim && a.step == b.step && a.extent == b.extent && a.offset == b.offset;
}

const ViewDim* covering(const View& v, std::uint32_t base_dim) {
  const auto it = std::find_if(v.dims.begin(), v.dims.end(), [&](const ViewDim& d) { return d.base_dim == base_dim; });
  return it == v.dims.end() ? nullptr : &*it;
}

struct IndexRange {
  Expr first, last;
};

IndexRange index_range(const View& v, std::uint32_t base_dim) {
  const ViewDim* d = covering(v, base_dim);
  if (!d) return {v.fixed[base_dim], v.fixed[base_dim]};
  return {d->offset, d->offset + (d->extent - Expr(1)) * Expr(d->step)};
}

}  // namespace

bool is_whole(const View& v, const Tensor& tensor) {
  if (v.dims.size() != tensor.shape.size()) return false;
  for (std::uint32_t i = 0; i < v.dims.size(); ++i)
    if (!dims_equal(v.dims[i], {tensor.shape[i], i, Expr(0), 1})) return false;
  return true;
}

bool views_equal(const View& a, const View& b) {
  if (a.tensor != b.tensor || a.dims.size() != b.dims.size()) return false;
  for (std::size_t i = 0; i < a.dims.size(); ++i)
    if (!dims_equal(a.dims[i], b.dims[i])) return false;
  for (std::uint32_t i = 0; i < kMaxRank; ++i)
    if (!covering(a, i) && !(a.fixed[i] == b.fixed[i])) return false;
  return true;
}

bool views_disjoint(const View& a, const View& b, std::span<const Symbol> symbols) {
  if (a.tensor != b.tensor) return false;
  for (std::uint32_t i = 0; i < kMaxRank; ++i) {
    const IndexRange x = index_range(a, i), y = index_range(b, i);
    if (prove_less_equal(x.last + Expr(1), y.first, symbols) == Truth::yes) return true;
    if (prove_less_equal(y.last + Expr(1), x.first, symbols) == Truth::yes) return true;
  }
  return false;
}

View swap_last(View v) {
  std::swap(v.dims[v.dims.size() - 1], v.dims[v.dims.size() - 2]);
  return v;
}

View permute(const View& v, const std::vector<std::uint32_t>& permutation) {
  View out = v;
  for (std::size_t i = 0; i < permutation.size(); ++i) out.dims[i] = v.dims[permutation[i]];
  return out;
}

std::optional<View> broadcast(Builder& b, const View& v, const Shape& target, const Span& where,
                              const std::string& what) {
  if (v.dims.size() > target.size()) {
    b.diagnostics.error(
        code::kWrongRank, where,
        fmt::format("{} of shape {} does not broadcast to {}", what, b.print_shape(v), b.print(target)));
    return std::nullopt;
  }
  View out = v;
  out.dims.assign(target.size(), {});
  const std::size_t lead = target.size() - v.dims.size();
  for (std::size_t i = 0; i < target.size(); ++i) {
    ViewDim& d = out.dims[i];
    if (i < lead) {
      d.extent = target[i];
      continue;
    }
    const ViewDim& source = v.dims[i - lead];
    if (source.extent == target[i]) {
      d = source;
      continue;
    }
    const bool repeats = source.extent == Expr(1);
    if (!repeats) {
      if (!b.require_equal(
              source.extent, target[i], code::kShapeMismatch, where,
              fmt::format("{} of shape {} does not broadcast to {}", what, b.print_shape(v), b.print(target))))
        return std::nullopt;
      d = source;
      continue;
    }
    d.extent = target[i];
    if (source.base_dim != kNone) out.fixed[source.base_dim] = source.offset;
  }
  return out;
}

std::optional<Shape> broadcast_shapes(Builder& b, const Shape& x, const Shape& y, const Span& where,
                                      const std::string& what) {
  const Shape& longer = x.size() >= y.size() ? x : y;
  const Shape& shorter = x.size() >= y.size() ? y : x;
  Shape out = longer;
  const std::size_t lead = longer.size() - shorter.size();
  for (std::size_t i = 0; i < shorter.size(); ++i) {
    Expr& e = out[lead + i];
    if (shorter[i] == Expr(1) || shorter[i] == e) continue;
    if (e == Expr(1)) {
      e = shorter[i];
      continue;
    }
    if (!b.require_equal(e, shorter[i], code::kShapeMismatch, where,
                         fmt::format("{}: shapes {} and {} do not broadcast", what, b.print(x), b.print(y))))
      return std::nullopt;
    if (shorter[i].is_constant()) e = shorter[i];
  }
  return out;
}

std::optional<View> narrow(Builder& b, const View& v, std::size_t dim, const Expr& lo, const Expr& hi,
                           const Span& where, const std::string& what) {
  View out = v;
  ViewDim& d = out.dims[dim];
  if (!b.require_less_equal(Expr(0), lo, code::kViewOutOfRange, where, what + " begins before 0") ||
      !b.require_less_equal(hi, d.extent, code::kViewOutOfRange, where, what + " ends past the end of its dim"))
    return std::nullopt;
  d.extent = hi - lo;
  if (d.base_dim != kNone) d.offset = d.offset + lo * Expr(d.step);
  return out;
}

std::size_t fixed_inputs(const Op& op) {
  switch (op.kind()) {
    case OpKind::matmul:
    case OpKind::conv2d:
      return 2;
    case OpKind::combine:
      return 3;
    case OpKind::expert_matmul:
      return 4;
    default:
      return op.inputs.size();
  }
}

}  // namespace ccks::spec
