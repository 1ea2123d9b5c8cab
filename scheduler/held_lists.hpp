// HeldLists: lists that are seen no sooner than the drafts of their batch. What reports is often in a list, and a worker that is to act on the report should have
// its draft before the report is made. Inboxes are read in order, so of what one worker is sent at once the first may be stored last, and then all is
// there when it finds it.
#pragma once

#include <algorithm>
#include <cstdint>
#include <vector>

#include "ccks/wire/ring.hpp"
#include "scheduler/policy.hpp"

namespace ccks::scheduler {

/// The scheduler's thread. Nothing is allocated after reserve(). Workers are numbered among all.
class HeldLists {
 public:
  /// Room for `lists` at once; more are sent at once.
  void reserve(std::uint32_t workers, std::uint32_t lists) {
    waits_.assign(workers, 0);
    held_.reserve(lists);
  }

  /// Until let_out(), lists for `worker` wait.
  void wait_for_draft(std::uint32_t worker) { waits_[worker] = any_ = 1; }
  bool holds(std::uint32_t worker) const { return waits_[worker] != 0 && held_.size() < held_.capacity(); }
  /// Books `list` where it will be, in the inbox of its worker. Where holds() says so.
  template <class Links>
  void hold(Links& links, const Decision& list, std::uint32_t epoch) {
    wire::Task task{list.tile, epoch, list.op, list.slot_flags, 0};
    wire::Task* place = links.place(list.worker, 0, task.seq);
    links.send_elsewhere(list);
    held_.push_back({place, task});
  }
  /// Stores what was held, the first last.
  template <class Atoms>
  void let_out(Atoms& atoms) {
    if (!any_) return;
    for (; !held_.empty(); held_.pop_back()) atoms.store_slot_release(held_.back().place, wire::to_words(held_.back().task));  // [R1]
    std::fill(waits_.begin(), waits_.end(), std::uint8_t{0});
    any_ = false;
  }

 private:
  struct Held {
    wire::Task* place;
    wire::Task task;
  };
  std::vector<std::uint8_t> waits_;  // per worker
  std::vector<Held> held_;
  bool any_ = false;
};

}  // namespace ccks::scheduler
