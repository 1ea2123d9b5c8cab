// Ops built on products of matrices: matmul, attention, conv2d.
#include <algorithm>
#include <array>

#include "spec/reference_internal.hpp"

namespace ccks::spec::reference {
namespace {

// A panel of b that fits the second-level cache: 128 * 256 f64 are 256 KiB.
constexpr std::int64_t kPanelRows = 128, kPanelColumns = 256;

void pack_panel(Strided b, std::int64_t rows, std::int64_t columns, double* panel) {
  for (std::int64_t r = 0; r < rows; ++r)
    for (std::int64_t c = 0; c < columns; ++c) panel[r * columns + c] = b.data[r * b.row_stride + c * b.column_stride];
}

struct AttentionShape {
  std::int64_t batches, rows, context, head_dim, group;
};

Status attention_shape(const Call& call, const AttentionAttrs& attrs, AttentionShape& shape) {
  const Window &q = call.in[0], &k = call.in[1], &v = call.in[2];
  if (q.rank() < 2 || q.rank() != k.rank() || k.extents != v.extents || q.extents != call.out[0].extents)
    return call.misshapen("q, k, v and out do not fit each other");
  if (attrs.heads == 0 || attrs.kv_heads == 0 || attrs.heads % attrs.kv_heads != 0 || q.back(0) % attrs.heads != 0 ||
      q.back(0) / attrs.heads * attrs.kv_heads != k.back(0) || block_count(q, 2) != block_count(k, 2))
    return call.misshapen("heads do not fit the last dims of q and k");
  shape = {block_count(q, 2), q.back(1), k.back(1), q.back(0) / attrs.heads, attrs.heads / attrs.kv_heads};
  return {};
}

// One head of one batch: q, k, v and out are row-major with the given distances between rows.
struct Head {
  const double *q, *k, *v;
  double* out;
  std::int64_t q_stride, kv_stride;
};

// What says where a row looks: a pair for each row; pages of each row. Either may be empty.
struct Limits {
  std::vector<double> reach, pages;
};

// The rows of k and v that row i attends to.
std::vector<std::int64_t> rows_seen(std::int64_t i, const AttentionShape& shape, const AttentionAttrs& attrs, const Limits& limits) {
  const auto per_row = static_cast<std::int64_t>(limits.pages.size()) / std::max<std::int64_t>(1, shape.rows), page = std::int64_t{attrs.page};
  std::int64_t first = 0, end = page > 0 ? per_row * page : shape.context;
  if (attrs.causal) end = std::clamp<std::int64_t>(i + 1 + shape.context - shape.rows, 0, shape.context);
  if (attrs.reach) {
    first = std::max<std::int64_t>(0, static_cast<std::int64_t>(limits.reach[static_cast<std::size_t>(2 * i)]));
    end = std::min(end, static_cast<std::int64_t>(limits.reach[static_cast<std::size_t>(2 * i + 1)]));
  }
  std::vector<std::int64_t> rows;
  for (std::int64_t j = first; j < end; ++j) {
    if (page == 0) {
      rows.push_back(j);
      continue;
    }
    const auto number = static_cast<std::int64_t>(limits.pages[static_cast<std::size_t>(i * per_row + j / page)]);
    if (number >= 0 && (number + 1) * page <= shape.context) rows.push_back(number * page + j % page);
  }
  return rows;
}

// Rows without anything to attend to stay zero.
void attend(const Head& head, const AttentionShape& shape, const AttentionAttrs& attrs, const Limits& limits) {
  for (std::int64_t i = 0; i < shape.rows; ++i) {
    const std::vector<std::int64_t> rows = rows_seen(i, shape, attrs, limits);
    if (rows.empty()) continue;
    std::vector<double> scores(rows.size(), 0);
    for (std::size_t j = 0; j < rows.size(); ++j)
      for (std::int64_t d = 0; d < shape.head_dim; ++d) scores[j] += head.q[i * head.q_stride + d] * head.k[rows[j] * head.kv_stride + d];
    softmax_in_place(scores, attrs.scale);
    double* out = head.out + i * head.q_stride;
    for (std::size_t j = 0; j < rows.size(); ++j)
      for (std::int64_t d = 0; d < shape.head_dim; ++d) out[d] += scores[j] * head.v[rows[j] * head.kv_stride + d];
  }
}

// The windows that a kernel sees, as a matrix of [c * kh * kw] x [oh * ow]; zero where it hangs over the edge.
std::vector<double> unfold(std::span<const double> image, const Window& x, const Window& weight, const Window& out,
                           const Conv2dAttrs& attrs) {
  const std::int64_t height = x.extents[2], width = x.extents[3];
  std::vector<double> columns;
  columns.reserve(static_cast<std::size_t>(weight.extents[1] * weight.extents[2] * weight.extents[3] * out.extents[2] *
                                           out.extents[3]));
  for (std::int64_t c = 0; c < weight.extents[1]; ++c)
    for (std::int64_t kh = 0; kh < weight.extents[2]; ++kh)
      for (std::int64_t kw = 0; kw < weight.extents[3]; ++kw)
        for (std::int64_t oh = 0; oh < out.extents[2]; ++oh)
          for (std::int64_t ow = 0; ow < out.extents[3]; ++ow) {
            const std::int64_t h = oh * attrs.stride[0] + kh * attrs.dilation[0] - attrs.padding[0];
            const std::int64_t w = ow * attrs.stride[1] + kw * attrs.dilation[1] - attrs.padding[1];
            const bool inside = h >= 0 && h < height && w >= 0 && w < width;
            columns.push_back(inside ? image[static_cast<std::size_t>((c * height + h) * width + w)] : 0);
          }
  return columns;
}

}  // namespace

TwinCalls::TwinCalls(const Call& call, std::size_t second) : twin(call), product(call) {
  Window between = call.out[0];
  values.assign(static_cast<std::size_t>(between.count()), 0);
  std::int64_t next = 1;
  for (std::size_t d = between.rank(); d-- > 0;) {
    between.strides[d] = next;
    next *= between.extents[d];
  }
  between.data = values.data();
  twin.in[1] = call.in[second];
  twin.in[second] = product.in[second] = twin.out[0] = between;
}

void multiply_add(std::span<const double> a, Strided b, std::span<double> out, std::int64_t m, std::int64_t k,
                  std::int64_t n) {
  std::vector<double> panel(static_cast<std::size_t>(std::min(k, kPanelRows) * std::min(n, kPanelColumns)));
  for (std::int64_t n0 = 0; n0 < n; n0 += kPanelColumns)
    for (std::int64_t k0 = 0; k0 < k; k0 += kPanelRows) {
      const std::int64_t columns = std::min(kPanelColumns, n - n0), rows = std::min(kPanelRows, k - k0);
      pack_panel({b.data + k0 * b.row_stride + n0 * b.column_stride, b.row_stride, b.column_stride}, rows, columns,
                 panel.data());
      for (std::int64_t i = 0; i < m; ++i) {
        double* to = out.data() + i * n + n0;
        for (std::int64_t r = 0; r < rows; ++r) {
          const double factor = a[static_cast<std::size_t>(i * k + k0 + r)];
          const double* from = panel.data() + r * columns;
          for (std::int64_t c = 0; c < columns; ++c) to[c] += factor * from[c];
        }
      }
    }
}

namespace {

/// With a norm, of a program that the planner has changed: the norm's result in memory of its own, then the product of that.
Status run_normed_matmul(const Call& call, const MatmulAttrs& attrs) {
  Window normed = call.in[0];
  std::vector<double> values(static_cast<std::size_t>(normed.count()));
  std::int64_t next = 1;
  for (std::size_t d = normed.rank(); d-- > 0;) {
    normed.strides[d] = next;
    next *= normed.extents[d];
  }
  normed.data = values.data();
  CCKS_RETURN_IF_ERROR(run_rmsnorm(Call{call.op, call.dims, {call.in[0], call.in.back()}, {normed}}, *attrs.norm));
  Call product = call;
  product.in[0] = normed;
  product.in.pop_back();
  return run_matmul(product, MatmulAttrs{attrs.epilogue, {}, attrs.rope, attrs.twin});
}

/// Pairs of heads turned by a table, likewise: [2, heads, rows, pairs], rounded as a tensor between product and rope would be.
Status run_roped_matmul(const Call& call, const MatmulAttrs& attrs) {
  const Window &out = call.out[0], &table = call.in.back();
  if (out.rank() != 4 || out.extents[0] != 2 || table.rank() != 2 || table.back(0) != 2 * out.back(0) || table.back(1) != out.back(1))
    return call.misshapen("out is not halves of heads by rows by pairs, or the table does not fit it");
  Call product = call;
  product.in.pop_back();
  CCKS_RETURN_IF_ERROR(run_matmul(product, MatmulAttrs{attrs.epilogue}));
  std::vector<double> values = read(out);
  const std::vector<double> angles = read(table);
  const auto rows = static_cast<std::size_t>(out.back(1)), pairs = static_cast<std::size_t>(out.back(0)), half = values.size() / 2;
  for (std::size_t i = 0; i < half; ++i) {
    const double* angle = angles.data() + i / pairs % rows * 2 * pairs + i % pairs;
    const double u = values[i], v = values[half + i];
    values[i] = u * angle[0] - v * angle[pairs];
    values[half + i] = u * angle[pairs] + v * angle[0];
  }
  write(out, values);
  return {};
}

/// Two products, likewise.
Status run_twin_matmul(const Call& call, const MatmulAttrs& attrs) {
  TwinCalls twins(call, 2);
  CCKS_RETURN_IF_ERROR(run_matmul(twins.twin, MatmulAttrs{*attrs.twin}));
  return run_matmul(twins.product, MatmulAttrs{attrs.epilogue});
}

}  // namespace

Status run_matmul(const Call& call, const MatmulAttrs& attrs) {
  if (attrs.norm) return run_normed_matmul(call, attrs);
  if (attrs.twin) return run_twin_matmul(call, attrs);
  if (attrs.rope) return run_roped_matmul(call, attrs);
  const Window &a = call.in[0], &b = call.in[1], &out = call.out[0];
  if (a.rank() < 2 || a.rank() != b.rank() || a.rank() != out.rank())
    return call.misshapen("ranks of a, b and out differ");
  const std::int64_t m = a.back(1), k = a.back(0), n = b.back(0), batches = block_count(out, 2);
  if (b.back(1) != k || out.back(1) != m || out.back(0) != n)
    return call.misshapen("a, b and out do not fit each other");
  if (block_count(a, 2) != batches || block_count(b, 2) != batches) return call.misshapen("batch dims differ");
  const std::vector<double> left = read(a);
  std::vector<double> acc(static_cast<std::size_t>(out.count()), 0);
  for (std::int64_t batch = 0; batch < batches; ++batch) {
    const Strided right{block_at(b, batch, 2), b.strides[b.rank() - 2], b.strides[b.rank() - 1]};
    multiply_add(std::span(left).subspan(static_cast<std::size_t>(batch * m * k)), right,
                 std::span(acc).subspan(static_cast<std::size_t>(batch * m * n)), m, k, n);
  }
  return store_epilogue(call, attrs.epilogue, acc, 2);
}

Status run_attention(const Call& call, const AttentionAttrs& attrs) {
  AttentionShape shape{};
  CCKS_RETURN_IF_ERROR(attention_shape(call, attrs, shape));
  const std::vector<double> q = read(call.in[0]), k = read(call.in[1]), v = read(call.in[2]);
  if (attrs.reach && (call.in.size() < 4 || call.in[3].count() != 2 * shape.rows || shape.batches != 1))
    return call.misshapen("reach has not two columns for each row of q");
  if (attrs.page > 0 && (!attrs.reach || attrs.causal || call.in.size() < 5 || call.in[4].rank() != 2 || call.in[4].back(1) != shape.rows))
    return call.misshapen("pages have not a row for each row of q");
  const Limits limits{attrs.reach ? read(call.in[3]) : std::vector<double>(), attrs.page > 0 ? read(call.in[4]) : std::vector<double>()};
  std::vector<double> out(q.size(), 0);
  const std::int64_t q_stride = shape.head_dim * attrs.heads, kv_stride = shape.head_dim * attrs.kv_heads;
  for (std::int64_t batch = 0; batch < shape.batches; ++batch)
    for (std::int64_t h = 0; h < attrs.heads; ++h) {
      const std::int64_t q_at = batch * shape.rows * q_stride + h * shape.head_dim;
      const std::int64_t kv_at = batch * shape.context * kv_stride + h / shape.group * shape.head_dim;
      attend({q.data() + q_at, k.data() + kv_at, v.data() + kv_at, out.data() + q_at, q_stride, kv_stride}, shape,
             attrs, limits);
    }
  write(call.out[0], out);
  return {};
}

Status run_conv2d(const Call& call, const Conv2dAttrs& attrs) {
  const Window &x = call.in[0], &weight = call.in[1], &out = call.out[0];
  if (x.rank() != 4 || weight.rank() != 4 || out.rank() != 4)
    return call.misshapen("x, weight and out need 4 dims each");
  if (x.extents[1] != weight.extents[1] || x.extents[0] != out.extents[0] || weight.extents[0] != out.extents[1])
    return call.misshapen("channels or images of x, weight and out differ");
  const std::int64_t pixels = out.extents[2] * out.extents[3], channels = out.extents[1];
  const std::int64_t depth = weight.extents[1] * weight.extents[2] * weight.extents[3];
  const std::int64_t image_size = x.extents[1] * x.extents[2] * x.extents[3];
  const std::vector<double> images = read(x), kernel = read(weight);
  std::vector<double> acc(static_cast<std::size_t>(out.count()), 0);
  for (std::int64_t image = 0; image < x.extents[0]; ++image) {
    const auto columns =
        unfold(std::span(images).subspan(static_cast<std::size_t>(image * image_size)), x, weight, out, attrs);
    multiply_add(kernel, {columns.data(), pixels, 1},
                 std::span(acc).subspan(static_cast<std::size_t>(image * channels * pixels)), channels, depth, pixels);
  }
  return store_epilogue(call, attrs.epilogue, acc, 2);
}

}  // namespace ccks::spec::reference
