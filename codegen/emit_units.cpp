// emit_worker_units: a worker in pieces, so that each is compiled once for all programs and all at the same time.
#include <fmt/format.h>

#include <algorithm>

#include "ccks/wire/task.hpp"
#include "ccks/worker/tile_hints.hpp"
#include "codegen/emit_sources.hpp"
#include "codegen/emit_text.hpp"

namespace ccks::codegen {
namespace {

Result<std::string> filled(const char* name, const std::map<std::string, std::string>& holes) {
  const std::string_view text = template_text(name);
  if (text.empty()) return Status(ErrorCode::internal, fmt::format("there is no template '{}'", name));
  return fill_template(text, holes);
}

/// Named by what it is, so that equal bodies of different programs are equal to the byte.
std::string body_name(const Bodies::Body& body) { return "ccks_body_" + content_hash(body.type + "\n" + body.custom); }
/// Whether it is two functions, one of them for blocks.
bool has_blocks(const Bodies::Body& body) { return body.type.starts_with("BlocksOp<"); }
/// Whether its function runs tiles in turn (ccks/worker/body_turns.cuh).
bool has_turns(const Bodies::Body& body) { return body.type.starts_with("TypedOp<OpCode::expert_matmul,"); }

Result<GeneratedFile> body_unit(const Bodies::Body& body, const std::map<std::string, std::string>& loop) {
  const std::string name = body_name(body);
  std::string custom;
  if (!body.custom.empty()) custom = std::string(template_text("custom_support.in")) + body.custom + "\n";
  const bool is_product = body.type.find("<OpCode::matmul,") != std::string::npos;
  auto text = filled("unit_body.cu.in", {{"CUSTOM", custom}, {"TYPE", body.type}, {"NAME", name}, {"STREAMS", loop.at("STREAMS")},
                                         {"ROW_TAGS", is_product ? loop.at("ROW_TAGS") : "0"},
                                         {"HOW", has_turns(body) ? "TURNS" : "BODY"},
                                         {"BLOCKS", has_blocks(body) ? fmt::format("CCKS_CUDA_LINKED_BLOCKS({}, ccks::generated::body::Body)\n", name) : ""}});
  if (!text) return text.status();
  return GeneratedFile{name + ".cu", std::move(*text)};
}

// Of one unit: it is compiled by one core, a second for the loop and 0.3 for a body.
constexpr std::size_t kMostInlined = 8;

/// Whether calls cost more than the sharing of units saves: a body made for one shape takes less time than to call it does.
bool inlines(const Bodies& bodies) {
  return !bodies.list.empty() && bodies.list.size() <= kMostInlined &&
         std::all_of(bodies.list.begin(), bodies.list.end(), [](const Bodies::Body& body) { return body.type.starts_with("ShapedOp<"); });
}

}  // namespace

bool is_roomy(const Bodies& bodies) { return bodies.scratch_bytes >= worker::kCudaGroupedScratchBytes; }

bool may_stream(const Bodies& bodies) {
  if (is_roomy(bodies)) return false;
  return std::any_of(bodies.list.begin(), bodies.list.end(), [](const Bodies::Body& body) {
    const bool halves = body.type.find("Dtype::bf16") != std::string::npos || body.type.find("Dtype::f16") != std::string::npos;
    return halves && body.type.find("<OpCode::matmul,") != std::string::npos;
  });
}

bool take_rows(const Bodies& bodies) { return bodies.rows_handed_on != 0 && may_stream(bodies); }
bool take_experts(const Bodies& bodies) { return bodies.routed_rows != 0 && relay_rows(bodies) == bodies.routed_rows; }
std::uint32_t relay_rows(const Bodies& bodies) { return std::max(bodies.rows_handed_on != 0 ? bodies.rows_handed_on : bodies.routed_rows, 1u); }

bool find_tags(const Bodies& bodies) {
  const auto is_product = [](const Bodies::Body& body) {
    return body.type.find("<OpCode::matmul,") != std::string::npos && body.type.find("Dtype::f32") != std::string::npos;
  };
  const auto finds = [&](const Bodies::Body& body) { return !is_product(body) || body.type.starts_with("ShapedOp<"); };
  return std::any_of(bodies.list.begin(), bodies.list.end(), is_product) && std::all_of(bodies.list.begin(), bodies.list.end(), finds);
}

namespace {

/// Walks that bodies call (ccks/worker/linked_walks.hpp), for each dtype of those that may.
Status add_walks(const Bodies& bodies, std::vector<GeneratedFile>& units) {
  constexpr std::pair<const char*, const char*> kWalks[] = {{"products", "<OpCode::matmul,"}, {"experts", "<OpCode::expert_matmul,"}, {"attention", "<OpCode::attention,"}};
  for (const auto& [name, kind] : kWalks) {
    for (const std::string type : {"bf16", "f16"}) {
      const bool wanted = std::any_of(bodies.list.begin(), bodies.list.end(), [&](const Bodies::Body& body) {
        return body.type.find(kind) != std::string::npos && body.type.find("Dtype::" + type) != std::string::npos;
      });
      if (!wanted) continue;
      auto unit = filled(fmt::format("unit_{}.cu.in", name).c_str(), {{"TYPE", type}});
      if (!unit) return unit.status();
      units.push_back({fmt::format("{}_{}.cu", name, type), std::move(*unit)});
    }
  }
  return {};
}

/// Branches to the calls of bodies [first, last): by halves, since a table of addresses lies in constant memory, which has nothing else that is wanted then.
std::string branches(const std::vector<std::string>& calls, std::size_t first, std::size_t last, const std::string& indent) {
  if (last - first == 1) return fmt::format("{}return {};\n", indent, calls[first]);
  const std::size_t middle = first + (last - first) / 2;
  return fmt::format("{}if (body < {}) {{\n", indent, middle) + branches(calls, first, middle, indent + "  ") + fmt::format("{}}} else {{\n", indent) +
         branches(calls, middle, last, indent + "  ") + fmt::format("{}}}\n", indent);
}

Result<std::vector<GeneratedFile>> inlined_unit(const Bodies& bodies, const std::map<std::string, std::string>& loop) {
  std::string cases;
  for (std::size_t i = 0; i < bodies.list.size(); ++i)
    cases += fmt::format("      case {}: return Op{}::run_inline(lanes, frame, op, tile);\n", i, i);
  std::map<std::string, std::string> holes = {{"ALIASES", bodies.aliases}, {"CASES", cases}};
  holes.insert(loop.begin(), loop.end());
  auto text = filled("unit_inlined.cu.in", holes);
  if (!text) return text.status();
  return std::vector<GeneratedFile>{{"worker.cu", std::move(*text)}};
}

}  // namespace

Result<std::vector<GeneratedFile>> emit_worker_units(const Bodies& bodies, bool with_queues) {
  const auto flag = [](bool holds) { return holds ? "1" : "0"; };
  const std::map<std::string, std::string> loop = {{"QUEUES", flag(with_queues)},
                                                   {"STREAMS", flag(may_stream(bodies))},
                                                   {"ROW_TAGS", flag(take_rows(bodies))},
                                                   {"RELAY_ROWS", std::to_string(relay_rows(bodies))},
                                                   {"DECIDES", flag(bodies.decides)},
                                                   {"ROOMY", flag(is_roomy(bodies))},
                                                   {"TURNS", flag(is_roomy(bodies) && std::any_of(bodies.list.begin(), bodies.list.end(), has_turns))},
                                                   {"TAGS", flag(find_tags(bodies))}};
  std::map<std::string, std::string> of_worker = loop;
  of_worker["RELAY_EXPERTS"] = flag(take_experts(bodies));
  if (take_experts(bodies)) of_worker["ROW_TAGS"] = "1";
  if (inlines(bodies)) return inlined_unit(bodies, of_worker);
  auto worker = filled("unit_worker.cu.in", of_worker);
  if (!worker) return worker.status();
  auto prefetch = filled("unit_prefetch.cu.in", {});
  if (!prefetch) return prefetch.status();
  std::vector<GeneratedFile> units = {{"worker.cu", std::move(*worker)}, {"prefetch.cu", std::move(*prefetch)}};
  if (!may_stream(bodies)) CCKS_RETURN_IF_ERROR(add_walks(bodies, units));
  std::string declarations;
  std::vector<std::string> of_bodies;
  for (std::size_t i = 0; i < bodies.list.size(); ++i) {
    const std::string name = body_name(bodies.list[i]);
    const bool in_turn = has_turns(bodies.list[i]);
    declarations += fmt::format("CCKS_BODY_KEEPS\nextern \"C\" __device__ unsigned {}(void*, {}const void*, const void*, unsigned);\n", name, in_turn ? "unsigned, unsigned, " : "");
    std::string call = fmt::format("{}(lanes, {}frame, op, tile)", name, in_turn ? "turns, number, " : "");
    if (has_blocks(bodies.list[i])) {
      declarations += fmt::format("CCKS_BODY_KEEPS\nextern \"C\" __device__ unsigned {}_block(const void*, const void*, unsigned);\n", name);
      call = fmt::format("has_blocks(op) ? {}_block(frame, op, tile) : {}", name, call);
    }
    of_bodies.push_back(std::move(call));
    auto unit = body_unit(bodies.list[i], loop);
    if (!unit) return unit.status();
    units.push_back(std::move(*unit));
  }
  const std::string calls = of_bodies.empty() ? "" : fmt::format("  if (body < {}) {{\n", of_bodies.size()) + branches(of_bodies, 0, of_bodies.size(), "    ") + "  }\n";
  auto text = filled("unit_switch.cu.in", {{"DECLARATIONS", declarations},
                                           {"CALLS", calls}, {"STREAMS", loop.at("STREAMS")},
                                           {"BAD_OP", fmt::format("{}u", static_cast<unsigned>(wire::FaultCode::bad_op))}});
  if (!text) return text.status();
  units.push_back({"switch.cu", std::move(*text)});
  return units;
}

}  // namespace ccks::codegen
