// 1,000 seeded mutations of plans: what the oracle finds harmful must be refused; what the planner made must not.
#include <gtest/gtest.h>

#include <map>
#include <optional>
#include <random>

#include "codegen/check_plan.hpp"
#include "codegen/plan_twin.hpp"
#include "tests/unit/codegen/check_oracle.hpp"
#include "tests/unit/codegen/check_programs.hpp"

namespace ccks::codegen {
namespace {

using testing::kSmallPrograms;

/// Breaks one thing of a plan, at random.
class Mutator {
 public:
  Mutator(PlanImage& plan, std::uint64_t seed) : p_(plan), random_(seed) {}

  /// Name of what was done; empty where the plan has nothing of that sort.
  std::string mutate() {
    using Change = std::string (Mutator::*)();
    constexpr Change kChanges[] = {
        &Mutator::drop_wait,   &Mutator::wait_axis,    &Mutator::wait_signal, &Mutator::total,
        &Mutator::event_first, &Mutator::swap_ops,     &Mutator::move_tensor, &Mutator::move_operand,
        &Mutator::grid_tile,   &Mutator::operand_form, &Mutator::signal_form, &Mutator::guard,
        &Mutator::attributes,  &Mutator::limits,       &Mutator::flags,       &Mutator::drop_wait,
        &Mutator::wait_axis,   &Mutator::move_tensor,  &Mutator::report};
    return (this->*kChanges[below(std::size(kChanges))])();
  }

 private:
  std::size_t below(std::size_t n) {
    return n == 0 ? 0 : std::uniform_int_distribution<std::size_t>(0, n - 1)(random_);
  }
  template <class T>
  T* any(std::vector<T>& v) {
    return v.empty() ? nullptr : &v[below(v.size())];
  }
  std::int64_t step() { return std::array<std::int64_t, 6>{1, -1, 2, -2, 16, -16}[below(6)]; }

  plan::DimId constant(std::int64_t value) {
    p_.dims.push_back({plan::DimOp::constant, 0, 0, value});
    return static_cast<plan::DimId>(p_.dims.size() - 1);
  }
  void add(plan::DimId& field, std::int64_t value) {
    const plan::DimId c = constant(value);
    p_.dims.push_back({plan::DimOp::add, field, c, 0});
    field = static_cast<plan::DimId>(p_.dims.size() - 1);
  }

  std::string drop_wait() {
    plan::OpDesc* op = any(p_.ops);
    if (op->wait_count == 0) return {};
    std::swap(p_.waits[op->wait_first + below(op->wait_count)], p_.waits[op->wait_first + op->wait_count - 1]);
    --op->wait_count;
    return "dropped a wait of " + std::string(op->name);
  }
  std::string wait_axis() {
    plan::WaitDesc* w = any(p_.waits);
    if (!w) return {};
    plan::WaitAxisDesc& a = w->axis[below(2)];
    switch (below(6)) {
      case 0:
        add(a.length, step());
        return "changed the length of a wait";
      case 1:
        add(a.offset, step());
        return "shifted a wait";
      case 2:
        add(a.step, step());
        return "changed the step of a wait";
      case 3:
        add(a.extent, step());
        return "changed the extent of a wait";
      case 4:
        add(a.block, step());
        return "changed the block of a wait";
      default:
        a.grid_axis = static_cast<std::int32_t>(below(5)) - 1;
        return "another coordinate moves a wait";
    }
  }
  std::string wait_signal() {
    plan::WaitDesc* w = any(p_.waits);
    if (!w) return {};
    w->signal = static_cast<std::uint32_t>(below(p_.signals.size()));
    if (below(2)) w->producer = p_.signals[w->signal].op;
    return "a wait for another signal";
  }
  std::string total() {
    plan::SignalDesc* s = any(p_.signals);
    if (!s) return {};
    add(s->total, step() > 0 ? 1 : -1);
    return "changed a total";
  }
  std::string event_first() {
    plan::SignalDesc* s = any(p_.signals);
    if (!s) return {};
    s->event_first += static_cast<std::uint32_t>(step());
    return "shifted event_first";
  }
  std::string swap_ops() {
    if (p_.ops.size() < 2) return {};
    const std::size_t a = below(p_.ops.size()), b = below(p_.ops.size());
    std::swap(p_.ops[a], p_.ops[b]);
    const auto renamed = [&](std::uint32_t& op) {
      op = op == a ? static_cast<std::uint32_t>(b) : op == b ? static_cast<std::uint32_t>(a) : op;
    };
    for (plan::SignalDesc& s : p_.signals) renamed(s.op);
    for (plan::WaitDesc& w : p_.waits) renamed(w.producer);
    for (plan::ReportDesc& r : p_.reports) renamed(r.op);
    return "swapped two ops";
  }
  /// All of a tensor, consistently: what a wrong allocator would do.
  std::string move_tensor() {
    const std::size_t t = below(p_.tensors.size()), onto = below(p_.tensors.size());
    if (t == onto || p_.tensors[t].space != p_.tensors[onto].space) return {};
    const std::int64_t delta = static_cast<std::int64_t>(p_.tensors[onto].offset) -
                               static_cast<std::int64_t>(p_.tensors[t].offset) + (below(2) ? 0 : 256);
    const std::uint64_t before = p_.tensors[t].offset;
    p_.tensors[t].offset += static_cast<std::uint64_t>(delta);
    for (plan::OperandDesc& o : p_.operands)
      if (o.tensor == t) add(o.offset, delta);
    for (plan::GuardDesc& g : p_.guards)
      if (g.offset == before) g.offset += static_cast<std::uint64_t>(delta);
    return "moved tensor " + std::string(p_.tensors[t].name) + " onto " + p_.tensors[onto].name;
  }
  std::string move_operand() {
    add(any(p_.operands)->offset, 4 * step());
    return "moved an operand";
  }
  std::string grid_tile() {
    plan::OpDesc* op = any(p_.ops);
    plan::DimId& field = below(2) ? op->grid[below(4)] : op->tile[below(4)];
    add(field, step());
    return "changed a grid or tile of " + std::string(op->name);
  }
  std::string operand_form() {
    plan::OperandDesc* o = any(p_.operands);
    add(below(2) ? o->dim[below(4)] : o->stride[below(4)], step());
    return "changed a dim or stride";
  }
  std::string signal_form() {
    plan::SignalDesc* s = any(p_.signals);
    if (!s) return {};
    switch (below(5)) {
      case 0:
        add(s->stride[below(2)], step());
        return "changed the stride of a signal";
      case 1:
        s->grid_axis[below(2)] = static_cast<std::int32_t>(below(5)) - 1;
        return "another coordinate moves a signal";
      case 2:
        add(s->event_count, step());
        return "changed event_count";
      case 3:
        s->event_max -= std::min<std::uint32_t>(s->event_max, 1);
        return "fewer events reserved";
      default:
        --p_.ops[s->op].signal_count;
        return "dropped a signal";
    }
  }
  std::string guard() {
    if (p_.guards.empty()) return {};
    plan::GuardDesc* g = any(p_.guards);
    plan::OpDesc* op = any(p_.ops);
    switch (below(4)) {
      case 0:
        g->offset += 4;
        return "a guard reads beside its report";
      case 1:
        g->compare = (g->compare + 1) % 6;
        return "a guard compares otherwise";
      case 2:
        g->value += 1;
        return "a guard compares with another value";
      default:
        if (op->guard_count == 0) return {};
        --op->guard_count;
        return "dropped a guard";
    }
  }
  std::string attributes() {
    plan::OpDesc* op = any(p_.ops);
    using K = wire::OpCode;
    if (op->code_count > 0 && below(2)) {
      wire::ExprInstr& in = p_.code[op->code_first + below(op->code_count)];
      if (in.op == static_cast<std::uint8_t>(wire::ExprOp::add_f))
        in.op = static_cast<std::uint8_t>(wire::ExprOp::mul_f);
      else if (in.op == static_cast<std::uint8_t>(wire::ExprOp::arg_f))
        in.c += 1;
      else
        return {};
      return "changed code";
    }
    if (op->kind == K::rmsnorm || op->kind == K::layernorm || op->kind == K::softmax || op->kind == K::rope) {
      op->scalars[0] = op->scalars[0] * 2 + 1;
      return "changed a scalar";
    }
    if (op->kind == K::attention || op->kind == K::topk || op->kind == K::route || op->kind == K::conv2d ||
        op->kind == K::reduce) {
      add(op->dims[0], 1);
      return "changed an attribute";
    }
    op->kind = op->kind == K::map ? K::select : K::map;
    return "changed a kind";
  }
  std::string limits() {
    switch (below(4)) {
      case 0:
        p_.max_tasks = static_cast<std::uint32_t>(below(p_.max_tasks));
        return "room for fewer tasks";
      case 1:
        p_.arena_bytes -= 4 * below(p_.arena_bytes / 4);
        return "a smaller arena";
      case 2:
        p_.event_count = static_cast<std::uint32_t>(below(p_.event_count));
        return "fewer events";
      default:
        p_.weight_bytes -= 4 * below(p_.weight_bytes / 4 + 1);
        return "less room for weights";
    }
  }
  std::string flags() {
    any(p_.operands)->flags = wire::kOperandContiguous | wire::kOperandStreamed;
    return "called an operand contiguous and streamed";
  }
  std::string report() {
    if (p_.reports.empty()) return {};
    plan::ReportDesc* r = any(p_.reports);
    switch (below(3)) {
      case 0:
        r->offset += 4 * static_cast<std::uint32_t>(below(9));
        return "moved a report";
      case 1:
        r->max_bytes = 2;
        return "a report without room";
      default:
        p_.report_bytes -= static_cast<std::uint32_t>(below(p_.report_bytes));
        return "a smaller report area";
    }
  }

  PlanImage& p_;
  std::mt19937_64 random_;
};

/// A program, its plan and the oracles for it at a small and a large set of dims.
struct Subject {
  std::string name;
  spec::Program program;
  std::shared_ptr<const PlanImage> image;
  std::vector<std::vector<std::int64_t>> points;
};

/// As it is planned for few rows on the host, if a product has a twin then.
std::optional<spec::Program> twinned(spec::Program program, const PlanOptions& options) {
  for (spec::Symbol& s : program.symbols) s.preset = s.range.lo;
  const std::size_t ops = program.ops.size();
  program = fold_twins(std::move(program), options);
  return program.ops.size() == ops ? std::nullopt : std::optional(std::move(program));
}

std::vector<Subject> subjects() {
  std::vector<Subject> all;
  for (const auto& small : kSmallPrograms) {
    for (const int form : {0, 1, 2}) {
      Subject s{small.name, testing::parse_small(small), nullptr, {}};
      const bool fine = form == 0;
      PlanOptions options;
      options.workers = fine ? 64 : 2;
      options.device = fine ? "cuda" : "host";
      options.reuse_distance = fine ? 0 : 2;
      options.reuse_from_bytes = 0;
      if (form == 2) {
        std::optional<spec::Program> other = twinned(s.program, options);
        if (!other) continue;
        s.program = std::move(*other);
        s.name += ", with a twin";
        options.workers = 64;
      }
      auto image = make_plan(s.program, options);
      if (!image) {
        ADD_FAILURE() << small.name << ": " << image.status().to_string();
        continue;
      }
      s.image = *image;
      std::vector<std::int64_t> low, high;
      for (const spec::Symbol& symbol : s.program.symbols) {
        low.push_back(symbol.range.lo + (symbol.range.hi - symbol.range.lo) / 3);
        high.push_back(symbol.range.hi);
      }
      s.points = {low, high};
      all.push_back(std::move(s));
    }
  }
  return all;
}

TEST(CheckMutation, WhatThePlannerMakesIsSound) {
  for (const Subject& s : subjects()) {
    const CheckReport report = check_plan(s.program, s.image->view());
    EXPECT_TRUE(report.ok()) << s.name << ": " << report.status().to_string();
    for (const auto& point : s.points) {
      EXPECT_EQ(oracle::Oracle(s.program, *s.image, point).harm(*s.image), "") << s.name << " at " << point[0];
      EXPECT_TRUE(check_plan(s.program, s.image->view(), point).ok()) << s.name << " at " << point[0];
    }
  }
}

TEST(CheckMutation, EveryHarmfulMutationIsRefused) {
  constexpr int kMutations = 1000;
  const std::vector<Subject> all = subjects();
  ASSERT_FALSE(all.empty());
  std::vector<std::vector<oracle::Oracle>> oracles;
  for (const Subject& s : all) {
    oracles.emplace_back();
    for (const auto& point : s.points) oracles.back().emplace_back(s.program, *s.image, point);
  }
  std::map<std::string, int> kinds;
  int harmful = 0, refused_harmless = 0, done = 0;
  for (std::uint64_t seed = 0; done < kMutations && seed < 20 * kMutations; ++seed) {
    const std::size_t i = seed % all.size();
    PlanImage plan = *all[i].image;
    const std::string what = Mutator(plan, 0x5eed + seed).mutate();
    if (what.empty()) continue;
    ++done;
    std::string harm;
    bool refused = false;
    for (std::size_t at = 0; at < all[i].points.size() && harm.empty(); ++at) {
      harm = oracles[i][at].harm(plan);
      refused = !check_plan(all[i].program, plan.view(), all[i].points[at]).ok();
      EXPECT_TRUE(refused || harm.empty()) << all[i].name << ", seed " << seed << ": " << what << ": " << harm;
      if (refused) break;
    }
    harmful += harm.empty() ? 0 : 1;
    refused_harmless += harm.empty() && refused ? 1 : 0;
    if (!harm.empty()) ++kinds[harm];
  }
  EXPECT_EQ(done, kMutations);
  EXPECT_GT(harmful, kMutations / 3) << "most mutations should matter, or this test says little";
  EXPECT_GT(kinds.size(), 12u) << "harm of many kinds";
  RecordProperty("harmful", harmful);
  RecordProperty("refused_harmless", refused_harmless);
  for (const auto& [kind, count] : kinds) RecordProperty(kind, count);
}

}  // namespace
}  // namespace ccks::codegen
