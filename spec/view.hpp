// Views: slicing, transposing, broadcasting, and whether two of them can touch.
#pragma once

#include <string>

#include "spec/builder.hpp"

namespace ccks::spec {

/// True where `v` is all of its tensor in its own order.
bool is_whole(const View& v, const Tensor& tensor);
bool views_equal(const View& a, const View& b);
/// True only where no element can be in both (of tensors with one storage).
bool views_disjoint(const View& a, const View& b, std::span<const Symbol> symbols);

/// The last two dims swapped; the caller knows that there are two.
View swap_last(View v);
/// `permutation` holds every dim once.
View permute(const View& v, const std::vector<std::uint32_t>& permutation);

/// `v` as if it had the shape `target`, numpy's way: aligned right, extents of 1 repeat. Complains with `what` in the
/// message where that cannot be.
std::optional<View> broadcast(Builder& b, const View& v, const Shape& target, const Span& where,
                              const std::string& what);
/// The shape to which both broadcast.
std::optional<Shape> broadcast_shapes(Builder& b, const Shape& x, const Shape& y, const Span& where,
                                      const std::string& what);

/// Indices [lo, hi) of dim `dim` of `v`; complains with `what` where they lie outside.
std::optional<View> narrow(Builder& b, const View& v, std::size_t dim, const Expr& lo, const Expr& hi,
                           const Span& where, const std::string& what);

/// Inputs of `op` before the operands of its epilogue.
std::size_t fixed_inputs(const Op& op);

}  // namespace ccks::spec
