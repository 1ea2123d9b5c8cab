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

}  // namespace CCKS_ISA
}  // namespace ccks::worker
