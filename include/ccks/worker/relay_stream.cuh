// Where a relay (relay.cuh) keeps what it needs in a block's shared memory, and what keeps memory busy for it: the posting warp has its weights copied into a ring of its own, in the
// order of steps, as far ahead as the ring goes, and the steps themselves some way in front of that. It looks in whenever it waits for anything, as for the ring of other
// products (pipeline_stream.cuh), which stands still meanwhile.
//
// Layout. Scratch: RelayShared, a row (or what attention needs in its place), then, up to its end, as many stages as fit; behind it the head of the other ring, whose barriers stay as they are;
// then stages again, two in the place of each of the other ring's.
#pragma once

#include "ccks/wire/relay.hpp"
#include "ccks/worker/pipeline_stage.cuh"

namespace ccks::worker {
inline namespace CCKS_ISA {

inline constexpr u32 kRelayDepth = wire::kRelayDepth;
inline constexpr u32 kRelayPitch = kRelayDepth * 2 + 64;     // as kStagePitch
inline constexpr u32 kRelayStageBytes = wire::kRelayColumns * kRelayPitch;
inline constexpr u32 kMostRelayStages = 16;
inline constexpr u32 kRelaySteps = 4;  // in shared memory: the one that is run, and those whose weights are asked for
static_assert(kStageBytes == 2 * kRelayStageBytes && sizeof(StreamRing) % 128 == 0);

/// In front of scratch while a relay runs.
// Roles  full, empty, step_full, step_empty  barriers, see relay.cuh
//        sums, squares  of a product, by each warp; two of each in turn
//        tops, weights  of attention, by query and warp
struct alignas(128) RelayShared {
  wire::RelayStep steps[kRelaySteps];
  u64 full[kMostRelayStages], empty[kMostRelayStages];
  u64 step_full[kRelaySteps], step_empty[kRelaySteps];
  float sums[2][kCudaLanes / kWarpLanes][wire::kMostRelayColumns];
  float squares[2][kCudaLanes / kWarpLanes];
  u64 begun_ns, ready_ns;  // of the step, where traces are taken; by one thread
  float tops[wire::kMostRelayQueries][kCudaLanes / kWarpLanes], weights[wire::kMostRelayQueries][kCudaLanes / kWarpLanes];
};

static_assert(sizeof(RelayShared) + wire::kMostRelayStepBytes <= kMinScratchBytes);

__device__ __forceinline__ RelayShared& relay_shared() { return *reinterpret_cast<RelayShared*>(dynamic_shared() + kSharedInFront); }
/// Where stages are, found out once by who fills them and by each who reads them.
struct RelayStages {
  u8* first;
  u32 count, in_scratch;

  __device__ __forceinline__ explicit RelayStages(const CudaPipelineMemory::Relay& relay)
      : first(dynamic_shared() + relay.first_stage), count(relay.stages), in_scratch(relay.in_scratch) {}
  __device__ __forceinline__ u8* at(u32 stage) const { return first + stage * kRelayStageBytes + (stage < in_scratch ? 0 : static_cast<u32>(sizeof(StreamRing))); }
};

/// By one lane, before the others begin. `op`: dims as wire/relay.hpp has them.
inline __device__ void begin_relay(CudaPipelineMemory& memory, RelayShared& shared, const wire::RunFrame& frame, const wire::OpParams& op, u32 scratch_bytes) {
  constexpr u32 kWarps = kCudaLanes / kWarpLanes;
  const u32 used = static_cast<u32>(sizeof(RelayShared) + op.dims[2]);
  const u32 in_scratch = used < scratch_bytes ? (scratch_bytes - used) / kRelayStageBytes : 0, behind = memory.ring == nullptr ? 0 : 2 * memory.ring->stages;
  CudaPipelineMemory::Relay& relay = memory.relay;
  relay.in_scratch = least(in_scratch, kMostRelayStages);
  relay.stages = least(relay.in_scratch + behind, kMostRelayStages);
  relay.first_stage = kSharedInFront + scratch_bytes - relay.in_scratch * kRelayStageBytes;
  relay.steps = reinterpret_cast<const u8*>(&frame) + op.dims[1];
  relay.count = static_cast<u32>(op.dims[0]);
  relay.under_way = static_cast<u32>(op.dims[3]);
  relay.most_ahead = static_cast<u32>(op.dims[4]);
  relay.pace = static_cast<u32>(op.dims[5]);
  relay.state = frame.state;
  relay.fill = {};
  for (u32 i = 0; i < relay.stages; ++i) {
    ptx::mbarrier_init(&shared.full[i], 1);
    ptx::mbarrier_init(&shared.empty[i], kWarps);
  }
  for (u32 i = 0; i < kRelaySteps; ++i) {
    ptx::mbarrier_init(&shared.step_full[i], 1);
    ptx::mbarrier_init(&shared.step_empty[i], kWarps);
  }
  ptx::st_relaxed_cta_shared(&relay.done, 0);  // relaxed: [RL1] publishes it
  ptx::fence_proxy_async_shared();
}

/// By the posting warp. What it looks at for each stage it keeps in registers: on a GPU whose memory is fast a stage lands every 0.45 us.
class RelayStream {
 public:
  __device__ __forceinline__ explicit RelayStream(CudaPipelineMemory& memory)
      : relay_(memory.relay), shared_(relay_shared()), stages_(relay_), steps_(relay_.steps), count_(relay_.count), under_way_(relay_.under_way),
        most_ahead_(relay_.most_ahead), pace_(relay_.pace), fill_(relay_.fill) {}

  /// Asks for whatever there is room for, and looks again for a while.
  __device__ __forceinline__ void serve() {
    if (fill_.asked == 0) ptx::fence_proxy_async_global();  // steps and weights may have been written since; whoever sent the run has waited for that
    for (u32 idle = 0; idle < kTurns;) {
      __syncwarp();  // what lanes look at is the same if they look at the same time
      if (ask_step() | ask_stage()) {
        idle = 0;
        continue;
      }
      if (ptx::ld_acquire_cta_shared(&relay_.done) != 0) return end();  // [RL6] pairs with [RL5]
      ++idle;
    }
    keep();
  }

 private:
  static constexpr u32 kTurns = 16;

  /// A step whose weights are being asked for.
  struct Product {
    bool known = false;
    const u8* columns;
    u64 beyond;
    u32 stride, k, n, run;

    /// False: it is none.
    __device__ __forceinline__ bool read(const wire::RelayStep& s) {
      known = static_cast<wire::RelayKind>(s.kind) == wire::RelayKind::product;
      if (known) columns = reinterpret_cast<const u8*>(s.columns), beyond = s.beyond, stride = s.column_bytes, k = s.k, n = s.n, run = s.run;
      return known;
    }
    __device__ __forceinline__ const u8* at(u32 column, u32 depth) const { return columns + u64{column} * stride + (column < run ? 0 : beyond) + depth * 2; }
    /// From a piece to the next. True: that was the last.
    __device__ __forceinline__ bool step(u32& column, u32& depth) {
      depth += kRelayDepth;
      if (depth < k) return false;
      depth = 0;
      column += wire::kRelayColumns;
      if (column < n) return false;
      column = 0;
      known = false;
      return true;
    }
  };

  __device__ __forceinline__ void keep() {
    __syncwarp();
    relay_.fill = fill_;  // the same from all lanes
    __syncwarp();
  }

  __device__ __forceinline__ bool ask_step() {
    if (fill_.asked == count_ || fill_.asked - fill_.step >= kRelaySteps - 1) return false;
    const u32 at = fill_.asked % kRelaySteps;
    if (!ptx::mbarrier_has_ended_acquire(&shared_.step_empty[at], fill_.asked / kRelaySteps % 2 ^ 1)) return false;  // [RL10] pairs with [RL9]
    if (ptx::elected()) {
      ptx::mbarrier_expect_release(&shared_.step_full[at], sizeof(wire::RelayStep));  // [RL7] pairs with [RL8]
      ptx::copy_bulk(&shared_.steps[at], steps_ + u64{fill_.asked} * sizeof(wire::RelayStep), sizeof(wire::RelayStep), &shared_.step_full[at]);
    }
    __syncwarp();
    ++fill_.asked;
    return true;
  }

  __device__ __forceinline__ bool ask_stage() {
    if (fill_.step == fill_.asked) return fill_.asked == count_ && ask_ahead();
    if (!product_.known) {
      const wire::RelayStep& s = shared_.steps[fill_.step % kRelaySteps];
      if (!ptx::mbarrier_has_ended_acquire(&shared_.step_full[fill_.step % kRelaySteps], fill_.step / kRelaySteps % 2)) return false;  // [RL8] pairs with [RL7]
      if (!product_.read(s)) {
        ask_positions(s);
        ++fill_.step;
        return true;
      }
    }
    if (!ptx::mbarrier_has_ended_acquire(&shared_.empty[fill_.next.stage], fill_.next.round % 2 ^ 1)) return ask_ahead();  // [P20] pairs with [P19]
    if (!may_ask()) return false;
    if (ptx::elected()) copy();
    __syncwarp();
    fill_.next.step(stages_.count);
    if (product_.step(fill_.column, fill_.depth)) ++fill_.step;
    if (fill_.ahead != 0)
      --fill_.ahead;
    else
      look_ahead_from_here();
    return true;
  }
  __device__ __forceinline__ void look_ahead_from_here() {
    fill_.ahead_step = fill_.step, fill_.ahead_column = fill_.column, fill_.ahead_depth = fill_.depth;
    behind_.known = false;
  }
  /// What all stages are full of is waited for: what comes behind it the L2 is asked for, so that memory does not rest. Behind the last step that is what the next run's relay most
  /// likely begins with, what this one did.
  __device__ __forceinline__ bool ask_ahead() {
    if (fill_.ahead >= most_ahead_ || fill_.ahead_step >= 2 * count_) return false;
    if (fill_.ahead_step < fill_.step) look_ahead_from_here();  // what lay between has no weights
    if (!behind_.known) {
      const bool again = fill_.ahead_step >= count_;
      if (!again && fill_.ahead_step == fill_.asked) return false;
      if (!again && !ptx::mbarrier_has_ended_acquire(&shared_.step_full[fill_.ahead_step % kRelaySteps], fill_.ahead_step / kRelaySteps % 2)) return false;  // [RL8] pairs with [RL7]
      if (!behind_.read(again ? reinterpret_cast<const wire::RelayStep*>(steps_)[fill_.ahead_step % count_] : shared_.steps[fill_.ahead_step % kRelaySteps])) {
        ++fill_.ahead_step;
        return true;
      }
    }
    if (ptx::clock32() - asked_ahead_at_ < pace_) return false;
    asked_ahead_at_ = ptx::clock32();
    if (ptx::elected()) {
      const u32 bytes = least(kRelayDepth, behind_.k - fill_.ahead_depth) * 2;
      CCKS_UNROLL
      for (u32 i = 0; i < wire::kRelayColumns; ++i) ptx::prefetch_bulk(behind_.at(fill_.ahead_column + i, fill_.ahead_depth), bytes);
    }
    __syncwarp();
    ++fill_.ahead;
    if (behind_.step(fill_.ahead_column, fill_.ahead_depth)) ++fill_.ahead_step;
    return true;
  }
  /// No more than so many stages are on their way.
  __device__ __forceinline__ bool may_ask() const {
    const bool wraps = fill_.next.stage < under_way_;
    if (stages_.count <= under_way_ || (wraps && fill_.next.round == 0)) return true;
    const u32 before = wraps ? fill_.next.stage + stages_.count - under_way_ : fill_.next.stage - under_way_;
    return ptx::mbarrier_has_ended_acquire(&shared_.full[before], (fill_.next.round - (wraps ? 1 : 0)) % 2);  // [P18] pairs with [P17]
  }
  /// By one lane.
  __device__ __forceinline__ void copy() const {
    const Product& s = product_;
    const u32 bytes = least(kRelayDepth, s.k - fill_.depth) * 2;
    u64* full = &shared_.full[fill_.next.stage];
    u8* to = stages_.at(fill_.next.stage);
    const u64 policy = ptx::evict_first_policy();
    ptx::mbarrier_expect_release(full, wire::kRelayColumns * bytes);  // [P17] pairs with [P18]
    CCKS_UNROLL
    for (u32 half = 0; half < 2; ++half) {
      const u8* from = s.at(fill_.column + half * wire::kRelayColumns / 2, fill_.depth);
      CCKS_UNROLL
      for (u32 i = 0; i < wire::kRelayColumns / 2; ++i) ptx::copy_bulk(to + (half * wire::kRelayColumns / 2 + i) * kRelayPitch, from + u64{i} * s.stride, bytes, full, policy);
    }
  }
  /// Earlier positions of an attention are asked for of the L2, since its queries are some microseconds away: a lane a row of keys and of values.
  __device__ __forceinline__ void ask_positions(const wire::RelayStep& s) const {
    const auto* op = reinterpret_cast<const wire::OpParams*>(s.block);
    const auto* operands = reinterpret_cast<const wire::OperandParams*>(op + 1);
    const u64 state = relay_.state;
    const u32 count = static_cast<u32>(op->dims[4]) >> 8 & 0xff;
    if (s.part >= count) return;
    const u32 context = static_cast<u32>(operands[1].dim[2]), steps = (context + wire::kPartStep - 1) / wire::kPartStep;
    const u32 begin = s.part * steps / count * wire::kPartStep, end = least(context, (s.part + 1) * steps / count * wire::kPartStep);
    CCKS_NO_UNROLL
    for (u32 which = 1; which <= 2; ++which) {
      const wire::OperandParams& o = operands[which];
      const u8* rows = reinterpret_cast<const u8*>(o.offset + (o.space == static_cast<u8>(wire::Space::state) ? state : 0)) + u32{s.kv_head} * s.run * 2;
      CCKS_NO_UNROLL
      for (u32 j = begin + threadIdx.x % kWarpLanes; j < end; j += kWarpLanes) {
        const u8* row = rows + u64{j} * (static_cast<u32>(o.stride[2]) * 2);
        prefetch_line(row);
        if (s.run > 64) prefetch_line(row + 128);
      }
    }
  }

  /// The body wants no more: what has been asked for must have landed before its shared memory is another's.
  __device__ __forceinline__ void end() {
    for (u32 stage = 0; stage < stages_.count; ++stage) {
      const u32 filled = fill_.next.round + (stage < fill_.next.stage ? 1 : 0);
      while (filled != 0 && !ptx::mbarrier_ended_acquire(&shared_.full[stage], (filled - 1) % 2)) {  // [P18] pairs with [P17]
      }
    }
    for (u32 at = 0; at < kRelaySteps; ++at) {
      const u32 filled = fill_.asked / kRelaySteps + (at < fill_.asked % kRelaySteps ? 1 : 0);
      while (filled != 0 && !ptx::mbarrier_ended_acquire(&shared_.step_full[at], (filled - 1) % 2)) {  // [RL8] pairs with [RL7]
      }
    }
    __syncwarp();
    ptx::st_release_cta_shared(&relay_.active, 0);  // [RL3] pairs with [RL4]
  }

  CudaPipelineMemory::Relay& relay_;
  RelayShared& shared_;
  RelayStages stages_;
  const u8* steps_;
  u32 count_, under_way_, most_ahead_, pace_, asked_ahead_at_ = 0;
  RelayFill fill_;
  Product product_, behind_;  // the step whose weights go into the ring, and the one whose weights go into the L2
};

/// Whether a relay wants the posting warp.
__device__ __forceinline__ bool is_relaying(const CudaPipelineMemory& memory) {
  return kWorkerRowTags && ptx::ld_acquire_cta_shared(&memory.relay.active) != 0;  // [RL2] pairs with [RL1]
}

}  // namespace CCKS_ISA
}  // namespace ccks::worker
