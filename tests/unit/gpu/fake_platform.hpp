// Platforms of tests. FakePlatform: one lane, a virtual clock, and a hook wherever the worker would wait, so that a test
// plays the host between any two steps. LanePlatform: several threads as the lanes of one worker, with the barriers and
// collectives of a thread block, so that the shape made for GPUs runs under ThreadSanitizer.
#pragma once

#include <barrier>
#include <functional>
#include <map>

#include "ccks/wire/atoms.hpp"
#include "ccks/worker/worker_loop.hpp"

namespace ccks::gpu::testing {

using wire::u32;
using wire::u64;

/// What the worker did to memory.
struct AccessCounts {
  u32 event_loads = 0;
  u32 slot_stores = 0;
  std::vector<std::pair<u32, u32>> event_adds;  // word offset from the first event, count
  u64 events = 0;                               // address of event 0
};

/// HostAtoms that count: a stateful Atoms, as a simulator has.
struct CountingAtoms : wire::HostAtoms {
  AccessCounts* counts = nullptr;
  void store_slot_release(void* slot, const wire::SlotWords& w) const {
    ++counts->slot_stores;
    HostAtoms::store_slot_release(slot, w);
  }
  void store_slot_release_device(void* slot, const wire::SlotWords& w) const { store_slot_release(slot, w); }
  void store_slot_relaxed(void* slot, const wire::SlotWords& w) const { store_slot_release(slot, w); }
  u32 event_load_acquire(const u32* event) const {
    ++counts->event_loads;
    return HostAtoms::event_load_acquire(event);
  }
  void event_add_release(u32* event, u32 count) const {
    counts->event_adds.emplace_back(static_cast<u32>((reinterpret_cast<u64>(event) - counts->events) / 4), count);
    HostAtoms::event_add_release(event, count);
  }
};

struct OneLane {
  static constexpr bool kSingleLane = true;
  u32 lane() const { return 0; }
  u32 lanes() const { return 1; }
  void sync() const {}
};

class FakePlatform : public worker::OneControlLane {
 public:
  using Lanes = OneLane;
  using Atoms = CountingAtoms;
  static constexpr bool kPipelined = false;
  static constexpr bool kStagesOps = false;
  static constexpr u32 kPollSlots = 4;

  std::function<void()> on_idle = [] {};   // the inbox is empty
  std::function<void()> on_relax = [] {};  // waiting for an event or for credit
  AccessCounts counts;
  u64 clock = 1000;

  Lanes& lanes() { return lanes_; }
  Atoms atoms() {
    Atoms atoms;
    atoms.counts = &counts;
    return atoms;
  }
  worker::WorkerShared<kPollSlots>& shared() { return shared_; }
  u64 now_ns() { return clock += 100; }
  u32 poll(const wire::Task* inbox, u32 mask, u32 position) {
    wire::RingConsumer<wire::Task, Atoms> ring(inbox, mask + 1, position, atoms());
    return ring.poll_many(shared_.staged, kPollSlots);
  }
  void relax(u32) { on_relax(); }
  bool idle(u32) { return on_idle(), true; }
  void posted() {}

 private:
  Lanes lanes_;
  worker::WorkerShared<kPollSlots> shared_{};
};

/// Memory of the lanes of one worker.
struct LaneGroup {
  static constexpr u32 kLanes = 6;
  static constexpr u32 kControl = 4;
  std::barrier<> all{kLanes};
  std::barrier<> control{kControl};
  u64 exchange[kControl] = {};
  float partial[kLanes] = {};
  worker::WorkerShared<kControl> shared{};
};

class ThreadLanes {
 public:
  static constexpr bool kSingleLane = false;
  ThreadLanes(LaneGroup& group, u32 lane) : group_(group), lane_(lane) {}
  u32 lane() const { return lane_; }
  u32 lanes() const { return LaneGroup::kLanes; }
  void sync() { group_.all.arrive_and_wait(); }
  float sum(float v) {
    group_.partial[lane_] = v;
    sync();
    float total = 0;
    for (const float p : group_.partial) total += p;
    sync();
    return total;
  }

 private:
  LaneGroup& group_;
  u32 lane_;
};

/// The lanes 0 to kControl - 1 of a LaneGroup are its control lanes.
class LanePlatform {
 public:
  using Lanes = ThreadLanes;
  using Atoms = wire::HostAtoms;
  static constexpr bool kPipelined = false;
  static constexpr bool kStagesOps = false;
  static constexpr u32 kPollSlots = LaneGroup::kControl;

  LanePlatform(LaneGroup& group, u32 lane) : group_(group), lane_(lane), lanes_(group, lane) {}
  Lanes& lanes() { return lanes_; }
  Atoms atoms() const { return {}; }
  worker::WorkerShared<kPollSlots>& shared() { return group_.shared; }
  u64 now_ns() {
    return uniform(static_cast<u64>(std::chrono::steady_clock::now().time_since_epoch().count()));
  }
  bool control() const { return lane_ < LaneGroup::kControl; }
  bool leader() const { return lane_ == 0; }
  u32 control_lane() const { return lane_; }
  static constexpr u32 control_lanes() { return LaneGroup::kControl; }
  template <class T>
  T uniform(T v) { return static_cast<T>(from(static_cast<u64>(v), 0)); }
  u32 from_lane(u32 v, u32 lane) { return static_cast<u32>(from(v, lane)); }
  bool stores() const { return leader(); }
  bool any_lane(bool here) { return first_lane(here) != control_lanes(); }
  u32 first_lane(bool here) {
    group_.exchange[lane_] = here;
    converge();
    u32 first = 0;
    while (first < LaneGroup::kControl && group_.exchange[first] == 0) ++first;
    converge();
    return first;
  }
  u32 count_lanes(bool here, u32& rank) {
    group_.exchange[lane_] = here;
    converge();
    u32 count = rank = 0;
    for (u32 lane = 0; lane < LaneGroup::kControl; ++lane) {
      if (lane == lane_) rank = count;
      count += group_.exchange[lane] != 0 ? 1 : 0;
    }
    converge();
    return count;
  }
  void converge() { group_.control.arrive_and_wait(); }
  u32 poll(const wire::Task* inbox, u32 mask, u32 position) {
    const u32 mine = position + lane_;
    const wire::SlotWords words = Atoms::load_slot_acquire(&inbox[mine & mask]);
    const u32 count = first_lane(wire::slot_seq(words) != wire::ring_seq(mine));
    if (lane_ < count) group_.shared.staged[lane_] = wire::from_words<wire::Task>(words);
    converge();
    return count;
  }
  void relax(u32) const { std::this_thread::yield(); }
  bool idle(u32) const { return std::this_thread::yield(), false; }
  static void posted() {}

 private:
  u64 from(u64 v, u32 lane) {
    group_.exchange[lane_] = v;
    converge();
    const u64 out = group_.exchange[lane];
    converge();
    return out;
  }
  LaneGroup& group_;
  u32 lane_;
  Lanes lanes_;
};

}  // namespace ccks::gpu::testing
