// Decisions are recorded and replayed in the same order (C8); anything else is refused.
#include <unistd.h>

#include <cstdio>
#include <cstring>

#include "scheduler/record.hpp"
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

INSTANTIATE_TEST_SUITE_P(Policies, EngineRecord, testing::ValuesIn(kWays),
                         [](const auto& policy) { return policy.param; });

}  // namespace
}  // namespace ccks::test
