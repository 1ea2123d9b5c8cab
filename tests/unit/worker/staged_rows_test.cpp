// Rows normed on their way into scratch are bit for bit what an rmsnorm op of a row a tile stores.
#include "ccks/worker/staged_rows.hpp"

#include "ccks/worker/typed_ops.hpp"
#include "tests/unit/worker/emulated_warps.hpp"
#include "tests/unit/worker/ops_fixture.hpp"

namespace ccks::worker::test {
namespace {

Tensor filled(Bench& b, Dtype d, Index shape) {
  const Tensor t = b.tensor(d, shape, true);
  b.fill(t, -2, 3);
  return t;
}

template <Dtype D, Dtype W>
void check_staged(std::uint32_t seed, int rows, int width, bool exact) {
  Bench b(seed);
  const Index shape{1, 1, rows, width};
  const Tensor x = filled(b, D, shape), weight = filled(b, W, {1, 1, 1, width}), out = b.tensor(D, shape, true);
  b.fill(out, 77, 77);
  b.operands = {x, weight, out};
  b.op.scalars[0] = 1e-3f;
  b.tiles(shape, {1, 1, 1, width});
  const u32 bytes = sizeof(Storage<D>) * static_cast<u32>(width), pitch = bytes + 64;
  std::vector<u8> staged(pitch * static_cast<u32>(rows));
  ASSERT_EQ(b.run_by(OpCode::rmsnorm, 2, [&](const auto& frame, const auto& op) {
    WarpBlock block;
    block.run([&](u32 lane) {
      EmulatedWarps lanes(block, lane);
      for (u32 tile = 0; tile < op.tile_count; ++tile) {
        (void)TypedOp<OpCode::rmsnorm, Code<>, D, W, D>::run(lanes, frame, op, tile);
        lanes.sync();
      }
      stage_normed_rows(lanes, Fixed<D>{}, b.address(x, {}), bytes, Fixed<W>{}, b.address(weight, {}), 1e-3f, static_cast<u32>(rows),
                        static_cast<u32>(width), 0, pitch);
    });
    std::memcpy(staged.data(), block.scratch(), staged.size());
    return FaultCode::none;
  }), FaultCode::none);
  Tensor mine = out;
  for (int i = 0; i < rows; ++i)
    for (int p = 0; p < width; ++p) {
      const double want = b.get(out, {0, 0, i, p});
      std::memcpy(b.address(mine, {0, 0, i, p}), staged.data() + static_cast<u32>(i) * pitch + static_cast<u32>(p) * sizeof(Storage<D>),
                  sizeof(Storage<D>));
      const double have = b.get(mine, {0, 0, i, p});
      if (exact)
        ASSERT_EQ(have, want) << "row " << i << " column " << p;
      else  // the op of longer rows adds up in another order
        ASSERT_NEAR(have, want, 0.01 * std::abs(want)) << "row " << i << " column " << p;
    }
}

TEST(StagedRows, AreWhatANormStores) {
  check_staged<Dtype::bf16, Dtype::bf16>(1, 1, 2048, true);
  check_staged<Dtype::bf16, Dtype::f32>(2, 3, 520, true);
  check_staged<Dtype::f16, Dtype::f16>(3, 8, 1028, true);
  check_staged<Dtype::f32, Dtype::bf16>(4, 2, 4096, true);
  check_staged<Dtype::bf16, Dtype::bf16>(5, 2, 8192, false);
}

}  // namespace
}  // namespace ccks::worker::test
