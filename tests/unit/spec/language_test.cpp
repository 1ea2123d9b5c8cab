// What programs mean: views, results, blocks, and the shapes of every op.
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <stdexcept>

#include "spec/parse.hpp"
#include "tests/paths.hpp"

namespace ccks::spec {
namespace {

class Language : public ::testing::Test {
 protected:
  /// Parses with symbols n, pos and constants d, h; says everything where that fails.
  const Program& parse(const std::string& tensors, const std::string& ops, const ParseOptions& options = {}) {
    const std::string text =
        "ccks: 1\nprogram: p\ndims: {n: {range: [1, 64]}, pos: {range: [0, 31]}, d: 8, two: 2}\ntensors:\n" + tensors +
        "ops:\n" + ops;
    result = parse_text(text, "t.yaml", options);
    // Thrown, since what follows would read ops that are not there.
    if (!result.ok) throw std::runtime_error(format_diagnostics(result) + text);
    return result.program;
  }

  const Tensor& tensor(const std::string& name) {
    const auto id = result.program.find_tensor(name);
    EXPECT_TRUE(id) << name;
    return result.program.tensors[id.value_or(0)];
  }

  std::string shape(const std::string& name) {
    std::string out;
    for (const Expr& e : tensor(name).shape) out += (out.empty() ? "" : ", ") + e.to_string(result.program.symbols);
    return out;
  }

  /// "x[0:n, 2:6:2]" and so on; broadcast dims as "*extent", fixed ones as "=index".
  std::string show(const View& v) {
    const Program& p = result.program;
    std::string out = p.tensors[v.tensor].name + "[";
    std::vector<bool> covered(kMaxRank, false);
    for (std::size_t i = 0; i < v.dims.size(); ++i) {
      const ViewDim& d = v.dims[i];
      out += i ? ", " : "";
      if (d.base_dim == kNone) {
        out += "*" + d.extent.to_string(p.symbols);
        continue;
      }
      covered[d.base_dim] = true;
      out += std::to_string(d.base_dim) + ":" + d.offset.to_string(p.symbols) + "+" + d.extent.to_string(p.symbols);
      if (d.step != 1) out += "/" + std::to_string(d.step);
    }
    for (std::size_t i = 0; i < p.tensors[v.tensor].shape.size(); ++i)
      if (!covered[i]) out += " " + std::to_string(i) + "=" + v.fixed[i].to_string(p.symbols);
    return out + "]";
  }

  std::string checks() {
    std::string out;
    for (const RuntimeCheck& c : result.program.checks)
      out += c.lhs.to_string(result.program.symbols) + (c.relation == RuntimeCheck::Relation::equal ? " == " : " <= ") +
             c.rhs.to_string(result.program.symbols) + ";";
    return out;
  }

  std::string error_of(const std::string& tensors, const std::string& ops) {
    const auto r =
        parse_text("ccks: 1\nprogram: p\ndims: {n: {range: [1, 64]}, pos: {range: [0, 31]}, d: 8, two: 2}\ntensors:\n" +
                       tensors + "ops:\n" + ops,
                   "t.yaml");
    for (const Diagnostic& d : r.diagnostics)
      if (d.severity == Severity::error) return d.code;
    return "";
  }

  ParseResult result;
};

const std::string kX = "  x: {shape: [n, d], kind: input}\n";

TEST_F(Language, Views) {
  const std::string tensors = kX + "  t: {shape: [4, n, d], kind: input}\n";
  const auto view = [&](const std::string& operand) {
    parse(tensors, "- {op: map, expr: v, with: {v: \"" + operand + "\"}, out: o}\n");
    return result.program.ops.empty() ? "" : show(result.program.ops.back().inputs[0]);
  };
  EXPECT_EQ(view("x"), "x[0:0+n, 1:0+8]");
  EXPECT_EQ(view("x[:, 2:6]"), "x[0:0+n, 1:2+4]");
  EXPECT_EQ(view("x[:, 1:8:3]"), "x[0:0+n, 1:1+3/3]");
  EXPECT_EQ(view("x[:, 1:8:3][:, 1:3]"), "x[0:0+n, 1:4+2/3]");
  EXPECT_EQ(view("x[n - 1, :]"), "x[1:0+8 0=n - 1]");
  EXPECT_EQ(view("t[2]"), "t[1:0+n, 2:0+8 0=2]");
  EXPECT_EQ(view("t[2, 0:n, :].T"), "t[2:0+8, 1:0+n 0=2]");
  EXPECT_EQ(view("t.transpose(2, 0, 1)"), "t[2:0+8, 0:0+4, 1:0+n]");
  EXPECT_EQ(view("x[0:1, :].broadcast(3, n, d)"), "x[*3, *n, 1:0+8 0=0]");
  EXPECT_EQ(view("x.reshape(n * 2, 4).T"), "x.reshaped[1:0+4, 0:0+2*n]");
}

TEST_F(Language, UnprovedRangesBecomeChecks) {
  parse(kX, "- {op: softmax, x: \"x[pos:pos + 1, :]\", out: o}\n");
  EXPECT_EQ(checks(), "pos + 1 <= n;");
  parse(kX, "- {op: softmax, x: \"x[0:min(n, 3), :]\", out: o}\n");
  EXPECT_EQ(checks(), "");
}

TEST_F(Language, NamedViewsEmitNothing) {
  parse(kX,
        "- {op: slice, x: x, range: \"0:1, 2:4\", out: a}\n- {op: transpose, x: a, out: b}\n"
        "- {op: broadcast, x: b, shape: [3, 2, n], out: c}\n- {op: reshape, x: x, shape: [n * d], out: flat}\n"
        "- {op: softmax, x: c, out: o}\n- {op: softmax, x: flat, out: f}\n");
  ASSERT_EQ(result.program.ops.size(), 2u);
  EXPECT_EQ(show(result.program.ops[0].inputs[0]), "x[*3, 1:2+2, *n 0=0]");
  EXPECT_EQ(tensor("x.reshaped").alias_of, *result.program.find_tensor("x"));
  EXPECT_EQ(shape("f"), "8*n");
}

TEST_F(Language, ConcatCopiesIntoWindows) {
  parse(kX, "- {op: concat, inputs: [x, \"x[:, 0:2]\", x], axis: -1, out: o}\n");
  ASSERT_EQ(result.program.ops.size(), 3u);
  EXPECT_EQ(shape("o"), "n, 18");
  EXPECT_EQ(show(result.program.ops[1].outputs[0]), "o[0:0+n, 1:8+2]");
  EXPECT_EQ(show(result.program.ops[2].outputs[0]), "o[0:0+n, 1:10+8]");
  EXPECT_TRUE(std::get<MapAttrs>(result.program.ops[0].attrs).expr.empty());
}

TEST_F(Language, MapsBroadcastAndInferTypes) {
  parse(kX + "  b: {shape: [d], dtype: bf16, kind: input}\n  c: {shape: [n, 1], dtype: i32, kind: input}\n",
        "- {op: map, expr: x + b * c, out: o}\n- {op: map, expr: c + 1, out: i}\n- {op: map, expr: x > b, out: m}\n"
        "- {op: map, expr: b * 2, out: k}\n- {op: map, expr: \"index(0) * d + index(1)\", shape: [n, d], out: iota}\n"
        "- {op: map, expr: \"select(m, x, 0)\", dtype: f16, out: s}\n");
  EXPECT_EQ(shape("o"), "n, 8");
  EXPECT_EQ(tensor("o").dtype, Dtype::f32);
  EXPECT_EQ(tensor("i").dtype, Dtype::i32);
  EXPECT_EQ(tensor("m").dtype, Dtype::boolean);
  EXPECT_EQ(tensor("k").dtype, Dtype::bf16);
  EXPECT_EQ(tensor("iota").dtype, Dtype::i32);
  EXPECT_EQ(tensor("s").dtype, Dtype::f16);
  EXPECT_EQ(show(result.program.ops[0].inputs[1]), "b[*n, 0:0+8]");
  EXPECT_EQ(show(result.program.ops[0].inputs[2]), "c[0:0+n, *8 1=0]");
}

TEST_F(Language, ExpressionsAreTyped) {
  parse(kX + "  c: {shape: [n, 1], dtype: i32, kind: input}\n",
        "- {op: map, expr: \"select(c // 2 == 1 and not x < 0, -x ** 2, 1 / c)\", out: o}\n");
  const ElementExpr& e = std::get<MapAttrs>(result.program.ops[0].attrs).expr;
  ASSERT_FALSE(e.nodes.empty());
  const ExprNode& root = e.nodes.back();
  EXPECT_EQ(root.fn, ExprFn::select);
  EXPECT_EQ(root.type, ScalarType::f32);
  EXPECT_EQ(e.nodes[root.a].fn, ExprFn::logical_and);
  EXPECT_EQ(e.nodes[root.b].fn, ExprFn::neg);  // -(x ** 2)
  EXPECT_EQ(e.nodes[root.c].fn, ExprFn::div);
  EXPECT_EQ(e.nodes[e.nodes[root.c].a].type, ScalarType::f32);
  for (std::uint32_t i = 0; i < e.nodes.size(); ++i)
    for (std::uint32_t child : {e.nodes[i].a, e.nodes[i].b, e.nodes[i].c}) EXPECT_TRUE(child == kNone || child < i);
}

TEST_F(Language, ShapesOfRowOps) {
  parse(kX + "  w: {shape: [d], kind: weight}\n",
        "- {op: reduce, x: x, fn: sum, axes: [0], out: a}\n- {op: reduce, x: x, fn: max, axes: -1, keepdims: true, "
        "out: b}\n"
        "- {op: softmax, x: x, out: c}\n- {op: rmsnorm, x: x, weight: w, out: e}\n- {op: layernorm, x: x, weight: w, "
        "bias: w, dtype: f16, out: f}\n"
        "- {op: argmax, x: x, out: g}\n- {op: topk, x: x, k: 3, out: [v, i]}\n- {op: gather, table: x, index: g, out: "
        "k}\n");
  EXPECT_EQ(shape("a"), "8");
  EXPECT_EQ(shape("b"), "n, 1");
  EXPECT_EQ(shape("c"), "n, 8");
  EXPECT_EQ(shape("e"), "n, 8");
  EXPECT_EQ(tensor("f").dtype, Dtype::f16);
  EXPECT_EQ(shape("g"), "n");
  EXPECT_EQ(tensor("g").dtype, Dtype::i32);
  EXPECT_EQ(shape("v"), "n, 3");
  EXPECT_EQ(tensor("i").dtype, Dtype::i32);
  EXPECT_EQ(shape("k"), "n, 8");
}

TEST_F(Language, ShapesOfMatrixOps) {
  parse(kX + "  w: {shape: [3, d, 5], kind: weight}\n  c: {shape: [5], kind: weight}\n  i: {shape: [n, 3, 9, 9], kind: "
             "input}\n"
             "  k: {shape: [4, 3, 3, 3], kind: weight}\n",
        "- {op: matmul, a: x, b: w, epilogue: relu(acc + c), out: a}\n- {op: matmul, a: w, b: x, transpose_a: true, "
        "transpose_b: true, out: b}\n"
        "- {op: conv2d, x: i, weight: k, stride: 2, padding: [1, 0], out: e}\n- {op: rope, x: x, heads: two, position: "
        "pos, out: f}\n");
  EXPECT_EQ(shape("a"), "3, n, 5");
  EXPECT_EQ(show(result.program.ops[0].inputs[0]), "x[*3, 0:0+n, 1:0+8]");
  EXPECT_EQ(show(result.program.ops[0].inputs[2]), "c[*3, *n, 0:0+5]");
  EXPECT_EQ(shape("b"), "3, 5, n");
  EXPECT_EQ(show(result.program.ops[1].inputs[0]), "w[0:0+3, 2:0+5, 1:0+8]");
  EXPECT_EQ(shape("e"), "n, 4, 5, 4");
  EXPECT_EQ(shape("f"), "n, 8");
}

TEST_F(Language, AttentionAppendsToItsCaches) {
  parse(kX + "  kc: {shape: [2, 64, 4], kind: state}\n  vc: {shape: [64, 4], kind: state}\n",
        "- {op: attention, q: x, k: \"x[:, 0:4]\", v: \"x[:, 4:8]\", heads: 2, kv_heads: 1, causal: true,"
        " append: {k: \"kc[1, :, :]\", v: vc, at: pos}, out: o}\n");
  ASSERT_EQ(result.program.ops.size(), 3u);
  EXPECT_EQ(show(result.program.ops[0].outputs[0]), "kc[1:pos+n, 2:0+4 0=1]");
  EXPECT_EQ(show(result.program.ops[2].inputs[1]), "kc[1:0+n + pos, 2:0+4 0=1]");
  EXPECT_EQ(std::get<AttentionAttrs>(result.program.ops[2].attrs).scale, 0.5);
  EXPECT_EQ(checks(), "n + pos <= 64;");
}

TEST_F(Language, RoutesNameTheirParts) {
  parse(
      kX + "  r: {shape: [16, d], kind: weight}\n  w: {shape: [16, d, d], kind: weight}\n",
      "- {op: matmul, a: x, b: r.T, out: logits}\n- {op: route, logits: logits, k: 4, out: rt}\n"
      "- {op: expert_matmul, x: x, route: rt, b: w, input: tokens, out: a}\n- {op: combine, x: a, route: rt, out: c}\n"
      "- {op: map, expr: \"float(rt.count)\", out: load}\n");
  EXPECT_EQ(shape("rt.weight"), "n, 4");
  EXPECT_EQ(shape("rt.source"), "4*n");
  EXPECT_EQ(shape("a"), "4*n, 8");
  EXPECT_EQ(shape("c"), "n, 8");
  EXPECT_EQ(shape("load"), "16");
  EXPECT_EQ(result.program.ops[2].inputs.size(), 4u);
}

TEST_F(Language, ResultsBindNamesAnew) {
  parse(kX + "  y: {shape: [n, d], kind: output}\n  s: {shape: [4, d], kind: state}\n  t: {shape: [n, 16], kind: "
             "intermediate}\n",
        "- {op: map, expr: x + 1, out: a}\n- {op: map, expr: a + 1, out: a}\n- {op: map, expr: a, out: y}\n"
        "- {op: map, expr: \"s * 2\", out: s}\n- {op: map, expr: x, out: \"t[:, 0:8]\"}\n- {op: map, expr: y, out: "
        "\"t[:, 8:16]\"}\n- {op: softmax, x: t, out: z}\n");
  EXPECT_EQ(show(result.program.ops[1].inputs[0]), "a[0:0+n, 1:0+8]");
  EXPECT_EQ(show(result.program.ops[1].outputs[0]), "a@1[0:0+n, 1:0+8]");
  EXPECT_EQ(show(result.program.ops[2].inputs[0]), "a@1[0:0+n, 1:0+8]");
  EXPECT_EQ(show(result.program.ops[3].outputs[0]), "s[0:0+4, 1:0+8]");
  EXPECT_EQ(show(result.program.ops[5].outputs[0]), "t[0:0+n, 1:8+8]");
}

TEST_F(Language, OpsMustNotOverwriteWhatTheyRead) {
  const std::string y = kX + "  s: {shape: [8, d], kind: state}\n";
  EXPECT_EQ(error_of(y, "- {op: map, expr: v, with: {v: \"s[0:4, :]\"}, out: \"s[2:6, :]\"}\n"), "CCKS048");
  EXPECT_EQ(error_of(y, "- {op: map, expr: v, with: {v: \"s[0:4, :]\"}, out: \"s[4:8, :]\"}\n"), "");
  EXPECT_EQ(error_of(y, "- {op: map, expr: s + 1, out: s}\n"), "");
  EXPECT_EQ(error_of(y, "- {op: map, expr: v, with: {v: s.T}, out: s}\n"), "CCKS048");
}

TEST_F(Language, RepeatCarriesAndPrefixes) {
  parse(kX + "  y: {shape: [n, d], kind: output}\n",
        "- {op: map, expr: x, out: h}\n"
        "- repeat: {index: l, from: 1, to: two + 1, name: layers}\n"
        "  tensors:\n    w: {shape: [d, d], kind: weight, from: \"m.{l - 1}.w\"}\n    \"g.{l}\": {shape: [l], kind: "
        "weight}\n"
        "  ops:\n  - {op: matmul, a: h, b: w, out: h}\n  - {op: map, expr: h * l, out: \"keep.{l}\"}\n"
        "- {op: map, expr: h + keep.1 + keep.2, out: y}\n");
  EXPECT_EQ(tensor("layers.1.w").from, "m.0.w");
  EXPECT_EQ(tensor("layers.2.w").from, "m.1.w");
  EXPECT_EQ(shape("g.2"), "2");
  EXPECT_EQ(result.program.ops[1].name, "layers.1.matmul.h");
  EXPECT_EQ(show(result.program.ops[3].inputs[0]), "layers.1.h[0:0+n, 1:0+8]");
  EXPECT_EQ(show(result.program.ops[5].inputs[0]), "layers.2.h[0:0+n, 1:0+8]");
  EXPECT_EQ(
      error_of(kX,
               "- repeat: {index: l, to: 2}\n  ops:\n  - {op: softmax, x: x, out: q}\n- {op: softmax, x: q, out: r}\n"),
      "CCKS041");
}

TEST_F(Language, RepeatOfNothingIsNothing) {
  parse(kX, "- repeat: {index: l, to: 0}\n  ops:\n  - {op: softmax, x: x, out: q}\n- {op: softmax, x: x, out: r}\n");
  EXPECT_EQ(result.program.ops.size(), 1u);
}

TEST_F(Language, IfGuardsAndJoins) {
  parse(kX + "  y: {shape: [n, d], kind: output}\n  f: {shape: [1], dtype: i32, kind: input}\n",
        "- {op: map, expr: x, out: h}\n- {op: report, x: f, name: go}\n"
        "- if: go != 0\n  ops:\n  - {op: map, expr: h + 1, out: h}\n  - {op: report, x: f, name: more}\n"
        "  - if: more > 2\n    ops:\n    - {op: map, expr: h * 2, out: h}\n    out: {h: }\n"
        "  out: {h: {then: h, else: x}}\n- {op: map, expr: h, out: y}\n");
  const Program& p = result.program;
  ASSERT_EQ(p.conditions.size(), 2u);
  EXPECT_EQ(p.conditions[0].cmp, Condition::Cmp::ne);
  EXPECT_EQ(p.conditions[1].parent, 0u);
  EXPECT_EQ(p.conditions[1].value, 2);
  ASSERT_EQ(p.ops.size(), 8u);
  EXPECT_EQ(p.ops[2].condition, 0u);
  EXPECT_EQ(p.ops[4].condition, 1u);
  EXPECT_EQ(p.ops[5].kind(), OpKind::select);
  EXPECT_EQ(p.ops[5].condition, 0u);
  EXPECT_EQ(show(p.ops[5].inputs[1]), "h@1[0:0+n, 1:0+8]");
  EXPECT_EQ(std::get<SelectAttrs>(p.ops[6].attrs).condition, 0u);
  EXPECT_EQ(p.ops[6].condition, kNone);
  EXPECT_EQ(show(p.ops[6].inputs[1]), "x[0:0+n, 1:0+8]");
  EXPECT_EQ(p.reports[0].name, "go");
  EXPECT_EQ(tensor("report.go").dtype, Dtype::i32);
}

TEST_F(Language, WhatAnIfBindsStaysInside) {
  const std::string tensors = kX + "  y: {shape: [n, d], kind: output}\n  f: {shape: [1], dtype: i32, kind: input}\n";
  parse(tensors,
        "- {op: map, expr: x, out: h}\n- {op: report, x: f, name: go}\n- if: go == 1\n  ops:\n  - {op: map, expr: h + "
        "1, out: h}\n- {op: map, expr: h, out: y}\n");
  EXPECT_EQ(show(result.program.ops.back().inputs[0]), "h[0:0+n, 1:0+8]");
  EXPECT_EQ(
      error_of(tensors, "- {op: report, x: f, name: go}\n- if: go == 1\n  ops:\n  - {op: map, expr: x, out: y}\n"),
      "CCKS046");
}

const std::string kLoop = kX + "  y: {shape: [n, d], kind: output}\n  f: {shape: [1], dtype: i32, kind: input}\n";

TEST_F(Language, WhilePassesHangOnThoseBeforeThem) {
  parse(kLoop,
        "- {op: map, expr: x, out: h}\n- {op: report, x: f, name: go}\n"
        "- while: go > 0\n  most: 3\n  index: l\n  name: steps\n  carry: [h]\n"
        "  tensors:\n    w: {shape: [d, d], kind: weight, from: \"m.{l}.w\"}\n"
        "  ops:\n  - {op: matmul, a: h, b: w, epilogue: acc + l, out: h}\n  - {op: report, x: f, name: go}\n"
        "- {op: map, expr: h, out: y}\n");
  const Program& p = result.program;
  ASSERT_EQ(p.conditions.size(), 3u);
  ASSERT_EQ(p.reports.size(), 4u);
  EXPECT_EQ(p.reports[2].name, "steps.1.go");
  for (std::uint32_t i = 0; i < 3; ++i) {
    EXPECT_EQ(p.conditions[i].report, i);
    EXPECT_EQ(p.conditions[i].parent, i == 0 ? kNone : i - 1);
    EXPECT_EQ(p.ops[2 + 2 * i].name, "steps." + std::to_string(i) + ".matmul.h");
    EXPECT_EQ(p.ops[2 + 2 * i].condition, i);
    EXPECT_EQ(tensor("steps." + std::to_string(i) + ".w").from, "m." + std::to_string(i) + ".w");
  }
  // h, then what each pass made of what the last one handed on, and the selects inside out.
  EXPECT_EQ(show(p.ops[4].inputs[0]), "steps.0.h[0:0+n, 1:0+8]");
  ASSERT_EQ(p.ops.size(), 12u);
  for (std::uint32_t i = 0; i < 3; ++i) {
    EXPECT_EQ(p.ops[8 + i].kind(), OpKind::select);
    EXPECT_EQ(std::get<SelectAttrs>(p.ops[8 + i].attrs).condition, 2 - i);
    EXPECT_EQ(p.ops[8 + i].condition, i == 2 ? kNone : 1 - i);
  }
  EXPECT_EQ(show(p.ops[8].inputs[0]), "steps.2.h[0:0+n, 1:0+8]");
  EXPECT_EQ(show(p.ops[8].inputs[1]), "steps.1.h[0:0+n, 1:0+8]");
  EXPECT_EQ(p.ops[9].inputs[0].tensor, p.ops[8].outputs[0].tensor);
  EXPECT_EQ(show(p.ops[10].inputs[1]), "h[0:0+n, 1:0+8]");
  EXPECT_EQ(p.ops[11].inputs[0].tensor, p.ops[10].outputs[0].tensor);
}

TEST_F(Language, WhatAPassBindsIsItsOwnUnlessItIsCarried) {
  const std::string begin = "- {op: map, expr: x, out: h}\n- {op: map, expr: x, out: g}\n- {op: report, x: f, name: go}\n";
  const std::string loop = "- while: go == 1\n  most: 2\n  carry: [h]\n  ops:\n  - {op: map, expr: g + h, out: g}\n"
                           "  - {op: map, expr: g * 2, out: h}\n  - {op: report, x: f, name: go}\n";
  parse(kLoop, begin + loop + "- {op: map, expr: h + g, out: y}\n");
  for (const std::size_t first_of_pass : {3u, 6u}) EXPECT_EQ(show(result.program.ops[first_of_pass].inputs[0]), "g[0:0+n, 1:0+8]");
  EXPECT_EQ(show(result.program.ops.back().inputs[1]), "g[0:0+n, 1:0+8]");
  // The condition is that of the innermost report of the name, a nested loop's own included.
  parse(kLoop, begin +
                   "- while: go == 1\n  most: 2\n  name: a\n  carry: [h]\n  ops:\n  - {op: report, x: f, name: in}\n"
                   "  - while: in == 1\n    most: 2\n    name: b\n    carry: [h]\n    ops:\n    - {op: map, expr: h + 1, out: h}\n"
                   "    - {op: report, x: f, name: in}\n  - {op: report, x: f, name: go}\n- {op: map, expr: h + g, out: y}\n");
  ASSERT_EQ(result.program.conditions.size(), 6u);
  EXPECT_EQ(result.program.reports[2].name, "a.0.b.0.in");
  EXPECT_EQ(result.program.conditions[1].parent, 0u);
  EXPECT_EQ(result.program.conditions[3].parent, 0u);  // pass 1 of a hangs on pass 0, and not on what b did there
}

TEST_F(Language, EachPassMayHangOnAReportOfItsOwnName) {
  const std::string loop = "- {op: map, expr: x, out: h}\n- {op: report, x: f, name: go.0}\n- while: \"go.{o} == 1\"\n  most: 2\n  index: o\n  ops:\n";
  parse(kLoop, loop + "  - {op: report, x: f, name: \"go.{o + 1}\"}\n- {op: map, expr: h, out: y}\n");
  EXPECT_EQ(error_of(kLoop, loop + "  - {op: report, x: f, name: \"went.{o}\"}\n- {op: map, expr: h, out: y}\n"), "CCKS076");
}

TEST_F(Language, WhileComplains) {
  const std::string begin = "- {op: map, expr: x, out: h}\n- {op: report, x: f, name: go}\n";
  const std::string end = "- {op: map, expr: h, out: y}\n", report = "  - {op: report, x: f, name: go}\n";
  const auto loop = [&](const std::string& head, const std::string& body) {
    return error_of(kLoop, begin + "- while: go == 1\n" + head + "  ops:\n" + body + end);
  };
  EXPECT_EQ(loop("", report), "CCKS011");                                                        // most
  EXPECT_EQ(loop("  most: 0\n", report), error_of(kLoop, begin + "- while: go == 1\n  most: 5000\n  ops:\n" + report + end));
  EXPECT_EQ(loop("  most: 2\n", "  - {op: map, expr: h, out: k}\n"), "CCKS077");                 // no report
  EXPECT_EQ(loop("  most: 2\n  carry: [k]\n", report), "CCKS040");
  EXPECT_EQ(loop("  most: 2\n  carry: [y]\n", report), "CCKS041");
  EXPECT_EQ(loop("  most: 2\n  carry: [x]\n", report), "CCKS045");
  EXPECT_EQ(loop("  most: 2\n  index: d\n", report), "CCKS070");
  EXPECT_EQ(loop("  most: 2\n  carry: [h]\n", "  - {op: map, expr: \"h[0:1, :]\", out: h}\n" + report), error_of(kLoop, begin + "- {op: map, expr: \"h[0:1, :]\", out: h}\n"));
  EXPECT_EQ(loop("  most: 2\n  carry: [h]\n", "  - {op: map, expr: \"int(h)\", dtype: i32, out: h}\n" + report), "CCKS053");
  const std::string inner = "  - while: in == 1\n    most: 32\n    name: b\n    ops:\n    - {op: report, x: f, name: in}\n";
  EXPECT_EQ(loop("  most: 32\n  name: a\n", "  - {op: report, x: f, name: in}\n" + inner + report), "CCKS003") << "1,056 passes";
  EXPECT_EQ(error_of(kLoop, begin + "- while: went == 1\n  most: 2\n  ops:\n" + report + end), "CCKS076");
}

// What follows from an earlier mistake is not told again, so a pass may fail without a word.
TEST_F(Language, WhileOfWhatIsWrongAlready) {
  const std::string bad = "- {op: map, expr: x, out: h}\n- {op: map, expr: missing + 1, out: w}\n", report = "- {op: report, x: f, name: go}\n";
  const std::string of_w = "- {op: map, expr: \"int(w[0, 0:1])\", dtype: i32, out: v}\n- {op: report, x: v, name: go}\n";
  const std::string loop = "- while: go == 1\n  most: 3\n  carry: [h]\n  ops:\n", again = "  - {op: report, x: f, name: go}\n", end = "- {op: map, expr: h, out: y}\n";
  const std::string code = error_of(kLoop, bad + end);
  EXPECT_EQ(error_of(kLoop, bad + report + loop + "  - {op: map, expr: h + w, out: h}\n" + again + end), code) << "what is carried";
  EXPECT_EQ(error_of(kLoop, bad + of_w + loop + "  - {op: map, expr: h + 1, out: h}\n" + again + end), code) << "what it hangs on";
}

TEST_F(Language, ConstantsAndPresetsCanBeSet) {
  ParseOptions options;
  options.constants = {{"d", 16}, {"n", 5}};
  parse(kX, "- {op: softmax, x: x, out: o}\n", options);
  EXPECT_EQ(shape("o"), "n, 16");
  EXPECT_EQ(result.program.symbols[0].preset, 5);
}

TEST_F(Language, CustomOpsNeedLeave) {
  ParseOptions options;
  options.allow_inline = true;
  parse(kX + "  b: {shape: [d], kind: input}\n",
        "- {op: custom, inputs: {a: x, b: b}, shape: [n, d], tile: [4, 8], code: \"out = a;\", reference: a + b, out: "
        "o}\n",
        options);
  const auto& attrs = std::get<CustomAttrs>(result.program.ops[0].attrs);
  EXPECT_EQ(attrs.code, "out = a;");
  EXPECT_EQ(attrs.tile, (std::vector<std::uint32_t>{4, 8}));
  EXPECT_FALSE(attrs.reference.empty());
  EXPECT_EQ(show(result.program.ops[0].inputs[1]), "b[*n, 0:0+8]");
}

TEST(Include, SplicesFilesBesideTheSpec) {
  const auto dir = std::filesystem::temp_directory_path() / "ccks_include_test";
  std::filesystem::create_directories(dir / "sub");
  std::ofstream(dir / "sub/norm.yaml")
      << "dims: {e: d * 2}\ntensors: {w: {shape: [d], kind: weight}}\nops:\n- {op: rmsnorm, x: h, weight: w, out: h}\n";
  std::ofstream(dir / "a.yaml") << "include: b.yaml\n";
  std::ofstream(dir / "b.yaml") << "include: a.yaml\n";
  const std::string head =
      "ccks: 1\nprogram: p\ndims: {d: 4}\ntensors:\n  x: {shape: [3, d], kind: input}\n  y: {shape: [3, d], kind: "
      "output}\n";
  const std::string name = (dir / "main.yaml").string();
  auto r = parse_text(head +
                          "ops:\n- {op: map, expr: x, out: h}\n- repeat: {index: l, to: 2}\n  ops:\n  - include: "
                          "sub/norm.yaml\n- {op: map, expr: h, out: y}\n",
                      name);
  EXPECT_TRUE(r.ok) << format_diagnostics(r);
  EXPECT_TRUE(r.program.find_tensor("l.1.w"));
  EXPECT_EQ(r.files.size(), 2u);
  r = parse_text(head + "include: a.yaml\nops:\n- {op: map, expr: x, out: y}\n", name);
  ASSERT_FALSE(r.ok);
  EXPECT_EQ(r.diagnostics[0].code, "CCKS074");
  EXPECT_EQ(r.files.at(r.diagnostics[0].location.file), (dir / "b.yaml").string());
  std::filesystem::remove_all(dir);
}

TEST(Examples, AllParse) {
  std::size_t seen = 0;
  for (const auto& entry : std::filesystem::directory_iterator(CCKS_SOURCE_DIR "/spec/examples")) {
    if (entry.path().extension() != ".yaml") continue;
    const auto r = parse_file(entry.path().string());
    EXPECT_TRUE(r.ok && r.diagnostics.empty()) << format_diagnostics(r);
    for (const Symbol& s : r.program.symbols) EXPECT_TRUE(s.preset) << entry.path() << " " << s.name;
    ++seen;
  }
  EXPECT_GE(seen, 7u);
}

}  // namespace
}  // namespace ccks::spec
