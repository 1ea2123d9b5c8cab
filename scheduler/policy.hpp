// Policy: picks the next task of a run and its worker. Knows nothing of rings, clocks or threads.
#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <string_view>
#include <vector>

#include "ccks/result.hpp"
#include "scheduler/slot.hpp"
#include "scheduler/tuning.hpp"

namespace ccks::scheduler {

/// One choice: this task, that worker.
struct Decision {
  std::uint32_t tile = 0;    // as Task::tile; kOpSignal: event; kOpList: list
  std::uint32_t amount = 0;  // kOpSignal: what to add
  std::uint32_t cost = 0;    // estimate, about nanoseconds
  std::uint16_t op = 0;      // op or ControlOp
  std::uint16_t target = 0;  // kOpSignal: op whose tiles are credited
  std::uint16_t worker = 0;
  std::uint16_t slot_flags = 0;
};

/// Decisions of one publication (C5).
struct Batch {
  std::uint32_t count = 0;
  std::array<Decision, kBatchDecisions> items;
  bool full() const { return count == kBatchDecisions; }
};

/// WorkerLoads is the scheduler's picture of its workers. add() at the decision, remove() at the done record.
class WorkerLoads {
 public:
  void reserve(std::uint32_t workers, std::uint32_t inbox_slots);
  std::uint32_t workers() const { return static_cast<std::uint32_t>(tasks_.size()); }
  std::uint32_t tasks(std::uint32_t worker) const { return tasks_[worker]; }
  std::uint32_t total_tasks() const { return total_tasks_; }
  bool has_room(std::uint32_t worker, std::uint32_t window) const { return tasks_[worker] < window; }
  std::uint32_t inbox_slots() const { return inbox_slots_; }
  void add(std::uint32_t worker, std::uint32_t cost) {
    ++tasks_[worker];
    ++total_tasks_;
    cost_[worker] += cost;
    total_cost_ += cost;
  }
  void remove(std::uint32_t worker, std::uint32_t cost) {
    --tasks_[worker];
    --total_tasks_;
    cost_[worker] -= cost;
    total_cost_ -= cost;
  }
  /// choose takes `preferred` unless it is loaded above the average by more than kFairTasks of this cost; then the less
  /// loaded of two others in turn. kNone: better wait, because nobody has fewer than `window` tasks, or only the
  /// preferred worker is full while its load is fair, and a task elsewhere would only wait for its neighbours.
  std::uint32_t choose(std::uint32_t preferred, std::uint32_t cost, std::uint32_t window) {
    const std::uint64_t count = workers();
    if (total_tasks_ >= count * window) return plan::kNone;
    const bool fair = cost_[preferred] * count <= total_cost_ + kFairTasks * count * cost;
    if (!fair) return choose_other(preferred, window);
    return has_room(preferred, window) ? preferred : plan::kNone;
  }

 private:
  std::uint32_t choose_other(std::uint32_t preferred, std::uint32_t window);
  std::uint32_t least_loaded(std::uint32_t window) const;

  std::vector<std::uint32_t> tasks_;
  std::vector<std::uint64_t> cost_;
  std::uint64_t total_cost_ = 0;
  std::uint32_t total_tasks_ = 0;
  std::uint32_t inbox_slots_ = 0;
  std::uint32_t turn_ = 0;
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
  /// A task of `run` is done.
  virtual void on_done(RunSlot& /*run*/, const Decision& /*done*/) {}
  /// ok, or why the policy cannot go on (replay that has diverged). Checked after each advance.
  virtual const char* failure() const { return nullptr; }
  /// For the message when runs are stuck.
  virtual const char* stall_reason() const { return "a run waits for a report that no worker has sent"; }
};

/// Which policy `name` names; invalid_argument for others.
Result<PolicyKind> parse_policy(std::string_view name);
const char* policy_name(PolicyKind kind);
std::unique_ptr<Policy> make_policy(PolicyKind kind, const PlanTables& tables, std::uint32_t slots);

/// The decision that starts the list of `worker`.
Decision list_start(const RunSlot& run, std::uint32_t worker);

/// append adds one piece of `op` to the batch; shared by policies that send tiles.
inline void append(RunSlot& run, std::uint32_t op, const Piece& piece, std::uint32_t worker, std::uint32_t cost,
                   Batch& batch, WorkerLoads& loads) {
  Decision& out = batch.items[batch.count++];
  const bool signal = piece.kind == Piece::Kind::signal;
  out.tile = signal ? piece.first : wire::Task::pack_tiles(piece.first, piece.count);
  out.amount = signal ? piece.count : 0;
  out.cost = cost;
  out.op = signal ? std::uint16_t{wire::kOpSignal} : static_cast<std::uint16_t>(op);
  out.target = static_cast<std::uint16_t>(op);
  out.worker = static_cast<std::uint16_t>(worker);
  out.slot_flags = static_cast<std::uint16_t>(run.index | (piece.kind == Piece::Kind::skip ? wire::kTaskSkip : 0));
  loads.add(worker, cost);
  run.progress.take(op, piece);
}

}  // namespace ccks::scheduler
