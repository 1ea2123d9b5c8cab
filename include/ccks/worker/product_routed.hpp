// expert_matmul of up to eight rows by weights that come through a worker's ring (wire::kOpRouted, routed_stream.hpp), 16-bit floats on matrix units.
//
// As product_streamed.hpp, with one difference: a tile has several groups of sixteen columns, and what lies between two tiles is what keeps memory from being read. So a lane has its
// part of its row in registers, for all columns: rows come from the L2 once, and neither scratch nor a barrier lies between them and the first weights. A worker does
// what all these products have in common (multiply_routed), and an op's own body the end (end_routed, ops_matmul.hpp).
#pragma once

#include "ccks/worker/routed_stream.hpp"

namespace ccks::worker {
inline namespace CCKS_ISA {

/// Which row of x this lane has, of eight that a warp has side by side, and whether there is one. missing: there is none where one is named.
struct RoutedRow {
  const u8* at = nullptr;
  bool mine = false, missing = false;

  RoutedRow() = default;
  CCKS_INLINE RoutedRow(const Call& call, const RouteTable& table, const ExpertRows& rows, u32 number) {
    const OperandParams& x = call.operands[0];
    mine = number < rows.count;
    u32 row = rows.first + (mine ? number : 0);
    if (call.op.dims[1] != 0) {
      const i32* source = reinterpret_cast<const i32*>(operand_base(call.frame, call.operands[2]));
      row = (table.names ? u32{table.named[row]} : static_cast<u32>(source[row])) / static_cast<u32>(call.op.dims[0]);  // below nothing it is more than there are
    }
    missing = mine && row >= static_cast<u32>(x.dim[2]);
    mine = mine && !missing;
    at = operand_base(call.frame, x) + u64{mine ? row : 0} * (static_cast<u32>(x.stride[2]) * 2);
  }
};

/// Where a lane's packets of 16 bytes along k lie: `first` and every kStep-th byte from there on.
template <class Lanes>
struct RoutedPackets {
  static constexpr u32 kWarps = Lanes::kLanes / Lanes::kWarp, kWarpBytes = 64, kStep = kWarps * kWarpBytes, kSteps = kStageDepth * 2 / kStep;
  static constexpr u32 kPieces = static_cast<u32>(wire::kRoutedDepth) / kStageDepth;
  static_assert(kSteps % 2 == 0 && kSteps * kStep == kStageDepth * 2);
  u32 group, part, warp, first;

  CCKS_INLINE explicit RoutedPackets(Lanes& lanes) {
    const u32 lane = lanes.lane() % Lanes::kWarp;
    warp = lanes.lane() / Lanes::kWarp;
    group = lane / 4;
    part = lane % 4;
    first = warp * kWarpBytes + part * 16;
  }
};

/// [warp][row][n] at the beginning of scratch: what each warp has of the products of m rows and n columns, n a multiple of 16. kWhole: k is a multiple of kStageDepth.
template <Dtype kType, bool kWhole, class Lanes, class Stream>
CCKS_INLINE void walk_routed(Lanes& lanes, Stream& stream, const u8* row, u32 m, u32 n, u32 k) {
  using Packets = RoutedPackets<Lanes>;
  constexpr u32 kStep = Packets::kStep, kSteps = Packets::kSteps, kPieces = Packets::kPieces;
  const Packets packets(lanes);
  const u32 group = packets.group, part = packets.part, first = packets.first, end = k * 2;
  Sixteen x[kPieces][kSteps];
  CCKS_UNROLL
  for (u32 piece = 0; piece < kPieces; ++piece) {
    CCKS_UNROLL
    for (u32 s = 0; s < kSteps; ++s) {  // of rows beyond the last the results are not kept
      const u32 at = piece * kStageDepth * 2 + s * kStep + first;
      x[piece][s] = row != nullptr && at < end ? *reinterpret_cast<const Sixteen*>(row + at) : Sixteen{};
    }
  }
  float* mine = reinterpret_cast<float*>(lanes.scratch()) + packets.warp * m * n + group;
  CCKS_NO_UNROLL
  for (u32 j = 0; j < n; j += kStageColumns) {
    float acc[4][4];  // few products that wait for one another
    CCKS_UNROLL
    for (u32 i = 0; i < 4; ++i)
      for (u32 q = 0; q < 4; ++q) acc[i][q] = 0;
    CCKS_UNROLL
    for (u32 piece = 0; piece < kPieces; ++piece) {
      if (piece * kStageDepth >= k) break;
      Sixteen low[kSteps], high[kSteps];
      const u8* column = stream.await() + group * kStagePitch + first;
      CCKS_UNROLL
      for (u32 s = 0; s < kSteps; ++s) {  // beyond k there may be anything, and even zero times that need not be zero
        const bool within = kWhole || piece * kStageDepth * 2 + s * kStep + first < end;
        low[s] = within ? *reinterpret_cast<const Sixteen*>(column + s * kStep) : Sixteen{};
        high[s] = within ? *reinterpret_cast<const Sixteen*>(column + 8 * kStagePitch + s * kStep) : Sixteen{};
      }
      stream.free();
      CCKS_UNROLL
      for (u32 s = 0; s < kSteps; ++s) {
        CCKS_UNROLL
        for (u32 half = 0; half < 2; ++half) {
          const u32 columns[4] = {low[s].word[2 * half], high[s].word[2 * half], low[s].word[2 * half + 1], high[s].word[2 * half + 1]};
          const u32 values[2] = {x[piece][s].word[2 * half], x[piece][s].word[2 * half + 1]};
          lanes.template multiply_wide<kType>(acc[s % 2 * 2 + half], columns, values);
        }
      }
    }
    CCKS_UNROLL
    for (u32 i = 0; i < 2; ++i) {
      const u32 r = 2 * part + i;
      if (r >= m) break;
      mine[r * n + j] = acc[0][i] + acc[1][i] + (acc[2][i] + acc[3][i]);
      mine[r * n + j + 8] = acc[0][2 + i] + acc[1][2 + i] + (acc[2][2 + i] + acc[3][2 + i]);
    }
  }
}

/// What the end of a body that is kOpRouted finishes: sums of a tile whose weights come through the ring, and which rows they are of. Once its inputs are there. `rows`: what
/// the filling side has found.
template <class Lanes, class Stream>
CCKS_INLINE void multiply_routed(Lanes& lanes, Stream stream, const Call& call, u32 tile, const RouteTable& table, const ExpertRows& rows) {
  if (rows.count != 0) {
    const u32 k = static_cast<u32>(call.operands[0].dim[3]), twice = call.op.dims[wire::kTwinDim] != 0 ? 2 : 1;
    const u32 n = RoutedTile(call.op, tile).columns(call) * twice;
    const RoutedRow found(call, table, rows, lanes.lane() % Lanes::kWarp / 4);
    const u8* row = found.mine ? found.at : nullptr;
    if (lanes.lane() == 0) routed_rows(lanes) = rows;
    if (static_cast<Dtype>(call.operands[0].dtype) == Dtype::f16)
      walk_routed<Dtype::f16, false>(lanes, stream, row, rows.count, n, k);
    else if (k % kStageDepth == 0)
      walk_routed<Dtype::bf16, true>(lanes, stream, row, rows.count, n, k);
    else
      walk_routed<Dtype::bf16, false>(lanes, stream, row, rows.count, n, k);
    if (found.missing && lanes.lane() < Lanes::kWarp) routed_rows(lanes).sound = false;  // behind what lane 0 of the warp has stored
  } else if (lanes.lane() == 0) {
    routed_rows(lanes) = rows;
  }
  lanes.sync();
  if (rows.count != 0) stream.leave();
}

}  // namespace CCKS_ISA
}  // namespace ccks::worker
