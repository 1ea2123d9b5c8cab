// What a tile can ask for before its inputs are there: windows of streamed operands (weights, inputs of the program).
#pragma once

#include "ccks/worker/call.hpp"

namespace ccks::worker {
inline namespace CCKS_ISA {

// The host's own prefetcher follows a stream once it has begun: a few lines hide the first misses. A GPU has none. Of each tile
// its workers ask for 16 KiB: with 96 (25 MB of all workers, two tiles ahead) a Llama step took 1,529 us on an H200 and with none
// 1,373, because what a body needs next, its code first of all, then stands behind it in the queue to memory.
#if defined(__CUDACC__)
inline constexpr u32 kPrefetchLines = 128;
#else
inline constexpr u32 kPrefetchLines = 32;
#endif

/// Rows [r0, r0 + rows) x columns [c0, c0 + columns) of a matrix, line by line along its contiguous axis.
CCKS_INLINE void prefetch_window(u32 lane, u32 lanes, const u8* base, i64 row_stride, i64 column_stride, u32 rows,
                                 u32 columns, u32 element_bytes) {
  if (rows == 0 || columns == 0) return;
  const bool turned = column_stride != 1 && row_stride == 1;
  const u32 along = turned ? rows : columns, across = turned ? columns : rows;
  const i64 stride = turned ? column_stride : row_stride;
#if defined(__CUDACC__)
  // Short runs go line by line: an H200 takes longer for a bulk request of 32 bytes than for a line (six layers of 256 rows
  // each a tile: 55 us, 31 with lines).
  const u32 bytes = along * element_bytes;
  if (bytes >= 1024 && ((static_cast<u64>(stride) * element_bytes | bytes | reinterpret_cast<u64>(base)) & 15) == 0) {
    constexpr u32 kMost = kPrefetchLines * wire::kCacheLineBytes;
    const u32 runs = least(across, most(1u, kMost / bytes));
    for (u32 i = lane; i < runs; i += lanes) prefetch_bytes(base + i * stride * element_bytes, least(bytes, kMost));
    return;
  }
#endif
  const u32 per_row = ceil_div(along * element_bytes, wire::kCacheLineBytes);
  const u32 lines = least(per_row * across, kPrefetchLines);
  for (u32 i = lane; i < lines; i += lanes)
    prefetch_line(base + (i / per_row) * stride * element_bytes + (i % per_row) * wire::kCacheLineBytes);
}

CCKS_INLINE void prefetch_operand(u32 lane, u32 lanes, const Call& call, u32 index, i32 row, u32 rows, i32 column,
                                  u32 columns, i32 c1) {
  const OperandParams& p = call.operands[index];
  if ((p.flags & wire::kOperandStreamed) == 0) return;
  const u32 bytes = wire::dtype_bytes(static_cast<Dtype>(p.dtype));
  const i64 at = c1 * p.stride[1] + row * p.stride[2] + column * p.stride[3];
  prefetch_window(lane, lanes, operand_base(call.frame, p) + at * bytes, p.stride[2], p.stride[3], rows, columns,
                  bytes);
}

CCKS_INLINE void prefetch_tile(u32 lane, u32 lanes, const Call& call, u32 tile) {
  if (call.op.input_count == 0 || tile >= call.op.tile_count) return;
  const Box box = tile_box(call.op, tile, call.operands[call.op.input_count].dim);
  const u32 rows = static_cast<u32>(box.size[2]), columns = static_cast<u32>(box.size[3]);
  switch (static_cast<OpCode>(call.op.kind)) {
    case OpCode::matmul:
      prefetch_operand(lane, lanes, call, 0, box.lo[2], rows, 0, static_cast<u32>(call.operands[0].dim[3]), box.lo[1]);
      prefetch_operand(lane, lanes, call, 1, 0, static_cast<u32>(call.operands[1].dim[2]), box.lo[3], columns,
                       box.lo[1]);
      if (const u32 weight = static_cast<u32>(call.op.dims[wire::kNormDim]); weight != 0)
        prefetch_operand(lane, lanes, call, weight, 0, 1, 0, static_cast<u32>(call.operands[weight].dim[3]), 0);
      return;
    case OpCode::map:
      for (u32 i = 0; i < call.op.input_count; ++i)
        prefetch_operand(lane, lanes, call, i, box.lo[2], rows, box.lo[3], columns, box.lo[1]);
      return;
    case OpCode::rmsnorm:
    case OpCode::layernorm:
      for (u32 i = 1; i < call.op.input_count; ++i)
        prefetch_operand(lane, lanes, call, i, 0, 1, 0, static_cast<u32>(call.operands[i].dim[3]), 0);
      return;
    default:
      return;
  }
}

/// All of columns [j0, j0 + columns) of matrix `at` of operand `index`, line by line or in bulk: somebody wants all of it soon, and nothing else of it.
CCKS_INLINE void prefetch_columns(u32 lane, u32 lanes, const Call& call, u32 index, u32 at, u32 j0, u32 columns) {
  const OperandParams& p = call.operands[index];
  if (at >= static_cast<u32>(p.dim[1]) || j0 >= static_cast<u32>(p.dim[3])) return;
  const u32 bytes = wire::dtype_bytes(static_cast<Dtype>(p.dtype)), here = least(columns, static_cast<u32>(p.dim[3]) - j0), k = static_cast<u32>(p.dim[2]);
  const bool along_k = p.stride[2] == 1;
  const u32 across = along_k ? here : k, run = (along_k ? k : here) * bytes;
  const u64 pitch = static_cast<u64>(along_k ? p.stride[3] : p.stride[2]) * bytes;
  const u8* base = operand_base(call.frame, p) + (static_cast<i64>(at) * p.stride[1] + static_cast<i64>(j0) * p.stride[3]) * bytes;
  const bool whole = ((pitch | run | reinterpret_cast<u64>(base)) & 15) == 0;
  CCKS_NO_UNROLL
  for (u32 i = lane; i < across; i += lanes) {
    const u8* from = base + i * pitch;
    if (whole) {
      prefetch_bytes(from, run);
    } else {
      for (u32 byte = 0; byte < run; byte += wire::kCacheLineBytes) prefetch_line(from + byte);
    }
  }
}

/// What a task with wire::kTaskFetch asks for; nothing, of an op that is no product of experts.
CCKS_INLINE void prefetch_experts(u32 lane, u32 lanes, const Call& call, const wire::Task& task) {
  if (static_cast<OpCode>(call.op.kind) != OpCode::expert_matmul || call.op.grid[3] <= 0) return;
  const u32 width = static_cast<u32>(call.op.grid[3]), columns = static_cast<u32>(call.op.tile[3]);
  CCKS_NO_UNROLL
  for (u32 tile = task.first_tile(); tile < task.first_tile() + task.tile_count(); ++tile) {
    prefetch_columns(lane, lanes, call, 1, tile / width, tile % width * columns, columns);
    if (call.op.dims[wire::kTwinDim] != 0)
      prefetch_columns(lane, lanes, call, static_cast<u32>(call.op.dims[wire::kEpilogueDim]), tile / width, tile % width * columns, columns);
  }
}

}  // namespace CCKS_ISA
}  // namespace ccks::worker
