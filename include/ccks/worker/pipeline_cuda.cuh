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

#include "ccks/worker/pipeline_fetch.cuh"

namespace ccks::worker {
inline namespace CCKS_ISA {

template <class Ops>
class CudaPipeline : CudaStage {
 public:
  using Memory = CudaPipelineMemory;

  __device__ CudaPipeline(Memory& memory, const wire::WorkerParams& params, u32 index) : CudaStage(memory, params, index) {}

  /// Every thread of the block calls it; returns once the worker has left.
  __device__ void run(u8* scratch, u32 scratch_bytes) {
    if (threadIdx.x == 0) clear();
    __syncthreads();
    const u32 warp = threadIdx.x / kWarpLanes;
    if (warp < kBodyWarps) {
      run_bodies(scratch, scratch_bytes);
    } else if (warp == kBodyWarps) {
      CudaFetch<Ops>(memory_, params_, index_).run();
    } else if (warp == kBodyWarps + 1) {
      gate();
    } else if (warp == kBodyWarps + 2) {
      signal();
    } else {
      post();
    }
  }

 private:
  // Two of each, in turn: gate and bodies meet before a body, bodies and signal after it.
  static constexpr u32 kGoBarrier = 2;
  static constexpr u32 kDoneBarrier = 4;
  static constexpr u32 kGoThreads = kCudaLanes + kWarpLanes;
  static constexpr u32 kExit = 0xffffffffu;

  /// What gate and outbox ask of the rest of the worker. `bodies`: started so far.
  struct Stop {
    Memory& memory;
    u32 bodies = 0;
    __device__ bool idle() const { return static_cast<i32>(word(memory.bodies) - bodies * kBodyWarps) >= 0; }
    __device__ bool abandoned() const { return word(memory.abandon) != 0 || word(memory.stop) != 0; }
    __device__ wire::ParkRequest asked() const {
      if (abandoned()) return wire::kParkAbandon;
      return word(memory.suspend) != 0 ? wire::kParkSuspend : wire::kParkNo;
    }
    __device__ static void blocked() {}
  };

  __device__ void clear() {
    memory_.fetched = memory_.gated = memory_.bodies = memory_.signalled = memory_.posted = 0;
    memory_.closing = memory_.leave = memory_.abandon = memory_.suspend = memory_.stop = 0;
    memory_.resume = {};
    for (auto& own : memory_.own) own = {0, 0, 0, 0};
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
      if (tile.kind == TileKind::body) name_body(at, bodies, tile);
      stop.bodies = bodies;
      gate.pass(tile, &next.watch, stop);
      if (tile.kind == TileKind::suspend) {
        closing = suspend_before(tile);
        break;
      }
      if (tile.kind == TileKind::body) ptx::barrier_arrive(kGoBarrier + bodies++ % 2, kGoThreads);
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

  /// Says which tile comes next, once at most one body is under way. It starts when the gate arrives at its barrier.
  __device__ void name_body(u32 at, u32 bodies, StagedTile& tile) {
    await_bodies(bodies);
    if (platform_.leader()) {
      tile.body = bodies;
      memory_.go[bodies % 2] = at % Memory::kSlots;
    }
    __syncwarp();
  }
  __device__ void await_bodies(u32 bodies) {
    if (bodies < 2) return;
    for (u32 spins = 0; !body_ended(bodies - 2); ++spins) rest(spins);
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
      ptx::barrier_arrive(kDoneBarrier + body % 2, kGoThreads);  // the signalling warp hears of it before the others
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
        if (kind == TileKind::body) {
          if (at != sent && !body_ended(body)) send(signals, sent = at);  // others may wait for what is collected
          ptx::barrier_sync(kDoneBarrier + body % 2, kGoThreads);
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

  u64 task_start_ns_ = 0, task_wait_ns_ = 0, traced_to_ns_ = 0;
};

}  // namespace CCKS_ISA
}  // namespace ccks::worker
