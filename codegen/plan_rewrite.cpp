#include "codegen/plan_rewrite.hpp"

#include "codegen/plan_fold.hpp"
#include "codegen/plan_split.hpp"
#include "codegen/plan_twin.hpp"

namespace ccks::codegen {

spec::Program rewrite_program(const spec::Program& given, const PlanOptions& options) {
  return split_attention(fold_twins(fold_norms(given, options), options), options);
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

}  // namespace ccks::codegen
