// Ops whose work depends on values: routing, expert matmul, combine, reports, select.
#include <algorithm>
#include <cmath>

#include "spec/reference_internal.hpp"

namespace ccks::spec::reference {
namespace {

std::vector<double> chosen_weights(std::span<const double> logits, std::span<const std::int64_t> chosen,
                                   const RouteAttrs& attrs) {
  std::vector<double> all(logits.begin(), logits.end()), weights;
  if (attrs.softmax_over_all) softmax_in_place(all, 1);
  for (const std::int64_t e : chosen) weights.push_back(all[static_cast<std::size_t>(e)]);
  if (!attrs.softmax_over_all) softmax_in_place(weights, 1);
  if (attrs.softmax_over_all && attrs.renormalize) {
    double sum = 0;
    for (const double w : weights) sum += w;
    for (double& w : weights) w /= sum;
  }
  return weights;
}

// Reads small integers and holds them to [0, end).
Status read_indices(const Call& call, const Window& window, std::int64_t end, const char* what,
                    std::vector<std::int64_t>& out) {
  for (const double v : read(window)) {
    if (!(v >= 0 && v < static_cast<double>(end)))
      return {ErrorCode::out_of_range,
              "op '" + call.op.name + "': " + what + " " + std::to_string(v) + " is not below " + std::to_string(end)};
    out.push_back(static_cast<std::int64_t>(v));
  }
  return {};
}

struct Routed {
  std::vector<std::int64_t> source, count;
};

// source and count of an expert_matmul, held against each other.
Status read_routing(const Call& call, Routed& routed) {
  const std::int64_t rows = call.out[0].extents[0];
  CCKS_RETURN_IF_ERROR(read_indices(call, call.in[2], rows, "source", routed.source));
  CCKS_RETURN_IF_ERROR(read_indices(call, call.in[3], rows + 1, "count", routed.count));
  std::int64_t total = 0;
  for (const std::int64_t c : routed.count) total += c;
  if (static_cast<std::int64_t>(routed.source.size()) != rows || total != rows)
    return call.misshapen("counts do not add up to the rows of out");
  if (static_cast<std::int64_t>(routed.count.size()) != call.in[1].extents[0])
    return call.misshapen("count has not one entry for each expert of b");
  return {};
}

}  // namespace

Status run_route(const Call& call, const RouteAttrs& attrs) {
  const Window& logits = call.in[0];
  if (logits.rank() != 2 || attrs.k > logits.extents[1])
    return call.misshapen("logits need the shape [tokens, experts]");
  const std::int64_t tokens = logits.extents[0], experts = logits.extents[1], k = attrs.k;
  const std::array<std::int64_t, 5> sizes{tokens * k, tokens * k, experts, tokens * k, tokens * k};
  for (std::size_t i = 0; i < sizes.size(); ++i)
    if (call.out[i].count() != sizes[i]) return call.misshapen("an output has not the size of its part of the routing");
  const std::vector<double> values = read(logits);
  std::vector<double> weight, expert, count(static_cast<std::size_t>(experts), 0);
  for (std::int64_t t = 0; t < tokens; ++t) {
    const auto row =
        std::span(values).subspan(static_cast<std::size_t>(t * experts), static_cast<std::size_t>(experts));
    const std::vector<std::int64_t> chosen = largest(row, k);
    for (const double w : chosen_weights(row, chosen, attrs)) weight.push_back(w);
    for (const std::int64_t e : chosen) {
      expert.push_back(static_cast<double>(e));
      count[static_cast<std::size_t>(e)] += 1;
    }
  }
  std::vector<double> source, row_of(weight.size());
  for (std::int64_t e = 0; e < experts; ++e)
    for (std::size_t pair = 0; pair < expert.size(); ++pair) {
      if (expert[pair] != static_cast<double>(e)) continue;
      row_of[pair] = static_cast<double>(source.size());
      source.push_back(static_cast<double>(pair));
    }
  const std::array<const std::vector<double>*, 5> results{&weight, &expert, &count, &row_of, &source};
  for (std::size_t i = 0; i < results.size(); ++i) write(call.out[i], *results[i]);
  return {};
}

Status run_expert_matmul(const Call& call, const ExpertMatmulAttrs& attrs) {
  if (attrs.twin) {
    TwinCalls twins(call, 4);
    CCKS_RETURN_IF_ERROR(run_expert_matmul(twins.twin, {attrs.top_k, attrs.gather, *attrs.twin}));
    return run_expert_matmul(twins.product, {attrs.top_k, attrs.gather, attrs.epilogue});
  }
  const Window &x = call.in[0], &b = call.in[1], &out = call.out[0];
  if (x.rank() != 2 || b.rank() != 3 || out.rank() != 2 || attrs.top_k == 0)
    return call.misshapen("x, b and out need 2, 3 and 2 dims");
  const std::int64_t rows = out.extents[0], k = b.extents[1], n = b.extents[2];
  if (x.extents[1] != k || out.extents[1] != n || x.extents[0] * (attrs.gather ? attrs.top_k : 1) != rows)
    return call.misshapen("x, b and out do not fit each other");
  Routed routed;
  CCKS_RETURN_IF_ERROR(read_routing(call, routed));
  const std::vector<double> tokens = read(x);
  std::vector<double> left, acc(static_cast<std::size_t>(out.count()), 0);
  for (std::int64_t r = 0; r < rows; ++r) {
    const std::int64_t from = attrs.gather ? routed.source[static_cast<std::size_t>(r)] / attrs.top_k : r;
    left.insert(left.end(), tokens.begin() + from * k, tokens.begin() + (from + 1) * k);
  }
  std::int64_t row = 0;
  for (std::int64_t e = 0; e < b.extents[0]; ++e) {
    const std::int64_t taken = routed.count[static_cast<std::size_t>(e)];
    multiply_add(std::span(left).subspan(static_cast<std::size_t>(row * k)),
                 {block_at(b, e, 2), b.strides[1], b.strides[2]},
                 std::span(acc).subspan(static_cast<std::size_t>(row * n)), taken, k, n);
    row += taken;
  }
  return store_epilogue(call, attrs.epilogue, acc, 4);
}

Status run_combine(const Call& call, const CombineAttrs& attrs) {
  const Window &x = call.in[0], &weight = call.in[1], &out = call.out[0];
  if (x.rank() != 2 || out.rank() != 2 || x.extents[1] != out.extents[1] ||
      weight.count() != out.extents[0] * attrs.top_k || call.in[2].count() != weight.count())
    return call.misshapen("x, weight, row and out do not fit each other");
  std::vector<std::int64_t> row_of;
  CCKS_RETURN_IF_ERROR(read_indices(call, call.in[2], x.extents[0], "row", row_of));
  const std::vector<double> rows = read(x), weights = read(weight);
  const std::int64_t width = out.extents[1];
  std::vector<double> sum(static_cast<std::size_t>(out.count()), 0);
  for (std::size_t pair = 0; pair < row_of.size(); ++pair) {
    const double* from = rows.data() + row_of[pair] * width;
    double* to = sum.data() + static_cast<std::int64_t>(pair / attrs.top_k) * width;
    for (std::int64_t d = 0; d < width; ++d) to[d] += weights[pair] * from[d];
  }
  return store_epilogue(call, attrs.epilogue, sum, 3);
}

Status run_report(const Call& call) {
  if (call.in[0].count() != call.out[0].count()) return call.misshapen("the report has not the size of x");
  write(call.out[0], read(call.in[0]));
  return {};
}

Status run_select(const Call& call) {
  const Window& from = call.in[call.taken ? 0 : 1];
  if (from.extents != call.out[0].extents) return call.misshapen("an operand has not the output's shape");
  write(call.out[0], read(from));
  return {};
}

}  // namespace ccks::spec::reference
