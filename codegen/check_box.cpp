// Box: overlap of strided byte sets by aligning their periods.
#include "codegen/check_box.hpp"

#include <algorithm>

namespace ccks::codegen::check {

Box::Box(const Operand& operand, const Window& window) : space_(operand.space), base_(operand.offset) {
  const std::int64_t bytes = operand.element_bytes();
  for (std::size_t d = 0; d < 4; ++d) {
    base_ += window.lo[d] * operand.stride[d] * bytes;
    push(operand.stride[d] * bytes, window.hi[d] - window.lo[d]);
  }
  push(1, bytes);
  tidy();
}

Box::Box(wire::Space space, std::int64_t base, std::int64_t bytes) : space_(space), base_(base) {
  push(1, bytes);
  tidy();
}

void Box::push(std::int64_t stride, std::int64_t extent) {
  if (stride == 0 || extent <= 1) return;
  if (stride < 0) {  // the same bytes, counted from the other end
    base_ += stride * (extent - 1);
    stride = -stride;
  }
  dims_[static_cast<std::size_t>(count_++)] = {stride, extent};
}

void Box::tidy() {
  const auto begin = dims_.begin();
  std::sort(begin, begin + count_, [](const Dim& x, const Dim& y) { return x.stride > y.stride; });
  if (count_ == 0 || dims_[static_cast<std::size_t>(count_ - 1)].stride != 1)
    dims_[static_cast<std::size_t>(count_++)] = {1, 1};
  int out = 0;
  for (int i = 1; i < count_; ++i) {  // dims without a gap between them are one
    Dim& last = dims_[static_cast<std::size_t>(out)];
    const Dim& next = dims_[static_cast<std::size_t>(i)];
    if (last.stride == next.stride * next.extent) {
      last = {next.stride, last.extent * next.extent};
    } else {
      dims_[static_cast<std::size_t>(++out)] = next;
    }
  }
  count_ = out + 1;
}

std::int64_t Box::span(int from) const {
  std::int64_t bytes = 1;
  for (int i = from; i < count_; ++i)
    bytes += dims_[static_cast<std::size_t>(i)].stride * (dims_[static_cast<std::size_t>(i)].extent - 1);
  return bytes;
}

bool Box::nested() const {
  for (int i = 0; i + 1 < count_; ++i)
    if (span(i + 1) > dims_[static_cast<std::size_t>(i)].stride) return false;
  return true;
}

Box Box::tail(std::int64_t base) const {
  Box box;
  box.space_ = space_;
  box.base_ = base;
  box.count_ = count_ - 1;
  std::copy(dims_.begin() + 1, dims_.begin() + count_, box.dims_.begin());
  return box;
}

Box Box::piece(std::int64_t base, std::int64_t outer_stride, std::int64_t outer, std::int64_t inner) const {
  Box box = *this;
  box.base_ = base;
  box.dims_[0].extent = inner;
  std::copy_backward(box.dims_.begin(), box.dims_.begin() + count_, box.dims_.begin() + count_ + 1);
  box.dims_[0] = {outer_stride, outer};
  ++box.count_;
  return box;
}

namespace {

std::int64_t floor_div(std::int64_t a, std::int64_t b) { return a / b - (a % b < 0 ? 1 : 0); }

}  // namespace

// Both start with the same stride. Cut the address line into periods where neither sub-box is cut; then the boxes meet
// where their period numbers meet and their sub-boxes do.
bool Box::overlap_same_period(const Box& a, const Box& b) {
  const std::int64_t period = a.dims_[0].stride;
  const std::int64_t q = floor_div(b.base_ - a.base_, period);
  const std::int64_t phase = b.base_ - a.base_ - q * period;
  const bool cut_at_a = phase + b.span(1) <= period;
  if (!cut_at_a && a.span(1) > phase) return true;  // the sub-boxes cover the period: no cut keeps both whole
  // Cutting at the start of b instead puts a's sub-box one period later, seen from b.
  const std::int64_t shift = cut_at_a ? q : q + 1;
  if (shift >= a.dims_[0].extent || shift + b.dims_[0].extent <= 0) return false;
  return overlap(a.tail(0), b.tail(cut_at_a ? phase : phase - period));
}

// `a` starts with the longer stride. Write b's first dim as periods of that length: a head, whole periods, a rest.
// Periods start where steps of b do, so that none of its sub-boxes is cut.
bool Box::overlap_split(const Box& a, const Box& b) {
  const std::int64_t period = a.dims_[0].stride, step = b.dims_[0].stride;
  if (period % step != 0) return true;
  const std::int64_t per_period = period / step;
  const std::int64_t first = -floor_div(a.base_ - b.base_, step);  // of b, counted from the origin just before a
  const std::int64_t origin = b.base_ - first * step;
  const std::int64_t last = first + b.dims_[0].extent;  // one past
  const auto meets = [&](std::int64_t lo, std::int64_t hi, std::int64_t periods) {
    if (lo >= hi || periods <= 0) return false;
    return overlap_same_period(a, b.piece(origin + lo * step, period, periods, hi - lo));
  };
  const std::int64_t whole_from = -floor_div(-first, per_period) * per_period;
  const std::int64_t whole_to = floor_div(last, per_period) * per_period;
  if (whole_from > whole_to) return meets(first, last, 1);
  return meets(first, whole_from, 1) || meets(whole_to, last, 1) ||
         meets(whole_from, whole_from + per_period, (whole_to - whole_from) / per_period);
}

bool overlap(const Box& a, const Box& b) {
  if (a.space_ != b.space_ || a.end() <= b.first() || b.end() <= a.first()) return false;
  if (a.count_ == 1 && b.count_ == 1 && a.dims_[0].stride == 1 && b.dims_[0].stride == 1) return true;
  if (!a.nested() || !b.nested()) return true;
  const std::int64_t sa = a.dims_[0].stride, sb = b.dims_[0].stride;
  if (sa == sb) return Box::overlap_same_period(a, b);
  return sa > sb ? Box::overlap_split(a, b) : Box::overlap_split(b, a);
}

}  // namespace ccks::codegen::check
