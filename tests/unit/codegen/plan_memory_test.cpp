// Placement: what lies where, what is shared, and that whoever reuses space waits for its former owner.
#include <gtest/gtest.h>

#include <chrono>

#include "tests/unit/codegen/plan_fixture.hpp"

namespace ccks::codegen {
namespace {

using namespace ccks::test;

/// x -> t0 -> t1 -> ... -> y, with a residual from the first to every fourth.
spec::Program chain(int length) {
  ProgramBuilder b;
  const Expr n = b.symbol("n", 1, 256);
  auto last = b.input("x", {n, 512});
  for (int i = 0; i < length; ++i) {
    const auto next = b.tensor("t" + std::to_string(i), {n, 512});
    b.copy(last, next);
    last = next;
  }
  b.copy(last, b.output("y", {n, 512}));
  return b.program;
}

/// Ops that surely ran before any tile of `op`: followed through its waits.
std::set<std::uint32_t> ancestors(const plan::PlanView& view, std::uint32_t op) {
  std::set<std::uint32_t> seen;
  std::vector<std::uint32_t> todo{op};
  while (!todo.empty()) {
    const plan::OpDesc& o = view.ops[todo.back()];
    todo.pop_back();
    for (std::uint32_t w = 0; w < o.wait_count; ++w)
      if (seen.insert(view.waits[o.wait_first + w].producer).second)
        todo.push_back(view.waits[o.wait_first + w].producer);
  }
  return seen;
}

TEST(PlanMemory, TensorsInUseTogetherNeverOverlap) {
  const spec::Program program = chain(30);
  const PlanFixture p(program);
  EXPECT_LT(p.view.arena_bytes, p.image->unplanned_arena_bytes / 2);
  for (std::uint32_t a = 0; a < p.view.tensors.size(); ++a)
    for (std::uint32_t b = 0; b < a; ++b) {
      const auto &x = p.view.tensors[a], &y = p.view.tensors[b];
      const bool apart = x.offset + x.max_bytes <= y.offset || y.offset + y.max_bytes <= x.offset;
      if (apart) continue;
      const LiveRange &s = p.image->live_ranges[a], &t = p.image->live_ranges[b];
      EXPECT_TRUE(s.last < t.first || t.last < s.first) << x.name << " and " << y.name;
      EXPECT_EQ(x.kind, plan::TensorKind::intermediate);
    }
}

TEST(PlanMemory, NewOwnersWaitForAllUsersOfTheOld) {
  const spec::Program program = chain(30);
  const PlanFixture p(program);
  int pairs = 0;
  for (std::uint32_t a = 0; a < p.view.tensors.size(); ++a)
    for (std::uint32_t b = 0; b < p.view.tensors.size(); ++b) {
      const auto &x = p.view.tensors[a], &y = p.view.tensors[b];
      if (x.offset + x.max_bytes <= y.offset || y.offset + y.max_bytes <= x.offset) continue;
      if (p.image->live_ranges[a].last >= p.image->live_ranges[b].first) continue;
      ++pairs;
      EXPECT_TRUE(ancestors(p.view, p.image->live_ranges[b].first).count(p.image->live_ranges[a].last))
          << x.name << " " << y.name;
    }
  EXPECT_GT(pairs, 10);
}

TEST(PlanMemory, InputsOutputsReportsKeepTheirSpace) {
  ProgramBuilder b;
  auto last = b.input("x", {64});
  const auto r = b.report("r", last, wire::Dtype::f32);
  for (int i = 0; i < 12; ++i) {
    const auto next = i % 4 == 3 ? b.output("y" + std::to_string(i), {64}) : b.tensor("t" + std::to_string(i), {64});
    b.copy(last, next);
    last = next;
  }
  const PlanFixture p(b.program);
  for (std::uint32_t a = 0; a < p.view.tensors.size(); ++a) {
    const auto& x = p.view.tensors[a];
    EXPECT_EQ(x.offset % 256, 0u);
    EXPECT_LE(x.offset + x.max_bytes, p.view.arena_bytes);
    if (x.kind == plan::TensorKind::intermediate && a != b.program.reports[r].tensor) continue;
    for (std::uint32_t c = 0; c < p.view.tensors.size(); ++c) {
      const auto& y = p.view.tensors[c];
      EXPECT_TRUE(c == a || x.offset + x.max_bytes <= y.offset || y.offset + y.max_bytes <= x.offset)
          << x.name << " " << y.name;
    }
  }
}

TEST(PlanMemory, ReuseCanBeTurnedOff) {
  PlanOptions options;
  options.reuse_memory = false;
  const PlanFixture p(chain(10), options);
  EXPECT_EQ(p.view.arena_bytes, p.image->unplanned_arena_bytes);
  for (const Dependency& d : p.image->dependencies) EXPECT_NE(d.kind, DependencyKind::reuse);
}

TEST(PlanMemory, AGpuSharesOnlyWhatIsLarge) {
  PlanOptions options;
  options.device = "cuda";
  const auto reuses = [&] {
    const PlanFixture p(chain(10), options);
    return p.view.arena_bytes < p.image->unplanned_arena_bytes;
  };
  EXPECT_FALSE(reuses());
  options.reuse_from_bytes = 0;
  EXPECT_TRUE(reuses());
}

TEST(PlanMemory, AliasesShareStorageAndLiveTogether) {
  ProgramBuilder b;
  const auto x = b.input("x", {8, 32}), h = b.tensor("h", {8, 32}), flat = b.alias("flat", h, {256}),
             y = b.output("y", {256});
  b.copy(x, h);
  b.copy(flat, y);
  const PlanFixture p(b.program);
  EXPECT_EQ(p.view.tensors[h].offset, p.view.tensors[flat].offset);
  EXPECT_EQ(p.image->live_ranges[h].last, 1u);
  EXPECT_EQ(p.image->live_ranges[flat].root, h);
}

TEST(PlanMemory, SpacesForWeightsAndStates) {
  ProgramBuilder b;
  const auto w1 = b.tensor("w1", {10}, TensorKind::weight), w2 = b.tensor("w2", {10}, TensorKind::weight),
             s = b.tensor("s", {3}, TensorKind::state);
  b.copy(w1, b.output("y", {10}));
  const PlanFixture p(b.program);
  EXPECT_EQ(p.view.tensors[w2].offset, 256u);
  EXPECT_EQ(p.view.weight_bytes, 512u);
  EXPECT_EQ(p.view.state_bytes, 256u);
  EXPECT_EQ(p.view.tensors[s].space, wire::Space::state);
}

TEST(PlanMemory, SameProgramSameTables) {
  const PlanFixture a(chain(30)), b(chain(30));
  EXPECT_EQ(a.view.hash, b.view.hash);
  EXPECT_EQ(a.view.hash, hash_tables(a.view));
  EXPECT_NE(a.view.hash, PlanFixture(chain(31)).view.hash);
  PlanImage edited = *a.image;
  edited.waits[0].axis[0].length += 1;
  EXPECT_NE(hash_tables(edited.view()), a.view.hash);
}

TEST(PlanMemory, ThousandsOfOpsPlanQuickly) {
  const spec::Program program = chain(4000);
  const auto start = std::chrono::steady_clock::now();
  const PlanFixture p(program);
  const double seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  EXPECT_LT(p.view.waits.size(), 4 * program.ops.size()) << "implied waits are dropped";
  RecordProperty("seconds", std::to_string(seconds));
}

}  // namespace
}  // namespace ccks::codegen
