// explain: a plan at one set of dims in numbers a person can judge.
#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "codegen/explain_gpu.hpp"
#include "codegen/plan_image.hpp"

namespace ccks::codegen {

struct ExplainedOp {
  std::string name, kind, guard;  // guard: the condition in words, empty where there is none
  std::array<std::int64_t, 4> grid{}, tile{};
  std::int64_t tiles = 0, bytes_read = 0, bytes_written = 0, operations = 0;
  bool dynamic = false;
  double floor_us = 0;  // of this op alone, everything from device memory
  double body_us = 0, begin_us = 0, end_us = 0;  // predicted: of one tile; of all of them, since the run began
};

struct ExplainedWait {
  std::uint32_t producer = 0, consumer = 0;
  std::string granularity;  // whole, row (one axis split), tile (two)
  std::string reasons;      // "read-after-write of 'h'", ...
  std::int64_t events = 0;  // in the group
  std::int64_t total = 0;   // signals each of them gets
  std::int64_t waited = 0;  // events that one tile of the consumer waits for, at most
};

struct ExplainedTensor {
  std::string name, kind, dtype, space;
  std::vector<std::int64_t> shape;
  std::uint64_t offset = 0, bytes = 0, max_bytes = 0;
  std::int64_t first_op = -1, last_op = -1;  // -1: never
};

struct Explanation {
  std::string program;
  std::uint64_t hash = 0;
  std::vector<std::pair<std::string, std::int64_t>> dims;
  std::vector<ExplainedOp> ops;
  std::vector<ExplainedWait> waits;
  std::uint64_t dropped_waits = 0;       // implied by others
  std::vector<ExplainedTensor> tensors;  // those with storage of their own
  std::uint64_t arena_bytes = 0, unplanned_arena_bytes = 0, weight_bytes = 0, state_bytes = 0, report_bytes = 0;
  std::uint64_t event_count = 0, scratch_bytes = 0;
  std::int64_t tiles = 0, bytes_read = 0, bytes_written = 0, operations = 0;
  std::int64_t compulsory_bytes = 0;  // weights, inputs, states and outputs touched, each once
  GpuFigures gpu;
  double floor_us = 0;     // compulsory bytes and all operations, perfectly overlapped
  double op_by_op_us = 0;  // each op through device memory, nothing overlapped between ops
  double predicted_us = 0;         // of a run on workers that stay (predict_plan.hpp); 0: no costs of this GPU were measured
  double predicted_busy_us = 0;    // of it, bodies, averaged over the workers
  std::uint32_t predicted_workers = 0;
  std::string predicted_by;        // where the costs come from
  std::string advice;      // whether this is worth it, in a few sentences
};

/// explain_plan evaluates `image` with `dims[id]` for each symbol.
Result<Explanation> explain_plan(const spec::Program& program, const PlanImage& image,
                                 std::span<const std::int64_t> dims, const GpuFigures& gpu);
std::string explanation_to_text(const Explanation& explanation);
std::string explanation_to_json(const Explanation& explanation);

/// Values for all symbols: from `given`, else the preset, else the least. out_of_range, not_found with the names there
/// are.
Result<std::vector<std::int64_t>> choose_dims(const spec::Program& program,
                                              const std::vector<std::pair<std::string, std::int64_t>>& given);

}  // namespace ccks::codegen
