// SimAtoms: the accesses of wire/ring.hpp and wire/event.hpp, each a scheduling point of a simulation. Names as in
// wire/atoms.hpp; what each order means is in memory.hpp. A slot is one 16-byte word for the device, two halves for the host,
// as they are on the machines.
#pragma once

#include "ccks/wire/ring.hpp"
#include "gpu/sim/machine.hpp"

namespace ccks::gpu::sim {

using wire::u32;
using wire::u64;

/// `machine` must outlive it. Accesses are made by the agent that runs.
struct SimAtoms {
  Machine* machine = nullptr;

  /// [R2] pairs with [R1].
  wire::SlotWords load_slot_acquire(const void* slot) const { return load_slot(slot, Order::acquire); }
  /// [R1] pairs with [R2].
  void store_slot_release(void* slot, const wire::SlotWords& value) const { store_slot(slot, value, Order::release); }
  /// [R5] pairs with [R2]. The simulated links know no scopes.
  void store_slot_release_device(void* slot, const wire::SlotWords& value) const { store_slot_release(slot, value); }
  void store_slot_relaxed(void* slot, const wire::SlotWords& value) const {
    store_slot(slot, value, device() ? Order::relaxed : Order::release);
  }
  /// A slot beside one that has just been loaded: the same access has fetched it. [R2]
  wire::SlotWords look_at_slot_acquire(const void* slot) const { return look_at_slot(slot, Order::acquire); }

  u32 link_load_acquire(const u32* word) const { return load32(word, Order::acquire); }  // [R4] pairs with [R3]
  u32 link_load_relaxed(const u32* word) const { return load32(word, Order::relaxed); }
  u64 link_load_relaxed(const u64* word) const { return machine->load_link_wide(word, Order::relaxed); }
  void link_store_release(u32* word, u32 value) const { machine->store_link(word, 4, value, Order::release); }  // [R3]
  void link_store_relaxed(u32* word, u32 value) const { machine->store_link(word, 4, value, Order::relaxed); }
  void link_store_relaxed(u64* word, u64 value) const { machine->store_link(word, 8, value, Order::relaxed); }

  u32 event_load_acquire(const u32* event) const { return event32(event, Order::acquire); }  // [E2] pairs with [E1]
  u32 event_load_relaxed(const u32* event) const { return event32(event, Order::relaxed); }
  void event_add_release(u32* event, u32 count) const { machine->add_event(event, count, Order::release); }  // [E1]
  void event_add_relaxed(u32* event, u32 count) const { machine->add_event(event, count, Order::relaxed); }

  u32 queue_add_relaxed(u32* word, u32 count) const { return machine->exchange_add(word, count, Order::relaxed); }
  u32 queue_add_acq_rel(u32* word, u32 count) const { return machine->exchange_add(word, count, Order::release); }
  u64 queue_load_relaxed(const u64* entry) const { return machine->load_device(entry, 8, Order::relaxed); }
  u64 queue_load_acquire(const u64* entry) const { return machine->load_device(entry, 8, Order::acquire); }
  void queue_store_release(u64* entry, u64 value) const { machine->store_device(entry, 8, value, Order::release); }
  void queue_store_relaxed(u64* entry, u64 value) const { machine->store_device(entry, 8, value, Order::relaxed); }

  // For those that break the protocol on purpose, too.
  wire::SlotWords load_slot(const void* slot, Order order) const {
    machine->begin_link_load();
    const wire::SlotWords out = look_at_slot(slot, order);
    machine->end_link_load(static_cast<const u64*>(slot) + 1);
    return out;
  }
  wire::SlotWords look_at_slot(const void* slot, Order order) const {
    const u64* halves = static_cast<const u64*>(slot);
    wire::SlotWords out;
    out.high = machine->look(halves + 1, 8, order);
    out.low = machine->look(halves, 8, device() ? order : Order::relaxed);
    return out;
  }
  void store_slot(void* slot, const wire::SlotWords& value, Order order) const {
    u64* halves = static_cast<u64*>(slot);
    machine->begin_link_store(order);
    if (device()) {
      const Nanos delay = machine->link_delay(order);
      machine->put_link(halves, 8, value.low, order, delay);
      machine->put_link(halves + 1, 8, value.high, order, delay);
      return;
    }
    machine->put_link(halves, 8, value.low, Order::relaxed, machine->link_delay(Order::relaxed));
    machine->put_link(halves + 1, 8, value.high, order, machine->link_delay(order));
  }

 private:
  bool device() const { return machine->explorer().side() == Side::device; }
  u32 load32(const u32* word, Order order) const { return static_cast<u32>(machine->load_link(word, 4, order)); }
  u32 event32(const u32* event, Order order) const { return static_cast<u32>(machine->load_event(event, order)); }
};

/// The clock of the agent that asks.
struct SimClock {
  Machine* machine = nullptr;
  u64 now_ns() const { return machine->clock(); }
};

}  // namespace ccks::gpu::sim
