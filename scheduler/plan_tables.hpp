// What the scheduler derives from a plan once, when it is loaded: the op graph, the stretches that need no report, and the
// layout of frames.
#pragma once

#include <cstdint>
#include <span>
#include <string_view>
#include <vector>

#include "ccks/plan.hpp"
#include "ccks/result.hpp"
#include "ccks/wire/frame.hpp"
#include "ccks/wire/task.hpp"

namespace ccks::scheduler {

inline bool share_bytes(const plan::TensorDesc& a, const plan::TensorDesc& b) {
  return a.space == b.space && a.offset < b.offset + b.max_bytes && b.offset < a.offset + a.max_bytes;
}

/// What of a plan goes out as lists in its frames, one task starting many, and what as tiles.
enum class Spine : std::uint8_t {
  tiles,      // everything tile by tile
  fitting,    // a stretch whose tasks are many and short as lists (Instance decides at the dims), others as tiles
  stretches,  // every stretch as lists
  whole,      // the whole plan as one list per worker, held ops too: what the device cannot know it finds empty
};

/// Byte offsets of a frame's tables: the same for all dims, since only values change.
struct FrameLayout {
  std::uint32_t ops, operands, waits, signals, guards, code, bases, blocks, lists, list_tasks;
  std::uint32_t records;  // in the place of list_tasks: the lists of a frame are of one kind or the other
  std::uint32_t max_bytes;
};

/// A stretch is a set of ops that can be sent in one go, without a report: those that the same held ops stand before. Ops
/// held by a report belong to none. Stretches are numbered in an order in which they can be sent.
struct Stretch {
  std::uint32_t first_op, ops;            // into stretch_ops; in plan order, so producers first
  std::uint32_t inputs;                   // edges into it from ops outside
  std::uint32_t first_output, outputs;    // into stretch_outputs: ops outside that consume from it, one per edge
  std::uint32_t first_report, reports;    // into stretch_reports: reports that its ops publish
};

/// An op and those of its dims that follow from a symbol: `count` of PlanTables::varying_dims from `first` on.
struct VaryingOp {
  std::uint32_t op, first, count;
};

/// A product that may take its input, another's output, from a tagged copy (tagged_edges.hpp).
struct TaggedEdge {
  std::uint32_t producer, consumer;  // ops
  std::uint32_t output, input;       // their operands
  std::uint64_t tensor, copy;        // offsets in the arena
  bool alone;                        // the tags say all that anybody has to know of the producer, if they do so of its own input
};

/// A row of 16-bit floats that a product may take by its tags (overtaking.hpp): what it multiplies, or what its epilogue reads.
struct RowEdge {
  std::uint32_t producer, consumer;  // ops
  std::uint32_t output, input;       // their operands
  std::uint64_t tensor, copy;        // offsets in the arena
  std::uint32_t elements;            // of the row
};

/// What is found out once of an op that may be part of a relay (relays.hpp), and room for what it leaves in words: offsets in the arena, 0: none.
struct RelayPlace {
  bool fits = false;            // as far as its kind goes
  std::uint64_t row = 0;        // its first output's
  std::uint32_t elements = 0;   // of that row, or of all its rows
  bool floats = false;          // words of one each, f32: a route's logits
  std::uint64_t parts = 0;      // of an attention whose context tiles share out; of an argmax: ranks
  std::uint64_t part_words = 0; // of all of them
};

/// PlanTables is immutable after make_plan_tables and shared by all threads.
struct PlanTables {
  plan::PlanView plan;
  std::uint32_t workers = 0;
  Spine spine = Spine::tiles;
  FrameLayout layout{};
  // Direct successors and number of direct predecessors of each op, from the waits.
  std::vector<std::uint32_t> successor_first;  // ops + 1
  std::vector<std::uint32_t> successors;
  std::vector<std::uint32_t> predecessors;
  // Ops held back until report r has arrived.
  std::vector<std::uint32_t> held_first;  // reports + 1
  std::vector<std::uint32_t> held;
  std::vector<std::uint32_t> op_report;  // per op: report it publishes, or kNone. Here because OpDesc is many lines
  std::vector<std::uint8_t> op_held;     // per op: waits for a report before it may be sent
  std::vector<std::uint32_t> op_holder;  // per op: that report, or kNone
  std::vector<std::uint32_t> op_decider; // per op whose guards are nested (wire::GuardParams): the op of the last one's report; kNone: others
  std::vector<std::uint8_t> op_silent;   // per op: neither it nor any op it waits for touches memory (wire::kOpSilent)
  std::vector<wire::BlockRef> blocks;    // per op: its block in a frame
  std::vector<std::uint32_t> operand_op; // per operand: the op it belongs to
  std::vector<TaggedEdge> tagged;        // none where workers take tasks
  std::vector<RowEdge> rows;             // find_row_edges
  std::vector<std::uint8_t> row_ends;    // per op: it is an end of one of them; empty: there are none
  std::vector<RelayPlace> relay_places;  // per op: find_relays; empty: frames have no relays
  std::vector<std::uint32_t> last_writers;  // per operand that an op reads: the op in front of it that has written there last; kNone. With relay_places
  std::vector<std::uint8_t> operand_fed; // per operand: an input, which a run may have elsewhere than in the slot's arena (Instance::feed). With relay_places
  std::uint32_t relay_steps = 0;         // wire::RelayStep that a frame has room for
  std::uint32_t relay_rows = 1;          // of each of their products
  bool relay_experts = false;            // workers know of experts that a route has chosen
  std::uint64_t arena_bytes = 0;         // of a slot, with tagged copies and words of relays behind what the plan has there
  // Runs of one state instance that follow each other on the device: every op without waits, but those of `early`, waits for `turn_event`, to which
  // each worker adds 1 once it has done with the run before. kNone: the scheduler keeps them apart.
  std::uint32_t turn_event = plan::kNone;
  std::uint32_t event_count = 0;         // of a slot, with that one
  std::vector<std::uint8_t> early;       // per op: nothing it reads or writes is another run's, so it may run before its run's turn. With turn_event
  // What may change from run to run without a new frame: dims that no grid, event or report hangs on, and the ops that use some.
  std::vector<plan::DimId> fixed_dims;   // those that must not change
  std::vector<VaryingOp> varying_ops;    // in what they compute
  std::vector<VaryingOp> varying_waits;  // in their waits, which may name the same events all the same
  std::vector<plan::DimId> varying_dims;
  std::vector<std::int64_t> typical_dims; // at the program's typical sizes; empty where there is no value
  std::uint32_t record_capacity = 0;     // wire::TileRecord that a frame has room for; 0: workers take tasks
  // Stretches; none with Spine::tiles.
  std::vector<Stretch> stretches;
  std::vector<std::uint32_t> stretch_of;  // per op; kNone
  std::vector<std::uint32_t> stretch_ops, stretch_outputs, stretch_reports;

  std::uint32_t op_count() const { return static_cast<std::uint32_t>(plan.ops.size()); }
  std::uint32_t report_count() const { return static_cast<std::uint32_t>(plan.reports.size()); }
  std::uint32_t stretch_count() const { return static_cast<std::uint32_t>(stretches.size()); }
  /// Lists of a frame: list `worker` of stretch s is number s * workers + worker.
  std::uint32_t list_count() const { return stretch_count() * workers; }
  std::span<const plan::DimId> dims_of(const VaryingOp& op) const { return std::span(varying_dims).subspan(op.first, op.count); }
  /// Whether workers' bodies of products find tags, whatever their rows (WorkerImage::cuda_tags): then some need no events.
  bool finds_tags = false;
  bool chained() const { return turn_event != plan::kNone; }
  /// Whether `op` begins a run: what all others but early ones wait for, directly or not.
  bool takes_turn(std::uint32_t op) const { return chained() && plan.ops[op].wait_count == 0 && early[op] == 0; }
  std::span<const std::uint32_t> successors_of(std::uint32_t op) const {
    return std::span(successors).subspan(successor_first[op], successor_first[op + 1] - successor_first[op]);
  }
  std::span<const std::uint32_t> held_by(std::uint32_t report) const {
    return std::span(held).subspan(held_first[report], held_first[report + 1] - held_first[report]);
  }
  std::span<const std::uint32_t> ops_of(const Stretch& s) const {
    return std::span(stretch_ops).subspan(s.first_op, s.ops);
  }
  std::span<const std::uint32_t> outputs_of(const Stretch& s) const {
    return std::span(stretch_outputs).subspan(s.first_output, s.outputs);
  }
  std::span<const std::uint32_t> reports_of(const Stretch& s) const {
    return std::span(stretch_reports).subspan(s.first_report, s.reports);
  }
};

/// `workers`: those that a run is on. make_plan_tables refuses a plan whose indices point outside its tables or whose waits do not follow the op order:
/// plans may come from a file that somebody made. `records`: workers read lists as wire::TileRecord. `chain`: see turn_event;
/// only where the program has state and its order can be kept on the device.
Result<PlanTables> make_plan_tables(const plan::PlanView& plan, std::uint32_t workers, Spine spine,
                                    bool records = false, bool chain = false);

/// Which spine `name` asks for: auto, lists, tiles; invalid_argument for others.
Result<Spine> parse_spine(std::string_view name);

}  // namespace ccks::scheduler
