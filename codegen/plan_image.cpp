#include "codegen/plan_image.hpp"

namespace ccks::codegen {

const char* granularity_name(Granularity granularity) {
  switch (granularity) {
    case Granularity::automatic:
      return "automatic";
    case Granularity::whole:
      return "whole";
    case Granularity::row:
      return "row";
    case Granularity::tile:
      return "tile";
  }
  return "unknown";
}

const char* dependency_kind_name(DependencyKind kind) {
  switch (kind) {
    case DependencyKind::raw:
      return "read-after-write";
    case DependencyKind::war:
      return "write-after-read";
    case DependencyKind::waw:
      return "write-after-write";
    case DependencyKind::reuse:
      return "reuse";
    case DependencyKind::guard:
      return "guard";
  }
  return "unknown";
}

plan::PlanView PlanImage::view() const {
  plan::PlanView v;
  v.name = name.c_str();
  v.hash = hash;
  v.symbols = symbols;
  v.dims = dims;
  v.ragged = ragged;
  v.checks = checks;
  v.tensors = tensors;
  v.ops = ops;
  v.operands = operands;
  v.waits = waits;
  v.signals = signals;
  v.guards = guards;
  v.code = code;
  v.reports = reports;
  v.event_count = event_count;
  v.max_tasks = max_tasks;
  v.report_bytes = report_bytes;
  v.arena_bytes = arena_bytes;
  v.weight_bytes = weight_bytes;
  v.state_bytes = state_bytes;
  v.scratch_bytes = scratch_bytes;
  return v;
}

}  // namespace ccks::codegen
