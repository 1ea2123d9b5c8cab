#include "codegen/plan_rewrite.hpp"

#include <set>

#include "codegen/plan_fold.hpp"
#include "codegen/plan_split.hpp"
#include "codegen/plan_twin.hpp"

namespace ccks::codegen {

namespace {

/// A loop carries more than what is read behind it: the selects that would tell which pass made it are not needed. Last ops first, since
/// such a select is often read by another only.
spec::Program drop_selects(const spec::Program& given) {
  std::set<spec::TensorId> read;
  const auto root = [&](spec::TensorId t) { return given.tensors[t].alias_of == spec::kNone ? t : given.tensors[t].alias_of; };
  std::vector<bool> gone(given.ops.size(), false);
  for (std::size_t i = given.ops.size(); i-- > 0;) {
    const spec::Op& op = given.ops[i];
    const spec::TensorId out = root(op.outputs[0].tensor);
    gone[i] = op.kind() == spec::OpKind::select && given.tensors[out].kind == spec::TensorKind::intermediate && !read.contains(out);
    for (std::size_t k = 0; k < op.inputs.size() && !gone[i]; ++k) read.insert(root(op.inputs[k].tensor));
  }
  spec::Program out = given;
  drop_ops(out, gone);
  return out;
}

}  // namespace

spec::Program rewrite_program(const spec::Program& given, const PlanOptions& options) {
  return split_attention(fold_twins(fold_norms(drop_selects(given), options), options), options);
}

void drop_ops(spec::Program& program, const std::vector<bool>& gone) {
  std::vector<spec::Op> kept;
  std::vector<spec::OpId> now;
  for (std::size_t i = 0; i < gone.size(); ++i) {
    now.push_back(static_cast<spec::OpId>(kept.size()));
    if (!gone[i]) kept.push_back(std::move(program.ops[i]));
  }
  program.ops = std::move(kept);
  for (spec::Report& report : program.reports) report.op = now[report.op];
}

std::int64_t typical_value(const spec::Program& program, const spec::Expr& e) {
  std::vector<std::int64_t> values;
  for (const spec::Symbol& s : program.symbols) values.push_back(s.preset.value_or(s.range.hi));
  return e.evaluate(values).value_or(e.bounds(program.symbols).hi);
}

}  // namespace ccks::codegen
