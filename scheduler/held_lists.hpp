// HeldLists: lists that are seen no sooner than the drafts of their batch. What reports is often in a list, and a worker that is to act on the report should have
// its draft before the report is made. The first list comes last: it is what most likely reports first. Inboxes are read in order, so a draft may be
// stored before the list in front of it, and then both are there when the worker finds them.
#pragma once

#include <cstdint>
#include <vector>

#include "ccks/wire/ring.hpp"
#include "scheduler/policy.hpp"
#include "scheduler/tuning.hpp"

namespace ccks::scheduler {

/// The scheduler's thread. Nothing is allocated after reserve().
class HeldLists {
 public:
  void reserve() { held_.reserve(kHeldTasks); }

  /// Whether lists of `batch` wait until let_out(): where it has drafts, and is so small that a run begins no later by what counts.
  void begin(const Batch& batch) {
    std::uint32_t tasks = 0;
    bool drafts = false;
    for (std::uint32_t i = 0; i < batch.count; ++i) {
      tasks += batch.items[i].tasks;
      drafts |= (batch.items[i].slot_flags & wire::kTaskDraft) != 0;
    }
    holds_ = drafts && tasks <= kHeldTasks;
  }
  bool holds() const { return holds_; }
  /// Books `list` where it will be, in the inbox of its worker. Where holds() says so.
  template <class Links>
  void hold(Links& links, const Decision& list, std::uint32_t epoch) {
    wire::Task task{list.tile, epoch, list.op, list.slot_flags, 0};
    wire::Task* place = links.place(list.worker, 0, task.seq);
    links.send_elsewhere(list);
    held_.push_back({place, task});
  }
  template <class Atoms>
  void let_out(Atoms& atoms) {
    for (; !held_.empty(); held_.pop_back()) atoms.store_slot_release(held_.back().place, wire::to_words(held_.back().task));  // [R1]
    holds_ = false;
  }

 private:
  struct Held {
    wire::Task* place;
    wire::Task task;
  };
  std::vector<Held> held_;
  bool holds_ = false;
};

}  // namespace ccks::scheduler
