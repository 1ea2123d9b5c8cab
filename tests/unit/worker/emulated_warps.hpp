// A thread block of warps without a GPU: lanes are fibers that take turns on one thread, so that a barrier costs a switch and
// every run is the same. What bodies for lanes in warps (WarpLanes) are tested on.
#pragma once

#include <ucontext.h>

#include <cmath>
#include <cstdlib>
#include <algorithm>
#include <cstring>
#include <functional>
#include <memory>
#include <set>
#include <vector>

#include "ccks/wire/op_shape.hpp"
#include "ccks/worker/call.hpp"
#include "ccks/worker/element.hpp"
#include "ccks/worker/lanes.hpp"
#include "ccks/worker/tile_hints.hpp"

namespace ccks::worker::test {

class WarpBlock {
 public:
  static constexpr wire::u32 kLanes = wire::kMarkedLanes, kWarp = 32;
  static constexpr wire::u32 kRoomyScratchBytes = kCudaGroupedScratchBytes;  // what RoomyWarps have

  WarpBlock() : scratch_(new Scratch) { std::memset(scratch_->bytes, 0xff, sizeof scratch_->bytes); }

  /// Runs body(lane) on every lane, until all have returned.
  void run(const std::function<void(wire::u32)>& body) {
    body_ = &body;
    for (wire::u32 lane = 0; lane < kLanes; ++lane) {
      if (stacks_[lane] == nullptr) stacks_[lane] = std::make_unique_for_overwrite<char[]>(kStackBytes);
      getcontext(&lanes_[lane]);
      lanes_[lane].uc_stack.ss_sp = stacks_[lane].get();
      lanes_[lane].uc_stack.ss_size = kStackBytes;
      lanes_[lane].uc_link = nullptr;
      const auto self = reinterpret_cast<std::uintptr_t>(this);
      makecontext(&lanes_[lane], reinterpret_cast<void (*)()>(&WarpBlock::enter), 2, static_cast<unsigned>(self >> 32),
                  static_cast<unsigned>(self));
    }
    left_ = kLanes;
    at_ = 0;
    swapcontext(&caller_, &lanes_[0]);
  }

  wire::u32 lane() const { return at_; }
  wire::u8* scratch() { return scratch_->bytes; }
  static constexpr wire::u32 scratch_bytes() { return kMinScratchBytes; }
  void sync() { wait(all_, kLanes); }
  /// Lets the others go on, for a lane that waits for one of them.
  void pass() { yield(); }
  template <class T>
  T exchange(T v, wire::u32 from) {
    static_assert(sizeof(T) <= sizeof(double));
    const wire::u32 me = at_;
    std::memcpy(&slots_[me], &v, sizeof v);
    wait(warps_[me / kWarp], kWarp);
    std::memcpy(&v, &slots_[from], sizeof v);
    wait(warps_[me / kWarp], kWarp);
    return v;
  }
  void arrive_at(wire::u32 which) { arrive(apart_[which], kLanes); }
  void meet_at(wire::u32 which) { wait(apart_[which], kLanes); }
  struct Words {
    wire::u32 word[4];
  };
  /// What all lanes of the warp have shown, until they next meet.
  const Words* show(const Words& words) {
    const wire::u32 me = at_;
    shown_[me] = words;
    wait(warps_[me / kWarp], kWarp);
    return &shown_[me / kWarp * kWarp];
  }

 private:
  static constexpr std::size_t kStackBytes = 128 * 1024;
  struct Scratch {
    alignas(128) wire::u8 bytes[kRoomyScratchBytes];
  };
  struct Barrier {
    wire::u32 arrived = 0, turn = 0;
  };

  static void enter(unsigned high, unsigned low) {
    auto* block = reinterpret_cast<WarpBlock*>(static_cast<std::uintptr_t>(high) << 32 | low);
    (*block->body_)(block->at_);
    block->leave();
  }
  void leave() {
    done_[at_] = true;
    if (--left_ > 0) yield();
    std::memset(done_, 0, sizeof done_);
    setcontext(&caller_);
  }
  void yield() {
    const wire::u32 from = at_;
    do {
      at_ = (at_ + 1) % kLanes;
    } while (done_[at_]);
    if (at_ != from) swapcontext(&lanes_[from], &lanes_[at_]);
  }
  static void arrive(Barrier& barrier, wire::u32 lanes) {
    if (++barrier.arrived < lanes) return;
    barrier.arrived = 0;
    ++barrier.turn;
  }
  void wait(Barrier& barrier, wire::u32 lanes) {
    const wire::u32 turn = barrier.turn;
    arrive(barrier, lanes);
    while (barrier.turn == turn) yield();
  }

  const std::function<void(wire::u32)>* body_ = nullptr;
  std::unique_ptr<Scratch> scratch_;
  std::unique_ptr<char[]> stacks_[kLanes];
  ucontext_t lanes_[kLanes], caller_;
  bool done_[kLanes] = {};
  double slots_[kLanes];
  Words shown_[kLanes];
  Barrier all_, warps_[kLanes / kWarp], apart_[4];
  wire::u32 left_ = 0, at_ = 0;
};

class EmulatedWarps {
 public:
  static constexpr bool kSingleLane = false;
  static constexpr wire::u32 kWarp = WarpBlock::kWarp, kLanes = WarpBlock::kLanes;
  EmulatedWarps(WarpBlock& block, wire::u32 lane) : block_(block), lane_(lane) {}
  wire::u32 lane() const { return lane_; }
  wire::u32 lanes() const { return kLanes; }
  void sync() { block_.sync(); }
  template <wire::Dtype D>
  void multiply(float (&sum)[2], const wire::u32 (&a)[2], const wire::u32 (&b)[2]) {
    const auto* lanes = block_.show({a[0], a[1], b[0], b[1]});
    const wire::u32 row = lane_ % kWarp / 4, column = lane_ % 4 * 2;
    for (wire::u32 k = 0; k < 16; ++k) {
      const wire::u32 word = k / 8, from = k % 8 / 2, shift = k % 2 * 16;
      for (wire::u32 i = 0; i < 2; ++i)
        sum[i] += value<D>(lanes[row * 4 + from].word[word] >> shift) * value<D>(lanes[(column + i) * 4 + from].word[2 + word] >> shift);
    }
    block_.exchange(0, lane_);
  }
  template <wire::Dtype D>
  void multiply_wide(float (&sum)[4], const wire::u32 (&a)[4], const wire::u32 (&b)[2]) {
    const wire::u32 low[2] = {a[0], a[2]}, high[2] = {a[1], a[3]};
    float above[2] = {sum[0], sum[1]}, below[2] = {sum[2], sum[3]};
    multiply<D>(above, low, b);
    multiply<D>(below, high, b);
    sum[0] = above[0], sum[1] = above[1], sum[2] = below[0], sum[3] = below[1];
  }
  wire::u32 turn(wire::u32 word) {
    const auto* lanes = block_.show({word, 0, 0, 0});
    const wire::u32 row = lane_ % kWarp / 4, column = lane_ % 4 * 2;
    const auto element = [&](wire::u32 r) { return lanes[r * 4 + row / 2].word[0] >> (row % 2 * 16) & 0xffffu; };
    const wire::u32 turned = element(column) | element(column + 1) << 16;
    block_.exchange(0, lane_);
    return turned;
  }
  void sync_warp() { block_.exchange(0, lane_); }
  wire::u32 ones_of(wire::u32 mask) const { return static_cast<wire::u32>(__builtin_popcount(mask)); }
  static void count_in_scratch(wire::u32* word) { ++*word; }
  wire::u32 same_in_warp(wire::u32 v) {
    const auto* lanes = block_.show({v, 0, 0, 0});
    wire::u32 same = 0;
    for (wire::u32 i = 0; i < kWarp; ++i) same |= lanes[i].word[0] == v ? 1u << i : 0u;
    sync_warp();
    return same;
  }
  wire::i32 most_in_warp(wire::i32 v) {
    for (wire::u32 step = 1; step < kWarp; step *= 2) v = std::max(v, shuffle_xor(v, step));
    return v;
  }
  template <class T>
  const T* nearby(const T* p) {
    return p;
  }
  template <wire::Dtype D>
  wire::u32 pair(float low, float high) {
    return from_float<D>(low) | static_cast<wire::u32>(from_float<D>(high)) << 16;
  }
  wire::u32 low_halves(wire::u32 a, wire::u32 b) { return (a & 0xffffu) | b << 16; }
  wire::u32 high_halves(wire::u32 a, wire::u32 b) { return a >> 16 | (b & 0xffff0000u); }
  float larger(float a, float b) { return std::fmax(a, b); }
  float power_of_two(float v) { return std::exp2(v); }
  float inverse(float v) { return 1.0f / v; }
  float inverse_root(float v) { return 1.0f / std::sqrt(v); }
  wire::u32 count_in(wire::u32* word) { return (*word)++; }  // all on one thread
  wire::u8* scratch() { return block_.scratch(); }
  wire::u32 scratch_bytes() const { return WarpBlock::scratch_bytes(); }
  template <class T>
  T shuffle_xor(T v, wire::u32 mask) {
    return block_.exchange(v, lane_ ^ mask);
  }
  template <class T>
  T sum(T v) {
    return fold(v, [](T a, T b) { return static_cast<T>(a + b); });
  }
  template <class T>
  T max(T v) {
    return fold(v, [](T a, T b) { return a > b ? a : b; });
  }
  template <class T>
  T min(T v) {
    return fold(v, [](T a, T b) { return a < b ? a : b; });
  }

 protected:
  WarpBlock& block() { return block_; }
  const WarpBlock::Words* shown(const WarpBlock::Words& words) { return block_.show(words); }
  template <wire::Dtype D>
  static float value(wire::u32 bits) {
    const auto half = static_cast<wire::u16>(bits);
    return to_float<D>(__builtin_bit_cast(Storage<D>, half));
  }
 private:
  template <class T, class F>
  T fold(T v, F f) {
    static double slots[kLanes];
    for (wire::u32 step = kWarp / 2; step > 0; step /= 2) v = f(v, shuffle_xor(v, step));
    sync();
    std::memcpy(&slots[lane_], &v, sizeof v);
    sync();
    T all = v;
    for (wire::u32 i = 0; i < kLanes / kWarp; ++i) {
      T other;
      std::memcpy(&other, &slots[i * kWarp], sizeof other);
      all = i == 0 ? other : f(all, other);
    }
    return all;
  }

  WarpBlock& block_;
  wire::u32 lane_;
};

/// An op as a worker copies it: operands behind it, with addresses.
struct Copied {
  wire::OpParams op;
  wire::OperandParams operands[8];

  Copied(const wire::RunFrame& frame, const wire::OpParams& from) : op(from) {
    const auto* table = reinterpret_cast<const wire::OperandParams*>(reinterpret_cast<const wire::u8*>(&frame) + frame.operands);
    for (u32 i = 0; i < u32{op.input_count} + op.output_count; ++i) {
      operands[i] = table[op.operand_first + i];
      operands[i].offset = reinterpret_cast<u64>(operand_base(frame, operands[i]));
      operands[i].space = static_cast<wire::u8>(wire::Space::absolute);
    }
    op.operands = reinterpret_cast<u64>(operands);
  }
};

/// Runs tiles 0 to `tiles` of an op by Op, a body for warps, on one block; a fault, or none. seen(lanes): on lane 0, behind the last.
template <class Op, class Lanes, class Seen>
wire::FaultCode run_on_warps(const wire::RunFrame& frame, const wire::OpParams& op, wire::u32 tiles, const Seen& seen) {
  WarpBlock block;
  wire::FaultCode fault = wire::FaultCode::none;
  block.run([&](wire::u32 lane) {
    Lanes lanes(block, lane);
    for (wire::u32 tile = 0; tile < tiles; ++tile) {
      const wire::FaultCode f = Op::run(lanes, frame, op, tile);
      if (f != wire::FaultCode::none) fault = f;
      lanes.sync();
    }
    if (lane == 0) seen(lanes);
  });
  return fault;
}
template <class Op>
wire::FaultCode run_on_warps(const wire::RunFrame& frame, const wire::OpParams& op, wire::u32 tiles) {
  return run_on_warps<Op, EmulatedWarps>(frame, op, tiles, [](const EmulatedWarps&) {});
}
template <class Op>
wire::FaultCode run_on_warps(const wire::RunFrame& frame, const wire::OpParams& op) {
  return run_on_warps<Op>(frame, op, op.tile_count);
}

/// EmulatedWarps with more scratch, into which copies go on in the background: what is copied is not there, but poison, until it has been waited for.
class RoomyWarps : public EmulatedWarps {
 public:
  RoomyWarps(WarpBlock& block, wire::u32 lane) : EmulatedWarps(block, lane), groups_(1) {}
  wire::u32 scratch_bytes() const { return WarpBlock::kRoomyScratchBytes; }
  wire::u32 copies() const { return copies_; }
  void copy_sixteen(wire::u8* to, const wire::u8* from, bool there) {
    ++copies_;
    std::memset(to, 0xff, 16);
    groups_.back().push_back({to, there ? from : nullptr});
  }
  void commit_copies() { groups_.emplace_back(); }
  template <wire::u32 kLeft>
  void await_copies() {
    for (; groups_.size() > kLeft + 1; groups_.erase(groups_.begin()))
      for (const Copy& copy : groups_.front()) {
        if (copy.from != nullptr)
          std::memcpy(copy.to, copy.from, 16);
        else
          std::memset(copy.to, 0, 16);
      }
  }

 private:
  struct Copy {
    wire::u8* to;
    const wire::u8* from;
  };
  std::vector<std::vector<Copy>> groups_;  // the last has not ended
  wire::u32 copies_ = 0;
};

/// RoomyWarps of which four multiply together: what they multiply is looked at once they have waited, and must have stayed as it was.
class GroupWarps : public RoomyWarps {
 public:
  using RoomyWarps::RoomyWarps;
  wire::u32 groups() const { return groups_; }
  void show_copies() {}
  template <wire::Dtype D, wire::u32 kN>
  void multiply_group(float (&sum)[kN][4], const wire::u8* a, const wire::u8* b, bool adds = true) {
    begin_product<D>(sum, a, b, 0, 4, adds);
  }
  template <wire::Dtype D, wire::u32 kParts, wire::u32 kN>
  void multiply_parts(float (&sum)[kN][4], const wire::u8* base, wire::u32 a, wire::u32 b, wire::u32 first, bool adds) {
    begin_product<D>(sum, base + a, base + b, first, kParts, adds);
  }
  wire::u32 of_warp(wire::u32 v) const { return v; }
  void begin_group() {}
  void commit_group() {
    begun_.push_back(held_);
    held_.clear();
    ++groups_;
  }
  void arrive_at(wire::u32 which) { block().arrive_at(which); }
  void meet_at(wire::u32 which) { block().meet_at(which); }
  template <wire::Dtype D, bool kFresh = false, wire::u32 kN>
  void multiply_held(float (&sum)[kN][4], const wire::u32 (&a)[4], const wire::u8* b, wire::u32 part) {
    held_.push_back({D, nullptr, b, &sum[0][0], kN, a, part, false, kFresh});
    awaited_.insert(&sum[0][0]);
  }
  template <wire::Dtype D>
  void multiply_down(float (&sum)[8][4], const wire::u32 (&a)[4], const wire::u8* b) {
    held_.push_back({D, nullptr, b, &sum[0][0], 8, a, 0, true, false});
    awaited_.insert(&sum[0][0]);
  }
  template <wire::u32 kN>
  void await_group(float (&sum)[kN][4]) {
    awaited_.erase(&sum[0][0]);
    await_groups_before<0>();
  }
  template <wire::u32 kLeft>
  void await_groups_before() {
    for (; begun_.size() > kLeft; begun_.erase(begun_.begin()))
      for (const Begun& one : begun_.front()) one.type == wire::Dtype::bf16 ? add<wire::Dtype::bf16>(one) : add<wire::Dtype::f16>(one);
  }
  /// Of what was multiplied all has been waited for by its sums.
  bool awaited_all() const { return begun_.empty() && awaited_.empty(); }

 private:
  template <wire::Dtype D, wire::u32 kN>
  void begin_product(float (&sum)[kN][4], const wire::u8* a, const wire::u8* b, wire::u32 first, wire::u32 parts, bool adds) {
    ++groups_;
    begun_.push_back({{D, a, b, &sum[0][0], kN, nullptr, first, false, !adds, parts}});
    awaited_.insert(&sum[0][0]);
  }
  struct Begun {
    wire::Dtype type;
    const wire::u8 *a, *b;
    float* sum;
    wire::u32 columns;    // in eights
    const wire::u32* held;  // instead of a
    wire::u32 part;         // of b's rows, where held, else the first of both's
    bool down, fresh;
    wire::u32 parts = 1;
  };
  template <wire::Dtype D>
  static float element(const wire::u8* rows, wire::u32 row, wire::u32 k) {
    wire::u16 bits;
    std::memcpy(&bits, rows + row * 128 + ((k / 8) ^ (row % 8)) * 16 + k % 8 * 2, 2);
    return to_float<D>(__builtin_bit_cast(Storage<D>, bits));
  }
  template <wire::Dtype D>
  void add(const Begun& begun) {
    if ((reinterpret_cast<std::uintptr_t>(begun.a) | reinterpret_cast<std::uintptr_t>(begun.b)) % 1024 != 0) std::abort();  // no operand of theirs
    const wire::u32 row = lane() / kWarp % 4 * 16 + lane() % kWarp / 4, column = lane() % 4 * 2;
    if (begun.held != nullptr) return add_held<D>(begun, column);
    if (begun.fresh) std::fill_n(begun.sum, begun.columns * 4, 0.0f);
    for (wire::u32 j = 0; j < begun.columns; ++j)
      for (wire::u32 q = 0; q < 4; ++q)
        for (wire::u32 k = begun.part * 16; k < (begun.part + begun.parts) * 16; ++k) begun.sum[j * 4 + q] += element<D>(begun.a, row + q / 2 * 8, k) * element<D>(begun.b, j * 8 + column + q % 2, k);
  }
  /// What the lanes of a warp hold they show each other: all of them wait together.
  template <wire::Dtype D>
  void add_held(const Begun& begun, wire::u32 column) {
    const auto* lanes = shown({begun.held[0], begun.held[1], begun.held[2], begun.held[3]});
    if (begun.fresh) std::fill_n(begun.sum, begun.columns * 4, 0.0f);
    for (wire::u32 j = 0; j < begun.columns; ++j)
      for (wire::u32 q = 0; q < 4; ++q)
        for (wire::u32 k = 0; k < 16; ++k) {
          const wire::u32 word = lanes[lane() % kWarp / 4 * 4 + k % 8 / 2].word[q / 2 + k / 8 * 2];
          const float a = value<D>(word >> (k % 2 * 16));
          const wire::u32 at = j * 8 + column + q % 2;
          begun.sum[j * 4 + q] += a * (begun.down ? element<D>(begun.b, k, at) : element<D>(begun.b, at, begun.part * 16 + k));
        }
    sync_warp();
  }

  std::vector<std::vector<Begun>> begun_;
  std::vector<Begun> held_;  // not yet committed
  std::set<const float*> awaited_;  // sums that nobody may look at yet
  wire::u32 groups_ = 0;
};

}  // namespace ccks::worker::test
