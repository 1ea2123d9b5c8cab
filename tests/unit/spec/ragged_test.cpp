// Ragged dims: what they declare, their tables, attention within sequences.
#include <gtest/gtest.h>

#include <numeric>

#include "ccks/ragged.hpp"
#include "spec/parse.hpp"
#include "spec/reference.hpp"

namespace ccks::spec {
namespace {

ParseResult parse_ragged(const std::string& dim, const std::string& ops, const std::string& more_tensors = {}) {
  const std::string text = "ccks: 1\nprogram: p\ndims:\n  b: {range: [1, 8], default: 3}\n  rows: " + dim +
                           "\n  d: 4\ntensors:\n  x: {shape: [rows, d], kind: input}\n  y: {shape: [rows, d], kind: output}\n" + more_tensors + "ops:\n" + ops;
  return parse_text(text, "t.yaml", {});
}

const std::string kAttend = "  - {op: attention, q: x, k: x, v: x, heads: 2, scale: 0.5, reach: rows.reach, out: y}\n";
const std::string kCopy = "  - {op: map, expr: x, out: y}\n";

std::string first_error(const ParseResult& result) { return result.ok ? "none" : format_diagnostics(result); }

TEST(Ragged, TheDimIsASymbolOfRowsInAll) {
  const ParseResult r = parse_ragged("{ragged: b, length: [2, 5], default: 4, pad: 4, round: 8}", kCopy);
  ASSERT_TRUE(r.ok) << format_diagnostics(r);
  ASSERT_EQ(r.program.ragged.size(), 1u);
  const RaggedDim& ragged = r.program.ragged[0];
  const Symbol& rows = r.program.symbols[ragged.rows];
  EXPECT_EQ(rows.range.lo, 8);   // one of two rows, padded to 4, rounded to 8
  EXPECT_EQ(rows.range.hi, 64);  // eight of five, eight each
  EXPECT_EQ(rows.preset, 16);    // three of four: 12, rounded
  for (const TensorId table : ragged.tables) EXPECT_EQ(table, kNone) << "nobody names it";
}

TEST(Ragged, MostBoundsRowsAndSetGivesThem) {
  ParseOptions options;
  options.constants = {{"rows", 11}};
  const std::string text = "ccks: 1\nprogram: p\ndims:\n  b: 4\n  rows: {ragged: b, length: [0, 100], most: 50}\ntensors:\n  x: {shape: [rows], kind: "
                           "input}\n  y: {shape: [rows], kind: output}\nops:\n" + kCopy;
  const ParseResult r = parse_text(text, "t.yaml", options);
  ASSERT_TRUE(r.ok) << format_diagnostics(r);
  EXPECT_EQ(r.program.symbols[0].range.hi, 50);
  EXPECT_EQ(r.program.symbols[0].preset, 11);
  options.constants = {{"rows", 51}};
  EXPECT_NE(first_error(parse_text(text, "t.yaml", options)).find("CCKS022"), std::string::npos);
}

TEST(Ragged, TablesAreInputsMadeOnce) {
  const ParseResult r = parse_ragged("{ragged: b, length: [0, 9]}", kAttend + "  - {op: attention, q: y, k: x, v: x, heads: 2, scale: 1, reach: rows.reach, out: z}\n"
                                     "  - {op: map, expr: \"float(p) + float(s)\", with: {p: rows.position, s: \"rows.spans[0, 1]\"}, out: w}\n"
                                     "  - {op: map, expr: z, out: out}\n  - {op: map, expr: w, out: line}\n",
                                     "  out: {shape: [rows, d], kind: output}\n  line: {shape: [rows], kind: output}\n");
  ASSERT_TRUE(r.ok) << format_diagnostics(r);
  const RaggedDim& ragged = r.program.ragged[0];
  const char* const kNames[] = {"rows.reach", "rows.spans", "rows.position"};
  for (std::size_t i = 0; i < RaggedDim::kTables; ++i) {
    ASSERT_NE(ragged.tables[i], kNone);
    const Tensor& t = r.program.tensors[ragged.tables[i]];
    EXPECT_EQ(t.name, kNames[i]);
    EXPECT_EQ(t.kind, TensorKind::input);
    EXPECT_EQ(t.dtype, Dtype::i32);
  }
  EXPECT_EQ(std::count_if(r.program.tensors.begin(), r.program.tensors.end(), [](const Tensor& t) { return t.name == "rows.reach"; }), 1);
}

TEST(Ragged, Complaints) {
  const auto code = [](const std::string& dim, const std::string& ops, const std::string& tensors = {}) {
    return first_error(parse_ragged(dim, ops, tensors));
  };
  const std::string kGood = "{ragged: b, length: [0, 9]}";
  EXPECT_EQ(code(kGood, kAttend), "none");
  EXPECT_NE(code("{ragged: b}", kCopy).find("CCKS022"), std::string::npos);
  EXPECT_NE(code("{ragged: b, length: [3, 2]}", kCopy).find("CCKS022"), std::string::npos);
  EXPECT_NE(code("{ragged: b, length: [0, 9], pad: 0}", kCopy).find("CCKS0"), std::string::npos);
  EXPECT_NE(code("{ragged: b, length: [0, 9], default: 10}", kCopy).find("CCKS0"), std::string::npos);
  EXPECT_NE(code("{ragged: c, length: [0, 9]}", kCopy).find("CCKS021"), std::string::npos);
  EXPECT_NE(code("{ragged: b, lengths: [0, 9]}", kCopy).find("CCKS008"), std::string::npos);
  EXPECT_NE(code(kGood, "  - {op: attention, q: x, k: x, v: x, heads: 2, scale: 1, reach: rows.reech, out: y}\n").find("CCKS040"), std::string::npos);
  EXPECT_NE(code(kGood, "  - {op: attention, q: x, k: x, v: x, heads: 2, scale: 1, reach: \"rows.reach[:, 0:1]\", out: y}\n").find("CCKS051"), std::string::npos);
  EXPECT_NE(code(kGood, "  - {op: attention, q: x, k: x, v: x, heads: 2, scale: 1, reach: x, out: y}\n").find("CCKS053"), std::string::npos);
  EXPECT_NE(code(kGood, kCopy, "  rows.mine: {shape: [rows], kind: input}\n").find("CCKS014"), std::string::npos);
  EXPECT_NE(code(kGood, "  - {op: map, expr: x, out: rows.reach}\n" + kCopy).find("CCKS014"), std::string::npos);
}

TEST(Ragged, RowsAndTablesOfLengths) {
  const std::int32_t lengths[] = {3, 0, 1, 5};
  const RaggedRows plain{lengths, 1, 1}, padded{lengths, 4, 16};
  EXPECT_EQ(plain.rows(), 9);
  EXPECT_EQ(padded.rows(), 16);
  EXPECT_EQ(RaggedRows{}.rows(), 1) << "no tensor is empty";
  std::vector<std::int32_t> spans(8), reach(32), positions(16);
  padded.write(RaggedDim::spans, spans);
  EXPECT_EQ(spans, (std::vector<std::int32_t>{0, 3, 4, 4, 4, 5, 8, 13}));
  padded.write(RaggedDim::reach, reach);
  padded.write(RaggedDim::position, positions);
  for (std::int32_t row = 0; row < 16; ++row) {
    std::int32_t begin = 0, end = 0;
    for (std::size_t s = 0; s < 4; ++s)
      if (row >= spans[2 * s] && row < spans[2 * s + 1]) begin = spans[2 * s], end = spans[2 * s + 1];
    EXPECT_EQ(reach[static_cast<std::size_t>(2 * row)], begin) << row;
    EXPECT_EQ(reach[static_cast<std::size_t>(2 * row + 1)], end) << row;
    EXPECT_EQ(positions[static_cast<std::size_t>(row)], begin < end ? row - begin : 0) << row;
  }
}

TEST(Ragged, SeededLengthsFitTheRows) {
  for (const char* dim : {"{ragged: b, length: [0, 9]}", "{ragged: b, length: [2, 30], pad: 4, round: 8}", "{ragged: b, length: [1, 1]}"}) {
    const ParseResult r = parse_ragged(dim, kAttend);
    ASSERT_TRUE(r.ok) << format_diagnostics(r);
    const RaggedDim& ragged = r.program.ragged[0];
    const Interval range = r.program.symbols[ragged.rows].range;
    bool differ = false;
    for (std::int64_t rows = range.lo; rows <= range.hi; ++rows) {
      for (std::uint64_t seed = 1; seed < 4; ++seed) {
        const std::vector<std::int64_t> dims{5, rows};
        const std::vector<std::int32_t> lengths = seeded_lengths(r.program, ragged, dims, seed);
        ASSERT_EQ(lengths.size(), 5u);
        EXPECT_EQ(lengths, seeded_lengths(r.program, ragged, dims, seed));
        differ = differ || lengths != seeded_lengths(r.program, ragged, dims, seed + 10);
        std::int64_t taken = 0;
        for (const std::int32_t length : lengths) {
          EXPECT_LE(length, ragged.length.hi);
          taken += RaggedRows::up(length, ragged.pad);
        }
        EXPECT_LE(taken, rows);
        // As long as there are rows for all, none is too short.
        if (rows < 5 * RaggedRows::up(ragged.length.lo, ragged.pad)) continue;
        for (const std::int32_t length : lengths) EXPECT_GE(length, ragged.length.lo);
      }
    }
    EXPECT_EQ(differ, ragged.length.hi > 1) << dim;
  }
}

// What the reference makes of all sequences together is what it makes of each alone.
TEST(Ragged, AttentionKeepsToASequence) {
  for (const bool causal : {false, true}) {
    const std::string op = std::string("  - {op: attention, q: x, k: x, v: x, heads: 2, scale: 0.5, causal: ") + (causal ? "true" : "false");
    const ParseResult all = parse_ragged("{ragged: b, length: [0, 9], pad: 2}", op + ", reach: rows.reach, out: y}\n");
    ASSERT_TRUE(all.ok) << format_diagnostics(all);
    const std::int32_t lengths[] = {4, 0, 3};
    const std::vector<std::int64_t> dims{3, 8};
    TensorMap bound;
    bound["x"] = seeded_values(all.program, *all.program.find_tensor("x"), dims, 7);
    std::vector<std::int32_t> reach(16);
    ASSERT_TRUE(fill_ragged(all.program, *all.program.find_tensor("rows.reach"), lengths, reach));
    bound["rows.reach"] = {{8, 2}, {reach.begin(), reach.end()}};
    const Result<TensorMap> together = interpret(all.program, dims, bound);
    ASSERT_TRUE(together.ok()) << together.status().to_string();
    const ParseResult one = parse_text("ccks: 1\nprogram: p\ndims:\n  n: {range: [1, 9]}\ntensors:\n  x: {shape: [n, 4], kind: input}\n"
                                       "  y: {shape: [n, 4], kind: output}\nops:\n" + op + ", out: y}\n", "t.yaml", {});
    ASSERT_TRUE(one.ok) << format_diagnostics(one);
    std::size_t at = 0;
    for (const std::int32_t length : {4, 3}) {
      const auto n = static_cast<std::size_t>(length);
      const auto& x = bound["x"].values;
      TensorMap alone;
      alone["x"] = {{length, 4}, {x.begin() + static_cast<std::ptrdiff_t>(4 * at), x.begin() + static_cast<std::ptrdiff_t>(4 * (at + n))}};
      const std::vector<std::int64_t> own{length};
      const Result<TensorMap> y = interpret(one.program, own, alone);
      ASSERT_TRUE(y.ok());
      for (std::size_t i = 0; i < 4 * n; ++i) EXPECT_DOUBLE_EQ(together->at("y").values[4 * at + i], y->at("y").values[i]);
      at += RaggedRows::up(length, 2) > length ? n + 1 : n;
    }
    for (std::size_t i = 4 * 7; i < 4 * 8; ++i) EXPECT_EQ(together->at("y").values[i], 0) << "a row of none attends to nothing";
  }
}

}  // namespace
}  // namespace ccks::spec
