// Where a relay (relay.cuh) keeps what it needs in a block's shared memory, and what keeps memory busy for it: the posting warp has its weights copied into a ring of its own, in the
// order of steps, as far ahead as the ring goes, and the steps themselves some way in front of that. It looks in whenever it waits for anything, as for the ring of other
// products (pipeline_stream.cuh), which stands still meanwhile.
//
// Layout, of the block's dynamic shared memory. RelayShared, a row (or what attention needs in its place), then, up to the head of the other ring, whose barriers stay as they are, or to
// the end, as many stages as fit: in what is left of scratch and in the place of the other ring's.
#pragma once

#include "ccks/wire/relay.hpp"
#include "ccks/worker/pipeline_stage.cuh"

namespace ccks::worker {
inline namespace CCKS_ISA {

inline constexpr u32 kRelayDepth = wire::kRelayDepth;
inline constexpr u32 kRelayStageBytes = wire::kRelayColumns * kRelayDepth * 2;
inline constexpr u32 kMostRelayStages = 16, kLeastRelayStages = kWorkerRelayExperts ? 2 : 1;
inline constexpr u32 kRelayColumnsAtOnce = wire::relay_columns(kWorkerRelayRows);
/// Floats from a row's sums to the next row's, of `rows` of them: four rows of eight columns lie in all banks.
CCKS_HD constexpr u32 relay_sums_pitch(u32 rows) { return kWorkerRelayRows == 1 ? 0 : wire::relay_columns(rows) + 8; }
inline constexpr u32 kRelaySumsPitch = relay_sums_pitch(kWorkerRelayRows);
inline constexpr u32 kRelaySums = kWorkerRelayRows == 1 ? kRelayColumnsAtOnce : most(kWorkerRelayRows * kRelaySumsPitch, kWorkerRelayExperts ? 4 * relay_sums_pitch(4) : 0);  // experts may have fewer rows
inline constexpr u32 kRelaySteps = 4;  // in shared memory: the one that is run, and those whose weights are asked for

/// In front of scratch while a relay runs.
// Roles  full, empty, step_full, step_empty  barriers, see relay.cuh
//        sums, squares  of up to 128 columns and of a step's row, or of fewer of each of several rows, by each warp; two of each in turn
//        tops, weights  of attention, by query and warp
//        best  of a product that ranks, by the warp alone, or of a pick, of each row by each warp
//        looked_up  bytes from a table's first row to the run's, of each; behind a barrier
struct alignas(128) RelayShared {
  wire::RelayStep steps[kRelaySteps];
  u64 full[kMostRelayStages], empty[kMostRelayStages];  // side by side: RelayFiller::kEmpty
  u64 step_full[kRelaySteps], step_empty[kRelaySteps];
  float sums[2][kCudaLanes / kWarpLanes][kRelaySums];
  float squares[2][kWorkerRelayRows][kCudaLanes / kWarpLanes];
  u64 looked_up[kWorkerRelayRows];
  u64 begun_ns, ready_ns;  // of the step, where traces are taken; by one thread
  struct Rank {
    i32 rank;
    u32 index;
  } best[kWorkerRelayRows * (kCudaLanes / kWarpLanes)];  // the first of the largest elements that a warp has seen
  /// Of a route, once relay.routed says so: each row's shares, by place; experts that any row has chosen, in the order in which steps go through them.
  struct Active {
    u16 expert;
    u8 rows;  // bit by bit
    u8 place[kWorkerRelayRows];  // of each of them in what the row has chosen
  };
  static constexpr u32 kChosen = kWorkerRelayExperts ? wire::kMostChosenExperts : 1;
  float share[kWorkerRelayRows][kChosen];
  Active active[kWorkerRelayRows * kChosen];
  u32 active_count;
  /// Of the list's share of experts' columns, those of one.
  struct Part {
    u16 active;
    u16 first, columns;  // of a run
  } parts[kWorkerRelayRows * kChosen];
  u32 part_count;
  u8 pairs[kWorkerRelayRows * kChosen];  // of a row and an expert that it has chosen, in the order of experts, and of an expert's rows: row * chosen ones + place
  static constexpr bool kRoutesRows = kWorkerRelayExperts && kWorkerRelayRows > 1;
  u8 places[kRoutesRows ? kWorkerRelayRows : 1][kRoutesRows ? wire::kMostRelayExperts : 1];  // of each row and expert that it has chosen, while a route runs
  u32 chosen[kRoutesRows ? kWorkerRelayRows : 1][kRoutesRows ? wire::kMostRelayExperts / kWarpLanes : 1];  // by each row, a bit an expert; the same
  float tops[wire::kMostRelayQueries][kCudaLanes / kWarpLanes], weights[wire::kMostRelayQueries][kCudaLanes / kWarpLanes];
};

static_assert(kWorkerRelayRows > 1 || sizeof(RelayShared) + wire::kMostRelayStepBytes <= kMinScratchBytes);

__device__ __forceinline__ RelayShared& relay_shared() { return *reinterpret_cast<RelayShared*>(dynamic_shared() + kSharedInFront); }
/// Where stages are, found out once by each who reads them.
struct RelayStages {
  u8* first;
  u32 count;

  __device__ __forceinline__ explicit RelayStages(const CudaPipelineMemory::Relay& relay)
      : first(dynamic_shared() + relay.first_stage), count(relay.stages) {}
  __device__ __forceinline__ u8* at(u32 stage) const { return first + stage * kRelayStageBytes; }
};

/// By one lane, before the others begin. `op`: dims as wire/relay.hpp has them.
inline __device__ void begin_relay(CudaPipelineMemory& memory, RelayShared& shared, const wire::RunFrame& frame, const wire::OpParams& op, u32 scratch_bytes) {
  constexpr u32 kWarps = kCudaLanes / kWarpLanes;
  const u32 used = static_cast<u32>(sizeof(RelayShared) + op.dims[2]), room = scratch_bytes + (memory.ring == nullptr ? 0 : memory.ring->stages * kStageBytes);
  CudaPipelineMemory::Relay& relay = memory.relay;
  relay.stages = used < room ? least((room - used) / kRelayStageBytes, kMostRelayStages) : 0;
  relay.first_stage = kSharedInFront + room - relay.stages * kRelayStageBytes;
  relay.steps = reinterpret_cast<const u8*>(&frame) + op.dims[1];
  relay.count = static_cast<u32>(op.dims[0]);
  relay.under_way[0] = static_cast<u32>(op.dims[3]);
  relay.under_way[1] = static_cast<u32>(op.dims[7]);
  relay.multiplies = 0;
  relay.routed = 0;
  relay.most_ahead = static_cast<u32>(op.dims[4]);
  relay.pace = static_cast<u32>(op.dims[5]);
  relay.state = frame.state;
  relay.stage_at = ptx::shared_address(dynamic_shared() + relay.first_stage);
  relay.barrier_at = ptx::shared_address(&shared.full[0]);
  relay.hint_at = ptx::shared_address(&relay.multiplies);
  relay.fill.clear();
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

/// Where in the weights of a relay's steps the next piece begins: some columns by some elements along k, what a stage holds.
struct PieceCursor {
  u32 step = 0, column = 0, depth = 0;
  bool known = false;  // what lies below is of the step
  bool by_pieces = false;  // columns follow upon one another, then what is behind them along k
  bool whole = false;  // pieces lie in memory as they do in a stage: one copy is enough
  wire::RelayExperts experts = wire::RelayExperts::none;
  bool whole_runs = false;  // of a share: columns of each run lie in memory as they do in a stage
  u32 within = 0, active = 0, experts_there = 0, expert_bytes = 0;  // RelayExperts::all: elements in front of the piece, and whose it is: of all experts a piece, then of all what is behind it. A piece is of all columns that the step has, a stage or two; `depth` is how many are in front
  const u8* first = nullptr; // the first column
  const u8* from = nullptr;  // where the piece's first column lies; its others follow, `stride` bytes from one to the next
  u64 beyond = 0;
  u32 columns = 0, deep = 0;                                 // of a piece, elements along k of each
  u32 stride = 0, k = 0, n = 0, run = 0, turn = 0, leap = 0;  // turn: bytes from a column's last piece to the first of the next piece's columns; leap: in front of which column `beyond` comes

  /// False: the step has no weights.
  __device__ __forceinline__ bool read(const wire::RelayStep& s) {
    known = static_cast<wire::RelayKind>(s.kind) == wire::RelayKind::product && (!kWorkerRelayExperts || s.n != 0);
    if (!known) return false;
    if constexpr (kWorkerRelayExperts) {
      experts = static_cast<wire::RelayExperts>(s.experts);
      if (experts != wire::RelayExperts::none) return read_experts(s);
    }
    const u32 parts = (s.flags & wire::kRelayWide) != 0 ? 2 : 1;
    columns = wire::kRelayColumns * parts, deep = kRelayDepth / parts;
    beyond = s.beyond, stride = s.column_bytes, k = s.k, n = s.n, run = s.run;
    turn = columns * stride - (k - 1) / deep * pitch();
    leap = (run + columns - 1) / columns * columns;
    by_pieces = kWorkerRelayRows > 1 && s.by_pieces != 0;
    first = reinterpret_cast<const u8*>(s.columns);
    whole = k == deep && stride == pitch() && leap == run;
    from = first + u64{column} * stride + (column < run ? 0 : beyond) + depth * 2;
    return true;
  }
  /// Bytes from a column of a stage to the next, and of a column.
  __device__ __forceinline__ u32 pitch() const { return deep * 2; }
  __device__ __forceinline__ u32 bytes() const { return least(deep, k - (is_of_all() ? within : depth)) * 2; }
  __device__ __forceinline__ bool is_wide() const { return columns != wire::kRelayColumns; }
  __device__ __forceinline__ bool is_of_experts() const { return kWorkerRelayExperts && experts != wire::RelayExperts::none; }
  /// Of a wide piece: where its second half's first column lies.
  __device__ __forceinline__ const u8* other() const { return from + wire::kRelayColumns * stride + (column + wire::kRelayColumns == run ? beyond : 0); }
  /// Of RelayExperts::all: stages of a piece.
  __device__ __forceinline__ u32 stages() const { return n / wire::kRelayExpertColumns; }
  __device__ __forceinline__ bool is_of_all() const { return kWorkerRelayExperts && experts == wire::RelayExperts::all; }
  /// Of `columns` columns from `first` on: visit(bytes in front of it in the stage, where it lies, its bytes) for each part that lies in memory as in a stage.
  template <class Visit>
  __device__ __forceinline__ void visit_columns(u32 begin, u32 count, Visit&& visit) const {
    const u32 each = bytes();
    const u8* of = from + u64{begin} * stride;
    if (each == stride) return visit(0u, of, count * each);
    CCKS_NO_UNROLL
    for (u32 i = 0; i < count; ++i) visit(i * each, of + u64{i} * stride, each);
  }
  /// The same of a piece of a share of experts.
  template <class Visit>
  __device__ __forceinline__ void visit_parts(Visit&& visit) const {
    const u32 each = bytes();
    constexpr u32 kOfRun = wire::kRelayShareColumns;
    CCKS_UNROLL
    for (u32 run = 0; run < 2; ++run) {
      const u8* of_run = from + run * beyond;
      if (each == stride && each == pitch()) {
        visit(run * kOfRun * each, of_run, kOfRun * each);
      } else {
        CCKS_UNROLL
        for (u32 i = 0; i < kOfRun; ++i) visit((run * kOfRun + i) * pitch(), of_run + u64{i} * stride, each);
      }
    }
  }
  /// next() of a share with whole runs.
  __device__ __forceinline__ bool next_of_runs() {
    from += turn;
    column += wire::kRelayColumns;
    if (column < n) return false;
    column = 0;
    known = false;
    ++step;
    return true;
  }
  /// From a piece to the next. True: that was the step's last.
  __device__ __forceinline__ bool next() {
    if (is_of_all()) return next_of_experts();
    if (kWorkerRelayRows > 1 && by_pieces) return next_column();
    depth += deep;
    from += depth < k ? pitch() : turn;
    if (depth < k) return false;
    depth = 0;
    column += columns;
    if (column == leap) from += beyond;
    if (column < n) return false;
    column = 0;
    known = false;
    ++step;
    return true;
  }

 private:
  // Experts are chosen.
  __device__ __forceinline__ bool read_experts(const wire::RelayStep& s) {
    const RelayShared& shared = relay_shared();
    by_pieces = whole = false;
    stride = s.column_bytes, k = s.k, leap = 0, beyond = s.beyond, expert_bytes = s.expert_bytes;
    first = reinterpret_cast<const u8*>(s.columns);
    if (experts == wire::RelayExperts::all) {
      columns = wire::kRelayExpertColumns, deep = wire::kRelayExpertDepth, n = s.n, experts_there = shared.active_count;
      within = 0, active = depth;
      CCKS_NO_UNROLL
      for (; active >= experts_there; active -= experts_there) within += deep;
      find_expert();
      return true;
    }
    known = s.slot < shared.part_count;
    if (!known) return false;
    const RelayShared::Part share = shared.parts[s.slot];
    columns = wire::kRelayColumns, deep = kRelayDepth, n = 2 * share.columns;
    turn = wire::kRelayShareColumns * stride - (k - 1) / deep * pitch();
    whole_runs = k == deep && stride == pitch();
    first += u64{shared.active[share.active].expert} * expert_bytes + u64{share.first} * stride;
    from = first + u64{column / 2} * stride + depth * 2;
    return true;
  }
  __device__ __forceinline__ bool next_of_experts() {
    ++depth;
    if (++active == experts_there) active = 0, within += deep;
    if (within >= k) {
      depth = 0;
      known = false;
      ++step;
      return true;
    }
    find_expert();
    return false;
  }
  __device__ __forceinline__ void find_expert() { from = first + u64{relay_shared().active[active].expert} * expert_bytes + within * 2; }
  __device__ __forceinline__ bool next_column() {
    column += columns;
    from += columns * stride + (column == leap ? beyond : 0);
    if (column < n) return false;
    column = 0;
    depth += deep;
    from = first + depth * 2;
    if (depth < k) return false;
    depth = 0;
    known = false;
    ++step;
    return true;
  }
};

/// One lane of the posting warp, for as long as there is something to ask for. What it looks at for each stage it keeps in registers, and the loop from stage to stage is short: on a GPU
/// whose memory is fast a stage lands every 0.46 us, and a loop of 150 instructions took 0.5 (README.md, 2026-11-27).
class RelayFiller {
 public:
  enum class End { idle, positions, over };

  // Addresses by relaxed loads, which `ptxas` does not repeat: [RL1] has published them.
  __device__ __forceinline__ explicit RelayFiller(CudaPipelineMemory::Relay& relay)
      : relay_(relay), shared_(relay_shared()), steps_(relay.steps), stages_(relay.stages), count_(relay.count), under_way_{least(relay.under_way[0], relay.stages), least(relay.under_way[1], relay.stages)}, most_ahead_(relay.most_ahead),
        pace_(relay.pace), stage_at_(ptx::ld_relaxed_cta_shared(&relay.stage_at)), barrier_at_(ptx::ld_relaxed_cta_shared(&relay.barrier_at)), hint_at_(ptx::ld_relaxed_cta_shared(&relay.hint_at)),
        policy_(ptx::evict_first_policy()), fill_(relay.fill) {
    piece_.step = fill_.step, piece_.column = fill_.column, piece_.depth = fill_.depth;
    ahead_.step = fill_.ahead_step, ahead_.column = fill_.ahead_column, ahead_.depth = fill_.ahead_depth;
  }

  /// Until there has been nothing for a while, or the warp has other things to do: positions, those that the attention step in front of relay.fill.step reads; over, the body wants no more.
  __device__ __forceinline__ End run(u32 turns) {
    End end = End::idle;
    for (u32 idle = 0, pieces = 0; idle < turns && pieces < turns;) {
      const u32 filled = fill();
      if (filled == kPositions) {
        end = End::positions;
        break;
      }
      pieces += filled;
      if (ask_step() || filled != 0) {
        idle = 0;
        continue;
      }
      if (ptx::ld_acquire_cta_shared(&relay_.done) != 0) {  // [RL6] pairs with [RL5]
        await_copies();
        end = End::over;
        break;
      }
      ++idle;
    }
    keep();
    return end;
  }

 private:
  static constexpr u32 kPositions = ~0u;

  __device__ __forceinline__ void keep() {
    fill_.step = piece_.step, fill_.column = piece_.column, fill_.depth = piece_.depth;
    fill_.ahead_step = ahead_.step, fill_.ahead_column = ahead_.column, fill_.ahead_depth = ahead_.depth;
    relay_.fill = fill_;
  }

  __device__ __forceinline__ bool step_is_there(u32 step) const {
    return ptx::mbarrier_has_ended_acquire(&shared_.step_full[step % kRelaySteps], step / kRelaySteps % 2);  // [RL8] pairs with [RL7]
  }
  /// Whether it is known where the weights are of a step that is there.
  __device__ __forceinline__ bool is_routed(const wire::RelayStep& step) const {
    return !kWorkerRelayExperts || step.experts == 0 || ptx::ld_acquire_cta_shared(&relay_.routed) != 0;  // [RL16] pairs with [RL15]
  }
  __device__ __forceinline__ bool ask_step() {
    if (fill_.asked == count_ || fill_.asked - piece_.step >= kRelaySteps - 1) return false;
    const u32 at = fill_.asked % kRelaySteps;
    if (!ptx::mbarrier_has_ended_acquire(&shared_.step_empty[at], fill_.asked / kRelaySteps % 2 ^ 1)) return false;  // [RL10] pairs with [RL9]
    ptx::mbarrier_expect_release(&shared_.step_full[at], sizeof(wire::RelayStep));  // [RL7] pairs with [RL8]
    ptx::copy_bulk(&shared_.steps[at], steps_ + u64{fill_.asked} * sizeof(wire::RelayStep), sizeof(wire::RelayStep), &shared_.step_full[at]);
    ++fill_.asked;
    return true;
  }

  /// Pieces asked for, of one step.
  __device__ __forceinline__ u32 fill() {
    if (piece_.step == fill_.asked) return 0;
    if (!piece_.known) {
      if (!step_is_there(piece_.step) || !is_routed(shared_.steps[piece_.step % kRelaySteps])) return 0;
      if (!piece_.read(shared_.steps[piece_.step % kRelaySteps])) {
        ++piece_.step;
        return kPositions;
      }
    }
    if (piece_.is_of_all()) return fill_all();
    if (kWorkerRelayExperts && piece_.experts == wire::RelayExperts::share && piece_.whole_runs) return fill_runs();
    u32 pieces = 0;
    for (bool last = false; !last; ++pieces) {
      const u32 full = full_of(fill_.next.stage), multiplies = ptx::ld_relaxed_cta_shared(hint_at_);  // relaxed: a hint
      if (!ptx::mbarrier_has_ended_acquire(full + kEmpty, fill_.next.round % 2 ^ 1)) return pieces + (ask_ahead() ? 1 : 0);  // [P20] pairs with [P19]
      copy(full, multiplies);
      fill_.next.step(stages_);
      last = piece_.next();
    }
    return pieces;
  }
  /// The same of a share with whole runs, in as few instructions as there are: a stage is to be asked for as soon as memory has brought one.
  __device__ __forceinline__ u32 fill_runs() {
    constexpr u32 kRunBytes = kRelayStageBytes / 2;
    u32 pieces = 0;
    for (bool last = false; !last; ++pieces) {
      const u32 full = full_of(fill_.next.stage), multiplies = ptx::ld_relaxed_cta_shared(hint_at_);  // relaxed: a hint
      if (!ptx::mbarrier_has_ended_acquire(full + kEmpty, fill_.next.round % 2 ^ 1)) return pieces + (ask_ahead() ? 1 : 0);  // [P20] pairs with [P19]
      const u32 to = stage_at_ + fill_.next.stage * kRelayStageBytes;
      ptx::mbarrier_expect_release(full, kRelayStageBytes);  // [P17] pairs with [P18]
      await_room(multiplies);
      ptx::copy_bulk(to, piece_.from, kRunBytes, full, policy_);
      ptx::copy_bulk(to + kRunBytes, piece_.from + piece_.beyond, kRunBytes, full, policy_);
      fill_.next.step(stages_);
      last = piece_.next_of_runs();
    }
    return pieces;
  }
  /// The same of RelayExperts::all. Stages of a piece are seen to together: to find out what is next takes as long as a stage takes to land.
  __device__ __forceinline__ u32 fill_all() {
    const u32 both = piece_.stages();
    u32 pieces = 0;
    for (bool last = false; !last; pieces += both) {
      StreamPlace behind = fill_.next;
      if (both > 1) behind.step(stages_);
      const u32 full[2] = {full_of(fill_.next.stage), full_of(behind.stage)}, multiplies = ptx::ld_relaxed_cta_shared(hint_at_);  // relaxed: a hint
      if (!ptx::mbarrier_has_ended_acquire(full[0] + kEmpty, fill_.next.round % 2 ^ 1) || !ptx::mbarrier_has_ended_acquire(full[1] + kEmpty, behind.round % 2 ^ 1)) return pieces + (ask_ahead() ? 1 : 0);  // [P20] pairs with [P19]
      const u32 bytes = wire::kRelayExpertColumns * piece_.bytes(), to[2] = {stage_at_ + fill_.next.stage * kRelayStageBytes, stage_at_ + behind.stage * kRelayStageBytes};
      CCKS_UNROLL
      for (u32 i = 0; i < 2; ++i) {
        if (i == both) break;
        ptx::mbarrier_expect_release(full[i], bytes);  // [P17] pairs with [P18]
        await_room(multiplies);
        piece_.visit_columns(i * wire::kRelayExpertColumns, wire::kRelayExpertColumns, [&](u32 at, const u8* from, u32 all) { ptx::copy_bulk(to[i] + at, from, all, full[i], policy_); });
      }
      fill_.next = behind;
      fill_.next.step(stages_);
      last = piece_.next();
    }
    return pieces;
  }
  /// No more than so many stages are on their way: few while words are waited for, which come behind them, and so that workers that are still at their stages have more of memory than those that wait.
  __device__ __forceinline__ void await_room(u32 multiplies) {
    const u32 most = multiplies != 0 ? under_way_[1] : under_way_[0];
    for (; fill_.on_way >= most; --fill_.on_way) {
      while (!ptx::mbarrier_ended_acquire(full_of(fill_.landing.stage), fill_.landing.round % 2)) {  // [P18] pairs with [P17]
      }
      fill_.landing.step(stages_);
    }
    ++fill_.on_way;
  }
  __device__ __forceinline__ u32 full_of(u32 stage) const { return barrier_at_ + stage * static_cast<u32>(sizeof(u64)); }
  static constexpr u32 kEmpty = sizeof(RelayShared::full);  // from a stage's barrier to its other
  /// The barrier is told before there is room for the copy, so that this follows upon a stage's landing.
  __device__ __forceinline__ void copy(u32 full, u32 multiplies) {
    const u32 to = stage_at_ + fill_.next.stage * kRelayStageBytes;
    if (piece_.whole) {
      ptx::mbarrier_expect_release(full, kRelayStageBytes);  // [P17] pairs with [P18]
      await_room(multiplies);
      ptx::copy_bulk(to, piece_.from, kRelayStageBytes, full, policy_);
      return;
    }
    const u32 bytes = piece_.bytes();
    ptx::mbarrier_expect_release(full, piece_.columns * bytes);  // [P17] pairs with [P18]
    await_room(multiplies);
    if (piece_.is_of_experts()) return piece_.visit_parts([&](u32 at, const u8* from, u32 all) { ptx::copy_bulk(to + at, from, all, full, policy_); });
    copy_columns(to, piece_.from, bytes, full);
    if (piece_.is_wide()) copy_columns(to + kRelayStageBytes / 2, piece_.other(), bytes, full);
  }
  __device__ __forceinline__ void copy_columns(u32 to, const u8* from, u32 bytes, u32 full) {
    CCKS_UNROLL
    for (u32 i = 0; i < wire::kRelayColumns; ++i) ptx::copy_bulk(to + i * piece_.pitch(), from + u64{i} * piece_.stride, bytes, full, policy_);
  }

  /// What all stages are full of is waited for: what comes behind it the L2 is asked for, so that memory does not rest. Nothing of the next run's relay: what lies between the two would
  /// wait for it, which costs more than it gains.
  __device__ __forceinline__ bool ask_ahead() {
    const u32 filled = fill_.next.round * stages_ + fill_.next.stage;
    if (static_cast<i32>(fill_.ahead - filled) < 0 || ahead_.step < piece_.step) {  // what lies there has been filled since, or has no weights
      ahead_ = piece_;
      fill_.ahead = filled;
    }
    if (fill_.ahead - filled >= most_ahead_) return false;
    if (!ahead_.known) {
      if (ahead_.step == fill_.asked || !step_is_there(ahead_.step) || !is_routed(shared_.steps[ahead_.step % kRelaySteps])) return false;
      if (!ahead_.read(shared_.steps[ahead_.step % kRelaySteps])) {
        ++ahead_.step;
        return true;
      }
    }
    if (ptx::clock32() - asked_ahead_at_ < pace_) return false;
    asked_ahead_at_ = ptx::clock32();
    const u8* from = ahead_.from;
    if (ahead_.is_of_all()) {
      ahead_.visit_columns(0, ahead_.n, [](u32, const u8* of, u32 all) { ptx::prefetch_bulk(of, all); });
      fill_.ahead += ahead_.stages() - 1;
    } else if (ahead_.whole) {
      ptx::prefetch_bulk(from, kRelayStageBytes);
    } else if (ahead_.is_of_experts()) {
      ahead_.visit_parts([](u32, const u8* of, u32 all) { ptx::prefetch_bulk(of, all); });
    } else {
      prefetch_columns(from);
      if (ahead_.is_wide()) prefetch_columns(ahead_.other());
    }
    ++fill_.ahead;
    ahead_.next();
    return true;
  }

  __device__ __forceinline__ void prefetch_columns(const u8* from) const {
    CCKS_UNROLL
    for (u32 i = 0; i < wire::kRelayColumns; ++i) ptx::prefetch_bulk(from + u64{i} * ahead_.stride, ahead_.bytes());
  }

  /// What has been asked for must have landed before its shared memory is another's.
  __device__ __forceinline__ void await_copies() const {
    for (u32 stage = 0; stage < stages_; ++stage) {
      const u32 filled = fill_.next.round + (stage < fill_.next.stage ? 1 : 0);
      while (filled != 0 && !ptx::mbarrier_ended_acquire(&shared_.full[stage], (filled - 1) % 2)) {  // [P18] pairs with [P17]
      }
    }
    for (u32 at = 0; at < kRelaySteps; ++at) {
      const u32 filled = fill_.asked / kRelaySteps + (at < fill_.asked % kRelaySteps ? 1 : 0);
      while (filled != 0 && !ptx::mbarrier_ended_acquire(&shared_.step_full[at], (filled - 1) % 2)) {  // [RL8] pairs with [RL7]
      }
    }
  }

  CudaPipelineMemory::Relay& relay_;
  RelayShared& shared_;
  const u8* steps_;
  u32 stages_, count_, under_way_[2], most_ahead_, pace_, asked_ahead_at_ = 0, stage_at_, barrier_at_, hint_at_;
  u64 policy_;
  RelayFill fill_;
  PieceCursor piece_, ahead_;  // what goes into the ring next, and what into the L2
};

/// Earlier positions of an attention are asked for of the L2, since its queries are some microseconds away: a lane a row of keys and of values.
__device__ __forceinline__ void ask_positions(const CudaPipelineMemory::Relay& relay, const wire::RelayStep& s) {
  if (static_cast<wire::RelayKind>(s.kind) != wire::RelayKind::attention) return;
  const auto* op = reinterpret_cast<const wire::OpParams*>(s.block);
  const auto* operands = reinterpret_cast<const wire::OperandParams*>(op + 1);
  const u64 state = relay.state;
  const u32 count = static_cast<u32>(op->dims[4]) >> 8 & 0xff;
  if (s.part >= count) return;
  const u32 context = static_cast<u32>(operands[1].dim[2]), steps = (context + wire::kPartStep - 1) / wire::kPartStep;
  const u32 begin = s.part * steps / count * wire::kPartStep, end = least(context, (s.part + 1) * steps / count * wire::kPartStep);
  CCKS_NO_UNROLL
  for (u32 which = 1; which <= 2; ++which) {
    const wire::OperandParams& o = operands[which];
    const u8* rows = reinterpret_cast<const u8*>(o.offset + (o.space == static_cast<u8>(wire::Space::state) ? state : 0)) + u32{s.kv_head} * s.run * 2;
    if constexpr (kWorkerRelayRows > 1) rows += static_cast<u64>(o.stride[1]) * s.row_pitch * 2;
    CCKS_NO_UNROLL
    for (u32 j = begin + threadIdx.x % kWarpLanes; j < end; j += kWarpLanes) {
      const u8* row = rows + u64{j} * (static_cast<u32>(o.stride[2]) * 2);
      prefetch_line(row);
      if (s.run > 64) prefetch_line(row + 128);
    }
  }
}

// Of one look, turns without anything to ask for, and pieces asked for: where the posting warp has other things to do, and where it has not. While it is away nobody fills
// a stage that has become empty: a Llama step on an H200, in us: 710 with 16, 701 with 64, 699 with 256.
inline constexpr u32 kRelayTurns = 256, kBusyRelayTurns = 16;

/// Asks for whatever there is room for, and looks again for a while. By the posting warp; `busy`: it has other things to do.
inline __device__ __noinline__ void serve_relay(bool busy) {
  CudaPipelineMemory::Relay& relay = pipeline_memory().relay;
  for (;;) {
    __syncwarp();
    RelayFiller::End end = RelayFiller::End::idle;
    if (ptx::elected()) {
      if (relay.fill.asked == 0) ptx::fence_proxy_async_global();  // steps and weights may have been written since; whoever sent the run has waited for that
      end = RelayFiller(relay).run(busy ? kBusyRelayTurns : kRelayTurns);
    }
    __syncwarp();
    if (__any_sync(kFullWarp, end == RelayFiller::End::over) != 0) ptx::st_release_cta_shared(&relay.active, 0);  // [RL3] pairs with [RL4]
    if (__any_sync(kFullWarp, end == RelayFiller::End::positions) == 0) return;
    ask_positions(relay, relay_shared().steps[(relay.fill.step - 1) % kRelaySteps]);
  }
}

/// Whether a relay wants the posting warp.
__device__ __forceinline__ bool is_relaying(const CudaPipelineMemory& memory) {
  return kWorkerRowTags && ptx::ld_acquire_cta_shared(&memory.relay.active) != 0;  // [RL2] pairs with [RL1]
}

}  // namespace CCKS_ISA
}  // namespace ccks::worker
