// Deliberate bugs in the protocol, one at a time. MutantAtoms is what a broken ring, event or worker would do with the same
// memory; with Mutation::none it is SimAtoms. The list in mutant.cpp says what each is; every one has to be caught.
#pragma once

#include <array>
#include <cstddef>
#include <string_view>

#include "ccks/wire/control.hpp"
#include "gpu/sim/atoms.hpp"

namespace ccks::test::sim {

using gpu::sim::Order;
using gpu::sim::SimAtoms;
using wire::u32;
using wire::u64;

enum class Mutation : u32 {
  none,
  task_slot_relaxed,
  record_slot_relaxed,
  report_record_relaxed,
  task_slot_read_relaxed,
  record_slot_read_relaxed,
  record_slot_torn,
  event_add_relaxed,
  event_read_relaxed,
  event_reread_relaxed,
  event_add_lost,
  event_add_twice,
  sequence_ahead,
  sequence_wraps_early,
  sequence_unchecked,
  credit_ahead,
  credit_ignored,
  done_count_ahead,
  done_count_behind,
  task_epoch_behind,
  task_tile_beyond,
  record_lost,
  report_words_late,
  relaunch_loses_task,
  relaunch_repeats_task,
  relaunch_forgets_tiles,
  relaunch_forgets_list,
  relaunch_rewrites_record,
  guard_ignored,
  wait_ignored,
  signal_elsewhere,
  wait_for_too_few,
  verdict_lost,
  verdict_turned,
  turn_ignored,
  credit_twice,
  count,
};
inline constexpr std::size_t kMutations = static_cast<std::size_t>(Mutation::count);

struct MutationText {
  const char* name;
  const char* what;
};
const MutationText& text_of(Mutation mutation);

/// The bug of all simulations of this process.
struct Mutant {
  static inline Mutation active = Mutation::none;
  static inline wire::WorkerParams params{};  // where the rings and lines lie
  static inline bool resumes = false;         // workers that are launched now have been launched before
  static bool is(Mutation m) { return active == m; }
  static void break_frame(std::byte* frame);  // the bugs that lie in frames
};

struct MutantAtoms {
  gpu::sim::Machine* machine = nullptr;

  wire::SlotWords load_slot_acquire(const void* slot) const {
    return unchecked(atoms().load_slot(slot, read_order()), slot);
  }
  wire::SlotWords look_at_slot_acquire(const void* slot) const {
    return unchecked(atoms().look_at_slot(slot, read_order()), slot);
  }
  void store_slot_release(void* slot, const wire::SlotWords& value) const { store_slot(slot, value, Order::release); }
  void store_slot_release_device(void* slot, const wire::SlotWords& value) const { store_slot_release(slot, value); }
  void store_slot_relaxed(void* slot, const wire::SlotWords& value) const {
    store_slot(slot, value, device() ? Order::relaxed : Order::release);
  }

  u32 link_load_acquire(const u32* word) const {
    const u32 value = atoms().link_load_acquire(word);
    if (Mutant::is(Mutation::credit_ignored) && is_credit(word)) return value + Mutant::params.outbox_slots;
    return value;
  }
  u32 link_load_relaxed(const u32* word) const { return resumed(word, atoms().link_load_relaxed(word)); }
  u64 link_load_relaxed(const u64* word) const { return atoms().link_load_relaxed(word); }
  void link_store_release(u32* word, u32 value) const {
    if (Mutant::is(Mutation::credit_ahead) && is_credit(word)) value += Mutant::params.outbox_slots / 2;
    atoms().link_store_release(word, value);
  }
  void link_store_relaxed(u32* word, u32 value) const;
  void link_store_relaxed(u64* word, u64 value) const { atoms().link_store_relaxed(word, value); }

  u32 event_load_acquire(const u32* event) const {
    const bool again = Mutant::is(Mutation::event_reread_relaxed) && looked_again(event);
    if (again || Mutant::is(Mutation::event_read_relaxed)) return atoms().event_load_relaxed(event);
    return atoms().event_load_acquire(event);
  }
  u32 event_load_relaxed(const u32* event) const { return atoms().event_load_relaxed(event); }
  void event_add_release(u32* event, u32 count) const;
  void event_add_relaxed(u32* event, u32 count) const { atoms().event_add_relaxed(event, count); }

  u32 queue_add_relaxed(u32* word, u32 count) const { return atoms().queue_add_relaxed(word, count); }
  u32 queue_add_acq_rel(u32* word, u32 count) const { return atoms().queue_add_acq_rel(word, count); }
  u64 queue_load_relaxed(const u64* entry) const { return atoms().queue_load_relaxed(entry); }
  u64 queue_load_acquire(const u64* entry) const { return atoms().queue_load_acquire(entry); }
  void queue_store_release(u64* entry, u64 value) const { atoms().queue_store_release(entry, value); }
  void queue_store_relaxed(u64* entry, u64 value) const { atoms().queue_store_relaxed(entry, value); }

 private:
  static inline std::array<const u32*, 64> looked_at{};  // per agent, the event it has looked at last

  bool looked_again(const u32* event) const {
    const u32*& last = looked_at[machine->explorer().self() % looked_at.size()];
    const bool again = last == event;
    last = event;
    return again;
  }
  SimAtoms atoms() const { return SimAtoms{machine}; }
  bool device() const { return machine->explorer().side() == gpu::sim::Side::device; }
  bool now_and_then() const { return machine->explorer().random().chance(32); }
  Order read_order() const {
    const Mutation weak = device() ? Mutation::task_slot_read_relaxed : Mutation::record_slot_read_relaxed;
    return Mutant::is(weak) ? Order::relaxed : Order::acquire;
  }
  static bool is_credit(const u32* word);
  wire::SlotWords unchecked(wire::SlotWords words, const void* slot) const;
  u32 resumed(const u32* word, u32 value) const;
  void store_slot(void* slot, wire::SlotWords value, Order order) const;
  void store_record(void* slot, wire::SlotWords value, Order order) const;
  void store_task(void* slot, wire::SlotWords value, Order order) const;
};

}  // namespace ccks::test::sim
