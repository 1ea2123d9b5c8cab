// Counted dims: how they are declared, which ops take their rows, and what the reference makes of rows that do not count.
#include <gtest/gtest.h>

#include <cmath>

#include "spec/parse.hpp"
#include "spec/reference.hpp"

namespace ccks::spec {
namespace {

const std::string kDim = "{counted: count, max: 2 * n}";
const std::string kCount = "  - {op: map, expr: some + 0, out: count}\n";

std::string text_of(const std::string& dim, const std::string& ops, const std::string& tensors) {
  return "ccks: 1\nprogram: p\ndims:\n  n: {range: [1, 8], default: 3}\n  rows: " + dim +
         "\n  d: 4\n  later: {range: [1, 5], default: 2}\ntensors:\n  some: {shape: [1], dtype: i32, kind: input}\n  x: {shape: [2 * n, d], kind: input}\n"
         "  w: {shape: [d, d], kind: weight}\n  y: {shape: [rows, d], kind: output}\n" + tensors + "ops:\n" + ops;
}
ParseResult parse_counted(const std::string& ops, const std::string& tensors = {}, const std::string& dim = kDim) { return parse_text(text_of(dim, ops, tensors), "t.yaml", {}); }

const std::string kCopy = "  - {op: map, expr: x, out: y}\n";

TEST(Counted, TheDimIsItsBoundAndItsReport) {
  const ParseResult r = parse_counted(kCount + "  - {op: map, expr: \"x + float(i)\", with: {i: \"report.rows.broadcast(2 * n, d)\"}, out: y}\n");
  ASSERT_TRUE(r.ok) << format_diagnostics(r);
  ASSERT_EQ(r.program.counted.size(), 1u);
  const CountedDim& rows = r.program.counted[0];
  EXPECT_EQ(rows.name, "rows");
  EXPECT_EQ(rows.most.to_string(r.program.symbols), "2*n");
  ASSERT_EQ(r.program.symbols.size(), 2u) << "it is no symbol";
  EXPECT_EQ(r.program.symbols[1].name, "later");
  ASSERT_EQ(r.program.reports.size(), 1u);
  EXPECT_EQ(rows.report, 0u);
  EXPECT_EQ(r.program.reports[0].name, "rows");
  EXPECT_EQ(r.program.ops[1].kind(), OpKind::report) << "right behind the op that counts";
  const Tensor& y = r.program.tensor(*r.program.find_tensor("y"));
  EXPECT_EQ(y.counted, 0u);
  EXPECT_EQ(y.shape[0], rows.most);
  EXPECT_EQ(r.program.ops[2].outputs[0].dims[0].counted, 0u);
  EXPECT_EQ(r.program.ops[2].inputs[0].dims[0].counted, 0u) << "rows that are read along with those that count";
  EXPECT_TRUE(r.program.checks.empty()) << "2 * n rows are as many as there may be";
}

TEST(Counted, SymbolsBehindItKeepTheirNames) {
  const ParseResult r = parse_counted(kCount + kCopy + "  - {op: map, expr: z, out: z2}\n", "  z: {shape: [later, d], kind: input}\n  z2: {shape: [later, d], kind: output}\n");
  ASSERT_TRUE(r.ok) << format_diagnostics(r);
  EXPECT_EQ(r.program.tensor(*r.program.find_tensor("z2")).shape[0].to_string(r.program.symbols), "later");
}

TEST(Counted, RowsThatKeepToThemselves) {
  const char* const kOps[] = {
      "{op: matmul, a: x, b: w, epilogue: acc + h, out: y}",
      "{op: matmul, a: h, b: w, out: y}",
      "{op: softmax, x: h, out: y}",
      "{op: layernorm, x: h, weight: \"w[0, :]\", out: y}",
      "{op: rope, x: h, heads: 2, out: y}",
      "{op: attention, q: h, k: x, v: x, heads: 2, out: y}",
      "{op: attention, q: h, k: h, v: h, heads: 2, reach: reach, out: y}",
      "{op: gather, table: w, index: place, out: y}",
      "{op: map, expr: \"a * h\", with: {a: \"s.reshape(rows, 1)\"}, out: y}",
      "{op: map, expr: \"float(a) * h\", with: {a: \"best.reshape(rows, 1)\"}, out: y}",
  };
  for (const char* op : kOps) {
    const ParseResult r = parse_counted(kCount +
                                            "  - {op: map, expr: x * 2.0, shape: [rows, d], out: h}\n"
                                            "  - {op: reduce, fn: sum, x: h, axes: [1], out: s}\n"
                                            "  - {op: argmax, x: h, out: best}\n"
                                            "  - {op: map, expr: \"index(0)\", shape: [rows], dtype: i32, out: place}\n"
                                            "  - {op: map, expr: \"select(index(1) == 0, 0, c)\", with: {c: count}, shape: [rows, 2], dtype: i32, out: reach}\n  - " + std::string(op) + "\n");
    EXPECT_TRUE(r.ok) << op << "\n" << format_diagnostics(r);
  }
}

/// The code and the text of what is wrong, or "none".
std::string complaint(const std::string& ops, const std::string& tensors = {}, const std::string& dim = kDim) {
  const ParseResult r = parse_counted(ops, tensors, dim);
  for (const Diagnostic& d : r.diagnostics)
    if (d.severity == Severity::error) return d.code + std::string(": ") + d.message;
  return "none";
}
#define EXPECT_COMPLAINT(text, part) EXPECT_NE((text).find(part), std::string::npos) << (text)

TEST(Counted, ComplaintsAboutItsDeclaration) {
  EXPECT_EQ(complaint(kCount + kCopy), "none");
  EXPECT_COMPLAINT(complaint(kCount + kCopy, {}, "{counted: count}"), "CCKS011: the counted dim 'rows' needs 'max'");
  EXPECT_COMPLAINT(complaint(kCount + kCopy, {}, "{counted: count, max: 2 * n, most: 3}"), "CCKS008");
  EXPECT_COMPLAINT(complaint(kCount + kCopy, {}, "{counted: count, max: m}"), "CCKS021");
  EXPECT_COMPLAINT(complaint(kCount + kCopy, {}, "{counted: count, max: n - 10}"), "CCKS022");
  EXPECT_COMPLAINT(complaint(kCopy, {}, "{counted: some, max: 2 * n}"), "CCKS056: 'some' counts 'rows' and is an input");
  EXPECT_COMPLAINT(complaint("  - {op: map, expr: 3.0 + float(some), out: count}\n" + kCopy), "CCKS053: 'count' counts 'rows' and is f32, not i32");
  EXPECT_COMPLAINT(complaint("  - {op: map, expr: \"some + index(0)\", shape: [2], out: count}\n" + kCopy), "CCKS051: 'count' counts 'rows' and has the shape [2], not [1]");
  EXPECT_COMPLAINT(complaint(kCount + kCopy + "  - {op: report, x: count, name: rows}\n"), "CCKS015: report 'rows' exists already");
  const std::string nested = text_of(kDim, kCount + kCopy, "");
  const ParseResult r = parse_text(nested.substr(0, nested.find("  d: 4")) + "  more: {counted: count, max: 2 * rows}\n" + nested.substr(nested.find("  d: 4")), "t.yaml", {});
  EXPECT_NE(format_diagnostics(r).find("CCKS056]: '2*rows' is counted at run time, and bounds nothing"), std::string::npos) << format_diagnostics(r);
  const ParseResult ragged = parse_text(nested.substr(0, nested.find("  d: 4")) + "  more: {ragged: rows, length: [1, 4]}\n" + nested.substr(nested.find("  d: 4")), "t.yaml", {});
  EXPECT_NE(format_diagnostics(ragged).find("CCKS056]: 'rows' is counted at run time, and sequences"), std::string::npos) << format_diagnostics(ragged);
  std::string many = "ccks: 1\nprogram: p\ndims:\n";
  for (int i = 0; i < 33; ++i) many += "  r" + std::to_string(i) + ": {counted: c, max: 4}\n";
  EXPECT_NE(format_diagnostics(parse_text(many + "ops: []\n", "t.yaml", {})).find("CCKS003]: more than 32 counted dims"), std::string::npos);
  ParseOptions set;
  set.constants = {{"rows", 4}};
  EXPECT_NE(format_diagnostics(parse_text(text_of(kDim, kCount + kCopy, ""), "t.yaml", set)).find("CCKS023"), std::string::npos);
}

TEST(Counted, ComplaintsAboutTheCount) {
  EXPECT_COMPLAINT(complaint(kCopy + kCount), "CCKS041: 'rows' is counted by 'count', which no op has made yet");
  EXPECT_COMPLAINT(complaint("  - repeat: {index: i, to: 2}\n    ops:\n      - {op: map, expr: some + i, out: count}\n" + kCopy), "which no op has made yet");
  EXPECT_COMPLAINT(complaint("  - {op: report, x: some, name: go}\n  - if: go == 1\n    ops:\n      - {op: map, expr: some + 1, out: count}\n" + kCopy), "which no op has made yet");
  EXPECT_COMPLAINT(complaint(kCount + "  - {op: map, expr: some + 1, out: count}\n" + kCopy, "  count: {shape: [1], dtype: i32, kind: output}\n"),
                   "CCKS056: 'count' has told how many rows there are, and is written again");
  EXPECT_COMPLAINT(complaint("  - {op: map, expr: x, out: z}\n", "  z: {shape: [2 * n, d], kind: output}\n"), "CCKS046") << "of y";
  const ParseResult unused = parse_text("ccks: 1\nprogram: p\ndims:\n  rows: {counted: count, max: 4}\ntensors:\n  x: {shape: [4], kind: input}\n  y: {shape: [4], kind: output}\nops:\n" + kCopy, "t.yaml", {});
  EXPECT_NE(format_diagnostics(unused).find("CCKS041]: no op makes 'count', which counts 'rows'"), std::string::npos) << format_diagnostics(unused);
}

TEST(Counted, RowsThatWouldMix) {
  const std::string h = kCount + "  - {op: map, expr: x, shape: [rows, d], out: h}\n";
  const auto of = [&](const std::string& op, const std::string& tensors = {}) { return complaint(h + "  - " + op + "\n" + kCopy, tensors); };
  EXPECT_COMPLAINT(of("{op: reduce, fn: sum, x: h, axes: [0], out: s}"), "CCKS056: of 'h' only rows that 'count' counts hold anything, and reduce would mix others with them");
  EXPECT_COMPLAINT(of("{op: reduce, fn: max, x: h, axes: [0, 1], out: s}"), "reduce would mix");
  EXPECT_COMPLAINT(of("{op: matmul, a: h.T, b: h, out: s}"), "CCKS056: 'h' has counted rows, and matmul reads them as another dim");
  EXPECT_COMPLAINT(of("{op: matmul, a: \"x.T\", b: h, out: s}"), "matmul would mix");
  EXPECT_COMPLAINT(of("{op: matmul, a: x, b: h.T, out: s}"), "CCKS056");
  EXPECT_COMPLAINT(of("{op: attention, q: x, k: h, v: h, heads: 2, out: s}"), "attention would mix");
  EXPECT_COMPLAINT(of("{op: attention, q: h, k: h, v: h, heads: 2, causal: true, out: s}"), "attention would mix");
  EXPECT_COMPLAINT(of("{op: gather, table: h, index: some, out: s}"), "gather would mix");
  EXPECT_COMPLAINT(of("{op: softmax, x: \"h.reshape(rows * d)\", out: s}"), "CCKS056");
  EXPECT_COMPLAINT(of("{op: report, x: h, name: all}"), "report would mix");
  EXPECT_COMPLAINT(of("{op: route, logits: h, k: 1, out: rt}"), "route would mix");
  EXPECT_COMPLAINT(of("{op: scatter, x: h, index: place, out: st}", "  place: {shape: [2 * n], dtype: i32, kind: input}\n  st: {shape: [16, d], kind: state}\n"), "scatter would mix");
  EXPECT_COMPLAINT(of("{op: map, expr: h, shape: [2 * n, d], out: s}"), "map makes rows of another dim of them");
  EXPECT_COMPLAINT(of("{op: map, expr: \"x + a\", with: {a: \"h[0, :]\"}, out: s}"), "CCKS056: 'h' has counted rows, and map reads some of them only");
  EXPECT_COMPLAINT(of("{op: map, expr: a, with: {a: \"h[0:n, :]\"}, out: s}"), "some of them only");
  EXPECT_COMPLAINT(of("{op: map, expr: a, with: {a: \"h.reshape(2 * n, d)\"}, out: s}"), "a reshape that does not keep them");
  EXPECT_COMPLAINT(of("{op: map, expr: a, with: {a: \"x[rows - 1:rows, :]\"}, out: s}"), "CCKS056: a place in a tensor depends on a dim that is counted");
  EXPECT_COMPLAINT(of("{op: map, expr: a, with: {a: h.T}, out: s}"), "CCKS056");
  EXPECT_COMPLAINT(of("{op: map, expr: \"1.0\", shape: [rows + 1, d], out: s}"), "CCKS056: 's' has the shape [rows + 1, 4]: what is counted at run time is the first dim");
  EXPECT_COMPLAINT(of("{op: map, expr: \"1.0\", shape: [d, rows], out: s}"), "CCKS056: 's' has the shape");
  EXPECT_COMPLAINT(of("{op: map, expr: h, out: \"big[0:rows, :]\"}", "  big: {shape: [2 * n, d], kind: intermediate}\n"), "CCKS056: rows that are counted at run time are all rows of what they are written to");
  EXPECT_COMPLAINT(of("{op: rope, x: h, heads: 2, position: rows, out: s}"), "CCKS056: a place in a tensor");
  EXPECT_COMPLAINT(complaint(kCount + kCopy, "  st: {shape: [rows, d], kind: state}\n"), "CCKS034");
  EXPECT_COMPLAINT(complaint("  - repeat: {index: i, to: rows}\n    ops: []\n" + kCount + kCopy), "CCKS025");
}

TEST(Counted, RowsOfTwoCountsKeepApart) {
  const std::string text = text_of(kDim, kCount + "  - {op: map, expr: some + 1, out: other}\n  - {op: map, expr: x, shape: [more, d], out: h}\n  - {op: map, expr: x + h, out: y}\n", "");
  const ParseResult r = parse_text(std::string(text).replace(text.find("  d: 4"), 6, "  more: {counted: other, max: 2 * n}\n  d: 4"), "t.yaml", {});
  EXPECT_NE(format_diagnostics(r).find("of 'h' only rows that 'other' counts hold anything, and map makes rows of another dim of them"), std::string::npos) << format_diagnostics(r);
}

// ---- the reference ----------------------------------------------------------------------------------------------------

Result<TensorMap> run_reference(const Program& p, std::int32_t count, double behind) {
  DenseTensor x{{6, 4}, {}};
  for (int i = 0; i < 24; ++i) x.values.push_back(i / 4 < count ? i : behind);
  DenseTensor w{{4, 4}, std::vector<double>(16, 0.5)};
  return interpret(p, std::vector<std::int64_t>{3, 2}, {{"some", {{1}, {double(count)}}}, {"x", x}, {"w", w}});
}

TEST(CountedReference, RowsBehindTheCountAreLeftOut) {
  const ParseResult r = parse_counted(kCount +
                                      "  - {op: map, expr: x, shape: [rows, d], out: h}\n"
                                      "  - {op: map, expr: \"select(index(0) < c, 0, 1000)\", with: {c: count}, shape: [rows], dtype: i32, out: place}\n"
                                      "  - {op: gather, table: w, index: place, out: g}\n"
                                      "  - {op: map, expr: \"select(index(1) == 0, 0, c)\", with: {c: count}, shape: [rows, 2], dtype: i32, out: reach}\n"
                                      "  - {op: attention, q: h, k: h, v: h, heads: 2, reach: reach, out: s}\n"
                                      "  - {op: matmul, a: s, b: w, epilogue: acc + g, out: y}\n");
  ASSERT_TRUE(r.ok) << format_diagnostics(r);
  for (const std::int32_t count : {0, 1, 4, 6}) {
    const auto plain = run_reference(r.program, count, 0), poisoned = run_reference(r.program, count, NAN);
    ASSERT_TRUE(plain.ok() && poisoned.ok()) << poisoned.status().to_string();
    const DenseTensor &y = plain->at("y"), &other = poisoned->at("y");
    EXPECT_EQ(y.rows, count);
    ASSERT_EQ(y.values.size(), 24u) << "the storage is all there";
    for (std::size_t i = 0; i < 24; ++i) {
      EXPECT_EQ(std::isnan(y.values[i]), static_cast<std::int32_t>(i) >= 4 * count) << i;
      EXPECT_TRUE(static_cast<std::int32_t>(i) >= 4 * count || y.values[i] == other.values[i]) << i;
    }
  }
}

TEST(CountedReference, CountsOutsideTheBoundAreCut) {
  const ParseResult r = parse_counted(kCount + kCopy);
  ASSERT_TRUE(r.ok) << format_diagnostics(r);
  for (const auto& [count, rows] : {std::pair{-5, 0}, {7, 6}, {INT32_MAX, 6}, {INT32_MIN, 0}}) {
    const auto out = run_reference(r.program, count, 1);
    ASSERT_TRUE(out.ok()) << out.status().to_string();
    EXPECT_EQ(out->at("y").rows, rows) << count;
    EXPECT_EQ(out->at("report.rows").values[0], count) << "a report tells what there is";
  }
}

TEST(CountedReference, OnlyRowsThatCountAreCompared) {
  const DenseTensor want{{3, 2}, {1, 2, 3, 4, NAN, NAN}, 2};
  EXPECT_EQ(max_relative_error(std::vector<double>{1, 2, 3, 4, 77, -1}, want), 0);
  EXPECT_GT(max_relative_error(std::vector<double>{1, 2, 3, 5, 77, -1}, want), 0.1);
  EXPECT_EQ(max_relative_error(std::vector<double>{1, 2, 3, 4}, want), INFINITY) << "the storage is not all there";
}

}  // namespace
}  // namespace ccks::spec
