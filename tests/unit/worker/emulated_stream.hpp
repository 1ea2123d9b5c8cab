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

class StreamingWarps : public EmulatedWarps {
 public:
  StreamingWarps(WarpBlock& block, wire::u32 lane, EmulatedRing& ring) : EmulatedWarps(block, lane), block_(block), ring_(ring) {}

  bool streams() const { return true; }
  class Stream {
   public:
    explicit Stream(StreamingWarps& lanes) : lanes_(lanes), at_(lanes.ring_.place) {}
    const wire::u8* await() const {
      const wire::u8* stage = lanes_.ring_.stage(at_);
      for (; stage == nullptr; stage = lanes_.ring_.stage(at_)) lanes_.block_.pass();
      return stage;
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
  WarpBlock& block_;
  EmulatedRing& ring_;
};

/// As a worker runs them.
template <class Op>
wire::FaultCode run_streamed(const wire::RunFrame& frame, const wire::OpParams& op) {
  WarpBlock block;
  EmulatedRing ring(frame, op);
  wire::FaultCode fault = wire::FaultCode::none;
  block.run([&](wire::u32 lane) {
    StreamingWarps lanes(block, lane, ring);
    for (wire::u32 tile = 0; tile < op.tile_count; ++tile) {
      multiply_streamed(lanes, lanes.stream(), StreamedCall(lanes, frame, op, tile));
      const wire::FaultCode f = Op::run(lanes, frame, op, tile);
      if (f != wire::FaultCode::none) fault = f;
      lanes.sync();
    }
  });
  EXPECT_TRUE(ring.is_spent());
  return fault;
}

/// The body of products that reads dtypes and code from the frame. It is large, so it is compiled once, in emulated_stream.cpp.
struct ProductsByFrame;
template <>
wire::FaultCode run_streamed<ProductsByFrame>(const wire::RunFrame& frame, const wire::OpParams& op);

}  // namespace ccks::worker::test
