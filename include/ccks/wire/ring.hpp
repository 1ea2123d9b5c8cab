// Single-producer, single-consumer rings of 16-byte slots that prove themselves. Inboxes (Task) and outboxes (Record)
// are such rings; they live in link memory, zeroed before first use, and outlive every launch.
//
// Position p counts slots since the ring was made and wraps at 2^32. It lies in slot p & (capacity - 1) and carries
// seq = p + 1, so a slot is new for a consumer at p if and only if its seq is p + 1. No index crosses the link.
//
// Memory ordering
//   slot    written by the producer [R1], read by the consumer [R2], system scope
//   count   slots consumed so far; written by the consumer [R3], read by the producer [R4]. For an outbox this is
//           HostLine::outbox_consumed; for an inbox it is implied by the done record of the task, itself a slot [R1, R2]
//   Invariant  whatever the producer wrote before it published slot p (run frames, inputs, reports) is visible to a
//              consumer that has seen seq p + 1; a slot is not written again before its consumer has read it.
//   verdict on a task that was sent as a draft (task.hpp): the producer rewrites the slot with other flags, the consumer looks at its
//           upper half. Relaxed on both sides: flags publish nothing but themselves
//   [R1] Atoms::store_slot_release: release   -> pairs with [R2]
//        Atoms::store_slot_relaxed: for a slot that publishes nothing but itself
//   [R5] Atoms::store_slot_release_device: release of what lies in the device's own memory -> pairs with [R2] of whoever reads
//        that memory after the host has seen the slot: a worker that the host has told of it, a copy that it starts
//   [R2] Atoms::load_slot_acquire: acquire    -> pairs with [R1], [R5]
//   [R3] Atoms::link_store_release            -> pairs with [R4]
//   [R4] Atoms::link_load_acquire             -> pairs with [R3]
//
// An Atoms type is a small copyable value (so a simulator may carry a pointer in it) with
//   SlotWords load_slot_acquire(const void* slot), void store_slot_release(void*, SlotWords), store_slot_release_device,
//   store_slot_relaxed
//   u32 link_load_acquire(const u32*), link_load_relaxed(const u32*), u64 link_load_relaxed(const u64*)
//   void link_store_release(u32*, u32), link_store_relaxed(u32*, u32), link_store_relaxed(u64*, u64)
//   u32 event_load_acquire(const u32*), void event_add_release(u32*, u32)        [see event.hpp]
#pragma once

#include "ccks/wire/task.hpp"

namespace ccks::wire {

/// The two halves of a slot. The upper half of `high` is the sequence number.
struct SlotWords {
  u64 low = 0;
  u64 high = 0;
};

inline namespace CCKS_ISA {

CCKS_HD constexpr u32 slot_seq(const SlotWords& words) { return static_cast<u32>(words.high >> 32); }
CCKS_HD constexpr u32 ring_seq(u32 position) { return position + 1; }

// Byte for byte the layout of Task and Record on a little-endian machine.
CCKS_HD constexpr SlotWords pack_slot(u32 first, u32 second, u16 third, u16 fourth, u32 seq) {
  return {first | static_cast<u64>(second) << 32,
          static_cast<u64>(third) | static_cast<u64>(fourth) << 16 | static_cast<u64>(seq) << 32};
}
CCKS_HD constexpr SlotWords to_words(const Task& t) { return pack_slot(t.tile, t.epoch, t.op, t.slot_flags, t.seq); }
CCKS_HD constexpr SlotWords to_words(const Record& r) { return pack_slot(r.value, r.epoch, r.op, r.slot_kind, r.seq); }

/// from_words fills `out` with the four fields; works for Task and Record, which share one shape.
template <class T>
CCKS_HD constexpr T from_words(const SlotWords& w) {
  return T{static_cast<u32>(w.low), static_cast<u32>(w.low >> 32), static_cast<u16>(w.high),
           static_cast<u16>(w.high >> 16), slot_seq(w)};
}

/// RingWriter writes slots one by one and knows nothing of credit: the caller has checked that there is room.
template <class T, class Atoms>
class RingWriter {
 public:
  RingWriter() = default;
  /// `slots` must outlive the writer; `capacity` is a power of two; `position` is where an earlier writer stopped.
  CCKS_HD_ANY RingWriter(T* slots, u32 capacity, u32 position, Atoms atoms = {})
      : slots_(slots), mask_(capacity - 1), position_(position), atoms_(atoms) {}

  /// [R1] release: what this thread wrote before is visible to whoever reads the slot in [R2].
  CCKS_HD_ANY void put_release(T item) {
    item.seq = ring_seq(position_);
    atoms_.store_slot_release(&slots_[position_++ & mask_], to_words(item));
  }
  /// [R5] release: what this thread wrote into the device's memory is there before the slot; nothing is said of link memory.
  CCKS_HD_ANY void put_release_device(T item) {
    item.seq = ring_seq(position_);
    atoms_.store_slot_release_device(&slots_[position_++ & mask_], to_words(item));
  }
  /// `count` items with one call, each with a first field `step` and a third field `third_step` higher than those of the one
  /// before. [R1] as put_release.
  CCKS_HD_ANY void put_run_release(const T& item, u32 count, u32 step, u32 third_step = 0) {
    SlotWords words = to_words(item);
    u64 rest = words.high & 0xffffffffu;
    for (u32 end = position_ + count; position_ != end; ++position_) {
      words.high = rest | static_cast<u64>(ring_seq(position_)) << 32;
      atoms_.store_slot_release(&slots_[position_ & mask_], words);
      words.low += step;
      rest += third_step;
    }
  }
  /// Writes the item at `position` again, which its consumer still holds, with other flags. Relaxed: they publish nothing else.
  CCKS_HD_ANY void put_verdict_relaxed(T item, u32 position) {
    item.seq = ring_seq(position);
    atoms_.store_slot_relaxed(&slots_[position & mask_], to_words(item));
  }
  /// Relaxed is enough where the slot publishes nothing but its own 16 bytes.
  CCKS_HD_ANY void put_relaxed(T item) {
    item.seq = ring_seq(position_);
    atoms_.store_slot_relaxed(&slots_[position_++ & mask_], to_words(item));
  }
  /// Follows another writer of the same ring that has put one item: lanes that replicate the leader's state.
  CCKS_HD_ANY void skip() { ++position_; }
  CCKS_HD_ANY u32 position() const { return position_; }
  CCKS_HD_ANY u32 capacity() const { return mask_ + 1; }
  /// Where the next item goes: for prefetching.
  CCKS_HD_ANY const T* next_slot() const { return &slots_[position_ & mask_]; }

 private:
  T* slots_ = nullptr;
  u32 mask_ = 0;
  u32 position_ = 0;
  Atoms atoms_{};
};

/// RingConsumer reads slots in order. One thread.
template <class T, class Atoms>
class RingConsumer {
 public:
  RingConsumer() = default;
  CCKS_HD_ANY RingConsumer(const T* slots, u32 capacity, u32 position, Atoms atoms = {})
      : slots_(slots), mask_(capacity - 1), position_(position), atoms_(atoms) {}

  /// Takes the next slot if it has arrived. [R2] acquire.
  CCKS_HD_ANY bool poll(T& out) {
    const SlotWords words = atoms_.load_slot_acquire(&slots_[position_ & mask_]);
    if (slot_seq(words) != ring_seq(position_)) return false;
    out = from_words<T>(words);
    ++position_;
    return true;
  }
  /// Takes up to `max` slots; returns how many.
  CCKS_HD_ANY u32 poll_many(T* out, u32 max) {
    u32 count = 0;
    while (count < max && poll(out[count])) ++count;
    return count;
  }
  /// Where the next slot will appear: for prefetching.
  CCKS_HD_ANY const T* next_slot() const { return &slots_[position_ & mask_]; }
  /// Slots taken so far: what the consumer stores for the producer's credit [R3].
  CCKS_HD_ANY u32 position() const { return position_; }

 private:
  const T* slots_ = nullptr;
  u32 mask_ = 0;
  u32 position_ = 0;
  Atoms atoms_{};
};

/// What a producer has put on the link (C5).
struct RingTraffic {
  u64 items = 0;         // slots published
  u64 publications = 0;  // calls of publish() that had something to write
  u64 link_writes = 0;   // 64-byte lines touched: what a write-combining link carries as one transfer
};

/// RingProducer collects items and publishes many at once. One thread; allocates nothing.
template <class T, class Atoms, u32 kBatch = 32>
class RingProducer {
 public:
  RingProducer() = default;
  /// Resumes at `position`, of which `consumed` have been read by the consumer (0, 0 for a new ring).
  CCKS_HD_ANY RingProducer(T* slots, u32 capacity, u32 position = 0, u32 consumed = 0, Atoms atoms = {})
      : writer_(slots, capacity, position, atoms), consumed_(consumed) {}

  /// Items pushed so far, published or not.
  CCKS_HD_ANY u32 position() const { return writer_.position() + staged_; }
  CCKS_HD_ANY u32 published() const { return writer_.position(); }
  CCKS_HD_ANY u32 capacity() const { return writer_.capacity(); }
  /// Items pushed and not yet known to be consumed.
  CCKS_HD_ANY u32 in_flight() const { return position() - consumed_; }
  CCKS_HD_ANY u32 room() const { return capacity() - in_flight(); }

  /// Tells the producer that the consumer has read `consumed` slots in all [R4]. Never goes back.
  CCKS_HD_ANY void credit(u32 consumed) {
    if (static_cast<i32>(consumed - consumed_) > 0) consumed_ = consumed;
  }
  /// The same for `count` more slots.
  CCKS_HD_ANY void credit_more(u32 count) { consumed_ += count; }

  /// Adds an item to the batch; false if the ring has no room. A full batch publishes itself.
  CCKS_HD_ANY bool push(const T& item) {
    if (room() == 0) return false;
    if (staged_ == kBatch) publish();
    batch_[staged_++] = item;
    return true;
  }

  /// Writes the batch to the ring [R1]; returns how many items that were. Every slot is a release: a consumer may act on
  /// the first before it sees the last. On x86 and over PCIe that costs nothing.
  CCKS_HD_ANY u32 publish() {
    const u32 count = staged_;
    if (count == 0) return 0;
    const u32 first = writer_.position();
    for (u32 i = 0; i < count; ++i) writer_.put_release(batch_[i]);
    staged_ = 0;
    traffic_.items += count;
    traffic_.publications += 1;
    traffic_.link_writes += lines_touched(first, count);
    return count;
  }
  CCKS_HD_ANY const RingTraffic& traffic() const { return traffic_; }

 private:
  static constexpr u32 kSlotsPerLine = 64 / sizeof(T);  // x86 line and write-combining buffer
  CCKS_HD_ANY static constexpr u32 lines_touched(u32 first, u32 count) {
    return (first % kSlotsPerLine + count + kSlotsPerLine - 1) / kSlotsPerLine;
  }

  RingWriter<T, Atoms> writer_;
  u32 consumed_ = 0;
  u32 staged_ = 0;
  T batch_[kBatch] = {};
  RingTraffic traffic_;
};

}  // namespace CCKS_ISA
}  // namespace ccks::wire
