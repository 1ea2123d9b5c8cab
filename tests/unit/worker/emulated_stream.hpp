// Emulated warps to which weights come through a ring, as they do to those of a GPU: what bodies of kOpStreams ops are tested on.
#pragma once

#include <gtest/gtest.h>

#include <cstdlib>
#include <cstring>
#include <functional>
#include <vector>

#include "ccks/worker/product_streamed.hpp"
#include "tests/unit/worker/emulated_warps.hpp"

namespace ccks::worker::test {

/// The weights of all tiles of an op, in order. A stage is filled when it is first waited for, with what no result may depend on around.
class EmulatedRing {
 public:
  static constexpr wire::u32 kStages = 3, kWarps = WarpBlock::kLanes / WarpBlock::kWarp;

  EmulatedRing(const wire::RunFrame& frame, const wire::OpParams& op) {
    for (wire::u32 tile = 0; tile < op.tile_count; ++tile) {
      for (WeightPieces piece(Call(frame, op), tile); !piece.done(); piece.step()) pieces_.push_back(piece);
    }
  }

  StreamPlace place;

  /// Null: bodies have not read yet what is there.
  const wire::u8* stage(const StreamPlace& at) {
    if (freed_[at.stage] < at.round * kWarps) return nullptr;
    const wire::u32 number = at.round * kStages + at.stage;
    if (number > filled_ || number >= pieces_.size()) std::abort();  // out of order, or more than there is
    if (number == filled_) fill(at.stage);
    return stages_[at.stage].bytes;
  }
  bool is_empty(const StreamPlace& at) const { return freed_[at.stage] >= at.round * kWarps; }
  void free(const StreamPlace& at) { ++freed_[at.stage]; }
  /// Whether every stage has been taken by every warp.
  bool is_spent() const {
    wire::u32 freed = 0;
    for (const wire::u32 warps : freed_) freed += warps;
    return freed == pieces_.size() * kWarps;
  }

 private:
  struct Stage {
    alignas(128) wire::u8 bytes[kStageBytes];
  };

  void fill(wire::u32 stage) {
    const WeightPieces& piece = pieces_[filled_++];
    std::memset(stages_[stage].bytes, 0xff, kStageBytes);  // no numbers
    for (wire::u32 i = 0; i < piece.width(); ++i) std::memcpy(stages_[stage].bytes + i * kStagePitch, piece.from(i), piece.bytes());
  }

  std::vector<WeightPieces> pieces_;
  std::vector<Stage> stages_ = std::vector<Stage>(kStages);
  wire::u32 freed_[kStages] = {};  // by warps, over all rounds
  wire::u32 filled_ = 0;
};

/// What stands for the gate: when a body hears that its inputs are there, and what was not there before.
struct EmulatedInputs {
  wire::u32 looks = 0;  // of lanes, until they are; 0: before the body begins
  bool leaves = false;  // the worker, before the tile
  wire::u8* rows = nullptr;
  std::vector<wire::u8> bytes;  // of them; poison lies in their place
  wire::u32 asked = 0, waiting = 0;

  void hide(const wire::RunFrame& frame, const wire::OpParams& op) {
    const OperandParams& a = Call(frame, op).operands[0];
    rows = operand_base(frame, a);
    bytes.assign(rows, rows + a.dim[0] * a.dim[1] * a.dim[2] * i64{a.dim[3]} * 2);  // contiguous
    std::memset(rows, 0xff, bytes.size());
    asked = waiting = 0;
  }
  void show() { std::memcpy(rows, bytes.data(), bytes.size()); }
};

class StreamingWarps : public RoomyWarps {
 public:
  StreamingWarps(WarpBlock& block, wire::u32 lane, EmulatedRing& ring) : RoomyWarps(block, lane), block_(block), ring_(ring) {}
  wire::u32 scratch_bytes() const { return kMinScratchBytes; }
  /// Reads at once, what may not be there yet; it arrives when it is waited for.
  void copy_sixteen(wire::u8* to, const wire::u8* from, bool) {
    copies_.push_back({to, *reinterpret_cast<const Sixteen*>(from)});
    std::memset(to, 0xff, 16);
  }
  template <wire::u32 kLeft>
  void await_copies() {
    for (const Copy& copy : copies_) std::memcpy(copy.to, &copy.bytes, 16);
    copies_.clear();
  }

  class Inputs {
   public:
    Inputs(WarpBlock& block, EmulatedInputs& all) : block_(block), all_(all), early_(all.looks != 0) {}
    bool are_there() const { return !early_ || ++all_.asked > all_.looks; }
    bool await() {
      if (!early_) return true;
      early_ = false;
      if (++all_.waiting == WarpBlock::kLanes && !all_.leaves) all_.show();
      while (all_.waiting < WarpBlock::kLanes) block_.pass();
      return !all_.leaves;
    }

   private:
    WarpBlock& block_;
    EmulatedInputs& all_;
    bool early_;
  };

  bool streams() const { return true; }
  class Stream {
   public:
    explicit Stream(StreamingWarps& lanes) : lanes_(lanes), at_(lanes.ring_.place) {}
    const wire::u8* await() const {
      const wire::u8* stage = lanes_.ring_.stage(at_);
      for (; stage == nullptr; stage = lanes_.ring_.stage(at_)) lanes_.block_.pass();
      return stage;
    }
    /// Lanes do not see it at the same time.
    bool is_filled() {
      return ++lanes_.looks_ % 3 == lanes_.lane() % 2 && lanes_.ring_.is_empty(at_);
    }
    void free() {
      if (lanes_.block_.exchange(lanes_.lane() % kWarp, lanes_.lane()) == 0) lanes_.ring_.free(at_);  // all lanes of the warp have come this far
      at_.step(EmulatedRing::kStages);
    }
    void leave() const {
      if (lanes_.lane() == 0) lanes_.ring_.place = at_;
    }

   private:
    StreamingWarps& lanes_;
    StreamPlace at_;
  };
  Stream stream() { return Stream(*this); }

 private:
  struct Copy {
    wire::u8* to;
    Sixteen bytes;
  };

  WarpBlock& block_;
  EmulatedRing& ring_;
  wire::u32 looks_ = 0;
  std::vector<Copy> copies_;
};

/// As a worker runs them; inputs.looks: bodies begin before their inputs.
template <class Op>
wire::FaultCode run_streamed(const wire::RunFrame& frame, const wire::OpParams& op, EmulatedInputs inputs = {}) {
  WarpBlock block;
  EmulatedRing ring(frame, op);
  wire::FaultCode fault = wire::FaultCode::none;
  block.run([&](wire::u32 lane) {
    StreamingWarps lanes(block, lane, ring);
    for (wire::u32 tile = 0; tile < op.tile_count; ++tile) {
      if (inputs.looks != 0 && lane == 0) inputs.hide(frame, op);
      lanes.sync();
      const bool runs = multiply_streamed(lanes, lanes.stream(), StreamedCall(lanes, frame, op, tile), StreamingWarps::Inputs(block, inputs));
      EXPECT_EQ(runs, !inputs.leaves);
      if (!runs) return inputs.show();
      const wire::FaultCode f = Op::run(lanes, frame, op, tile);
      if (f != wire::FaultCode::none) fault = f;
      lanes.sync();
    }
  });
  EXPECT_EQ(ring.is_spent(), !inputs.leaves);
  return fault;
}

/// The body of products that reads dtypes and code from the frame. It is large, so it is compiled once, in emulated_stream.cpp.
struct ProductsByFrame;
template <>
wire::FaultCode run_streamed<ProductsByFrame>(const wire::RunFrame& frame, const wire::OpParams& op, EmulatedInputs inputs);

}  // namespace ccks::worker::test
