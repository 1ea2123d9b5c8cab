// Ops over rows: reductions, softmax, norms, rotary embedding, gather, scatter, argmax, topk.
#include <algorithm>
#include <cmath>
#include <limits>
#include <numbers>
#include <numeric>

#include "spec/reference_internal.hpp"

namespace ccks::spec::reference {
namespace {

// Applies `change(row)` to each row of the last dim of in[0] and writes the rows to out[0].
template <class Change>
Status change_rows(const Call& call, Change&& change) {
  const Window& x = call.in[0];
  if (x.rank() == 0 || x.extents != call.out[0].extents) return call.misshapen("out has not the shape of x");
  std::vector<double> values = read(x);
  const auto width = static_cast<std::size_t>(x.back(0));
  for (std::size_t at = 0; at < values.size(); at += width) change(std::span(values).subspan(at, width));
  write(call.out[0], values);
  return {};
}

double reduce_start(ReduceFn fn) {
  switch (fn) {
    case ReduceFn::max:
      return -std::numeric_limits<double>::infinity();
    case ReduceFn::min:
      return std::numeric_limits<double>::infinity();
    case ReduceFn::prod:
      return 1;
    default:
      return 0;
  }
}

// NaN wins over any number in max and min.
double reduce_step(ReduceFn fn, double so_far, double x) {
  switch (fn) {
    case ReduceFn::max:
      return std::isnan(x) || x > so_far ? x : so_far;
    case ReduceFn::min:
      return std::isnan(x) || x < so_far ? x : so_far;
    case ReduceFn::prod:
      return so_far * x;
    default:
      return so_far + x;
  }
}

// For each element of `x` in row-major order, the row-major position in the reduced array.
struct ReducedIndex {
  std::vector<std::int64_t> extents, strides;  // strides 0 for reduced axes

  ReducedIndex(const Window& x, const ReduceAttrs& attrs) : extents(x.extents), strides(x.rank(), 0) {
    std::int64_t stride = 1;
    for (std::size_t d = x.rank(); d-- > 0;) {
      if (std::find(attrs.axes.begin(), attrs.axes.end(), d) != attrs.axes.end()) continue;
      strides[d] = stride;
      stride *= extents[d];
    }
  }
  std::size_t operator()(std::int64_t element) const {
    std::int64_t at = 0;
    for (std::size_t d = extents.size(); d-- > 0; element /= extents[d]) at += element % extents[d] * strides[d];
    return static_cast<std::size_t>(at);
  }
};

void turn_pair(double& a, double& b, double cosine, double sine) {
  const double x = a, y = b;
  a = x * cosine - y * sine;
  b = x * sine + y * cosine;
}
void rotate_pair(double& a, double& b, double angle) { turn_pair(a, b, std::cos(angle), std::sin(angle)); }

}  // namespace

std::vector<std::int64_t> largest(std::span<const double> row, std::int64_t k) {
  std::vector<std::int64_t> order(row.size());
  std::iota(order.begin(), order.end(), 0);
  // Index breaks ties, and NaN counts as the smallest, so that this is a strict weak order.
  const auto key = [&](std::int64_t i) {
    const double v = row[static_cast<std::size_t>(i)];
    return std::isnan(v) ? -std::numeric_limits<double>::infinity() : v;
  };
  std::partial_sort(order.begin(), order.begin() + k, order.end(),
                    [&](auto i, auto j) { return key(i) != key(j) ? key(i) > key(j) : i < j; });
  order.resize(static_cast<std::size_t>(k));
  return order;
}

void softmax_in_place(std::span<double> row, double scale) {
  double top = -std::numeric_limits<double>::infinity();
  for (double& v : row) top = std::max(top, v *= scale);
  double sum = 0;
  for (double& v : row) sum += v = std::exp(v - top);
  for (double& v : row) v /= sum;
}

Status run_reduce(const Call& call, const ReduceAttrs& attrs) {
  const Window& x = call.in[0];
  for (const std::uint32_t axis : attrs.axes)
    if (axis >= x.rank()) return call.misshapen("reduces a dim that x does not have");
  const std::vector<double> values = read(x);
  const ReducedIndex position(x, attrs);
  std::vector<double> out(static_cast<std::size_t>(call.out[0].count()), reduce_start(attrs.fn));
  std::int64_t reduced = 1;
  for (const std::uint32_t axis : attrs.axes) reduced *= x.extents[axis];
  if (static_cast<std::int64_t>(out.size()) * reduced != x.count())
    return call.misshapen("out has not the reduced shape");
  for (std::size_t i = 0; i < values.size(); ++i) {
    double& slot = out[position(static_cast<std::int64_t>(i))];
    slot = reduce_step(attrs.fn, slot, values[i]);
  }
  if (attrs.fn == ReduceFn::mean)
    for (double& v : out) v /= static_cast<double>(reduced);
  write(call.out[0], out);
  return {};
}

Status run_softmax(const Call& call, const SoftmaxAttrs& attrs) {
  return change_rows(call, [&](std::span<double> row) { softmax_in_place(row, attrs.scale); });
}

Status run_rmsnorm(const Call& call, const RmsnormAttrs& attrs) {
  const std::vector<double> weight = read(call.in[1]);
  if (call.in[0].rank() == 0 || call.in[1].count() != call.in[0].back(0))
    return call.misshapen("weight has not the last dim of x");
  return change_rows(call, [&](std::span<double> row) {
    double squares = 0;
    for (const double v : row) squares += v * v;
    const double scale = 1 / std::sqrt(squares / static_cast<double>(row.size()) + attrs.eps);
    for (std::size_t i = 0; i < row.size(); ++i) row[i] *= scale * weight[i];
  });
}

Status run_layernorm(const Call& call, const LayernormAttrs& attrs) {
  const std::vector<double> weight = read(call.in[1]);
  const std::vector<double> bias = attrs.has_bias ? read(call.in[2]) : std::vector<double>(weight.size(), 0);
  if (call.in[0].rank() == 0 || call.in[1].count() != call.in[0].back(0) || bias.size() != weight.size())
    return call.misshapen("weight or bias has not the last dim of x");
  return change_rows(call, [&](std::span<double> row) {
    const double mean = std::accumulate(row.begin(), row.end(), 0.0) / static_cast<double>(row.size());
    double variance = 0;
    for (const double v : row) variance += (v - mean) * (v - mean);
    const double scale = 1 / std::sqrt(variance / static_cast<double>(row.size()) + attrs.eps);
    for (std::size_t i = 0; i < row.size(); ++i) row[i] = (row[i] - mean) * scale * weight[i] + bias[i];
  });
}

namespace {

double scaled_frequency(double frequency, const RopeScaling& scaling) {
  if (scaling.original == 0) return frequency;
  const double waves = static_cast<double>(scaling.original) * frequency / (2 * std::numbers::pi);  // in the original context
  const double mix = std::clamp((waves - scaling.low) / (scaling.high - scaling.low), 0.0, 1.0);
  return frequency * (mix + (1 - mix) / scaling.factor);
}

}  // namespace

Status run_rope(const Call& call, const RopeAttrs& attrs) {
  const Window& x = call.in[0];
  if (x.rank() < 2 || attrs.heads == 0 || x.back(0) % (2 * static_cast<std::int64_t>(attrs.heads)) != 0)
    return call.misshapen("the last dim of x is not heads times an even head_dim");
  const auto start = attrs.position.evaluate(call.dims);
  if (!attrs.has_positions && !start) return call.misshapen("the position overflows");
  const std::int64_t rows = x.back(1), head_dim = x.back(0) / attrs.heads, half = head_dim / 2;
  const std::vector<double> positions = attrs.has_positions ? read(call.in[1]) : std::vector<double>();
  if (attrs.has_positions && static_cast<std::int64_t>(positions.size()) != rows)
    return call.misshapen("positions has not one entry for each row of x");
  // Planned programs have angles in a table that ropes share (codegen/plan_angles.hpp): cosines, then sines, of each row.
  const std::vector<double> table = !attrs.has_positions && call.in.size() > 1 ? read(call.in[1]) : std::vector<double>();
  if (!table.empty() && static_cast<std::int64_t>(table.size()) != rows * head_dim) return call.misshapen("the table has not a row for each row of x");
  std::int64_t row_number = 0;
  return change_rows(call, [&](std::span<double> row) {
    const std::int64_t i = row_number++ % rows;
    const double position =
        attrs.has_positions ? positions[static_cast<std::size_t>(i)] : static_cast<double>(*start + i);
    for (std::uint32_t head = 0; head < attrs.heads; ++head) {
      double* at = row.data() + head * head_dim;
      for (std::int64_t j = 0; j < half; ++j) {
        if (!table.empty()) {
          const double* of_row = table.data() + i * head_dim;
          turn_pair(at[j], at[j + half], of_row[j], of_row[j + half]);
          continue;
        }
        const double frequency = std::pow(attrs.theta, -2.0 * static_cast<double>(j) / static_cast<double>(head_dim));
        const double angle = position * scaled_frequency(frequency, attrs.scaling);
        if (attrs.interleaved)
          rotate_pair(at[2 * j], at[2 * j + 1], angle);
        else
          rotate_pair(at[j], at[j + half], angle);
      }
    }
  });
}

namespace {

Window first_row(const Window& of) {
  Window row = of;
  row.extents.erase(row.extents.begin());
  row.strides.erase(row.strides.begin());
  return row;
}

}  // namespace

Status run_gather(const Call& call) {
  const Window& table = call.in[0];
  const Window& out = call.out[0];
  const std::vector<double> indices = read(call.in[1]);
  if (table.rank() == 0) return call.misshapen("the table has no dims");
  std::int64_t width = 1;
  for (std::size_t d = 1; d < table.rank(); ++d) width *= table.extents[d];
  if (out.count() != width * call.in[1].count()) return call.misshapen("out has not the shape of index and table row");
  std::vector<double> values;
  values.reserve(static_cast<std::size_t>(out.count()));
  Window row = first_row(table);
  for (const double index : indices) {
    if (!(index >= 0 && index < static_cast<double>(table.extents[0])))
      return {ErrorCode::out_of_range, "op '" + call.op.name + "': index " +
                                           std::to_string(static_cast<long long>(index)) + " is outside a table of " +
                                           std::to_string(table.extents[0]) + " rows"};
    row.data = table.data + static_cast<std::int64_t>(index) * table.strides[0];
    const std::vector<double> picked = read(row);
    values.insert(values.end(), picked.begin(), picked.end());
  }
  write(out, values);
  return {};
}

Status run_scatter(const Call& call) {
  const Window &x = call.in[0], &out = call.out[0];
  if (x.rank() == 0 || x.rank() != out.rank() || call.in[1].count() != x.extents[0] || !std::equal(x.extents.begin() + 1, x.extents.end(), out.extents.begin() + 1))
    return call.misshapen("x, index and out do not fit each other");
  const std::vector<double> indices = read(call.in[1]);
  Window from = first_row(x), to = first_row(out);
  for (std::size_t i = 0; i < indices.size(); ++i) {
    if (!(indices[i] >= 0 && indices[i] < static_cast<double>(out.extents[0]))) continue;
    from.data = x.data + static_cast<std::int64_t>(i) * x.strides[0];
    to.data = out.data + static_cast<std::int64_t>(indices[i]) * out.strides[0];
    write(to, read(from));
  }
  return {};
}

Status run_argmax(const Call& call) {
  const Window& x = call.in[0];
  if (x.rank() == 0 || x.back(0) == 0 || call.out[0].count() * x.back(0) != x.count())
    return call.misshapen("out has not the shape of x without its last dim");
  const std::vector<double> values = read(x);
  const auto width = static_cast<std::size_t>(x.back(0));
  std::vector<double> out;
  for (std::size_t at = 0; at < values.size(); at += width)
    out.push_back(static_cast<double>(largest(std::span(values).subspan(at, width), 1)[0]));
  write(call.out[0], out);
  return {};
}

Status run_topk(const Call& call, const TopkAttrs& attrs) {
  const Window& x = call.in[0];
  if (x.rank() == 0 || attrs.k > x.back(0) || call.out[0].count() != call.out[1].count() ||
      call.out[0].count() * x.back(0) != x.count() * attrs.k)
    return call.misshapen("outputs have not the shape of x with a last dim of k");
  const std::vector<double> values = read(x);
  const auto width = static_cast<std::size_t>(x.back(0));
  std::vector<double> top, indices;
  for (std::size_t at = 0; at < values.size(); at += width) {
    for (const std::int64_t i : largest(std::span(values).subspan(at, width), attrs.k)) {
      top.push_back(values[at + static_cast<std::size_t>(i)]);
      indices.push_back(static_cast<double>(i));
    }
  }
  write(call.out[0], top);
  write(call.out[1], indices);
  return {};
}

}  // namespace ccks::spec::reference
