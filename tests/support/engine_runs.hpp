// Small helpers around Engine for tests: open, run a graph, read and compare.
#pragma once

#include <gtest/gtest.h>

#include <stdexcept>

#include "ccks/engine.hpp"
#include "tests/support/engine_graph.hpp"
#include "tests/support/ways.hpp"

namespace ccks::test {

inline std::span<const std::byte> as_bytes(const std::uint64_t& word) { return std::as_bytes(std::span(&word, 1)); }

/// Options for a way to run (ways.hpp).
inline EngineOptions options_of(const std::string& way) {
  EngineOptions out;
  set_way(out, way);
  return out;
}

/// An engine on the host device, started. Fails the test and throws where that is impossible.
inline Engine open_graph_engine(const GraphPlan& plan, EngineOptions options = {},
                                DeviceOptions device = {.kind = "host", .workers = 2}) {
  Result<std::unique_ptr<Device>> opened = open_device(device);
  if (!opened.ok()) throw std::runtime_error(opened.status().to_string());
  Result<Engine> engine = Engine::create(std::move(*opened), plan.program(), options);
  if (!engine.ok()) throw std::runtime_error(engine.status().to_string());
  const Status started = engine->start();
  if (!started.ok()) throw std::runtime_error(started.to_string());
  return std::move(*engine);
}

inline Result<Run> submit_graph(Engine& engine, std::uint64_t seed, std::int64_t n, std::uint32_t state = 0) {
  const RunRequest::Input input{"seed", as_bytes(seed)};
  RunRequest request;
  request.dims = {{"n", n}};
  request.inputs = {input};
  request.state = state;
  return engine.submit(std::move(request));
}

/// Compares the outputs of a finished run, without those of dynamic or guarded ops, whose missing tiles keep old
/// values.
inline void expect_graph_outputs(const GraphPlan& plan, const Run& run, std::uint64_t seed, std::uint32_t n) {
  const auto want = plan.expected(n, seed);
  for (std::uint32_t op = 0; op < plan.ops().size(); ++op) {
    if (plan.ops()[op].dynamic_report >= 0 || plan.ops()[op].guard_report >= 0) continue;
    std::vector<std::uint64_t> got(want[op].size());
    const Status read = run.read_output(GraphPlan::output(op), std::as_writable_bytes(std::span(got)));
    ASSERT_TRUE(read.ok()) << read.to_string();
    ASSERT_EQ(got, want[op]) << "op " << op << ", n " << n << ", seed " << seed;
  }
}

}  // namespace ccks::test
