// argmax whose rows tiles share out: any order of tiles gives what one tile gives.
#include <algorithm>
#include <cmath>
#include <numeric>

#include "ccks/worker/ops_index.hpp"
#include "ccks/worker/platform_host.hpp"
#include "tests/unit/worker/emulated_warps.hpp"
#include "tests/unit/worker/ops_fixture.hpp"

namespace ccks::worker::test {
namespace {

using Types = FixedTypes<Dtype::f32, Dtype::i32, Dtype::i64, Dtype::i32>;

template <class Lanes>
FaultCode run_order(Lanes& lanes, const wire::RunFrame& frame, const wire::OpParams& op, const std::vector<u32>& order) {
  for (const u32 tile : order) {
    const FaultCode fault = run_argmax(lanes, Call(frame, op), tile, Types{});
    if (fault != FaultCode::none) return fault;
    lanes.sync();
  }
  return FaultCode::none;
}

FaultCode run_on(bool warps, const wire::RunFrame& frame, const wire::OpParams& op, const std::vector<u32>& order) {
  static WarpBlock block;
  if (!warps) {
    alignas(128) static u8 scratch[kMinScratchBytes];
    HostLanes lanes(scratch, sizeof scratch);
    return run_order(lanes, frame, op, order);
  }
  FaultCode faults[WarpBlock::kLanes];
  block.run([&](u32 lane) {
    EmulatedWarps lanes(block, lane);
    faults[lane] = run_order(lanes, frame, op, order);
  });
  return faults[0];
}

/// Few different values, so that there are equal ones, and some that are none.
int fill_row(Bench& b, const Tensor& x, int row, bool all_nan) {
  int best = 0;
  double top = -INFINITY;
  for (int i = 0; i < x.dim[3]; ++i) {
    const double v = all_nan || b.pick(0, 50) == 0 ? NAN : b.pick(0, 9) == 0 ? -0.0 : b.pick(-20, 0) * 0.5;
    b.set(x, {0, 0, row, i}, v);
    if (v > top) top = v, best = i;
  }
  return best;
}

void check_argmax(int rows, int columns, int tiles, bool warps, bool all_nan = false) {
  Bench b(static_cast<std::uint32_t>(columns + rows));
  const Tensor x = b.tensor(Dtype::f32, {1, 1, rows, columns}, true), out = b.tensor(Dtype::i32, {1, 1, rows, 1}, true),
               found = b.tensor(Dtype::i64, {1, 1, rows, tiles}, true), arrived = b.tensor(Dtype::i32, {1, 1, 1, rows}, true);
  std::vector<int> want;
  for (int row = 0; row < rows; ++row) want.push_back(fill_row(b, x, row, all_nan));
  for (int row = 0; row < rows; ++row) b.set(arrived, {0, 0, 0, row}, 0);
  b.operands = {x, out, found, arrived};
  b.op.dims[0] = (columns + 8 * tiles - 1) / (8 * tiles) * 8;
  b.tiles({1, 1, rows, tiles}, {1, 1, 1, 1});
  std::vector<u32> order(b.op.tile_count);
  std::iota(order.begin(), order.end(), 0u);
  std::shuffle(order.begin(), order.end(), b.rng);
  ASSERT_EQ(b.run_by(OpCode::argmax, 1, [&](const auto& frame, const auto& op) {
    EXPECT_EQ(op.dims[wire::kRowDim] != 0, rows == 1 && columns % 4 == 0) << "which body takes it";
    return run_on(warps, frame, op, order);
  }), FaultCode::none);
  for (int row = 0; row < rows; ++row) EXPECT_EQ(b.get(out, {0, 0, row, 0}), want[static_cast<std::size_t>(row)]) << "row " << row;
}

TEST(ArgmaxSplit, AnyOrderOfTilesFindsTheFirstOfTheLargest) {
  for (const bool warps : {false, true}) {
    check_argmax(1, 20000, 16, warps);
    check_argmax(1, 5000, 7, warps);
    check_argmax(1, 40, 8, warps);  // some tiles have nothing
    check_argmax(1, 4999, 3, warps);
    check_argmax(3, 2000, 5, warps);
    check_argmax(1, 4096, 4, warps, true);
    if (HasFailure()) return;
  }
}

}  // namespace
}  // namespace ccks::worker::test
