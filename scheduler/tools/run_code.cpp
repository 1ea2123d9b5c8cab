#include "scheduler/tools/run_code.hpp"

#include <dlfcn.h>
#include <fmt/format.h>

#include <algorithm>

#include "codegen/check_plan.hpp"
#include "codegen/emit_sources.hpp"
#include "codegen/plan_rewrite.hpp"
#include "gpu/jit/jit.hpp"

namespace ccks::run {
namespace {

// The library stays loaded until the process ends: its code may run until then.
Result<Program> load_module(const std::string& module) {
  const std::string path = module.find('/') == std::string::npos ? "./" + module : module;
  void* library = dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL);
  if (library == nullptr) return {ErrorCode::invalid_data, dlerror()};
  using Entry = const GeneratedProgram* (*)();
  const auto entry = reinterpret_cast<Entry>(dlsym(library, "ccks_generated_program"));
  if (entry == nullptr)
    return {ErrorCode::invalid_data, fmt::format("{} is not a generated program: {}", path, dlerror())};
  return Program::from_generated(*entry());
}

Result<Program> generic_program(const Options& options, const CodeTarget& target) {
  SpecOptions spec;
  spec.allow_inline = options.allow_inline;
  spec.constants = options.dims;
  spec.workers_hint = target.workers;
  spec.device = target.device;
  spec.fold_norms = !options.no_fold;
  return Program::from_spec_file(options.spec, spec);
}

/// A plan whose ops name bodies of the compiled worker, and that worker.
struct Compiled {
  codegen::PlanImage plan;
  std::vector<std::byte> cubin;
};

void fill(CodeReport& report, const gpu::JitImage& image, const std::string& architecture) {
  report.kind = "jit";
  report.architecture = architecture;
  report.compiler = image.compiler;
  report.image_bytes = image.image.size();
  report.hit = image.hit;
  report.units = image.units;
  report.units_compiled = image.units_compiled;
  report.total_ms = image.total_ms;
  report.compile_ms = image.compile_ms;
  report.link_ms = image.link_ms;
  report.notice = image.notice;
}

Result<Program> jit_program(const Options& options, const spec::Program& given, const CodeTarget& target,
                            CodeReport& report) {
  codegen::PlanOptions plan_options;
  plan_options.device = "cuda";
  plan_options.workers = target.workers;
  plan_options.fold_norms = !options.no_fold;
  const spec::Program program = codegen::rewrite_program(given, plan_options);
  auto plan = codegen::make_plan(program, plan_options);
  if (!plan.ok()) return plan.status();
  CCKS_RETURN_IF_ERROR(codegen::check_plan(program, (*plan)->view()).status());
  const bool queues = options.arm == "gpu_queue";
  auto bodies = codegen::emit_bodies(program, **plan, options.allow_inline, codegen::BodyShapes::fixed);
  if (!bodies.ok()) return bodies.status();
  auto units = codegen::emit_worker_units(*bodies, queues);
  if (!units.ok()) return units.status();
  gpu::JitInput input;
  input.architecture = target.architecture;
  for (codegen::GeneratedFile& unit : *units) input.units.push_back({std::move(unit.path), std::move(unit.text)});
  auto image = gpu::jit_compile(input, gpu::jit_options_from_environment());
  if (!image.ok()) return image.status();
  fill(report, *image, target.architecture);
  auto compiled = std::make_shared<Compiled>(Compiled{**plan, std::move(image->image)});
  for (std::size_t i = 0; i < compiled->plan.ops.size(); ++i) {
    compiled->plan.ops[i].body = bodies->of_op[i];
    compiled->plan.ops[i].typical_body = bodies->typical_of_op[i];
    compiled->plan.ops[i].groups_body = bodies->groups_of_op[i];
  }
  const WorkerImage worker{.cuda_image = compiled->cubin.data(), .cuda_image_bytes = compiled->cubin.size(), .cuda_queues = queues, .cuda_row_tags = codegen::take_rows(*bodies), .cuda_relay_rows = codegen::relay_rows(*bodies), .cuda_relay_experts = codegen::take_experts(*bodies), .cuda_tags = codegen::find_tags(*bodies)};
  const plan::PlanView view = compiled->plan.view();
  return Program(std::move(compiled), view, worker);
}

bool carries_code(const spec::Program& program) {
  return std::any_of(program.ops.begin(), program.ops.end(),
                     [](const spec::Op& op) { return std::holds_alternative<spec::CustomAttrs>(op.attrs); });
}

std::string first_line(const std::string& text) { return text.substr(0, text.find('\n')); }

}  // namespace

Result<Program> load_program(const Options& options, const spec::Program& program, const CodeTarget& target,
                             CodeReport& report) {
  report = CodeReport();
  if (!options.module.empty()) {
    report.kind = "module";
    return load_module(options.module);
  }
  const bool cuda = target.device == "cuda";
  if (options.code == "jit" && !cuda)
    return {ErrorCode::invalid_argument, "--code jit compiles workers for a GPU, and this run has none"};
  const bool only_compiled = carries_code(program);
  if (cuda && options.code != "generic") {
    Result<Program> compiled = jit_program(options, program, target, report);
    if (compiled.ok() || options.code == "jit" || only_compiled) return compiled;
    report.notice = "not compiled: " + first_line(compiled.status().message());
  }
  if (only_compiled)
    return {ErrorCode::unsupported, "the program has ops given as code, which the generic worker cannot run: use --module, or "
                                    "--code jit on a GPU"};
  report.kind = "generic";
  return generic_program(options, target);
}

}  // namespace ccks::run
