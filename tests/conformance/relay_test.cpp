// Relays (wire/relay.hpp): decode steps whose tiles workers run from row to row. What they give, for shapes of every kind that relays take, and that workers which
// leave in the middle of one lose nothing. Only GPUs have them; other devices run the same programs without.
#include <gtest/gtest.h>

#include <string>
#include <tuple>
#include <vector>

#include "tests/support/residency.hpp"
#include "tests/support/sanitized.hpp"
#include "tests/support/verified_run.hpp"
#include "tests/support/ways.hpp"

namespace ccks::test {
namespace {

// A decode step in little: a norm inside of products, heads that are turned, keys and values of the newest position beside a context that others have filled, twins, residuals,
// and a product of floats at the end. Depths that are no multiple of a stage's. Of n tokens of one sequence, or of one each of several that are at one position.
constexpr const char* kSpec = R"yaml(
ccks: 1
program: relay
dtype: bf16
dims: {@ROWS@, pos: {range: [0, 1523], default: 0}, context: 1536, layers: 2, d: @D@, heads: @HEADS@, kv_heads: @KV@, head_dim: @DIM@, ffn: @FFN@, vocab: 1288, q: heads * head_dim, kv: kv_heads * head_dim}
tensors:
  x0: {shape: [@N@, d], kind: input}
  head: {shape: [vocab, d], kind: weight}
  norm: {shape: [d], kind: weight}
  logits: {shape: [@LAST@, vocab], dtype: f32, kind: output}
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
      k_cache: {shape: [@CACHES@context, kv], kind: state, init: {normal: 1}}
      v_cache: {shape: [@CACHES@context, kv], kind: state, init: {normal: 1}}
    ops:
      - {op: rmsnorm, x: x, weight: norm_a, eps: 1e-5, out: a}
      - {op: matmul, a: a, b: wq.T, out: q0}
      - {op: matmul, a: a, b: wk.T, out: k0}
      - {op: matmul, a: a, b: wv.T, out: "v_cache[@NEWEST@, :]"}
      - {op: rope, x: "@Q@", heads: heads, theta: 10000, position: pos, out: @TURNED_Q@}
      - {op: rope, x: "@K@", heads: kv_heads, theta: 10000, position: pos, out: "k_cache[@TURNED@, :]"}
      - {op: attention, q: @TURNED_Q@, k: "k_cache[@CONTEXT@, :]", v: "v_cache[@CONTEXT@, :]", heads: heads, kv_heads: kv_heads, causal: true, out: s}
      - {op: matmul, a: "@S@", b: wo.T, epilogue: acc + x, out: x}
      - {op: rmsnorm, x: x, weight: norm_b, eps: 1e-5, out: m}
      - {op: matmul, a: m, b: gate.T, epilogue: "@ACT@(acc)", out: g}
      - {op: matmul, a: m, b: up.T, epilogue: acc * g, out: u}
      - {op: matmul, a: u, b: down.T, epilogue: acc + x, out: x}
  - {op: rmsnorm, x: "@X@", weight: norm, eps: 1e-5, out: last}
  - {op: matmul, a: last, b: head.T, out: logits, dtype: f32}
)yaml";

struct Shape {
  const char* name;
  int d, heads, kv_heads, head_dim, ffn;
  const char* act;
  int rows = 1;
};
constexpr Shape kShapes[] = {
    {"four_queries", 512, 8, 2, 64, 1024, "silu"},
    {"long_heads", 768, 6, 2, 128, 1280, "gelu_tanh"},
    {"eight_queries", 512, 8, 1, 64, 2304, "relu"},
    {"rows_of_two_passes", 2304, 8, 8, 64, 512, "silu"},
    {"stages_of_four_columns", 1536, 8, 2, 64, 3584, "silu"},
    {"two_rows", 2048, 8, 2, 64, 1024, "silu", 2},
    {"three_rows_of_long_heads", 768, 6, 2, 128, 1280, "gelu_tanh", 3},
    {"four_rows_of_two_passes", 2304, 8, 8, 64, 512, "silu", 4},
    {"four_rows_by_pieces", 768, 6, 2, 128, 6400, "silu", 4},
    {"eight_rows", 1024, 8, 1, 64, 2304, "relu", 8},
    {"eight_rows_and_norms_apart", 2048, 8, 8, 64, 512, "silu", 8},
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
  const bool one = shape.rows == 1;
  const auto put_either = [&](const std::string& name, const std::string& of_one, const std::string& of_several) { put(name, one ? of_one : of_several); };
  put_either("@ROWS@", "n: {range: [1, 12], default: 1}", "rows: " + std::to_string(shape.rows));
  put_either("@N@", "n", "rows");
  put_either("@LAST@", "1", "rows");
  put_either("@X@", "x[n - 1:n, :]", "x");
  put_either("@CACHES@", "", "rows, ");
  put_either("@NEWEST@", "pos:pos + n", ":, pos");
  put_either("@TURNED@", "pos:pos + n", ":, pos:pos + 1");
  put_either("@CONTEXT@", "0:pos + n", ":, 0:pos + 1");
  put_either("@Q@", "q0", "q0.reshape(rows, 1, q)");
  put_either("@TURNED_Q@", "q0", "q1");
  put_either("@K@", "k0", "k0.reshape(rows, 1, kv)");
  put_either("@S@", "s", "s.reshape(rows, q)");
  return text;
}

using Param = std::tuple<std::string, Shape, std::string>;  // device, shape, way

class Relays : public testing::TestWithParam<Param> {};

// One position, and contexts of one part, of several, and of more than are brought together at once; between them more rows, for which there is no relay.
TEST_P(Relays, MatchTheReference) {
  const auto& [device, shape, way] = GetParam();
  const TemporaryFolder folder;
  run::Options options = options_of(folder, spec_of(shape), device, device == "cuda" ? "jit" : "generic");
  set_way(options, way);
  for (const auto& [n, pos] : std::vector<std::pair<std::int64_t, std::int64_t>>{{1, 0}, {1, 15}, {1, 127}, {1, 128}, {5, 40}, {1, 300}, {1, 371}, {1, 1400}}) {
    if (pos != 15 && pos != 300 && pos != 1400 && short_sweeps()) continue;
    if (shape.rows != 1 && n != 1) continue;
    options.dims = {{"pos", pos}};
    if (shape.rows == 1) options.dims.emplace_back("n", n);
    if (!expect_verified(options, "n = " + std::to_string(n) + ", pos = " + std::to_string(pos))) return;
  }
}

std::vector<Param> params() {
  std::vector<Param> out = {{"host", kShapes[0], "static"}};
  for (const Shape& shape : kShapes) out.emplace_back("cuda", shape, "static");
  out.emplace_back("host", kShapes[6], "static");
  out.emplace_back("cuda", kShapes[0], "lookahead");
  return out;
}

std::string name_of(const testing::TestParamInfo<Param>& p) {
  const auto& [device, shape, way] = p.param;
  return device + "_" + shape.name + "_" + way;
}

INSTANTIATE_TEST_SUITE_P(All, Relays, testing::ValuesIn(params()), name_of);

// ---- workers that leave -------------------------------------------------------------------------------------------------

class RelayResidency : public ResidencyTest {};

// Positions go up and down, so that each step of the load is made anew by some runs and brought up to date by others; workers leave wherever they stand, also in the middle of a
// relay, and begin it again.
TEST_F(RelayResidency, HandoffsInTheMiddleChangeNoBit) {
  open(spec_of(kShapes[0]));
  if (!engine_) return;
  const std::vector<std::uint16_t> x = values(static_cast<std::size_t>(kShapes[0].d), 77);
  const auto step = [&](std::int64_t pos) { return run<float>({{"n", 1}, {"pos", pos}}, "x0", x, "logits"); };
  std::vector<std::vector<float>> want;
  for (int round = 0; round < 2; ++round) {  // the first puts rows into the caches that others read
    want.clear();
    for (const std::int64_t pos : {200, 201, 90, 91}) want.push_back(step(pos));
  }
  std::uint64_t runs = 0;
  hand_off_while([&] {
    for (const auto& [index, pos] : {std::pair<std::size_t, std::int64_t>{0, 200}, {1, 201}, {2, 90}, {3, 91}}) {
      EXPECT_EQ(step(pos), want[index]) << "position " << pos << ", run " << runs;
      ++runs;
    }
  });
  EXPECT_GT(runs, 50u);
}

}  // namespace
}  // namespace ccks::test
