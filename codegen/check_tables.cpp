// check_tables: every index in the tables of a plan is in range, and plan and program name the same things.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <unordered_set>

#include "codegen/check_model.hpp"

namespace ccks::codegen::check {
namespace {

/// One pass over the tables; `ok` falls once and stays.
class TableCheck {
 public:
  TableCheck(const spec::Program& program, const plan::PlanView& plan, Faults& faults)
      : program_(program), plan_(plan), faults_(faults) {}

  bool run() {
    dim_nodes();
    symbols();
    ragged();
    tensors();
    for (std::size_t i = 0; i < plan_.ops.size() && ok_; ++i) op(i);
    operands();
    waits_and_signals();
    rest();
    if (ok_) names();
    return ok_;
  }

 private:
  void require(bool held, const char* code, const std::string& message) {
    if (held) return;
    ok_ = false;
    faults_.add(code, message);
  }
  bool dim(plan::DimId id) const { return id < plan_.dims.size(); }
  static bool fits(std::uint64_t first, std::uint64_t count, std::size_t size) { return first + count <= size; }

  void dim_nodes() {
    for (std::size_t i = 0; i < plan_.dims.size() && ok_; ++i) {
      const plan::DimNode& node = plan_.dims[i];
      bool good = node.op <= plan::DimOp::max;
      if (node.op == plan::DimOp::symbol)
        good = node.value >= 0 && static_cast<std::uint64_t>(node.value) < plan_.symbols.size();
      else if (node.op != plan::DimOp::constant)
        good = good && node.a < i && node.b < i;
      require(good, "table.dim", fmt::format("dim node {} refers to nothing before it", i));
    }
  }

  void symbols() {
    require(plan_.symbols.size() == program_.symbols.size(), "table.symbol",
            "plan and program differ in their dim symbols");
    for (std::size_t i = 0; i < plan_.symbols.size() && ok_; ++i) {
      const plan::SymbolDesc& have = plan_.symbols[i];
      const spec::Symbol& want = program_.symbols[i];
      const bool same = have.name && want.name == have.name && have.lo == want.range.lo && have.hi == want.range.hi &&
                        have.has_preset == want.preset.has_value() && (!have.has_preset || have.preset == *want.preset);
      require(same, "table.symbol", fmt::format("dim symbol '{}' is not as declared", want.name));
    }
  }

  void ragged() {
    require(plan_.ragged.size() == program_.ragged.size(), "table.ragged", "plan and program differ in their ragged dims");
    for (std::size_t i = 0; i < plan_.ragged.size() && ok_; ++i) {
      const plan::RaggedDesc& have = plan_.ragged[i];
      const spec::RaggedDim& want = program_.ragged[i];
      require(have.symbol == want.rows && dim(have.count) && have.length_lo == want.length.lo && have.length_hi == want.length.hi &&
                  have.pad == want.pad && have.round == want.round && std::equal(want.tables.begin(), want.tables.end(), have.tables),
              "table.ragged", fmt::format("ragged dim '{}' is not as declared", program_.symbols[want.rows].name));
    }
  }

  void tensors() {
    require(plan_.tensors.size() == program_.tensors.size(), "table.tensor",
            "plan and program differ in their tensors");
    for (std::size_t i = 0; i < plan_.tensors.size() && ok_; ++i) {
      const plan::TensorDesc& have = plan_.tensors[i];
      const spec::Tensor& want = program_.tensors[i];
      bool good = have.name && have.source && want.name == have.name && have.dtype == want.dtype &&
                  static_cast<int>(have.kind) == static_cast<int>(want.kind) && have.rank == want.shape.size() &&
                  have.rank <= 4;
      for (std::size_t d = 0; good && d < have.rank; ++d) good = dim(have.shape[d]);
      const wire::Space space = want.kind == spec::TensorKind::weight  ? wire::Space::weights
                                : want.kind == spec::TensorKind::state ? wire::Space::state
                                                                       : wire::Space::arena;
      require(good && (want.alias_of != spec::kNone || have.space == space), "table.tensor",
              fmt::format("tensor '{}' is not as declared", want.name));
    }
  }

  void op(std::size_t i) {
    const plan::OpDesc& d = plan_.ops[i];
    const auto where = [&](const char* what) { return fmt::format("op {}: {}", i, what); };
    require(d.name != nullptr, "table.op", where("has no name"));
    bool dims = true;
    for (const plan::DimId id : d.grid) dims = dims && dim(id);
    for (const plan::DimId id : d.tile) dims = dims && dim(id);
    for (const plan::DimId id : d.dims) dims = dims && dim(id);
    require(dims && dim(d.bytes_read) && dim(d.bytes_written) && dim(d.operations), "table.op",
            where("names a dim that does not exist"));
    require(fits(d.operand_first, std::uint64_t{d.input_count} + d.output_count, plan_.operands.size()) &&
                fits(d.wait_first, d.wait_count, plan_.waits.size()) &&
                fits(d.signal_first, d.signal_count, plan_.signals.size()) &&
                fits(d.guard_first, d.guard_count, plan_.guards.size()) &&
                fits(d.code_first, d.code_count, plan_.code.size()),
            "table.op", where("a table entry is out of range"));
    require(d.wait_count <= 0xffff && d.signal_count <= 0xffff && d.guard_count <= 0xffff && d.code_count <= 0xffff,
            "limit.op", where("has more waits, signals, guards or instructions than a frame can hold"));
    require(d.report == plan::kNone || d.report < plan_.reports.size(), "table.op",
            where("names a report that does not exist"));
    require(d.dynamic_report == plan::kNone || d.dynamic_report < plan_.reports.size(), "table.op",
            where("names a report that does not exist"));
  }

  void operands() {
    for (std::size_t i = 0; i < plan_.operands.size() && ok_; ++i) {
      const plan::OperandDesc& d = plan_.operands[i];
      bool good = d.rank <= 4 && d.tensor < plan_.tensors.size() && dim(d.offset) && d.space <= wire::Space::state &&
                  d.dtype <= wire::Dtype::boolean;
      for (int a = 0; a < 4; ++a) good = good && dim(d.dim[a]) && dim(d.stride[a]);
      require(good, "table.operand", fmt::format("operand {} names something that does not exist", i));
    }
  }

  void waits_and_signals() {
    for (std::size_t i = 0; i < plan_.waits.size() && ok_; ++i) {
      const plan::WaitDesc& d = plan_.waits[i];
      bool good = d.signal < plan_.signals.size() && d.producer < plan_.ops.size();
      for (const plan::WaitAxisDesc& a : d.axis)
        good = good && a.grid_axis >= -1 && a.grid_axis <= 3 && dim(a.step) && dim(a.offset) && dim(a.length) &&
               dim(a.extent) && dim(a.block) && dim(a.stride);
      require(good, "table.wait", fmt::format("wait {} names something that does not exist", i));
    }
    for (std::size_t i = 0; i < plan_.signals.size() && ok_; ++i) {
      const plan::SignalDesc& d = plan_.signals[i];
      bool good = d.op < plan_.ops.size() && dim(d.event_count) && dim(d.total);
      for (int a = 0; a < 2; ++a) good = good && d.grid_axis[a] >= -1 && d.grid_axis[a] <= 3 && dim(d.stride[a]);
      require(good, "table.signal", fmt::format("signal {} names something that does not exist", i));
    }
  }

  void rest() {
    for (std::size_t i = 0; i < plan_.guards.size() && ok_; ++i)
      require(plan_.guards[i].report < plan_.reports.size() &&
                  plan_.guards[i].compare <= static_cast<std::uint32_t>(wire::Compare::ge),
              "table.guard", fmt::format("guard {} names something that does not exist", i));
    for (std::size_t i = 0; i < plan_.reports.size() && ok_; ++i) {
      const plan::ReportDesc& d = plan_.reports[i];
      require(d.name && d.op < plan_.ops.size() && d.operand < plan_.operands.size() && dim(d.elements), "table.report",
              fmt::format("report {} names something that does not exist", i));
    }
    require(plan_.checks.size() == program_.checks.size(), "table.check",
            "plan and program differ in their run-time checks");
    for (const plan::CheckDesc& check : plan_.checks)
      require(dim(check.lhs) && dim(check.rhs) && check.message, "table.check",
              "a run-time check names a dim that does not exist");
    require(plan_.ops.size() < wire::kMaxOps, "limit.ops",
            fmt::format("{} ops are more than a frame can hold", plan_.ops.size()));
  }

  void names() {
    std::unordered_set<std::string> seen;
    for (const plan::OpDesc& op : plan_.ops) seen.insert(op.name);
    require(plan_.ops.size() == program_.ops.size() && seen.size() == plan_.ops.size(), "table.op",
            fmt::format("the program has {} ops, the plan {} ({} names)", program_.ops.size(), plan_.ops.size(),
                        seen.size()));
    for (const spec::Op& op : program_.ops)
      require(seen.contains(op.name), "table.op", fmt::format("op '{}' is missing", op.name));
  }

  const spec::Program& program_;
  const plan::PlanView& plan_;
  Faults& faults_;
  bool ok_ = true;
};

}  // namespace

bool check_tables(const spec::Program& program, const plan::PlanView& plan, Faults& faults) {
  return TableCheck(program, plan, faults).run();
}

}  // namespace ccks::codegen::check
