// Rows that the program itself counts, from the count to the result: on every device, every way, however many there are, and whatever lies in storage behind them.
#include <gtest/gtest.h>

#include <cstdlib>
#include <limits>
#include <span>

#include "ccks/engine.hpp"
#include "spec/parse.hpp"
#include "spec/reference.hpp"
#include "tests/support/sanitized.hpp"
#include "tests/support/verified_run.hpp"
#include "tests/support/ways.hpp"

namespace ccks::test {
namespace {

// Ops of every kind that takes counted rows. Inputs have as many rows as there may be, and hold what they like behind those that count.
constexpr const char* kSpec = R"yaml(
ccks: 1
program: counted
dims:
  most: 150
  rows: {counted: count, max: most}
  there: 70
  d: 32
tensors:
  some: {shape: [4], dtype: i32, kind: input, init: {integers: [there, there + 1]}}
  x: {shape: [rows, d], kind: input}
  place: {shape: [rows], dtype: i32, kind: input, init: {integers: [0, 9]}}
  table: {shape: [9, d], kind: weight}
  w: {shape: [2 * d, d], kind: weight}
  wd: {shape: [d, 2 * d], kind: weight}
  g: {shape: [d], kind: weight}
  query: {shape: [2, d], kind: input}
  y: {shape: [rows, d], kind: output}
  norms: {shape: [rows], kind: output}
  best: {shape: [rows], dtype: i32, kind: output}
  image: {shape: [rows, 2, 4, 4], kind: output}
  count: {shape: [1], dtype: i32, kind: output}
  pooled: {shape: [2, d], kind: output}
ops:
  - {op: reduce, fn: min, x: some, axes: [0], keepdims: true, out: count}
  - {op: gather, table: table, index: place, out: h}
  - {op: map, expr: h + x, out: h}
  - {op: rmsnorm, x: h, weight: g, out: n}
  - {op: matmul, a: n, b: w.T, epilogue: silu(acc), out: u}
  - {op: matmul, a: u, b: wd.T, epilogue: acc + h, out: h}
  - {op: map, expr: "select(index(1) == 0, max(index(0) - 20, 0), min(c, index(0) + 30))", with: {c: count}, shape: [rows, 2], dtype: i32, out: reach}
  - {op: rope, x: h, heads: 2, positions: place, out: q}
  - {op: attention, q: q, k: h, v: h, heads: 2, reach: reach, out: s}
  - {op: map, expr: s + h, out: y}
  - {op: map, expr: y * y, out: squares}
  - {op: reduce, fn: sum, x: squares, axes: [1], out: norms}
  - {op: argmax, x: y, out: best}
  - {op: map, expr: "a * 0.5", with: {a: "y.reshape(rows, 2, 4, 4)"}, out: image}
  - {op: map, expr: "select(index(1) == 0, 0, c)", with: {c: count}, shape: [2, 2], dtype: i32, out: all}
  - {op: attention, q: query, k: y, v: y, heads: 2, reach: all, out: pooled}
)yaml";

constexpr std::int64_t kMost = 150;

// The same rows in branches and passes that the count decides on.
constexpr const char* kBlocks = R"yaml(
ccks: 1
program: counted_blocks
dims: {n: 75, rows: {counted: count, max: 2 * n}, there: 70, d: 32}
tensors:
  some: {shape: [1], dtype: i32, kind: input, init: {integers: [there, there + 1]}}
  x: {shape: [rows, d], kind: input}
  y: {shape: [rows, d], kind: output}
ops:
  - {op: map, expr: some + 0, out: count}
  - {op: map, expr: x * 2.0, out: h}
  - if: rows > 20
    ops:
      - repeat: {index: i, to: 3}
        tensors: {w: {shape: [d, d], kind: weight}}
        ops:
          - {op: matmul, a: h, b: w, epilogue: acc + h, out: h}
    out: {h: }
  - {op: map, expr: "int(c < 30)", with: {c: count}, dtype: i32, out: go}
  - {op: report, x: go, name: go}
  - while: go == 1
    most: 3
    index: l
    carry: [h]
    tensors: {v: {shape: [d, d], kind: weight}}
    ops:
      - {op: matmul, a: h, b: v, out: h}
      - {op: map, expr: "int(c + l < 20)", with: {c: count}, dtype: i32, out: more}
      - {op: report, x: more, name: go}
  - {op: map, expr: h, out: y}
)yaml";

// ---- the tools: every device -----------------------------------------------------------------------------------------

using Param = std::tuple<const char*, const char*, const char*>;  // device, code, way

class Counted : public testing::TestWithParam<Param> {};

void expect_any_number(const char* spec, const Param& param) {
  const auto& [device, code, way] = param;
  if (std::string(device) == "sim" && sanitized()) GTEST_SKIP() << "fibers: not under sanitizers";
  const TemporaryFolder folder;
  for (const std::int64_t there : {0, 1, 15, 16, 17, 63, 64, 65, 149, 150, 151, -7, 2'000'000'000}) {
    run::Options options = options_of(folder, spec, device, code);
    set_way(options, way);
    if (std::string(device) == "host") options.workers = 3;
    options.iterations = 2;
    options.dims = {{"there", there}};
    if (!expect_verified(options, std::to_string(there))) return;
  }
}

TEST_P(Counted, AnyNumberOfRowsMatchesTheReference) { expect_any_number(kSpec, GetParam()); }
TEST_P(Counted, InBranchesAndPassesToo) { expect_any_number(kBlocks, GetParam()); }

INSTANTIATE_TEST_SUITE_P(All, Counted,
                         testing::Values(Param{"sim", "auto", "lookahead"}, Param{"sim", "auto", "reactive"}, Param{"sim", "auto", "static"}, Param{"sim", "auto", "lookahead_tiles"},
                                         Param{"host", "auto", "lookahead"}, Param{"cuda", "generic", "lookahead"},
                                         Param{"cuda", "jit", "lookahead"}, Param{"cuda", "jit", "lookahead_tiles"}, Param{"cuda", "jit", "static"}, Param{"cuda", "jit", "gpu_queue"},
                                         Param{"cuda", "jit", "graph"}),
                         [](const auto& p) { return std::string(std::get<0>(p.param)) + "_" + std::get<1>(p.param) + "_" + std::get<2>(p.param); });

// ---- the library: counts that change from run to run, and storage that holds anything -----------------------------------

class CountedRuns : public testing::TestWithParam<std::string> {
 protected:
  static constexpr std::uint32_t kSlots = 2;

  void SetUp() override {
    parsed_ = spec::parse_text(kSpec, "counted.yaml");
    SpecOptions spec;
    spec.workers_hint = 3;
    const Result<Program> program = Program::from_spec_text(kSpec, "counted.yaml", spec);
    ASSERT_TRUE(parsed_.ok && program.ok()) << program.status().to_string();
    EngineOptions options;
    set_way(options, GetParam());
    options.slots = kSlots;
    DeviceOptions device;
    device.kind = "host";
    device.workers = 3;
    engine_.emplace(std::move(Engine::create(open_device(device).value(), *program, options).value()));
    for (spec::TensorId id = 0; id < parsed_.program.tensors.size(); ++id) {
      const spec::Tensor& tensor = parsed_.program.tensor(id);
      if (tensor.kind != spec::TensorKind::weight && tensor.kind != spec::TensorKind::input) continue;
      given_[tensor.name] = spec::seeded_values(parsed_.program, id, {}, 7);
      if (tensor.kind != spec::TensorKind::weight) continue;
      ASSERT_TRUE(engine_->bind_weight(tensor.name, bytes_of(tensor.name)).ok());
    }
    ASSERT_TRUE(engine_->start().ok());
  }

  wire::Dtype dtype_of(const std::string& name) const { return parsed_.program.tensor(*parsed_.program.find_tensor(name)).dtype; }
  std::vector<std::byte> bytes_of(const std::string& name) const {
    const std::vector<double>& values = given_.at(name).values;
    std::vector<std::byte> bytes(values.size() * wire::dtype_bytes(dtype_of(name)));
    spec::pack_values(dtype_of(name), values, bytes);
    return bytes;
  }

  /// `count` rows count; what inputs hold behind them is `nothing`, and an index far outside its table.
  void make(std::int32_t count, double nothing, double nowhere) {
    count_ = count;
    given_["some"].values.assign(4, count);
    const std::int64_t rows = std::clamp<std::int64_t>(count, 0, kMost);
    for (std::int64_t i = rows; i < kMost; ++i) {
      for (std::int64_t c = 0; c < 32; ++c) given_["x"].values[static_cast<std::size_t>(i * 32 + c)] = nothing;
      given_["place"].values[static_cast<std::size_t>(i)] = nowhere;
    }
  }
  /// The bytes of all outputs, of each the rows that count; held against the reference.
  std::vector<std::byte> outputs() {
    RunRequest request;
    std::vector<std::pair<std::string, std::vector<std::byte>>> inputs;
    for (const char* name : {"some", "x", "place", "query"}) inputs.emplace_back(name, bytes_of(name));
    for (const auto& [name, data] : inputs) request.inputs.push_back({name, data});
    Result<ccks::Run> run = engine_->submit(std::move(request));
    EXPECT_TRUE(run.ok() && run->wait().ok()) << count_ << (run.ok() ? run->wait().to_string() : run.status().to_string());
    std::vector<std::byte> all;
    if (HasFailure()) return all;
    const Result<spec::TensorMap> want = spec::interpret(parsed_.program, {}, given_);
    EXPECT_TRUE(want.ok()) << want.status().to_string();
    for (const spec::Tensor& tensor : parsed_.program.tensors) {
      if (tensor.kind != spec::TensorKind::output || HasFailure()) continue;
      std::vector<std::byte> raw(run->tensor_bytes(tensor.name).value());
      EXPECT_TRUE(run->read_output(tensor.name, raw).ok());
      std::vector<double> got(raw.size() / wire::dtype_bytes(tensor.dtype));
      spec::unpack_values(tensor.dtype, raw, got);
      const spec::DenseTensor& right = want->at(tensor.name);
      EXPECT_LE(spec::max_relative_error(got, right), spec::default_tolerance(tensor.dtype)) << tensor.name << " of " << count_ << " rows";
      const std::size_t each = raw.size() / static_cast<std::size_t>(right.shape[0]);
      raw.resize(right.rows < 0 ? raw.size() : each * static_cast<std::size_t>(right.rows));
      all.insert(all.end(), raw.begin(), raw.end());
    }
    return all;
  }

  spec::ParseResult parsed_;
  std::optional<Engine> engine_;
  spec::TensorMap given_;
  std::int32_t count_ = 0;
};

TEST_P(CountedRuns, WhatLiesBehindTheLastRowChangesNone) {
  const double kNan = std::numeric_limits<double>::quiet_NaN();
  for (const std::int32_t count : {150, 0, 1, 16, 17, 64, 33, 149, 5, -3, 70, INT32_MAX, 2}) {
    const spec::TensorMap before = given_;
    make(count, kNan, -1'000'000'000);
    const std::vector<std::byte> poisoned = outputs();
    make(count, 0, 0);
    const std::vector<std::byte> plain = outputs();
    EXPECT_EQ(poisoned, plain) << count;
    if (HasFailure()) return;
    given_ = before;
  }
}

TEST_P(CountedRuns, TilesWithoutRowsAreSkippedWhereTheHostSendsThem) {
  make(kMost, 0, 0);
  outputs();
  const std::uint64_t whole = engine_->stats().skipped_tiles;
  make(1, 0, 0);
  outputs();
  const std::uint64_t skipped = engine_->stats().skipped_tiles - whole;
  EXPECT_EQ(whole, 0u);
  const bool decides = GetParam().starts_with("lookahead") || GetParam() == "reactive";
  EXPECT_EQ(skipped > 20, decides) << skipped;
}

INSTANTIATE_TEST_SUITE_P(All, CountedRuns, testing::ValuesIn(ways_and({"gpu_queue", "stream"})), [](const auto& p) { return p.param; });

}  // namespace
}  // namespace ccks::test
