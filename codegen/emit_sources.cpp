// emit_sources: fills the templates and puts a marker on every file.
#include "codegen/emit_sources.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <set>

#include "codegen/emit_text.hpp"
#include "codegen/emit_write.hpp"

namespace ccks::codegen {
namespace {

constexpr const char* kTemplates[] = {"CMakeLists.txt", "module.cpp",    "ops.hpp",
                                      "program.hpp",    "scheduler.cpp", "worker.cpp"};
constexpr const char* kManifest = "manifest.json";
constexpr const char* kCudaWorker = "worker.cu";

using Holes = std::map<std::string, std::string>;

Result<std::string> filled(const std::string& name, const Holes& holes) {
  const std::string_view text = template_text(name + ".in");
  if (text.empty()) return Status(ErrorCode::internal, fmt::format("there is no template '{}'", name));
  return fill_template(text, holes);
}

/// The program's name, unless CMake or the package itself has that name.
std::string target_name(const std::string& program) {
  static const std::set<std::string> kTaken = {
      "all",       "ALL_BUILD",     "ccks",    "clean",          "edit_cache",
      "help",      "install",       "package", "package_source", "preinstall",
      "RUN_TESTS", "rebuild_cache", "test",    "ZERO_CHECK",     "default_target"};
  const std::string name = identifier(program);
  return kTaken.contains(name) ? name + "_program" : name;
}

Status add_parts(Holes& holes, bool cuda, bool custom) {
  const auto part = [&](const char* hole, const char* name, bool wanted) -> Status {
    Result<std::string> text = wanted ? filled(name, holes) : Result<std::string>(std::string());
    if (!text) return text.status();
    holes[hole] += *text;
    return {};
  };
  CCKS_RETURN_IF_ERROR(part("CUDA", "cuda.cmake", cuda));
  CCKS_RETURN_IF_ERROR(part("IMAGE", "image", cuda));
  CCKS_RETURN_IF_ERROR(part("ADD_IMAGE", "add_image", cuda));
  const std::string structs = std::move(holes["CUSTOM"]);
  holes["CUSTOM"].clear();
  CCKS_RETURN_IF_ERROR(part("CUSTOM", "custom_support", custom));
  holes["CUSTOM"] += structs;
  return {};
}

}  // namespace

const char* generator_version() { return CCKS_VERSION; }

std::vector<std::string> generated_names() {
  std::vector<std::string> names(std::begin(kTemplates), std::end(kTemplates));
  names.insert(names.end(), {kManifest, kCudaWorker});
  std::sort(names.begin(), names.end());
  return names;
}

Result<std::vector<GeneratedFile>> emit_sources(const spec::Program& program, const PlanImage& image,
                                                const EmitOptions& options) {
  const bool cuda = options.device == "cuda";
  if (!cuda && options.device != "host")
    return Status(ErrorCode::invalid_argument, fmt::format("there is no device '{}': host or cuda", options.device));
  Result<Bodies> bodies = emit_bodies(program, image, options.allow_inline);
  if (!bodies) return bodies.status();
  Holes holes = emit_tables(image, *bodies);
  holes.insert({{"PROGRAM", comment_text(image.name)},
                {"ID", identifier(image.name)},
                {"NAMESPACE", identifier(image.name) + "_program"},
                {"TARGET", target_name(image.name)},
                {"VERSION", generator_version()},
                {"ALIASES", bodies->aliases},
                {"CASES", bodies->cases},
                {"STREAMS", may_stream(*bodies) ? "1" : "0"},
                {"ROOMY", is_roomy(*bodies) ? "1" : "0"},
                {"DECIDES", bodies->decides ? "1" : "0"},
                {"CUSTOM", bodies->custom}});
  CCKS_RETURN_IF_ERROR(add_parts(holes, cuda, !bodies->custom.empty()));
  std::vector<std::string> names(std::begin(kTemplates), std::end(kTemplates));
  if (cuda) names.push_back(kCudaWorker);
  std::vector<GeneratedFile> files;
  for (const std::string& name : names) {
    Result<std::string> text = filled(name, holes);
    if (!text) return text.status();
    files.push_back({name, with_marker(name, *text)});
  }
  files.push_back({kManifest, with_marker(kManifest, emit_manifest(image, options, files))});
  std::sort(files.begin(), files.end(), [](const GeneratedFile& a, const GeneratedFile& b) { return a.path < b.path; });
  return files;
}

}  // namespace ccks::codegen
