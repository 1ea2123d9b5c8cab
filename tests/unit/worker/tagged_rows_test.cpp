// Products of one row that take it from its tagged copy, and leave one, with weights that come through a ring.
#include <algorithm>
#include <array>
#include <functional>

#include "ccks/worker/shaped_ops.hpp"
#include "tests/unit/worker/emulated_stream.hpp"

namespace ccks::worker::test {
namespace {

constexpr u32 kTag = 9, kColumns = 24;

/// What the gate says of the inputs of a body that has begun early.
struct Gate {
  u32 looks = 1u << 30;  // how often lanes ask before they are there
  u32 asked = 0;
  bool missed = false;
  std::function<void(u32)> comes = [](u32) {};  // behind each question
  bool runs = true;  // what it says of the tile
  u32 met = 0;       // by bodies
  std::function<void()> meets = [] {};
};
struct GateInputs {
  Gate* gate;
  bool are_there() const {
    gate->comes(++gate->asked);
    return gate->asked > gate->looks;
  }
  void miss() const { gate->missed = true; }
  bool has_missed() const { return gate->missed; }
};

class OvertakingWarps : public StreamingWarps {
 public:
  static constexpr bool kRowTags = true;
  OvertakingWarps(WarpBlock& block, u32 lane, EmulatedRing& ring, Gate& gate) : StreamingWarps(block, lane, ring), block_(block), gate_(gate) {}
  u32 tag() const { return kTag; }
  void begin_early() { early_ = true; }
  bool has_begun_early() const { return early_; }
  bool are_inputs_there() const { return GateInputs{&gate_}.are_there(); }
  bool await_inputs() {
    if (!early_) return runs_;
    early_ = false;
    sync();
    if (lane() == 0) ++gate_.met, gate_.meets();
    sync();
    return runs_ = gate_.runs;
  }
  u64 load_tagged(const u64* p) const { return *p; }
  void load_tagged(const u64* p, u64 (&v)[2]) const {
    EXPECT_EQ(reinterpret_cast<u64>(p) % 16, 0u);
    v[0] = p[0], v[1] = p[1];
  }
  void store_tagged(u64* p, u64 v) const { *p = v; }
  bool any(bool here) { return which(here) != 0; }
  u32 which(bool here) {
    block_.pass();
    u32 all = here ? 1u << lane() % kWarp : 0;
    for (u32 step = 1; step < kWarp; step *= 2) all |= shuffle_xor(all, step);
    return all;
  }

 private:
  WarpBlock& block_;
  Gate& gate_;
  bool early_ = false, runs_ = true;
};

template <u32 kDepth>
using In = Window<1, 1, 1, kDepth, 0, 0, kDepth, 1, wire::kOperandContiguous>;
template <u32 kDepth>
using Weights = Window<1, 1, kDepth, kColumns, 0, 0, 1, kDepth, wire::kOperandStreamed>;
using Out = Window<1, 1, 1, kColumns, 0, 0, kColumns, 1, wire::kOperandContiguous>;
using Shape = Tiles<1, 1, 1, 16, 1, 1, 1, 2>;
/// acc + other
using Sum = Code<Ins<ExprOp::arg_f, 0, 0, 0, 0>, Ins<ExprOp::arg_f, 1, 0, 0, 1>, Ins<ExprOp::add_f, 0, 0, 1, 0>>;
template <u32 kDepth, Dtype D>
using Plain = ShapedOp<OpCode::matmul, Sum, Shape, Windows<In<kDepth>, Weights<kDepth>, Out, Out>, D, D, D, D>;
template <u32 kDepth, Dtype D>
using NormedOp = ShapedOp<OpCode::matmul, Normed<Code<>>, Shape, Windows<In<kDepth>, Weights<kDepth>, In<kDepth>, Out>, D, D, D, D>;

template <Dtype D>
u16 bits_of(float v) {
  return bit_cast<u16>(from_float<D>(v));
}
template <Dtype D>
float value_of(u32 bits) {
  return to_float<D>(bit_cast<Storage<D>>(static_cast<u16>(bits)));
}

template <template <u32, Dtype> class OpOf, u32 kDepth, Dtype D, bool kNorms>
struct Rig {
  using Op = OpOf<kDepth, D>;
  static constexpr u32 kThird = kNorms ? kDepth : kColumns;
  alignas(16) u16 row[kDepth];
  alignas(16) u16 weights[kDepth * kColumns];
  alignas(16) u16 third[kThird];  // what is added, or the norm's weight
  alignas(16) u16 out[kColumns];
  alignas(16) u64 row_copy[kDepth / 2], third_copy[kThird / 2], out_copy[kColumns / 2];
  u16 input[kDepth];
  wire::RunFrame frame{};
  struct {
    wire::OpParams op;
    wire::OperandParams operands[4];
  } block;
  Gate gate;

  Rig() {
    for (u32 i = 0; i < kDepth; ++i) input[i] = bits_of<D>(static_cast<float>(i * 37 % 64) / 64 - 0.5f);
    for (u32 i = 0; i < kDepth * kColumns; ++i) weights[i] = bits_of<D>(static_cast<float>(i * 29 % 61) / 64 - 0.5f);
    for (u32 i = 0; i < kThird; ++i) third[i] = bits_of<D>(static_cast<float>(i % 7) / 8 + 0.5f);
    for (u16& v : row) v = bits_of<D>(1000);
    for (u16& v : out) v = bits_of<D>(-1);
    for (u64& v : out_copy) v = wire::tagged_value(0, kTag - 1);
    for (u32 i = 0; i < kDepth / 2; ++i) row_copy[i] = wire::tagged_value(77, kTag - 1);
    block.op = Op::params();
    block.op.scalars[0] = 1e-3f;
    const auto all = Op::operands();
    void* const begin[4] = {row, weights, third, out};
    for (u32 i = 0; i < 4; ++i) {
      block.operands[i] = all.of[i];
      block.operands[i].offset = reinterpret_cast<u64>(begin[i]);
    }
    block.op.operands = reinterpret_cast<u64>(block.operands);
    block.operands[0].tags = distance(row, row_copy);
    block.operands[3].tags = distance(out, out_copy);
  }
  static u32 distance(const void* from, const void* to) { return static_cast<u32>(static_cast<const u8*>(to) - static_cast<const u8*>(from)); }
  void tag(u32 word) { row_copy[word] = wire::tagged_value(input[2 * word] | u32{input[2 * word + 1]} << 16, kTag); }
  void tag_all() {
    for (u32 i = 0; i < kDepth / 2; ++i) tag(i);
  }
  /// How many tiles have found their row.
  u32 run() {
    EXPECT_NE(block.op.flags & wire::kOpStreams, 0);
    WarpBlock warps;
    EmulatedRing ring(frame, block.op);
    u32 found = 0;
    for (u32 tile = 0; tile < block.op.tile_count; ++tile) {
      gate.missed = false;
      gate.asked = 0;
      warps.run([&](u32 lane) {
        OvertakingWarps lanes(warps, lane, ring, gate);
        const StreamedCall call(lanes, frame, block.op, tile);
        const bool has_row = overtake_streamed(lanes, GateInputs{&gate}, call, kTag);
        if (lane == 0 && has_row) ++found;
        multiply_streamed(lanes, lanes.stream(), call, has_row);
        if (has_row) lanes.begin_early();
        EXPECT_EQ(Op::run(lanes, frame, block.op, tile), FaultCode::none);
        EXPECT_FALSE(lanes.has_begun_early()) << "it has not met the gate";
      });
    }
    EXPECT_EQ(gate.met, found);
    EXPECT_TRUE(ring.is_spent());
    return found;
  }
  u32 stored() const { return static_cast<u32>(std::count_if(out, out + kColumns, [](u16 v) { return v != bits_of<D>(-1); })); }
  u32 tagged() const { return static_cast<u32>(std::count_if(out_copy, out_copy + kColumns / 2, [](u64 v) { return v >> 32 == kTag; })); }
  void expect_right(const u16* of) const {
    double squares = 0;
    for (u32 p = 0; p < kDepth; ++p) squares += double{value_of<D>(of[p])} * value_of<D>(of[p]);
    for (u32 column = 0; column < kColumns; ++column) {
      double want = kNorms ? 0 : value_of<D>(third[column]);
      for (u32 p = 0; p < kDepth; ++p) {
        const double factor = kNorms ? value_of<D>(third[p]) / std::sqrt(squares / kDepth + 1e-3) : 1.0;
        want += value_of<D>(of[p]) * factor * value_of<D>(weights[column * kDepth + p]);
      }
      ASSERT_NEAR(value_of<D>(out[column]), want, 0.02 * std::abs(want) + 0.2) << column;
      if (block.operands[3].tags == 0) continue;
      const u64 word = out_copy[column / 2];
      ASSERT_EQ(word >> 32, kTag);
      ASSERT_EQ(static_cast<u16>(word >> (column % 2 * 16)), out[column]) << column;
    }
  }
};

TEST(TaggedRows, ARowIsThereOnceItsTagsAre) {
  Rig<Plain, 2048, Dtype::bf16, false> rig;
  rig.tag_all();
  EXPECT_EQ(rig.run(), 2u);
  rig.expect_right(rig.input);
}

TEST(TaggedRows, LongRowsAndShortOnesOfEitherType) {
  Rig<Plain, 8200, Dtype::f16, false> deep;
  deep.tag_all();
  EXPECT_EQ(deep.run(), 2u);
  deep.expect_right(deep.input);
  Rig<NormedOp, 520, Dtype::bf16, true> shallow;
  shallow.tag_all();
  EXPECT_EQ(shallow.run(), 2u);
  shallow.expect_right(shallow.input);
  Rig<NormedOp, 4104, Dtype::f16, true> normed;  // in pieces
  normed.tag_all();
  EXPECT_EQ(normed.run(), 2u);
  normed.expect_right(normed.input);
}

TEST(TaggedRows, LanesWaitForWordsThatComeOneByOne) {
  Rig<NormedOp, 2048, Dtype::bf16, true> rig;
  u32 next = 0;
  rig.gate.comes = [&](u32) {
    for (u32 i = 0; i < 7 && next < 1024; ++i) rig.tag(next++ * 389 % 1024);
  };
  EXPECT_EQ(rig.run(), 2u);
  EXPECT_EQ(next, 1024u);
  rig.expect_right(rig.input);
}

TEST(TaggedRows, WithoutTagsTheRowIsReadWhereItLies) {
  Rig<Plain, 2048, Dtype::bf16, false> rig;
  for (u32 i = 0; i < 1024; ++i)
    if (i != 777) rig.tag(i);
  rig.gate.looks = 40;
  for (u32 i = 0; i < 2048; ++i) rig.row[i] = rig.input[i];
  rig.input[5] = bits_of<Dtype::bf16>(64);  // what was tagged is not what counts
  rig.tag(2);
  EXPECT_EQ(rig.run(), 0u);
  rig.expect_right(rig.row);
}

TEST(TaggedRows, WhatAnEpilogueReadsComesByItsTagsToo) {
  Rig<Plain, 2048, Dtype::bf16, false> rig;
  rig.tag_all();
  for (u32 i = 0; i < kColumns; ++i) rig.third_copy[i / 2] = wire::tagged_value(rig.third[i & ~1u] | u32{rig.third[i | 1]} << 16, kTag);
  u16 lies[kColumns];
  std::memcpy(lies, rig.third, sizeof lies);
  for (u16& v : rig.third) v = bits_of<Dtype::bf16>(500);  // not there yet
  rig.block.operands[2].tags = rig.distance(rig.third, rig.third_copy);
  EXPECT_EQ(rig.run(), 2u);
  std::memcpy(rig.third, lies, sizeof lies);
  rig.expect_right(rig.input);
}

TEST(TaggedRows, WordsGoInFrontOfTheGateAndValuesBehindIt) {
  Rig<Plain, 2048, Dtype::bf16, false> rig;
  rig.tag_all();
  rig.gate.meets = [&] {
    const u32 columns = rig.gate.met == 1 ? 16 : kColumns;  // of its tiles
    EXPECT_EQ(rig.tagged(), columns / 2);
    EXPECT_EQ(rig.stored(), rig.gate.met == 1 ? 0u : 16u);
  };
  EXPECT_EQ(rig.run(), 2u);
  rig.expect_right(rig.input);
}

TEST(TaggedRows, ATileThatItsWorkerLeavesBeforeStoresNoValues) {
  Rig<Plain, 2048, Dtype::bf16, false> rig;
  rig.tag_all();
  rig.gate.runs = false;
  EXPECT_EQ(rig.run(), 2u);
  EXPECT_EQ(rig.stored(), 0u);
  rig.gate.runs = true;  // and is run again
  rig.gate.met = 0;
  EXPECT_EQ(rig.run(), 2u);
  rig.expect_right(rig.input);
}

TEST(TaggedRows, WhoLeavesNoWordsMeetsTheGateFirst) {
  Rig<Plain, 2048, Dtype::bf16, false> rig;
  rig.tag_all();
  rig.block.operands[3].tags = 0;
  rig.gate.meets = [&] { EXPECT_EQ(rig.stored(), rig.gate.met == 1 ? 0u : 16u); };
  EXPECT_EQ(rig.run(), 2u);
  EXPECT_EQ(rig.tagged(), 0u);
  rig.expect_right(rig.input);
}

TEST(TaggedRows, WithoutWordsOfItsOwnAnEpiloguesRowIsReadWhereItLies) {
  for (const bool runs : {true, false}) {
    Rig<Plain, 2048, Dtype::bf16, false> rig;
    rig.tag_all();
    for (u32 i = 0; i < kColumns / 2; ++i) rig.third_copy[i] = wire::tagged_value(77, kTag - (i % 3 == 0 ? 1 : 0));
    rig.block.operands[2].tags = rig.distance(rig.third, rig.third_copy);
    const auto begun = std::to_array(rig.third);
    for (u16& v : rig.third) v = bits_of<Dtype::bf16>(500);  // there with the events
    rig.gate.looks = 40;
    rig.gate.runs = runs;
    rig.gate.meets = [&] { std::copy(begun.begin(), begun.end(), rig.third); };
    EXPECT_EQ(rig.run(), 2u);
    if (runs)
      rig.expect_right(rig.input);
    else
      EXPECT_EQ(rig.stored() + rig.tagged(), 0u);
  }
}

TEST(TaggedRows, ATagThatComesWithTheEventsCounts) {
  Rig<Plain, 2048, Dtype::bf16, false> rig;
  rig.gate.looks = 40;
  rig.gate.comes = [&](u32 asked) {
    if (asked == 40) rig.tag_all();
  };
  EXPECT_EQ(rig.run(), 2u);
  rig.expect_right(rig.input);
}

}  // namespace
}  // namespace ccks::worker::test
