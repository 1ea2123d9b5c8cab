// Text that means harm: refused with a complaint, within 64 MB and 2 s of processor time.
#include <gtest/gtest.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include "spec/parse.hpp"
#include "tests/paths.hpp"

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
#define CCKS_TEST_SANITIZED 1
#else
#define CCKS_TEST_SANITIZED 0
#endif

namespace ccks::spec {
namespace {

std::string repeated(const std::string& text, std::size_t times) {
  std::string out;
  out.reserve(text.size() * times);
  for (std::size_t i = 0; i < times; ++i) out += text;
  return out;
}

struct Outcome {
  int exit_code = -1;
  double seconds = 0;
  long peak_mb = 0;
};

/// Parses in a child, so that its memory and time are its own and a crash is only a failed test.
Outcome parse_in_child(const std::string& text) {
  const pid_t child = fork();
  if (child == 0) {
    const ParseResult r = parse_text(text, "hostile.yaml");
    const bool said = !r.diagnostics.empty() && !format_diagnostics(r).empty() && !diagnostics_to_json(r).empty();
    _exit(!r.ok && said ? 1 : 0);
  }
  int status = 0;
  rusage usage{};
  wait4(child, &status, 0, &usage);
  const auto seconds = [](const timeval& t) {
    return static_cast<double>(t.tv_sec) + 1e-6 * static_cast<double>(t.tv_usec);
  };
  return {WIFEXITED(status) ? WEXITSTATUS(status) : 100 + WTERMSIG(status),
          seconds(usage.ru_utime) + seconds(usage.ru_stime), usage.ru_maxrss / 1024};
}

const std::string kHead = "ccks: 1\nprogram: p\n";
const std::string kTensors =
    "dims: {n: {range: [1, 4096]}, m: {range: [1, 4000]}}\n"
    "tensors: {x: {shape: [n * n, n], kind: input}, y: {shape: [8, 8], kind: output}}\nops:\n- {op: map, expr: x, out: "
    "h}\n";

std::string loop(const std::string& op) {
  return kHead + kTensors + "- repeat: {index: i, to: 1000000}\n  ops:\n  - " + op + "\n";
}

std::string sum_of(int terms, const std::string& before, const std::string& after) {
  std::string out;
  for (int i = 1; i <= terms; ++i) out += (i > 1 ? "+" : "") + before + std::to_string(i) + after;
  return out;
}

struct Hostile {
  const char* name;
  std::string text;
};

std::vector<Hostile> hostile_texts() {
  std::string many_counted = kHead + "dims:\n", more_counted;
  for (int i = 0; i < 31; ++i) more_counted += ", r" + std::to_string(i) + ": {counted: c, max: n}";
  for (int i = 0; i < 20'000; ++i) many_counted += "  r" + std::to_string(i) + ": {counted: c, max: 4}\n";
  std::string indented, chain = kHead + "dims:\n  n: {range: [1, 4096]}\n  a0: n\n";
  for (int i = 0; i < 2000; ++i) indented += std::string(static_cast<std::size_t>(i), ' ') + "a:\n";
  for (int i = 0; i < 200; ++i) {
    const std::string a = "a" + std::to_string(i);
    chain += "  a" + std::to_string(i + 1) + ": min(" + a + " + n, " + a + "*2) * max(" + a + ", 3)\n";
  }
  return {
      {"flow sequences", kHead + "dims: " + repeated("[", 100'000)},
      {"flow mappings", kHead + "dims: " + repeated("{a: ", 100'000)},
      {"dashes", repeated("- ", 100'000)},
      {"question marks", repeated("? ", 100'000)},
      {"colons", repeated(": ", 100'000)},
      {"indentation", indented},
      {"many items", kHead + "ops:\n" + repeated("- a\n", 1'000'000)},
      {"many commas", kHead + "ops: [" + repeated("a,\n", 1'000'000) + "]"},
      {"one long line", kHead + "dims: {a: " + repeated("x", 3'000'000) + "}"},
      {"one long string", "\"" + repeated("a\n", 1'500'000)},
      {"aliases", "a: &a [x, x]\nb: &b [*a, *a]\nc: [*b, *b]\n"},
      {"documents", repeated("---\n", 100'000)},
      {"past the size", repeated("# comment\n", 500'000)},
      {"loops of nothing",
       kHead + "ops:\n- repeat: {index: i, to: 1000000}\n  ops:\n  - repeat: {index: j, to: 1000000}\n    ops: []\n"},
      {"loops of ops", loop("{op: map, expr: h + x, out: h}")},
      {"loops of concats", loop("{op: concat, inputs: [" + repeated("h, ", 200) + "h], axis: 0, out: \"g{i}\"}")},
      {"loops of tensors",
       kHead + "ops:\n- repeat: {index: i, to: 1000000}\n  tensors:\n    w: {shape: [2], kind: weight, from: '" +
           repeated("a", 3000) + "'}\n  ops: []\n"},
      {"loops of proofs", loop("{op: slice, x: \"x[i:" + sum_of(60, "(n+", ")//7") + " + m*i]\", out: v}")},
      {"loops of cases", kHead + "dims: {n: {range: [1, 4096]}, m: {range: [1, 4000]}, q: '" +
                             sum_of(39, "max(n, m*7)*min(m, n+", ")") +
                             "'}\ntensors: {x: {shape: [q, 4], kind: input}}\nops:\n- repeat: {index: i, to: 100000}\n "
                             " ops:\n  - {op: slice, x: \"x[i:q-m*i]\", out: v}\n"},
      {"growing dims", chain},
      {"many counted dims", many_counted},
      {"loops of counted rows", kHead + "dims: {n: {range: [1, 4096]}, r: {counted: c, max: n}" + more_counted + ", q: '" + sum_of(150, "(n+", ")//7") +
                                    "'}\ntensors: {x: {shape: [q, 4], kind: input}}\nops:\n- {op: map, expr: \"3\", shape: [1], dtype: i32, out: c}\n"
                                    "- {op: map, expr: \"1.0\", shape: [r, 4], out: h}\n- repeat: {index: i, to: 100000}\n  ops:\n"
                                    "  - {op: map, expr: h * 2.0, out: h}\n  - {op: map, expr: x * 2.0, out: x2}\n"},
      {"parentheses", kHead + "dims: {a: \"" + repeated("(", 4000) + "\"}"},
      {"minus signs in an expression",
       kHead + kTensors + "- {op: map, expr: \"" + repeated("-", 4000) + "x\", out: h}\n"},
      {"nots in an expression", kHead + kTensors + "- {op: map, expr: \"" + repeated("not ", 1000) + "x\", out: h}\n"},
      {"powers in an expression",
       kHead + kTensors + "- {op: map, expr: \"" + repeated("x ** ", 800) + "x\", out: h}\n"},
      {"enormous numbers", kHead + "dims: {a: 99999999999999999999999999, b: 9007199254740992 * 9007199254740992}\n"},
      {"not UTF-8", std::string(1'000'000, '\xff')},
      {"NUL", std::string(1'000'000, '\0')},
  };
}

TEST(Hostile, IsRefusedCheaply) {
  for (const Hostile& h : hostile_texts()) {
    const Outcome o = parse_in_child(h.text);
    EXPECT_EQ(o.exit_code, 1) << h.name;
    if (CCKS_TEST_SANITIZED) continue;
    EXPECT_LT(o.seconds, 2) << h.name;
    EXPECT_LT(o.peak_mb, 64) << h.name;
  }
}

TEST(Hostile, LargeHonestProgramsParse) {
  ParseOptions options;
  options.constants = {{"layers", 126}};
  const auto r = parse_file(CCKS_SOURCE_DIR "/spec/examples/llama.yaml", options);
  EXPECT_TRUE(r.ok) << format_diagnostics(r);
  EXPECT_EQ(r.program.ops.size(), 126u * 12 + 5);
}

TEST(Hostile, EveryPrefixAndEveryFlippedByteOfAnExample) {
  const ParseResult whole = parse_file(CCKS_SOURCE_DIR "/spec/examples/transformer_block.yaml");
  ASSERT_TRUE(whole.ok);
  const std::string& text = whole.sources[0];
  for (std::size_t i = 0; i < text.size(); i += 7) {
    const auto cut = parse_text(std::string_view(text).substr(0, i), "cut.yaml");
    EXPECT_TRUE(cut.ok || !cut.diagnostics.empty());
    std::string flipped = text;
    flipped[i] = static_cast<char>(flipped[i] ^ (1 << (i % 7)));
    const auto r = parse_text(flipped, "flipped.yaml");
    EXPECT_TRUE(r.ok || !r.diagnostics.empty());
  }
}

}  // namespace
}  // namespace ccks::spec
