// SlotStack: the free slots, the one let go last on top. Any number of threads push and pop. No lock, no allocation after construction.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <vector>

namespace ccks::scheduler {

/// A slot is here or with whoever has popped it, never twice. The top carries a count of changes, so that one which has gone and come back
/// in the middle of a pop is seen.
///
/// Memory ordering
///   top    who pushes [S1] hands over what it did with the slot to who pops [S2]
///   next   relaxed: read from a slot that may be popped meanwhile; the exchange of the top then fails
class SlotStack {
 public:
  /// Of slots 0 to `slots` - 1; empty.
  explicit SlotStack(std::size_t slots) : next_(slots) {}

  void push(std::uint32_t slot) {
    std::uint64_t top = top_.load(std::memory_order_relaxed);  // relaxed: the exchange says whether it is still so
    do {
      next_[slot].store(static_cast<std::uint32_t>(top), std::memory_order_relaxed);  // relaxed: published by [S1]
      // [S1] release: pairs with [S2]. relaxed where it fails: tried again.
    } while (!top_.compare_exchange_weak(top, changed(top, slot + 1), std::memory_order_release, std::memory_order_relaxed));
  }

  /// False if there is none.
  bool pop(std::uint32_t& slot) {
    std::uint64_t top = top_.load(std::memory_order_acquire);  // [S2] acquire: pairs with [S1]
    for (;;) {
      const auto above = static_cast<std::uint32_t>(top);
      if (above == 0) return false;
      const std::uint32_t below = next_[above - 1].load(std::memory_order_relaxed);  // relaxed: see next
      // [S2] acquire, both: pairs with [S1]; the acquire of a push is carried on by the pops and pushes behind it, which exchange the same word.
      if (top_.compare_exchange_weak(top, changed(top, below), std::memory_order_acquire, std::memory_order_acquire)) {
        slot = above - 1;
        return true;
      }
    }
  }

 private:
  static std::uint64_t changed(std::uint64_t top, std::uint32_t to) { return ((top >> 32) + 1) << 32 | to; }

  std::vector<std::atomic<std::uint32_t>> next_;  // per slot: the one below it, + 1; 0: none
  alignas(64) std::atomic<std::uint64_t> top_{0};  // the number of changes, then the slot on top + 1; 0: none
};

}  // namespace ccks::scheduler
