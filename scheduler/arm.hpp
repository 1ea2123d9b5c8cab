// Arm: how the runs of a plan reach the device. Same plan, same tile ops: what differs is who decides, and when.
#pragma once

#include <cstdint>
#include <string_view>

#include "ccks/device.hpp"

namespace ccks::scheduler {

enum class Arm : std::uint32_t {
  copilot,    // resident workers, the co-pilot thread and its policy
  fixed,      // "static": resident workers, lists only
  gpu_queue,  // resident workers, ready queues in device memory
  stream,     // one launch per op
  graph,      // one graph of such launches
  graph_pdl,  // the same with programmatic dependent launch
};

/// invalid_argument for names that are none.
Result<Arm> parse_arm(std::string_view name);
const char* arm_name(Arm arm);
/// Whether the arm has resident workers, or launches each op.
constexpr bool arm_has_workers(Arm arm) { return arm < Arm::stream; }
constexpr SequenceMode sequence_mode(Arm arm) {
  return arm == Arm::stream  ? SequenceMode::stream
         : arm == Arm::graph ? SequenceMode::graph
                             : SequenceMode::graph_overlapped;
}

}  // namespace ccks::scheduler
