// CudaFetch: the fetching stage of a CudaPipeline (pipeline_cuda.cuh). It takes inbox tasks, lists and queues and puts tiles into
// the ring of slots, with their op close by and their events found.
//
// Lists of records (wire::TileRecord) stream through shared memory in groups of four, far ahead; tasks are cut into tiles
// here. Either way an op's block is on its way while earlier ones are staged.
#pragma once

#include "ccks/worker/pipeline_stage.cuh"

namespace ccks::worker {
inline namespace CCKS_ISA {

template <class Ops>
class CudaFetch : CudaStage {
 public:
  __device__ CudaFetch(Memory& memory, const wire::WorkerParams& params, u32 index) : CudaStage(memory, params, index) {}

  __device__ void run() {
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
      while (parsed_count_ < Memory::kParsed && open_next(source)) {
      }
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

 private:
  static constexpr u32 kPollsPerLook = 8;  // one read in nine goes to the host's line
  static constexpr u32 kTilesPerClock = 16;
  // A busy worker looks at the host's line so often: reading it takes the fetching warp 1 us, and a handoff waits for it.
  static constexpr u64 kLookNs = 25'000;

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

  /// Takes the next record or task and starts to copy what its op says into shared memory. False: there is none.
  __device__ bool open_next(TaskSource<CudaPlatform>& source) {
    if (opened_ != list_end_) {
      open_record();
    } else if (source.has_task() && may_take(source)) {
      parse(source);
    } else {
      return false;
    }
    return true;
  }

  __device__ Parsed& next_parsed() { return memory_.parsed[(parsed_first_ + parsed_count_) % Memory::kParsed]; }

  __device__ void parse(TaskSource<CudaPlatform>& source) {
    Parsed& out = next_parsed();
    OpenTask& task = out.task;
    __syncwarp();  // all lanes are done with what was there
    source.take(task);
    __syncwarp();
    if (task.records != nullptr) return begin_records(task);
    u32 block = Memory::kBlocks;
    bool fresh = false;
    if (task.kind == TileKind::body && task.block.offset != 0 && task.block.bytes <= Memory::kBlockBytes) {
      fresh = find_copy(task.frame, task.task.epoch, task.task.op, task.block.offset, task.block.bytes, true);
      block = copied_block_;
    }
    ptx::copy_commit();
    if (platform_.leader()) {
      out.block = block;
      out.fresh = fresh;
      out.record = Memory::kRecords;
    }
    __syncwarp();
    ++parsed_count_;
  }

  /// Makes copied_block_ the copy of an op's block; true if it had to be begun. `whole`: with waits and signals.
  __device__ bool find_copy(const wire::RunFrame* frame, u32 epoch, u32 op, u32 offset, u32 bytes, bool whole) {
    if (frame == copied_frame_ && epoch == copied_epoch_ && op == copied_op_ && copied_whole_ >= whole) return false;
    copied_block_ = copied_block_ + 1 == Memory::kBlocks ? 0 : copied_block_ + 1;
    copied_frame_ = frame;
    copied_epoch_ = epoch;
    copied_op_ = op;
    copied_whole_ = whole;
    const u8* from = frame_at<u8>(*frame, offset);
    for (u32 at = platform_.control_lane() * 16; at < bytes; at += kWarpLanes * 16) {
      ptx::copy_async_16(memory_.blocks[copied_block_] + at, from + at);
    }
    return true;
  }

  // ---- lists of records ----

  /// All records of the list before have been opened; some of them may still have to be staged.
  __device__ void begin_records(const OpenTask& task) {
    head_ = head_ + 1 == Memory::kHeads ? 0 : head_ + 1;
    copy_head(memory_.heads[head_], task);
    list_ = task.records;
    list_frame_ = task.frame;
    list_epoch_ = task.task.epoch;
    list_task_ = task.list_task;
    list_flags_ = kTileOpensInbox;
    list_first_ = opened_;
    list_end_ = opened_ + task.record_count;
    requested_ = opened_;
    request_records();
    ptx::copy_commit();
    ptx::copy_wait<0>();
    __syncwarp();
  }

  /// Four records a time, 16 bytes a lane.
  __device__ void request_records() {
    while (requested_ != list_end_ && requested_ + 4 - opened_ <= Memory::kRecordsAhead) {
      const u32 count = list_end_ - requested_ < 4 ? list_end_ - requested_ : 4;
      const u32 mine = platform_.control_lane() / 8, part = platform_.control_lane() % 8 * 16;
      if (mine < count) {
        ptx::copy_async_16(reinterpret_cast<u8*>(&memory_.records[(requested_ + mine) % Memory::kRecords]) + part,
                           reinterpret_cast<const u8*>(list_ + (requested_ + mine - list_first_)) + part);
      }
      requested_ += count;
    }
  }

  /// Every call makes one group of copies. A record was asked for kRecordsAhead - 4 groups ago, or at the list's begin.
  __device__ void open_record() {
    Parsed& out = next_parsed();
    const u32 at = opened_ % Memory::kRecords;
    const wire::TileRecord& record = memory_.records[at];
    ++opened_;
    u32 block = Memory::kBlocks;
    bool fresh = false;
    if (record.block_bytes <= Memory::kBlockBytes) {
      fresh = find_copy(list_frame_, list_epoch_, record.op, record.block_offset, record.block_bytes, false);
      block = copied_block_;
    }
    if ((opened_ - list_first_) % 4 == 0) request_records();
    ptx::copy_commit();
    __syncwarp();
    if (platform_.leader()) {
      out.block = block;
      out.fresh = fresh;
      out.record = at;
      out.head = head_;
      out.flags = list_flags_ | (opened_ == list_end_ ? u32{kTileClosesInbox} : 0);
      out.list_task = list_task_;
    }
    list_flags_ = 0;
    ++list_task_;
    __syncwarp();
    ++parsed_count_;
  }

  __device__ void emit_record(LeaveWatch<CudaPlatform>& watch, const Parsed& parsed) {
    if (!await_free_slot(watch)) return;
    stage_record(parsed);
    parsed_first_ = (parsed_first_ + 1) % Memory::kParsed;
    --parsed_count_;
  }

  __device__ void stage_record(const Parsed& parsed) {
    Slot& out = slot(staged_);
    const wire::TileRecord& record = memory_.records[parsed.record];
    const TaskHead& head = memory_.heads[parsed.head];
    const OpView view = view_of_record(parsed, record, head);
    copy_head(out.tile, head);
    const bool skip = (head.task.slot_flags & wire::kTaskSkip) != 0;
    const bool body = (record.flags & wire::kRecordBody) != 0;
    const u32 lane = platform_.control_lane(), waits = skip ? 0 : record.wait_count;
    if (lane < waits) {
      out.watch.event[lane] = record.wait_event[lane];
      out.watch.amount[lane] = record.wait_from[lane] + head.runs * record.wait_total[lane];
    }
    if (lane < record.signal_count) out.signals[lane] = {head.events + record.signal_event[lane], 1};
    __syncwarp();
    if (platform_.leader()) {
      out.tile.view = view;
      out.tile.task.op = record.op;
      out.tile.task.tile = record.tile;
      out.tile.list_task = parsed.list_task;
      out.tile.tile = record.tile;
      // One that has only events is a tile of its own, without a body.
      out.tile.kind = body && !skip ? TileKind::body : body || record.signal_count > 0 ? TileKind::skip : TileKind::empty;
      const bool guarded = (record.flags & wire::kRecordGuarded) != 0;
      out.tile.flags = parsed.flags | (body ? kTileOpensTask | kTileClosesTask | (guarded ? u32{kTileGuarded} : 0) : 0);
      out.tile.wait_ns = 0;
      out.body_fault = 0;
      out.watch.count = waits;
      out.watch.whole = 1;
      out.signal_count = record.signal_count;
      out.silent = record.flags & wire::kRecordSilent;
    }
    publish_tile();
    if (body && !skip && (record.flags & wire::kRecordStreamed) != 0) {
      prefetch_operands<Ops>(lane, kWarpLanes, *head.frame, *view.op, record.tile);
    }
  }

  /// The copy of the op that the record brought with it; a large op is read where it lies.
  __device__ OpView view_of_record(const Parsed& parsed, const wire::TileRecord& record, const TaskHead& head) {
    if (parsed.block == Memory::kBlocks) return view_of_frame(*head.frame, record.op);
    u8* block = memory_.blocks[parsed.block];
    auto* op = reinterpret_cast<wire::OpParams*>(block);
    auto* operands = reinterpret_cast<wire::OperandParams*>(op + 1);
    const u32 operand_count = u32{op->input_count} + op->output_count;
    if (parsed.fresh) {
      if ((record.flags & wire::kRecordState) != 0) make_absolute(operands, operand_count, head.state);
      if (platform_.leader()) op->operands = reinterpret_cast<u64>(operands);
    }
    return {op, nullptr, nullptr, reinterpret_cast<wire::GuardParams*>(operands + operand_count)};
  }

  __device__ void make_absolute(wire::OperandParams* operands, u32 count, u64 state) const {
    for (u32 i = platform_.control_lane(); i < count; i += kWarpLanes) {
      if (operands[i].space != static_cast<u8>(wire::Space::state)) continue;
      operands[i].offset += state;
      operands[i].space = static_cast<u8>(wire::Space::absolute);
    }
  }

  // ---- tasks that are cut into tiles here ----

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
    if (parsed.record != Memory::kRecords) return emit_record(watch, parsed);
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
    auto* guards = reinterpret_cast<wire::GuardParams*>(operands + operand_count);
    auto* waits = reinterpret_cast<wire::WaitParams*>(guards + op->guard_count);
    if (parsed.fresh) {
      make_absolute(operands, operand_count, parsed.task.state);
      if (platform_.leader()) op->operands = reinterpret_cast<u64>(operands);
      __syncwarp();
    }
    return {op, waits, reinterpret_cast<wire::SignalParams*>(waits + op->wait_count), guards};
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
      out.watch.whole = 0;
      out.signal_count = signals;
      out.silent = staging.silent;
    }
    publish_tile();
    if (kind == TileKind::body) {
      prefetch_operands<Ops>(platform_.control_lane(), kWarpLanes, *task.frame, *staging.view.op, tile);
    }
  }

  __device__ void publish_tile() {
    __syncwarp();
    ++staged_;
    if (platform_.leader()) ptx::st_release_cta_shared(&memory_.fetched, staged_);  // [P1] pairs with [P2]
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

  u32 parsed_first_ = 0, parsed_count_ = 0;
  u32 staged_ = 0;
  u32 finished_tiles_ = 0;  // of the first task, by an earlier launch
  u32 unlooked_ = 0;        // tiles staged since the last look at the clock
  u64 looked_at_ = 0;
  const wire::RunFrame* copied_frame_ = nullptr;
  u32 copied_epoch_ = 0, copied_op_ = 0, copied_block_ = 0;
  bool copied_whole_ = false;
  // The list of records under way. Records are counted over all lists.
  const wire::TileRecord* list_ = nullptr;
  const wire::RunFrame* list_frame_ = nullptr;
  u32 list_epoch_ = 0, list_first_ = 0, list_end_ = 0;
  u32 list_task_ = 0, list_flags_ = 0;
  u32 opened_ = 0, requested_ = 0;
  u32 head_ = 0;
};

}  // namespace CCKS_ISA
}  // namespace ccks::worker
