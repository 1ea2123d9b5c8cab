// matmul, conv2d, attention, route, expert_matmul, combine.
#include <algorithm>
#include <numeric>

#include "tests/unit/worker/combine_case.hpp"

namespace ccks::worker::test {
namespace {

constexpr Dtype kFloats[] = {Dtype::f32, Dtype::f16, Dtype::bf16};
Dtype any_float(Bench& b) { return kFloats[b.pick(0, 2)]; }

double product(Bench& b, const Tensor& x, const Tensor& y, const Index& c) {
  double sum = 0;
  for (int k = 0; k < x.dim[3]; ++k) sum += b.get(x, {c[0], c[1], c[2], k}) * b.get(y, {c[0], c[1], k, c[3]});
  return sum;
}
/// acc * 2 + other; relu.
void use_epilogue(Bench& b, int first) {
  b.op.dims[wire::kEpilogueDim] = first;
  b.code = {ins(ExprOp::arg_f, 3),       ins(ExprOp::const_f, 1, 0, 0, float_bits(2)),
            ins(ExprOp::mul_f, 3, 3, 1), ins(ExprOp::arg_f, 1, 0, 0, 1),
            ins(ExprOp::add_f, 3, 3, 1), ins(ExprOp::relu_f, 3, 3)};
}
double epilogue(double acc, double other) { return std::max(0.0, acc * 2 + other); }

void check_matmul(std::uint32_t seed, int m, int k, int n) {
  Bench b(seed);
  const int batch = b.pick(1, 2);
  const Tensor x = b.tensor(any_float(b), {1, batch, m, k});
  Tensor y = b.tensor(any_float(b), {1, b.coin() ? batch : 1, k, n});
  if (seed % 7 == 0) y = b.tensor(Dtype::i32, y.dim);
  b.fill(x, -1, 1);
  b.fill(y, -1, 1);
  if (y.dim[1] != batch) y.stride[1] = 0, y.dim[1] = batch;
  const Index shape{1, batch, m, n};
  const bool ends = b.coin();
  const Tensor other = b.broadcast(any_float(b), shape);
  b.operands = {x, y};
  if (ends) b.operands.push_back(other), use_epilogue(b, 2);
  b.operands.push_back(b.tensor(any_float(b), shape));
  b.operands[0].flags = b.operands[1].flags = wire::kOperandStreamed;
  b.grid(shape);
  b.check(OpCode::matmul, ends ? 3 : 2, [&](std::size_t, const Index& c) {
    const double acc = product(b, x, y, c);
    return ends ? epilogue(acc, b.get(other, c)) : acc;
  });
}

TEST(Matmul, AnyShapeStrideAndTile) {
  Bench shapes(1);
  for (std::uint32_t seed = 0; seed < 80; ++seed) {
    check_matmul(seed, shapes.pick(1, seed % 2 == 0 ? 5 : 70), shapes.pick(1, 90), shapes.pick(1, 90));
    if (HasFailure()) return;
  }
}

TEST(Matmul, BlocksOverDepth) {
  check_matmul(1001, 150, 700, 20);
  check_matmul(1002, 3, 9000, 9);
  check_matmul(1003, 1, 5000, 11);
}

void check_conv(std::uint32_t seed) {
  Bench b(seed);
  const int stride_h = b.pick(1, 3), stride_w = b.pick(1, 3), pad_h = b.pick(0, 3), pad_w = b.pick(0, 3);
  const int dilation_h = b.pick(1, 2), dilation_w = b.pick(1, 2), kh = b.pick(1, 4), kw = b.pick(1, 4);
  const int h = b.pick(std::max(1, (kh - 1) * dilation_h + 1 - 2 * pad_h), 12);
  const int w = b.pick(std::max(1, (kw - 1) * dilation_w + 1 - 2 * pad_w), 24);
  const int oh = (h + 2 * pad_h - (kh - 1) * dilation_h - 1) / stride_h + 1;
  const int ow = (w + 2 * pad_w - (kw - 1) * dilation_w - 1) / stride_w + 1;
  if (oh < 1 || ow < 1) return;
  const int images = b.pick(1, 2), channels = b.pick(1, 5), outs = b.pick(1, 9);
  const Tensor x = b.tensor(any_float(b), {images, channels, h, w}),
               weight = b.tensor(any_float(b), {outs, channels, kh, kw});
  b.fill(x, -1, 1);
  b.fill(weight, -1, 1);
  const Index shape{images, outs, oh, ow};
  const Tensor other = b.broadcast(any_float(b), shape);
  b.operands = {x, weight, other, b.tensor(any_float(b), shape)};
  use_epilogue(b, 2);
  const int dims[] = {stride_h, stride_w, pad_h, pad_w, dilation_h, dilation_w};
  for (int i = 0; i < 6; ++i) b.op.dims[i] = dims[i];
  b.grid(shape);
  b.check(OpCode::conv2d, 3, [&](std::size_t, const Index& c) {
    double acc = 0;
    Bench::each({1, channels, kh, kw}, [&](const Index& t) {
      const int y = c[2] * stride_h + t[2] * dilation_h - pad_h, z = c[3] * stride_w + t[3] * dilation_w - pad_w;
      if (y >= 0 && y < h && z >= 0 && z < w)
        acc += b.get(x, {c[0], t[1], y, z}) * b.get(weight, {c[1], t[1], t[2], t[3]});
    });
    return epilogue(acc, b.get(other, c));
  });
}

TEST(Conv2d, AnyStridePaddingAndDilation) {
  for (std::uint32_t seed = 0; seed < 60; ++seed) {
    check_conv(seed);
    if (HasFailure()) return;
  }
}

struct AttentionShape {
  int kv_heads, group, head_dim, n, context, batch;
  bool contiguous = false;
};

void check_attention(Bench& b, const AttentionShape& shape) {
  const auto [kv_heads, group, head_dim, n, context, batch, contiguous] = shape;
  const int heads = kv_heads * group;
  const Tensor q = b.tensor(any_float(b), {1, batch, n, heads * head_dim}, contiguous);
  const Tensor k = b.tensor(any_float(b), {1, batch, context, kv_heads * head_dim}, contiguous),
               v = b.tensor(any_float(b), k.dim, contiguous);
  for (const Tensor& t : {q, k, v}) b.fill(t, -2, 2);
  b.operands = {q, k, v, b.tensor(any_float(b), q.dim)};
  const bool causal = b.coin();
  b.op.dims[0] = heads;
  b.op.dims[1] = kv_heads;
  b.op.dims[2] = causal;
  b.op.scalars[0] = static_cast<float>(b.uniform(0.05, 0.7));
  b.grid(q.dim, false, head_dim);
  const double scale = b.op.scalars[0];
  std::vector<std::vector<double>> weights;
  Bench::each({1, batch, n, heads}, [&](const Index& c) {
    const int seen = causal ? std::clamp(c[2] + 1 + context - n, 0, context) : context;
    std::vector<double> p(static_cast<std::size_t>(seen));
    double sum = 0;
    for (int j = 0; j < seen; ++j) {
      double s = 0;
      for (int d = 0; d < head_dim; ++d)
        s += b.get(q, {0, c[1], c[2], c[3] * head_dim + d}) * b.get(k, {0, c[1], j, c[3] / group * head_dim + d});
      sum += p[static_cast<std::size_t>(j)] = std::exp(s * scale);
    }
    for (double& x : p) x /= sum;
    weights.push_back(p);
  });
  b.check(OpCode::attention, 3, [&](std::size_t, const Index& c) {
    const int head = c[3] / head_dim, d = c[3] % head_dim;
    const auto& p = weights[static_cast<std::size_t>((c[1] * n + c[2]) * heads + head)];
    double sum = 0;
    for (std::size_t j = 0; j < p.size(); ++j)
      sum += p[j] * b.get(v, {0, c[1], static_cast<int>(j), head / group * head_dim + d});
    return sum;
  });
}

TEST(Attention, DecodePrefillGroupsAndCausal) {
  for (std::uint32_t seed = 0; seed < 50; ++seed) {
    Bench b(seed);
    const int head_dim = b.pick(1, b.coin() ? 8 : 70), n = b.coin() ? 1 : b.pick(1, 9);
    check_attention(b, {b.pick(1, 3), b.pick(1, 3), head_dim, n, b.pick(1, b.coin() ? 20 : 200), b.pick(1, 2)});
    if (HasFailure()) return;
  }
}

// Shapes that bodies for lanes in warps take. Several dtypes and tilings of each are drawn.
TEST(Attention, HeadsInVectors) {
  constexpr AttentionShape kShapes[] = {
      {2, 4, 64, 1, 300, 1, true}, {1, 1, 128, 1, 41, 2, true}, {2, 3, 32, 5, 77, 1, true},
      {1, 2, 8, 9, 5, 1, true},    {1, 5, 256, 2, 33, 1, true},
  };
  std::uint32_t seed = 100;
  for (const AttentionShape& shape : kShapes) {
    for (int i = 0; i < 3; ++i) {
      Bench b(seed++);
      check_attention(b, shape);
      if (HasFailure()) return;
    }
  }
}


// ---- mixture of experts
// -----------------------------------------------------------------------------------------------

struct Routing {
  std::vector<int> expert, row, source, count;
  std::vector<double> weight;
};

Routing route(Bench& b, const Tensor& logits, int k, bool over_all, bool renormalize) {
  Routing r;
  const int tokens = logits.dim[2], experts = logits.dim[3];
  for (int t = 0; t < tokens; ++t) {
    std::vector<int> order(static_cast<std::size_t>(experts));
    std::iota(order.begin(), order.end(), 0);
    const auto logit = [&](int e) { return b.get(logits, {0, 0, t, e}); };
    std::stable_sort(order.begin(), order.end(), [&](int i, int j) { return logit(i) > logit(j); });
    double all = 0, chosen = 0;
    for (int e = 0; e < experts; ++e) all += std::exp(logit(e));
    for (int j = 0; j < k; ++j) chosen += std::exp(logit(order[static_cast<std::size_t>(j)]));
    for (int j = 0; j < k; ++j) {
      r.expert.push_back(order[static_cast<std::size_t>(j)]);
      r.weight.push_back(std::exp(logit(r.expert.back())) / (over_all && !renormalize ? all : chosen));
    }
  }
  r.row.resize(r.expert.size());
  for (int e = 0; e < experts; ++e) {
    r.count.push_back(static_cast<int>(std::count(r.expert.begin(), r.expert.end(), e)));
    for (std::size_t p = 0; p < r.expert.size(); ++p)
      if (r.expert[p] == e) r.row[p] = static_cast<int>(r.source.size()), r.source.push_back(static_cast<int>(p));
  }
  return r;
}

TEST(Route, SortsByExpertThenToken) {
  for (std::uint32_t seed = 0; seed < 30; ++seed) {
    Bench b(seed);
    const int tokens = b.pick(1, 20), experts = b.pick(1, seed % 5 == 0 ? 200 : 12),
              k = b.pick(1, std::min(experts, 8));
    const bool over_all = b.coin(), renormalize = b.coin();
    const Tensor logits = b.tensor(any_float(b), {1, 1, tokens, experts});
    b.fill(logits, -3, 3);
    if (b.coin()) Bench::each(logits.dim, [&](const Index& c) { b.set(logits, c, b.pick(-1, 1)); });
    const Index pairs{1, 1, tokens, k};
    b.operands = {logits,
                  b.tensor(Dtype::f32, pairs),
                  b.tensor(Dtype::i32, pairs),
                  b.tensor(Dtype::i32, {1, 1, 1, experts}),
                  b.tensor(Dtype::i32, pairs),
                  b.tensor(Dtype::i32, {1, 1, 1, tokens * k})};
    b.op.dims[0] = k;
    b.op.dims[1] = over_all;
    b.op.dims[2] = renormalize;
    b.grid({1, 1, 1, 1});
    const Routing want = route(b, logits, k, over_all, renormalize);
    b.check(OpCode::route, 1, [&](std::size_t o, const Index& c) -> double {
      const auto pair = static_cast<std::size_t>(c[2] * k + c[3]), last = static_cast<std::size_t>(c[3]);
      return o == 0   ? want.weight[pair]
             : o == 1 ? want.expert[pair]
             : o == 2 ? want.count[last]
             : o == 3 ? want.row[pair]
                      : want.source[last];
    });
    if (HasFailure()) return;
  }
}

void check_expert_matmul(std::uint32_t seed) {
  Bench b(seed);
  const int tokens = b.pick(1, 12), experts = b.pick(1, 6), top_k = b.pick(1, experts), k = b.pick(1, 40),
            n = b.pick(1, 50);
  const bool gather = b.coin();
  const int rows = tokens * top_k;
  const Tensor logits = b.tensor(Dtype::f32, {1, 1, tokens, experts}),
               x = b.tensor(any_float(b), {1, 1, gather ? tokens : rows, k}),
               y = b.tensor(any_float(b), {1, experts, k, n}), source = b.tensor(Dtype::i32, {1, 1, 1, rows}),
               count = b.tensor(Dtype::i32, {1, 1, 1, experts});
  for (const Tensor& t : {logits, x, y}) b.fill(t, -1, 1);
  const Routing r = route(b, logits, top_k, false, false);
  for (int i = 0; i < rows; ++i) b.set(source, {0, 0, 0, i}, r.source[static_cast<std::size_t>(i)]);
  for (int e = 0; e < experts; ++e) b.set(count, {0, 0, 0, e}, r.count[static_cast<std::size_t>(e)]);
  const Index shape{1, 1, rows, n};
  const Tensor other = b.broadcast(any_float(b), shape);
  b.operands = {x, y, source, count, other, b.tensor(any_float(b), shape)};
  use_epilogue(b, 4);
  b.op.dims[0] = top_k;
  b.op.dims[1] = gather;
  b.op.dims[2] = experts;
  b.grid(shape);
  b.op.grid[2] = (rows + b.op.tile[2] - 1) / b.op.tile[2] + experts;  // every expert may end in a tile of its own
  b.op.tile_count = static_cast<std::uint32_t>(b.op.grid[2] * b.op.grid[3]);
  b.check(OpCode::expert_matmul, 5, [&](std::size_t, const Index& c) {
    const int pair = r.source[static_cast<std::size_t>(c[2])], e = r.expert[static_cast<std::size_t>(pair)];
    double acc = 0;
    for (int i = 0; i < k; ++i) acc += b.get(x, {0, 0, gather ? pair / top_k : c[2], i}) * b.get(y, {0, e, i, c[3]});
    return epilogue(acc, b.get(other, c));
  });
  b.set(count, {0, 0, 0, 0}, rows + 1);
  for (const Machine m : {Machine::host, Machine::emulated})
    EXPECT_EQ(b.run(m, OpCode::expert_matmul, 5), FaultCode::bad_index);
  b.set(count, {0, 0, 0, 0}, r.count[0]);
  b.set(source, {0, 0, 0, 0}, rows);
  const FaultCode bad_source = gather ? FaultCode::bad_index : FaultCode::none;  // unused where rows are not gathered
  EXPECT_EQ(b.run(Machine::emulated, OpCode::expert_matmul, 5), bad_source);
}

TEST(ExpertMatmul, TilesFollowTheCounts) {
  for (std::uint32_t seed = 0; seed < 40; ++seed) {
    check_expert_matmul(seed);
    if (HasFailure()) return;
  }
}

TEST(Combine, SumsChosenRows) {
  for (std::uint32_t seed = 0; seed < 20; ++seed) {
    Bench b(seed);
    const int tokens = b.pick(1, 8), k = b.pick(1, 4), width = b.pick(1, 200);
    const Dtype from = any_float(b), to = any_float(b);
    CombineCase combine(b, from, to, tokens, k, width, false, seed % 2 == 1);
    b.grid({1, 1, tokens, width});
    combine.check({Machine::host, Machine::emulated}, tokens * k);
    if (HasFailure()) return;
  }
}

}  // namespace
}  // namespace ccks::worker::test
