// Tile sizes the ops like best, for the planner: pure functions of shape and machine. Any other tile is right too, only
// slower. Sizes are whole extents or powers of two (times the granule), so that producer and consumer tiles nest, but for products of
// few rows on a GPU, and some of many.
#pragma once

#include "ccks/wire/base.hpp"
#include "ccks/wire/dtype.hpp"
#include "ccks/wire/op_layout.hpp"
#include "ccks/wire/op_shape.hpp"

namespace ccks::worker {

enum class DeviceClass : wire::u32 { host = 0, cuda = 1 };

/// Scratch the host bodies want per worker: packed a (128 KiB), packed b (256 KiB) and an accumulator (128 KiB) of a
/// matmul block; all other ops fit in that. With less they still run, on smaller blocks or in the portable body.
inline constexpr wire::u32 kHostScratchBytes = 512 * 1024;
/// Scratch the portable bodies want on a GPU: what every block gets without opt-in.
inline constexpr wire::u32 kCudaScratchBytes = 48 * 1024;
/// What expert_matmul of 16-bit floats wants there, stages of rows and weights on their way, where warps multiply alone (expert_warps.hpp). With less other bodies run.
inline constexpr wire::u32 kCudaExpertScratchBytes = 100 * 1024;
/// At the end of that for warps that multiply together: what a body leaves for the next (kept_tiles.hpp).
inline constexpr wire::u32 kCudaKeptBytes = 4 * 1024;
/// The same where four warps multiply together (expert_product.hpp), and of a matmul of many rows (product_group.hpp).
inline constexpr wire::u32 kCudaGroupedScratchBytes = 161 * 1024 + kCudaKeptBytes;
/// What workers whose bodies are an image of their own (worker/apart_ops.cuh) keep in front of scratch.
inline constexpr wire::u32 kCudaApartBytes = 43 * 1024;

/// One op as the hints see it. `extent` is its tile space (wire/op_layout.hpp), best at the sizes that matter most.
struct TileQuestion {
  wire::OpCode kind = wire::OpCode::map;
  wire::i64 extent[4] = {1, 1, 1, 1};
  wire::Dtype dtype = wire::Dtype::f32;  // of output 0
  wire::u32 workers = 1;
  DeviceClass device = DeviceClass::host;
  wire::i64 depth = 1;  // work per element: k of a matmul, context of an attention, c*kh*kw of a conv2d, reduced
                        // extents, the last dim of x for argmax and topk
  wire::i64 granule = 1;  // tile[3] is a multiple of it: head_dim for rope and attention
  wire::i64 group = 1;    // attention: heads per kv head, best kept in one tile
  bool paged = false;     // attention: rows have pages of their own, and nothing in common
  wire::i64 experts = 1;  // expert_matmul
  bool roomy = false;     // workers have kCudaGroupedScratchBytes
  bool packets = false;   // matmul: 16-bit floats that lie along depth in a and b
  wire::i64 widest = 0;   // matmul that tiles of any columns suit: the most columns of one of as many rows that runs with it; 0: it is not known which do
  bool rows_vary = false; // extent[2] may be another one from run to run, so that tile[2] suits the largest
};

struct TileHint {
  wire::i32 tile[4] = {1, 1, 1, 1};
};

/// Rows of a matmul of 16-bit floats from which its plan gives workers kCudaGroupedScratchBytes: a ring of weights has less room then.
inline constexpr wire::i64 kRoomyRows = 9;
/// Tokens of which a route finds the experts in its one tile as soon as a topk in front of it would (route_warps.hpp).
inline constexpr wire::i64 kFewRouted = 8;
/// Queries of one kv head that attention_thin.hpp takes, eight at a time; those of more rows share what they read (attention_block.hpp).
inline constexpr wire::i64 kThinQueries = wire::kFewQueries;

namespace hints {

using wire::i32;
using wire::i64;

CCKS_HD constexpr i64 least(i64 a, i64 b) { return a < b ? a : b; }
CCKS_HD constexpr i64 most(i64 a, i64 b) { return a > b ? a : b; }
CCKS_HD constexpr i64 ceil_div(i64 a, i64 b) { return (a + b - 1) / b; }

/// Largest power of two that is at most `v` (1 for v < 1).
CCKS_HD constexpr i64 floor_pow2(i64 v) {
  i64 p = 1;
  while (p * 2 <= v) p *= 2;
  return p;
}
CCKS_HD constexpr i64 ceil_pow2(i64 v) {
  i64 p = 1;
  while (p < v) p *= 2;
  return p;
}
/// A tile of at most `want` indices: the whole extent or a power of two.
CCKS_HD constexpr i32 fit(i64 extent, i64 want) {
  return static_cast<i32>(extent <= want ? most(extent, 1) : floor_pow2(want));
}

CCKS_HD constexpr i64 tiles_of(const TileQuestion& q, const TileHint& t) {
  i64 n = 1;
  for (int i = 0; i < 4; ++i) n *= ceil_div(most(q.extent[i], 1), t.tile[i]);
  return n;
}

/// Elements per tile for ops that only pass over memory. On the host enough to hide the cost of a task (about 1 us), few enough
/// that every worker gets two. A GPU's worker takes as long for 256 elements as for 2048, since a tile is mostly latency: one
/// tile a worker, and small tensors are cut as finely as products of small heads are, so that chains stay on their worker.
CCKS_HD constexpr i64 element_budget(const TileQuestion& q, i64 at_most = 16384) {
  const i64 total =
      most(q.extent[0], 1) * most(q.extent[1], 1) * most(q.extent[2], 1) * most(q.extent[3], 1) * most(q.depth, 1);
  const i64 workers = static_cast<i64>(q.workers);
  if (q.device == DeviceClass::host) return most(4096, least(32768, ceil_div(total, 2 * workers)));
  return most(256, least(at_most, ceil_pow2(ceil_div(total, workers))));
}

/// tile[3] is given; rows fill the rest of the budget, innermost dim first.
CCKS_HD constexpr TileHint rows(const TileQuestion& q, i64 last, i64 row_cost) {
  TileHint t;
  t.tile[3] = static_cast<i32>(most(last, 1));
  i64 left = most(1, element_budget(q) / most(row_cost, 1));
  for (int i = 2; i >= 0; --i) {
    t.tile[i] = fit(q.extent[i], left);
    if (t.tile[i] < q.extent[i]) break;
    left = most(1, left / t.tile[i]);
  }
  return t;
}

CCKS_HD constexpr TileHint elementwise(const TileQuestion& q) {
  const i64 last = fit(q.extent[3], element_budget(q));
  return rows(q, last, last);
}

/// Columns that are sums over rows share nothing: on a GPU a tile has as many as take a worker no longer than few, and no less than a line of memory.
CCKS_HD constexpr TileHint reduce(const TileQuestion& q) {
  constexpr i64 kLeastElements = 2048, kLeastColumns = 32;
  const i64 budget = most(element_budget(q), kLeastElements), depth = most(q.depth, 1);
  if (q.device == DeviceClass::host || q.extent[3] <= kLeastColumns) return rows(q, q.extent[3], most(q.extent[3], 1) * depth);
  const i64 last = fit(q.extent[3], most(kLeastColumns, budget / depth));
  return rows(q, last, last * depth);
}

CCKS_HD constexpr TileHint whole_rows(const TileQuestion& q) {
  return rows(q, q.extent[3], most(q.extent[3], 1) * most(q.depth, 1));
}

/// Each element is a sum over q.depth rows. Which rows and by what weight a tile finds out once, and then has them on their way side by side: up to eight times as much as others take.
CCKS_HD constexpr TileHint combine(const TileQuestion& q) {
  if (q.device == DeviceClass::host) return elementwise(q);
  const i64 last = fit(q.extent[3], element_budget(q)), depth = most(q.depth, 1);
  TileHint t = rows(q, last, last * depth);
  if (last == q.extent[3]) t.tile[2] = fit(q.extent[2], most(1, element_budget(q, 131072) / (last * depth)));
  return t;
}

/// A GPU's warps take a row each, one behind the other where a tile has more.
CCKS_HD constexpr TileHint topk(const TileQuestion& q) {
  constexpr i64 kWarps = 8;
  TileHint t = whole_rows(q);
  if (q.device == DeviceClass::cuda && t.tile[2] > kWarps) t.tile[0] = t.tile[1] = 1, t.tile[2] = kWarps;
  return t;
}

CCKS_HD constexpr TileHint rope(const TileQuestion& q) {
  const i64 heads = most(1, q.extent[3] / most(q.granule, 1));
  const i64 last = fit(heads, most(1, element_budget(q) / most(q.granule, 1))) * most(q.granule, 1);
  return rows(q, last, last);
}

inline constexpr i64 kHostFewRows = 4, kCudaFewRows = 8;  // what the bodies for few rows take

/// Few rows: the weights are streamed once, so rows stay whole and columns are split evenly over the workers. On a GPU one
/// tile each, and no less than 32 bytes of a row of weights: what memory moves at a time. Between powers of two there it is a multiple
/// of sixteen, what a stage of a ring takes, where that leaves fewer workers without a tile: 14,336 columns are 128 tiles of 112, not 112
/// of 128. (Not of eight: a tile of 24 by 8,192 took an H200 as long as one of 32.)
CCKS_HD constexpr TileHint thin_matmul(const TileQuestion& q) {
  const bool host = q.device == DeviceClass::host;
  const i64 halves = !host && q.extent[2] > kCudaFewRows && !q.rows_vary ? 2 : 1;  // of the rows, each with the columns of half the workers
  const i64 columns = ceil_div(most(q.extent[3], 1) * halves, static_cast<i64>(q.workers) * (host ? 2 : 1));
  const i64 lo = host ? 64 : 32 / static_cast<i64>(wire::dtype_bytes(q.dtype)), hi = host ? 1024 : 128;
  TileHint t;
  t.tile[2] = static_cast<i32>(halves == 2 ? kCudaFewRows : most(q.extent[2], 1));
  t.tile[3] = fit(q.extent[3], most(lo, least(hi, ceil_pow2(columns))));
  const i64 even = ceil_div(columns, 16) * 16;
  if (!host && even > lo && even < t.tile[3]) t.tile[3] = static_cast<i32>(even);
  // Workers that would have none share the rows: a body of four takes less than one of eight, and all wait for the slowest. Not where
  // weights may have to come from memory, which would be read twice.
  const bool small = wire::dtype_bytes(q.dtype) == 4;
  if (!host && small && t.tile[2] > 4 && 2 * tiles_of(q, t) <= static_cast<i64>(q.workers)) t.tile[2] = 4;
  return t;
}

/// Halves the larger side until every worker has two tiles or the blocks get too small to amortise packing.
CCKS_HD constexpr TileHint block_matmul(const TileQuestion& q, i64 rows_wanted) {
  const bool host = q.device == DeviceClass::host;
  i64 m = host ? least(rows_wanted, 128) : least(rows_wanted, 64), n = host ? 256 : 64;
  TileHint t;
  for (;;) {
    t.tile[2] = fit(q.extent[2], m);
    t.tile[3] = fit(q.extent[3], n);
    if (tiles_of(q, t) >= 2 * static_cast<i64>(q.workers) || (m <= 32 && n <= 64)) return t;
    if (n > 64 && n >= m) {
      n /= 2;
    } else {
      m = most(m / 2, 16);
      if (m == 16) return t;
    }
  }
}

/// What a tile of 128 rows and up to so many columns takes, and what lies between two, in tens of an H200's cycles (worker/README.md, 2026-11-30).
CCKS_HD constexpr i64 staged_cost(i64 columns, i64 depth) {
  const i64 step = columns > 192 ? 117 : columns > 128 ? 81 : columns > 64 ? 69 : 54;  // of 64 along the depth
  return 1000 + 5 * columns / 2 + ceil_div(depth, 64) * step;
}
/// Rows and columns of the blocks that matrix units take at a time (product_group.hpp), as many columns as let all be through first, fewer rows where workers would have none. Where no product
/// of as many rows has more tiles than there are workers, that is the worker with the most tiles. Otherwise tiles are ready, and workers free, at different times: what counts is what all take,
/// and how long the last tile, and half of one that it waits for; by a depth of 512, since products of as many columns are best cut alike. Of rows that vary a tenth more are counted: a plan is made for what is typical, and one tile more for each worker is a lot.
CCKS_HD constexpr TileHint staged_matmul(const TileQuestion& q) {
  TileHint t;
  if (q.extent[2] <= 64) {  // product_narrow.hpp: half as many columns take two thirds of the time
    t.tile[2] = static_cast<i32>(q.extent[2]);
    t.tile[3] = fit(q.extent[3], 128);
    if (tiles_of(q, t) < 4 * static_cast<i64>(q.workers)) t.tile[3] = fit(q.extent[3], 64);
    return t;
  }
  TileQuestion more = q;
  if (q.rows_vary) more.extent[2] += more.extent[2] / 10;
  t.tile[2] = fit(q.extent[2], 128);
  const i64 workers = static_cast<i64>(q.workers);
  TileQuestion widest = more;
  widest.extent[3] = most(q.widest, q.extent[3]);
  TileHint wide = t;
  wide.tile[3] = 256;
  const bool in_turn = tiles_of(widest, wide) > workers;
  i64 least_time = 0;
  for (i64 columns = 256; columns >= 64; columns -= 64) {
    if (columns == 192 && (in_turn || q.widest == 0)) continue;
    wide.tile[3] = static_cast<i32>(most(1, least(q.extent[3], columns)));
    const i64 tiles = tiles_of(more, wide), cost = staged_cost(wide.tile[3], in_turn ? least(q.depth, 512) : q.depth);
    const i64 time = cost * (in_turn ? tiles + workers * 3 / 2 : ceil_div(tiles, workers));
    if (least_time != 0 && time >= least_time) continue;
    least_time = time;
    t.tile[3] = wide.tile[3];
  }
  if (t.tile[3] > 64) return t;
  while (t.tile[2] > 32 && tiles_of(q, t) < workers) t.tile[2] /= 2;
  return t;
}

/// Weights that lie along k, from nine rows on, where they are deep enough for it to matter.
CCKS_HD constexpr bool takes_groups(const TileQuestion& q) {
  if (!q.roomy || (wire::dtype_bytes(q.dtype) != 2 && !q.packets)) return false;
  return q.extent[2] >= 64 || (q.extent[2] >= kRoomyRows && q.packets && q.depth >= 512 && q.extent[0] * q.extent[1] <= 1);
}

CCKS_HD constexpr TileHint matmul(const TileQuestion& q) {
  if (takes_groups(q)) return staged_matmul(q);
  const bool host = q.device == DeviceClass::host;
  // Up to twice as many rows of deep products, whose columns are weights most likely, are two tiles that read the same columns at the same time: from memory
  // once, from the L2 twice. Blocks would leave most workers without a tile.
  const bool twice = !host && q.extent[2] <= 2 * kCudaFewRows && q.extent[0] * q.extent[1] <= 1 && q.depth >= (wire::dtype_bytes(q.dtype) == 2 ? 512 : 256);
  return q.extent[2] <= (host ? kHostFewRows : kCudaFewRows) || twice ? thin_matmul(q) : block_matmul(q, 128);
}

CCKS_HD constexpr TileHint expert_matmul(const TileQuestion& q) {
  const i64 per_expert = ceil_pow2(ceil_div(most(q.extent[2], 1), most(q.experts, 1)));
  if (q.device == DeviceClass::cuda && wire::dtype_bytes(q.dtype) == 2) {
    // Blocks of matrix units: fewer rows than a tile has cost what there are, so an expert's weights are read by one tile for all rows that a
    // block takes. Columns: two tiles a worker or more of what the experts that there can be rows for have, but what a tile costs beside its
    // weights takes as long as 200 KB of them. Where experts have few rows all tiles take about as long, and half as many columns more are no worse to deal out.
    const i64 rows = most(q.extent[2], 1), experts = most(q.experts, 1), busy = least(rows, experts);
    const i64 columns = floor_pow2(most(1, busy * most(q.extent[3], 1) / (2 * static_cast<i64>(q.workers))));
    const bool deep = q.depth > 1024;
    TileHint t;
    t.tile[2] = fit(q.extent[2], wire::kRoutedTile);
    t.tile[3] = fit(q.extent[3], most(deep ? 64 : 128, least(deep ? 256 : 512, columns)));
    if (deep && rows <= 16 * experts && columns >= 512) t.tile[3] = static_cast<i32>(least(q.extent[3], 384));
    return t;
  }
  return block_matmul(q, most(4, least(128, per_expert)));
}

CCKS_HD constexpr TileHint attention(const TileQuestion& q) {
  const i64 head = most(q.granule, 1);
  TileHint t;
  if (q.paged) {
    t.tile[3] = static_cast<i32>(head * most(q.group, 1));
    return t;
  }
  const bool units = q.device == DeviceClass::cuda && wire::dtype_bytes(q.dtype) == 2 && (head == 64 || head == 128);
  if (units && q.extent[2] * most(q.group, 1) > kThinQueries) {  // attention_block.hpp: warps have sixteen rows each
    t.tile[2] = fit(q.extent[2], 128);
    // More heads a tile where that lets the worker with the most tiles be through first: beside them a tile costs three eighths of a head of a few hundred positions. As rows
    // attend to more or fewer of them, tiles differ, so some are left to each worker.
    const i64 own = head * most(q.group, 1), workers = static_cast<i64>(q.workers);
    i64 least_time = 0;
    for (i64 heads = 1; heads <= 8 && heads * own <= most(q.extent[3], own); heads *= 2) {
      TileHint wide = t;
      wide.tile[3] = static_cast<i32>(heads * own);
      const i64 tiles = tiles_of(q, wide), time = ceil_div(tiles, workers) * (3 + 8 * heads * most(q.group, 1));
      if (least_time != 0 && (time >= least_time || 2 * tiles < 5 * workers)) continue;
      least_time = time;
      t.tile[3] = wide.tile[3];
    }
    while (t.tile[2] > 32 && tiles_of(q, t) < static_cast<i64>(q.workers)) t.tile[2] /= 2;
    return t;
  }
  t.tile[2] = fit(q.extent[2], q.device == DeviceClass::host ? 32 : 16);
  t.tile[3] = static_cast<i32>(head * most(q.group, 1));
  while (t.tile[2] > 4 && tiles_of(q, t) < 2 * static_cast<i64>(q.workers)) t.tile[2] /= 2;
  return t;
}

CCKS_HD constexpr TileHint conv2d(const TileQuestion& q) {
  TileHint t;
  t.tile[3] = fit(q.extent[3], 64);
  t.tile[2] = fit(q.extent[2], most(1, (q.device == DeviceClass::host ? 512 : 256) / t.tile[3]));
  t.tile[1] = fit(q.extent[1], 32);
  while (t.tile[1] > 8 && tiles_of(q, t) < 2 * static_cast<i64>(q.workers)) t.tile[1] /= 2;
  return t;
}

CCKS_HD constexpr TileHint whole(const TileQuestion& q) {
  TileHint t;
  for (int i = 0; i < 4; ++i) t.tile[i] = static_cast<i32>(most(q.extent[i], 1));
  return t;
}

}  // namespace hints

/// Recommended tile[4] for an op. Every entry is at least 1 and at most the extent (at least 1).
CCKS_HD constexpr TileHint tile_hint(const TileQuestion& q) {
  using wire::OpCode;
  switch (q.kind) {
    case OpCode::matmul:
      return hints::matmul(q);
    case OpCode::expert_matmul:
      return hints::expert_matmul(q);
    case OpCode::attention:
      return hints::attention(q);
    case OpCode::combine:
      return hints::combine(q);
    case OpCode::rope:
      return hints::rope(q);
    case OpCode::conv2d:
      return hints::conv2d(q);
    case OpCode::softmax:
    case OpCode::rmsnorm:
    case OpCode::layernorm:
    case OpCode::argmax:
      return hints::whole_rows(q);
    case OpCode::topk:
      return hints::topk(q);
    case OpCode::reduce:
      return hints::reduce(q);
    case OpCode::route:
    case OpCode::report:
      return hints::whole(q);
    default:
      return hints::elementwise(q);
  }
}

}  // namespace ccks::worker
