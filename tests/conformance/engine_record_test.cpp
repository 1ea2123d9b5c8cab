// Decisions are recorded and replayed in the same order (C8); anything else is refused.
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <cstring>

#include "scheduler/record.hpp"
#include "tests/paths.hpp"
#include "tests/support/engine_runs.hpp"

namespace ccks::test {
namespace {

class EngineRecord : public testing::TestWithParam<std::string> {
 protected:
  void SetUp() override { path_ = std::string(CCKS_BINARY_DIR) + "/record." + GetParam() + std::to_string(getpid()); }
  void TearDown() override {
    std::remove(path_.c_str());
    std::remove((path_ + ".again").c_str());
  }
  EngineOptions options() const {
    EngineOptions out;
    set_way(out, GetParam());
    return out;
  }
  static std::vector<scheduler::RecordEntry> decisions(const std::string& path) {
    Result<scheduler::Record> record = scheduler::read_record(path);
    EXPECT_TRUE(record.ok()) << record.status().to_string();
    std::vector<scheduler::RecordEntry> out;
    if (!record.ok()) return out;
    for (const auto& e : record->entries) {
      if (e.kind != scheduler::EntryKind::run_start) out.push_back(e);
    }
    return out;
  }
  static void run_some(Engine& engine, const GraphPlan& plan) {
    std::vector<ccks::Run> runs;
    for (std::uint32_t i = 0; i < 6; ++i) {
      Result<ccks::Run> run = submit_graph(engine, i, 1 + i);
      ASSERT_TRUE(run.ok());
      runs.push_back(std::move(*run));
    }
    for (std::uint32_t i = 0; i < 6; ++i) {
      const Status done = runs[i].wait_for(std::chrono::seconds(30));
      ASSERT_TRUE(done.ok()) << done.to_string();
      expect_graph_outputs(plan, runs[i], i, 1 + i);
    }
  }
  /// One run after the other; the outputs of ops that do not compute all of theirs are zeros before each.
  static void run_alone(const EngineOptions& how, const GraphPlan& plan, std::initializer_list<std::uint32_t> partial) {
    Engine engine = open_graph_engine(plan, how);
    for (std::uint64_t seed = 0; seed < 30; ++seed) {
      const auto want = plan.expected(1, seed);
      const std::vector<std::uint64_t> zeros(64, 0);
      std::vector<std::string> names;
      for (const std::uint32_t op : partial) names.push_back(GraphPlan::output(op));
      RunRequest request;
      request.inputs = {{"seed", std::as_bytes(std::span(&seed, 1))}};
      for (std::size_t i = 0; i < names.size(); ++i) request.inputs.push_back({names[i], std::as_bytes(std::span(zeros).first(want[partial.begin()[i]].size()))});
      Result<ccks::Run> run = engine.submit(std::move(request));
      ASSERT_TRUE(run.ok()) << run.status().to_string();
      const Status done = run->wait_for(std::chrono::seconds(30));
      ASSERT_TRUE(done.ok()) << done.to_string();
      for (std::uint32_t op = 0; op < want.size(); ++op) {
        std::vector<std::uint64_t> got(want[op].size());
        ASSERT_TRUE(run->read_output(GraphPlan::output(op), std::as_writable_bytes(std::span(got))).ok());
        ASSERT_EQ(got, want[op]) << "op " << op << " seed " << seed;
      }
    }
  }
  std::string path_;
};

TEST_P(EngineRecord, ReplayMakesTheSameDecisionsInTheSameOrder) {
  const GraphPlan plan(layered_graph(4));
  EngineOptions record = options();
  record.record_path = path_;
  {
    Engine engine = open_graph_engine(plan, record);
    run_some(engine, plan);
  }
  EngineOptions replay;
  replay.replay_path = path_;
  replay.record_path = path_ + ".again";
  {
    Engine engine = open_graph_engine(plan, replay);
    run_some(engine, plan);
  }
  const auto first = decisions(path_);
  const auto second = decisions(path_ + ".again");
  ASSERT_EQ(first.size(), second.size());
  ASSERT_GT(first.size(), 6u);
  EXPECT_EQ(std::memcmp(first.data(), second.data(), first.size() * sizeof(first[0])), 0);
}

// Alone on the device, a run sends what its report may call for before it has come; the replay after it.
TEST_P(EngineRecord, DraftsAreReplayedAsWhatBecameOfThem) {
  std::vector<GraphOp> ops(4);
  ops[0] = {.tiles = 1, .report = 0, .report_count = 3};
  ops[1] = {.tiles = 12, .per_tile_events = true, .edges = {{0, Reads::all}}, .dynamic_report = 0};
  ops[2] = {.tiles = 1, .edges = {{1, Reads::all}}, .report = 1};
  ops[3] = {.tiles = 3, .edges = {{2, Reads::all}}, .dynamic_report = 1};
  const GraphPlan plan(ops, 1);
  EngineOptions record = options();
  record.record_path = path_;
  run_alone(record, plan, {1, 3});
  EngineOptions replay;
  replay.replay_path = path_;
  run_alone(replay, plan, {1, 3});
  const bool drafts = std::ranges::any_of(decisions(path_), [](const auto& e) { return e.kind == scheduler::EntryKind::draft; });
  EXPECT_EQ(drafts, GetParam().starts_with("lookahead"));
}

// A replay is as far ahead as its record goes: what was credited since a guard was false must wait for the guard.
TEST_P(EngineRecord, WhatGuardsLeftOutIsReplayedOnceTheyAreKnown) {
  std::vector<GraphOp> ops(3);
  ops[0] = {.tiles = 1, .report = 0, .spin_us = 500};
  ops[1] = {.tiles = 8, .edges = {{0, Reads::all}}, .guard_report = 0};
  ops[2] = {.tiles = 1, .edges = {{1, Reads::all}}};
  const GraphPlan plan(ops, 1);
  EngineOptions record = options();
  record.record_path = path_;
  run_alone(record, plan, {1});
  EngineOptions replay;
  replay.replay_path = path_;
  run_alone(replay, plan, {1});
  const bool credits = std::ranges::any_of(decisions(path_), [](const auto& e) { return e.kind == scheduler::EntryKind::signal || e.kind == scheduler::EntryKind::skip; });
  EXPECT_EQ(credits, GetParam().starts_with("reactive"));
}

TEST_P(EngineRecord, OtherPlansOtherMachinesAndOtherRunsAreRefused) {
  const GraphPlan plan(layered_graph(2));
  EngineOptions record = options();
  record.record_path = path_;
  {
    Engine engine = open_graph_engine(plan, record);
    run_some(engine, plan);
  }
  EngineOptions replay;
  replay.replay_path = path_;
  const auto refusal = [&](const GraphPlan& other, std::uint32_t workers) {
    Result<std::unique_ptr<Device>> device = open_device({.kind = "host", .workers = workers});
    return Engine::create(std::move(*device), other.program(), replay).status().code();
  };
  EXPECT_EQ(refusal(GraphPlan(layered_graph(3)), 2), ErrorCode::invalid_argument);
  EXPECT_EQ(refusal(plan, 1), ErrorCode::invalid_argument);
  EXPECT_EQ(refusal(plan, 2), ErrorCode::ok);
  Engine engine = open_graph_engine(plan, replay);
  Result<ccks::Run> other_dims = submit_graph(engine, 0, 7);  // recorded with n = 1
  ASSERT_TRUE(other_dims.ok());
  const Status status = other_dims->wait_for(std::chrono::seconds(20));
  EXPECT_EQ(status.code(), ErrorCode::invalid_data);
  EXPECT_NE(status.message().find("diverged"), std::string::npos) << status.message();
}

/// Decisions for groups of workers are not recorded.
std::vector<std::string> recorded_ways() {
  std::vector<std::string> out = ways_and({});
  std::erase(out, "lookahead_grouped");
  return out;
}

TEST(EngineRecords, AreRefusedWhereRunsHaveWorkersOfTheirOwn) {
  EngineOptions options = options_of("lookahead_grouped");
  options.record_path = testing::TempDir() + "grouped.rec";
  DeviceOptions device;
  device.kind = "host";
  device.workers = 2;
  const GraphPlan plan(layered_graph(1));
  EXPECT_EQ(Engine::create(open_device(device).value(), plan.program(), options).status().code(), ErrorCode::unsupported);
  options.record_path.clear();
  options.workers_per_run = 3;
  EXPECT_EQ(Engine::create(open_device(device).value(), plan.program(), options).status().code(), ErrorCode::invalid_argument);
}

INSTANTIATE_TEST_SUITE_P(Policies, EngineRecord, testing::ValuesIn(recorded_ways()),
                         [](const auto& policy) { return policy.param; });

}  // namespace
}  // namespace ccks::test
