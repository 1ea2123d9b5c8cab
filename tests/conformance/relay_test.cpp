// Relays (wire/relay.hpp): decode steps whose tiles workers run from row to row. What they give, for shapes of every kind that relays take, and that workers which
// leave in the middle of one lose nothing. Only GPUs have them; other devices run the same programs without.
#include <gtest/gtest.h>

#include <chrono>
#include <string>
#include <tuple>
#include <vector>

#include "ccks/engine.hpp"
#include "tests/support/sanitized.hpp"
#include "tests/support/verified_run.hpp"
#include "tests/support/ways.hpp"

namespace ccks::test {
namespace {

// A decode step in little: a norm inside of products, heads that are turned, keys and values of the newest position beside a context that others have filled, twins, residuals,
// and a product of floats at the end. Depths that are no multiple of a stage's.
constexpr const char* kSpec = R"yaml(
ccks: 1
program: relay
dtype: bf16
dims: {n: {range: [1, 12], default: 1}, pos: {range: [0, 371], default: 0}, context: 384, layers: 2, d: @D@, heads: @HEADS@, kv_heads: @KV@, head_dim: @DIM@, ffn: @FFN@, vocab: 1288, q: heads * head_dim, kv: kv_heads * head_dim}
tensors:
  x0: {shape: [n, d], kind: input}
  head: {shape: [vocab, d], kind: weight}
  norm: {shape: [d], kind: weight}
  logits: {shape: [1, vocab], dtype: f32, kind: output}
ops:
  - {op: map, expr: x0 * 1.0, out: x}
  - repeat: {index: l, from: 0, to: layers, name: layers}
    tensors:
      norm_a: {shape: [d], kind: weight}
      norm_b: {shape: [d], kind: weight}
      wq: {shape: [q, d], kind: weight}
      wk: {shape: [kv, d], kind: weight}
      wv: {shape: [kv, d], kind: weight}
      wo: {shape: [d, q], kind: weight}
      gate: {shape: [ffn, d], kind: weight}
      up: {shape: [ffn, d], kind: weight}
      down: {shape: [d, ffn], kind: weight}
      k_cache: {shape: [context, kv], kind: state, init: {normal: 1}}
      v_cache: {shape: [context, kv], kind: state, init: {normal: 1}}
    ops:
      - {op: rmsnorm, x: x, weight: norm_a, eps: 1e-5, out: a}
      - {op: matmul, a: a, b: wq.T, out: q0}
      - {op: matmul, a: a, b: wk.T, out: k0}
      - {op: matmul, a: a, b: wv.T, out: "v_cache[pos:pos + n, :]"}
      - {op: rope, x: q0, heads: heads, theta: 10000, position: pos, out: q0}
      - {op: rope, x: k0, heads: kv_heads, theta: 10000, position: pos, out: "k_cache[pos:pos + n, :]"}
      - {op: attention, q: q0, k: "k_cache[0:pos + n, :]", v: "v_cache[0:pos + n, :]", heads: heads, kv_heads: kv_heads, causal: true, out: s}
      - {op: matmul, a: s, b: wo.T, epilogue: acc + x, out: x}
      - {op: rmsnorm, x: x, weight: norm_b, eps: 1e-5, out: m}
      - {op: matmul, a: m, b: gate.T, epilogue: "@ACT@(acc)", out: g}
      - {op: matmul, a: m, b: up.T, epilogue: acc * g, out: u}
      - {op: matmul, a: u, b: down.T, epilogue: acc + x, out: x}
  - {op: rmsnorm, x: "x[n - 1:n, :]", weight: norm, eps: 1e-5, out: last}
  - {op: matmul, a: last, b: head.T, out: logits, dtype: f32}
)yaml";

struct Shape {
  const char* name;
  int d, heads, kv_heads, head_dim, ffn;
  const char* act;
};
constexpr Shape kShapes[] = {
    {"four_queries", 512, 8, 2, 64, 1024, "silu"},
    {"long_heads", 768, 6, 2, 128, 1280, "gelu_tanh"},
    {"eight_queries", 512, 8, 1, 64, 2304, "relu"},
    {"rows_of_two_passes", 2304, 4, 4, 64, 512, "silu"},
};

std::string spec_of(const Shape& shape) {
  std::string text = kSpec;
  const auto put = [&](const std::string& name, const std::string& value) {
    for (std::size_t at; (at = text.find(name)) != std::string::npos;) text.replace(at, name.size(), value);
  };
  put("@D@", std::to_string(shape.d));
  put("@HEADS@", std::to_string(shape.heads));
  put("@KV@", std::to_string(shape.kv_heads));
  put("@DIM@", std::to_string(shape.head_dim));
  put("@FFN@", std::to_string(shape.ffn));
  put("@ACT@", shape.act);
  return text;
}

using Param = std::tuple<std::string, Shape, std::string>;  // device, shape, way

class Relays : public testing::TestWithParam<Param> {};

// One position, and contexts of one part and of several; then more rows, for which there is no relay, and one again.
TEST_P(Relays, MatchTheReference) {
  const auto& [device, shape, way] = GetParam();
  const TemporaryFolder folder;
  run::Options options = options_of(folder, spec_of(shape), device, device == "cuda" ? "jit" : "generic");
  set_way(options, way);
  for (const auto& [n, pos] : std::vector<std::pair<std::int64_t, std::int64_t>>{{1, 0}, {1, 15}, {1, 127}, {1, 128}, {5, 40}, {1, 300}, {1, 371}}) {
    if (pos != 15 && pos != 300 && short_sweeps()) continue;
    options.dims = {{"n", n}, {"pos", pos}};
    if (!expect_verified(options, "n = " + std::to_string(n) + ", pos = " + std::to_string(pos))) return;
  }
}

// Many runs, between any two of which workers leave, and which they leave in the middle.
TEST_P(Relays, SurviveWorkersThatLeave) {
  const auto& [device, shape, way] = GetParam();
  const TemporaryFolder folder;
  run::Options options = options_of(folder, spec_of(shape), device, device == "cuda" ? "jit" : "generic");
  set_way(options, way);
  options.dims = {{"n", 1}, {"pos", 200}};
  options.iterations = sanitized() ? 5 : 200;
  options.idle_limit_us = 100;
  expect_verified(options);
}

std::vector<Param> params() {
  std::vector<Param> out = {{"host", kShapes[0], "static"}};
  for (const Shape& shape : kShapes) out.emplace_back("cuda", shape, "static");
  out.emplace_back("cuda", kShapes[0], "lookahead");
  return out;
}

std::string name_of(const testing::TestParamInfo<Param>& p) {
  const auto& [device, shape, way] = p.param;
  return device + "_" + shape.name + "_" + way;
}

INSTANTIATE_TEST_SUITE_P(All, Relays, testing::ValuesIn(params()), name_of);

}  // namespace
}  // namespace ccks::test
