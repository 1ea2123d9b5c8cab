// DelayedLinks: WorkerLinks over a link that is slower than it is. What is sent, and what workers have answered, is held
// back for a given time each way: so a measurement can say what the same decisions would cost over another link.
#pragma once

#include <cstdint>
#include <vector>

#include "scheduler/worker_links.hpp"

namespace ccks::scheduler {

/// One thread. Nothing is allocated after reserve(). Time passes in turn().
template <class Atoms>
class DelayedLinks : public WorkerLinks<Atoms> {
  using Base = WorkerLinks<Atoms>;

 public:
  static constexpr bool kAtOnce = false;
  void reserve(const wire::WorkerParams& params, Atoms atoms, std::uint64_t delay_ns, std::uint32_t first = 0) {
    Base::reserve(params, atoms, 0, first);
    delay_ns_ = delay_ns;
    tasks_.reserve(2 * std::size_t{params.workers} * params.inbox_slots);  // a draft is followed by its verdict
    next_.assign(params.workers, first);
    records_.resize(params.workers);
    for (Held<wire::Record>& records : records_) records.reserve(params.outbox_slots);
  }

  /// The caller has looked after credit, so there is room.
  std::uint32_t send(const Decision& decision, std::uint32_t epoch) {
    tasks_.push({{decision, epoch, {}, 0, false}, now_ns_ + delay_ns_});
    const std::uint32_t position = next_[decision.worker];
    next_[decision.worker] += decision.tasks;
    return position;
  }
  void send_verdict(std::uint32_t worker, const wire::Task& task, std::uint32_t position) {
    Outgoing verdict{{}, 0, task, position, true};
    verdict.decision.worker = static_cast<std::uint16_t>(worker);
    tasks_.push({verdict, now_ns_ + delay_ns_});
  }

  /// Writes the tasks whose time has come and calls `sent(worker)` for each. True while anything is on its way.
  template <class Sent>
  bool turn(std::uint64_t now_ns, Sent sent) {
    now_ns_ = now_ns;
    while (!tasks_.empty() && tasks_.front().due_ns <= now_ns) {
      const Outgoing task = tasks_.pop();
      if (task.is_verdict) {
        Base::send_verdict(task.decision.worker, task.verdict, task.position);
      } else {
        Base::send(task.decision, task.epoch);
      }
      sent(task.decision.worker);
    }
    bool any = !tasks_.empty();
    for (std::uint32_t w = 0; w < records_.size(); ++w) {
      take_in(w);
      any |= !records_[w].empty();
    }
    return any;
  }

  bool poll(std::uint32_t worker, wire::Record& out) {
    Held<wire::Record>& records = records_[worker];
    if (records.empty() || records.front().due_ns > now_ns_) return false;
    out = records.pop();
    return true;
  }

 private:
  struct Outgoing {
    Decision decision;
    std::uint32_t epoch;
    wire::Task verdict;
    std::uint32_t position;
    bool is_verdict;
  };

  /// First in, first out; everything waits for the same time, so that is also the order in which it is due.
  template <class T>
  class Held {
   public:
    struct Item {
      T value;
      std::uint64_t due_ns;
    };
    void reserve(std::size_t capacity) { items_.resize(capacity); }
    bool empty() const { return count_ == 0; }
    bool full() const { return count_ == items_.size(); }
    const Item& front() const { return items_[first_]; }
    void push(const Item& item) { items_[(first_ + count_++) % items_.size()] = item; }
    T pop() {
      const T value = items_[first_].value;
      first_ = (first_ + 1) % items_.size();
      --count_;
      return value;
    }

   private:
    std::vector<Item> items_;
    std::size_t first_ = 0;
    std::size_t count_ = 0;
  };

  // A full queue leaves the rest in the outbox: its worker waits for credit, as it would on a slow link.
  void take_in(std::uint32_t worker) {
    wire::Record record;
    while (!records_[worker].full() && Base::poll(worker, record)) records_[worker].push({record, now_ns_ + delay_ns_});
  }

  std::uint64_t delay_ns_ = 0;
  std::uint64_t now_ns_ = 0;
  Held<Outgoing> tasks_;
  std::vector<std::uint32_t> next_;  // per worker: position of the next task it is sent
  std::vector<Held<wire::Record>> records_;  // per worker
};

}  // namespace ccks::scheduler
