// What can be said of an op once, where its frame is made, so that no worker has to find it out tile by tile: a body on a GPU
// takes some five cycles for each instruction before its first load.
//
// mark_shape   sets kOpFlat, kOpVectors, kOpStreams and kOpGroups, and the dims that go with them
#pragma once

#include "ccks/wire/frame.hpp"
#include "ccks/wire/op_layout.hpp"

namespace ccks::wire {

inline constexpr i32 kMarkedLanes = 256;  // of the workers that look at marks
inline constexpr u32 kCoordinateDim = 6;  // of a kOpVectors op: where a tile's coordinates stand in its number
inline constexpr i32 kStreamedDepth = 512;     // k of a kOpStreams op, at least: a copy is a run along k, and short runs cost as much
inline constexpr i32 kStreamedResults = 1024;  // of a tile of one, at most: eight warps keep sums of each in 32 KiB

// Of a tile of a kOpGroups matmul: rows and columns at most, and at least.
inline constexpr i32 kGroupedTile = 128, kGroupedColumns = 256, kGroupedLeastRows = 9, kGroupedLeastColumns = 33;
inline constexpr u32 kBlockOperands = 6;  // of a kOpBlocks op, at most
inline constexpr i32 kNarrowTile = 64;  // up to as many rows, by kGroupedTile columns, such a tile may be product_narrow.hpp's
inline constexpr i32 kRoutedTile = 256;  // rows of an expert that product_routed.hpp takes at a time
/// Columns of the block that a tile of n is for them, of which as many are there.
CCKS_HD constexpr u32 product_columns(u32 n) { return n <= 64 ? 64 : n <= 128 ? 128 : n <= 192 ? 192 : 256; }

/// Bodies of a kOpVectors matmul, dims[0].
enum class ProductBody : i32 {
  none = 0,
  row,         // one row, up to 128 columns; b in rows
  four_rows,   // up to four, eight
  eight_rows,
  turned_row,  // the same of b in columns, up to 256 of them
  turned_four_rows,
  turned_eight_rows,
  head,        // up to 64 x 64, all of a and b in scratch at once, a vector of each a lane
  block,       // up to 64 x 64
};

/// Of a map, select or report: elements of a tile, 0: operands do not lie in the order of the output's elements; elements of all tiles. As kOpFlat, for any number of them.
inline constexpr u32 kTileElementsDim = 2, kAllElementsDim = 3;
/// Bodies of a reduce for lanes in warps, dims[kReduceBodyDim].
enum class ReduceBody : i32 {
  none = 0,  // rows along the reduced axes in front of the last lie unevenly, or offsets take more than 32 bits
  elements,
  vectors,   // floats, in vectors of four along axis 3
};
/// Of a reduce: its body; rows along the reduced axes in front of the last, and elements from one to the next; elements of one along axis 3, where that is reduced. Then
/// kCoordinateDim.
inline constexpr u32 kReduceBodyDim = 2, kReducedRowsDim = 3, kReducedStrideDim = 4, kReducedWidthDim = 5;

/// Of an attention that no decode step is, dims[4] being 0: dims of a head, up to kMostQueryDims, and queries of a kv head from bit 16 on, 0: not for attention_queries.hpp; heads of
/// a tile. Beside those kCoordinateDim.
inline constexpr u32 kQueryDim = 5, kTileHeadsDim = 7;
inline constexpr i32 kMostQueryDims = 256;

inline constexpr u32 kRowDim = 6;  // of a rope with a table, and of an argmax that tiles share out
/// Queries of a kv head that a body for a decode step takes at a time.
inline constexpr u32 kStepQueries = 8;
/// Queries of a kv head up to which other bodies take a tile of attention whose rows have no limits (worker/tile_hints.hpp).
inline constexpr i32 kFewQueries = 32;
/// Of a context whose positions tiles share out (worker/attention_split.hpp): a part has at least kLeastPart, where there are more, since
/// bringing parts together takes as long as a few hundred; parts begin at multiples of kPartStep.
inline constexpr u32 kLeastPart = 128, kPartStep = 32;
CCKS_HD constexpr u32 part_count(u32 context, u32 most_parts) {
  const u32 parts = context == 0 ? 1 : (context + kLeastPart - 1) / kLeastPart;
  return parts < most_parts ? parts : most_parts;
}

/// Whether tiles of a matmul share out its depth (op_layout.hpp).
CCKS_HD constexpr bool shares_depth(const OpParams& op) { return op.output_count == 3; }

namespace detail {

/// Whether tiles, in order, cover the elements of a row-major tensor in order, each the same number.
CCKS_HD constexpr bool tiles_in_order(const OpParams& op, const i32 (&dim)[4]) {
  bool single = true, outermost = true;  // of all dims outside of this one: extent 1 a tile; extent 1
  for (int i = 0; i < 4; ++i) {
    if (dim[i] <= 0) return false;
    const i32 tile = op.tile[i] < dim[i] ? op.tile[i] : dim[i];
    if (!single && tile != dim[i]) return false;
    if (tile != dim[i] && !outermost && dim[i] % tile != 0) return false;
    single = single && tile == 1;
    outermost = outermost && dim[i] == 1;
  }
  return true;
}

CCKS_HD constexpr bool same_elements(const OperandParams& a, const OperandParams& b) {
  return (a.flags & kOperandContiguous) != 0 && a.dim[0] == b.dim[0] && a.dim[1] == b.dim[1] && a.dim[2] == b.dim[2] &&
         a.dim[3] == b.dim[3];
}

CCKS_HD constexpr void mark_flat(OpParams& op, const OperandParams* operands) {
  const u32 count = u32{op.input_count} + op.output_count;
  const OperandParams& out = operands[count - 1];
  if (!tiles_in_order(op, out.dim)) return;
  i64 tile = 1, all = 1;
  for (int i = 0; i < 4; ++i) {
    tile *= op.tile[i] < out.dim[i] ? op.tile[i] : out.dim[i];
    all *= out.dim[i];
  }
  if (tile % 4 != 0 || all % 4 != 0 || all > 0x7fffffff) return;
  for (u32 i = 0; i < count; ++i) {
    if (!same_elements(operands[i], out) || operands[i].offset % 16 != 0) return;
  }
  op.flags |= kOpFlat;
  op.dims[0] = static_cast<i32>(tile);
  op.dims[1] = static_cast<i32>(all);
}

/// dims from kTileElementsDim on. One element lies in order wherever it is.
CCKS_HD constexpr void mark_elements(OpParams& op, const OperandParams* operands) {
  const u32 count = u32{op.input_count} + op.output_count;
  const OperandParams& out = operands[count - 1];
  op.dims[kTileElementsDim] = 0;
  if (!tiles_in_order(op, out.dim)) return;
  i64 tile = 1, all = 1;
  for (int i = 0; i < 4; ++i) {
    tile *= op.tile[i] < out.dim[i] ? op.tile[i] : out.dim[i];
    all *= out.dim[i];
  }
  if (all > 0x7fffffff) return;
  for (u32 i = 0; i < count && all > 1; ++i) {
    if (!same_elements(operands[i], out)) return;
  }
  op.dims[kTileElementsDim] = static_cast<i32>(tile);
  op.dims[kAllElementsDim] = static_cast<i32>(all);
}

inline constexpr i64 kSmallOffsets = i64{1} << 28;    // elements of eight bytes at most, in bytes of 32 bits with room to add
inline constexpr i64 kColumnOffsets = i64{1} << 32;  // of weights in columns: elements of 32 bits, bytes of 64
/// Whether vectors of four elements along `axis` (stride 1) begin at multiples of 16 bytes at most, and all offsets are below `most`.
CCKS_HD constexpr bool in_vectors(const OperandParams& o, int axis, i64 most = kSmallOffsets) {
  i64 last = 0;
  for (int i = 0; i < 4; ++i) {
    if (o.dim[i] <= 0 || o.stride[i] < 0) return false;
    if (i == axis ? o.stride[i] != 1 : o.dim[i] > 1 && o.stride[i] % 4 != 0) return false;
    last += (o.dim[i] - 1) * o.stride[i];
  }
  return o.offset % 16 == 0 && last < most;
}
/// in_vectors holds; whether the same is so of eight elements: 16 bytes of the smaller floats.
CCKS_HD constexpr bool in_packets(const OperandParams& o, int axis) {
  for (int i = 0; i < 4; ++i) {
    if (i != axis && o.dim[i] > 1 && o.stride[i] % 8 != 0) return false;
  }
  return true;
}
/// The same for an operand that broadcasts: along axis 3 it may stand still, and then need not be aligned.
CCKS_HD constexpr bool in_vectors_or_still(const OperandParams& o) {
  if (o.stride[3] != 0) return in_vectors(o, 3);
  i64 last = 0;
  for (int i = 0; i < 3; ++i) {
    if (o.dim[i] <= 0 || o.stride[i] < 0) return false;
    last += (o.dim[i] - 1) * o.stride[i];
  }
  return last < kSmallOffsets;
}

CCKS_HD constexpr i32 least(i32 a, i32 b) { return a < b ? a : b; }
CCKS_HD constexpr i32 ceil_log2(i32 v) {
  i32 log = 0;
  while ((i32{1} << log) < v) ++log;
  return log;
}

/// Lines of a piece in scratch: a power of two, four at least.
CCKS_HD constexpr i32 lines_log(i32 lines) { return lines <= 4 ? 2 : ceil_log2(lines); }

/// Which body takes a tile of m x n results over k; none: too large for any.
CCKS_HD constexpr ProductBody product_body(i32 m, i32 n, i32 k, bool down) {
  if (!down && m <= 8 && n <= 128) return m == 1 ? ProductBody::row : m <= 4 ? ProductBody::four_rows : ProductBody::eight_rows;
  if (down && m <= 8) {
    if (n > 256 || k % 8 != 0) return ProductBody::none;
    return m == 1 ? ProductBody::turned_row : m <= 4 ? ProductBody::turned_four_rows : ProductBody::turned_eight_rows;
  }
  if (m > 64 || n > 64) return ProductBody::none;
  const i32 lines = i32{1} << lines_log(m > n ? m : n);
  return k <= 64 && lines * k <= 4 * kMarkedLanes ? ProductBody::head : ProductBody::block;
}

/// How lanes share a tile: `row` and the like: log2 of the groups of four columns. `head`, `block`: log2 of the lines of a and
/// of b, a byte each, then log2 of the lanes that share a cell of 4 x 4 results.
CCKS_HD constexpr i32 product_share(ProductBody body, i32 m, i32 n) {
  if (body <= ProductBody::eight_rows) return ceil_log2(n / 4);
  if (body <= ProductBody::turned_eight_rows) return 0;
  const i32 a = lines_log(m), b = lines_log(n), cells = a + b - 4;
  return a | b << 8 | least(ceil_log2(kMarkedLanes) - cells, 5) << 16;
}

/// Whether normed rows of a tile fit into scratch beside the sums of a body for b in columns: 48 KiB is the least that lanes have.
CCKS_HD constexpr bool normed_rows_fit(const OperandParams& a, const OperandParams& b, i32 m, i32 n) {
  const i64 row = i64{a.dim[3]} * (a.dtype == b.dtype ? dtype_bytes(static_cast<Dtype>(a.dtype)) : u32{4}) + 64;
  const i64 sums = i64{m} * ((n + 15) / 16 * 16) * (kMarkedLanes / 32) * 4, whole = i64{8} * 256 * 4;
  return m * row + (sums > whole ? sums : whole) <= i64{48} * 1024;
}

/// Whether the second b of a matmul lies as the first, so that whoever walks along one walks along both.
CCKS_HD constexpr bool is_twin(const OperandParams& b, const OperandParams& other) {
  for (int i = 0; i < 4; ++i) {
    if (b.dim[i] != other.dim[i] || b.stride[i] != other.stride[i]) return false;
  }
  return b.dtype == other.dtype && b.space == other.space && b.flags == other.flags && other.offset % 16 == 0;
}

/// The product is one of few rows, b in columns; whether b can come through a ring. Of weights only: what programs are given anew
/// is written beside resident workers, and nothing but its run's tasks says when.
CCKS_HD constexpr bool may_stream(const OpParams& op, const OperandParams* operands, i32 m, i32 n) {
  const OperandParams &a = operands[0], &b = operands[1];
  if (shares_depth(op)) return false;  // tiles with nothing to do consume nothing
  const bool weights = b.space == static_cast<u8>(Space::weights) || b.space == static_cast<u8>(Space::absolute);
  const bool halves = dtype_is_half(static_cast<Dtype>(b.dtype));
  const u32 normed = static_cast<u32>(op.dims[kNormDim]);
  if (normed != 0 && operands[normed].dtype != a.dtype && operands[normed].dtype != static_cast<u8>(Dtype::f32)) return false;
  if (!weights || !halves || a.dtype != b.dtype || (b.flags & kOperandStreamed) == 0 || op.guard_count != 0) return false;
  return a.dim[3] >= kStreamedDepth && m * ((n + 15) / 16 * 16) <= kStreamedResults;
}

/// Whether a product's rows may be of any length: those of one tile, of floats that no matrix units take, with nothing beside the product but an
/// epilogue. Bodies for b in columns finish them element by element; a single column goes as two that are the same, of one row.
CCKS_HD constexpr bool may_end_anywhere(const OpParams& op, const OperandParams* operands, u32 count) {
  const OperandParams &a = operands[0], &b = operands[1], &out = operands[count - 1];
  if (dtype_is_half(static_cast<Dtype>(a.dtype)) && dtype_is_half(static_cast<Dtype>(b.dtype))) return false;
  if (op.dims[kRopeDim] != 0 || op.dims[kTwinDim] != 0 || op.dims[kNormDim] != 0 || shares_depth(op)) return false;
  for (u32 i = 2; i < count; ++i) {
    const OperandParams& o = operands[i];
    i64 last = 0;
    for (int axis = 0; axis < 4; ++axis) {
      if (o.dim[axis] <= 0 || o.stride[axis] < 0 || (axis == 3 && o.stride[axis] > 1)) return false;
      last += (o.dim[axis] - 1) * o.stride[axis];
    }
    if (last >= kSmallOffsets) return false;
  }
  const bool wide = out.dim[3] > 1 || least(op.tile[2], out.dim[2]) == 1;
  return wide && op.tile[3] >= out.dim[3] && b.stride[3] != 1;
}

CCKS_HD constexpr bool product_in_vectors(OpParams& op, const OperandParams* operands, u32 count, bool whole) {
  const OperandParams &a = operands[0], &b = operands[1], &out = operands[count - 1];
  if (a.dim[3] <= 0 || a.dim[3] % 4 != 0 || !in_vectors(a, 3)) return false;
  const bool turns = op.dims[kRopeDim] != 0, twins = op.dims[kTwinDim] != 0;
  const bool runs = turns || twins;  // a tile has two runs of columns: two products for most bodies, one for those that stream
  if (least(op.tile[0], out.dim[0]) != (turns ? 2 : 1) || least(op.tile[1], out.dim[1]) != 1) return false;
  const bool down = b.stride[3] != 1;
  if (!in_vectors(b, down ? 2 : 3, kColumnOffsets) || b.stride[3] >= kSmallOffsets) return false;
  if (twins && !is_twin(b, operands[2])) return false;
  for (u32 i = twins ? 3 : 2; whole && i + 1 < count; ++i) {
    if (!in_vectors_or_still(operands[i])) return false;
  }
  const i32 m = least(op.tile[2], out.dim[2]), n = least(op.tile[3], out.dim[3]), columns = runs ? 2 * n : n;
  const ProductBody body = product_body(m, n, a.dim[3], down);
  if (body == ProductBody::none) return false;
  const bool turned = body >= ProductBody::turned_row && body <= ProductBody::turned_eight_rows;
  if (!turned && !whole) return false;
  if (turned && (!in_packets(a, 3) || !in_packets(b, 2))) return false;
  if (!turned && !in_vectors(b, down ? 2 : 3)) return false;
  if (op.dims[kNormDim] != 0 && (!turned || !normed_rows_fit(a, b, m, columns))) return false;
  op.dims[0] = static_cast<i32>(body);
  op.dims[1] = down ? 1 : 0;
  op.dims[2] = product_share(body, m, n);
  if (body <= ProductBody::turned_eight_rows && (b.flags & kOperandStreamed) != 0 && !shares_depth(op)) op.flags |= kOpEarly;
  if (turned && may_stream(op, operands, m, columns)) op.flags |= kOpStreams;
  return true;
}

/// Whether 16-bit floats lie along `axis` in packets of 16 bytes that begin at multiples of 16, and lines less than 2^24 bytes from one another.
CCKS_HD constexpr bool in_lines(const OperandParams& o, int axis) {
  for (int i = 0; i < 4; ++i) {
    if (o.dim[i] <= 0 || o.stride[i] < 0) return false;
    if (i == axis ? o.stride[i] != 1 : o.dim[i] > 1 && o.stride[i] % 8 != 0) return false;
  }
  return o.offset % 16 == 0 && o.stride[axis == 3 ? 2 : 3] < (i64{1} << 23);
}
CCKS_HD constexpr bool product_in_groups(const OpParams& op, const OperandParams* operands) {
  const OperandParams &a = operands[0], &b = operands[1], &out = operands[op.input_count];
  if (!dtype_is_half(static_cast<Dtype>(a.dtype)) || a.dtype != b.dtype || op.dims[kNormDim] != 0 || op.dims[kRopeDim] != 0 || op.dims[kTwinDim] != 0) return false;
  if (least(op.tile[0], out.dim[0]) != 1 || least(op.tile[1], out.dim[1]) != 1) return false;
  for (int i = 2; i < 4; ++i) {
    const i32 size = least(op.tile[i], out.dim[i]);
    if (op.tile[i] > (i == 2 ? kGroupedTile : kGroupedColumns) || size < (i == 2 ? kGroupedLeastRows : kGroupedLeastColumns)) return false;
  }
  for (u32 i = 2; i < op.input_count; ++i) {
    if (!in_vectors_or_still(operands[i])) return false;
  }
  return a.dim[3] % 8 == 0 && in_lines(a, 3) && in_lines(b, 2) && out.dim[3] % 4 == 0 && op.tile[3] % 4 == 0 && in_vectors(out, 3);
}
/// kOpBlocks, of one that is kOpGroups: one product, tiles of more rows or columns than product_narrow.hpp takes.
CCKS_HD constexpr bool product_in_blocks(const OpParams& op, const OperandParams* operands) {
  const OperandParams& out = operands[op.input_count];
  if ((shares_depth(op) && op.grid[0] > 1) || op.input_count >= kBlockOperands || out.dim[0] != 1 || out.dim[1] != 1 ||
      (op.tile[2] <= kNarrowTile && op.tile[3] <= kGroupedTile) || op.tile[3] % 8 != 0) return false;
  for (u32 i = 2; i <= op.input_count; ++i) {
    if (!dtype_is_half(static_cast<Dtype>(operands[i].dtype)) || operands[i].dim[3] % 8 != 0 || !in_lines(operands[i], 3)) return false;
  }
  return true;
}

/// Where the coordinates of a tile stand in its number: a byte for each of the axes 3, 2, 1 says how many bits are its. The
/// outermost axis that is cut takes all that are left. -1: an axis within it is not a power of two.
CCKS_HD constexpr i32 coordinate_bits(const OpParams& op) {
  i32 packed = 0;
  for (int i = 3; i >= 1; --i) {
    bool cut_outside = false;
    for (int j = 0; j < i; ++j) cut_outside = cut_outside || op.grid[j] > 1;
    const i32 bits = cut_outside ? ceil_log2(op.grid[i]) : 31;
    if (cut_outside && (i32{1} << bits) != op.grid[i]) return -1;
    packed |= bits << (8 * (3 - i));
  }
  return packed;
}

CCKS_HD constexpr void mark_vectors(OpParams& op, const OperandParams* operands) {
  const u32 count = u32{op.input_count} + 1;
  const OperandParams& out = operands[count - 1];
  const bool whole = out.dim[3] % 4 == 0 && op.tile[3] % 4 == 0 && in_vectors(out, 3);
  const bool product = static_cast<OpCode>(op.kind) == OpCode::matmul;
  if (!whole && !(product && may_end_anywhere(op, operands, count))) return;
  switch (static_cast<OpCode>(op.kind)) {
    case OpCode::matmul:
      if (!product_in_vectors(op, operands, count, whole)) return;
      break;
    case OpCode::map:
      for (u32 i = 0; i + 1 < count; ++i) {
        if (!in_vectors_or_still(operands[i])) return;
      }
      break;
    default:
      for (u32 i = 0; i + 1 < count; ++i) {
        if (!in_vectors(operands[i], 3)) return;
      }
  }
  op.flags |= kOpVectors;
  op.dims[kCoordinateDim] = coordinate_bits(op);
  if (op.dims[kCoordinateDim] == -1) op.flags &= static_cast<u8>(~kOpStreams);  // who fills the ring divides nothing
}

/// x / d is x * inverse >> 32 for x * d < 2^32; 0: d is 1.
CCKS_HD constexpr i32 inverse_of(u32 d) { return d <= 1 ? 0 : static_cast<i32>(static_cast<u32>((u64{1} << 32) / d) + 1); }

/// Whether `o` has 16-bit floats in eights along its last dim, like `like`.
CCKS_HD constexpr bool in_eights_of(const OperandParams& o, const OperandParams& like) {
  return o.dtype == like.dtype && in_vectors(o, 3) && in_packets(o, 3);
}

/// dims[4]: heads of a kv head, then parts that the context has now (a byte each), then dims of a head, 0: no such op; dims[5] to
/// dims[7]: inverse_of the kv heads, the batch, the parts.
CCKS_HD constexpr void mark_attention(OpParams& op, const OperandParams* operands) {
  op.dims[4] = 0;
  const OperandParams &q = operands[0], &k = operands[1], &v = operands[2], &out = operands[3];
  const i32 heads = op.dims[0], kv_heads = op.dims[1], chunks = op.dims[3] > 1 ? op.dims[3] : 1;
  if (heads <= 0 || kv_heads <= 0 || heads % kv_heads != 0 || q.dim[3] % heads != 0) return;
  const i32 group = heads / kv_heads, head_dim = q.dim[3] / heads;
  if (group > static_cast<i32>(kStepQueries) || (head_dim != 64 && head_dim != 128) || q.dim[2] != 1 || k.dim[2] <= 0) return;
  if (!dtype_is_half(static_cast<Dtype>(q.dtype))) return;
  if (!in_eights_of(q, q) || !in_eights_of(k, q) || !in_eights_of(v, q) || !in_eights_of(out, q) || out.dim[0] != 1) return;
  const i32 tile[4] = {1, 1, 1, group * head_dim}, grid[4] = {chunks, q.dim[1], 1, kv_heads};
  for (int i = 0; i < 4; ++i) {
    if (op.grid[i] != grid[i] || (i == 3 || grid[i] > 1 ? op.tile[i] != tile[i] : op.tile[i] < 1)) return;
  }
  if (op.tile_count > (1u << 20) || kv_heads > 256 || q.dim[1] > 256) return;
  if (chunks > 1 && (op.output_count != 3 || static_cast<Dtype>(operands[4].dtype) != Dtype::f32 || !in_vectors(operands[4], 3))) return;
  const u32 count = part_count(static_cast<u32>(k.dim[2]), static_cast<u32>(chunks));
  if (count > 255) return;
  op.dims[4] = group | static_cast<i32>(count) << 8 | head_dim << 16;
  op.dims[5] = inverse_of(static_cast<u32>(kv_heads));
  op.dims[6] = inverse_of(static_cast<u32>(q.dim[1]));
  op.dims[7] = inverse_of(count);
}

inline constexpr i32 kPageTurn = 16;  // positions that a warp of a body for pages takes at a time: of one page

/// i32, a row for each row of `like`, near enough to each other.
CCKS_HD constexpr bool is_row_table(const OperandParams& o, const OperandParams& like) {
  return o.dtype == static_cast<u8>(Dtype::i32) && o.dim[0] == 1 && o.dim[1] == 1 && o.dim[2] == like.dim[2] && o.dim[3] > 0 && o.stride[2] >= 0 &&
         o.stride[3] >= 0 && o.dim[2] * o.stride[2] + o.dim[3] * o.stride[3] < kSmallOffsets;
}

/// Rows of eights of q's dtype, a page of which is less than 2 GiB.
CCKS_HD constexpr bool is_pool(const OperandParams& o, const OperandParams& q, i32 page) {
  if (o.dtype != q.dtype || !in_vectors(o, 3, i64{1} << 60) || !in_packets(o, 3) || o.dim[0] != 1 || o.dim[1] != 1) return false;
  return o.stride[2] < (i64{1} << 30) && o.stride[2] * 2 * page < (i64{1} << 31);
}

/// The same of one with pages, whose tiles are a row and a kv head each: dims[4] as there, of one part; dims[5], dims[6]: inverse_of the kv heads, of the
/// turns of a page. Pools may be larger than anything else: bodies find a page in 64 bits.
CCKS_HD constexpr void mark_pages(OpParams& op, const OperandParams* operands) {
  op.dims[4] = 0;
  const OperandParams &q = operands[0], &k = operands[1], &v = operands[2], &out = operands[5];
  const i32 heads = op.dims[0], kv_heads = op.dims[1], page = op.dims[kPageDim];
  if (heads <= 0 || kv_heads <= 0 || heads % kv_heads != 0 || q.dim[3] % heads != 0 || op.dims[2] != 0 || op.dims[3] > 1) return;
  const i32 group = heads / kv_heads, head_dim = q.dim[3] / heads;
  if (group > static_cast<i32>(kStepQueries) || (head_dim != 64 && head_dim != 128) || page <= 0 || page % kPageTurn != 0 || k.dim[2] <= 0) return;
  if (!dtype_is_half(static_cast<Dtype>(q.dtype)) || !in_eights_of(q, q) || !in_eights_of(out, q)) return;
  if (!is_pool(k, q, page) || !is_pool(v, q, page)) return;
  if (!is_row_table(operands[3], q) || !is_row_table(operands[4], q) || i64{operands[4].dim[3]} * page > 0x7fffffff) return;
  if (out.dim[0] != 1 || out.dim[1] != 1 || op.grid[0] != 1 || op.grid[1] != 1 || op.grid[2] != out.dim[2] || op.grid[3] != kv_heads) return;
  if (op.tile[3] != group * head_dim || (out.dim[2] > 1 && op.tile[2] != 1) || op.tile_count > (1u << 20) || kv_heads > 256) return;
  op.dims[4] = group | 1 << 8 | head_dim << 16;
  op.dims[5] = inverse_of(static_cast<u32>(kv_heads));
  op.dims[6] = inverse_of(static_cast<u32>(page / kPageTurn));
}

/// dims from kQueryDim on: whether heads lie in vectors of four, and tiles have whole heads. Rows may have limits.
CCKS_HD constexpr void mark_queries(OpParams& op, const OperandParams* operands) {
  if (op.input_count == 4) op.dims[4] = 0;
  if (op.dims[4] != 0) return;  // a step's marks stand there
  op.dims[kQueryDim] = 0;
  const OperandParams &q = operands[0], &k = operands[1], &v = operands[2], &out = operands[op.input_count];
  const i32 heads = op.dims[0], kv_heads = op.dims[1];
  if (op.output_count != 1 || op.dims[3] > 1 || heads <= 0 || kv_heads <= 0 || heads % kv_heads != 0 || q.dim[3] % heads != 0) return;
  const i32 group = heads / kv_heads, head_dim = q.dim[3] / heads;
  if (head_dim % 4 != 0 || head_dim > kMostQueryDims || group > 0x7fff || op.tile[3] % head_dim != 0) return;
  if (!in_vectors(q, 3) || !in_vectors(k, 3) || !in_vectors(v, 3) || !in_vectors(out, 3)) return;
  if (op.input_count == 4 && (!is_row_table(operands[3], q) || operands[3].dim[3] != 2)) return;
  op.dims[kQueryDim] = head_dim | group << 16;
  op.dims[kTileHeadsDim] = op.tile[3] / head_dim;
  op.dims[kCoordinateDim] = coordinate_bits(op);
}

/// kOpGroups: heads of 64 or 128 dims, and tiles of whole heads, of one batch.
CCKS_HD constexpr bool attention_in_groups(const OpParams& op, const OperandParams* operands) {
  const OperandParams &q = operands[0], &k = operands[1], &v = operands[2], &out = operands[op.input_count];
  const i32 heads = op.dims[0], kv_heads = op.dims[1];
  if (op.output_count != 1 || op.input_count > 4 || op.dims[3] > 1 || heads <= 0 || kv_heads <= 0 || heads % kv_heads != 0 || q.dim[3] % heads != 0) return false;
  const i32 head_dim = q.dim[3] / heads;
  if (!dtype_is_half(static_cast<Dtype>(q.dtype)) || (head_dim != 64 && head_dim != 128) || op.tile[3] % head_dim != 0) return false;
  if (k.dtype != q.dtype || v.dtype != q.dtype || out.dtype != q.dtype) return false;
  if (!in_lines(q, 3) || !in_lines(k, 3) || !in_lines(v, 3) || !in_lines(out, 3)) return false;
  if (out.dim[0] != 1 || least(op.tile[1], out.dim[1]) != 1) return false;
  if (op.input_count == 3) return least(op.tile[2], out.dim[2]) * (heads / kv_heads) > kFewQueries;
  const OperandParams& limits = operands[3];
  return limits.dtype == static_cast<u8>(Dtype::i32) && limits.dim[2] == q.dim[2] && limits.stride[2] >= 0 && limits.stride[2] < (1 << 16) &&
         limits.stride[3] >= 0 && limits.stride[3] < (1 << 16) && limits.dim[0] == 1 && limits.dim[1] == 1;
}

CCKS_HD constexpr bool is_row(const OperandParams& o) {
  return o.dim[0] == 1 && o.dim[1] == 1 && o.dim[2] == 1 && o.dim[3] > 0 && (o.stride[3] == 1 || o.dim[3] == 1) && o.dim[3] < (1 << 28);
}
/// dims[kRowDim] of a rope with a table: log2 of the pairs of a head where x is one row, else 0. A head then has four dims at least.
CCKS_HD constexpr void mark_rope(OpParams& op, const OperandParams* operands) {
  const OperandParams &x = operands[0], &table = operands[1], &out = operands[2];
  const i32 half = table.dim[3] / 2;
  const bool row = is_row(x) && is_row(table) && is_row(out) && op.grid[0] == 1 && op.grid[1] == 1 && op.grid[2] == 1;
  op.dims[kRowDim] = row && half >= 2 ? ceil_log2(half) : 0;
}

/// Whether all offsets are below kSmallOffsets.
CCKS_HD constexpr bool in_reach(const OperandParams& o) {
  i64 last = 0;
  for (int i = 0; i < 4; ++i) {
    if (o.dim[i] <= 0 || o.stride[i] < 0 || o.stride[i] >= kSmallOffsets) return false;
    last += (o.dim[i] - 1) * o.stride[i];
  }
  return last < kSmallOffsets;
}
/// dims from kReduceBodyDim on.
CCKS_HD constexpr void mark_reduce(OpParams& op, const OperandParams* operands) {
  const OperandParams &x = operands[0], &out = operands[1];
  op.dims[kReduceBodyDim] = static_cast<i32>(ReduceBody::none);
  if (!in_reach(x) || !in_reach(out)) return;
  i64 rows = 1, stride = 0, width = x.dim[3];
  for (int i = 2; i >= 0; --i) {
    if ((op.dims[1] >> i & 1) == 0 || x.dim[i] == 1) continue;
    if (rows == 1) stride = x.stride[i];
    if (x.stride[i] != rows * stride) return;
    rows *= x.dim[i];
  }
  const bool last = (op.dims[1] >> 3 & 1) != 0;
  if (last && rows > 1 && stride == width * x.stride[3]) width *= rows, rows = 1;  // one run
  const bool floats = dtype_is_float(static_cast<Dtype>(x.dtype));
  const bool whole = last ? x.dim[3] % 4 == 0 : out.dim[3] % 4 == 0 && op.tile[3] % 4 == 0 && in_vectors(out, 3);
  op.dims[kReduceBodyDim] = static_cast<i32>(floats && whole && in_vectors(x, 3) ? ReduceBody::vectors : ReduceBody::elements);
  op.dims[kReducedRowsDim] = static_cast<i32>(rows);
  op.dims[kReducedStrideDim] = static_cast<i32>(stride);
  op.dims[kReducedWidthDim] = static_cast<i32>(width);
  op.dims[kCoordinateDim] = coordinate_bits(op);
}

/// dims[kRowDim] of an argmax whose rows tiles share out: 1 where there is one row, and tiles of it are whole vectors.
CCKS_HD constexpr void mark_argmax(OpParams& op, const OperandParams* operands) {
  const OperandParams& x = operands[0];
  op.dims[kRowDim] = is_row(x) && in_vectors(x, 3) && x.dim[3] % 4 == 0 && op.dims[0] % 4 == 0 && is_row(operands[2]) ? 1 : 0;
}

}  // namespace detail

/// `operands` are the op's; the spaces they lie in begin at multiples of 16.
CCKS_HD constexpr void mark_shape(OpParams& op, const OperandParams* operands) {
  const OpCode kind = static_cast<OpCode>(op.kind);
  if (kind == OpCode::attention && op.input_count == 3) detail::mark_attention(op, operands);
  if (kind == OpCode::attention && op.input_count == 5) detail::mark_pages(op, operands);
  if (kind == OpCode::attention && (op.input_count == 3 || op.input_count == 4)) detail::mark_queries(op, operands);
  if (kind == OpCode::attention && detail::attention_in_groups(op, operands)) op.flags |= kOpGroups;
  if (kind == OpCode::reduce && op.input_count == 1 && op.output_count == 1) detail::mark_reduce(op, operands);
  if (kind == OpCode::rope && op.dims[2] == 2) detail::mark_rope(op, operands);
  if (kind == OpCode::argmax && op.dims[0] > 0 && op.output_count == 3) detail::mark_argmax(op, operands);
  if ((kind == OpCode::map || kind == OpCode::select || kind == OpCode::report) && op.output_count == 1) detail::mark_elements(op, operands);
  const bool known = kind == OpCode::map || kind == OpCode::matmul || kind == OpCode::softmax || kind == OpCode::rmsnorm ||
                     kind == OpCode::layernorm;
  if (!known || (op.output_count != 1 && kind != OpCode::matmul) || op.input_count == 0) return;
  if (kind == OpCode::matmul && detail::product_in_groups(op, operands)) op.flags |= detail::product_in_blocks(op, operands) ? kOpGroups | kOpBlocks : kOpGroups;
  if (kind == OpCode::map) detail::mark_flat(op, operands);
  detail::mark_vectors(op, operands);
}

/// Of a marked op: blocks finished in registers, by a worker that has made a copy of it.
CCKS_HD constexpr bool has_blocks(const OpParams& op) { return (op.flags & kOpBlocks) != 0 && op.operands != 0; }

/// Of a marked op: a product of few rows whose weights may come through a ring.
CCKS_HD constexpr bool streams_rows(const OpParams& op) { return static_cast<OpCode>(op.kind) == OpCode::matmul && (op.flags & kOpStreams) != 0; }
CCKS_HD constexpr bool streams_one_row(const OpParams& op) { return streams_rows(op) && static_cast<ProductBody>(op.dims[0]) == ProductBody::turned_row; }

}  // namespace ccks::wire
