// Policy: picks the next task of a run and its worker. Knows nothing of rings, clocks or threads.
#pragma once

#include <algorithm>
#include <array>
#include <cstdint>
#include <memory>
#include <string_view>
#include <vector>

#include "ccks/result.hpp"
#include "scheduler/slot.hpp"
#include "scheduler/tuning.hpp"

namespace ccks::scheduler {

/// One choice: these tasks, that worker. Tasks of a choice are consecutive tiles of one op; or consecutive ops that look the
/// same, each whole in a task; or lists of one stretch, of which list l goes to worker `worker + l`, round the corner, and
/// empty ones to nobody.
struct Decision {
  std::uint32_t tile = 0;    // of the first task, as Task::tile; kOpSignal: event; kOpList: list
  std::uint32_t amount = 0;  // tiles in all; kOpSignal: what to add; kOpList: how many lists from `tile` on
  std::uint32_t cost = 0;    // of each task, an estimate, about nanoseconds; kOpList: see Instance::list_cost
  std::uint16_t tasks = 1;   // what goes into inboxes: full tasks, the last perhaps less
  std::uint16_t op = 0;      // op or ControlOp
  std::uint16_t target = 0;  // kOpSignal: op whose tiles are credited
  std::uint16_t worker = 0;  // among the run's workers
  std::uint16_t slot_flags = 0;
  std::uint16_t reports = 0;  // bool: the op, or one of the lists, publishes a report
  std::uint16_t op_step = 0;  // 1: each task is of the op behind the one before; then none of them reports
};

/// Tasks of one decision that a worker has in its inbox.
struct alignas(32) SentTasks {
  std::uint32_t tile = 0;    // of the first unanswered one; kOpSignal: event; kOpList: list
  std::uint32_t amount = 0;  // tiles that are left; kOpSignal: what was added
  std::uint32_t cost = 0;    // of each task
  std::uint16_t tasks = 0;   // unanswered
  std::uint16_t chunk = 1;   // tiles of each task
  std::uint16_t op = 0;
  std::uint16_t target = 0;
  std::uint16_t slot_flags = 0;
  std::uint16_t reports = 0;
  std::uint16_t op_step = 0;
};

/// The worker that has list `list` of its stretch where list 0 is on worker `first`.
inline std::uint32_t worker_of_list(std::uint32_t first, std::uint32_t list, std::uint32_t workers) {
  return first + list < workers ? first + list : first + list - workers;
}
/// Calls visit(Decision) for each task of `decision`, in the order of sending.
template <class Visit>
void for_each_task(const Decision& decision, const RunSlot& run, std::uint32_t workers, Visit&& visit);

/// Decisions of one publication (C5).
struct Batch {
  std::uint32_t count = 0;
  std::array<Decision, kBatchDecisions> items;
  bool full() const { return count == kBatchDecisions; }
};

/// WorkerLoads is the scheduler's picture of workers that share runs, numbered from 0. add() at the decision, remove() at the done record.
class WorkerLoads {
 public:
  void reserve(std::uint32_t workers, std::uint32_t inbox_slots);
  std::uint32_t workers() const { return static_cast<std::uint32_t>(tasks_.size()); }
  std::uint32_t tasks(std::uint32_t worker) const { return tasks_[worker]; }
  std::uint32_t total_tasks() const { return total_tasks_; }
  bool has_room(std::uint32_t worker, std::uint32_t window) const { return tasks_[worker] < window; }
  /// Tasks that `worker` may still be sent.
  std::uint32_t room(std::uint32_t worker, std::uint32_t window) const {
    return tasks_[worker] < window ? window - tasks_[worker] : 0;
  }
  std::uint32_t inbox_slots() const { return inbox_slots_; }
  /// A task each for workers worker_of(i), i below `count`, that costs cost_of(i). The sums are written once: they would be all that
  /// this waits for.
  template <class WorkerOf, class CostOf>
  void add_each(std::size_t count, WorkerOf&& worker_of, CostOf&& cost_of) {
    double sum = 0;
    for (std::size_t i = 0; i < count; ++i) {
      const double cost = cost_of(i);
      const std::uint32_t worker = worker_of(i);
      ++tasks_[worker];
      cost_[worker] += cost;
      sum += cost;
    }
    total_tasks_ += static_cast<std::uint32_t>(count);
    total_cost_ += sum;
  }
  /// `tasks` tasks that cost `cost` each.
  void add(std::uint32_t worker, std::uint32_t cost, std::uint32_t tasks = 1) {
    const double sum = static_cast<double>(cost) * tasks;
    tasks_[worker] += tasks;
    total_tasks_ += tasks;
    cost_[worker] += sum;
    total_cost_ += sum;
  }
  void remove(std::uint32_t worker, std::uint32_t cost, std::uint32_t tasks = 1) {
    const double sum = static_cast<double>(cost) * tasks;
    tasks_[worker] -= tasks;
    total_tasks_ -= tasks;
    cost_[worker] -= sum;
    total_cost_ -= sum;
  }
  /// The load up to which a worker is preferred to others for tasks of `cost`: kFairTasks of them above the average.
  double fair_load(std::uint32_t cost) const {
    return total_cost_ * per_worker_ + static_cast<double>(cost) * kFairTasks;
  }
  /// How many tasks of `cost` may go to `worker`, at least one, until choose_fair() would take another for the next.
  std::uint32_t fair_tasks(std::uint32_t worker, std::uint32_t cost, std::uint32_t window) const {
    const double lead = fair_load(cost) - cost_[worker];
    const double each = static_cast<double>(cost) * (1 - per_worker_);
    return lead <= 0 ? 1 : lead >= each * window ? window : 1 + static_cast<std::uint32_t>(lead / each);
  }
  bool all_full(std::uint32_t window) const { return total_tasks_ >= workers() * window; }
  /// choose_fair takes `preferred` unless its load is above `fair`; then the less loaded of two others in turn. kNone:
  /// better wait, because only the preferred worker is full while its load is fair, and a task elsewhere would only wait
  /// for its neighbours.
  std::uint32_t choose_fair(std::uint32_t preferred, double fair, std::uint32_t window) {
    if (cost_[preferred] > fair) return choose_other(preferred, window);
    return has_room(preferred, window) ? preferred : plan::kNone;
  }
  /// The same with the fair load of now; kNone also if nobody has fewer than `window` tasks.
  std::uint32_t choose(std::uint32_t preferred, std::uint32_t cost, std::uint32_t window) {
    return all_full(window) ? plan::kNone : choose_fair(preferred, fair_load(cost), window);
  }

 private:
  std::uint32_t choose_other(std::uint32_t preferred, std::uint32_t window);
  std::uint32_t least_loaded(std::uint32_t window) const;

  std::vector<std::uint32_t> tasks_;
  // Sums of whole numbers far below 2^53, so they are exact, and compare with an average without a division.
  std::vector<double> cost_;
  double total_cost_ = 0;
  std::uint32_t total_tasks_ = 0;
  std::uint32_t inbox_slots_ = 0;
  std::uint32_t turn_ = 0;
  double per_worker_ = 1;  // 1 / workers: a division would be the dearest part of a decision
};

/// `queue` belongs to arm gpu_queue and has no name that a user could ask for.
enum class PolicyKind : std::uint32_t { fixed = 0, lookahead = 1, reactive = 2, queue = 3 };

/// Calls come from the scheduler thread only; none may allocate, block or throw.
class Policy {
 public:
  virtual ~Policy() = default;
  /// A run begins; its progress has been started.
  virtual void on_start(RunSlot& run) = 0;
  /// Appends up to `budget` decisions for `run` to `batch` and accounts them in `loads`; sets run.all_sent at the end.
  /// Returns how many. Zero means: nothing can be sent for this run now.
  virtual std::uint32_t advance(RunSlot& run, Batch& batch, WorkerLoads& loads, std::uint32_t budget) = 0;
  /// Whether on_done() is to be called at all.
  virtual bool wants_done() const { return false; }
  /// Tasks of `run` are done.
  virtual void on_done(RunSlot& /*run*/, const SentTasks& /*done*/) {}
  /// ok, or why the policy cannot go on (replay that has diverged). Checked after each advance.
  virtual const char* failure() const { return nullptr; }
  /// For the message when runs are stuck.
  virtual const char* stall_reason() const { return "a run waits for a report that no worker has sent"; }
};

/// Which policy `name` names; invalid_argument for others.
Result<PolicyKind> parse_policy(std::string_view name);
const char* policy_name(PolicyKind kind);
/// What `kind` sends as lists where `asked` is wanted: static has it all, reactive has no use for any.
Spine spine_of(PolicyKind kind, Spine asked);
/// Whether runs of one state may follow each other on the device (PlanTables::turn_event): a policy that looks at events on the
/// host, or at what was decided before, would have to know of the turn.
inline bool decides_ahead(PolicyKind kind) { return kind == PolicyKind::fixed || kind == PolicyKind::lookahead; }
std::unique_ptr<Policy> make_policy(PolicyKind kind, const PlanTables& tables, std::uint32_t slots);

/// Where the lists of a run begin: lists that keep everybody busy, and those of a run that is alone, where they were before, with what the
/// workers hold of them; others at different workers, so that runs beside each other do not pile up on the first ones.
std::uint32_t first_worker(const RunSlot& run, const PlanTables& tables, bool leaves_workers_idle);

/// append_lists starts all lists of open `stretch`, list l on worker run.worker_base + l. All or nothing: a worker without
/// room for its list makes it false. Two runs' lists must start in the same order everywhere, or worker A could wait in run
/// 1 for a tile that worker B only reaches after run 2, which waits for A; nor may a tile get between them.
bool append_lists(RunSlot& run, const PlanTables& tables, std::uint32_t stretch, Batch& batch, WorkerLoads& loads);

/// append adds one piece of `op` to the batch; shared by policies that send tiles one by one.
inline void append(RunSlot& run, std::uint32_t op, const Piece& piece, std::uint32_t worker, std::uint32_t cost,
                   Batch& batch, WorkerLoads& loads) {
  Decision& out = batch.items[batch.count++];
  const bool signal = piece.kind == Piece::Kind::signal;
  out.tile = signal ? piece.first : wire::Task::pack_tiles(piece.first, piece.count);
  out.amount = piece.count;
  out.cost = cost;
  out.tasks = 1;
  out.op = signal ? std::uint16_t{wire::kOpSignal} : static_cast<std::uint16_t>(op);
  out.target = static_cast<std::uint16_t>(op);
  out.worker = static_cast<std::uint16_t>(worker);
  out.slot_flags = static_cast<std::uint16_t>(run.index | (piece.kind == Piece::Kind::skip ? wire::kTaskSkip : 0));
  out.reports = run.instance.ops()[op].reports && (signal || piece.first == 0) ? 1 : 0;  // whoever has the first tile
  out.op_step = 0;
  loads.add(worker, cost);
  run.progress.take(op, piece);
}

template <class Visit>
void for_each_task(const Decision& decision, const RunSlot& run, std::uint32_t workers, Visit&& visit) {
  Decision one = decision;
  one.tasks = 1;
  if (decision.op == wire::kOpList) {
    one.amount = 1;
    const std::span<const std::uint32_t> filled = run.instance.filled_lists(decision.tile / workers);
    for (auto list = std::ranges::lower_bound(filled, decision.tile); list != filled.end() && *list - decision.tile < decision.amount; ++list) {
      one.tile = *list;
      one.worker = static_cast<std::uint16_t>(worker_of_list(decision.worker, *list - decision.tile, workers));
      one.cost = run.instance.list_cost(*list);
      visit(one);
    }
    return;
  }
  if (decision.op >= wire::kMaxOps) return visit(one);
  const wire::Task first{decision.tile, 0, 0, 0, 0};
  std::uint32_t tile = first.first_tile();
  one.op_step = 0;
  for (std::uint32_t left = decision.amount; left > 0;) {
    one.amount = std::min(left, first.tile_count());
    one.tile = wire::Task::pack_tiles(tile, one.amount);
    visit(one);
    if (decision.op_step == 0) tile += one.amount;
    one.op = static_cast<std::uint16_t>(one.op + decision.op_step);
    one.target = one.op;
    left -= one.amount;
  }
}

}  // namespace ccks::scheduler
