#include <nlohmann/json.hpp>

#include "codegen/viz_graph.hpp"

namespace ccks::codegen {

std::string graph_to_json(const Explanation& e) {
  using Json = nlohmann::ordered_json;
  Json json = {{"program", e.program}, {"dims", Json::object()}, {"nodes", Json::array()}, {"edges", Json::array()}};
  for (const auto& [name, value] : e.dims) json["dims"][name] = value;
  for (const ExplainedOp& op : e.ops)
    json["nodes"].push_back(
        {{"name", op.name}, {"kind", op.kind}, {"grid", op.grid}, {"tiles", op.tiles}, {"guard", op.guard}});
  for (const ExplainedWait& w : e.waits)
    json["edges"].push_back({{"from", e.ops[w.producer].name},
                             {"to", e.ops[w.consumer].name},
                             {"granularity", w.granularity},
                             {"events_per_tile", w.waited},
                             {"events", w.events},
                             {"signals_per_event", w.total},
                             {"because", w.reasons}});
  return json.dump(2, ' ', false, Json::error_handler_t::replace) + "\n";
}

}  // namespace ccks::codegen
