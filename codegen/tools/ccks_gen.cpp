// ccks-gen: generate, check, explain and draw a program from its spec. The only place of codegen that prints.
#include <fmt/format.h>
#include <sys/stat.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <csignal>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <nlohmann/json.hpp>

#include "codegen/check_plan.hpp"
#include "codegen/emit_text.hpp"
#include "codegen/emit_write.hpp"
#include "codegen/explain_plan.hpp"
#include "codegen/plan_rewrite.hpp"
#include "codegen/viz_graph.hpp"
#include "spec/parse.hpp"

namespace {

using namespace ccks;
using Json = nlohmann::ordered_json;

enum ExitCode : int { kDone = 0, kSpecAtFault = 1, kUsage = 2 };

struct Arguments {
  std::string spec, output, device = "host", gpu = "h200";
  std::vector<std::string> set;
  std::uint32_t workers = 0;
  bool allow_inline = false, json = false, force = false, dot = false, no_fold = false;
  std::vector<std::pair<std::string, std::int64_t>> values;  // of `set`
};

/// One line on a terminal while something is under way; nothing anywhere else.
class Progress {
 public:
  explicit Progress(const Arguments& args) : on_(!args.json && isatty(STDERR_FILENO) != 0) {}
  ~Progress() { say(""); }
  void say(const char* what) const {
    if (on_) std::fprintf(stderr, "\r\x1b[K%s", what), std::fflush(stderr);
  }

 private:
  bool on_;
};

/// A spec parsed, planned and checked.
struct Loaded {
  spec::ParseResult parsed;
  std::shared_ptr<const codegen::PlanImage> image;
  codegen::CheckReport report;
};

int complain(const Arguments& args, ExitCode code, const std::string& message) {
  if (args.json)
    fmt::print("{}\n", Json{{"ok", false}, {"error", message}}.dump(2, ' ', false, Json::error_handler_t::replace));
  else
    fmt::print(stderr, "ccks-gen: error: {}\n", message);
  return code;
}

int complain(const Arguments& args, const Status& status) {
  const bool usage = status.code() == ErrorCode::io_error || status.code() == ErrorCode::unavailable ||
                     status.code() == ErrorCode::out_of_range;
  return complain(args, usage ? kUsage : kSpecAtFault, status.message());
}

bool print(const std::string& text) {
  return std::fwrite(text.data(), 1, text.size(), stdout) == text.size() && std::fflush(stdout) == 0;
}

int printed(const Arguments& args, const std::string& text) {
  return print(text) ? kDone : complain(args, kUsage, "cannot write to standard output");
}

int report_diagnostics(const Arguments& args, const spec::ParseResult& parsed) {
  if (args.json)
    fmt::print("{{\"ok\": false, \"diagnostics\": {}}}\n", spec::diagnostics_to_json(parsed));
  else
    fmt::print(stderr, "{}", spec::format_diagnostics(parsed));
  return kSpecAtFault;
}

bool parse_set(Arguments& args, std::string& why) {
  for (const std::string& text : args.set) {
    const std::size_t equals = text.find('=');
    const char* digits = text.c_str() + (equals == std::string::npos ? 0 : equals + 1);
    char* end = nullptr;
    errno = 0;
    const long long value = std::strtoll(digits, &end, 10);
    if (equals == 0 || equals == std::string::npos || end == digits || *end != '\0' || errno != 0) {
      why = fmt::format("--set wants NAME=INTEGER, not '{}'", text);
      return false;
    }
    args.values.emplace_back(text.substr(0, equals), value);
  }
  return true;
}

/// kDone and `out` filled, or an exit code and everything said.
int load(Arguments& args, Loaded& out) {
  std::string why;
  if (!parse_set(args, why)) return complain(args, kUsage, why);
  struct stat info;
  if (stat(args.spec.c_str(), &info) != 0 || access(args.spec.c_str(), R_OK) != 0)
    return complain(args, kUsage, fmt::format("cannot read '{}': {}", args.spec, std::strerror(errno)));
  const Progress progress(args);
  progress.say("reading");
  spec::ParseOptions parse;
  parse.allow_inline = args.allow_inline;
  parse.constants = args.values;
  out.parsed = spec::parse_file(args.spec, parse);
  if (!out.parsed.ok) return report_diagnostics(args, out.parsed);
  if (!out.parsed.diagnostics.empty() && !args.json) fmt::print(stderr, "{}", spec::format_diagnostics(out.parsed));
  progress.say("planning");
  codegen::PlanOptions plan;
  plan.device = args.device;
  plan.workers = args.workers;
  plan.fold_norms = !args.no_fold;
  out.parsed.program = codegen::rewrite_program(out.parsed.program, plan);
  auto image = codegen::make_plan(out.parsed.program, plan);
  if (!image) return complain(args, image.status());
  out.image = *image;
  progress.say("checking");
  out.report = codegen::check_plan(out.parsed.program, out.image->view());
  return kDone;
}

/// The spec is not to blame for an unsound plan, but it cannot run either.
int refuse_unsound(const Arguments& args, const Loaded& loaded) {
  return complain(args, kSpecAtFault, loaded.report.status().message());
}

// ---- the commands
// -----------------------------------------------------------------------------------------------------

Json check_json(const Loaded& l) {
  Json json = {{"ok", l.report.ok()},
               {"program", l.image->name},
               {"ops", l.image->ops.size()},
               {"waits", l.image->waits.size()},
               {"points", Json::array()},
               {"tiles_checked", l.report.tiles},
               {"sampled", l.report.sampled},
               {"faults", Json::array()},
               {"diagnostics", Json::parse(spec::diagnostics_to_json(l.parsed), nullptr, false)}};
  for (const auto& point : l.report.points) {
    Json dims = Json::object();
    for (std::size_t i = 0; i < point.size(); ++i) dims[l.parsed.program.symbols[i].name] = point[i];
    json["points"].push_back(std::move(dims));
  }
  for (const codegen::PlanFault& f : l.report.faults)
    json["faults"].push_back({{"code", f.code}, {"message", f.message}});
  return json;
}

int run_check(Arguments& args) {
  Loaded l;
  if (const int code = load(args, l); code != kDone) return code;
  if (args.json) {
    const int code = printed(args, check_json(l).dump(2, ' ', false, Json::error_handler_t::replace) + "\n");
    return code == kDone && !l.report.ok() ? kSpecAtFault : code;
  }
  if (!l.report.ok()) return refuse_unsound(args, l);
  return printed(args, fmt::format("{}: sound. {} ops, {} waits, checked at {} set{} of dims{}\n", l.image->name,
                                   l.image->ops.size(), l.image->waits.size(), l.report.points.size(),
                                   l.report.points.size() == 1 ? "" : "s",
                                   l.report.sampled ? "; tiles of large ops were sampled" : ", every tile"));
}

Result<codegen::Explanation> explained(const Arguments& args, const Loaded& l) {
  const Result<codegen::GpuFigures> gpu = codegen::gpu_figures(args.gpu);
  if (!gpu) return gpu.status();
  const auto dims = codegen::choose_dims(l.parsed.program, args.values);
  if (!dims) return dims.status();
  return codegen::explain_plan(l.parsed.program, *l.image, *dims, *gpu);
}

int run_explain(Arguments& args) {
  if (const auto gpu = codegen::gpu_figures(args.gpu); !gpu) return complain(args, kUsage, gpu.status().message());
  Loaded l;
  if (const int code = load(args, l); code != kDone) return code;
  const auto explanation = explained(args, l);
  if (!explanation) return complain(args, explanation.status());
  std::string text =
      args.json ? codegen::explanation_to_json(*explanation) : codegen::explanation_to_text(*explanation);
  if (!args.json && !l.report.ok()) text += "\nTHIS PLAN IS REFUSED: " + l.report.status().message() + "\n";
  const int code = printed(args, text);
  return code == kDone && !l.report.ok() ? kSpecAtFault : code;
}

int run_viz(Arguments& args) {
  Loaded l;
  if (const int code = load(args, l); code != kDone) return code;
  const auto explanation = explained(args, l);
  if (!explanation) return complain(args, explanation.status());
  std::string text = args.json ? codegen::graph_to_json(*explanation) : codegen::graph_to_dot(*explanation);
  if (!args.json && !args.dot) {
    const Progress progress(args);
    progress.say("drawing");
    auto svg = codegen::dot_to_svg(text);
    if (!svg) return complain(args, svg.status());
    text = std::move(*svg);
  }
  if (args.output.empty() || args.output == "-") return printed(args, text);
  const Status written = codegen::write_file(args.output, text);
  return written.ok() ? kDone : complain(args, written);
}

codegen::EmitOptions emit_options(const Arguments& args, const Loaded& l) {
  codegen::EmitOptions options;
  options.device = args.device;
  options.allow_inline = args.allow_inline;
  options.spec_name = std::filesystem::path(args.spec).filename().string();
  std::string all;
  for (const std::string& source : l.parsed.sources) all += fmt::format("{}:{}", source.size(), source);
  options.spec_hash = codegen::content_hash(all);
  options.constants = args.values;
  return options;
}

/// Ctrl-C waits until all files are in place: it takes milliseconds.
Status write_uninterrupted(const Arguments& args, const std::vector<codegen::GeneratedFile>& files) {
  sigset_t interrupts, before;
  sigemptyset(&interrupts);
  for (const int signal : {SIGINT, SIGTERM, SIGHUP}) sigaddset(&interrupts, signal);
  sigprocmask(SIG_BLOCK, &interrupts, &before);
  Status written = codegen::write_generated(args.output, files, args.force);
  sigprocmask(SIG_SETMASK, &before, nullptr);
  return written;
}

int run_generate(Arguments& args) {
  if (args.output.empty()) return complain(args, kUsage, "where to? -o DIR");
  Loaded l;
  if (const int code = load(args, l); code != kDone) return code;
  if (!l.report.ok()) return refuse_unsound(args, l);
  const auto files = codegen::emit_sources(l.parsed.program, *l.image, emit_options(args, l));
  if (!files) return complain(args, files.status());
  const Status written = write_uninterrupted(args, *files);
  if (!written.ok()) return complain(args, kUsage, written.message());
  if (!args.json) return printed(args, fmt::format("{}: {} files in {}\n", l.image->name, files->size(), args.output));
  Json json = {{"ok", true},
               {"program", l.image->name},
               {"device", args.device},
               {"directory", args.output},
               {"files", Json::array()}};
  for (const auto& file : *files) json["files"].push_back(file.path);
  return printed(args, json.dump(2, ' ', false, Json::error_handler_t::replace) + "\n");
}

// ---- the command line
// -------------------------------------------------------------------------------------------------

void add_common(CLI::App& app, Arguments& args) {
  app.add_option("SPEC", args.spec, "the spec, a YAML file")->type_name("FILE");
  app.add_option("--set", args.set, "value of a dim, e.g. n=17 or layers=2; may be repeated")
      ->type_name("NAME=INTEGER");
  app.add_option("--device", args.device, "what tiles are chosen for: host or cuda")
      ->check(CLI::IsMember({"host", "cuda"}))
      ->capture_default_str();
  app.add_option("--workers", args.workers, "how many workers tiles are chosen for; 0: the device's default")
      ->capture_default_str();
  app.add_flag("--allow-inline", args.allow_inline, "accept code in the spec (op custom); for specs that you trust");
  app.add_flag("--no-fold", args.no_fold, "norms stay ops of their own, and do not become part of the products that read them");
  app.add_flag("--json", args.json, "print JSON on standard output, errors too");
}

int run(int argc, char** argv) {
  Arguments args;
  CLI::App app(
      "Generates a worker and a host scheduler from a spec, or says what it would do.\n\n"
      "  ccks-gen SPEC -o DIR      generate sources that build against the installed package\n"
      "  ccks-gen check SPEC       plan it and prove the plan sound\n"
      "  ccks-gen explain SPEC     ops, dependencies, memory, work, and the floor on a GPU\n"
      "  ccks-gen viz SPEC         draw it (SVG, through Graphviz)",
      "ccks-gen");
  app.footer("Exit codes: 0 done, 1 the spec is at fault, 2 wrong usage or a file that cannot be read or written.");
  app.set_version_flag("--version", std::string("ccks-gen ") + codegen::generator_version());
  add_common(app, args);
  app.add_option("-o,--output", args.output, "folder to write to; made if need be")->type_name("DIR");
  app.add_flag("--force", args.force, "overwrite files that ccks-gen did not write, or that were edited");
  CLI::App* check = app.add_subcommand("check", "plan the spec and prove the plan sound");
  CLI::App* explain = app.add_subcommand("explain", "ops, derived dependencies, memory, work, floor time");
  CLI::App* viz = app.add_subcommand("viz", "draw ops and tiles as SVG");
  for (CLI::App* sub : {check, explain, viz}) add_common(*sub, args);
  explain->add_option("--gpu", args.gpu, "a100, h100, gh200, h200, b200, or TB/s,TFLOPS such as 4.8,900")
      ->capture_default_str();
  viz->add_option("-o,--output", args.output, "file to write; standard output if absent")->type_name("FILE");
  viz->add_flag("--dot", args.dot, "print the DOT source instead; needs no Graphviz");
  app.require_subcommand(0, 1);
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& e) {
    return app.exit(e) == 0 ? kDone : kUsage;
  }
  if (args.spec.empty()) return complain(args, kUsage, "which SPEC? See --help");
  if (*check) return run_check(args);
  if (*explain) return run_explain(args);
  if (*viz) return run_viz(args);
  return run_generate(args);
}

}  // namespace

int main(int argc, char** argv) {
  try {
    return run(argc, argv);
  } catch (const std::exception& e) {  // out of memory, mostly: libraries above throw nothing of their own
    std::fprintf(stderr, "ccks-gen: error: %s\n", e.what());
    return kUsage;
  }
}
