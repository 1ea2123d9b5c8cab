// TaskSource: the tasks of a worker, in order: inbox tasks, and the tasks of the lists and queues they start. TileStager: the tiles of
// a task. Both run on the control lanes that fetch; what they hold is replicated there.
//
// Memory ordering
//   inbox slots   [R1] by the scheduler, [R2] here (Platform::poll)
//   frames        plain: written by the host before it published a task of the run [R1], read after [R2]
#pragma once

#include "ccks/worker/platform.hpp"
#include "ccks/worker/ready_queue.hpp"
#include "ccks/worker/staged_tile.hpp"

namespace ccks::worker {
inline namespace CCKS_ISA {

/// A task that has been taken and not yet cut into tiles. `view` is not set.
struct OpenTask : TaskHead {
  wire::BlockRef block;                // Platforms that stage ops: where the op's copy lies in the frame
  TileKind kind = TileKind::empty;     // body stands for "tiles of an op"
  u32 open_flags = 0;                  // TileFlags of an inbox task's ends
  const wire::TileRecord* records = nullptr;  // a list of records, at least one: whoever takes it goes through them
  u32 record_count = 0;
  wire::FaultCode fault = wire::FaultCode::bad_op;  // if kind is fault
};

/// Whether workers of this platform take part in ready queues. Where no arm asks for it, a GPU's are made without (CCKS_WORKER_QUEUES):
/// it is a sixth of the loop's code. A task of a queue is then one that cannot be opened.
template <class Platform>
inline constexpr bool kTakesQueues = true;

template <class Platform>
class TaskSource {
 public:
  using Task = wire::Task;

  /// Both must outlive the source.
  CCKS_HD_ANY TaskSource(Platform& platform, const wire::WorkerParams& params, u32 index)
      : platform_(platform), params_(params), index_(index), queue_(platform),
        inbox_(reinterpret_cast<const Task*>(wire::inbox_of(params, index))) {}

  /// `position`: inbox tasks that have been finished. The one that follows begins behind `list_tasks` tasks of its list.
  CCKS_HD_ANY void start(u32 position, u32 list_tasks) {
    fetched_ = position;
    resume_list_ = list_tasks;
  }

  /// Whether the next task opens an inbox task.
  CCKS_HD_ANY bool between_inbox_tasks() const { return list_next_ >= list_end_ && !queued(); }
  /// Whether the worker helps with a queue: then poll() looks there, once all tasks taken before have run.
  CCKS_HD_ANY bool queued() const {
    if constexpr (kTakesQueues<Platform>)
      return queue_.joined();
    else
      return false;
  }
  /// Gives up on the queue: the next task is a fault.
  CCKS_HD_ANY void fail(wire::FaultCode code) {
    queue_fault_ = code;
    queue_ready_ = true;
  }
  /// Whether a task can be taken without a look at the inbox.
  CCKS_HD_ANY bool has_task() const {
    return list_next_ < list_end_ || (queued() ? queue_ready_ : staged_next_ < staged_count_);
  }
  /// Looks at the inbox; true if tasks have arrived. Only where has_task() is false.
  CCKS_HD_ANY bool poll() {
    if (queued()) return look_into_queue();
    staged_next_ = 0;
    staged_count_ = platform_.poll(inbox_, params_.inbox_slots - 1, fetched_);
    return staged_count_ > 0;
  }
  /// The same for platforms that can look at the host's line in the same time, and the worker has no queue.
  CCKS_HD_ANY bool poll_beside(const wire::HostLine* line, bool look) {
    staged_next_ = 0;
    staged_count_ = platform_.poll(inbox_, params_.inbox_slots - 1, fetched_, line, look);
    return staged_count_ > 0;
  }

  /// Whether the next inbox task has arrived and is, as `task`, of tiles and of the same run.
  CCKS_HD_ANY bool goes_on_with_run(const Task& task) const {
    if (!between_inbox_tasks() || staged_next_ >= staged_count_) return false;
    return is_same_run(task, platform_.shared().staged[staged_next_]);
  }
  CCKS_HD_ANY static bool is_same_run(const Task& a, const Task& b) {
    return a.op < wire::kMaxOps && b.op < wire::kMaxOps && a.slot() == b.slot() && a.epoch == b.epoch;
  }

  /// Takes the next task if it is the list that `due` names, whose frame the caller knows: it has opened that of the run before, the last that was taken.
  CCKS_HD_ANY bool take_again(const Task& due) {
    const Task& next = platform_.shared().staged[staged_next_];
    if (next.tile != due.tile || next.epoch != due.epoch || next.op != due.op || next.slot_flags != due.slot_flags) return false;
    inbox_task_ = next;
    ++staged_next_;
    ++fetched_;
    head_epoch_ = inbox_task_.epoch;
    return true;
  }

  /// Takes the next task. Only where has_task() is true.
  CCKS_HD_ANY void take(OpenTask& out) {
    out.open_flags = 0;
    out.records = nullptr;
    out.fault = wire::FaultCode::bad_op;
    u32 opens = 0;
    if (list_next_ >= list_end_) {
      if (queued()) return take_queued(out);
      take_inbox(out);
      opens = kTileOpensInbox;
    }
    if (list_next_ < list_end_) take_listed(out);  // the one place: it is long
    out.open_flags |= opens;
  }

 private:
  CCKS_HD_ANY void take_inbox(OpenTask& out) {
    inbox_task_ = platform_.shared().staged[staged_next_++];
    ++fetched_;
    out.inbox = inbox_task_;
    out.task = inbox_task_;
    out.frame = nullptr;
    out.events = nullptr;
    out.open_flags = kTileClosesInbox;
    out.kind = TileKind::empty;
    out.list_task = 0;
    if (inbox_task_.op == wire::kOpNop || inbox_task_.op == wire::kOpPark) return;
    out.kind = TileKind::fault;
    if (!find_frame()) return;
    name_frame(out);
    if constexpr (kTakesQueues<Platform>) {
      if (inbox_task_.op == wire::kOpQueue) return join_queue(out);
    }
    if (inbox_task_.op != wire::kOpList) return open(out, wire::BlockRef{}, false);
    if (inbox_task_.tile >= head().list_count) return;
    const wire::ListParams list = frame_at<wire::ListParams>(*frame_, head().lists)[inbox_task_.tile];
    if constexpr (Platform::kStagesOps) {
      if (head().records != 0) return name_records(out, list);
    }
    list_first_ = list.first;
    list_next_ = list.first + resume_list_;
    list_end_ = list.first + list.count;
    chunk_first_ = chunk_end_ = list_next_;
    resume_list_ = 0;
    out.kind = TileKind::empty;
  }

  CCKS_HD_ANY void name_records(OpenTask& out, const wire::ListParams& list) {
    out.kind = TileKind::empty;
    if (resume_list_ < list.count) {
      out.records = frame_at<wire::TileRecord>(*frame_, head().records) + list.first + resume_list_;
      out.record_count = list.count - resume_list_;
    }
    out.list_task = resume_list_;
    resume_list_ = 0;
  }

  CCKS_HD_ANY const wire::RunFrame& head() const { return platform_.shared().head; }

  /// The worker's part in a queue is one inbox task: an empty tile opens it, another closes it.
  CCKS_HD_ANY void join_queue(OpenTask& out) {
    if (head().queue == 0) return;
    out.kind = TileKind::empty;
    out.open_flags = 0;
    queue_.join({reinterpret_cast<const wire::QueueHead*>(head().queue), out.runs});
    queue_ready_ = queue_drained_ = false;
    queue_fault_ = wire::FaultCode::none;
  }

  CCKS_HD_ANY bool look_into_queue() {
    const QueueLook look = queue_.look(queue_task_);
    queue_drained_ = look == QueueLook::drained;
    return queue_ready_ = look != QueueLook::nothing;
  }

  CCKS_HD_ANY void take_queued(OpenTask& out) {
    queue_ready_ = false;
    out.task = inbox_task_;
    out.inbox = inbox_task_;
    name_frame(out);
    if (queue_drained_ || queue_fault_ != wire::FaultCode::none) {
      out.kind = queue_drained_ ? TileKind::empty : TileKind::fault;
      out.fault = queue_fault_;
      out.open_flags = kTileClosesInbox;
      queue_.publish(reinterpret_cast<wire::WorkerLine*>(params_.worker_lines) + index_);
      return queue_.leave();
    }
    out.task.tile = queue_task_.tile;
    out.task.op = queue_task_.op;
    open(out, wire::BlockRef{}, false);
  }

  /// The head is read once a run: it stays as it is while tasks of the run are in flight. What a kOpSignal carries as its epoch is
  /// an amount, which may happen to be the epoch of a later run; it needs of the head only what is the same for all runs of a slot.
  CCKS_HD_ANY bool find_frame() {
    const u32 slot = inbox_task_.slot();
    if (slot >= params_.slots) return false;
    const bool of_run = inbox_task_.op != wire::kOpSignal;
    const bool same_run = head_of_run_ && inbox_task_.epoch == head_epoch_;
    if (frame_ != nullptr && slot == head_slot_ && (same_run || !of_run)) return true;
    frame_ = reinterpret_cast<const wire::RunFrame*>(reinterpret_cast<const u64*>(params_.frames)[slot]);
    if (frame_ == nullptr) return false;
    platform_.converge();
    if (platform_.leader()) platform_.shared().head = *frame_;
    platform_.converge();
    head_slot_ = slot;
    head_epoch_ = inbox_task_.epoch;
    head_of_run_ = of_run;
    return true;
  }

  CCKS_HD_ANY void name_frame(OpenTask& out) const {
    out.frame = frame_;
    out.events = reinterpret_cast<u32*>(head().events);
    out.bases = frame_at<u32>(*frame_, head().bases);
    out.runs = inbox_task_.epoch - head().epoch0;
    out.state = head().state;
  }

  /// A list task inherits epoch, slot and flags from the task that started the list; the epoch of a kOpSignal is its own.
  CCKS_HD_ANY void take_listed(OpenTask& out) {
    if (list_next_ >= chunk_end_) load_chunk();
    out.list_task = list_next_ - list_first_;
    const u32 at = list_next_++ - chunk_first_;
    Task task = platform_.shared().listed[at];
    if (task.op != wire::kOpSignal) task.epoch = inbox_task_.epoch;
    const u32 flags = (task.slot_flags | inbox_task_.slot_flags) & ~(wire::kMaxSlots - 1);
    task.slot_flags = static_cast<u16>(flags | inbox_task_.slot());
    out.task = task;
    out.inbox = inbox_task_;
    name_frame(out);
    out.open_flags = list_next_ == list_end_ ? u32{kTileClosesInbox} : 0;
    open(out, Platform::kStagesOps ? platform_.shared().blocks[at] : wire::BlockRef{}, true);
  }

  /// The next tasks of the list, a slot a lane: one access to far memory for many tasks.
  CCKS_HD_ANY void load_chunk() {
    chunk_first_ = list_next_;
    chunk_end_ = list_end_ - list_next_ < Platform::kPollSlots ? list_end_ : list_next_ + Platform::kPollSlots;
    const Task* tasks = frame_at<Task>(*frame_, head().list_tasks) + chunk_first_;
    platform_.converge();
    for (u32 i = platform_.control_lane(); i < chunk_end_ - chunk_first_; i += platform_.control_lanes()) {
      const Task task = tasks[i];
      platform_.shared().listed[i] = task;
      if constexpr (Platform::kStagesOps) platform_.shared().blocks[i] = block_of(task.op);
    }
    platform_.converge();
  }

  CCKS_HD_ANY wire::BlockRef block_of(u32 op) const {
    u32 offset = 0, bytes = 0;  // not BlockRef{}, which a GPU would load from memory (tests/ptx/check.py)
    if (head().blocks != 0 && op < head().op_count) {
      const wire::BlockRef& block = frame_at<wire::BlockRef>(*frame_, head().blocks)[op];
      offset = block.offset;
      bytes = block.bytes;
    }
    return {offset, bytes};
  }

  CCKS_HD_ANY void open(OpenTask& out, wire::BlockRef block, bool listed) {
    const u32 op = out.task.op;
    out.kind = TileKind::fault;
    if (op == wire::kOpSignal) {
      if (out.task.tile < head().event_count) out.kind = TileKind::signal;
    } else if (op == wire::kOpNop) {
      out.kind = TileKind::empty;
    } else if (op < head().op_count) {
      out.kind = TileKind::body;
      if constexpr (Platform::kStagesOps) out.block = listed ? block : block_of(op);
    }
  }

  Platform& platform_;
  const wire::WorkerParams& params_;
  u32 index_;
  QueueSource<Platform> queue_;
  const Task* inbox_;
  const wire::RunFrame* frame_ = nullptr;
  u32 head_slot_ = 0, head_epoch_ = 0;
  bool head_of_run_ = false;  // head_epoch_ is the epoch of a run
  Task inbox_task_;
  u32 fetched_ = 0;  // inbox tasks staged so far
  u32 staged_next_ = 0, staged_count_ = 0;
  u32 list_first_ = 0, list_next_ = 0, list_end_ = 0;
  u32 resume_list_ = 0;
  u32 chunk_first_ = 0, chunk_end_ = 0;  // of the list, in shared().listed
  Task queue_task_;
  bool queue_ready_ = false, queue_drained_ = false;
  wire::FaultCode queue_fault_ = wire::FaultCode::none;
};

/// TileStager hands out the tiles of one task after the other.
class TileStager {
 public:
  /// `task` has its view and must outlive its tiles.
  /// The first `finished` tiles are left out: an earlier launch has run them.
  CCKS_HD_ANY void begin(const OpenTask& task, u32 finished) {
    task_ = &task;
    kind_ = task.kind;
    open_flags_ = task.open_flags;
    tile_ = task.task.first_tile();
    tile_end_ = tile_ + task.task.tile_count();
    if (kind_ == TileKind::body && (task.task.slot_flags & wire::kTaskFetch) != 0) kind_ = TileKind::empty;
    if (kind_ == TileKind::body && tile_end_ > task.view.op->tile_count) kind_ = TileKind::fault;
    if (kind_ != TileKind::body) tile_end_ = tile_ + 1;
    if (kind_ == TileKind::body && tile_ + finished < tile_end_) tile_ += finished;
    if (kind_ == TileKind::body && (task.task.slot_flags & wire::kTaskSkip) != 0) kind_ = TileKind::skip;
    opens_ = true;
  }
  CCKS_HD_ANY bool done() const { return tile_ >= tile_end_; }
  /// Whether another tile of the same op follows.
  CCKS_HD_ANY bool follows() const { return tile_ < tile_end_ && kind_ == TileKind::body; }
  CCKS_HD_ANY u32 next_tile() const { return tile_; }
  CCKS_HD_ANY TileKind kind() const { return kind_; }

  /// The next tile; only where done() is false.
  CCKS_HD_ANY void next(StagedTile& out) {
    static_cast<TaskHead&>(out) = *task_;
    next_of_task(out, task_->view.op);
  }
  /// The same for a tile that has its TaskHead already. The grid may be given by a copy of it.
  CCKS_HD_ANY void next_of_task(StagedTile& out, const wire::OpParams* op) {
    const u32 tile = tile_++;
    const bool closes = tile_ >= tile_end_;
    u32 flags = (opens_ ? (open_flags_ & kTileOpensInbox) | kTileOpensTask : 0) |
                (closes ? (open_flags_ & kTileClosesInbox) | kTileClosesTask : 0);
    opens_ = false;
    out.tile = tile;
    out.kind = kind_;
    out.wait_ns = 0;
    if (kind_ == TileKind::fault) {
      const wire::Task& task = task_->task;
      out.fault = {task_->kind == kind_ ? task_->fault : wire::FaultCode::bad_op, task.op, task.slot(), task.epoch, task.tile};
    } else if (op != nullptr && (kind_ == TileKind::body || kind_ == TileKind::skip)) {
      out.coord = wire::tile_coord(op->grid, tile);
      if (op->guard_count > 0) flags |= kTileGuarded;
      if ((task_->task.slot_flags & wire::kTaskDraft) != 0) flags |= kTileGuarded | kTileDraft;
    }
    out.flags = flags;
  }

 private:
  const OpenTask* task_ = nullptr;
  TileKind kind_ = TileKind::empty;
  u32 open_flags_ = 0;
  u32 tile_ = 0, tile_end_ = 0;
  bool opens_ = false;
};

}  // namespace CCKS_ISA
}  // namespace ccks::worker
