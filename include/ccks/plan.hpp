// The plan image: what codegen makes of a program and the scheduler runs. Tables of plain structs, so that generated
// sources hold them as constants and the in-process path as vectors. Everything symbolic is a DimId: an index into
// `dims`, evaluated once per set of dim values. Mirrors wire/frame.hpp field by field.
#pragma once

#include <cstdint>
#include <span>

#include "ccks/wire/frame.hpp"
#include "ccks/wire/op_layout.hpp"

namespace ccks::plan {

using wire::Dtype;
using DimId = std::uint32_t;
inline constexpr std::uint32_t kNone = 0xffffffffu;

enum class DimOp : std::uint8_t { constant, symbol, add, sub, mul, floordiv, floormod, ceildiv, min, max };

/// Node i may only refer to nodes before i: one pass in order gives all values.
struct DimNode {
  DimOp op;
  std::uint32_t a, b;   // nodes
  std::int64_t value;   // constant, or symbol index
};

struct SymbolDesc {
  const char* name;
  std::int64_t lo, hi;
  std::int64_t preset;  // used where dispatch gives no value; only if has_preset
  bool has_preset;
};

/// A symbol that counts the rows of sequences of different lengths, one after another (RaggedRows in ccks/ragged.hpp). Where a run gives their lengths its
/// value follows from them, and so do the inputs `tables`: [begin, end) of each row's sequence, of each sequence, and each row's place in its own;
/// kNone: that no op reads.
struct RaggedDesc {
  std::uint32_t symbol;
  DimId count;                        // sequences
  std::int64_t length_lo, length_hi;  // of one
  std::int64_t pad, round;
  std::uint32_t tables[3];            // TensorDesc: reach, spans, position
};

enum class Relation : std::uint8_t { equal, less_equal };

/// Checked at submit, before any task is sent (R2).
struct CheckDesc {
  Relation relation;
  DimId lhs, rhs;
  const char* message;
};

enum class TensorKind : std::uint8_t { input, weight, state, output, intermediate };

/// A tensor a client can bind or read, always contiguous row-major. Intermediates are listed for tools only.
struct TensorDesc {
  const char* name;
  const char* source;        // weights: name in the checkpoint
  Dtype dtype;
  TensorKind kind;
  std::uint8_t rank;
  DimId shape[4];            // outermost first, `rank` of them
  wire::Space space;
  std::uint64_t offset;      // bytes from the base of its space: fixed for all dims
  std::uint64_t max_bytes;   // at the upper bounds of all symbols
};

struct OperandDesc {
  wire::Space space;
  Dtype dtype;
  std::uint8_t rank;
  std::uint8_t flags;        // wire::OperandFlags that hold for all dims
  std::uint32_t tensor;      // TensorDesc, for tools and the checker
  DimId offset;              // bytes from the base of the space
  DimId dim[4];
  DimId stride[4];
};

struct WaitAxisDesc {
  std::int32_t grid_axis;
  DimId step, offset, length, extent, block, stride;
};

struct WaitDesc {
  std::uint32_t signal;      // SignalDesc whose events these are
  std::uint32_t producer;    // op
  WaitAxisDesc axis[2];
};

struct SignalDesc {
  std::uint32_t op;             // producer
  std::uint32_t event_first;
  std::uint32_t event_max;      // events reserved: count at the upper bounds
  DimId event_count;
  DimId total;
  std::int32_t grid_axis[2];
  DimId stride[2];
};

struct GuardDesc {
  std::uint64_t offset;         // arena
  std::uint32_t compare;        // wire::Compare
  bool is_float;
  double value;
  std::uint32_t report;         // ReportDesc
};

struct OpDesc {
  const char* name;
  wire::OpCode kind;
  std::uint8_t flags;           // wire::OpFlags
  std::uint16_t body;
  std::uint16_t typical_body;   // where its shape is that of typical_symbols (plan_eval.hpp); else `body`, which takes any
  std::uint16_t groups_body;    // where it is kOpGroups (wire/op_shape.hpp), whatever its shape
  DimId grid[4], tile[4], dims[8];
  float scalars[4];
  std::uint32_t operand_first;
  std::uint16_t input_count, output_count;
  std::uint32_t wait_first, wait_count;
  std::uint32_t signal_first, signal_count;
  std::uint32_t guard_first, guard_count;
  std::uint32_t code_first, code_count;
  std::uint32_t report;         // ReportDesc or kNone
  std::uint32_t dynamic_report; // kOpDynamic: the report that holds `count`, else kNone
  std::uint8_t counted_rank;    // kOpDynamic: the counted dim is this axis of the grid, from the last (1) outwards; all axes outside it have one tile.
                                // 0: of experts, axis 2
  DimId bytes_read, bytes_written, operations;  // of the whole op, for explain and cost models
};

struct ReportDesc {
  const char* name;
  std::uint32_t op;
  std::uint32_t operand;        // absolute index into operands
  Dtype dtype;                  // i32 or f32
  DimId elements;
  std::uint32_t offset;         // into the slot's report area
  std::uint32_t max_bytes;
};

/// PlanView borrows the tables; whoever made them must outlive it. Ops are in a topological order of the waits.
struct PlanView {
  const char* name = "";
  std::uint64_t hash = 0;       // of the program's canonical text: names record files and generated modules
  std::span<const SymbolDesc> symbols;
  std::span<const DimNode> dims;
  std::span<const RaggedDesc> ragged;
  std::span<const CheckDesc> checks;
  std::span<const TensorDesc> tensors;
  std::span<const OpDesc> ops;
  std::span<const OperandDesc> operands;
  std::span<const WaitDesc> waits;
  std::span<const SignalDesc> signals;
  std::span<const GuardDesc> guards;
  std::span<const wire::ExprInstr> code;
  std::span<const ReportDesc> reports;
  std::uint32_t event_count = 0;      // per slot, at the upper bounds
  std::uint32_t max_tasks = 0;        // tiles of all ops at the upper bounds: bounds every list
  std::uint32_t report_bytes = 0;     // per slot
  std::uint64_t arena_bytes = 0;      // per slot: inputs, outputs, intermediates
  std::uint64_t weight_bytes = 0;
  std::uint64_t state_bytes = 0;      // per state instance
  std::uint32_t scratch_bytes = 0;    // per worker, wanted by the tile ops of this plan
};

// evaluate_dims, which gives the values of `dims`, is in ccks/plan_eval.hpp.

}  // namespace ccks::plan
