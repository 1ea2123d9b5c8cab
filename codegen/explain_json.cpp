// explanation_to_json: the same numbers, units in the names.
#include <fmt/format.h>

#include <nlohmann/json.hpp>

#include "codegen/explain_plan.hpp"

namespace ccks::codegen {
namespace {

using Json = nlohmann::ordered_json;

Json op_json(const ExplainedOp& op) {
  return {{"name", op.name},
          {"kind", op.kind},
          {"grid", op.grid},
          {"tile", op.tile},
          {"tiles", op.tiles},
          {"dynamic", op.dynamic},
          {"guard", op.guard},
          {"bytes_read", op.bytes_read},
          {"bytes_written", op.bytes_written},
          {"operations", op.operations},
          {"floor_us", op.floor_us},
          {"predicted_us", {{"body", op.body_us}, {"begin", op.begin_us}, {"end", op.end_us}}}};
}

Json wait_json(const Explanation& e, const ExplainedWait& w) {
  return {{"consumer", e.ops[w.consumer].name},
          {"producer", e.ops[w.producer].name},
          {"granularity", w.granularity},
          {"events", w.events},
          {"events_per_tile", w.waited},
          {"signals_per_event", w.total},
          {"because", w.reasons}};
}

Json tensor_json(const ExplainedTensor& t) {
  return {{"name", t.name},         {"kind", t.kind},      {"dtype", t.dtype}, {"shape", t.shape},
          {"space", t.space},       {"offset", t.offset},  {"bytes", t.bytes}, {"max_bytes", t.max_bytes},
          {"first_op", t.first_op}, {"last_op", t.last_op}};
}

}  // namespace

std::string explanation_to_json(const Explanation& e) {
  Json json = {{"program", e.program}, {"plan_hash", fmt::format("{:016x}", e.hash)}, {"dims", Json::object()}};
  for (const auto& [name, value] : e.dims) json["dims"][name] = value;
  json["ops"] = Json::array();
  for (const ExplainedOp& op : e.ops) json["ops"].push_back(op_json(op));
  json["dependencies"] = Json::array();
  for (const ExplainedWait& w : e.waits) json["dependencies"].push_back(wait_json(e, w));
  json["implied_dependencies"] = e.dropped_waits;
  json["buffers"] = Json::array();
  for (const ExplainedTensor& t : e.tensors) json["buffers"].push_back(tensor_json(t));
  json["memory_bytes"] = {{"arena", e.arena_bytes},    {"arena_unplanned", e.unplanned_arena_bytes},
                          {"weights", e.weight_bytes}, {"state", e.state_bytes},
                          {"reports", e.report_bytes}, {"scratch_per_worker", e.scratch_bytes}};
  json["events"] = e.event_count;
  json["totals"] = {{"tiles", e.tiles},
                    {"bytes_read", e.bytes_read},
                    {"bytes_written", e.bytes_written},
                    {"operations", e.operations},
                    {"compulsory_bytes", e.compulsory_bytes}};
  json["floor"] = {{"gpu", e.gpu.name},
                   {"source", e.gpu.source},
                   {"bytes_per_s", e.gpu.bytes_per_s},
                   {"operations_per_s", e.gpu.operations_per_s},
                   {"us", e.floor_us},
                   {"op_by_op_us", e.op_by_op_us}};
  if (e.predicted_us > 0)
    json["prediction"] = {{"us", e.predicted_us},
                          {"bodies_us", e.predicted_busy_us},
                          {"workers", e.predicted_workers},
                          {"source", e.predicted_by}};
  json["advice"] = e.advice;
  // Names are checked to be ASCII; `replace` keeps a stray byte from throwing.
  return json.dump(2, ' ', false, Json::error_handler_t::replace) + "\n";
}

}  // namespace ccks::codegen
