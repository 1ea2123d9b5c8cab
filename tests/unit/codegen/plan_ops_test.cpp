// Every op kind is planned as wire/op_layout.hpp says; guards, reports and what exists only at run time.
#include <gtest/gtest.h>

#include "tests/unit/codegen/plan_fixture.hpp"

namespace ccks::codegen {
namespace {

using namespace ccks::test;
using wire::Dtype;

std::vector<std::int64_t> dims_of(const PlanAt& at, const plan::DimId* ids, std::size_t n) {
  std::vector<std::int64_t> out;
  for (std::size_t i = 0; i < n; ++i) out.push_back(at.value(ids[i]));
  return out;
}
using Values = std::vector<std::int64_t>;

const plan::OperandDesc& operand(const plan::PlanView& view, std::uint32_t op, std::uint32_t index) {
  return view.operands[view.ops[op].operand_first + index];
}

TEST(PlanOps, ReduceKeepsReducedDimsForTheTileOp) {
  ProgramBuilder b;
  const auto x = b.input("x", {5, 6, 7}), y = b.output("y", {5, 7});
  b.op(spec::ReduceAttrs{spec::ReduceFn::max, {1}, false}, {b.all(x)}, {b.all(y)});
  const PlanFixture p(b.program);
  const auto at = p.at({});
  EXPECT_EQ(at.value(p.view.ops[0].dims[0]), static_cast<std::int64_t>(spec::ReduceFn::max));
  EXPECT_EQ(at.value(p.view.ops[0].dims[1]), 1 << 2);
  EXPECT_EQ(dims_of(at, operand(p.view, 0, 0).dim, 4), (Values{1, 5, 6, 7}));
  EXPECT_EQ(dims_of(at, operand(p.view, 0, 1).dim, 4), (Values{1, 5, 1, 7}));
  EXPECT_EQ(dims_of(at, operand(p.view, 0, 1).stride, 4), (Values{0, 7, 0, 1}));
}

TEST(PlanOps, GatherFlattensIndexAndRows) {
  ProgramBuilder b;
  const auto table = b.tensor("e", {100, 4, 8}, TensorKind::weight), index = b.input("i", {3, 5}, Dtype::i64);
  const auto y = b.output("y", {3, 5, 4, 8});
  b.op(spec::GatherAttrs{}, {b.all(table), b.all(index)}, {b.all(y)});
  const PlanFixture p(b.program);
  const auto at = p.at({});
  EXPECT_EQ(dims_of(at, operand(p.view, 0, 0).dim, 4), (Values{1, 1, 100, 32}));
  EXPECT_EQ(dims_of(at, operand(p.view, 0, 1).dim, 4), (Values{1, 1, 1, 15}));
  EXPECT_EQ(dims_of(at, operand(p.view, 0, 2).dim, 4), (Values{1, 1, 15, 32}));
  EXPECT_EQ(at.value(p.view.ops[0].bytes_read), 15 * 32 * 4 + 15 * 8) << "rows taken, not the table";
}

TEST(PlanOps, AttentionTilesHoldWholeHeads) {
  ProgramBuilder b;
  const Expr n = b.symbol("n", 1, 64), c = b.symbol("c", 64, 512);
  const auto q = b.input("q", {n, 8 * 64}), k = b.input("k", {c, 2 * 64}), v = b.input("v", {c, 2 * 64}),
             y = b.output("y", {n, 8 * 64});
  b.op(spec::AttentionAttrs{8, 2, true, 0.125}, {b.all(q), b.all(k), b.all(v)}, {b.all(y)});
  const PlanFixture p(b.program);
  const auto at = p.at({64, 512});
  EXPECT_EQ(at.value(p.view.ops[0].tile[3]) % 64, 0);
  EXPECT_EQ(dims_of(at, p.view.ops[0].dims, 3), (Values{8, 2, 1}));
  EXPECT_EQ(p.view.ops[0].scalars[0], 0.125f);
  EXPECT_EQ(at.value(p.view.ops[0].operations), 64 * 512 * 512 * 4);
}

TEST(PlanOps, NormsKeepTheLastDimWhole) {
  ProgramBuilder b;
  const Expr d = b.symbol("d", 1, 5000);
  const auto x = b.input("x", {9, d}), w = b.tensor("w", {d}, TensorKind::weight), y = b.output("y", {9, d}),
             z = b.output("z", {9, d});
  b.op(spec::RmsnormAttrs{1e-6}, {b.all(x), b.all(w)}, {b.all(y)});
  b.op(spec::SoftmaxAttrs{0.5}, {b.all(y)}, {b.all(z)});
  const PlanFixture p(b.program);
  for (const std::int64_t size : {1, 333, 5000}) {
    const auto at = p.at({size});
    for (const std::uint32_t op : {0u, 1u}) {
      EXPECT_EQ(at.value(p.view.ops[op].tile[3]), size);
      EXPECT_EQ(at.value(p.view.ops[op].grid[3]), 1);
    }
  }
}

TEST(PlanOps, ArgmaxAndTopkGiveOneTileColumn) {
  ProgramBuilder b;
  const auto x = b.input("x", {40, 1000}), i = b.output("i", {40}, Dtype::i32), v = b.output("v", {40, 5}),
             j = b.output("j", {40, 5}, Dtype::i32);
  b.op(spec::ArgmaxAttrs{}, {b.all(x)}, {b.all(i)});
  b.op(spec::TopkAttrs{5}, {b.all(x)}, {b.all(v), b.all(j)});
  const PlanFixture p(b.program);
  const auto at = p.at({});
  EXPECT_EQ(dims_of(at, operand(p.view, 0, 1).dim, 4), (Values{1, 1, 40, 1}));
  EXPECT_EQ(dims_of(at, operand(p.view, 0, 1).stride, 4), (Values{0, 0, 1, 0}));
  EXPECT_EQ(at.value(p.view.ops[0].grid[3]), 1);
  EXPECT_EQ(at.value(p.view.ops[1].grid[3]), 1);
  EXPECT_EQ(at.value(p.view.ops[1].dims[0]), 5);
}

/// A mixture of experts as the language writes it.
struct Experts {
  ProgramBuilder b;
  Expr t = b.symbol("t", 1, 200);
  Experts() {
    const auto x = b.input("x", {t, 64}), logits = b.input("logits", {t, 16}),
               w = b.tensor("w", {16, 64, 96}, TensorKind::weight);
    const auto weight = b.tensor("weight", {t, 4}),
               expert = b.tensor("expert", {t, 4}, TensorKind::intermediate, Dtype::i32);
    const auto count = b.tensor("count", {16}, TensorKind::intermediate, Dtype::i32),
               row = b.tensor("row", {t, 4}, TensorKind::intermediate, Dtype::i32);
    const auto source = b.tensor("source", {t * 4}, TensorKind::intermediate, Dtype::i32),
               h = b.tensor("h", {t * 4, 96}), y = b.output("y", {t, 96});
    b.op(spec::RouteAttrs{4, false, false}, {b.all(logits)},
         {b.all(weight), b.all(expert), b.all(count), b.all(row), b.all(source)});
    b.op(spec::ExpertMatmulAttrs{4, true, {}}, {b.all(x), b.all(w), b.all(source), b.all(count)}, {b.all(h)});
    b.op(spec::CombineAttrs{4}, {b.all(h), b.all(weight), b.all(row)}, {b.all(y)});
  }
};

TEST(PlanOps, ExpertTilesAreBoundedForEveryRouting) {
  Experts e;
  const PlanFixture p(e.b.program);
  EXPECT_TRUE(p.view.ops[1].flags & wire::kOpDynamic);
  ASSERT_NE(p.view.ops[1].dynamic_report, plan::kNone);
  EXPECT_STREQ(p.view.reports[p.view.ops[1].dynamic_report].name, "op0.count");
  EXPECT_EQ(p.view.ops[0].report, p.view.ops[1].dynamic_report);
  for (const std::int64_t t : {1, 2, 5, 200}) {
    const auto at = p.at({t});
    const std::int64_t tile = at.value(p.view.ops[1].tile[2]), rows = 4 * t;
    // The worst routing leaves one row over in as many experts as it can.
    std::int64_t worst = 0;
    for (std::int64_t used = 1; used <= std::min<std::int64_t>(16, rows); ++used) {
      const std::int64_t full = (rows - used) / tile;
      worst = std::max(worst, used + full);
    }
    EXPECT_GE(at.value(p.view.ops[1].grid[2]), worst) << t;
    EXPECT_LE(at.value(p.view.ops[1].grid[2]), std::min(rows, rows / tile + 16)) << t;
    EXPECT_TRUE(at.totals_hold());
  }
}

TEST(PlanOps, CombineWaitsForEveryRowTileOfItsColumns) {
  Experts e;
  const PlanFixture p(e.b.program);
  const auto at = p.at({200});
  const plan::OpDesc& combine = p.view.ops[2];
  bool on_experts = false;
  for (std::uint32_t w = 0; w < combine.wait_count; ++w) {
    if (at.wait(2, w).producer != 1) continue;
    on_experts = true;
    const auto coordinates = at.waited_coordinates(2, w, {0, 0, 0, 0});
    std::set<std::int64_t> rows;
    for (const Coordinate& c : coordinates) rows.insert(c[2]);
    EXPECT_EQ(static_cast<std::int64_t>(rows.size()), at.value(p.view.ops[1].grid[2]));
  }
  EXPECT_TRUE(on_experts);
}

TEST(PlanOps, CompletionOfADynamicOpImpliesNothing) {
  // Tiles that do not exist are signalled for the experts before x is complete, so whoever overwrites x waits for its
  // writer, too.
  Experts e;
  ProgramBuilder& b = e.b;
  const auto seed = b.input("seed", {e.t, 64}), state = b.tensor("state", {e.t, 64}, TensorKind::state);
  auto& ops = b.program.ops;
  b.copy(seed, state);
  std::rotate(ops.begin(), ops.end() - 1, ops.end());
  ops[2].inputs[0] = b.all(state);
  const auto sum = b.tensor("sum", {}), y = *b.program.find_tensor("y"), z = b.output("z", {e.t, 64});
  b.op(spec::ReduceAttrs{spec::ReduceFn::sum, {0, 1}, false}, {b.all(*b.program.find_tensor("h"))}, {b.all(sum)});
  ElementBuilder both;
  both.node(ExprFn::add, ScalarType::f32, both.argument(0), both.argument(1));
  const View one{sum, {ProgramBuilder::broadcast(e.t), ProgramBuilder::broadcast(64)}, {}};
  b.op(spec::MapAttrs{both.expr}, {one, b.all(state)}, {b.all(z)});
  ASSERT_NE(y, z);
  const PlanFixture p(b.program);
  const plan::OpDesc& reader = p.view.ops.back();
  std::set<std::uint32_t> producers;
  for (std::uint32_t w = 0; w < reader.wait_count; ++w) producers.insert(p.view.waits[reader.wait_first + w].producer);
  EXPECT_TRUE(producers.count(0));
}

/// x -> report r; if r > 0: if r > 5: a = x + x  else: a = -x
struct Branches {
  ProgramBuilder b;
  std::uint32_t outer, inner;
  Branches() {
    const auto x = b.input("x", {64}), s = b.tensor("s", {}), t = b.tensor("t", {64}), f = b.tensor("f", {64}),
               y = b.output("y", {64});
    b.op(spec::ReduceAttrs{spec::ReduceFn::sum, {0}, false}, {b.all(x)}, {b.all(s)});
    const auto r = b.report("r", s, Dtype::f32), q = b.report("q", s, Dtype::f32);
    outer = b.condition(spec::Condition::Cmp::gt, r, 0.5);
    inner = b.condition(spec::Condition::Cmp::ge, q, 5, outer);
    b.copy(x, t).condition = inner;
    b.copy(x, f).condition = outer;
    b.op(spec::SelectAttrs{inner}, {b.all(t), b.all(f)}, {b.all(y)});
  }
};

TEST(PlanOps, GuardsStandParentsFirstAndAreWaitedFor) {
  Branches branches;
  const PlanFixture p(branches.b.program);
  const plan::OpDesc& guarded = p.view.ops[3];
  ASSERT_EQ(guarded.guard_count, 2u);
  const plan::GuardDesc* guards = &p.view.guards[guarded.guard_first];
  EXPECT_EQ(guards[0].report, 0u);
  EXPECT_EQ(guards[0].compare, static_cast<std::uint32_t>(wire::Compare::gt));
  EXPECT_EQ(guards[0].value, 0.5);
  EXPECT_TRUE(guards[0].is_float);
  EXPECT_EQ(guards[1].report, 1u);
  EXPECT_EQ(guards[0].offset, p.view.tensors[p.view.operands[p.view.reports[0].operand].tensor].offset);
  std::set<std::uint32_t> producers;
  for (std::uint32_t w = 0; w < guarded.wait_count; ++w)
    producers.insert(p.view.waits[guarded.wait_first + w].producer);
  EXPECT_TRUE(producers.count(1) && producers.count(2));
}

TEST(PlanOps, SelectNamesItsGuardsAndWaitsForBothBranches) {
  Branches branches;
  const PlanFixture p(branches.b.program);
  const auto at = p.at({});
  const plan::OpDesc& select = p.view.ops[5];
  EXPECT_EQ(select.guard_count, 0u) << "they are not its own";
  EXPECT_EQ(at.value(select.dims[0]), static_cast<std::int64_t>(p.view.ops[3].guard_first));
  EXPECT_EQ(at.value(select.dims[1]), 2);
  std::set<std::uint32_t> producers;
  for (std::uint32_t w = 0; w < select.wait_count; ++w) producers.insert(p.view.waits[select.wait_first + w].producer);
  EXPECT_TRUE(producers.count(3) && producers.count(4));
  EXPECT_TRUE(producers.count(1) && producers.count(2));
}

TEST(PlanOps, ReportsLieApartOnSixteenBytes) {
  Branches branches;
  const PlanFixture p(branches.b.program);
  ASSERT_EQ(p.view.reports.size(), 2u);
  EXPECT_EQ(p.view.reports[0].offset, 0u);
  EXPECT_EQ(p.view.reports[1].offset, 16u);
  EXPECT_EQ(p.view.report_bytes, 32u);
  EXPECT_EQ(p.view.ops[1].report, 0u);
}

TEST(PlanOps, EpilogueArgumentsAndBodies) {
  ProgramBuilder b;
  const auto x = b.input("x", {16, 32}), w = b.tensor("w", {32, 32}, TensorKind::weight), h = b.tensor("h", {16, 32}),
             y = b.output("y", {16, 32});
  ElementBuilder e;
  e.node(ExprFn::add, ScalarType::f32, e.argument(0), e.argument(1));
  b.op(spec::MatmulAttrs{e.expr}, {b.all(x), b.all(w), b.all(x)}, {b.all(h)});
  b.op(spec::MatmulAttrs{e.expr}, {b.all(h), b.all(w), b.all(x)}, {b.all(y)});
  b.op(spec::MatmulAttrs{}, {b.all(h), b.all(w)}, {b.all(y)});
  const PlanFixture p(b.program);
  EXPECT_EQ(p.at({}).value(p.view.ops[0].dims[wire::kEpilogueDim]), 2);
  EXPECT_EQ(p.view.ops[0].body, p.view.ops[1].body);
  EXPECT_NE(p.view.ops[0].body, p.view.ops[2].body);
  EXPECT_EQ(p.view.ops[2].code_count, 0u);
}

TEST(PlanOps, TooManyTilesAreRefusedByName) {
  ProgramBuilder b;
  const Expr n = b.symbol("n", 1, std::int64_t{1} << 30);
  const auto x = b.input("x", {n, 4096}), y = b.output("y", {n, 4096});
  b.copy(x, y).name = "big";
  const auto made = make_plan(b.program);
  ASSERT_FALSE(made.ok());
  EXPECT_NE(made.status().message().find("'big'"), std::string::npos) << made.status().message();
}

}  // namespace
}  // namespace ccks::codegen
