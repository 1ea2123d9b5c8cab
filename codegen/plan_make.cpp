#include "codegen/plan_internal.hpp"

namespace ccks::codegen {

Result<std::shared_ptr<const PlanImage>> make_plan(const spec::Program& program, const PlanOptions& options) {
  if (options.device != "host" && options.device != "cuda")
    return {ErrorCode::invalid_argument, "plans are made for 'host' or 'cuda', not for '" + options.device + "'"};
  Planner planner{program, options};
  for (const spec::Symbol& s : program.symbols) planner.typical.push_back(s.preset.value_or(s.range.hi));
  CCKS_RETURN_IF_ERROR(lower_ops(planner));
  CCKS_RETURN_IF_ERROR(plan_memory(planner));
  derive_edges(planner);
  prune_edges(planner);
  return write_tables(planner);
}

}  // namespace ccks::codegen
