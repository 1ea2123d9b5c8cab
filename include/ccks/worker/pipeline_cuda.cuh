// CudaPipeline: a worker that is a thread block, its stages (staged_tile.hpp) side by side. Eight warps run bodies; four
// more fetch, gate, signal and post. Tiles pass through a ring in shared memory, in order; each stage publishes how far it is.
// So while a body runs, the next tiles are fetched, their operands asked for, the next one's events watched, and the last one's
// stores released.
//
// Roles         ring       records, controls, heads, blocks: written by fetch; controls also by the gate; read by all
//   fetched     tiles handed on              fetch [P1] -> gate, signal, post [P2]
//   gated       tiles let through            gate [P3]  -> signal, post [P4]
//   turns.bodies  warps that have ended a body, over all bodies: relaxed, so that no warp waits for its stores before the next
//   synced      bodies whose end the signalling warp has met: signal [P11] -> gate, fetch, post [P12]
//   signalled   tiles whose signals are out  signal [P7] -> post, fetch [P8]
//   posted      tiles the host knows of      post [P7]  -> fetch [P8]
//   closing     the gate lets nothing more through, ParkReason + 1: gate [P9] -> signal, post, fetch [P10]
//   gate_left   the gate has left: gate [P13] -> post [P14]; with full and empty of the ring for weights in pipeline_stream.cuh
//   let         bodies that have begun early and whose events are there, or that are not to run: the number of the last: gate [P21] -> bodies [P22]
//   resume, fault   where the gate left an inbox task, with closing; what is wrong with a tile, with gated
//   leave, abandon, suspend, stop: lone words, relaxed; nothing comes with them
// Barriers      go: gate and bodies meet before a body; done: bodies and signal after it. inputs: gate and a body that is kOpEarly, which
//               meet at go before the gate waits for the body's events, and here behind it. Two of each, in turn.
// Invariants    a place of the ring is written again only after signalled and posted have passed it, a head or block only after
//               all its tiles. A body starts only once the signalling warp has met the end of the one before the last.
//
// Strands. Tiles of a list of which nobody else waits for the first, nor the others for anybody else (kRecordJoined), pass gate, bodies
// and signal as one: what is said of a body here holds for a strand. Between two tiles of one there is only a barrier of the body warps.
//
// Turns. The function of a body that is linked may go on from a strand to the next one's only tile, if that is of the same body, as the loop would (body_turns.cuh).
//
// What a wait need not wait for. Bodies of a block run one after the other, so a tile does not wait for events whose whole
// count comes from earlier tiles of the same worker; unless it has guards, which the gate reads while bodies run. Nested guards (wire::GuardParams) have
// a wait of their own, in front of all others: where they fail the tile is passed over at once, and with it every tile handed on that has the guard that
// failed, by gate, signal and post a lane each. Tile by tile that took 1.1 us of an H200 for each.
//
// Relays (kWorkerRowTags; relay.cuh). A relay is one tile, whose body waits for words of other workers as a strand with tags alone does, and gives up as that does.
//
// Overtaking rows (kWorkerRowTags). A body that streams and may take its row by tags (wire::kRecordEarly, tagged_rows.hpp) takes stages of the ring before the gate
// has let it through, and meets it behind the tags that it leaves, in front of its stores. So a gate that leaves before such a tile meets its body first, which has
// stages as long as the gate has not left.
//
// Overtaking. A body that finds its input tagged (tagged_values.hpp) does not wait for the events: it meets the gate at inputs behind its
// stores instead of in front. So its signals follow its events, and a tile that the worker leaves before has told nobody but who reads tags.
//
// Tags alone. A strand whose bodies wait for nothing but tags (wire::kOperandTagsAlone) has no events: bodies begin at once, and what they wait for is in other
// workers' hands, which may leave. So the gate lets such a strand through only once its bodies have ended. If the worker is to leave before, they give up in front
// of a tile, and that is where the next launch goes on.
//
// Lanes of a service warp hold the same and do the same. What one of them would store into shared memory, all do: one access, of one
// value. A branch for one lane is what makes ptxas doubt that the warp is together: then every shuffle and barrier of the warp gets a
// second copy of itself. What only one lane may do is one predicated instruction (ptx.hpp), or a function apart (pipeline_looks.cuh).
//
// Leaving. The fetching warp sees that the worker should leave; the gate leaves between two inbox tasks, or before any tile
// if it is to suspend, or with a fault; the post stage says so to the host once everything before it is through.
#pragma once

#include "ccks/worker/kept_tiles.hpp"
#include "ccks/worker/pipeline_fetch.cuh"
#include "ccks/worker/pipeline_stream.cuh"
#include "ccks/worker/product_streamed.hpp"
#include "ccks/worker/relay.cuh"

namespace ccks::worker {
inline namespace CCKS_ISA {

template <class Ops>
class CudaPipeline : CudaStage {
 public:
  using Memory = CudaPipelineMemory;

  __device__ CudaPipeline(Memory& memory, const wire::WorkerParams& params, u32 index)
      : CudaStage(memory, params, index) {}

  /// Every thread of the block calls it; returns once the worker has left.
  __device__ void run(u8* scratch, u32 bytes) {
    const u32 scratch_bytes = CudaLanes::kStreams ? bytes - ring_bytes(params_.stream_stages) : bytes;
    if (threadIdx.x == 0) clear();
    if (CCKS_WORKER_ROOMY && threadIdx.x == 0) kept_tiles(scratch).of.counts = nullptr;
    if (threadIdx.x == 0) clear_ring(reinterpret_cast<StreamRing*>(scratch + bytes - kStreamRingBytes));
    if (threadIdx.x < Memory::kOwnEvents) memory_.own[threadIdx.x] = {0, 0, 0, 0};
    __syncthreads();
    const u32 warp = platform_.uniform(u32{threadIdx.x} / kWarpLanes);  // so that ptxas knows that no branch on it parts a warp
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
  static constexpr u32 kHeldTasks = 8;   // answered by one record
  static constexpr u32 kHeldTurns = 32;  // looks of the post stage, about 2 us: what an answer waits for the next
  static constexpr u32 kLastBody = 1u << 30;  // added to `synced` by a signalling warp that has left

  /// What the outbox asks of the rest of the worker.
  struct PostStop {
    __device__ __forceinline__ static WaitEnd::Code look(bool first) { return static_cast<WaitEnd::Code>(__shfl_sync(kFullWarp, u32{look_while_waiting(1, first)}, 0)); }
  };

  __device__ void clear() {
    memory_.gate_left = 0;
    memory_.let = memory_.fetched = memory_.gated = memory_.synced = memory_.signalled = memory_.posted = 0;
    memory_.closing = memory_.leave = memory_.abandon = memory_.suspend = memory_.stop = memory_.attention = 0;
    memory_.resume = {};
    memory_.stays[0] = memory_.stays[1] = 0;
    clear_turns(memory_.turns);
    memory_.hurry = memory_.given_up = 0;
    if constexpr (kWorkerRowTags) memory_.missed = 0;
    memory_.params = params_;
    memory_.prefetched = 0;
    memory_.relay.active = memory_.relay.done = 0;
    memory_.failed = {};
    memory_.looks.beat.value = 0;
  }

  /// Field by field: an image of constants would be loaded from memory (tests/ptx/check.py).
  __device__ void clear_turns(BodyTurns& turns) {
    turns.go[0].word = turns.go[1].word = turns.ends[0] = turns.ends[1] = turns.bodies = 0;
    turns.traces = tracing() ? 1 : 0;
    turns.entries = ptx::shared_address(memory_.entries);
    turns.records = ptx::shared_address(memory_.records);
    turns.times = memory_.times;
    turns.faults = memory_.body_faults;
  }

  /// A stage that has never been filled is empty: of its barrier the phase before the first counts as ended.
  __device__ void clear_ring(StreamRing* ring) {
    const u32 stages = CudaLanes::kStreams ? params_.stream_stages : 0;
    memory_.ring = stages == 0 ? nullptr : ring;
    memory_.fill = {};
    if (stages == 0) return;
    ring->stages = stages;
    ring->place = {};
    for (u32 i = 0; i != stages; ++i) {
      ptx::mbarrier_init(&ring->full[i], 1);
      ptx::mbarrier_init(&ring->empty[i], kBodyWarps);
    }
    ptx::fence_proxy_async_shared();
  }

  __device__ void fetch() {
    CudaPlatform platform(memory_.shared);
    TaskSource<CudaPlatform> source(platform, params_, index_);
    CudaFetch<Ops>(memory_, params_, index_, source).run();
  }

  // ---- gate -----------------------------------------------------------------------------------------------------------

  /// For the waits of the gate.
  struct GateStop {
    Memory& memory;
    u32 body;                  // how many have been started
    u32 place;                 // of the tile that is waited for
    bool early;                // its body has begun
    bool was_blocked = false;
    bool recalled = false;     // and left again
    __device__ __forceinline__ static WaitEnd::Code look(bool first) { return static_cast<WaitEnd::Code>(__shfl_sync(kFullWarp, u32{look_while_waiting(0, first)}, 0)); }
    __device__ __forceinline__ static bool idle() { return true; }
    /// A body that streams finds out while it waits what does not depend on its inputs (StreamedCall). Not before the first look, which
    /// may say that there is nothing to wait for.
    __device__ __forceinline__ void blocked() {
      was_blocked = true;
      if constexpr (requires { Ops::kAwaitsInputs; }) {
        if (early || !memory.streams(place)) return;
        early = true;
        memory.turns.go[body % 2] = GoWord::of(body, place, GoWord::kEarly);
        __syncwarp();
        ptx::barrier_arrive(kGoBarrier + body % 2, kMeetThreads);
      }
    }
  };

  /// From an event to the body that waits for it, and from there to the next wait, every instruction counts: about five cycles
  /// each. What is rare stands apart.
  __device__ __forceinline__ void gate() {
    EventWait<CudaPlatform> wait(platform_, params_, index_);
    u32 at = 0, closing = 0;
    u32 bodies = 0;       // started so far
    bool inside = false;  // of an inbox task
    bool early = false;   // a body has begun, and waits for its inputs
    bool at_home = false; // bodies have left
    while (closing == 0 && await_tile(at, inside, closing)) {
      const u32 place = slot(at);
      const Control control = memory_.controls[place];
      if (word(memory_.attention) != 0 && leaves_before(control, place, inside, closing)) break;
      if (is_guarded(control) && is_ruled_out(memory_, place)) {
        let_through(at += pass_over(at), inside);
        continue;
      }
      TileKind kind = control.kind;
      early = kind == TileKind::body && begins_early(place);
      if (kind == TileKind::body) name_body(place, control, early, bodies);
      GateStop stop{memory_, bodies, place, early};
      kind = pass(wait, place, control, stop);
      early = stop.early;
      if (kWorkerRowTags && stop.recalled) early = false, at_home = true;
      if (kind == TileKind::body) {
        if (early) ptx::st_release_cta_shared(&memory_.let, bodies + 1);  // [P21] pairs with [P22]
        ptx::barrier_arrive((early ? kInputsBarrier : kGoBarrier) + bodies++ % 2, kMeetThreads);
        early = false;
        if (waits_itself(control, place) && !outlasts(bodies - 1, place, control, closing)) {
          at_home = true;
          if (closing == 0) let_through(at += strand_of(control), inside);  // with a fault
          break;
        }
      } else if (kind == TileKind::suspend) {
        closing = suspend_before(place, control);
        break;
      }
      let_through(at += strand_of(control), inside);
      if (kind == TileKind::fault) break;
      if (!inside && head_of(control).inbox.op == wire::kOpPark) closing = static_cast<u32>(wire::ParkReason::requested) + 1;
    }
    if (kWorkerRowTags && early) recall_body(bodies);
    if (closing != 0) ptx::st_release_cta_shared(&memory_.closing, closing);  // [P9] pairs with [P10]
    ptx::st_release_cta_shared(&memory_.gate_left, 1);  // [P13] pairs with [P14]
    __syncwarp();
    if (!at_home && !(kWorkerRowTags && early)) send_bodies_home(bodies, early);
  }

  __device__ __forceinline__ static bool is_tagged(const Control& control) { return kWorkerTags && (control.flags & kTileTagged) != 0; }
  /// Its bodies wait for words of other workers.
  __device__ __forceinline__ bool waits_itself(const Control& control, u32 place) const { return is_tagged(control) || memory_.is_relay(place); }
  /// Waits for the bodies of a tagged strand, or of a relay. False: they have given up, since the worker leaves, then with a reason in `closing`, or has a fault.
  __device__ __forceinline__ bool outlasts(u32 body, u32 place, const Control& control, u32& closing) {
    const auto code = static_cast<WaitEnd::Code>(__shfl_sync(kFullWarp, u32{await_tagged(body)}, 0));
    if (code == WaitEnd::ready) return true;
    if (code == WaitEnd::suspend) {
      memory_.resume = {control.list_task + word(memory_.given_up) - 1, 0};
      __syncwarp();
      closing = word(memory_.leave);
    } else {
      (void)mark_fault(place, control, {code});
    }
    return false;
  }

  /// All tiles before `at`.
  __device__ __forceinline__ void let_through(u32 at, bool& inside) const {
    ptx::st_release_cta_shared(&memory_.gated, at);  // [P3] pairs with [P4]
    inside = (memory_.controls[slot(at - 1)].flags & kTileClosesInbox) == 0;
  }
  /// True: the worker has stopped, or leaves here, then with a reason in `closing`.
  __device__ __forceinline__ bool leaves_before(const Control& control, u32 place, bool inside, u32& closing) {
    if (word(memory_.stop) != 0) return true;
    if (!inside) {
      closing = word(memory_.leave);
    } else if (word(memory_.suspend) != 0 && control.kind != TileKind::fault && !(kWorkerQueues && head_of(control).inbox.op == wire::kOpQueue)) {
      closing = suspend_before(place, control);
    }
    return closing != 0;
  }
  /// The reason to leave, as in `closing`.
  __device__ __forceinline__ u32 suspend_before(u32 place, const Control& control) {
    const wire::TileRecord& record = memory_.records[place];
    const bool cut = (record.flags & wire::kRecordCut) != 0;
    const u32 finished = cut ? record.tile - head_of(control).task.first_tile() : 0;
    memory_.resume = {control.list_task, finished};
    __syncwarp();
    return word(memory_.leave);
  }

  /// False: the worker has stopped, or leaves here, then with a reason in `closing`.
  __device__ __forceinline__ bool await_tile(u32 at, bool inside, u32& closing) {
    for (u32 spins = 0;; ++spins) {
      if (ptx::ld_acquire_cta_shared(&memory_.fetched) != at) return true;  // [P2] pairs with [P1]
      if (word(memory_.attention) != 0) {
        if (word(memory_.stop) != 0) return false;
        if (!inside && (closing = word(memory_.leave)) != 0) return false;
      }
      rest(spins);
    }
  }

  /// Waits for the tile's events and looks at its guards; says what has become of it.
  __device__ __forceinline__ TileKind pass(EventWait<CudaPlatform>& wait, u32 place, const Control& control, GateStop& stop) {
    if (control.kind == TileKind::fault) return mark_fault(place, memory_.fetch_fault);
    const wire::TileRecord& record = memory_.records[place];
    if (tracing()) memory_.times[place].start_ns = ptx::globaltimer();
    const u32 waits = control.kind == TileKind::body || control.kind == TileKind::empty ? record.wait_count : 0;
    const bool guarded = is_guarded(control);
    const bool first = guarded && record.guards == wire::GuardTime::behind_first && (record.flags & wire::kRecordCut) == 0;
    bool holds = true;
    WaitEnd end;
    if (first) {
      if (!await_events(wait, place, 1, false, stop, end)) return mark_end(place, control, end, stop);  // who has guards is not silent
      holds = guards_hold(place, control);
    }
    // Of a tile that is passed over nobody may make what it waits for.
    const bool silent = (record.flags & wire::kRecordSilent) != 0;
    if (holds && waits > 0 && !await_events(wait, place, waits, silent, stop, end)) return mark_end(place, control, end, stop);
    // Before the verdict, which ends the wait: what guards look at was there with the events.
    if (guarded && !first && control.kind == TileKind::body) holds = guards_hold(place, control);
    bool drops = false;  // it is of a draft that the host has dropped
    if (kWorkerDecides && (control.flags & kTileDraft) != 0 && control.kind == TileKind::body) {
      const WaitEnd end = wait.wait_verdict(head_of(control).inbox, (control.flags & kTileOpensInbox) != 0, stop.was_blocked, stop);
      if (end.code == WaitEnd::suspend) return TileKind::suspend;
      if (end.code != WaitEnd::ready) return mark_fault(place, control, end, stop);
      drops = wait.skips();
    }
    if (tracing()) {
      Memory::Times& times = memory_.times[place];
      times.wait_ns = stop.was_blocked ? ptx::globaltimer() - times.start_ns : 0;
    }
    return control.kind == TileKind::body && (drops || !holds) ? mark(place, TileKind::skip) : control.kind;
  }

  /// Waits for the first `count` events of the tile's record, a lane each. False: the wait has ended before, see `end`.
  __device__ __forceinline__ bool await_events(EventWait<CudaPlatform>& wait, u32 place, u32 count, bool silent, GateStop& stop, WaitEnd& end) {
    const wire::TileRecord& record = memory_.records[place];
    const Memory::Entry& entry = memory_.entries[place];
    const u32 mine = platform_.control_lane() < count ? platform_.control_lane() : 0;
    const u32 event = record.wait_event[mine], amount = record.wait_from[mine] + entry.runs * record.wait_total[mine];
    return wait.wait(entry.events, event, amount, entry.bases == nullptr ? nullptr : entry.bases + event, silent, stop, end);
  }
  __device__ __forceinline__ TileKind mark_end(u32 place, const Control& control, const WaitEnd& end, GateStop& stop) {
    return end.code == WaitEnd::suspend ? TileKind::suspend : mark_fault(place, control, end, stop);
  }

  /// A lane a guard. One that fails is noted.
  __device__ __forceinline__ bool guards_hold(u32 place, const Control& control) {
    const OpView view = view_of_tile(memory_, place);
    const wire::RunFrame& frame = *memory_.entries[place].frame;
    for (u32 first = 0; first < view.op->guard_count; first += kWarpLanes) {
      const u32 mine = first + platform_.control_lane();
      const u32 fails = platform_.first_lane(mine < view.op->guard_count && !guard_holds(frame, view.guards[mine]));
      if (fails == platform_.control_lanes()) continue;
      const wire::GuardParams& guard = view.guards[first + fails];
      memory_.failed = {&frame, head_of(control).task.epoch, first + fails, guard.compare, guard.int_value, guard.offset};
      __syncwarp();
      return false;
    }
    return true;
  }
  __device__ __forceinline__ TileKind mark(u32 place, TileKind kind) {
    memory_.controls[place].kind = kind;
    return kind;
  }
  __device__ __forceinline__ TileKind mark_fault(u32 place, const FaultDetails& details) {
    memory_.fault = details;
    return mark(place, TileKind::fault);
  }
  __device__ __forceinline__ TileKind mark_fault(u32 place, const Control& control, const WaitEnd& end, GateStop& stop) {
    if constexpr (kWorkerRowTags) {  // before who fills the ring finds no body there, which wants its stages
      if (stop.early) recall_body(stop.body);
      stop.recalled = stop.early;
    }
    return mark_fault(place, control, end);
  }
  __device__ __forceinline__ TileKind mark_fault(u32 place, const Control& control, const WaitEnd& end) {
    const wire::Task& task = head_of(control).task;
    const wire::TileRecord& record = memory_.records[place];
    const wire::FaultCode code = end.code == WaitEnd::abandoned ? wire::FaultCode::abandoned : wire::FaultCode::wait_deadline;
    return mark_fault(place, {code, record.op, task.slot(), task.epoch, record.tile, end.event, end.value, end.target});
  }

  __device__ __forceinline__ bool begins_early(u32 place) const {
    // What a relay waits for it wants for its first rows; its weights it may have before. A guard may still keep it from running.
    if (memory_.is_relay(place)) return memory_.records[place].wait_count != 0 && !is_guarded(memory_.controls[place]);
    if constexpr (requires { Ops::kAwaitsInputs; })
      return (memory_.records[place].flags & wire::kRecordEarly) != 0 && memory_.records[place].wait_count != 0;
    else
      return false;
  }
  /// Says which tiles the strand `body` is of, once at most one is under way. It starts when the gate arrives at its barrier.
  __device__ __forceinline__ void name_body(u32 place, const Control& control, bool early, u32 body) {
    const u32 tiles = strand_of(control);
    await_synced(body);
    if (platform_.control_lane() < tiles) memory_.controls[slot(place + platform_.control_lane())].body = body;
    memory_.turns.go[body % 2] = GoWord::of(body, place, early ? GoWord::kEarly : is_plain(control) ? GoWord::kPlain : 0);
    __syncwarp();
    if (early) ptx::barrier_arrive(kGoBarrier + body % 2, kMeetThreads);
  }
  /// Until the signalling warp has met the end of the body before the last, or has left.
  __device__ __forceinline__ void await_synced(u32 body) const {
    for (u32 spins = 0; static_cast<i32>(ptx::ld_acquire_cta_shared(&memory_.synced) + 1 - body) < 0; ++spins) rest(spins);  // [P12]
  }
  /// `early`: the next has begun.
  __device__ __forceinline__ void send_bodies_home(u32 body, bool early) {
    if (!early) await_synced(body);
    if (early) memory_.stays[body % 2] = 1;
    if (early) ptx::st_release_cta_shared(&memory_.let, body + 1);  // [P21] pairs with [P22]
    if (!early) memory_.turns.go[body % 2] = GoWord::of(body, 0, GoWord::kExit);
    __syncwarp();
    ptx::barrier_arrive((early ? kInputsBarrier : kGoBarrier) + body % 2, kMeetThreads);
  }
  /// The same of one that has begun, and is not to wait for stages of the ring that nobody fills any more.
  __device__ __forceinline__ void recall_body(u32 body) {
    memory_.stays[body % 2] = 1;
    ptx::st_release_cta_shared(&memory_.let, body + 1);  // [P21] pairs with [P22]
    __syncwarp();
    meet_gate(body);
  }

  // ---- bodies ---------------------------------------------------------------------------------------------------------

  __device__ __forceinline__ void run_bodies(u8* scratch, u32 scratch_bytes) {
    CudaLanes lanes(scratch, scratch_bytes);
    u32 body = 0;
    for (bool met = false;;) {
      if (!met) memory_.turns.meet(body);
      met = false;
      const GoWord go = memory_.turns.go[body % 2];
      if (go.exits()) return leave_bodies(body);
      bool early = go.early();
      u32 place = go.place();
      if (early && !memory_.streams(place) && !memory_.is_relay(place)) lanes.begin_early(kInputsBarrier + body % 2, &memory_.stays[body % 2], &memory_.let, body + 1);
      if (kWorkerRowTags && memory_.is_relay(place)) {
        if (!run_relay(place, body, scratch_bytes, early)) return leave_bodies(body);
        memory_.turns.end(body++);
        lanes = CudaLanes(scratch, scratch_bytes);  // so that nothing of it is kept over that call
        continue;
      }
      Memory::Entry entry = memory_.entries[place];
      const bool tagged = is_tagged(memory_.controls[place]);
      const u32 tiles = strand_of(memory_.controls[place]);
      for (u32 left = tiles;;) {
        const bool streams = memory_.streams(place);
        bool has_row = false;  // by its tags: the body meets the gate
        if (streams && !multiply(lanes, place, entry, body, early, has_row)) return leave_bodies(body);
        if (kWorkerRowTags && has_row) lanes.begin_early(kInputsBarrier + body % 2, &memory_.stays[body % 2], &memory_.let, body + 1);
        lanes.begin_tile(streams, entry.tag);
        if (tagged) lanes.begin_tagged(&memory_.hurry, &memory_.given_up, tiles - left + 1);
        if (CCKS_WORKER_ROOMY) name_kept_tiles(memory_.records[place].op, entry.tag);
        const TurnsRun ran = run_body(lanes, entry, body, go.plain());
        // It has waited for its inputs. Not lanes.await_inputs() again: what lanes keep lies in memory that weights drive out of all caches.
        if (early && word(memory_.stays[body % 2]) != 0) return leave_bodies(body);
        early = false;
        if (tagged && word(memory_.given_up) != 0) return leave_bodies(body);
        if (kRunsInTurn && ran.word >= TurnsRun::kMet) {
          body += ran.ended();
          if ((met = ran.met())) break;
          place = memory_.turns.go[body % 2].place();
        }
        note(body, place, ran.fault());
        __syncwarp();
        if (--left == 0) break;
        place = slot(place + 1);
        entry = memory_.entries[place];  // on its way while the last lanes end the tile before
        lanes.sync();
      }
      if (!met) memory_.turns.end(body++);
    }
  }
  static constexpr bool kRunsInTurn = requires { Ops::kRunsInTurn; };
  __device__ __forceinline__ TurnsRun run_body(CudaLanes& lanes, const Memory::Entry& entry, u32 body, bool plain) {
    if constexpr (kRunsInTurn)
      return Ops::run_in_turn(lanes, plain ? ptx::shared_address(&memory_.turns) : 0, body, *entry.frame, *entry.op, entry.tile, entry.body);
    else
      return {run_known_body<Ops>(lanes, *entry.frame, *entry.op, entry.tile, entry.body)};
  }
  /// As BodyTurns::note, by what the loop has in registers: ragged_encoder lost 1 to 3 % by a longer way from tile to tile.
  __device__ __forceinline__ void note(u32 body, u32 place, u32 fault) {
    if (fault != 0) memory_.body_faults[place] = memory_.turns.ends[body % 2] = fault;
    if (tracing() && threadIdx.x == 0) memory_.times[place].end_ns = ptx::globaltimer();
  }
  __device__ __forceinline__ static bool is_plain(const Control& control) { return strand_of(control) == 1 && !is_tagged(control); }
  /// The product of a tile that streams, for its body to finish; early: once its inputs are there, or its row is. False: the worker leaves before it.
  template <class Lanes>
  __device__ __forceinline__ bool multiply(Lanes& lanes, u32 place, const Memory::Entry& entry, u32 body, bool early, bool& has_row) {
    if constexpr (Lanes::kStreams) {
      const StreamedCall call(lanes, *entry.frame, *entry.op, entry.tile);
      auto stream = lanes.stream(*memory_.ring);
      if constexpr (kWorkerRowTags) {
        const bool may = early && (memory_.records[place].flags & wire::kRecordEarly) != 0;
        has_row = may && overtake_streamed(lanes, EarlyInputs{body + 1}, call, entry.tag);
      }
      if (early && !has_row) {
        meet_gate(body);
        if (word(memory_.stays[body % 2]) != 0) return false;
      }
      multiply_streamed(lanes, stream, call, has_row);
    }
    return true;
  }

  __device__ __forceinline__ void leave_bodies(u32 body) {
    memory_.turns.ends[body % 2] = BodyTurns::kExit;
    __syncwarp();
    ptx::barrier_arrive(kDoneBarrier + body % 2, kMeetThreads);
  }

  // ---- signal ---------------------------------------------------------------------------------------------------------

  /// What a lane is going to add.
  struct Pending {
    u32* word = nullptr;
    u32 count = 0;
    bool silent = false;
  };

  /// Adds are sent as soon as the next tile is not ready too: others may wait for them. Until then they are collected, a lane
  /// each, because a release waits for everything the worker has stored.
  __device__ __forceinline__ void signal() {
    QueueSignals<CudaPlatform> queue(platform_);
    u32 at = 0, fetched = 0, sent = 0, body = 0;
    bool halted = false;
    for (u32 spins = 0;;) {
      if (at == fetched) fetched = ptx::ld_acquire_cta_shared(&memory_.fetched);  // [P2] pairs with [P1]
      if (at == fetched) {
        if (at != sent) send(sent = at);
        if (has_closed(at)) break;
        rest(spins++);
        continue;
      }
      spins = 0;
      const u32 place = slot(at);
      // Read before the body has ended: between its end and the signal every instruction counts.
      Control control = memory_.controls[place];
      const u32 tiles = strand_of(control);  // of which only the last signals
      Pending mine = signal_of(slot(at + tiles - 1), control);
      const bool queued = kWorkerQueues && head_of(control).inbox.op == wire::kOpQueue;
      const bool alone = used_ == 0 && !queued && !halted;
      const wire::TileRecord& last = memory_.records[slot(at + tiles - 1)];
      const bool silent = (last.flags & wire::kRecordSilent) != 0;
      const bool releases = !silent && last.signal_count != 0;  // for nobody it takes 600 cycles, too
      // Without guards a body runs unless the worker leaves before it.
      if (control.kind != TileKind::body || is_guarded(control)) {
        if (!await_gated(at, sent)) break;
        control.kind = memory_.controls[place].kind;
        if (control.kind == TileKind::empty) mine.count = 0;
        if (kWorkerDecides && control.kind == TileKind::skip && !queued && !halted) {
          const u32 gated = ptx::ld_acquire_cta_shared(&memory_.gated);  // [P4] pairs with [P3]
          if (const u32 passed = tiles_without_bodies(at, gated, 0); passed > 1) {
            flush();
            add_passed(at, passed);
            publish_signalled(sent = at += passed);
            if (static_cast<i32>(fetched - at) < 0) fetched = at;  // what has been let through has been fetched
            continue;
          }
        }
      }
      bool more = false;  // bodies that have ended behind this tile
      u32 end = control.kind == TileKind::fault ? 1 : 0;
      if (control.kind == TileKind::body) {
        if (at != sent && !body_ends(body)) send(sent = at);
        ptx::barrier_sync(kDoneBarrier + body % 2, kMeetThreads);
        end = memory_.turns.ends[body % 2];
        more = body_ends(++body);
        // A release may take a microsecond, and the post stage may have a report to send.
        if (!(alone && silent)) ptx::st_release_cta_shared(&memory_.synced, body);  // [P11] pairs with [P12]
      }
      // After a fault nothing is signalled any more: the run is lost.
      if (alone && !more && end == 0) {
        add(mine, !releases);
      } else {
        if (end == BodyTurns::kExit) break;
        halted = halted || end != 0;
        if constexpr (kWorkerQueues) {
          if (!halted && queued) collect_queued(queue, control, place);
        }
        if (!halted && !queued) collect(mine);
        if (!more) flush();
      }
      at += tiles;
      if (!more) publish_signalled(sent = at);
      if (control.kind == TileKind::body && alone && silent) ptx::st_release_cta_shared(&memory_.synced, body);  // [P11] pairs with [P12]
    }
    ptx::st_release_cta_shared(&memory_.synced, body + kLastBody);  // [P11] pairs with [P12]
  }

  /// Whether all its warps are about to arrive at the barrier. Relaxed: what they have stored is seen behind that.
  __device__ __forceinline__ bool body_ends(u32 body) const {
    return static_cast<i32>(word(memory_.turns.bodies) - (body + 1) * kBodyWarps) >= 0;
  }

  __device__ __forceinline__ bool has_closed(u32 at) const {
    const u32 closing = ptx::ld_acquire_cta_shared(&memory_.closing);  // [P10] pairs with [P9]; before gated
    const u32 gated = ptx::ld_acquire_cta_shared(&memory_.gated);      // [P4] pairs with [P3]
    return at == gated && (closing != 0 || word(memory_.stop) != 0);
  }
  /// False: the worker leaves before the tile. The gate may stand further back: what waits itself it lets through only once its bodies have ended.
  __device__ __forceinline__ bool await_gated(u32 at, u32& sent) {
    for (u32 spins = 0; static_cast<i32>(ptx::ld_acquire_cta_shared(&memory_.gated) - at) <= 0; ++spins) {  // [P4] pairs with [P3]
      if (at != sent) send(sent = at);
      if (has_closed(at)) return false;
      rest(spins);
    }
    return true;
  }

  /// Adds what tiles from `at` on signal that were passed over, a lane each.
  __device__ __forceinline__ void add_passed(u32 at, u32 tiles) const {
    const u32 lane = platform_.control_lane(), place = slot(at + lane);
    const bool mine = lane < tiles && memory_.controls[place].kind == TileKind::skip;
    const wire::TileRecord& record = memory_.records[place];
    CCKS_NO_UNROLL
    for (u32 i = 0; __any_sync(kFullWarp, mine && i < record.signal_count) != 0; ++i) {
      const bool adds = mine && i < record.signal_count;
      ptx::red_release_gpu_add_if(adds, head_of(memory_.controls[place]).events + record.signal_event[adds ? i : 0], 1);  // [E1]
    }
  }
  /// What this lane adds for a tile: one of its record's signals.
  __device__ __forceinline__ Pending signal_of(u32 place, const Control& control) const {
    const wire::TileRecord& record = memory_.records[place];
    const u32 lane = platform_.control_lane();
    u32* word = nullptr;  // not Pending{}, which would be loaded from memory (tests/ptx/check.py)
    u32 count = 0;
    bool silent = false;
    if (lane < record.signal_count) {
      word = head_of(control).events + record.signal_event[lane];
      count = control.kind == TileKind::signal ? record.wait_from[0] : 1;
      silent = (record.flags & wire::kRecordSilent) != 0;
    }
    return {word, count, silent};
  }

  __device__ __forceinline__ void collect(const Pending& mine) {
    const u32 count = static_cast<u32>(__popc(static_cast<int>(__ballot_sync(kFullWarp, mine.count > 0))));
    if (used_ + count > kWarpLanes) flush();
    if (used_ == 0) {
      pending_ = mine;
    } else if (count > 0) {
      const u32 from = (platform_.control_lane() - used_) % kWarpLanes;
      const u64 word = platform_.from_lane(reinterpret_cast<u64>(mine.word), from);
      const u32 amount = platform_.from_lane(mine.count, from), silent = platform_.from_lane(u32{mine.silent}, from);
      if (from < count) pending_ = {reinterpret_cast<u32*>(word), amount, silent != 0};
    }
    used_ += count;
  }

  __device__ __forceinline__ void collect_queued(QueueSignals<CudaPlatform>& queue, const Control& control, u32 place) const {
    StagedTile tile;
    static_cast<TaskHead&>(tile) = head_of(control);
    const bool copied = control.block != Memory::kNoBlock;
    tile.kind = control.kind;
    tile.flags = control.flags;
    tile.tile = memory_.records[place].tile;
    if (tile.kind == TileKind::body || tile.kind == TileKind::skip) {
      tile.view = copied ? view_of_block(memory_.blocks[control.block]) : view_of_frame(*tile.frame, memory_.records[place].op);
      tile.coord = wire::tile_coord(tile.view.op->grid, tile.tile);
      add_queued(queue, tile);
    }
    if ((control.flags & kTileClosesInbox) == 0) return;
    queue.publish(reinterpret_cast<wire::WorkerLine*>(params_.worker_lines) + index_);
  }

  /// Every lane its own, at once: one wait for the worker's stores.
  __device__ __forceinline__ void flush() {
    add(pending_, __all_sync(kFullWarp, pending_.silent || pending_.count == 0) != 0);
    pending_.count = 0;
    used_ = 0;
  }
  /// `silent`: all of them are.
  __device__ __forceinline__ static void add(const Pending& pending, bool silent) {
    if (silent) {
      ptx::red_relaxed_gpu_add_if(pending.count != 0, pending.word, pending.count);
    } else {
      ptx::red_release_gpu_add_if(pending.count != 0, pending.word, pending.count);  // [E1]
    }
  }
  __device__ __forceinline__ void send(u32 at) {
    flush();
    publish_signalled(at);
  }
  __device__ __forceinline__ void publish_signalled(u32 at) const {
    __syncwarp();
    ptx::st_release_cta_shared(&memory_.signalled, at);  // [P7] pairs with [P8]
  }

  // ---- post -----------------------------------------------------------------------------------------------------------

  __device__ __forceinline__ void post() {
    WorkerPost<CudaPlatform> post(platform_, params_, index_);
    post.start();
    if (tracing()) set_word(memory_.traced, post.traced());
    u32 at = 0;
    for (u32 spins = 0; !post.left(); ++spins) {
      const bool relays = stream_next(memory_, post.owes_answer() || ptx::ld_relaxed_cta_shared(&memory_.gated) != at);  // relaxed: what it is worth is looked at below
      const u32 closing = ptx::ld_acquire_cta_shared(&memory_.closing);  // [P10] pairs with [P9]; before gated
      const u32 gated = ptx::ld_acquire_cta_shared(&memory_.gated);      // [P4] pairs with [P3]
      const u32 before = at;
      while (at != gated && at - before < Memory::kOpened / 2) {
        const u32 tiles = post_strand(post, at, gated);
        if (tiles == 0) break;
        at += tiles;
      }
      if (at != before) pass_streams(memory_, at);
      if (at != before) ptx::st_release_cta_shared(&memory_.posted, at);  // [P7] pairs with [P8]
      if (at != before) held_turns_ = 0;
      if (post.owes_answer() && !holds_answer() && post.has_room()) {
        post.answer();
        held_tasks_ = 0;
      }
      if (at != before) {
        spins = 0;
        continue;
      }
      if (closing != 0 && at == gated) {
        post.leave_parked(static_cast<wire::ParkReason>(closing - 1), memory_.resume);
        continue;
      }
      if (spins == kHotSpins) post.flush_counters();
      if (!relays) rest(spins);
    }
    post.say_left();
    raise(memory_.stop, 1);
    if (memory_.has_ring() || kWorkerRowTags) end_stream(memory_);
  }

  /// An answer costs this warp a release, which takes microseconds while all workers poll, and the host a record. So it waits for
  /// the next task of its run, if that is there and soon through, and for no more than a few.
  __device__ __forceinline__ bool holds_answer() {
    return followed_ && held_tasks_ < kHeldTasks && held_turns_++ < kHeldTurns;
  }

  /// How many tiles, of those before `gated`: a strand, of which only the last has anything to say but a fault. 0: its body has not ended yet, or the worker
  /// has left with a fault.
  __device__ __forceinline__ u32 post_strand(WorkerPost<CudaPlatform>& post, u32 first, u32 gated) {
    Control control = memory_.controls[slot(first)];
    const bool body = control.kind == TileKind::body;
    if (kWorkerDecides && control.kind == TileKind::skip && !tracing()) {  // of those passed over one after the other only the last of an inbox task has anything to say
      const u32 signalled = ptx::ld_acquire_cta_shared(&memory_.signalled);  // [P8] pairs with [P7]
      const u32 end = static_cast<i32>(signalled - gated) < 0 ? signalled : gated;
      if (const u32 passed = tiles_without_bodies(first, end, kTileClosesInbox); passed > 1) return passed;
    }
    const u32 tiles = strand_of(control), mine = platform_.control_lane();
    if (body) find_report(first + tiles - 1);
    if (body && !body_ended(control.body)) return 0;
    if (control.kind == TileKind::fault) return post.fault(memory_.fault) ? 1 : 0;
    const u32 wrong = platform_.first_lane(body && mine < tiles && memory_.body_faults[slot(first + mine)] != 0);
    if (wrong != platform_.control_lanes()) return post_fault(post, slot(first + wrong)) ? 1 : 0;
    const u32 at = first + tiles - 1, place = slot(at);
    control = memory_.controls[place];
    const wire::TileRecord& record = memory_.records[place];
    PostStop stop;
    const Memory::Entry& entry = memory_.entries[place];
    if (body && report_ != nullptr && !post.report(*entry.frame, *entry.op, report_, task_of(control, place), stop)) return 0;
    // An answer tells the host that the run's events stand at their counts.
    for (u32 spins = 0; static_cast<i32>(ptx::ld_acquire_cta_shared(&memory_.signalled) - at) <= 0; ++spins) {  // [P8]
      if (!stream_next(memory_, true)) rest(spins);
    }
    if (tracing() && (body || control.kind == TileKind::skip)) trace(post, control, place);
    if ((control.flags & kTileClosesInbox) != 0) {
      post.finish_inbox_task(head_of(control).inbox, body && (record.flags & wire::kRecordSilent) != 0);
      followed_ = (control.flags & kTileFollowed) != 0;
      ++held_tasks_;
    }
    __syncwarp();
    return tiles;
  }
  /// Where the report of a tile's body lies, if it has one: looked for while the body runs, since behind it a decision may wait.
  __device__ __forceinline__ void find_report(u32 at) {
    if (found_ == at + 1) return;
    found_ = at + 1;
    const Memory::Entry& entry = memory_.entries[slot(at)];
    report_ = publishes_report(*entry.op, entry.tile) ? report_source(*entry.frame, *entry.op) : nullptr;
  }
  __device__ __forceinline__ bool post_fault(WorkerPost<CudaPlatform>& post, u32 place) const {
    const wire::Task& task = head_of(memory_.controls[place]).task;
    const wire::TileRecord& record = memory_.records[place];
    return post.fault({static_cast<wire::FaultCode>(memory_.body_faults[place]), record.op, task.slot(), task.epoch, record.tile});
  }

  /// The gate begins with a tile while the body before it runs; the record counts from that body's end. A relay's steps have records of their own (relay.cuh), its tile one of
  /// the list that waits for it.
  __device__ __forceinline__ void trace(WorkerPost<CudaPlatform>& post, const Control& control, u32 place) {
    const Memory::Times times = memory_.times[place];
    const u64 ready_ns = times.start_ns + times.wait_ns;
    const u64 from_ns = times.start_ns > traced_to_ns_ ? times.start_ns : traced_to_ns_;
    const bool relays = memory_.is_relay(place), ended = control.kind == TileKind::body && times.end_ns > from_ns && !relays;
    const u64 end_ns = ended ? times.end_ns : ready_ns > from_ns ? ready_ns : from_ns;
    if ((control.flags & kTileOpensTask) != 0) {
      task_start_ns_ = from_ns;
      task_wait_ns_ = 0;
    }
    if (times.wait_ns > 0 && ready_ns > from_ns) task_wait_ns_ += ready_ns - from_ns;
    traced_to_ns_ = relays ? times.end_ns : end_ns;
    if ((control.flags & kTileClosesTask) == 0) return;
    post.add_times(end_ns - task_start_ns_ - task_wait_ns_, task_wait_ns_);
    wire::Task task = task_of(control, place);
    if (relays) task.op = wire::kOpList;
    // Relaxed: the relay's records are those of bodies that have ended.
    const u32 number = platform_.leader() ? ptx::atom_relaxed_cta_shared_add(&memory_.traced, 1) : 0;
    post.trace(number, task, {task_start_ns_, task_wait_ns_, end_ns - task_start_ns_});
  }

  // signal
  Pending pending_;
  u32 used_ = 0;
  // post
  const u32* report_ = nullptr;  // of the tile `found_` - 1
  u32 found_ = 0;
  bool followed_ = false;  // the last task finished, by another of its run
  u32 held_tasks_ = 0, held_turns_ = 0;
  u64 task_start_ns_ = 0, task_wait_ns_ = 0, traced_to_ns_ = 0;
};

}  // namespace CCKS_ISA
}  // namespace ccks::worker
