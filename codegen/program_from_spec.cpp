// Program from a spec at run time: parse, plan, check.
#include <thread>

#include "ccks/program.hpp"
#include "codegen/check_plan.hpp"
#include "codegen/plan_image.hpp"
#include "codegen/plan_rewrite.hpp"
#include "spec/parse.hpp"

namespace ccks {
namespace {

spec::ParseOptions parse_options(const SpecOptions& options) {
  spec::ParseOptions parse;
  parse.allow_inline = options.allow_inline;
  parse.constants = options.constants;
  return parse;
}

codegen::PlanOptions plan_options(const SpecOptions& options) {
  codegen::PlanOptions plan;
  plan.device = options.device;
  plan.workers = options.workers_hint;
  plan.fold_norms = options.fold_norms;
  // A GPU's default is the planner's; here the machine that plans is the one that runs.
  if (plan.workers == 0 && options.device == "host") plan.workers = std::thread::hardware_concurrency();
  return plan;
}

Result<Program> program_of(const spec::ParseResult& parsed, const SpecOptions& options) {
  if (!parsed.ok) return {ErrorCode::invalid_data, spec::format_diagnostics(parsed)};
  const codegen::PlanOptions plan = plan_options(options);
  const spec::Program program = codegen::rewrite_program(parsed.program, plan);
  auto image = codegen::make_plan(program, plan);
  if (!image) return image.status();
  CCKS_RETURN_IF_ERROR(codegen::check_plan(program, (*image)->view()).status());
  const plan::PlanView view = (*image)->view();
  return Program(std::move(*image), view, WorkerImage{});
}

}  // namespace

Result<Program> Program::from_spec_file(const std::string& path, const SpecOptions& options) {
  return program_of(spec::parse_file(path, parse_options(options)), options);
}

Result<Program> Program::from_spec_text(const std::string& text, const std::string& name, const SpecOptions& options) {
  return program_of(spec::parse_text(text, name, parse_options(options)), options);
}

}  // namespace ccks
