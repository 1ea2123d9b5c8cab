// scatter, attention over pages of a pool, and values that count: what the parser takes, what the reference makes of them.
#include <gtest/gtest.h>

#include <cmath>
#include <map>
#include <set>

#include "spec/parse.hpp"
#include "spec/reference.hpp"
#include "tests/paths.hpp"

namespace ccks::spec {
namespace {

ParseResult parse_ops(const std::string& tensors, const std::string& ops) {
  return parse_text("ccks: 1\nprogram: p\ndims:\n  n: {range: [1, 8], default: 4}\n  v: 6\ntensors:\n" + tensors + "ops:\n" + ops, "t.yaml", {});
}
std::string first_error(const ParseResult& result) { return result.ok ? "none" : format_diagnostics(result); }

const std::string kScatterTensors =
    "  x: {shape: [n, 2], kind: input}\n  i: {shape: [n], dtype: i32, kind: input}\n  t: {shape: [v, 2], kind: state}\n"
    "  y: {shape: [v, 2], kind: output}\n  m: {shape: [v, 2], kind: intermediate}\n";
const std::string kOut = "  - {op: map, expr: t, out: y}\n";

TEST(Scatter, RowsGoWhereTheIndexSaysAndOthersStay) {
  const ParseResult r = parse_ops(kScatterTensors, "  - {op: scatter, x: x, index: i, out: t}\n" + kOut);
  ASSERT_TRUE(r.ok) << format_diagnostics(r);
  ASSERT_EQ(r.program.ops[0].kind(), OpKind::scatter);
  EXPECT_STREQ(op_kind_name(OpKind::scatter), "scatter");
  TensorMap bound;
  bound["x"] = {{4, 2}, {1, 2, 3, 4, 5, 6, 7, 8}};
  bound["i"] = {{4}, {5, -1, 0, 6}};
  bound["t"] = {{6, 2}, {10, 11, 12, 13, 14, 15, 16, 17, 18, 19, 20, 21}};
  const std::int64_t dims[] = {4};
  const Result<TensorMap> out = interpret(r.program, dims, bound);
  ASSERT_TRUE(out.ok()) << out.status().to_string();
  EXPECT_EQ(out->at("y").values, (std::vector<double>{5, 6, 12, 13, 14, 15, 16, 17, 18, 19, 1, 2})) << "-1 and 6 are no rows";
}

TEST(Scatter, OfNumbersIntoAWindowConverts) {
  const ParseResult r = parse_ops("  x: {shape: [3], kind: input}\n  i: {shape: [3], dtype: i64, kind: input}\n  t: {shape: [8], dtype: bf16, kind: state}\n"
                                  "  y: {shape: [8], kind: output}\n",
                                  "  - {op: scatter, x: x, index: i, out: \"t[2:5]\"}\n  - {op: map, expr: t, dtype: f32, out: y}\n");
  ASSERT_TRUE(r.ok) << format_diagnostics(r);
  TensorMap bound;
  bound["x"] = {{3}, {1.0000001, 2, 3}};
  bound["i"] = {{3}, {2, 3, 0}};
  const std::int64_t dims[] = {1};
  const Result<TensorMap> out = interpret(r.program, dims, bound);
  ASSERT_TRUE(out.ok()) << out.status().to_string();
  EXPECT_EQ(out->at("y").values, (std::vector<double>{0, 0, 3, 0, 1, 0, 0, 0})) << "row 3 is outside of the window";
}

TEST(Scatter, Complaints) {
  const auto code = [](const std::string& op) { return first_error(parse_ops(kScatterTensors, "  - {op: map, expr: \"0.0\", shape: [v, 2], out: m}\n" + op + kOut)); };
  EXPECT_EQ(code("  - {op: scatter, x: x, index: i, out: t}\n"), "none");
  EXPECT_EQ(code("  - {op: scatter, x: x, index: i, out: m}\n"), "none");
  EXPECT_NE(code("  - {op: scatter, x: x, index: i, out: z}\n").find("CCKS045"), std::string::npos) << "nothing declared";
  EXPECT_NE(code("  - {op: scatter, x: x, index: i, out: y}\n").find("CCKS041"), std::string::npos) << "rows that hold nothing";
  EXPECT_NE(code("  - {op: scatter, x: x, index: x, out: t}\n").find("CCKS052"), std::string::npos);
  EXPECT_NE(code("  - {op: scatter, x: x, index: \"x[:, 0]\", out: t}\n").find("CCKS053"), std::string::npos);
  EXPECT_NE(code("  - {op: scatter, x: x, index: \"i.reshape(n, 1)\", out: t}\n").find("CCKS052"), std::string::npos);
  EXPECT_NE(code("  - {op: scatter, x: i, index: i, out: t}\n").find("CCKS05"), std::string::npos);
  EXPECT_NE(code("  - {op: scatter, x: \"x[:, 0:1]\", index: i, out: t}\n").find("CCKS051"), std::string::npos);
  EXPECT_NE(code("  - {op: scatter, x: \"t[0:n, :]\", index: i, out: t}\n").find("CCKS048"), std::string::npos) << "reads what it writes";
}

TEST(Paged, CountingInit) {
  const ParseResult r = parse_ops("  a: {shape: [2, 3], dtype: i32, kind: input, init: {count: 0}}\n  b: {shape: [2, 3], dtype: i32, kind: input, init: {count: 1}}\n"
                                  "  c: {shape: [2, 2, 2], dtype: i64, kind: input, init: {count: 1}}\n  y: {shape: [2, 3], dtype: i32, kind: output}\n",
                                  "  - {op: map, expr: a + b, out: y}\n");
  ASSERT_TRUE(r.ok) << format_diagnostics(r);
  const auto values = [&](const char* name) { return seeded_values(r.program, *r.program.find_tensor(name), {}, 3).values; };
  EXPECT_EQ(values("a"), (std::vector<double>{0, 2, 4, 1, 3, 5}));
  EXPECT_EQ(values("b"), (std::vector<double>{0, 1, 2, 3, 4, 5}));
  EXPECT_EQ(values("c"), (std::vector<double>{0, 2, 1, 3, 4, 6, 5, 7}));
  for (const char* bad : {"{count: 2}", "{count: -1}", "{count: n}"})
    EXPECT_NE(first_error(parse_ops(std::string("  a: {shape: [2, 3], dtype: i32, kind: input, init: ") + bad + "}\n  y: {shape: [2, 3], dtype: i32, kind: output}\n",
                                    "  - {op: map, expr: a, out: y}\n")).find("CCKS0"), std::string::npos) << bad;
}

const std::string kAttentionTensors =
    "  q: {shape: [n, 8], kind: input}\n  k: {shape: [14, 4], kind: state}\n  w: {shape: [14, 4], kind: state}\n  r: {shape: [n, 2], dtype: i32, kind: input}\n"
    "  g: {shape: [n, 3], dtype: i32, kind: input}\n  y: {shape: [n, 8], kind: output}\n";
std::string attention(const std::string& more) { return "  - {op: attention, q: q, k: k, v: w, heads: 4, kv_heads: 2, scale: 0.5, out: y" + more + "}\n"; }

TEST(Paged, AttentionFindsPositionsThroughPages) {
  const ParseResult r = parse_ops(kAttentionTensors, attention(", reach: r, pages: g, page: 4"));
  ASSERT_TRUE(r.ok) << format_diagnostics(r);
  EXPECT_EQ(std::get<AttentionAttrs>(r.program.ops[0].attrs).page, 4u);
  const std::int64_t dims[] = {5};
  TensorMap bound;
  for (const char* name : {"q", "k", "w"}) {
    const TensorId id = *r.program.find_tensor(name);
    Program seeded = r.program;
    seeded.tensors[id].init = {Init::Kind::normal, 1, 0};
    bound[name] = seeded_values(seeded, id, dims, 5);
  }
  // 14 slots are three pages; the last two slots are none. Page 3 and negative ones do not exist.
  bound["g"] = {{5, 3}, {2, 0, 1, 1, -1, 0, 3, 3, 2, 0, 1, 2, 0, 1, 2}};
  bound["r"] = {{5, 2}, {0, 7, 2, 12, 0, 10, 5, 5, -3, 99}};
  const std::vector<std::vector<std::int64_t>> rows{{8, 9, 10, 11, 0, 1, 2}, {6, 7, 0, 1, 2, 3}, {8, 9}, {}, {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11}};
  const Result<TensorMap> out = interpret(r.program, dims, bound);
  ASSERT_TRUE(out.ok()) << out.status().to_string();
  for (std::size_t i = 0; i < 5; ++i)
    for (std::size_t h = 0; h < 4; ++h) {
      double sum = 0, value[2] = {};
      for (const std::int64_t at : rows[i]) {
        const auto column = static_cast<std::size_t>(at) * 4 + h / 2 * 2;
        const double weight = std::exp(0.5 * (bound["q"].values[i * 8 + h * 2] * bound["k"].values[column] + bound["q"].values[i * 8 + h * 2 + 1] * bound["k"].values[column + 1]));
        sum += weight;
        for (std::size_t d = 0; d < 2; ++d) value[d] += weight * bound["w"].values[column + d];
      }
      for (std::size_t d = 0; d < 2; ++d)
        EXPECT_NEAR(out->at("y").values[i * 8 + h * 2 + d], sum == 0 ? 0 : value[d] / sum, 1e-6) << "row " << i << ", head " << h;
    }
}

TEST(Paged, Complaints) {
  const auto code = [](const std::string& more) { return first_error(parse_ops(kAttentionTensors, attention(more))); };
  EXPECT_EQ(code(", reach: r, pages: g, page: 4"), "none");
  EXPECT_NE(code(", reach: r, pages: g").find("CCKS011"), std::string::npos);
  EXPECT_NE(code(", reach: r, page: 4").find("CCKS011"), std::string::npos);
  EXPECT_NE(code(", pages: g, page: 4").find("CCKS011"), std::string::npos);
  EXPECT_NE(code(", reach: r, pages: g, page: 0").find("CCKS0"), std::string::npos);
  EXPECT_NE(code(", reach: r, pages: g, page: n").find("CCKS025"), std::string::npos);
  EXPECT_NE(code(", reach: r, pages: q, page: 4").find("CCKS053"), std::string::npos);
  EXPECT_NE(code(", reach: r, pages: g, page: 4, causal: true").find("CCKS05"), std::string::npos);
  EXPECT_NE(code(", reach: r, pages: g, page: 4, append: {k: k, v: w, at: 0}").find("CCKS05"), std::string::npos);
}


/// llama_serve beside llama: the same weights, since tensors have the same names.
class Serve : public testing::Test {
 protected:
  Serve() : alone_(parse_example("llama")), together_(parse_example("llama_serve")) {}

  static Program parse_example(const std::string& name) {
    ParseOptions options;
    options.constants = {{"layers", 2}, {"d", 32}, {"heads", 4}, {"kv_heads", 2}, {"ffn", 48}, {"vocab", 96}, {"context", 16}};
    if (name == "llama_serve") options.constants.insert(options.constants.end(), {{"page", 4}, {"seats", 3}, {"pool", 9}});
    ParseResult r = parse_file(CCKS_SOURCE_DIR "/spec/examples/" + name + ".yaml", options);
    EXPECT_TRUE(r.ok) << format_diagnostics(r);
    return std::move(r.program);
  }
  static void bind_weights(const Program& program, std::span<const std::int64_t> dims, TensorMap& bound) {
    for (TensorId id = 0; id < program.tensors.size(); ++id)
      if (program.tensors[id].kind == TensorKind::weight) bound[program.tensors[id].name] = seeded_values(program, id, dims, 1);
  }
  static void keep_states(const Program& program, const TensorMap& out, TensorMap& bound) {
    for (const Tensor& t : program.tensors)
      if (t.kind == TensorKind::state) bound[t.name] = out.at(t.name);
  }
  static std::vector<std::int64_t> dims_of(const Program& program, const std::map<std::string, std::int64_t>& values) {
    std::vector<std::int64_t> dims;
    for (const Symbol& s : program.symbols) dims.push_back(values.at(s.name));
    return dims;
  }

  /// The tokens that follow a prompt, of a sequence that has a machine for itself.
  std::vector<double> generate(std::vector<double> prompt, std::size_t count) const {
    TensorMap bound;
    std::vector<double> found;
    std::int64_t pos = 0;
    while (found.size() < count) {
      const auto n = static_cast<std::int64_t>(prompt.size());
      const std::vector<std::int64_t> dims = dims_of(alone_, {{"n", n}, {"pos", pos}});
      bind_weights(alone_, dims, bound);
      bound["tokens"] = {{n}, prompt};
      const Result<TensorMap> out = interpret(alone_, dims, bound);
      EXPECT_TRUE(out.ok()) << out.status().to_string();
      keep_states(alone_, *out, bound);
      found.push_back(out->at("next").values[0]);
      prompt = {found.back()};
      pos += n;
    }
    return found;
  }

  struct Row {
    double token;
    int seat, position;
  };
  /// One step; pages of each seat as `pages_` says. The tokens found.
  std::vector<double> step(const std::vector<Row>& rows, const std::vector<double>& take, const std::vector<double>& keep) {
    const auto n = static_cast<std::int64_t>(rows.size()), m = static_cast<std::int64_t>(take.size());
    const std::vector<std::int64_t> dims = dims_of(together_, {{"n", n}, {"m", m}});
    bind_weights(together_, dims, bound_);
    for (const char* name : {"token", "seat", "position"}) bound_[name] = {{n}, {}};
    bound_["pages"] = {{n, 4}, {}};
    for (const Row& r : rows) {
      bound_["token"].values.push_back(r.token);
      bound_["seat"].values.push_back(r.seat);
      bound_["position"].values.push_back(r.position);
      for (std::size_t p = 0; p < 4; ++p) bound_["pages"].values.push_back(r.seat < 0 ? -1 : pages_[static_cast<std::size_t>(r.seat)][p]);
    }
    bound_["take"] = {{m}, take};
    bound_["keep"] = {{m}, keep};
    const Result<TensorMap> out = interpret(together_, dims, bound_);
    EXPECT_TRUE(out.ok()) << out.status().to_string();
    if (!out.ok()) return {};
    keep_states(together_, *out, bound_);
    logits_ = out->at("logits").values;
    return out->at("next").values;
  }

  Program alone_, together_;
  TensorMap bound_;
  std::vector<double> logits_;
  double pages_[3][4] = {{7, 2, 5, -1}, {-1, -1, -1, -1}, {0, 8, 1, 3}};
};

// Two sequences, one of them in pieces, with rows of nobody between; tokens that the machine keeps go into the next step by themselves.
TEST_F(Serve, TokensAreThoseOfEachSequenceAlone) {
  const std::vector<double> a{5, 17, 80, 3, 44, 9, 61}, b{90, 2, 33};
  const std::vector<double> after_a = generate(a, 4), after_b = generate(b, 5);
  std::vector<double> found_a, found_b;
  std::vector<double> next = step({{a[0], 0, 0}, {b[0], 2, 0}, {a[1], 0, 1}, {7, -1, -1}, {b[1], 2, 1}, {b[2], 2, 2}, {a[2], 0, 2}}, {5, -1}, {2, -1});
  found_b.push_back(next[0]);
  next = step({{-1, 2, 3}, {a[3], 0, 3}, {a[4], 0, 4}, {a[5], 0, 5}, {a[6], 0, 6}}, {4, 0, -1}, {0, 2, -1});
  found_a.push_back(next[0]), found_b.push_back(next[1]);
  for (int i = 0; i < 3; ++i) {
    next = step({{-1, 0, 7 + i}, {-1, 2, 4 + i}, {-1, -1, -1}}, {0, 1}, {0, 2});
    found_a.push_back(next[0]), found_b.push_back(next[1]);
  }
  EXPECT_EQ(found_a, after_a);
  EXPECT_EQ(found_b, after_b);
  EXPECT_GT(std::set<double>(found_a.begin(), found_a.end()).size() + std::set<double>(found_b.begin(), found_b.end()).size(), 3u) << "tokens that differ";
}

// With a page of another sequence it would not be so.
TEST_F(Serve, PagesMatter) {
  const std::vector<double> b{90, 2, 33};
  step({{b[0], 2, 0}, {b[1], 2, 1}, {b[2], 2, 2}, {5, 0, 0}, {6, 0, 1}, {7, 0, 2}}, {2}, {2});
  const TensorMap before = bound_;
  const auto logits_with = [&](double page) {
    bound_ = before;
    pages_[2][0] = page;
    step({{11, 2, 3}}, {0}, {2});
    return logits_;
  };
  EXPECT_EQ(logits_with(0), logits_with(0));
  EXPECT_NE(logits_with(0), logits_with(7));
}

}  // namespace
}  // namespace ccks::spec
