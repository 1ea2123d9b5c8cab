// rope by a table of cosines and sines: many rows, and the body for one.
#include <cmath>

#include "ccks/worker/ops_index.hpp"
#include "ccks/worker/platform_host.hpp"
#include "tests/unit/worker/emulated_warps.hpp"
#include "tests/unit/worker/ops_fixture.hpp"

namespace ccks::worker::test {
namespace {

using Types = FixedTypes<Dtype::bf16, Dtype::f32, Dtype::bf16>;

template <class Lanes>
FaultCode run_tiles_on(Lanes& lanes, const wire::RunFrame& frame, const wire::OpParams& op) {
  for (u32 tile = 0; tile < op.tile_count; ++tile) {
    const FaultCode fault = run_rope(lanes, Call(frame, op), tile, Types{});
    if (fault != FaultCode::none) return fault;
    lanes.sync();
  }
  return FaultCode::none;
}

FaultCode run_rope_on(bool warps, const wire::RunFrame& frame, const wire::OpParams& op) {
  static WarpBlock block;
  if (!warps) {
    alignas(128) static u8 scratch[kMinScratchBytes];
    HostLanes lanes(scratch, sizeof scratch);
    return run_tiles_on(lanes, frame, op);
  }
  FaultCode faults[WarpBlock::kLanes];
  block.run([&](u32 lane) {
    EmulatedWarps lanes(block, lane);
    faults[lane] = run_tiles_on(lanes, frame, op);
  });
  return faults[0];
}

void check_rope(int batch, int rows, int heads, int head_dim, int tile_heads, bool warps) {
  Bench b(static_cast<std::uint32_t>(rows * 100 + heads));
  const Index shape{1, batch, rows, heads * head_dim};
  const Tensor x = b.tensor(Dtype::bf16, shape, true), table = b.tensor(Dtype::f32, {1, 1, rows, head_dim}, true),
               out = b.tensor(Dtype::bf16, shape, true);
  b.fill(x, -2, 2);
  const int half = head_dim / 2;
  for (int row = 0; row < rows; ++row) {
    for (int j = 0; j < half; ++j) {
      b.set(table, {0, 0, row, j}, std::cos(0.3 * row + j));
      b.set(table, {0, 0, row, j + half}, std::sin(0.3 * row + j));
    }
  }
  b.operands = {x, table, out};
  b.op.dims[0] = heads, b.op.dims[2] = 2;
  b.tiles(shape, {1, 1, 2, tile_heads * head_dim});
  ASSERT_EQ(b.run_by(OpCode::rope, 2, [&](const auto& frame, const auto& op) {
    EXPECT_EQ(op.dims[wire::kRowDim] != 0, batch * rows == 1) << "which body takes it";
    return run_rope_on(warps, frame, op);
  }), FaultCode::none);
  Bench::each(shape, [&](const Index& c) {
    const int j = c[3] % head_dim % half;
    const bool second = c[3] % head_dim >= half;
    Index other = c;
    other[3] += second ? -half : half;
    const double sine = b.get(table, {0, 0, c[2], j + half});
    const double want = b.get(x, c) * b.get(table, {0, 0, c[2], j}) + (second ? 1 : -1) * b.get(x, other) * sine;
    EXPECT_NEAR(b.get(out, c), want, 0.02) << "row " << c[2] << ", column " << c[3] << (warps ? ", warps" : ", host");
  });
}

TEST(RopeTable, TurnsPairs) {
  for (const bool warps : {false, true}) {
    check_rope(1, 1, 8, 64, 4, warps);
    check_rope(1, 1, 5, 128, 2, warps);  // the last tile is smaller
    check_rope(1, 1, 3, 4, 3, warps);
    check_rope(2, 1, 2, 16, 1, warps);
    check_rope(1, 5, 3, 64, 2, warps);
    if (HasFailure()) return;
  }
}

}  // namespace
}  // namespace ccks::worker::test
