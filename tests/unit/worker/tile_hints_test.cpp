// Tiles that the ops like best, where a wrong choice costs time and no test of values would notice.
#include "ccks/worker/tile_hints.hpp"

#include <gtest/gtest.h>

#include <utility>

namespace ccks::worker {
namespace {

TileQuestion product(DeviceClass device, wire::i64 rows, wire::i64 columns, wire::Dtype dtype = wire::Dtype::f32) {
  TileQuestion q;
  q.kind = wire::OpCode::matmul;
  q.dtype = dtype;
  q.device = device;
  q.workers = 132;
  q.extent[2] = rows;
  q.extent[3] = columns;
  q.depth = 256;
  return q;
}

TEST(TileHints, IdleWorkersShareTheRowsOfAProduct) {
  const auto rows = [](wire::i64 m, wire::i64 n) { return tile_hint(product(DeviceClass::cuda, m, n)).tile[2]; };
  EXPECT_EQ(rows(8, 256), 4) << "32 tiles of eight columns: 64 of half the rows find a worker each";
  EXPECT_EQ(rows(5, 256), 4);
  EXPECT_EQ(rows(4, 256), 4);
  EXPECT_EQ(rows(1, 256), 1);
  EXPECT_EQ(rows(8, 1024), 8) << "every worker has a tile";
  EXPECT_EQ(rows(8, 128256), 8);
  EXPECT_EQ(tile_hint(product(DeviceClass::cuda, 8, 256, wire::Dtype::bf16)).tile[2], 8) << "weights would be read twice";
  EXPECT_EQ(tile_hint(product(DeviceClass::host, 4, 256)).tile[2], 4);
}

TEST(TileHints, ProductsOfManyRowsAreAsWideAsLetsTheBusiestWorkerBeThroughFirst) {
  const auto tile = [](wire::i64 m, wire::i64 n, bool rows_vary = false, wire::i64 widest = 0, wire::i64 depth = 512) {
    TileQuestion q = product(DeviceClass::cuda, m, n, wire::Dtype::bf16);
    q.depth = depth;
    q.roomy = true;
    q.rows_vary = rows_vary;
    q.widest = widest;
    const TileHint t = tile_hint(q);
    return std::pair(t.tile[2], t.tile[3]);
  };
  EXPECT_EQ(tile(44'055, 1'536), std::pair(128, 256));
  EXPECT_EQ(tile(5'364, 1'536), std::pair(128, 256)) << "two of 256 columns, where of 128 there would be four";
  EXPECT_EQ(tile(5'364, 512), std::pair(128, 256)) << "one each, alone";
  EXPECT_EQ(tile(5'364, 512, false, 512), std::pair(128, 192)) << "one each";
  EXPECT_EQ(tile(5'364, 512, true, 512), std::pair(128, 256)) << "some rows more, and one each would be two";
  // Behind one of several tiles a worker.
  for (const wire::i64 depth : {512, 2'048}) {
    EXPECT_EQ(tile(5'364, 512, true, 2'048, depth), std::pair(128, 128)) << depth;
    EXPECT_EQ(tile(6'403, 512, true, 2'048, depth), std::pair(128, 128)) << depth;
    EXPECT_EQ(tile(11'905, 512, true, 2'048, depth), std::pair(128, 256)) << depth << ": what all take counts more";
  }
  EXPECT_EQ(tile(1'376, 1'536), std::pair(128, 128)) << "one each";
  EXPECT_EQ(tile(1'376, 1'536, true), std::pair(128, 256)) << "some rows more, and one each would be two";
  EXPECT_EQ(tile(1'376, 1'536, true, 1'536), std::pair(128, 192)) << "of which there is one each then, too";
  EXPECT_EQ(tile(1'446, 512), std::pair(64, 64)) << "48 tiles of 128 x 128";
}

TEST(TileHints, AttentionOfManyRowsTakesAsManyHeadsATileAsLeaveWorkersSomeTilesEach) {
  const auto heads = [](wire::i64 rows, wire::i64 all, wire::i64 group = 1) {
    TileQuestion q;
    q.kind = wire::OpCode::attention;
    q.dtype = wire::Dtype::bf16;
    q.device = DeviceClass::cuda;
    q.workers = 132;
    q.granule = 64;
    q.group = group;
    q.extent[2] = q.depth = rows;
    q.extent[3] = all * 64;
    const TileHint t = tile_hint(q);
    EXPECT_EQ(t.tile[2], 128);
    return t.tile[3] / 64;
  };
  EXPECT_EQ(heads(44'055, 8), 8) << "three tiles for the busiest worker, where of one head there would be 21";
  EXPECT_EQ(heads(24'006, 8), 4);
  EXPECT_EQ(heads(11'905, 8), 2);
  EXPECT_EQ(heads(6'403, 8), 1) << "of two heads there would be fewer than two for each worker, and tiles differ";
  EXPECT_EQ(heads(44'055, 32, 4), 4) << "a group always shares a tile, beside which little is left to gain";
}

TEST(TileHints, ProductsOfNineTo64RowsKeepThemTogether) {
  const auto tile = [](wire::i64 m, wire::i64 n, auto change) {
    TileQuestion q = product(DeviceClass::cuda, m, n, wire::Dtype::bf16);
    q.roomy = q.packets = true;
    q.depth = 2048;
    change(q);
    const TileHint t = tile_hint(q);
    return std::pair(t.tile[2], t.tile[3]);
  };
  const auto same = [](TileQuestion&) {};
  EXPECT_EQ(tile(64, 8192, same), std::pair(64, 64));
  EXPECT_EQ(tile(9, 2048, same), std::pair(9, 64));
  EXPECT_EQ(tile(64, 128256, same), std::pair(64, 128)) << "seven tiles a worker";
  EXPECT_EQ(tile(16, 128256, [](TileQuestion& q) { q.dtype = wire::Dtype::f32; }), std::pair(16, 128)) << "what is put out may be wider";
  EXPECT_EQ(tile(8, 2048, same).first, 8);
  EXPECT_EQ(tile(16, 8192, [](TileQuestion& q) { q.roomy = false; }), std::pair(8, 128)) << "workers have no room for stages";
  EXPECT_EQ(tile(16, 8192, [](TileQuestion& q) { q.packets = false; }), std::pair(8, 128)) << "weights do not lie along depth";
  EXPECT_NE(tile(16, 128256, [](TileQuestion& q) { q.depth = 256; }).second, 128) << "too shallow to stream";
}

TEST(TileHints, UpToSixteenRowsOfDeepProductsAreTwoTilesOfEight) {
  const auto tile = [](wire::i64 m, wire::i64 n, wire::i64 depth, wire::Dtype dtype = wire::Dtype::bf16) {
    TileQuestion q = product(DeviceClass::cuda, m, n, dtype);
    q.depth = depth;
    const TileHint t = tile_hint(q);
    return std::pair(t.tile[2], t.tile[3]);
  };
  EXPECT_EQ(tile(16, 2048, 2048), std::pair(8, 32)) << "2 x 64 tiles, one a worker";
  EXPECT_EQ(tile(9, 8192, 2048), std::pair(8, 128));
  EXPECT_EQ(tile(8, 8192, 2048), std::pair(8, 64));
  EXPECT_EQ(tile(16, 128256, 2048), std::pair(8, 128));
  EXPECT_GT(tile(17, 2048, 2048).first, 8);
  EXPECT_EQ(tile(16, 2048, 256).first, 16) << "too shallow to stream";
  EXPECT_EQ(tile(16, 512, 512, wire::Dtype::f32), std::pair(8, 8)) << "blocks of 16 x 64 would be eight tiles";
  EXPECT_EQ(tile(16, 512, 128, wire::Dtype::f32).first, 16);
}

TEST(TileHints, ColumnsOfAReduceAreSharedOut) {
  const auto columns = [](wire::i64 depth, wire::i64 n, DeviceClass device = DeviceClass::cuda) {
    TileQuestion q;
    q.kind = wire::OpCode::reduce;
    q.device = device;
    q.workers = 132;
    q.extent[3] = n;
    q.depth = depth;
    return tile_hint(q).tile[3];
  };
  EXPECT_EQ(columns(16, 512), 128);
  EXPECT_EQ(columns(2, 512), 512) << "one tile takes as long as four of a quarter";
  EXPECT_EQ(columns(4096, 512), 32) << "a line of memory";
  EXPECT_EQ(columns(4096, 20), 20);
  EXPECT_EQ(columns(512, 1), 1);
  EXPECT_EQ(columns(16, 512, DeviceClass::host), 512);
}

TEST(TileHints, ATileOfATopkHasARowForEachWarp) {
  const auto rows = [](DeviceClass device, wire::i64 m) {
    TileQuestion q = product(device, m, 8);
    q.kind = wire::OpCode::topk;
    q.depth = 128;
    return tile_hint(q).tile[2];
  };
  EXPECT_EQ(rows(DeviceClass::cuda, 65536), 8);
  EXPECT_EQ(rows(DeviceClass::cuda, 132), 1) << "every worker has one";
  EXPECT_GT(rows(DeviceClass::host, 65536), 8);
}

TEST(TileHints, ExpertsOfFewRowsHaveWiderTiles) {
  const auto columns = [](wire::i64 rows, wire::i64 n, wire::i64 depth) {
    TileQuestion q = product(DeviceClass::cuda, rows, n, wire::Dtype::bf16);
    q.kind = wire::OpCode::expert_matmul;
    q.experts = 128;
    q.depth = depth;
    return tile_hint(q).tile[3];
  };
  EXPECT_EQ(columns(512, 1536, 2048), 384) << "four rows of an expert: all tiles take as long";
  EXPECT_EQ(columns(2048, 1536, 2048), 384);
  EXPECT_EQ(columns(2049, 1536, 2048), 256);
  EXPECT_EQ(columns(512, 256, 2048), 64) << "too few columns for all workers";
  EXPECT_EQ(columns(16, 1536, 2048), 64) << "too few rows";
  EXPECT_EQ(columns(512, 2048, 768), 512) << "not deep";
}

}  // namespace
}  // namespace ccks::worker
