// CudaFetch: the fetching stage of a CudaPipeline (pipeline_cuda.cuh). It takes inbox tasks, lists and queues and puts tiles into
// the ring: the record of each (wire::TileRecord), what it shares with others of its task, and its op close by.
//
// Lists of records stream into the ring in groups of eight, ahead of need, and are opened so, four lanes a record; tasks are cut
// into tiles here, whose records this warp writes. Either way an op's block is on its way while earlier tiles are handed on.
//
// Foreseen lists. Where a slot's runs have come to one list of this worker each, the same one, with nothing else between, and its frame has stayed as it was
// (wire::kTaskAgain), the first records of the next run's list are opened while the worker has nothing to do, and handed on as soon as the task
// comes that asks for it, which then need not be opened. Another task in its place, or one of a frame that has been written to, and what was opened is
// forgotten: nobody has seen it. What is read too early may be of two versions of a frame, or of a run that never comes, so nothing in it is followed
// beyond the frame's own memory until then.
#pragma once

#include "ccks/worker/pipeline_looks.cuh"
#include "ccks/worker/relay_stream.cuh"

namespace ccks::worker {
inline namespace CCKS_ISA {

template <class Ops>
class CudaFetch : CudaStage {
 public:
  using Source = TaskSource<CudaPlatform>;

  /// `source` is of this worker, and outlives the object. It is no member: an object that points into itself would not be kept in
  /// registers.
  __device__ CudaFetch(Memory& memory, const wire::WorkerParams& params, u32 index, Source& source)
      : CudaStage(memory, params, index), source_(source) {}

  __device__ void run() {
    const wire::WorkerLine* line = reinterpret_cast<const wire::WorkerLine*>(params_.worker_lines) + index_;
    source_.start(platform_.uniform(CudaAtoms::link_load_relaxed(&line->inbox_position)),
                  platform_.uniform(CudaAtoms::link_load_relaxed(&line->resume_list_task)));
    finished_tiles_ = platform_.uniform(CudaAtoms::link_load_relaxed(&line->resume_tile));
    start_looks(index_);
    u32 misses = 0;
    while (!gate_closed()) {
      if (advance()) {
        if (CudaPlatform::is_resting(misses)) platform_.stir();
        misses = 0;
      } else if (source_.queued()) {
        await_queue();
      } else if (is_ahead() || is_busy_with_last()) {
        prefetch_tiles<Ops>(published_);
        if (++unlooked_ % kRefreshesPerClock == 0) look_while_busy(index_);
        if (may_foresee()) foresee();
        rest(kHotSpins + 1);
      } else {
        const bool polls = word(memory_.leave) == 0, looks = misses % kPollsPerLook == kPollsPerLook - 1;
        if (polls && source_.poll_beside(host_line(), looks)) continue;
        prefetch_tiles<Ops>(published_);
        if (may_foresee()) foresee();
        platform_.idle(misses++);
        if (looks) {
          look_at_host(index_, true, misses == kPollsPerLook ? Idle::begins : Idle::still, polls);
          look_at_others();
        }
        if (is_still()) misses = poll_on(misses);
      }
    }
  }

 private:
  static constexpr u32 kGroup = 8;         // records opened and handed on together, four lanes each
  static constexpr u32 kLanesARecord = kWarpLanes / kGroup;
  static constexpr u32 kAhead = 2;         // groups opened before the oldest of them is handed on
  static constexpr u32 kRequested = 2;     // groups asked for before the oldest of them is opened
  static constexpr u32 kNoOp = 0xffffffffu;
  static constexpr u32 kBacklog = 2;       // tiles of a list that wait for the gate and keep this warp from looking for more work
  static constexpr u32 kPollsPerLook = 8;  // so often one that reads the host's line beside it

  __device__ __forceinline__ const wire::HostLine* host_line() const { return reinterpret_cast<const wire::HostLine*>(params_.host_lines) + index_; }

  /// Hands on a group of records, or all tiles of a task. False: there is none.
  __device__ __forceinline__ bool advance() {
    if (foreseen_ && !list_taken_ && source_.has_task() && may_take()) meet_foreseen();
    while (opened_ != list_end_ && may_open() && has_room(opening())) open_group();
    if (opened_ != published_) {
      if (foreseen_) {
        finish_foreseen();
        return false;
      }
      if (!finished_) finish_group();
      publish_group();
    } else if (opened_ != list_end_) {
      await_list_room(opening());
    } else {
      while (parsed_count_ < Memory::kParsed && !list_taken_ && source_.has_task() && may_take()) parse();
      if (parsed_count_ > 0) {
        emit_task();
      } else if (list_taken_) {
        list_taken_ = false;
        begin_records(memory_.parsed[parsed_first_].task);
      } else {
        return false;
      }
    }
    return true;
  }
  /// Records of the next group.
  __device__ __forceinline__ u32 opening() const { return list_end_ - opened_ < kGroup ? list_end_ - opened_ : kGroup; }
  /// Groups are opened ahead of need, but the first of all is not kept from a gate that has nothing else.
  __device__ __forceinline__ bool may_open() const {
    if (opened_ == published_) return true;
    return opened_ - published_ <= (kAhead - 1) * kGroup && word(memory_.gated) != published_;
  }

  /// The list handed on last is far from its end. To look at the inbox then is soon enough later, and a read of the host's memory under way
  /// makes every release of this SM wait twice as long (576 cycles, 1,130). A relay releases nothing until its end, which is also the list's but for a tile or two: there the next list is
  /// to be found open. (Whether one is under way is a hint here, nothing is read by it.)
  __device__ __forceinline__ bool is_ahead() const {
    return published_ == list_end_ && list_first_ != list_end_ && static_cast<i32>(published_ - word(memory_.gated)) >= static_cast<i32>(kBacklog) && !is_relaying(memory_);
  }
  /// The worker's part of a run that comes again is under way: the next comes when all of that has ended, and a look would keep the last releases waiting.
  __device__ __forceinline__ bool is_busy_with_last() {
    if (!repeats_ || done_ == published_) return false;
    done_ = tiles_done();
    return done_ != published_;
  }
  /// Whether nothing is left to do, nor ahead of what is to come: then only a task changes that.
  __device__ __forceinline__ bool is_still() const {
    if (foreseen_) return looked_;
    return !repeats_ && !list_taken_ && parsed_count_ == 0 && opened_ == list_end_ && tiles_done() == published_;
  }
  /// Polls that follow each other at once, until one finds a task or the host's line is due: what lies between two otherwise takes a third of a poll. Returns
  /// `misses` and those that came to it.
  __device__ __forceinline__ u32 poll_on(u32 misses) {
    while (misses % kPollsPerLook != kPollsPerLook - 1 && word(memory_.leave) == 0 && !gate_closed()) {
      if (source_.poll_beside(host_line(), false)) break;
      platform_.idle(misses++);
    }
    return misses;
  }
  /// Once the worker leaves, the inbox task under way is fetched to its end and no other begun.
  __device__ __forceinline__ bool may_take() const { return !source_.between_inbox_tasks() || word(memory_.leave) == 0; }

  /// Waits until the queue has a task, is drained, or is given up. The worker takes one only once its last body has ended:
  /// others are there to run what it would hold. It neither leaves nor suspends in between, see WorkerLoop::await_queue.
  __device__ __forceinline__ void await_queue() {
    for (u32 spins = 0; !bodies_idle() && !gate_closed(); ++spins) rest(spins);
    Patience patience(platform_.now_ns());
    for (u32 spins = 0; !source_.has_task() && !source_.poll() && !gate_closed(); ++spins) {
      platform_.relax(spins);
      if (spins % 64 != 63) continue;
      look_at_host(index_, false, Idle::no, false);
      if (word(memory_.abandon) != 0) return source_.fail(wire::FaultCode::abandoned);
      if (patience.over(platform_.now_ns(), params_.spin_deadline_ns)) return source_.fail(wire::FaultCode::wait_deadline);
    }
  }
  /// Whether everything handed on has been let through and the last body has ended.
  __device__ __forceinline__ bool bodies_idle() {
    if (ptx::ld_acquire_cta_shared(&memory_.gated) != published_) return false;  // [P4] pairs with [P3]
    if (published_ == 0) return true;
    const Control& last = memory_.controls[slot(published_ - 1)];
    return last.kind != TileKind::body || body_ended(last.body);
  }

  // ---- the ring ----

  /// Whether so many tiles more can be opened. Tiles are counted since the launch; `done_` of them have left the pipeline.
  __device__ __forceinline__ bool has_room(u32 tiles = 1) {
    if (opened_ + tiles - done_ <= Memory::kOpened) return true;
    done_ = tiles_done();
    if (++unlooked_ % kRefreshesPerClock == 0) look_while_busy(index_);
    return opened_ + tiles - done_ <= Memory::kOpened;
  }
  __device__ __forceinline__ void await_list_room(u32 tiles) {
    for (u32 spins = 0; !has_room(tiles) && !gate_closed(); ++spins) {
      prefetch_tiles<Ops>(published_);
      rest(spins);
    }
  }
  /// False: the worker leaves.
  __device__ __forceinline__ bool await_room(u32 tiles = 1) {
    if (opened_ + tiles - done_ > Memory::kOpened) done_ = await_done<Ops>(index_, opened_ + tiles, published_);
    return opened_ + tiles - done_ <= Memory::kOpened;
  }
  __device__ __forceinline__ void publish_tiles(u32 count) {
    __syncwarp();
    published_ += count;
    if (platform_.leader()) ptx::st_release_cta_shared(&memory_.fetched, published_);  // [P1] pairs with [P2]
  }

  /// All lanes copy a word each. The place is free: no more than kOpened tiles are under way, each with one head.
  __device__ __forceinline__ void set_head(const TaskHead& from) {
    static_assert(sizeof(TaskHead) % sizeof(u32) == 0 && sizeof(TaskHead) / sizeof(u32) <= kWarpLanes);
    head_ = head_ + 1 == Memory::kHeads ? 0 : head_ + 1;
    const u32 lane = platform_.control_lane();
    if (lane < sizeof(TaskHead) / sizeof(u32)) {
      reinterpret_cast<u32*>(&memory_.heads[head_])[lane] = reinterpret_cast<const u32*>(&from)[lane];
    }
    __syncwarp();
  }

  /// The op whose block was copied last, if it is of this run; else kNoOp.
  __device__ __forceinline__ u32 copied_from(const wire::RunFrame* frame, u32 epoch) const {
    return frame == copied_frame_ && epoch == copied_epoch_ ? copied_op_ : kNoOp;
  }
  __device__ __forceinline__ void note_copy(const wire::RunFrame* frame, u32 epoch, u32 op, bool whole) {
    copied_frame_ = frame;
    copied_epoch_ = epoch;
    copied_op_ = op;
    copied_whole_ = whole;
  }
  /// The block `ahead` places behind the last one written.
  __device__ __forceinline__ u32 block_after(u32 ahead) const {
    const u32 block = copied_block_ + ahead;
    return block < Memory::kBlocks ? block : block - Memory::kBlocks;
  }
  /// Lane `lane` of `lanes` takes its share.
  __device__ __forceinline__ void copy_block(u32 block, const u8* from, u32 bytes, u32 lane, u32 lanes) const {
    CCKS_NO_UNROLL
    for (u32 at = lane * 16; at < bytes; at += lanes * 16) ptx::copy_async_16(memory_.blocks[block] + at, from + at);
  }
  /// Once the copy is there. An op's operands then have addresses. Lane `lane` of `lanes` takes its share.
  __device__ __forceinline__ void finish_copy(u32 block, u64 state, bool has_state, u32 lane, u32 lanes) const {
    auto* op = reinterpret_cast<wire::OpParams*>(memory_.blocks[block]);
    auto* operands = reinterpret_cast<wire::OperandParams*>(op + 1);
    if (lane == 0) op->operands = reinterpret_cast<u64>(operands);
    if (!has_state) return;
    constexpr u32 kMost = (Memory::kBlockBytes - sizeof(wire::OpParams)) / sizeof(wire::OperandParams);  // whatever a foreseen op says
    const u32 said = u32{op->input_count} + op->output_count, count = said < kMost ? said : kMost;
    CCKS_NO_UNROLL
    for (u32 i = lane; i < count; i += lanes) {
      if (operands[i].space != static_cast<u8>(wire::Space::state)) continue;
      operands[i].offset += state;
      operands[i].space = static_cast<u8>(wire::Space::absolute);
    }
  }

  // ---- foreseen lists ----

  __device__ __forceinline__ bool may_foresee() {
    return repeats_ && !foreseen_ && opened_ == published_ && opened_ == list_end_ && parsed_count_ == 0 && !list_taken_ && has_room(kGroup);
  }
  /// The list handed on last, of the run behind it, is the next to begin.
  __device__ __forceinline__ void foresee() {
    OpenTask& task = memory_.parsed[parsed_first_].task;
    kept_head_ = head_;
    kept_block_ = copied_block_;
    __syncwarp();
    if (platform_.leader()) {
      task.inbox.epoch = task.task.epoch = list_epoch_ + 1;
      ++task.runs;
    }
    __syncwarp();
    foreseen_ = list_taken_ = true;
    looked_ = false;
  }
  /// What can be done of the group before its task has come, once. An op that is read where it lies may lie nowhere.
  __device__ __forceinline__ void finish_foreseen() {
    if (looked_) return;
    looked_ = true;
    const u32 lane = platform_.control_lane(), mine = lane / kLanesARecord;
    const bool lies_far = mine < opened_ - published_ && memory_.controls[slot(published_ + mine)].block == Memory::kNoBlock;
    if (__any_sync(kFullWarp, lies_far) == 0) finish_group();
  }
  /// Whether an op may be copied that a record of a foreseen list names, whatever the record says.
  __device__ __forceinline__ bool is_within_frame(const wire::TileRecord& record) const {
    const u32 frame_bytes = memory_.shared.head.frame_bytes;
    return record.block_offset % 16 == 0 && record.block_offset < frame_bytes && record.block_bytes <= frame_bytes - record.block_offset;
  }
  /// The next task has come.
  __device__ __forceinline__ void meet_foreseen() {
    foreseen_ = false;
    if (source_.take_again(memory_.parsed[parsed_first_].task.inbox)) return;
    ptx::copy_wait<0>();
    __syncwarp();
    opened_ = requested_ = list_first_ = list_end_ = published_;
    head_ = kept_head_;
    copied_block_ = kept_block_;
    copied_frame_ = nullptr;
    finished_ = false;
    forget_list();
  }
  __device__ __forceinline__ void forget_list() {
    repeats_ = false;
    list_frame_ = nullptr;
  }

  // ---- lists of records ----

  /// All records of the list before have been handed on.
  __device__ __forceinline__ void begin_records(const OpenTask& task) {
    set_head(task);
    const bool again = task.inbox.slot_flags == (task.inbox.slot() | wire::kTaskAgain);
    repeats_ = again && task.frame == list_frame_ && task.inbox.tile == list_tile_ && task.task.epoch == list_epoch_ + 1 && task.list_task == 0;
    list_tile_ = task.inbox.tile;
    list_ = task.records;
    list_frame_ = task.frame;
    list_epoch_ = task.task.epoch;
    list_task_ = task.list_task;
    list_skips_ = (task.task.slot_flags & wire::kTaskSkip) != 0;
    list_first_ = requested_ = opened_;
    list_end_ = opened_ + task.record_count;
    for (u32 i = 0; i < kRequested; ++i) request_group();
    ptx::copy_commit();
    ptx::copy_wait<0>();
    __syncwarp();
  }

  /// Asks for the next records: 32 bytes a lane, into places that nobody uses any more.
  __device__ __forceinline__ void request_group() {
    static_assert(sizeof(wire::TileRecord) % (kLanesARecord * 16) == 0);
    static_assert(Memory::kOpened + kRequested * kGroup <= Memory::kRing);
    const u32 count = list_end_ - requested_ < kGroup ? list_end_ - requested_ : kGroup;
    const u32 mine = platform_.control_lane() / kLanesARecord, part = platform_.control_lane() % kLanesARecord * 16;
    if (mine < count) {
      u8* to = reinterpret_cast<u8*>(&memory_.records[slot(requested_ + mine)]) + part;
      const u8* from = reinterpret_cast<const u8*>(list_ + (requested_ + mine - list_first_)) + part;
      CCKS_UNROLL
      for (u32 at = 0; at < sizeof(wire::TileRecord); at += kLanesARecord * 16) ptx::copy_async_16(to + at, from + at);
    }
    requested_ += count;
  }

  /// Every call ends a group of copies: the blocks of these records, and the records kRequested groups on. Of the groups before
  /// all but kAhead - 1 have been handed on, and so waited for: what was asked for with them is there.
  __device__ __forceinline__ void open_group() {
    static_assert(kRequested >= kAhead);
    const u32 count = opening(), lane = platform_.control_lane(), part = lane % kLanesARecord, mine = lane / kLanesARecord;
    const u32 at = slot(opened_ + mine);
    const wire::TileRecord& record = memory_.records[at];
    const u32 op = record.op;
    bool close = mine < count && record.block_bytes <= Memory::kBlockBytes;
    if (foreseen_) close = close && is_within_frame(record);
    const u32 before = mine == 0 ? copied_from(list_frame_, list_epoch_) : memory_.records[slot(opened_ + mine - 1)].op;
    const bool fresh = close && op != before;
    const u32 copies = __ballot_sync(kFullWarp, fresh && part == 0);
    const u32 rank = static_cast<u32>(__popc(static_cast<int>(copies & ((2u << (lane - part)) - 1))));
    const u32 block = close ? block_after(rank) : u32{Memory::kNoBlock};
    if (fresh) copy_block(block, frame_at<u8>(*list_frame_, record.block_offset), record.block_bytes, part, kLanesARecord);
    const u32 joined = strands(mine < count && part == 0 && joins(record, mine));
    if (mine < count && part == 0) open_record(at, mine, block, (fresh ? u32{Control::kFresh} : 0) | strand_flags(joined, mine));
    copied_block_ = block_after(static_cast<u32>(__popc(static_cast<int>(copies))));
    const u32 last = platform_.from_lane(close ? op : kNoOp, (count - 1) * kLanesARecord);
    note_copy(list_frame_, list_epoch_, last, false);
    opened_ += count;
    list_task_ += count;
    request_group();
    ptx::copy_commit();
  }

  /// Whether the record runs in one strand with the one before it. A strand does not reach beyond its group, since the gate lets
  /// it through as a whole; and traces have a time for each tile.
  __device__ __forceinline__ bool joins(const wire::TileRecord& record, u32 index) const {
    return index > 0 && (record.flags & wire::kRecordJoined) != 0 && !list_skips_ && !tracing();
  }
  /// A bit for each record of the group that joins.
  __device__ __forceinline__ static u32 strands(bool joins) {
    const u32 lanes = __ballot_sync(kFullWarp, joins);
    u32 records = 0;
    for (u32 i = 0; i < kGroup; ++i) records |= (lanes >> i * kLanesARecord & 1) << i;
    return records;
  }
  __device__ __forceinline__ static u32 strand_flags(u32 joined, u32 index) {
    static_assert(kGroup - 1 <= Control::kStrandMask);
    const u32 behind = ~(joined >> (index + 1));  // its lowest bit is that of the first that does not join
    return (joined >> index & 1) != 0 ? 0 : static_cast<u32>(__ffs(static_cast<int>(behind)) - 1) << Control::kStrandShift;
  }

  /// By one lane. `index`: in the group. `more`: of its flags.
  __device__ __forceinline__ void open_record(u32 at, u32 index, u32 block, u32 more) const {
    const wire::TileRecord& record = memory_.records[at];
    const bool body = (record.flags & wire::kRecordBody) != 0;
    // One that has only events is a tile of its own, without a body.
    const TileKind kind = body && !list_skips_ ? TileKind::body : body || record.signal_count > 0 ? TileKind::skip : TileKind::empty;
    const u32 tile = opened_ + index;
    u32 flags = (tile == list_first_ ? u32{kTileOpensInbox} : 0) | (tile + 1 == list_end_ ? u32{kTileClosesInbox} : 0);
    flags |= more;
    if (body) flags |= kTileOpensTask | kTileClosesTask;
    if (kind != TileKind::skip && (record.flags & wire::kRecordGuarded) != 0) flags |= kTileGuarded;
    if (kWorkerTags && kind == TileKind::body && (record.flags & wire::kRecordEarly) != 0 && record.wait_count == 0) flags |= kTileTagged;
    memory_.controls[at] = {kind, static_cast<u16>(flags), static_cast<u8>(head_), static_cast<u8>(block), list_task_ + index, 0};
    const TaskHead& head = memory_.heads[head_];
    memory_.entries[at] = {head.events, nullptr, op_at(*list_frame_, block, record.op), list_frame_, record.tile, head.runs, 0, wire::value_tag(list_epoch_)};
    memory_.body_faults[at] = 0;
  }

  /// The oldest group that has been opened: its copies are there, and what they say is in place.
  __device__ __forceinline__ void finish_group() {
    const u32 pending = opened_ - published_, count = pending < kGroup ? pending : kGroup;
    if (pending > kGroup) {  // the group behind it need not be there yet
      ptx::copy_wait<1>();
    } else {
      ptx::copy_wait<0>();
    }
    __syncwarp();
    const u32 lane = platform_.control_lane(), part = lane % kLanesARecord, mine = lane / kLanesARecord;
    const u32 at = slot(published_ + mine);
    const Control control = memory_.controls[at];
    const u8 flags = memory_.records[at].flags;
    if (mine < count && (control.flags & Control::kFresh) != 0) {
      finish_copy(control.block, memory_.heads[head_].state, (flags & wire::kRecordState) != 0, part, kLanesARecord);
    }
    if (mine < count && part == 0 && control.kind == TileKind::body) memory_.entries[at].body = memory_.entries[at].op->body;
    finished_ = true;
  }
  /// Hands it on.
  __device__ __forceinline__ void publish_group() {
    const u32 pending = opened_ - published_, count = pending < kGroup ? pending : kGroup;
    finished_ = false;
    publish_tiles(count);
    // Records come first: to ask for the operands of a tile takes as long as to open four.
    if (opened_ == list_end_) prefetch_tiles<Ops>(published_);
  }

  // ---- tasks that are cut into tiles here ----

  /// Takes a task and starts to copy what its op says into shared memory.
  __device__ __forceinline__ void parse() {
    Parsed& out = memory_.parsed[(parsed_first_ + parsed_count_) % Memory::kParsed];
    OpenTask& task = out.task;
    __syncwarp();  // all lanes are done with what was there
    source_.take(task);
    __syncwarp();
    if (task.records != nullptr) {
      list_taken_ = true;  // it begins once the tasks in front of it have been handed on
      return;
    }
    forget_list();
    u32 block = Memory::kNoBlock;
    bool fresh = false;
    if (task.kind == TileKind::body && task.block.offset != 0 && task.block.bytes <= Memory::kBlockBytes) {
      fresh = !copied_whole_ || copied_from(task.frame, task.task.epoch) != task.task.op;
      if (fresh) {
        copied_block_ = block_after(1);
        copy_block(copied_block_, frame_at<u8>(*task.frame, task.block.offset), task.block.bytes, platform_.control_lane(), kWarpLanes);
        note_copy(task.frame, task.task.epoch, task.task.op, true);
      }
      block = copied_block_;
    }
    ptx::copy_commit();
    if (platform_.leader()) {
      out.block = block;
      out.fresh = fresh;
    }
    __syncwarp();
    ++parsed_count_;
  }

  __device__ __forceinline__ void await_copy() const {
    switch (parsed_count_) {  // the oldest group must be done, those of the tasks behind it need not
      case 1: ptx::copy_wait<0>(); break;
      case 2: ptx::copy_wait<1>(); break;
      case 3: ptx::copy_wait<2>(); break;
      default: ptx::copy_wait<3>(); break;
    }
    __syncwarp();
  }

  /// What making the records of a task needs of it, in registers. Lane i holds wait i and signal i of the op.
  struct Staging {
    OpView view;
    u32* events;
    u32 slot, epoch, runs;
    u32 wait_count, signal_count;
    u8 flags;  // TileRecordFlags
    u32 followed;  // kTileFollowed, or 0
    wire::WaitParams wait;
    wire::SignalParams signal;
    wire::EventRect rect;  // of the wait, for the tile before

    /// Of no op: nothing is waited for. Field by field: the image of a Staging{} would be loaded from memory (tests/ptx/check.py).
    __device__ __forceinline__ void clear() {
      view.op = nullptr, view.waits = nullptr, view.signals = nullptr, view.guards = nullptr;
      events = nullptr;
      slot = epoch = runs = wait_count = signal_count = followed = 0;
      flags = 0;
    }
  };
  /// An event that a lane knows its tile has to wait for, or none.
  struct Watched {
    bool mine = false;
    u32 event = 0, total = 0;
  };

  /// Hands on all tiles of the oldest task taken.
  __device__ __forceinline__ void emit_task() {
    await_copy();
    Parsed& parsed = memory_.parsed[parsed_first_];
    if (await_room()) {
      set_head(parsed.task);
      Staging staging;
      staging.clear();
      if (parsed.task.kind == TileKind::body) open_op(parsed, staging);
      if (kWorkerDecides && parsed.task.kind == TileKind::body && (parsed.task.task.slot_flags & wire::kTaskFetch) != 0) {
        prefetch_experts(platform_.control_lane(), kWarpLanes, Call(*parsed.task.frame, *staging.view.op), parsed.task.task);
        staging.clear();  // the tile that answers is of no op
      }
      TileStager stager;
      stager.begin(parsed.task, finished_tiles_);
      finished_tiles_ = 0;
      staging.followed = is_followed(parsed.task.inbox) ? u32{kTileFollowed} : 0;
      for (bool first = true; !stager.done(); first = false) emit_tile(stager, parsed, staging, first);
    }
    parsed_first_ = (parsed_first_ + 1) % Memory::kParsed;
    --parsed_count_;
  }

  /// Whether another inbox task of the same run follows the oldest parsed one.
  __device__ __forceinline__ bool is_followed(const wire::Task& inbox) const {
    if (parsed_count_ > 1) return Source::is_same_run(inbox, memory_.parsed[(parsed_first_ + 1) % Memory::kParsed].task.inbox);
    return !list_taken_ && source_.goes_on_with_run(inbox);
  }

  __device__ __forceinline__ void open_op(Parsed& parsed, Staging& out) {
    OpenTask& task = parsed.task;
    if (parsed.block != Memory::kNoBlock) {
      if (parsed.fresh) finish_copy(parsed.block, task.state, true, platform_.control_lane(), kWarpLanes);
      out.view = view_of_block(memory_.blocks[parsed.block]);
    } else {
      out.view = view_of_frame(*task.frame, task.task.op);
    }
    if (platform_.leader()) task.view = out.view;
    const wire::OpParams& op = *out.view.op;
    out.wait_count = op.wait_count;
    out.signal_count = op.signal_count;
    out.flags = wire::kRecordStreamed | ((op.flags & wire::kOpSilent) != 0 ? u32{wire::kRecordSilent} : 0);
    out.events = task.events;
    out.slot = task.task.slot();
    out.epoch = task.task.epoch;
    out.runs = task.runs;
    const u32 lane = platform_.control_lane();
    if (lane < out.wait_count) out.wait = out.view.waits[lane];
    if (lane < out.signal_count) out.signal = out.view.signals[lane];
    __syncwarp();
  }

  __device__ __forceinline__ void emit_tile(TileStager& stager, const Parsed& parsed, Staging& staging, bool first) {
    StagedTile tile;
    const TileKind kind = stager.kind();
    stager.next_of_task(tile, staging.view.op);
    const bool op_tile = kind == TileKind::body || kind == TileKind::skip;
    const bool queued = kWorkerQueues && parsed.task.inbox.op == wire::kOpQueue;
    const wire::TileCoord coord = op_tile ? wire::tile_coord(staging.view.op->grid, tile.tile) : wire::TileCoord{};
    Watched watched;
    // A queue has waited already.
    if (kind == TileKind::body && !queued) watched = find_events(staging, coord, first, tile, parsed);
    if (!await_room()) return;
    const u32 at = slot(opened_);
    wire::TileRecord& record = memory_.records[at];
    const u32 waits = write_waits(record, watched, staging.runs);
    const u32 signals = op_tile && !queued ? write_signals(record, staging, coord) : 0;
    if (platform_.leader()) {
      record.tile = tile.tile;
      record.op = parsed.task.task.op;
      record.flags = static_cast<u8>(staging.flags | wire::kRecordCut);
      record.wait_count = static_cast<u8>(waits);
      record.signal_count = static_cast<u8>(signals);
      if (kind == TileKind::signal) {
        record.tile = parsed.task.task.tile;
        record.signal_event[0] = parsed.task.task.tile;
        record.signal_count = 1;
        record.wait_from[0] = parsed.task.task.epoch;
      }
      if (kind == TileKind::fault) memory_.fetch_fault = tile.fault;
      set_control(at, kind, tile.flags | ((tile.flags & kTileClosesInbox) != 0 ? staging.followed : 0), parsed, tile.tile);
    }
    hand_on();
    if (op_tile && !queued && staging.signal_count > wire::kRecordSignals) emit_signals(parsed, staging, coord, tile);
    prefetch_tiles<Ops>(published_);
  }
  __device__ __forceinline__ void set_control(u32 at, TileKind kind, u32 flags, const Parsed& parsed, u32 tile) {
    const OpenTask& task = parsed.task;
    memory_.controls[at] = {kind, static_cast<u16>(flags), static_cast<u8>(head_), static_cast<u8>(parsed.block), task.list_task, 0};
    const bool op_tile = kind == TileKind::body || kind == TileKind::skip;
    memory_.entries[at] = {task.events, task.bases, op_tile ? task.view.op : nullptr, task.frame, tile, task.runs, op_tile ? task.view.op->body : 0u, wire::value_tag(task.task.epoch)};
    memory_.body_faults[at] = 0;
  }
  __device__ __forceinline__ void hand_on() {
    ++opened_;
    list_first_ = list_end_ = requested_ = opened_;
    publish_tiles(1);
  }

  /// A wait a lane finds its events, of those that no earlier tile of the task has waited for; then, as many as there are lanes at a
  /// time, a lane takes one, and what this worker completes itself is left out. Those that do not fit the tile's record go into
  /// records before it.
  __device__ __forceinline__ Watched find_events(Staging& staging, const wire::TileCoord& coord, bool first, const StagedTile& tile,
                                 const Parsed& parsed) {
    const u32 lane = platform_.control_lane(), wait_count = staging.wait_count;
    const bool many = wait_count > kWarpLanes;
    Watched out;
    CCKS_NO_UNROLL
    for (u32 group = 0; group < wait_count; group += kWarpLanes) {
      const u32 waits = wait_count - group < kWarpLanes ? wait_count - group : kWarpLanes;
      u32 events = 0;
      if (lane < waits) {
        if (many) staging.wait = staging.view.waits[group + lane];
        const wire::EventRect rect = wire::wait_rect(staging.wait, coord);
        if (first || many || !wire::rect_covers(staging.rect, rect)) events = wire::rect_count(rect);
        staging.rect = rect;
      }
      u32 all = 0, taken = 0;
      do {
        out = leave_out_own(staging, take_events(staging, events, waits, taken, all));
        taken += kWarpLanes;
        const u32 fit = taken >= all && group + kWarpLanes >= wait_count ? wire::kRecordWaits : 0;
        while (static_cast<u32>(__popc(static_cast<int>(__ballot_sync(kFullWarp, out.mine)))) > fit) emit_waits(out, staging, tile, parsed);
      } while (taken < all);
    }
    return out;
  }
  /// Lane i takes event `taken` + i of all that lanes have found, `events` each.
  __device__ __forceinline__ Watched take_events(const Staging& staging, u32 events, u32 waits, u32 taken, u32& all) const {
    Watched out;
    u32 count = 0;
    CCKS_NO_UNROLL
    for (u32 w = 0; w < waits; ++w) {
      const u32 here = platform_.from_lane(events, w);
      if (here == 0) continue;
      const u32 lo = platform_.from_lane(staging.rect.span[0].lo, w), from = platform_.from_lane(staging.rect.span[1].lo, w);
      const u32 width = platform_.from_lane(staging.rect.span[1].hi, w) - from;
      const u32 event_first = platform_.from_lane(staging.wait.event_first, w);
      const u32 stride0 = platform_.from_lane(static_cast<u32>(staging.wait.axis[0].stride), w);
      const u32 stride1 = platform_.from_lane(static_cast<u32>(staging.wait.axis[1].stride), w);
      const u32 total = platform_.from_lane(staging.wait.total, w);
      const u32 i = taken + platform_.control_lane() - count;
      if (i < here) {
        const u32 row = i < width ? 0 : i / width;
        out.event = event_first + (lo + row) * stride0 + (from + i - row * width) * stride1;
        out.total = total;
        out.mine = true;
      }
      count += here;
    }
    all = count;
    return out;
  }

  __device__ __forceinline__ Watched leave_out_own(const Staging& staging, Watched out) const {
    const bool guarded = staging.view.op->guard_count > 0;
    if (out.mine && !guarded) out.mine = own_count(staging, out.event) != out.total;
    return out;
  }

  /// A record that only waits, for the first kRecordWaits that lanes watch; they are then theirs no longer.
  __device__ __forceinline__ void emit_waits(Watched& watched, const Staging& staging, const StagedTile& tile, const Parsed& parsed) {
    if (!await_room()) {
      watched.mine = false;
      return;
    }
    const u32 at = slot(opened_);
    wire::TileRecord& record = memory_.records[at];
    const u32 waits = write_waits(record, watched, staging.runs);
    emit_events(at, tile, parsed, staging.flags, waits, 0, TileKind::empty);
  }
  __device__ __forceinline__ void emit_events(u32 at, const StagedTile& tile, const Parsed& parsed, u8 flags, u32 waits, u32 signals, TileKind kind) {
    if (platform_.leader()) {
      wire::TileRecord& record = memory_.records[at];
      record.tile = tile.tile;
      record.op = parsed.task.task.op;
      record.flags = static_cast<u8>((flags & ~u32{wire::kRecordStreamed}) | wire::kRecordCut);
      record.wait_count = static_cast<u8>(waits);
      record.signal_count = static_cast<u8>(signals);
      set_control(at, kind, 0, parsed, tile.tile);
    }
    hand_on();
  }

  /// Returns how many the record holds; lanes whose event is among them watch it no longer.
  __device__ __forceinline__ u32 write_waits(wire::TileRecord& record, Watched& watched, u32 runs) const {
    const u32 kept = __ballot_sync(kFullWarp, watched.mine);
    const u32 rank = static_cast<u32>(__popc(static_cast<int>(kept & ((1u << platform_.control_lane()) - 1))));
    if (watched.mine && rank < wire::kRecordWaits) {
      record.wait_event[rank] = watched.event;
      record.wait_from[rank] = (runs + 1) * watched.total;
      record.wait_total[rank] = 0;
      watched.mine = false;
    }
    const u32 count = static_cast<u32>(__popc(static_cast<int>(kept)));
    return count < wire::kRecordWaits ? count : wire::kRecordWaits;
  }

  __device__ __forceinline__ u32 own_count(const Staging& staging, u32 event) const {
    const auto own = memory_.own[event % Memory::kOwnEvents];
    return own.event == event && own.slot == staging.slot && own.epoch == staging.epoch ? own.count : 0;
  }

  /// A lane a signal. Returns how many the record holds.
  __device__ __forceinline__ u32 write_signals(wire::TileRecord& record, const Staging& staging, const wire::TileCoord& coord) {
    const u32 lane = platform_.control_lane();
    if (lane < staging.signal_count) {
      const u32 event = wire::signal_event(staging.signal, coord);
      if (lane < wire::kRecordSignals) record.signal_event[lane] = event;
      memory_.own[event % Memory::kOwnEvents] = {event, staging.slot, staging.epoch, own_count(staging, event) + 1};
    }
    return staging.signal_count < wire::kRecordSignals ? staging.signal_count : wire::kRecordSignals;
  }
  /// The signals that do not fit the tile's own record, in records behind it.
  __device__ __forceinline__ void emit_signals(const Parsed& parsed, const Staging& staging, const wire::TileCoord& coord, const StagedTile& tile) {
    for (u32 first = wire::kRecordSignals; first < staging.signal_count; first += wire::kRecordSignals) {
      if (!await_room()) return;
      const u32 at = slot(opened_), left = staging.signal_count - first;
      const u32 count = left < wire::kRecordSignals ? left : wire::kRecordSignals;
      const u32 lane = platform_.control_lane();
      if (lane < count) memory_.records[at].signal_event[lane] = wire::signal_event(staging.view.signals[first + lane], coord);
      emit_events(at, tile, parsed, staging.flags, 0, count, TileKind::skip);
    }
  }

  Source& source_;
  // Tiles since the launch: done, handed on, opened, records asked for.
  u32 done_ = 0, published_ = 0, opened_ = 0, requested_ = 0;
  u32 head_ = 0;
  u32 parsed_first_ = 0, parsed_count_ = 0;
  u32 finished_tiles_ = 0;  // of the first task, by an earlier launch
  u32 unlooked_ = 0;        // looks at the ring since the last look at the clock
  const wire::RunFrame* copied_frame_ = nullptr;
  u32 copied_epoch_ = 0, copied_op_ = kNoOp, copied_block_ = 0;
  bool copied_whole_ = false;
  // The list of records under way.
  const wire::TileRecord* list_ = nullptr;
  const wire::RunFrame* list_frame_ = nullptr;
  u32 list_epoch_ = 0, list_first_ = 0, list_end_ = 0;
  u32 list_task_ = 0;
  u32 list_tile_ = 0;  // of the inbox task
  bool list_taken_ = false, list_skips_ = false;
  bool repeats_ = false;   // it is that of the slot's run before, of the same frame, and this worker had nothing else between
  bool foreseen_ = false;  // its task has not come
  bool looked_ = false;    // its first group need not be looked at again until that comes
  bool finished_ = false;  // the oldest group opened can be handed on as it is
  u32 kept_head_ = 0, kept_block_ = 0;
};

}  // namespace CCKS_ISA
}  // namespace ccks::worker
