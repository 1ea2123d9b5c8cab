// CudaPipeline: a worker that is a thread block, its stages (staged_tile.hpp) side by side. Eight warps run bodies; four
// more fetch, gate, signal and post. Tiles pass through a ring of slots in shared memory, in order; each stage publishes how
// far it is. So while a body runs, the next tiles are fetched, their operands asked for, the next one's events watched, and
// the last one's stores released.
//
// Roles         slots      written by fetch, then gate, then bodies (fault, end); read by all stages behind
//   fetched     tiles staged                 fetch [P1] -> gate [P2]
//   gated       tiles let through            gate [P3]  -> signal, post [P4]
//   bodies      warps that have ended a body, over all bodies: bodies [P5] -> gate, signal, post [P6]
//   signalled   tiles whose signals are out  signal [P7] -> post, fetch [P8]
//   posted      tiles the host knows of      post [P7]  -> fetch [P8]
//   closing     the gate lets nothing more through, ParkReason + 1: gate [P9] -> signal, post, fetch [P10]
//   resume      where the gate left an inbox task, with closing
//   leave, abandon, suspend, stop: lone words, relaxed; nothing comes with them
// Invariants    a slot is written again only after signalled and posted have passed it; an op's copy only after the slots
//               of all its tiles. At most one body waits behind the one that runs (two barriers, in turn).
//
// What a wait need not wait for. Bodies of a block run one after the other, so a tile does not wait for events whose whole
// count comes from earlier tiles of the same worker; unless it has guards, which the gate reads while bodies run.
//
// Leaving. The fetching warp sees that the worker should leave; the gate leaves between two inbox tasks, or before any tile
// if it is to suspend, or with a fault; the post stage says so to the host once everything before it is through.
#pragma once

#include "ccks/worker/platform_cuda.hpp"
#include "ccks/worker/worker_loop.hpp"

namespace ccks::worker {
inline namespace CCKS_ISA {

inline constexpr u32 kServiceWarps = 4;
inline constexpr u32 kPipelineThreads = kCudaLanes + kServiceWarps * kWarpLanes;

struct CudaPipelineMemory {
  static constexpr u32 kSlots = 8;         // tiles in the pipeline: enough to look ahead over a hop between blocks
  static constexpr u32 kParsed = 4;        // tasks whose ops are on their way into shared memory
  static constexpr u32 kBlocks = kSlots + kParsed;
  static constexpr u32 kBlockBytes = 1024; // an op of six operands and four waits; larger ones are read where they lie
  static constexpr u32 kOwnEvents = 64;

  static constexpr u32 kSignals = 4;       // signals of a tile that are found ahead of time; more are looked up

  using Watch = WatchList<kWarpLanes>;
  struct Signal {
    u32* word;
    u32 count;
  };
  struct Slot {
    StagedTile tile;
    Watch watch;
    u32 body_fault;    // FaultCode
    u32 signal_count;  // in `signals`; kMany: look them up
    u32 silent;
    Signal signals[kSignals];
  };
  struct Parsed {
    OpenTask task;
    u32 block;      // kBlocks: none
    bool fresh;     // the copy was made for this task
  };
  /// How often earlier tiles of this worker add to an event in one run.
  struct OwnEvent {
    u32 event, slot, epoch, count;
  };

  WorkerShared<kWarpLanes> shared;
  Slot slots[kSlots];
  Parsed parsed[kParsed];
  OwnEvent own[kOwnEvents];
  u32 fetched, gated, bodies, signalled, posted;
  u32 closing, leave, abandon, suspend, stop;
  ResumePoint resume;  // where the gate left an inbox task, published with closing
  u32 go[2];  // slot of the body to run, in turn
  alignas(128) u8 blocks[kBlocks][kBlockBytes];
};

/// One object a warp and role; all of a block share `memory`.
template <class Ops>
class CudaPipeline {
 public:
  using Memory = CudaPipelineMemory;

  __device__ CudaPipeline(Memory& memory, const wire::WorkerParams& params, u32 index)
      : memory_(memory), params_(params), index_(index), platform_(memory.shared) {}

  /// Every thread of the block calls it; returns once the worker has left.
  __device__ void run(u8* scratch, u32 scratch_bytes) {
    if (threadIdx.x == 0) clear();
    __syncthreads();
    const u32 warp = threadIdx.x / kWarpLanes;
    constexpr u32 kBodyWarps = kCudaLanes / kWarpLanes;
    if (warp < kBodyWarps) {
      run_bodies(scratch, scratch_bytes);
    } else if (warp == kBodyWarps) {
      fetch();
    } else if (warp == kBodyWarps + 1) {
      gate();
    } else if (warp == kBodyWarps + 2) {
      signal();
    } else {
      post();
    }
  }

 private:
  using Slot = typename Memory::Slot;
  using Watch = typename Memory::Watch;
  using Parsed = typename Memory::Parsed;
  static constexpr u32 kGoBarrier = 2;  // and 3
  static constexpr u32 kGoThreads = kCudaLanes + kWarpLanes;
  static constexpr u32 kExit = 0xffffffffu;
  static constexpr u32 kBodyWarps = kCudaLanes / kWarpLanes;
  static constexpr u32 kPollsPerLook = 8;  // one read in nine goes to the host's line
  static constexpr u32 kHotSpins = 256;    // of a stage that waits for another warp of the block: then it naps
  static constexpr u32 kNapNs = 32;
  static constexpr u32 kTilesPerClock = 16;
  // A busy worker looks at the host's line so often: reading it takes the fetching warp 1 us, and a handoff waits for it.
  static constexpr u64 kLookNs = 25'000;

  /// What gate and outbox ask of the rest of the worker.
  struct Stop {
    Memory& memory;
    __device__ bool abandoned() const { return word(memory.abandon) != 0 || word(memory.stop) != 0; }
    __device__ wire::ParkRequest asked() const {
      if (abandoned()) return wire::kParkAbandon;
      return word(memory.suspend) != 0 ? wire::kParkSuspend : wire::kParkNo;
    }
    __device__ static void blocked() {}
  };

  // Relaxed: lone words.
  __device__ static u32 word(const u32& w) { return ptx::ld_relaxed_cta_shared(&w); }
  __device__ void set_word(u32& w, u32 value) const {
    if (platform_.leader()) ptx::st_relaxed_cta_shared(&w, value);
  }
  __device__ Slot& slot(u32 tile) { return memory_.slots[tile % Memory::kSlots]; }
  __device__ static void rest(u32 spins) {
    if (spins > kHotSpins) __nanosleep(kNapNs);
  }
  __device__ bool body_ended(u32 body) const {
    const u32 ended = ptx::ld_acquire_cta_shared(&memory_.bodies);  // [P6] pairs with [P5]
    return static_cast<i32>(ended - (body + 1) * kBodyWarps) >= 0;
  }
  __device__ bool tracing() const { return params_.trace != 0; }

  __device__ void clear() {
    memory_.fetched = memory_.gated = memory_.bodies = memory_.signalled = memory_.posted = 0;
    memory_.closing = memory_.leave = memory_.abandon = memory_.suspend = memory_.stop = 0;
    memory_.resume = {};
    for (auto& own : memory_.own) own = {0, 0, 0, 0};
  }

  // ---- fetch ----------------------------------------------------------------------------------------------------------

  __device__ void fetch() {
    const wire::WorkerLine* line = reinterpret_cast<const wire::WorkerLine*>(params_.worker_lines) + index_;
    TaskSource<CudaPlatform> source(platform_, params_, index_);
    source.start(platform_.uniform(CudaAtoms::link_load_relaxed(&line->inbox_position)),
                 platform_.uniform(CudaAtoms::link_load_relaxed(&line->resume_list_task)));
    finished_tiles_ = platform_.uniform(CudaAtoms::link_load_relaxed(&line->resume_tile));
    LeaveWatch<CudaPlatform> watch(platform_, params_, index_);
    watch.start();
    u32 misses = 0;
    u64 idle_since = 0;
    while (!gate_closed()) {
      while (parsed_count_ < Memory::kParsed && source.has_task() && may_take(source)) parse(source);
      if (parsed_count_ > 0) {
        emit(watch);
        misses = 0;
        idle_since = 0;
      } else if (source.queued()) {
        await_queue(source, watch);
      } else if (word(memory_.leave) == 0 && source.poll()) {
        continue;
      } else {
        platform_.idle(misses);
        if (misses++ % kPollsPerLook != kPollsPerLook - 1) continue;
        if (idle_since == 0) idle_since = platform_.now_ns();
        look_at_host(watch, idle_since);
      }
    }
  }

  __device__ bool gate_closed() const {
    return ptx::ld_acquire_cta_shared(&memory_.closing) != 0 || word(memory_.stop) != 0;  // [P10] pairs with [P9]
  }
  /// Once the worker leaves, the inbox task under way is fetched to its end and no other begun.
  __device__ bool may_take(const TaskSource<CudaPlatform>& source) const {
    return !source.between_inbox_tasks() || word(memory_.leave) == 0;
  }

  __device__ void look_at_host(LeaveWatch<CudaPlatform>& watch, u64 idle_since) {
    looked_at_ = platform_.now_ns();
    wire::ParkReason reason;
    if (word(memory_.leave) == 0 && watch.should_leave(idle_since, reason)) {
      set_word(memory_.leave, static_cast<u32>(reason) + 1);
    }
    if (word(memory_.leave) != 0) {
      const u32 request = watch.park_request();
      if (request == wire::kParkAbandon) set_word(memory_.abandon, 1);
      const bool alone = word(memory_.leave) == static_cast<u32>(wire::ParkReason::stale_heartbeat) + 1;
      if (request == wire::kParkSuspend || alone) set_word(memory_.suspend, 1);
    }
    __syncwarp();
  }

  /// Waits until the queue has a task, is drained, or is given up. The worker takes one only once its last body has ended:
  /// others are there to run what it would hold. It neither leaves nor suspends in between, see WorkerLoop::await_queue.
  __device__ void await_queue(TaskSource<CudaPlatform>& source, LeaveWatch<CudaPlatform>& watch) {
    for (u32 spins = 0; !bodies_idle() && !gate_closed(); ++spins) rest(spins);
    Patience patience(platform_.now_ns());
    for (u32 spins = 0; !source.has_task() && !source.poll() && !gate_closed(); ++spins) {
      platform_.relax(spins);
      if (spins % 64 != 63) continue;
      if (overdue()) look_at_host(watch, 0);
      if (word(memory_.abandon) != 0) return source.fail(wire::FaultCode::abandoned);
      if (patience.over(platform_.now_ns(), params_.spin_deadline_ns)) return source.fail(wire::FaultCode::wait_deadline);
    }
  }
  /// Whether everything staged has been let through and the last body has ended.
  __device__ bool bodies_idle() {
    if (ptx::ld_acquire_cta_shared(&memory_.gated) != staged_) return false;  // [P4] pairs with [P3]
    if (staged_ == 0) return true;
    const StagedTile& last = slot(staged_ - 1).tile;
    return last.kind != TileKind::body || body_ended(last.body);
  }

  /// Takes a task and starts to copy what its op says into shared memory.
  __device__ void parse(TaskSource<CudaPlatform>& source) {
    Parsed& out = memory_.parsed[(parsed_first_ + parsed_count_) % Memory::kParsed];
    OpenTask& task = out.task;
    __syncwarp();  // all lanes are done with what was there
    source.take(task);
    __syncwarp();
    u32 block = Memory::kBlocks;
    bool fresh = false;
    if (task.kind == TileKind::body && task.block.offset != 0 && task.block.bytes <= Memory::kBlockBytes) {
      fresh = !(task.frame == copied_frame_ && task.task.epoch == copied_epoch_ && task.task.op == copied_op_);
      if (fresh) copied_block_ = (copied_block_ + 1) % Memory::kBlocks;
      block = copied_block_;
      copied_frame_ = task.frame;
      copied_epoch_ = task.task.epoch;
      copied_op_ = task.task.op;
      if (fresh) copy_block(task, memory_.blocks[block]);
    }
    ptx::copy_commit();
    if (platform_.leader()) {
      out.block = block;
      out.fresh = fresh;
    }
    __syncwarp();
    ++parsed_count_;
  }

  __device__ void copy_block(const OpenTask& task, u8* to) const {
    const u8* from = frame_at<u8>(*task.frame, task.block.offset);
    for (u32 at = platform_.control_lane() * 16; at < task.block.bytes; at += kWarpLanes * 16) {
      ptx::copy_async_16(to + at, from + at);
    }
  }

  __device__ void await_copy() const {
    switch (parsed_count_) {  // the oldest group must be done, those of the tasks behind it need not
      case 1: ptx::copy_wait<0>(); break;
      case 2: ptx::copy_wait<1>(); break;
      case 3: ptx::copy_wait<2>(); break;
      default: ptx::copy_wait<3>(); break;
    }
    __syncwarp();
  }

  /// What staging the tiles of a task needs of it, in registers. Lane i holds wait i and signal i of the op.
  struct Staging {
    OpView view;
    u32* events;
    u32 slot, epoch, runs;
    u32 wait_count, signal_count, silent;
    wire::WaitParams wait;
    wire::SignalParams signal;
    wire::EventRect rect;  // of the wait, for the tile staged last
  };

  /// Stages all tiles of the oldest task taken.
  __device__ void emit(LeaveWatch<CudaPlatform>& watch) {
    await_copy();
    Parsed& parsed = memory_.parsed[parsed_first_];
    Staging staging{};
    if (parsed.task.kind == TileKind::body) open_op(parsed, staging);
    TileStager stager;
    stager.begin(parsed.task, finished_tiles_);
    finished_tiles_ = 0;
    for (bool first = true; !stager.done(); first = false) {
      if (!await_free_slot(watch)) return;
      stage(stager, parsed.task, staging, first);
    }
    parsed_first_ = (parsed_first_ + 1) % Memory::kParsed;
    --parsed_count_;
  }

  __device__ void open_op(Parsed& parsed, Staging& out) {
    out.view = parsed.block < Memory::kBlocks ? open_block(parsed) : view_of_frame(*parsed.task.frame, parsed.task.task.op);
    if (platform_.leader()) parsed.task.view = out.view;
    const wire::OpParams& op = *out.view.op;
    out.wait_count = op.wait_count;
    out.signal_count = op.signal_count;
    out.silent = op.flags & wire::kOpSilent;
    out.events = parsed.task.events;
    out.slot = parsed.task.task.slot();
    out.epoch = parsed.task.task.epoch;
    out.runs = parsed.task.runs;
    const u32 lane = platform_.control_lane();
    if (lane < out.wait_count) out.wait = out.view.waits[lane];
    if (lane < out.signal_count) out.signal = out.view.signals[lane];
    __syncwarp();
  }

  /// Lays out the copy of an op; operands get addresses.
  __device__ OpView open_block(const Parsed& parsed) {
    u8* block = memory_.blocks[parsed.block];
    auto* op = reinterpret_cast<wire::OpParams*>(block);
    auto* operands = reinterpret_cast<wire::OperandParams*>(op + 1);
    const u32 operand_count = u32{op->input_count} + op->output_count;
    auto* waits = reinterpret_cast<wire::WaitParams*>(operands + operand_count);
    auto* signals = reinterpret_cast<wire::SignalParams*>(waits + op->wait_count);
    if (parsed.fresh) {
      const u32 lane = platform_.control_lane();
      if (lane < operand_count) {
        wire::OperandParams& operand = operands[lane];
        operand.offset += parsed.task.spaces[operand.space < 3 ? operand.space : 0];
        operand.space = static_cast<u8>(wire::Space::absolute);
      }
      if (lane == 0) op->operands = reinterpret_cast<u64>(operands);
      __syncwarp();
    }
    return {op, waits, signals, reinterpret_cast<wire::GuardParams*>(signals + op->signal_count)};
  }

  __device__ bool await_free_slot(LeaveWatch<CudaPlatform>& watch) {
    for (u32 spins = 0;; ++spins) {
      const u32 signalled = ptx::ld_acquire_cta_shared(&memory_.signalled);  // [P8] pairs with [P7]
      const u32 posted = ptx::ld_acquire_cta_shared(&memory_.posted);        // [P8] pairs with [P7]
      if (staged_ - signalled < Memory::kSlots && staged_ - posted < Memory::kSlots) {
        if (++unlooked_ % kTilesPerClock == 0 && overdue()) look_at_host(watch, 0);
        return true;
      }
      if (gate_closed()) return false;
      rest(spins);
      if (spins % 64 == 63 && overdue()) look_at_host(watch, 0);
    }
  }
  __device__ bool overdue() const { return platform_.now_ns() - looked_at_ > kLookNs; }

  __device__ void stage(TileStager& stager, const OpenTask& task, Staging& staging, bool first) {
    Slot& out = slot(staged_);
    const TileKind kind = stager.kind();
    const u32 tile = stager.next_tile();
    copy_head(out.tile, task);
    stager.next_of_task(out.tile, staging.view.op);
    u32 watched = Watch::kMany, signals = Watch::kMany;
    if (task.inbox.op == wire::kOpQueue) {
      watched = 0;  // a queue has waited already
    } else if (kind == TileKind::body || kind == TileKind::skip) {
      const wire::TileCoord coord = wire::tile_coord(staging.view.op->grid, tile);
      if (kind == TileKind::body) watched = list_events(out, staging, coord, first);
      signals = list_signals(out, staging, coord);
    }
    if (platform_.leader()) {
      out.body_fault = 0;
      out.watch.count = watched;
      out.signal_count = signals;
      out.silent = staging.silent;
    }
    __syncwarp();
    ++staged_;
    if (platform_.leader()) ptx::st_release_cta_shared(&memory_.fetched, staged_);  // [P1] pairs with [P2]
    if (kind == TileKind::body) {
      prefetch_operands<Ops>(platform_.control_lane(), kWarpLanes, *task.frame, *staging.view.op, tile);
    }
  }

  /// All lanes copy a word each.
  __device__ void copy_head(TaskHead& to, const TaskHead& from) const {
    static_assert(sizeof(TaskHead) % sizeof(u32) == 0 && sizeof(TaskHead) / sizeof(u32) <= kWarpLanes);
    const u32 lane = platform_.control_lane();
    if (lane < sizeof(TaskHead) / sizeof(u32)) reinterpret_cast<u32*>(&to)[lane] = reinterpret_cast<const u32*>(&from)[lane];
  }

  // ---- fetch: which events a tile waits for, and which it adds to ----

  /// Lane w finds the events of wait w that no earlier tile of the task has waited for; then lane i takes the i-th of all,
  /// and what this worker completes itself is left out. Returns how many are listed.
  __device__ u32 list_events(Slot& out, Staging& staging, const wire::TileCoord& coord, bool first) {
    const u32 lane = platform_.control_lane();
    if (staging.wait_count == 0) return 0;
    if (staging.wait_count > kWarpLanes) return Watch::kMany;
    u32 events = 0;
    if (lane < staging.wait_count) {
      const wire::EventRect rect = wire::wait_rect(staging.wait, coord);
      if (first || !wire::rect_covers(staging.rect, rect)) events = wire::rect_count(rect);
      staging.rect = rect;
    }
    u32 count = 0, event = 0, total = 0;
    bool mine = false;
    for (u32 w = 0; w < staging.wait_count; ++w) {
      const u32 here = platform_.from_lane(events, w);
      if (here == 0) continue;
      const u32 lo = platform_.from_lane(staging.rect.span[0].lo, w), from = platform_.from_lane(staging.rect.span[1].lo, w);
      const u32 width = platform_.from_lane(staging.rect.span[1].hi, w) - from;
      const u32 event_first = platform_.from_lane(staging.wait.event_first, w);
      const u32 stride0 = platform_.from_lane(static_cast<u32>(staging.wait.axis[0].stride), w);
      const u32 stride1 = platform_.from_lane(static_cast<u32>(staging.wait.axis[1].stride), w);
      const u32 all = platform_.from_lane(staging.wait.total, w);
      if (lane >= count && lane < count + here) {
        const u32 i = lane - count, row = i < width ? 0 : i / width;
        event = event_first + (lo + row) * stride0 + (from + i - row * width) * stride1;
        total = all;
        mine = true;
      }
      count += here;
    }
    if (count > kWarpLanes) return Watch::kMany;
    const bool guarded = staging.view.op->guard_count > 0;
    if (mine && !guarded) mine = own_count(staging, event) != total;
    const u32 kept = __ballot_sync(kFullWarp, mine);
    if (mine) {
      const u32 at = static_cast<u32>(__popc(static_cast<int>(kept & ((1u << lane) - 1))));
      out.watch.event[at] = event;
      out.watch.amount[at] = (staging.runs + 1) * total;
    }
    return static_cast<u32>(__popc(static_cast<int>(kept)));
  }

  __device__ u32 own_count(const Staging& staging, u32 event) const {
    const auto own = memory_.own[event % Memory::kOwnEvents];
    return own.event == event && own.slot == staging.slot && own.epoch == staging.epoch ? own.count : 0;
  }

  /// A lane a signal. Returns how many are listed.
  __device__ u32 list_signals(Slot& out, const Staging& staging, const wire::TileCoord& coord) {
    const u32 lane = platform_.control_lane();
    if (lane < staging.signal_count) {
      const u32 event = wire::signal_event(staging.signal, coord);
      if (lane < Memory::kSignals) out.signals[lane] = {staging.events + event, 1};
      memory_.own[event % Memory::kOwnEvents] = {event, staging.slot, staging.epoch, own_count(staging, event) + 1};
    }
    return staging.signal_count <= Memory::kSignals ? staging.signal_count : Watch::kMany;
  }

  // ---- gate -----------------------------------------------------------------------------------------------------------

  __device__ void gate() {
    TileGate<CudaPlatform> gate(platform_, params_);
    Stop stop{memory_};
    u32 at = 0, bodies = 0, closing = 0;
    bool inside = false;  // of an inbox task
    while (closing == 0 && await_tile(at, inside, closing)) {
      Slot& next = slot(at);
      StagedTile& tile = next.tile;
      if (!inside) closing = word(memory_.leave);
      if (closing != 0) break;
      const bool suspend = inside && !is_queued(tile) && tile.kind != TileKind::fault && word(memory_.suspend) != 0;
      if (suspend) {
        closing = suspend_before(tile);
        break;
      }
      if (tracing() && platform_.leader()) tile.start_ns = ptx::globaltimer();
      gate.pass(tile, &next.watch, stop);
      if (tile.kind == TileKind::suspend) {
        closing = suspend_before(tile);
        break;
      }
      if (tile.kind == TileKind::body && !start_body(at, bodies, tile)) break;
      inside = (tile.flags & kTileClosesInbox) == 0;
      const bool last = tile.kind == TileKind::fault || word(memory_.stop) != 0;
      const bool park = !inside && tile.inbox.op == wire::kOpPark;
      __syncwarp();
      ++at;
      if (platform_.leader()) ptx::st_release_cta_shared(&memory_.gated, at);  // [P3] pairs with [P4]
      if (last) break;
      if (park) closing = static_cast<u32>(wire::ParkReason::requested) + 1;
    }
    if (closing != 0 && platform_.leader()) ptx::st_release_cta_shared(&memory_.closing, closing);  // [P9] pairs with [P10]
    __syncwarp();
    send_bodies_home(bodies);
  }

  /// The reason to leave, as in `closing`.
  __device__ u32 suspend_before(const StagedTile& tile) {
    if (platform_.leader()) memory_.resume = {tile.list_task, tile.tile - tile.task.first_tile()};
    __syncwarp();
    return word(memory_.leave);
  }

  /// False: the worker has stopped, or leaves here, then with a reason in `closing`.
  __device__ bool await_tile(u32 at, bool inside, u32& closing) {
    for (u32 spins = 0;; ++spins) {
      if (ptx::ld_acquire_cta_shared(&memory_.fetched) != at) return true;  // [P2] pairs with [P1]
      if (word(memory_.stop) != 0) return false;
      if (!inside && (closing = word(memory_.leave)) != 0) return false;
      rest(spins);
    }
  }

  /// Hands the tile to the bodies once at most one is under way.
  __device__ bool start_body(u32 at, u32& bodies, StagedTile& tile) {
    if (!await_bodies(bodies)) return false;
    if (platform_.leader()) {
      tile.body = bodies;
      memory_.go[bodies % 2] = at % Memory::kSlots;
    }
    __syncwarp();
    ptx::barrier_arrive(kGoBarrier + bodies % 2, kGoThreads);
    ++bodies;
    return true;
  }
  __device__ bool await_bodies(u32 bodies) {
    if (bodies < 2) return true;
    for (u32 spins = 0; !body_ended(bodies - 2); ++spins) rest(spins);
    return true;
  }
  __device__ void send_bodies_home(u32 bodies) {
    await_bodies(bodies);
    if (platform_.leader()) memory_.go[bodies % 2] = kExit;
    __syncwarp();
    ptx::barrier_arrive(kGoBarrier + bodies % 2, kGoThreads);
  }

  // ---- bodies ---------------------------------------------------------------------------------------------------------

  __device__ void run_bodies(u8* scratch, u32 scratch_bytes) {
    CudaLanes lanes(scratch, scratch_bytes);
    for (u32 body = 0;; ++body) {
      ptx::barrier_sync(kGoBarrier + body % 2, kGoThreads);
      const u32 at = memory_.go[body % 2];
      if (at == kExit) return;
      Slot& mine = memory_.slots[at];
      const u32 fault = run_op_body<Ops>(lanes, *mine.tile.frame, *mine.tile.view.op, mine.tile.tile);
      if (fault != 0) mine.body_fault = fault;  // several lanes may store; any of their faults will do
      if (tracing() && threadIdx.x == 0) mine.tile.end_ns = ptx::globaltimer();
      __syncwarp();
      if (threadIdx.x % kWarpLanes == 0) ptx::red_release_cta_shared_add(&memory_.bodies, 1);  // [P5] pairs with [P6]
    }
  }

  // ---- signal ---------------------------------------------------------------------------------------------------------

  __device__ void signal() {
    TileSignals<CudaPlatform> signals(platform_);
    QueueSignals<CudaPlatform> queue(platform_);
    u32 at = 0, sent = 0;
    bool halted = false;
    for (u32 spins = 0;; ++spins) {
      const u32 closing = ptx::ld_acquire_cta_shared(&memory_.closing);  // [P10] pairs with [P9]; before gated
      const u32 gated = ptx::ld_acquire_cta_shared(&memory_.gated);      // [P4] pairs with [P3]
      if (at == gated) {
        if (word(memory_.stop) != 0 || closing != 0) return;
        rest(spins);
        continue;
      }
      spins = 0;
      for (; at != gated; ++at) {
        const Slot& next = slot(at);
        // Read before the body has ended: between its end and the signal every cycle counts.
        const TileKind kind = next.tile.kind;
        const u32 body = next.tile.body, count = next.signal_count;
        const Memory::Signal mine = next.signals[platform_.control_lane() % Memory::kSignals];
        const bool silent = next.silent != 0;
        if (kind == TileKind::body && !body_ended(body)) {
          if (at != sent) send(signals, sent = at);  // others may wait for what is collected
          for (u32 naps = 0; !body_ended(body); ++naps) rest(naps);
        }
        // After a fault nothing is signalled any more: the run is lost.
        halted = halted || kind == TileKind::fault || (kind == TileKind::body && next.body_fault != 0);
        if (!halted) collect(signals, queue, next, count, mine, silent);
      }
      send(signals, sent = at);
    }
  }

  __device__ void collect(TileSignals<CudaPlatform>& signals, QueueSignals<CudaPlatform>& queue, const Slot& next, u32 count,
                          const Memory::Signal& mine, bool silent) const {
    if (count == Watch::kMany && is_queued(next.tile)) return collect_queued(queue, next.tile);
    if (count == Watch::kMany) return signals.add(next.tile);
    signals.add_listed(count, mine.word, mine.count, silent);
  }

  __device__ void collect_queued(QueueSignals<CudaPlatform>& queue, const StagedTile& tile) const {
    add_queued(queue, tile);
    if ((tile.flags & kTileClosesInbox) == 0) return;
    queue.publish(reinterpret_cast<wire::WorkerLine*>(params_.worker_lines) + index_);
  }

  __device__ void send(TileSignals<CudaPlatform>& signals, u32 at) {
    signals.flush();
    __syncwarp();
    if (platform_.leader()) ptx::st_release_cta_shared(&memory_.signalled, at);  // [P7] pairs with [P8]
  }

  // ---- post -----------------------------------------------------------------------------------------------------------

  __device__ void post() {
    WorkerPost<CudaPlatform> post(platform_, params_, index_);
    post.start();
    u32 at = 0;
    for (u32 spins = 0;; ++spins) {
      const u32 closing = ptx::ld_acquire_cta_shared(&memory_.closing);  // [P10] pairs with [P9]; before gated
      const u32 gated = ptx::ld_acquire_cta_shared(&memory_.gated);      // [P4] pairs with [P3]
      const u32 before = at;
      while (at != gated && post_tile(post, at)) ++at;
      if (post.owes_answer() && post.has_room()) post.answer();
      if (post.left()) break;
      if (at != before) {
        spins = 0;
        continue;
      }
      if (closing != 0 && at == gated) {
        post.leave_parked(static_cast<wire::ParkReason>(closing - 1), memory_.resume);
        break;
      }
      if (spins == kHotSpins) post.flush_counters();
      rest(spins);
    }
    set_word(memory_.stop, 1);
  }

  /// False: the tile's body has not ended yet, or the worker has left with a fault.
  __device__ bool post_tile(WorkerPost<CudaPlatform>& post, u32 at) {
    const Slot& next = slot(at);
    const StagedTile& tile = next.tile;
    if (tile.kind == TileKind::body && !body_ended(tile.body)) return false;
    if (tile.kind == TileKind::fault) return post.fault(tile.fault);
    if (tile.kind == TileKind::body && next.body_fault != 0) {
      const wire::Task& task = tile.task;
      return post.fault({static_cast<wire::FaultCode>(next.body_fault), task.op, task.slot(), task.epoch, tile.tile});
    }
    Stop stop{memory_};
    if (tile.kind == TileKind::body && tile.view.op->report >= 0 && !post.report(tile, stop)) return false;
    // An answer tells the host that the run's events stand at their counts.
    for (u32 spins = 0; static_cast<i32>(ptx::ld_acquire_cta_shared(&memory_.signalled) - at) <= 0; ++spins) rest(spins);  // [P8]
    if (tracing() && (tile.kind == TileKind::body || tile.kind == TileKind::skip)) trace(post, tile);
    if ((tile.flags & kTileClosesInbox) != 0) post.finish_inbox_task(tile);
    __syncwarp();
    if (platform_.leader()) ptx::st_release_cta_shared(&memory_.posted, at + 1);  // [P7] pairs with [P8]
    return true;
  }

  /// The gate begins with a tile while the body before it runs; the record counts from that body's end.
  __device__ void trace(WorkerPost<CudaPlatform>& post, const StagedTile& tile) {
    const u64 ready_ns = tile.start_ns + tile.wait_ns;
    const u64 from_ns = tile.start_ns > traced_to_ns_ ? tile.start_ns : traced_to_ns_;
    const u64 end_ns = tile.kind == TileKind::body && tile.end_ns > from_ns ? tile.end_ns : (ready_ns > from_ns ? ready_ns : from_ns);
    if ((tile.flags & kTileOpensTask) != 0) {
      task_start_ns_ = from_ns;
      task_wait_ns_ = 0;
    }
    if (tile.wait_ns > 0 && ready_ns > from_ns) task_wait_ns_ += ready_ns - from_ns;
    traced_to_ns_ = end_ns;
    if ((tile.flags & kTileClosesTask) == 0) return;
    post.add_times(end_ns - task_start_ns_ - task_wait_ns_, task_wait_ns_);
    post.trace(tile.task, task_start_ns_, task_wait_ns_, end_ns - task_start_ns_);
  }

  Memory& memory_;
  const wire::WorkerParams& params_;
  u32 index_;
  CudaPlatform platform_;

  // fetch
  u32 parsed_first_ = 0, parsed_count_ = 0;
  u32 staged_ = 0;
  u32 finished_tiles_ = 0;  // of the first task, by an earlier launch
  u32 unlooked_ = 0;        // tiles staged since the last look at the clock
  u64 looked_at_ = 0;
  const wire::RunFrame* copied_frame_ = nullptr;
  u32 copied_epoch_ = 0, copied_op_ = 0, copied_block_ = 0;
  // post
  u64 task_start_ns_ = 0, task_wait_ns_ = 0, traced_to_ns_ = 0;
};

}  // namespace CCKS_ISA
}  // namespace ccks::worker
