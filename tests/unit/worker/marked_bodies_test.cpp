// The bodies that frames call for by kOpFlat and kOpVectors, on emulated warps beside the portable ones. Each test first sees
// that its shape is marked: else it would test something else.
#include <algorithm>

#include "tests/unit/worker/ops_fixture.hpp"

namespace ccks::worker::test {
namespace {

constexpr Dtype kFloats[] = {Dtype::f32, Dtype::f16, Dtype::bf16};
Dtype any_float(Bench& b) { return kFloats[b.pick(0, 2)]; }

// What mark_shape says of the op as it stands.
std::uint8_t marks(Bench& b, OpCode kind, std::size_t inputs) {
  std::uint8_t flags = 0;
  b.op.kind = static_cast<std::uint8_t>(kind);
  (void)b.run_by(kind, inputs, [&](const wire::RunFrame&, const wire::OpParams& op) {
    flags = op.flags;
    return FaultCode::none;
  });
  return flags;
}
#define EXPECT_MARK(b, kind, inputs, mark) EXPECT_TRUE((marks(b, kind, inputs) & (mark)) != 0) << b.describe()

Tensor filled(Bench& b, Dtype d, Index shape, double lo = -1, double hi = 1) {
  const Tensor t = b.tensor(d, shape, true);
  b.fill(t, lo, hi);
  return t;
}
// [1, 1, 1, d] or [.., 1], seen as `shape`.
Tensor spread(Bench& b, Dtype d, Index shape, bool along) {
  Index own{1, 1, 1, 1};
  own[along ? 3 : 2] = shape[along ? 3 : 2];
  Tensor t = filled(b, d, own);
  for (int i = 0; i < 4; ++i)
    if (own[i] == 1) t.stride[i] = 0;
  t.dim = shape;
  t.flags = 0;
  return t;
}

void check_flat(std::uint32_t seed, Index shape, Index tile) {
  Bench b(seed);
  const Tensor x = filled(b, any_float(b), shape), y = filled(b, Dtype::i32, shape, -9, 9);
  b.operands = {x, y, b.tensor(any_float(b), shape, true)};
  b.code = {ins(ExprOp::arg_f, 0), ins(ExprOp::arg_f, 1, 0, 0, 1), ins(ExprOp::mul_f, 0, 0, 1)};
  b.tiles(shape, tile);
  EXPECT_MARK(b, OpCode::map, 2, wire::kOpFlat);
  b.check(OpCode::map, 2, [&](std::size_t, const Index& c) { return b.get(x, c) * b.get(y, c); });
}

TEST(MarkedMap, FlatRanges) {
  check_flat(1, {1, 1, 64, 64}, {1, 1, 16, 64});
  check_flat(2, {1, 1, 13, 12}, {1, 1, 5, 12});
  check_flat(3, {2, 3, 4, 20}, {1, 1, 4, 20});
  check_flat(4, {1, 1, 1, 1000}, {1, 1, 1, 96});
  check_flat(5, {3, 2, 5, 8}, {2, 2, 5, 8});
}

TEST(MarkedMap, TilesThatAreNotRangesAreNotFlat) {
  Bench b(6);
  const Index shape{1, 1, 8, 16};
  b.operands = {filled(b, Dtype::f32, shape), b.tensor(Dtype::f32, shape, true)};
  b.tiles(shape, {1, 1, 8, 8});
  EXPECT_EQ(marks(b, OpCode::map, 1) & wire::kOpFlat, 0);
  b.tiles({1, 3, 5, 16}, {1, 1, 2, 16});  // five rows in tiles of two: the third tile is short
  b.operands[0].dim = b.operands[1].dim = {1, 3, 5, 16};
  EXPECT_EQ(marks(b, OpCode::map, 1) & wire::kOpFlat, 0);
}

TEST(MarkedMap, FlatIdentityAndIntegers) {
  Bench b(7);
  const Index shape{1, 1, 6, 24};
  const Tensor x = filled(b, Dtype::i64, shape, -1e9, 1e9);
  b.operands = {x, b.tensor(Dtype::i64, shape, true)};
  b.tiles(shape, {1, 1, 4, 24});
  EXPECT_MARK(b, OpCode::map, 1, wire::kOpFlat);
  b.check(OpCode::map, 1, [&](std::size_t, const Index& c) { return b.get(x, c); });
  b.code = {ins(ExprOp::arg_i, 0), ins(ExprOp::const_i, 1, 0, 0, 3), ins(ExprOp::mul_i, 0, 0, 1)};
  b.check(OpCode::map, 1, [&](std::size_t, const Index& c) { return b.get(x, c) * 3; });
}

void check_rows_of_map(std::uint32_t seed, Index shape, Index tile, bool along) {
  Bench b(seed);
  const Tensor x = filled(b, any_float(b), shape), y = spread(b, any_float(b), shape, along);
  b.operands = {x, y, b.tensor(any_float(b), shape, true)};
  b.code = {ins(ExprOp::arg_f, 0), ins(ExprOp::arg_f, 1, 0, 0, 1), ins(ExprOp::add_f, 0, 0, 1)};
  b.tiles(shape, tile);
  EXPECT_MARK(b, OpCode::map, 2, wire::kOpVectors);
  EXPECT_EQ(marks(b, OpCode::map, 2) & wire::kOpFlat, 0);
  b.check(OpCode::map, 2, [&](std::size_t, const Index& c) { return b.get(x, c) + b.get(y, c); });
}

TEST(MarkedMap, RowsThatBroadcast) {
  check_rows_of_map(11, {1, 1, 10, 64}, {1, 1, 4, 64}, true);
  check_rows_of_map(12, {1, 1, 10, 64}, {1, 1, 4, 16}, false);
  check_rows_of_map(13, {2, 3, 5, 12}, {1, 2, 3, 8}, true);
  check_rows_of_map(14, {2, 3, 5, 12}, {2, 3, 5, 12}, false);
}

/// Whether tiles of the op are runs of elements.
bool in_elements(Bench& b, OpCode kind, std::size_t inputs) {
  bool is = false;
  b.run_by(kind, inputs, [&](const auto&, const auto& op) {
    is = op.dims[wire::kTileElementsDim] != 0;
    return FaultCode::none;
  });
  return is;
}

void check_elements(std::uint32_t seed, Index shape, Index tile) {
  Bench b(seed);
  const Tensor x = filled(b, any_float(b), shape), y = filled(b, Dtype::i32, shape, -9, 9);
  b.operands = {x, y, b.tensor(any_float(b), shape, true)};
  b.code = {ins(ExprOp::arg_f, 0), ins(ExprOp::arg_f, 1, 0, 0, 1), ins(ExprOp::mul_f, 0, 0, 1)};
  b.tiles(shape, tile);
  EXPECT_EQ(marks(b, OpCode::map, 2) & (wire::kOpFlat | wire::kOpVectors), 0);
  EXPECT_TRUE(in_elements(b, OpCode::map, 2)) << b.describe();
  b.check(OpCode::map, 2, [&](std::size_t, const Index& c) { return b.get(x, c) * b.get(y, c); });
  b.code.clear();
  b.operands = {x, y, b.operands[2]};
  EXPECT_TRUE(in_elements(b, OpCode::select, 2));
  b.check(OpCode::select, 2, [&](std::size_t, const Index& c) { return b.get(x, c); });  // no guards: all hold
  b.operands = {y, b.operands[2]};
  EXPECT_TRUE(in_elements(b, OpCode::map, 1));
  b.check(OpCode::map, 1, [&](std::size_t, const Index& c) { return b.get(y, c); });
  b.operands = {y, b.tensor(Dtype::i32, shape, true)};
  EXPECT_TRUE(in_elements(b, OpCode::report, 1));
  b.check(OpCode::report, 1, [&](std::size_t, const Index& c) { return b.get(y, c); });
}

TEST(MarkedMap, ElementsThatMakeNoVectors) {
  check_elements(21, {1, 1, 1, 1}, {1, 1, 1, 1});
  check_elements(22, {1, 1, 1, 3}, {1, 1, 1, 3});
  check_elements(23, {1, 1, 13, 7}, {1, 1, 5, 7});
  check_elements(24, {1, 1, 1, 1001}, {1, 1, 1, 300});
  check_elements(25, {3, 2, 5, 3}, {1, 2, 5, 3});
}

TEST(MarkedMap, OneElementLiesInOrderWhereverItIs) {
  Bench b(26);
  const Tensor all = filled(b, Dtype::f32, {1, 1, 4, 5});
  Tensor one = all;
  one.dim = {1, 1, 1, 1};
  one.offset += 4 * 7;
  one.flags = 0;
  b.operands = {one, b.tensor(Dtype::f32, one.dim, true)};
  b.code = {ins(ExprOp::arg_f, 0), ins(ExprOp::index_i, 1, 0, 0, 3), ins(ExprOp::f_from_i, 1, 1), ins(ExprOp::add_f, 0, 0, 1)};
  b.tiles(one.dim, {1, 1, 1, 1});
  EXPECT_TRUE(in_elements(b, OpCode::map, 1));
  b.check(OpCode::map, 1, [&](std::size_t, const Index& c) { return b.get(one, c); });
  b.operands[0].dim = b.operands[1].dim = {1, 1, 2, 1};
  b.operands[0].stride[2] = 5;
  EXPECT_FALSE(in_elements(b, OpCode::map, 1)) << "two apart";
}

struct Product {
  int batch, m, k, n, tile_m, tile_n;
  bool down;
};

// Body none: not marked, for the bodies that find everything out themselves.
// `placed`: its epilogue asks where in the output it is.
void check_product(std::uint32_t seed, const Product& p, Dtype dtype, wire::ProductBody body, int tile_batch = 1, bool placed = false) {
  Bench b(seed);
  const Index shape{1, p.batch, p.m, p.n};
  const Tensor x = filled(b, dtype, {1, p.batch, p.m, p.k});
  Tensor y = p.down ? filled(b, dtype, {1, p.batch, p.n, p.k}) : filled(b, dtype, {1, p.batch, p.k, p.n});
  if (p.down) {
    std::swap(y.stride[2], y.stride[3]);
    std::swap(y.dim[2], y.dim[3]);
    y.flags = 0;
  }
  const Tensor other = spread(b, dtype, shape, b.coin());
  b.operands = {x, y, other, b.tensor(dtype, shape, true)};
  b.op.dims[wire::kEpilogueDim] = 2;
  b.code = {ins(ExprOp::arg_f, 3), ins(ExprOp::arg_f, 1, 0, 0, 1), ins(ExprOp::add_f, 3, 3, 1), ins(ExprOp::relu_f, 3, 3)};
  for (std::uint32_t axis = 1; placed && axis < 4; ++axis) {
    b.code.insert(b.code.end(), {ins(ExprOp::index_i, 1, 0, 0, axis), ins(ExprOp::f_from_i, 1, 1), ins(ExprOp::add_f, 3, 3, 1)});
  }
  b.tiles(shape, {1, tile_batch, p.tile_m, p.tile_n});
  const bool marked = body != wire::ProductBody::none;
  EXPECT_EQ((marks(b, OpCode::matmul, 3) & wire::kOpVectors) != 0, marked) << b.describe();
  if (marked) {
    (void)b.run_by(OpCode::matmul, 3, [&](const wire::RunFrame&, const wire::OpParams& op) {
      EXPECT_EQ(op.dims[0], static_cast<int>(body)) << b.describe();
      return FaultCode::none;
    });
  }
  b.check(OpCode::matmul, 3, [&](std::size_t, const Index& c) {
    double sum = 0;
    for (int k = 0; k < p.k; ++k) sum += b.get(x, {c[0], c[1], c[2], k}) * b.get(y, {c[0], c[1], k, c[3]});
    return std::max(0.0, sum + b.get(other, c)) + (placed ? c[1] + c[2] + c[3] : 0);
  });
}

using Body = wire::ProductBody;

TEST(MarkedMatmul, FewRows) {
  std::uint32_t seed = 20;
  for (const Dtype dtype : kFloats) {
    check_product(seed++, {1, 1, 256, 64, 1, 8, false}, dtype, Body::row);
    check_product(seed++, {2, 3, 100, 200, 1, 100, false}, dtype, Body::row);
    check_product(seed++, {2, 3, 36, 40, 3, 12, false}, dtype, Body::four_rows);
    check_product(seed++, {1, 4, 1500, 8, 4, 8, false}, dtype, Body::four_rows);
    check_product(seed++, {1, 8, 256, 32, 8, 8, false}, dtype, Body::eight_rows);
    check_product(seed++, {2, 5, 1500, 136, 5, 128, false}, dtype, Body::eight_rows);
    check_product(seed++, {1, 6, 4, 4, 6, 4, false}, dtype, Body::eight_rows);
  }
}

TEST(MarkedMatmul, Blocks) {
  std::uint32_t seed = 80;
  for (const Dtype dtype : kFloats) {
    check_product(seed++, {6, 16, 64, 16, 16, 16, true}, dtype, Body::head);
    check_product(seed++, {2, 16, 16, 64, 16, 64, false}, dtype, Body::head);
    check_product(seed++, {1, 50, 16, 52, 50, 52, true}, dtype, Body::head);
    check_product(seed++, {1, 9, 4, 4, 9, 4, false}, dtype, Body::head);
    check_product(seed++, {1, 61, 132, 68, 40, 36, false}, dtype, Body::block);
    check_product(seed++, {1, 61, 132, 68, 40, 36, true}, dtype, Body::block);
    check_product(seed++, {3, 33, 68, 12, 33, 12, true}, dtype, Body::block);
  }
}

TEST(MarkedMatmul, EpiloguesThatAskWhereTheyAre) {
  check_product(60, {2, 1, 256, 64, 1, 8, false}, Dtype::f32, Body::row, 1, true);
  check_product(61, {2, 3, 36, 40, 3, 12, false}, Dtype::f32, Body::four_rows, 1, true);
  check_product(62, {1, 8, 256, 32, 8, 8, false}, Dtype::f32, Body::eight_rows, 1, true);
  check_product(63, {2, 1, 8, 260, 1, 256, true}, Dtype::f32, Body::turned_row, 1, true);
  check_product(64, {1, 4, 1544, 12, 2, 4, true}, Dtype::f32, Body::turned_four_rows, 1, true);
  check_product(65, {6, 16, 64, 16, 16, 16, true}, Dtype::f32, Body::head, 1, true);
  check_product(66, {1, 61, 132, 68, 40, 36, false}, Dtype::f32, Body::block, 1, true);
}

TEST(MarkedMatmul, FewRowsByColumns) {
  std::uint32_t seed = 140;
  for (const Dtype dtype : kFloats) {
    check_product(seed++, {1, 1, 256, 64, 1, 8, true}, dtype, Body::turned_row);
    check_product(seed++, {1, 1, 4104, 40, 1, 16, true}, dtype, Body::turned_row);
    check_product(seed++, {2, 1, 8, 260, 1, 256, true}, dtype, Body::turned_row);
    check_product(seed++, {2, 3, 104, 20, 3, 20, true}, dtype, Body::turned_four_rows);
    check_product(seed++, {1, 4, 1544, 12, 2, 4, true}, dtype, Body::turned_four_rows);
    check_product(seed++, {1, 8, 1504, 36, 8, 36, true}, dtype, Body::turned_eight_rows);
    check_product(seed++, {3, 7, 264, 68, 7, 64, true}, dtype, Body::turned_eight_rows);
  }
}

TEST(MarkedMatmul, ColumnsThatMakeNoVectors) {
  std::uint32_t seed = 300;
  for (const int n : {1, 2, 3, 5, 17, 255}) check_product(seed++, {1, 1, 128, n, 1, (n + 3) / 4 * 4, true}, Dtype::f32, Body::turned_row);
  for (const int n : {2, 3, 7, 30}) {
    check_product(seed++, {2, 3, 104, n, 3, n, true}, Dtype::f32, Body::turned_four_rows);
    check_product(seed++, {1, 16, 1544, n, 8, 32, true}, Dtype::f32, Body::turned_eight_rows);
  }
  // One column of several rows, columns of several tiles, and what matrix units take.
  check_product(seed++, {1, 3, 128, 1, 3, 1, true}, Dtype::f32, Body::none);
  check_product(seed++, {1, 1, 128, 9, 1, 8, true}, Dtype::f32, Body::none);
  check_product(seed++, {1, 1, 128, 2, 1, 2, true}, Dtype::bf16, Body::none);
}

TEST(UnmarkedMatmul, FindsOutItself) {
  std::uint32_t seed = 110;
  for (const Dtype dtype : kFloats) {
    check_product(seed++, {1, 1, 260, 64, 1, 8, true}, dtype, Body::none);
    check_product(seed++, {2, 3, 100, 20, 3, 20, true}, dtype, Body::none, 2);
    check_product(seed++, {1, 8, 1500, 36, 8, 36, true}, dtype, Body::none);
    check_product(seed++, {2, 16, 64, 16, 16, 16, false}, dtype, Body::none, 2);
    check_product(seed++, {1, 3, 64, 300, 3, 300, false}, dtype, Body::none);
  }
}

// Rows of a tile, tile[0..2], of a last dim that is whole.
void check_softmax(std::uint32_t seed, Index shape, Index tile) {
  Bench b(seed);
  const Tensor x = filled(b, any_float(b), shape, -5, 5);
  b.operands = {x, b.tensor(any_float(b), shape, true)};
  b.op.scalars[0] = 0.7f;
  b.tiles(shape, tile);
  EXPECT_MARK(b, OpCode::softmax, 1, wire::kOpVectors);
  b.check(OpCode::softmax, 1, [&](std::size_t, const Index& c) {
    double sum = 0;
    for (int i = 0; i < shape[3]; ++i) sum += std::exp(0.7f * (b.get(x, {c[0], c[1], c[2], i}) - b.get(x, c)));
    return 1 / sum;
  });
}

// Short rows, rows of a warp, of all lanes, and one beyond what registers hold.
TEST(MarkedRows, Softmax) {
  check_softmax(100, {2, 2, 16, 16}, {1, 1, 16, 16});
  check_softmax(101, {2, 3, 5, 20}, {2, 2, 3, 20});
  check_softmax(102, {1, 1, 7, 128}, {1, 1, 7, 128});
  check_softmax(103, {1, 1, 5, 300}, {1, 1, 5, 300});
  check_softmax(104, {1, 1, 1, 300}, {1, 1, 1, 300});
  check_softmax(105, {1, 1, 2, 1024}, {1, 1, 2, 1024});
  check_softmax(106, {1, 1, 2, 1028}, {1, 1, 1, 1028});
}

void check_norm(std::uint32_t seed, OpCode kind, bool with_bias, int rows, int width) {
  Bench b(seed);
  const Index shape{1, 1, rows, width}, line{1, 1, 1, width};
  const Tensor x = filled(b, any_float(b), shape, -2, 3), w = filled(b, any_float(b), line), bias = filled(b, any_float(b), line);
  b.operands = {x, w};
  if (with_bias) b.operands.push_back(bias);
  b.operands.push_back(b.tensor(any_float(b), shape, true));
  b.op.scalars[0] = 1e-3f;
  b.op.dims[0] = with_bias;
  b.tiles(shape, {1, 1, std::min(rows, 4), width});
  const std::size_t inputs = with_bias ? 3 : 2;
  EXPECT_MARK(b, kind, inputs, wire::kOpVectors);
  b.check(kind, inputs, [&](std::size_t, const Index& c) {
    double mean = 0, squares = 0;
    for (int i = 0; i < width; ++i) mean += b.get(x, {0, 0, c[2], i}) / width;
    if (kind == OpCode::rmsnorm) mean = 0;
    for (int i = 0; i < width; ++i) squares += std::pow(b.get(x, {0, 0, c[2], i}) - mean, 2) / width;
    const double v = (b.get(x, c) - mean) / std::sqrt(squares + 1e-3) * b.get(w, {0, 0, 0, c[3]});
    return with_bias ? v + b.get(bias, {0, 0, 0, c[3]}) : v;
  });
}

TEST(MarkedRows, Norms) {
  std::uint32_t seed = 120;
  for (const int width : {8, 128, 260, 512, 1024, 1100, 4096}) {
    check_norm(seed++, OpCode::rmsnorm, false, 9, width);
    check_norm(seed++, OpCode::layernorm, false, 5, width);
    check_norm(seed++, OpCode::layernorm, true, 1, width);
  }
}

}  // namespace
}  // namespace ccks::worker::test
