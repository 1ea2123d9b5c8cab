// Batches of sequences of different lengths, from the lengths to the result: on every device, under every arm, several in flight at a time.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <limits>

#include "ccks/engine.hpp"
#include "ccks/ragged.hpp"
#include "scheduler/tools/run_session.hpp"
#include "spec/parse.hpp"
#include "tests/paths.hpp"
#include "tests/support/sanitized.hpp"
#include "tests/support/temporary_folder.hpp"
#include "tests/support/verified_run.hpp"

namespace ccks::test {
namespace {

const std::string kEncoder = std::string(CCKS_SOURCE_DIR) + "/spec/examples/ragged_encoder.yaml";

using Param = std::tuple<const char*, const char*, const char*>;  // device, code, arm

class Ragged : public testing::TestWithParam<Param> {};

TEST_P(Ragged, EveryBatchMatchesTheReference) {
  const auto& [device, code, arm] = GetParam();
  for (const char* lengths : {"43,7,1,0,90,20", "1,1,1,1,1,1", "0,0,0,0,0,5", "300,2,0,17,64,128"}) {
    if (lengths[0] == '3' && short_sweeps()) continue;  // most of the time
    run::Options options;
    options.spec = kEncoder;
    options.device = device;
    options.code = code;
    options.arm = arm;
    if (options.arm == "static") options.policy = "static";
    options.workers = options.device == "host" ? 3 : 0;
    options.iterations = 2;
    options.dims = {{"d", 128}, {"heads", 2}, {"ffn", 256}, {"sequences", 6}};  // heads of 64, which bodies for many rows take
    options.lengths = {{"rows", lengths}};
    if (!expect_verified(options, lengths)) return;
  }
}

INSTANTIATE_TEST_SUITE_P(All, Ragged,
                         testing::Values(Param{"host", "auto", "copilot"}, Param{"host", "auto", "static"}, Param{"host", "auto", "gpu_queue"},
                                         Param{"cuda", "generic", "copilot"}, Param{"cuda", "jit", "copilot"}, Param{"cuda", "jit", "gpu_queue"},
                                         Param{"cuda", "jit", "graph"}),
                         [](const testing::TestParamInfo<Param>& p) {
                           return std::string(std::get<0>(p.param)) + "_" + std::get<1>(p.param) + "_" + std::get<2>(p.param);
                         });

class RaggedTools : public testing::TestWithParam<const char*> {
 protected:
  RaggedTools() {
    options_.spec = kEncoder;
    options_.device = GetParam();
    options_.verify = true;  // the reference takes tables from the tools
    options_.dims = {{"d", 32}, {"heads", 2}, {"ffn", 64}, {"sequences", 2}};
  }
  run::Failure failure_of(const char* dim, const char* lengths) {
    options_.lengths = {{dim, lengths}};
    run::Outcome outcome;
    const std::atomic<bool> interrupted{false};
    return run_session(options_, interrupted, false, outcome);
  }
  void refused(const char* dim, const char* lengths, const char* message) {
    const run::Failure failure = failure_of(dim, lengths);
    EXPECT_EQ(failure.exit_code, run::kInputAtFault) << lengths;
    EXPECT_NE(failure.message.find(message), std::string::npos) << failure.message;
  }

  run::Options options_;
};

TEST_P(RaggedTools, SayWhatIsWrongWithLengths) {
  refused("rows", "5,6,7", "3 for 2 sequences");
  refused("rows", "5,513", "outside");
  refused("rows", "5,x", "x");
  refused("rows", "5,", "numbers");
  refused("d", "5,6", "no ragged dim 'd'");
  options_.dims.emplace_back("rows", 10);
  refused("rows", "5,6", "rows = 10 is too few for sequences of 11 rows");
}
TEST_P(RaggedTools, TakeAsManyRowsAsThereAre) {
  if (std::strcmp(GetParam(), "sim") == 0 && sanitized()) GTEST_SKIP() << "fibers: not under sanitizers";
  options_.dims.emplace_back("rows", 11);
  const run::Failure enough = failure_of("rows", "5,6");
  EXPECT_EQ(enough.exit_code, run::kDone) << enough.message;
}

INSTANTIATE_TEST_SUITE_P(Devices, RaggedTools, testing::Values("host", "sim"), [](const auto& device) { return std::string(device.param); });

// ---- the library ------------------------------------------------------------------------------------------------------

constexpr const char* kSpec = R"yaml(
ccks: 1
program: ragged
dims:
  n: {range: [1, 8]}
  rows: {ragged: n, length: [0, 40], pad: 4, round: 16}
tensors:
  x: {shape: [rows, 16], kind: input}
  y: {shape: [rows, 16], kind: output}
  first: {shape: [n, 2], dtype: i32, kind: output}
  place: {shape: [rows], dtype: i32, kind: output}
ops:
  - {op: attention, q: x, k: x, v: x, heads: 2, causal: true, reach: rows.reach, out: s}
  - {op: map, expr: s + x, out: y}
  - {op: map, expr: a, with: {a: rows.spans}, out: first}
  - {op: map, expr: a, with: {a: rows.position}, out: place}
)yaml";

Result<Engine> open_engine(std::uint32_t slots) {
  Result<Program> program = Program::from_spec_text(kSpec, "ragged.yaml", {});
  EXPECT_TRUE(program.ok()) << program.status().message();
  DeviceOptions device;
  device.kind = "host";
  device.workers = 3;
  EngineOptions options;
  options.slots = slots;
  Result<Engine> engine = Engine::create(open_device(device).value(), *program, options);
  EXPECT_TRUE(engine.ok() && engine->start().ok());
  return engine;
}

struct Batch {
  explicit Batch(std::vector<std::int32_t> of) : lengths(std::move(of)), rows(RaggedRows{lengths, 4, 16}.rows()), x(static_cast<std::size_t>(rows) * 16) {
    std::uint32_t seed = static_cast<std::uint32_t>(lengths.size() + static_cast<std::size_t>(rows));
    for (float& v : x) {
      seed = seed * 1664525u + 1013904223u;
      v = static_cast<float>(seed >> 8) / 8388608.0f - 1.0f;
    }
    // Rows of no sequence hold what must change nothing.
    std::vector<std::int32_t> reach(static_cast<std::size_t>(2 * rows));
    RaggedRows{lengths, 4, 16}.write_reach(reach);
    for (std::int64_t row = 0; row < rows; ++row)
      if (reach[static_cast<std::size_t>(2 * row + 1)] == 0) std::fill_n(x.begin() + row * 16, 16, std::numeric_limits<float>::quiet_NaN());
  }
  RunRequest request() const {
    RunRequest r;
    r.dims = {{"n", static_cast<std::int64_t>(lengths.size())}};
    r.lengths = {{"rows", lengths}};
    r.inputs = {{"x", std::as_bytes(std::span(x))}};
    return r;
  }
  /// y of sequence `s` alone, row by row, in double.
  std::vector<double> alone(std::size_t s) const {
    std::int64_t begin = 0;
    for (std::size_t i = 0; i < s; ++i) begin += RaggedRows::up(lengths[i], 4);
    std::vector<double> out;
    const float* from = x.data() + begin * 16;
    for (std::int32_t i = 0; i < lengths[s]; ++i)
      for (int head = 0; head < 2; ++head) {
        std::vector<double> weights;
        double sum = 0;
        for (std::int32_t j = 0; j <= i; ++j) {
          double score = 0;
          for (int d = 0; d < 8; ++d) score += double{from[i * 16 + head * 8 + d]} * double{from[j * 16 + head * 8 + d]};
          weights.push_back(std::exp(score / std::sqrt(8.0)));
          sum += weights.back();
        }
        for (int d = 0; d < 8; ++d) {
          double v = 0;
          for (std::int32_t j = 0; j <= i; ++j) v += weights[static_cast<std::size_t>(j)] / sum * double{from[j * 16 + head * 8 + d]};
          out.push_back(v + double{from[i * 16 + head * 8 + d]});
        }
      }
    return out;
  }

  std::vector<std::int32_t> lengths;
  std::int64_t rows;
  std::vector<float> x;
};

void expect_right(ccks::Run& run, const Batch& batch) {
  ASSERT_EQ(run.tensor_bytes("y").value(), static_cast<std::uint64_t>(batch.rows) * 64);
  std::vector<float> y(static_cast<std::size_t>(batch.rows) * 16);
  std::vector<std::int32_t> first(batch.lengths.size() * 2), place(static_cast<std::size_t>(batch.rows));
  ASSERT_TRUE(run.read_output("y", std::as_writable_bytes(std::span(y))).ok());
  ASSERT_TRUE(run.read_output("first", std::as_writable_bytes(std::span(first))).ok());
  ASSERT_TRUE(run.read_output("place", std::as_writable_bytes(std::span(place))).ok());
  for (std::size_t s = 0; s < batch.lengths.size(); ++s) {
    const std::int32_t begin = first[2 * s];
    ASSERT_EQ(first[2 * s + 1] - begin, batch.lengths[s]);
    EXPECT_EQ(begin % 4, 0);
    const std::vector<double> want = batch.alone(s);
    for (std::size_t i = 0; i < want.size(); ++i) ASSERT_NEAR(y[static_cast<std::size_t>(begin) * 16 + i], want[i], 1e-5) << "sequence " << s << ", element " << i;
    for (std::int32_t i = 0; i < batch.lengths[s]; ++i) ASSERT_EQ(place[static_cast<std::size_t>(begin + i)], i);
  }
}

TEST(RaggedRuns, ManyBatchesInFlightEachWithItsOwnLengths) {
  Result<Engine> engine = open_engine(4);
  std::vector<Batch> batches;
  std::uint32_t seed = 5;
  const auto pick = [&](std::uint32_t n) {
    seed = seed * 1664525u + 1013904223u;
    return (seed >> 16) % n;
  };
  for (int i = 0; i < 40; ++i) {
    std::vector<std::int32_t> lengths(1 + pick(8));
    for (std::int32_t& n : lengths) n = pick(4) == 0 ? static_cast<std::int32_t>(pick(2)) : static_cast<std::int32_t>(pick(41));
    batches.emplace_back(lengths);
  }
  std::vector<ccks::Run> runs;
  for (std::size_t i = 0; i < batches.size(); ++i) {
    Result<ccks::Run> run = engine->submit(batches[i].request());
    ASSERT_TRUE(run.ok()) << run.status().to_string();
    runs.push_back(std::move(*run));
    if (i < 3) continue;
    ASSERT_TRUE(runs[i - 3].wait().ok());
    expect_right(runs[i - 3], batches[i - 3]);
    if (HasFailure()) return;
    runs[i - 3] = ccks::Run();
  }
}

TEST(RaggedRuns, TheDimMayBeLargerThanItsSequences) {
  Result<Engine> engine = open_engine(1);
  Batch batch({3, 5});
  RunRequest request = batch.request();
  request.dims.emplace_back("rows", 32);
  batch.rows = 32;
  batch.x.resize(32 * 16, std::numeric_limits<float>::quiet_NaN());
  request.inputs = {{"x", std::as_bytes(std::span(batch.x))}};
  Result<ccks::Run> run = engine->submit(std::move(request));
  ASSERT_TRUE(run.ok()) << run.status().to_string();
  ASSERT_TRUE(run->wait().ok());
  expect_right(*run, batch);
}

TEST(RaggedRuns, WhatDoesNotFitIsRefusedBeforeAnythingIsSent) {
  Result<Engine> engine = open_engine(1);
  const auto refused = [&](RunRequest request, ErrorCode code, const char* text) {
    const Result<ccks::Run> run = engine->submit(std::move(request));
    ASSERT_FALSE(run.ok());
    EXPECT_EQ(run.status().code(), code);
    EXPECT_NE(run.status().message().find(text), std::string::npos) << run.status().message();
  };
  const Batch batch({3, 5});
  RunRequest request = batch.request();
  request.dims = {{"n", 3}};
  refused(request, ErrorCode::out_of_range, "2 lengths for 3 sequences");
  request = batch.request();
  const std::int32_t kLong[] = {3, 41};
  request.lengths = {{"rows", kLong}};
  refused(request, ErrorCode::out_of_range, "length 41 of sequence 1");
  const std::int32_t kNegative[] = {-1, 4};
  request.lengths = {{"rows", kNegative}};
  refused(request, ErrorCode::out_of_range, "length -1");
  request.lengths = {{"lines", batch.lengths}};
  refused(request, ErrorCode::invalid_argument, "no ragged dim 'lines'");
  request = batch.request();
  request.dims.emplace_back("rows", 1);
  refused(request, ErrorCode::out_of_range, "too few");
  EXPECT_EQ(engine->stats().tasks_sent, 0u);
}

}  // namespace
}  // namespace ccks::test
