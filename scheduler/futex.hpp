// Waiting for a word with a timeout, which std::atomic cannot. Linux futex; the waker pays one load if nobody waits.
#pragma once

#include <atomic>
#include <cstdint>

namespace ccks::scheduler {

/// Blocks while `word` holds `expected`, at most `timeout_ns`; may return early for no reason.
void futex_wait(std::atomic<std::uint32_t>& word, std::uint32_t expected, std::uint64_t timeout_ns);
/// Wakes everybody that waits for `word`.
void futex_wake_all(std::atomic<std::uint32_t>& word);

inline constexpr std::uint64_t kForever = ~std::uint64_t{0};

/// WaitWord is a word that one thread changes and others wait for. The waker makes no system call if nobody waits.
/// Race: waker changes the word [Q1] then reads the waiters [Q2]; waiter adds itself [Q3] then reads the word [Q4]. All
/// four are seq_cst, so that either the waker sees the waiter or the waiter sees the change.
class WaitWord {
 public:
  std::uint32_t load() const { return word_.load(std::memory_order_seq_cst); }  // [Q4] pairs with [Q1]
  void store(std::uint32_t value) {
    word_.store(value, std::memory_order_seq_cst);  // [Q1] pairs with [Q4]; also releases what it announces
    wake();
  }
  void add(std::uint32_t amount) {
    word_.fetch_add(amount, std::memory_order_seq_cst);  // [Q1]
    wake();
  }
  /// Sets a word that nobody waits for yet, or that only its owner looks at.
  void reset(std::uint32_t value) { word_.store(value, std::memory_order_relaxed); }
  /// Own or advisory reads: nothing is read on the strength of it.
  std::uint32_t peek() const { return word_.load(std::memory_order_relaxed); }

  /// Waits until `done(word)`; false if `timeout_ns` passed first.
  template <class Done>
  bool wait(Done done, std::uint64_t timeout_ns);

 private:
  void wake() {
    if (waiters_.load(std::memory_order_seq_cst) != 0) futex_wake_all(word_);  // [Q2] pairs with [Q3]
  }
  std::atomic<std::uint32_t> word_{0};
  std::atomic<std::uint32_t> waiters_{0};
};

std::uint64_t now_ns();  // steady clock

template <class Done>
bool WaitWord::wait(Done done, std::uint64_t timeout_ns) {
  std::uint32_t seen = load();
  if (done(seen)) return true;
  const std::uint64_t start = now_ns();
  waiters_.fetch_add(1, std::memory_order_seq_cst);  // [Q3] pairs with [Q2]
  bool finished = false;
  while (!(finished = done(seen = load()))) {
    const std::uint64_t spent = timeout_ns == kForever ? 0 : now_ns() - start;
    if (timeout_ns != kForever && spent >= timeout_ns) break;
    futex_wait(word_, seen, timeout_ns == kForever ? kForever : timeout_ns - spent);
  }
  waiters_.fetch_sub(1, std::memory_order_relaxed);  // a waker that still sees it makes one call too many
  return finished;
}

}  // namespace ccks::scheduler
