// Products of few rows that take their input from its tagged copy, before the events that say that it is there.
#include <gtest/gtest.h>

#include <functional>
#include <utility>

#include "ccks/worker/shaped_ops.hpp"
#include "tests/unit/worker/emulated_warps.hpp"

namespace ccks::worker::test {
namespace {

constexpr u32 kDepth = 256, kColumns = 16, kTag = 7;

/// What the gate has to say; it says it once bodies have looked `looks` times.
struct Gate {
  u32 looks = 0;      // how often lanes ask before the events are there
  bool stays = false;
  bool opens_for_those_who_wait = true;
  u32 asked = 0, waiting = 0;
  u32 hurried = 0;   // how often lanes that have tags alone ask before they are told to give up
  bool given_up = false;
  std::function<void()> comes = {};  // what happens when they have asked for long
};

class TaggedWarps : public EmulatedWarps {
 public:
  TaggedWarps(WarpBlock& block, u32 lane, Gate& gate, bool early) : EmulatedWarps(block, lane), block_(block), gate_(gate), early_(early) {}
  bool has_begun_early() const { return early_; }
  u32 tag() const { return kTag; }
  bool stays() const { return gate_.stays && gate_.asked >= gate_.looks; }
  bool are_inputs_there() const { return ++gate_.asked > gate_.looks; }
  bool await_inputs() {
    early_ = false;
    ++gate_.waiting;
    while (gate_.waiting < kLanes) block_.pass();
    return !gate_.stays;
  }
  bool is_hurried() const {
    if (++gate_.asked == 100 && gate_.comes) gate_.comes();
    block_.pass();
    return gate_.asked > gate_.hurried;
  }
  void give_up() const { gate_.given_up = true; }
  bool has_given_up() const { return gate_.given_up; }
  u64 load_tagged(const u64* p) const { return *p; }
  void store_tagged(u64* p, u64 v) const { *p = v; }
  bool any(bool here) {
    u32 all = here ? 1 : 0;
    for (u32 step = 1; step < kWarp; step *= 2) all |= shuffle_xor(all, step);
    return all != 0;
  }

 private:
  WarpBlock& block_;
  Gate& gate_;
  bool early_;
};

template <u32 kRows>
using Product = ShapedOp<OpCode::matmul, Code<>, Tiles<1, 1, kRows, 8, 1, 1, 1, kColumns / 8>,
                         Windows<Window<1, 1, kRows, kDepth, 0, 0, kDepth, 1, wire::kOperandContiguous>,
                                 Window<1, 1, kDepth, kColumns, 0, 0, kColumns, 1, wire::kOperandContiguous | wire::kOperandStreamed>,
                                 Window<1, 1, kRows, kColumns, 0, 0, kColumns, 1, wire::kOperandContiguous>>,
                         Dtype::f32, Dtype::f32, Dtype::f32>;

template <u32 kRows>
struct Rig {
  alignas(16) float a[kRows * kDepth];
  alignas(16) float b[kDepth * kColumns];
  alignas(16) float out[kRows * kColumns];
  u64 a_copy[kRows * kDepth], out_copy[kRows * kColumns];
  wire::RunFrame frame{};
  struct {
    wire::OpParams op;
    wire::OperandParams operands[3];
  } block;
  float input[kRows * kDepth];
  Gate gate;

  Rig() {
    for (u32 i = 0; i < kRows * kDepth; ++i) input[i] = static_cast<float>(i * 37 % 64) / 64 - 0.5f;
    for (u32 i = 0; i < kDepth * kColumns; ++i) b[i] = static_cast<float>(i * 29 % 32) / 32 - 0.5f;
    for (float& v : a) v = -1000;
    for (float& v : out) v = -1;
    for (u64& v : out_copy) v = wire::tagged_value(0, kTag - 1);
    tag_all(kTag - 1);
    block.op = Product<kRows>::params();
    const auto all = Product<kRows>::operands();
    void* const begin[3] = {a, b, out};
    for (u32 i = 0; i < 3; ++i) {
      block.operands[i] = all.of[i];
      block.operands[i].offset = reinterpret_cast<u64>(begin[i]);
    }
    block.op.operands = reinterpret_cast<u64>(block.operands);
    block.operands[0].tags = distance(a, a_copy);
    block.operands[2].tags = distance(out, out_copy);
  }
  static u32 distance(const void* from, const void* to) {
    return static_cast<u32>(static_cast<const u8*>(to) - static_cast<const u8*>(from));
  }
  void tag_all(u32 tag) {
    for (u32 i = 0; i < kRows * kDepth; ++i) a_copy[i] = wire::tagged_value(bit_cast<u32>(input[i]), tag);
  }
  void run(bool early = true) {
    const bool alone = (block.operands[0].flags & wire::kOperandTagsAlone) != 0;
    WarpBlock warps;
    for (u32 tile = 0; tile < block.op.tile_count; ++tile) {
      gate.asked = gate.waiting = 0;
      warps.run([&](u32 lane) {
        TaggedWarps lanes(warps, lane, gate, early);
        EXPECT_EQ(Product<kRows>::run(lanes, frame, block.op, tile), FaultCode::none);
        EXPECT_EQ(lanes.has_begun_early(), alone && early) << "it has not met the gate, or has though nobody is there";
      });
    }
  }
  void expect_right() const {
    for (u32 row = 0; row < kRows; ++row) {
      for (u32 column = 0; column < kColumns; ++column) {
        double want = 0;
        for (u32 p = 0; p < kDepth; ++p) want += double{input[row * kDepth + p]} * b[p * kColumns + column];
        const u32 at = row * kColumns + column;
        ASSERT_NEAR(out[at], want, 1e-4) << row << ", " << column;
        ASSERT_EQ(out_copy[at], wire::tagged_value(bit_cast<u32>(out[at]), kTag));
      }
    }
  }
};

template <class T>
class Tagged : public testing::Test {};
template <u32 kRows>
struct RowCount {
  static constexpr u32 kValue = kRows;
};
using Rows = testing::Types<RowCount<1>, RowCount<3>, RowCount<4>, RowCount<8>>;
TYPED_TEST_SUITE(Tagged, Rows);

TYPED_TEST(Tagged, ABodyGoesOnByTagsAlone) {
  Rig<TypeParam::kValue> rig;
  rig.tag_all(kTag);
  rig.gate.looks = ~0u;
  rig.run();
  rig.expect_right();
}

TYPED_TEST(Tagged, WhatIsNotTaggedIsReadOnceTheEventsAreThere) {
  for (const bool some : {false, true}) {
    Rig<TypeParam::kValue> rig;
    if (some) rig.tag_all(kTag);
    for (u32 i = 0; i < TypeParam::kValue * kDepth; ++i) {
      rig.a[i] = rig.input[i];
      if (i % 5 == 0 || !some) rig.a_copy[i] = wire::tagged_value(bit_cast<u32>(99.0f), kTag - 1);
    }
    rig.gate.looks = 700;
    rig.run();
    rig.expect_right();
    EXPECT_GT(rig.gate.asked, rig.gate.looks);
  }
}

TYPED_TEST(Tagged, ABodyThatTheWorkerLeavesBeforeStoresNothing) {
  Rig<TypeParam::kValue> rig;
  rig.tag_all(kTag);
  rig.a_copy[TypeParam::kValue * kDepth - 1] = 0;  // one lane finds no tag
  rig.gate.stays = true;
  rig.gate.looks = 50;
  rig.run();
  for (const float v : rig.out) EXPECT_EQ(v, -1);
  for (const u64 v : rig.out_copy) EXPECT_EQ(v, wire::tagged_value(0, kTag - 1));
}

/// Whether or not the worker says that the body has begun early: nobody comes to meet it.
TYPED_TEST(Tagged, ABodyThatHasTagsAloneWaitsForThem) {
  for (const bool early : {false, true}) {
    Rig<TypeParam::kValue> rig;
    rig.block.operands[0].flags |= wire::kOperandTagsAlone;
    for (u32 i = 0; i < TypeParam::kValue * kDepth; ++i) rig.a[i] = 99;
    rig.tag_all(kTag);
    const u64 last = std::exchange(rig.a_copy[TypeParam::kValue * kDepth - 3], wire::tagged_value(0, kTag - 1));
    rig.gate.hurried = ~0u;
    rig.gate.comes = [&] { rig.a_copy[TypeParam::kValue * kDepth - 3] = last; };
    rig.run(early);
    rig.expect_right();
  }
}

TYPED_TEST(Tagged, ABodyThatHasTagsAloneGivesUpWhereTheyDoNotCome) {
  Rig<TypeParam::kValue> rig;
  rig.block.operands[0].flags |= wire::kOperandTagsAlone;
  rig.tag_all(kTag);
  rig.a_copy[TypeParam::kValue * kDepth - 1] = 0;
  rig.gate.hurried = 50;
  rig.run(false);
  EXPECT_TRUE(rig.gate.given_up);
  for (const float v : rig.out) EXPECT_EQ(v, -1);
  for (const u64 v : rig.out_copy) EXPECT_EQ(v, wire::tagged_value(0, kTag - 1));
}

TYPED_TEST(Tagged, ABodyThatHasNotBegunEarlyReadsTheTensor) {
  Rig<TypeParam::kValue> rig;
  for (u32 i = 0; i < TypeParam::kValue * kDepth; ++i) {
    rig.a[i] = rig.input[i];
    rig.a_copy[i] = wire::tagged_value(bit_cast<u32>(99.0f), kTag);
  }
  rig.run(false);
  rig.expect_right();
}

}  // namespace
}  // namespace ccks::worker::test
