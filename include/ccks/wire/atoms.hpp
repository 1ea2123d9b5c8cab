// HostAtoms: the accesses of ring.hpp and event.hpp for code that runs on a CPU, whichever side of the link it is.
// The only place of the host side that names std::atomic for words shared with workers.
#pragma once

#if !defined(__CUDACC_RTC__)

#include <atomic>

#include "ccks/wire/ring.hpp"

namespace ccks::wire {
inline namespace CCKS_ISA {

/// HostAtoms has no state. std::atomic_ref of u32 and u64 is lock-free on every machine we support, so it also holds
/// for memory shared with a GPU: aligned loads and stores are single accesses, and the CPU's release is a store order
/// that PCIe keeps.
struct HostAtoms {
  /// [R2] acquire on the half with seq; the other half is relaxed: it was written before seq and, by credit, is not
  /// written again before this read.
  static SlotWords load_slot_acquire(const void* slot) {
    const u64* words = static_cast<const u64*>(slot);
    SlotWords out;
    out.high = ref(words + 1).load(std::memory_order_acquire);
    out.low = ref(words).load(std::memory_order_relaxed);
    return out;
  }
  /// [R1] release on the half with seq: makes the other half, and all earlier writes, visible in [R2].
  static void store_slot_release(void* slot, const SlotWords& value) {
    u64* words = static_cast<u64*>(slot);
    ref(words).store(value.low, std::memory_order_relaxed);
    ref(words + 1).store(value.high, std::memory_order_release);
  }
  /// [R5] release: pairs with [R2]. A CPU's memory is all of one kind.
  static void store_slot_release_device(void* slot, const SlotWords& value) { store_slot_release(slot, value); }
  /// On the CPU a slot takes two stores, so even a slot that publishes only itself needs [R1].
  static void store_slot_relaxed(void* slot, const SlotWords& value) { store_slot_release(slot, value); }

  /// [R4] acquire: pairs with [R3].
  static u32 link_load_acquire(const u32* word) { return ref(word).load(std::memory_order_acquire); }
  /// Relaxed: for flags and heartbeats that publish nothing else.
  static u32 link_load_relaxed(const u32* word) { return ref(word).load(std::memory_order_relaxed); }
  static u64 link_load_relaxed(const u64* word) { return ref(word).load(std::memory_order_relaxed); }
  /// [R3] release: pairs with [R4].
  static void link_store_release(u32* word, u32 value) { ref(word).store(value, std::memory_order_release); }
  /// Relaxed: values that a later release publishes, or that publish nothing else.
  static void link_store_relaxed(u32* word, u32 value) { ref(word).store(value, std::memory_order_relaxed); }
  static void link_store_relaxed(u64* word, u64 value) { ref(word).store(value, std::memory_order_relaxed); }

  /// [E2] acquire: pairs with [E1].
  static u32 event_load_acquire(const u32* event) { return ref(event).load(std::memory_order_acquire); }
  /// Relaxed: looks that an acquiring one follows.
  static u32 event_load_relaxed(const u32* event) { return ref(event).load(std::memory_order_relaxed); }
  /// [E1] release: the tile's stores are visible to whoever sees the count in [E2]. Adds of several tiles form one
  /// release sequence, so a waiter that sees the target has acquired all of them.
  static void event_add_release(u32* event, u32 count) { ref(event).fetch_add(count, std::memory_order_release); }
  /// Relaxed: nothing was stored that a waiter could want to see (kOpSilent).
  static void event_add_relaxed(u32* event, u32 count) { ref(event).fetch_add(count, std::memory_order_relaxed); }

  /// Places of a ready queue: relaxed, its entries carry the order (worker/ready_queue.hpp).
  static u32 queue_add_relaxed(u32* word, u32 count) { return ref(word).fetch_add(count, std::memory_order_relaxed); }
  /// [QE1], [QE2] acq_rel: whoever completes a count has all that were added behind him.
  static u32 queue_add_acq_rel(u32* word, u32 count) { return ref(word).fetch_add(count, std::memory_order_acq_rel); }
  /// Relaxed: a look at an entry; what it says is used once [QE4] has acquired it.
  static u64 queue_load_relaxed(const u64* entry) { return ref(entry).load(std::memory_order_relaxed); }
  /// [QE4] acquire: pairs with [QE3].
  static u64 queue_load_acquire(const u64* entry) { return ref(entry).load(std::memory_order_acquire); }
  /// [QE3] release: pairs with [QE4].
  static void queue_store_release(u64* entry, u64 value) { ref(entry).store(value, std::memory_order_release); }
  /// Relaxed: an entry that publishes nothing but itself.
  static void queue_store_relaxed(u64* entry, u64 value) { ref(entry).store(value, std::memory_order_relaxed); }

 private:
  template <class T>
  static std::atomic_ref<T> ref(const T* word) {
    return std::atomic_ref<T>(*const_cast<T*>(word));  // C++20 has no atomic_ref<const T>; loads do not write
  }
};

}  // namespace CCKS_ISA
}  // namespace ccks::wire

#endif  // !__CUDACC_RTC__
