// BoundedQueue: a fixed ring of cells for many producers and many consumers. No lock, no allocation after construction.
#pragma once

#include <atomic>
#include <bit>
#include <cstdint>
#include <optional>
#include <vector>

namespace ccks::scheduler {

/// Each cell carries a turn: position p may be written when turn == p, read when turn == p + 1; reading makes it p + capacity.
/// A producer that is interrupted between its claim and its publication hides later items until it goes on; whoever waits
/// is woken after the publication, so nothing is lost by that. Positions wrap with 2^32.
///
/// Memory ordering
///   turn   written by producer [Q1] and consumer [Q3], read by consumer [Q2] and producer [Q4]
///   item   plain; its cell belongs to whoever holds the turn
template <class T>
class BoundedQueue {
 public:
  /// Holds at least `capacity` items.
  explicit BoundedQueue(std::size_t capacity) : cells_(std::bit_ceil(capacity < 2 ? std::size_t{2} : capacity)) {
    // relaxed: nobody else knows the queue yet.
    for (std::uint32_t i = 0; i < cells_.size(); ++i) cells_[i].turn.store(i, std::memory_order_relaxed);
  }

  /// False if the queue is full.
  bool push(const T& item) {
    const std::optional<std::uint32_t> position = claim(tail_, 0);
    if (!position) return false;
    Cell& cell = cells_[*position & mask()];
    cell.item = item;
    // [Q1] release: the item is in the cell for whoever acquires its turn in [Q2].
    cell.turn.store(*position + 1, std::memory_order_release);
    return true;
  }

  /// False if the queue is empty, or its oldest item is still being written.
  bool pop(T& item) {
    const std::optional<std::uint32_t> position = claim(head_, 1);
    if (!position) return false;
    Cell& cell = cells_[*position & mask()];
    item = cell.item;
    // [Q3] release: the item has been read before the producer of the next round acquires the turn in [Q4].
    cell.turn.store(*position + capacity(), std::memory_order_release);
    return true;
  }

 private:
  struct Cell {
    std::atomic<std::uint32_t> turn{0};
    T item{};
  };

  std::uint32_t capacity() const { return static_cast<std::uint32_t>(cells_.size()); }
  std::uint32_t mask() const { return capacity() - 1; }

  // Takes the next position of `end` once its cell shows position + `lead`; nothing if the cell is a round behind.
  std::optional<std::uint32_t> claim(std::atomic<std::uint32_t>& end, std::uint32_t lead) {
    // relaxed: a position is only a ticket; the turn of its cell orders the item.
    std::uint32_t position = end.load(std::memory_order_relaxed);
    for (;;) {
      // [Q2] acquire, for a consumer: pairs with [Q1]. [Q4] acquire, for a producer: pairs with [Q3].
      const std::uint32_t turn = cells_[position & mask()].turn.load(std::memory_order_acquire);
      const auto ahead = static_cast<std::int32_t>(turn - (position + lead));
      if (ahead < 0) return std::nullopt;
      // relaxed: as above; failure reloads the position.
      if (ahead == 0 && end.compare_exchange_weak(position, position + 1, std::memory_order_relaxed, std::memory_order_relaxed))
        return position;
      if (ahead > 0) position = end.load(std::memory_order_relaxed);  // relaxed: somebody else was first
    }
  }

  std::vector<Cell> cells_;
  alignas(64) std::atomic<std::uint32_t> tail_{0};
  alignas(64) std::atomic<std::uint32_t> head_{0};
};

}  // namespace ccks::scheduler
