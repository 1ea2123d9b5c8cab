// emit_manifest: what was generated, from what. Its first line, with the opening brace, is the marker of emit_write.
#include <fmt/format.h>

#include <nlohmann/json.hpp>

#include "codegen/emit_sources.hpp"
#include "codegen/emit_text.hpp"

namespace ccks::codegen {
namespace {

using Json = nlohmann::ordered_json;

Json symbols_json(const PlanImage& image) {
  Json list = Json::array();
  for (const plan::SymbolDesc& s : image.symbols) {
    Json one = {{"name", s.name}, {"min", s.lo}, {"max", s.hi}};
    if (s.has_preset) one["default"] = s.preset;
    list.push_back(std::move(one));
  }
  return list;
}

/// Shapes as text over the symbols; nodes of the dim table are in order, so one pass names them all.
std::vector<std::string> dim_texts(const PlanImage& image) {
  constexpr const char* kInfix[] = {"", "", " + ", " - ", " * ", " // ", " % "};
  std::vector<std::string> texts;
  for (const plan::DimNode& n : image.dims) {
    switch (n.op) {
      case plan::DimOp::constant:
        texts.push_back(fmt::format("{}", n.value));
        break;
      case plan::DimOp::symbol:
        texts.push_back(image.symbols[static_cast<std::size_t>(n.value)].name);
        break;
      case plan::DimOp::ceildiv:
        texts.push_back(fmt::format("ceildiv({}, {})", texts[n.a], texts[n.b]));
        break;
      case plan::DimOp::min:
        texts.push_back(fmt::format("min({}, {})", texts[n.a], texts[n.b]));
        break;
      case plan::DimOp::max:
        texts.push_back(fmt::format("max({}, {})", texts[n.a], texts[n.b]));
        break;
      default:
        texts.push_back(fmt::format("({}{}{})", texts[n.a], kInfix[static_cast<int>(n.op)], texts[n.b]));
    }
    if (texts.back().size() > 4096) texts.back() = "...";  // shared nodes written out can grow without bound
  }
  return texts;
}

Json tensors_json(const PlanImage& image) {
  constexpr const char* kKinds[] = {"input", "weight", "state", "output", "intermediate"};
  const std::vector<std::string> dims = dim_texts(image);
  Json list = Json::array();
  for (const plan::TensorDesc& t : image.tensors) {
    if (t.kind == plan::TensorKind::intermediate) continue;
    Json one = {{"name", t.name},
                {"kind", kKinds[static_cast<int>(t.kind)]},
                {"dtype", wire::dtype_name(t.dtype)},
                {"shape", Json::array()}};
    for (std::size_t d = 0; d < t.rank; ++d) one["shape"].push_back(dims[t.shape[d]]);
    if (t.kind == plan::TensorKind::weight) one["from"] = t.source;
    one["max_bytes"] = t.max_bytes;
    list.push_back(std::move(one));
  }
  return list;
}

}  // namespace

std::string emit_manifest(const PlanImage& image, const EmitOptions& options, const std::vector<GeneratedFile>& files) {
  Json json = {{"program", image.name},
               {"generator", fmt::format("ccks-gen {}", generator_version())},
               {"spec", options.spec_name},
               {"spec_hash", options.spec_hash},
               {"plan_hash", fmt::format("{:016x}", image.hash)},
               {"device", options.device},
               {"set", Json::object()}};
  for (const auto& [name, value] : options.constants) json["set"][name] = value;
  json["dims"] = symbols_json(image);
  json["tensors"] = tensors_json(image);
  json["memory_bytes"] = {{"arena", image.arena_bytes}, {"weights", image.weight_bytes}, {"state", image.state_bytes}};
  json["files"] = Json::array();
  for (const GeneratedFile& file : files)
    json["files"].push_back({{"path", file.path}, {"bytes", file.text.size()}, {"hash", content_hash(file.text)}});
  const std::string text = json.dump(2, ' ', false, Json::error_handler_t::replace) + "\n";
  return text.substr(text.find('\n') + 1);  // the marker line opens the object
}

}  // namespace ccks::codegen
