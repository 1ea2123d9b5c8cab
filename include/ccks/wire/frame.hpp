// The run frame: everything a worker needs to know about one run slot. The host fills it when the dims of a slot
// change and no task of the slot is in flight; workers only read it. All offsets are bytes from the frame's start.
#pragma once

#include "ccks/wire/dtype.hpp"

namespace ccks::wire {

/// Where an operand's bytes live.
enum class Space : u8 {
  arena = 0,
  weights = 1,
  state = 2,
  absolute = 3,  // an offset is an address: only in the blocks of ops (BlockRef)
};

/// One operand of an op: a strided window, right-aligned to rank 4 (missing leading dims: extent 1, stride 0).
struct OperandParams {
  u64 offset;     // bytes from the base of `space`
  i64 stride[4];  // elements; 0 where broadcast
  i32 dim[4];     // extents
  u8 space;       // Space
  u8 dtype;       // Dtype
  u8 rank;        // rank in the program, 0 to 4
  u8 flags;       // OperandFlags
  u32 tags;       // bytes from the operand to its tagged copy (tagged_value); 0: it has none
};
static_assert(sizeof(OperandParams) == 64);

/// A tagged copy holds the f32 values of a small tensor once more, each in one word of eight bytes with the tag of the run that wrote it. Such
/// a word is read whole or not at all, so a body that finds its run's tag has the value, whatever else of its producer is still on its way:
/// it overtakes the event that says the same of a whole tile. Element i of an operand has word i of its copy. Nothing else lies there,
/// one op writes it, each element once a run. Who finds no tag waits for the event and reads the tensor itself.
/// A row of 16-bit floats has two of them in a word: elements 2i and 2i + 1 of an operand, the even one in the low half, in word i of its copy.
CCKS_HD constexpr u32 value_tag(u32 epoch) { return epoch + 1; }  // 0: no tag; what memory begins with
CCKS_HD constexpr u64 tagged_value(u32 bits, u32 tag) { return u64{tag} << 32 | bits; }

enum OperandFlags : u8 {
  kOperandContiguous = 1,  // row-major without gaps
  kOperandStreamed = 2,    // depends on no other op of the run (weights, inputs): may be prefetched before the wait
  kOperandTagsAlone = 4,   // one end of an edge of which tags say all there is to know: nobody waits for its events (scheduler/tagged_edges.hpp)
};

/// One axis of an event range, see WaitParams. grid_axis < 0: the whole axis, all `extent / block` blocks.
struct WaitAxis {
  i32 grid_axis;  // which coordinate of the tile moves the window; -1: none
  i32 step;       // base index = coordinate * step + offset
  i32 offset;     // may be negative (padding); in the producer's coordinates
  i32 length;     // indices read from there
  i32 extent;     // indices that exist in the producer's window: clipped to [0, extent)
  i32 block;      // indices per event along this axis
  i32 stride;     // events from one block to the next; 0 where the axis is not split
  i32 reserved;
};

/// A tile waits until every event of a rectangle has been signalled `total` times in this run. The rectangle is
/// [lo0, hi0) x [lo1, hi1) with lo = clip(c * step + offset) / block, hi = ceil(clip(c * step + offset + length) / block).
/// A window clipped to nothing waits for nothing.
struct WaitParams {
  u32 event_first;
  u32 total;       // signals each of these events gets in one run
  WaitAxis axis[2];
  u32 producer;    // op index, for messages
  u32 decides;     // 1: for the report of the op's last guard, where its guards are nested (GuardParams)
  u32 reserved[4];
};
static_assert(sizeof(WaitParams) == 96);

/// A finished tile adds 1 to one event: event_first + coordinate[grid_axis[i]] * stride[i] over i = 0, 1.
struct SignalParams {
  u32 event_first;
  u32 total;         // signals each event of the group gets in one run; the same for every event of the group
  i32 grid_axis[2];  // -1: not split
  i32 stride[2];
  u32 event_count;   // events of the group that exist at these dims
  u32 reserved;
};
static_assert(sizeof(SignalParams) == 32);

enum class Compare : u32 { eq = 0, ne = 1, lt = 2, le = 3, gt = 4, ge = 5 };

/// A tile of a guarded op runs only if `word <compare> value` holds for each of its guards (parents first). A tile whose
/// guard fails signals its events like any other. The report op's event is always among the op's waits.
///
/// Guards are nested where each report's op has the guards in front of it: then it is made only where they hold, and once the last one's event is
/// there all can be looked at. Either that report was made, and so were the others; or its op was passed over for a guard in front, whose
/// report is there, and what the words behind that say decides nothing. A tile that is not to run then waits for nothing else: its events tell
/// no more than that those reports are there, which is all that plans rely on.
struct GuardParams {
  u64 offset;    // bytes from the arena's base: element 0 of the report's tensor, i32 or f32
  u32 compare;   // Compare
  u32 is_float;
  union {
    i32 int_value;
    float float_value;
  };
  u32 reserved[3];
};
static_assert(sizeof(GuardParams) == 32);

/// Instruction of an element expression: register machine, up to kMaxExprRegisters registers. ints are i64, bools 0/1 in i64.
struct ExprInstr {
  u8 op;   // ExprOp
  u8 dst;  // register
  u8 a;
  u8 b;
  u32 c;   // third register (select), argument index, output dim (of rank 4), or the bits of an f32 / i32 constant
};
static_assert(sizeof(ExprInstr) == 8);
inline constexpr u32 kMaxExprRegisters = 32;

/// Suffix f: on f32; i: on i64. Comparisons give i64 0/1. Semantics as spec::ExprFn.
enum class ExprOp : u8 {
  const_f, const_i, arg_f, arg_i, index_i,
  add_f, sub_f, mul_f, div_f, mod_f, min_f, max_f, pow_f,
  add_i, sub_i, mul_i, div_i, mod_i, min_i, max_i,
  neg_f, abs_f, floor_f, ceil_f, round_f, sign_f, neg_i, abs_i, sign_i,
  exp_f, log_f, sqrt_f, rsqrt_f, sin_f, cos_f, tanh_f, erf_f, sigmoid_f, silu_f, gelu_f, gelu_tanh_f, relu_f, softplus_f,
  lt_f, le_f, eq_f, ne_f, lt_i, le_i, eq_i, ne_i,  // gt, ge: operands swapped
  and_i, or_i, not_i,
  select_f, select_i,  // dst = a != 0 ? b : c
  f_from_i, i_from_f,  // i_from_f truncates; to_bool is ne with zero
};

/// One op of a run, dims resolved. `kind` fixes which tile op runs, `body` which instantiation in generated workers.
/// Operands: inputs as in spec::Op::inputs, then outputs. Tile space: rank 4, see op_layout.hpp.
struct OpParams {
  u8 kind;            // OpCode, op_layout.hpp
  u8 flags;           // OpFlags
  u16 body;           // generated workers: index of the instantiation; generic workers ignore it
  u32 tile_count;     // product of grid
  i32 grid[4];        // tiles along each dim of the tile space
  i32 tile[4];        // extent of a tile along each
  i32 dims[8];        // by kind, op_layout.hpp
  float scalars[4];   // by kind
  u32 operand_first;  // index into the frame's operands
  u16 input_count;
  u16 output_count;
  u32 wait_first;
  u32 signal_first;
  u16 wait_count;
  u16 signal_count;
  u32 guard_first;
  u16 guard_count;
  u16 code_count;     // instructions of the map expression or epilogue; 0: identity
  u32 code_first;
  i32 report;         // report index this op publishes, -1: none
  u32 report_operand; // operand whose bytes are published
  u32 report_offset;  // bytes into the slot's report area
  u32 report_bytes;
  u64 operands;       // address of the op's operands in a copy that a worker made for itself; 0 in frames
};
static_assert(sizeof(OpParams) == 144);

enum OpFlags : u8 {
  kOpDynamic = 1,  // some tiles may not exist: the body of an expert_matmul finds out and does nothing for them; rows behind a count (OpDesc::counted_rank) run, and nobody reads them
  kOpSilent = 2,   // neither this op nor any op it waits for, directly or not, stores anything: its signals publish nothing
  // Of frames only, see op_shape.hpp.
  kOpFlat = 4,     // a map: tile t is elements [t * dims[0], (t + 1) * dims[0]) of dims[1], in memory order in every operand
  kOpVectors = 8,  // every operand can be read and written in vectors of four, with offsets of 32 bits; matmul: one product a
                   // tile, dims[0] is a ProductBody, dims[1] is 1 where vectors of b run along k
  kOpEarly = 16,   // a matmul whose body fetches b, which no op writes, and then waits itself until its other inputs are there
  kOpStreams = 32, // a matmul whose b, weights in columns, may come to the body through the ring of a worker that has one
  kOpGroups = 64,  // a matmul or attention of tiles of many rows, 16-bit floats that lie in packets: for matrix units, warps together
  kOpBlocks = 128, // a kOpGroups matmul of blocks that no others share, whose output and operands of the epilogue lie in packets: their sums may stay in registers to the end
};

/// Where everything a worker needs of one op lies together, so that one copy fetches it:
/// OpParams, OperandParams[input_count + output_count], GuardParams[], WaitParams[], SignalParams[]. The indices in that
/// OpParams still refer to the frame's tables; its operands in arena and weights are Space::absolute.
struct BlockRef {
  u32 offset = 0;  // from the frame's start, a multiple of 16; 0: no block
  u32 bytes = 0;   // a multiple of 16
};

/// A list in the frame: tasks for one worker.
struct ListParams {
  u32 first;  // index into the frame's list tasks, or into its records
  u32 count;
};

inline constexpr u32 kRecordWaits = 8;
inline constexpr u32 kRecordSignals = 4;

enum TileRecordFlags : u8 {
  kRecordBody = 1,      // the op's body runs; otherwise the record only waits and signals, for a neighbour with too many of either
  kRecordGuarded = 2,   // the op has guards, so its block is fetched with them
  kRecordSilent = 4,    // the op is kOpSilent
  kRecordStreamed = 8,  // some operands may be prefetched before the wait
  kRecordState = 16,    // some operands lie in Space::state
  kRecordCut = 32,      // made by a worker that cuts a task into tiles: no task of a list, and its waits lack their events' bases
  kRecordJoined = 64,   // nobody else waits for the record before, nor this one for anybody else: it may run right behind it
  kRecordEarly = 128,   // the body begins before its inputs are there: a record that waits is of an op that is kOpEarly, without guards, and, if that is
                        // kOpStreams, may take its rows by their tags (scheduler/overtaking.hpp); one without waits is of a strand whose inputs have tags
                        // alone (kOperandTagsAlone)
};

/// When a record's guards are looked at.
enum class GuardTime : u8 {
  behind_waits = 0,
  behind_first = 1,  // nested ones: behind the record's first wait
  seen = 2,          // a record of the same tile in front has waited for them
};

/// One tile of a list, with what its op's tables say of it found out by the host: a worker copies the record and is ready.
/// Left out are waits for what earlier records of the list have waited for or completed, and signals that nobody waits for.
struct alignas(16) TileRecord {
  u32 tile;
  u16 op;
  u8 flags;          // TileRecordFlags
  u8 wait_count;
  u32 block_offset;  // of the op's block, as BlockRef, and the part of it that the record does not replace
  u16 block_bytes;
  u8 signal_count;
  GuardTime guards;
  u32 wait_event[kRecordWaits];
  u32 wait_from[kRecordWaits];   // an event has to stand at wait_from + (epoch - epoch0) * wait_total
  u32 wait_total[kRecordWaits];
  u32 signal_event[kRecordSignals];
};
static_assert(sizeof(TileRecord) == 128);

/// RunFrame is the head of a frame. Events of the slot are u32 counters in device memory that only ever grow;
/// an event e is complete for the run of `epoch` when counter[e] - (base[e] + (epoch - epoch0) * total) - total, taken as i32, is >= 0.
struct alignas(16) RunFrame {
  // Roles  written by the host while the slot is idle; read by workers after the first task of the run [see ring.hpp]
  u64 arena;    // addresses
  u64 weights;
  u64 state;
  u64 events;   // u32 counters of this slot
  u64 reports;  // report area of this slot, visible to the host
  u32 epoch0;   // epoch at which `bases` hold
  u32 op_count;
  u32 list_count;
  u32 ops;       // byte offsets from the frame's start
  u32 operands;
  u32 waits;
  u32 signals;
  u32 guards;
  u32 code;
  u32 bases;     // u32 per event
  u32 lists;     // ListParams
  u32 list_tasks;
  u32 frame_bytes;
  u32 event_count;
  u32 blocks;    // BlockRef per op, or 0: this frame has none
  u32 records;   // TileRecord: what lists hold instead of tasks, or 0
  u64 queue;     // address of the slot's QueueHead (queue.hpp), or 0: this frame has none
};
static_assert(sizeof(RunFrame) == 112);

}  // namespace ccks::wire
