// One case for each code: what is said, and where.
#include <gtest/gtest.h>

#include <algorithm>

#include "spec/parse.hpp"

namespace ccks::spec {
namespace {

/// The text holds "@@" where the first complaint must point; the marker is taken out before parsing.
struct Case {
  const char* code;
  std::string text;
  std::string hint;  // a part of the hint that must be there
};

const std::string kHead = "ccks: 1\nprogram: p\n";
const std::string kDims = "dims: {n: {range: [1, 8]}, d: 4}\n";

std::string with_tensors(const std::string& more, const std::string& text) {
  return kHead + kDims + "tensors:\n  input: {shape: [n, d], kind: input}\n  y: {shape: [n, d], kind: output}\n" +
         more + "ops:\n" + text + "- {op: map, expr: input, out: y}\n";
}

std::string ops(const std::string& text) { return with_tensors("", text); }

std::vector<Case> text_cases() {
  return {
      {"CCKS001", "a: [1, 2\n@@", ""},
      {"CCKS001", "@@", "ccks: 1"},
      {"CCKS003", std::string(48, '[') + "@@" + std::string(12, '['), ""},
      {"CCKS004", "ccks: 1\n@@\x80\n", "UTF-8"},
      {"CCKS004", std::string("a@@\0b", 5), ""},
      {"CCKS005", kHead + "dims: @@&a {d: 1}\nops: []\n", ""},
      {"CCKS005", kHead + "dims: {d: 1, e: @@*d}\nops: []\n", ""},
      {"CCKS006", kHead + "dims: @@!foo {d: 1}\nops: []\n", ""},
      {"CCKS007", kHead + "dims: {d: 1, @@d: 2}\nops: []\n", ""},
      {"CCKS008", kHead + "@@dimz: {d: 1}\nops: []\n", "dims"},
      {"CCKS009", kHead + "ops: []\n@@---\na: 1\n", ""},
      {"CCKS010", kHead + "ops: @@3\n", ""},
      {"CCKS010", "@@- a\n", ""},
      {"CCKS010", kHead + "dims: {@@[a]: 3}\nops: []\n", ""},
      {"CCKS011", "@@" + kHead, ""},
      {"CCKS013", "ccks: @@2\nprogram: p\nops: []\n", ""},
      {"CCKS014", "ccks: 1\nprogram: @@9p\nops: []\n", ""},
      {"CCKS014", kHead + "dims: {\"@@a b\": 1}\nops: []\n", ""},
      {"CCKS014", kHead + "dims: {@@min: 1}\nops: []\n", ""},
      {"CCKS014", ops("- {op: softmax, x: input, out: @@a.T}\n"), ""},
  };
}

std::vector<Case> dim_cases() {
  const auto dims = [](const std::string& body) { return kHead + "dims: {" + body + "}\nops: []\n"; };
  return {
      {"CCKS020", dims("a: 4 @@/ 2"), "ceildiv"},
      {"CCKS020", dims("a: (4+@@"), ""},
      {"CCKS020", dims("a: @@4.5"), ""},
      {"CCKS020", dims("a: \"@@ceildivv(4, 2)\""), "ceildiv"},
      {"CCKS021", dims("heads: 1, a: @@haeds"), "heads"},
      {"CCKS022", dims("a: 4 @@// 0"), ""},
      {"CCKS022", dims("n: {range: [0, 4]}, a: 4 @@% n"), "begins at 1"},
      {"CCKS022", dims("n: {range: @@[5, 2]}"), ""},
      {"CCKS022", dims("n: {range: [1, 2], default: @@3}"), ""},
      {"CCKS022", dims("a: @@99999999999999999999"), ""},
      {"CCKS025", dims("n: {range: [1, 2]}, m: {range: [1, @@n]}"), ""},
  };
}

std::vector<Case> tensor_cases() {
  const auto tensor = [](const std::string& body) { return with_tensors("  t: {" + body + "}\n", ""); };
  return {
      {"CCKS011", with_tensors("  @@t: {kind: input}\n", ""), ""},
      {"CCKS012", tensor("shape: [n], kind: input, init: {normal: @@x}"), ""},
      {"CCKS015", kHead + "dims: {x: 1}\ntensors:\n  @@x: {shape: [1], kind: input}\nops: []\n", ""},
      {"CCKS030", tensor("shape: [@@0], kind: input"), ""},
      {"CCKS030", tensor("shape: @@[1048576, 1048576, 1048576], kind: input"), ""},
      {"CCKS031", tensor("shape: [n], kind: input, dtype: @@b16"), "16"},
      {"CCKS032", tensor("shape: [n], kind: input, init: @@random"), "normal"},
      {"CCKS032", tensor("shape: [n], kind: input, init: {uniform: @@[3, 1]}"), ""},
      {"CCKS033", tensor("shape: [n], kind: @@imput"), "input"},
      {"CCKS033", tensor("shape: [n], kind: input, from: @@w"), ""},
      {"CCKS034", tensor("shape: @@[n], kind: weight"), "view"},
      {"CCKS034", tensor("shape: @@[2, 2 * n], kind: state"), "view"},
      {"CCKS047", with_tensors("  @@t: {shape: [n], kind: input}\n", ""), ""},
      {"CCKS052", tensor("shape: @@[n, n, n, n, n], kind: input"), ""},
  };
}

std::vector<Case> name_cases() {
  return {
      {"CCKS015", ops("- {op: softmax, x: input, out: @@d}\n"), ""},
      {"CCKS040", ops("- {op: softmax, x: @@imput, out: h}\n"), "'input'"},
      {"CCKS041", ops("- {op: softmax, x: @@h, out: g}\n- {op: map, expr: input, out: h}\n"), "move"},
      {"CCKS041", ops("- {op: softmax, x: @@y, out: g}\n"), "move"},
      {"CCKS042", ops("- {op: softmax, x: \"input[0@@\", out: h}\n"), ""},
      {"CCKS042", ops("- {op: softmax, x: \"input @@+ 1\", out: h}\n"), ""},
      {"CCKS042", ops("- {op: softmax, x: \"input[0, 0,@@ 0]\", out: h}\n"), ""},
      {"CCKS043", ops("- {op: softmax, x: \"input[:, @@0:9]\", out: h}\n"), ""},
      {"CCKS043", ops("- {op: softmax, x: \"input[:, @@-1]\", out: h}\n"), ""},
      {"CCKS043", ops("- {op: softmax, x: \"input[:, @@2:2]\", out: h}\n"), ""},
      {"CCKS044", ops("- {op: softmax, x: \"input[:, 0]@@.reshape(1, n)\", out: h}\n"), ""},
      {"CCKS045", ops("- {op: softmax, x: input, out: @@input}\n"), "state"},
      {"CCKS045", ops("- {op: softmax, x: input, out: \"@@h[0:1, :]\"}\n"), "intermediate"},
      {"CCKS046", kHead + kDims + "tensors:\n  @@y: {shape: [n], kind: output}\nops: []\n", ""},
      {"CCKS030",
       ops("- {op: map, expr: v, with: {v: \"input[0, 0:1].broadcast(1048576, 1048576, 1048576)\"}, out: @@h}\n"), ""},
      {"CCKS048", ops("- {op: map, expr: input, out: y}\n- @@{op: softmax, x: y, out: y}\n"), ""},
  };
}

std::vector<Case> op_cases() {
  return {
      {"CCKS008", ops("- {op: softmax, x: input, @@epz: 1, out: h}\n"), ""},
      {"CCKS011", ops("- @@{op: softmax, out: h}\n"), ""},
      {"CCKS012", ops("- {op: softmax, x: input, scale: @@big, out: h}\n"), ""},
      {"CCKS050", ops("- {op: @@sofmax, x: input, out: h}\n"), "softmax"},
      {"CCKS051", ops("- {op: matmul, a: input, b: \"@@input[:, 0:3]\", transpose_b: true, out: h}\n"), ""},
      {"CCKS052", ops("- {op: matmul, a: input, b: \"@@input[0, :]\", out: h}\n"), ""},
      {"CCKS053", ops("- {op: map, expr: int(input), out: h}\n- {op: softmax, x: @@h, out: g}\n"), "float"},
      {"CCKS054", ops("- {op: rope, x: input, heads: 2, style: @@full, out: h}\n"), ""},
      {"CCKS054", ops("- {op: topk, x: input, k: @@0, out: [a, b]}\n"), ""},
      {"CCKS055", ops("- {op: reduce, x: input, fn: sum, axes: [@@2], out: h}\n"), ""},
      {"CCKS056", kHead + "dims: {r: {counted: @@c, max: 4}}\ntensors:\n  c: {shape: [1], dtype: i32, kind: input}\n  y: {shape: [r], kind: output}\nops:\n  - {op: map, expr: \"1.0\", shape: [r], out: y}\n", ""},
      {"CCKS060", ops("- {op: map, expr: \"input +@@\", out: h}\n"), ""},
      {"CCKS061", ops("- {op: map, expr: input + @@inputt, out: h}\n"), "'input'"},
      {"CCKS061", ops("- {op: map, expr: input * @@n, out: h}\n"), ""},
      {"CCKS062", ops("- {op: map, expr: @@silo(input), out: h}\n"), "silu"},
      {"CCKS062", ops("- {op: map, expr: \"@@pow(input)\", out: h}\n"), ""},
      {"CCKS063", ops("- {op: map, expr: \"@@not input\", out: h}\n"), ""},
  };
}

std::vector<Case> block_cases() {
  return {
      {"CCKS070", ops("- repeat: {index: l, from: 3, to: @@1}\n  ops: []\n"), ""},
      {"CCKS071", ops("- {op: softmax, x: input, out: \"h@@{n}\"}\n"), ""},
      {"CCKS072", ops("- @@repeat: {index: l, to: 1000000}\n  ops: []\n"), ""},
      {"CCKS073", ops("- include: @@../x.yaml\n"), ""},
      {"CCKS073", ops("- include: @@/etc/passwd\n"), ""},
      {"CCKS073", ops("- include: @@nowhere.yaml\n"), ""},
      {"CCKS074", ops("- include: @@test.yaml\n"), ""},
      {"CCKS075", ops("- {op: combine, x: input, route: @@rt, out: h}\n"), ""},
      {"CCKS076", ops("- if: @@exit == 0\n  ops: []\n"), ""},
      {"CCKS077", ops("- if: @@exit\n  ops: []\n"), "exit == 0"},
      {"CCKS078", ops("- {op: @@custom, inputs: {a: input}, shape: [n], tile: [1], code: \"\", out: h}\n"),
       "--allow-inline"},
  };
}

std::vector<Case> all_cases() {
  std::vector<Case> all;
  for (const auto& part : {text_cases(), dim_cases(), tensor_cases(), name_cases(), op_cases(), block_cases()})
    all.insert(all.end(), part.begin(), part.end());
  return all;
}

TEST(Diagnostics, EachCodeAtItsPlace) {
  for (const Case& c : all_cases()) {
    const std::size_t mark = c.text.find("@@");
    ASSERT_NE(mark, std::string::npos) << c.text;
    const std::string before = c.text.substr(0, mark);
    const ParseResult r = parse_text(before + c.text.substr(mark + 2), "test.yaml");
    const std::string shown = format_diagnostics(r);
    ASSERT_FALSE(r.diagnostics.empty()) << c.code << "\n" << c.text;
    const Diagnostic& d = r.diagnostics[0];
    EXPECT_EQ(d.code, c.code) << shown;
    EXPECT_EQ(d.location.line, 1 + std::count(before.begin(), before.end(), '\n')) << shown;
    EXPECT_EQ(d.location.column, mark - (before.rfind('\n') + 1) + 1) << shown;
    EXPECT_NE(d.hint.find(c.hint), std::string::npos) << shown;
    EXPECT_EQ(r.ok, d.severity == Severity::warning) << shown;
  }
}

TEST(Diagnostics, FilesAndOptions) {
  EXPECT_EQ(parse_file("/nonexistent/spec.yaml").diagnostics.at(0).code, "CCKS002");
  EXPECT_EQ(parse_file("/").diagnostics.at(0).code, "CCKS002");
  ParseOptions small;
  small.max_bytes = 10;
  EXPECT_EQ(parse_text(kHead, "t.yaml", small).diagnostics.at(0).code, "CCKS003");
  ParseOptions unknown;
  unknown.constants = {{"dd", 3}};
  const auto r = parse_text(ops(""), "t.yaml", unknown);
  EXPECT_EQ(r.diagnostics.at(0).code, "CCKS023");
  EXPECT_NE(r.diagnostics.at(0).hint.find("'d'"), std::string::npos);
  ParseOptions outside;
  outside.constants = {{"n", 9}};
  EXPECT_EQ(parse_text(ops(""), "t.yaml", outside).diagnostics.at(0).code, "CCKS022");
}

TEST(Diagnostics, LargeExpressionsAreRefused) {
  std::string text = kHead + "dims:\n  n: {range: [1, 4]}\n  a0: n + n % 7\n";
  for (int i = 0; i < 20; ++i)
    text +=
        "  a" + std::to_string(i + 1) + ": min(a" + std::to_string(i) + " * 3, n) % (a" + std::to_string(i) + " + 5)\n";
  const auto r = parse_text(text + "ops: []\n", "t.yaml");
  ASSERT_FALSE(r.ok);
  EXPECT_EQ(r.diagnostics[0].code, "CCKS024") << format_diagnostics(r);
}

TEST(Diagnostics, AllAreCollectedUpToAHundred) {
  std::string text = ops("");
  for (int i = 0; i < 300; ++i) text += "- {op: nope" + std::to_string(i) + ", out: a}\n";
  const auto r = parse_text(text, "t.yaml");
  EXPECT_EQ(r.diagnostics.size(), 100u);
  EXPECT_EQ(r.diagnostics.back().code, "CCKS079");
}

TEST(Diagnostics, FollowOnMistakesAreNotRepeated) {
  const auto r = parse_text(
      ops("- {op: softmax, x: nothing, out: h}\n- {op: softmax, x: h, out: g}\n- {op: matmul, a: g, b: h.T, out: f}\n"),
      "t.yaml");
  EXPECT_EQ(r.diagnostics.size(), 1u) << format_diagnostics(r);
}

TEST(Diagnostics, ReadsLikeACompiler) {
  const auto r = parse_text(ops("- {op: softmax, x: imput, out: h}\n"), "dir/t.yaml");
  EXPECT_EQ(format_diagnostics(r),
            "dir/t.yaml:8:20: error[CCKS040]: unknown tensor 'imput'\n"
            "  - {op: softmax, x: imput, out: h}\n"
            "                     ^~~~~\n"
            "  hint: did you mean 'input'?\n");
  const std::string json = diagnostics_to_json(r);
  EXPECT_NE(json.find("\"code\": \"CCKS040\""), std::string::npos);
  EXPECT_NE(json.find("\"line\": 8"), std::string::npos);
}

}  // namespace
}  // namespace ccks::spec
