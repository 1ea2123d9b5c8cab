#include "scheduler/arm.hpp"

#include <fmt/format.h>

namespace ccks::scheduler {
namespace {

constexpr Arm kArms[] = {Arm::copilot, Arm::fixed, Arm::gpu_queue, Arm::stream, Arm::graph, Arm::graph_pdl};

}  // namespace

const char* arm_name(Arm arm) {
  switch (arm) {
    case Arm::copilot:
      return "copilot";
    case Arm::fixed:
      return "static";
    case Arm::gpu_queue:
      return "gpu_queue";
    case Arm::stream:
      return "stream";
    case Arm::graph:
      return "graph";
    case Arm::graph_pdl:
      return "graph_pdl";
  }
  return "unknown";
}

Result<Arm> parse_arm(std::string_view name) {
  for (const Arm arm : kArms) {
    if (name == arm_name(arm)) return arm;
  }
  return {ErrorCode::invalid_argument,
          fmt::format("no arm '{}': there are copilot, static, gpu_queue, stream, graph and graph_pdl", name)};
}

}  // namespace ccks::scheduler
