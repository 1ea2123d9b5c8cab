// SimPlatform: a worker of a simulation: one lane, a fiber, everything it touches through atoms of the simulation.
#pragma once

#include <algorithm>

#include "ccks/worker/platform_host.hpp"
#include "ccks/worker/worker_loop.hpp"
#include "gpu/sim/atoms.hpp"
#include "gpu/sim/costs.hpp"

namespace ccks::gpu::sim {

/// Sees the bodies of all workers, and says how long they take. Called by the worker.
class BodyWatch {
 public:
  virtual ~BodyWatch() = default;
  /// A body begins; how long it takes.
  virtual Nanos begin(u32 worker, const wire::RunFrame& frame, const wire::OpParams& op, u32 tile) = 0;
  /// It has ended; a FaultCode, 0 for none.
  virtual u32 end(u32 worker, const wire::RunFrame& frame, const wire::OpParams& op, u32 tile) = 0;
};

/// What the device hands to a worker's entry as `context`.
struct SimWorker {
  Machine* machine = nullptr;
  BodyWatch* watch = nullptr;
  StageCosts costs;
  wire::u8* scratch = nullptr;
  u32 scratch_bytes = 0;
  Explorer::Agent* scheduler = nullptr;  // who waits for records; kNobody: nobody
};

/// Lanes of a worker whose ops may ask for more than tiles: the machine.
class SimLanes : public worker::HostLanes {
 public:
  SimLanes(const SimWorker& context, u32 index)
      : HostLanes(context.scratch, context.scratch_bytes), context_(context), index_(index) {}
  Machine& machine() const { return *context_.machine; }
  BodyWatch* watch() const { return context_.watch; }
  u32 worker() const { return index_; }
  /// The inbox has tasks, the first of which came into sight at `since`: they were fetched from then on, whatever ran meanwhile.
  void found_tasks(Nanos since) {
    if (!machine().side_by_side()) return;
    staged_at_ = std::max(staged_at_, since + context_.costs.contact_ns);
    machine().hands().gate = std::max(machine().hands().gate, since);
  }
  /// Before the body of a tile that has been let through. It begins once the slowest stage is through with the tile, the body before
  /// has ended, and the signals of the one before that are on their way. One that is joined to the tile before (a strand: nobody waits for
  /// that one, nor this one for anybody) passes no gate.
  void pace(const wire::RunFrame& frame, const wire::OpParams& op) {
    if (!machine().side_by_side()) return;
    const StageCosts& costs = context_.costs;
    Explorer& explorer = machine().explorer();
    const Nanos now = explorer.own_time();
    staged_at_ += costs.stage_ns;
    // A wait of its own keeps the pipeline full, not ahead of itself.
    if (staged_at_ + kAhead * costs.stage_ns < now) staged_at_ = now - kAhead * costs.stage_ns;
    const bool joined = may_join_ == &frame && op.wait_count == 0 && op.guard_count == 0 && ++strand_ < kStrand;
    if (!joined) strand_ = 0;
    Nanos begins = joined ? staged_at_ : std::max(machine().hands().gate, staged_at_) + costs.begin_ns;
    const Nanos turn = joined ? costs.join_ns : costs.turn_ns;
    begins = std::max({begins, ended_at_ == 0 ? 0 : ended_at_ + turn, met_at_[bodies_ % 2]});
    if (begins > now) machine().work(begins - now);
    Hands& hands = machine().hands();  // the gate is with the next tile from now on
    hands.gate = explorer.own_time();
    hands.own = nullptr;
  }
  /// After a body.
  void wind_up(const wire::RunFrame& frame, const wire::OpParams& op, u32 tile) {
    if (!machine().side_by_side()) return;
    const auto* signals = worker::frame_at<wire::SignalParams>(frame, frame.signals) + op.signal_first;
    const wire::TileCoord coord = wire::tile_coord(op.grid, tile);
    for (u32 i = 0; i < op.signal_count; ++i) {
      machine().will_add(reinterpret_cast<const u32*>(frame.events) + wire::signal_event(signals[i], coord), signals[i].total);
    }
    machine().hands().unheard = !is_heard(frame, op);
    machine().signal_for(0);
    met_at_[bodies_++ % 2] = machine().hands().signal;
    machine().signal_for(machine().hands().unheard ? 0 : context_.costs.end_ns);
    if (op.report >= 0) machine().post_for(context_.costs.report_ns);
    ended_at_ = machine().explorer().own_time();
    may_join_ = machine().hands().unheard && op.report < 0 ? &frame : nullptr;
  }

 private:
  /// Whether an op of the run waits for an event of this one; most often the next does.
  static bool is_heard(const wire::RunFrame& frame, const wire::OpParams& op) {
    const auto* ops = worker::frame_at<wire::OpParams>(frame, frame.ops);
    const auto* waits = worker::frame_at<wire::WaitParams>(frame, frame.waits);
    const auto* signals = worker::frame_at<wire::SignalParams>(frame, frame.signals) + op.signal_first;
    for (u32 o = static_cast<u32>(&op - ops) + 1; o < frame.op_count; ++o) {
      for (u32 w = ops[o].wait_first; w < ops[o].wait_first + ops[o].wait_count; ++w) {
        for (u32 i = 0; i < op.signal_count; ++i) {
          if (waits[w].event_first - signals[i].event_first < signals[i].event_count) return true;
        }
      }
    }
    return false;
  }

  static constexpr Nanos kAhead = 4;  // tiles that are staged while one waits
  static constexpr u32 kStrand = 8;   // tiles whose records are opened together, beyond which none are joined

  const SimWorker& context_;
  u32 index_;
  Nanos staged_at_ = 0;     // the slowest stage is through with the last tile
  Nanos ended_at_ = 0;      // the last body
  Nanos met_at_[2] = {};    // bodies whose end the signalling hand has met: the last two
  u32 bodies_ = 0;
  const wire::RunFrame* may_join_ = nullptr;  // the run of the last body, if nobody waits for it
  u32 strand_ = 0;                            // tiles joined to the first of a strand
};

template <class AtomsType>
class SimPlatform : public worker::OneControlLane {
 public:
  using Lanes = SimLanes;
  using Atoms = AtomsType;
  static constexpr bool kPipelined = false;
  static constexpr bool kStagesOps = false;
  static constexpr u32 kPollSlots = 8;

  SimPlatform(const SimWorker& context, u32 index) : context_(context), lanes_(context, index) {}

  Lanes& lanes() { return lanes_; }
  Atoms atoms() const { return Atoms{context_.machine}; }
  worker::WorkerShared<kPollSlots>& shared() { return shared_; }
  u64 now_ns() const { return context_.machine->clock(); }
  /// One access fetches all slots that are looked at, as a warp's does.
  u32 poll(const wire::Task* inbox, u32 mask, u32 position) {
    u32 count = 0;
    while (count < kPollSlots) {
      const wire::Task* slot = inbox + ((position + count) & mask);
      const wire::SlotWords words = count == 0 ? atoms().load_slot_acquire(slot) : atoms().look_at_slot_acquire(slot);
      if (wire::slot_seq(words) != wire::ring_seq(position + count)) break;
      shared_.staged[count++] = wire::from_words<wire::Task>(words);
    }
    const u64* first = reinterpret_cast<const u64*>(inbox + (position & mask));
    if (count > 0) lanes_.found_tasks(context_.machine->memory().changed_at(first + 1));
    return count;
  }

  void relax(u32 spins) const { wait(context_.costs.spin_ns, spins); }
  bool idle(u32 misses) {
    wait(context_.costs.poll_ns, misses);
    return context_.costs.longest_ns != 0 && misses > kNapsFrom;
  }
  /// Who waits for records is woken when the record can be seen.
  void posted() const {
    Machine& machine = *context_.machine;
    if (*context_.scheduler == Explorer::kNobody) return;
    machine.explorer().wake(*context_.scheduler, machine.memory().settled(machine.explorer().self()));
  }

 private:
  static constexpr u32 kNapsFrom = 4;  // empty looks before a sleep counts as one: then the worker looks at its line each time

  // Longer and longer, unless something changes: looks in between would find nothing.
  void wait(Nanos shortest, u32 turns) const {
    const StageCosts& costs = context_.costs;
    if (costs.longest_ns == 0) return context_.machine->work(shortest);
    const Nanos most = shortest << (turns < 12 ? turns : 12);
    context_.machine->wait_for_change(most < costs.longest_ns ? most : costs.longest_ns);
  }

  const SimWorker& context_;
  Lanes lanes_;
  worker::WorkerShared<kPollSlots> shared_{};
};

/// Bodies with their time: what the worker loop takes as Ops. `Bodies` need only run().
template <class Bodies>
struct TimedOps {
  static wire::FaultCode run(SimLanes& lanes, const wire::RunFrame& frame, const wire::OpParams& op, u32 tile) {
    BodyWatch* watch = lanes.watch();
    lanes.pace(frame, op);
    if (watch != nullptr) lanes.machine().work(watch->begin(lanes.worker(), frame, op, tile));
    auto fault = static_cast<wire::FaultCode>(worker::run_op_body<Bodies>(lanes, frame, op, tile));
    if (watch != nullptr) {
      const u32 injected = watch->end(lanes.worker(), frame, op, tile);
      if (fault == wire::FaultCode::none) fault = static_cast<wire::FaultCode>(injected);
    }
    lanes.wind_up(frame, op, tile);
    return fault;
  }
};

/// The body of a worker's fiber; `context` is a SimWorker.
template <class Atoms, class Bodies>
void sim_worker_main(const wire::WorkerParams* params, u32 index, void* context) {
  SimPlatform<Atoms> platform(*static_cast<const SimWorker*>(context), index);
  Hands& hands = platform.lanes().machine().hands();
  hands.inbox = reinterpret_cast<const u64*>(wire::inbox_of(*params, index));
  hands.inbox_end = hands.inbox + u64{params->inbox_slots} * sizeof(wire::Task) / sizeof(u64);
  worker::WorkerLoop<SimPlatform<Atoms>, TimedOps<Bodies>> loop(platform, *params, index);
  loop.run();
}

}  // namespace ccks::gpu::sim
