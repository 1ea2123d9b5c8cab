#include "gpu/bell.hpp"

#include <linux/futex.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

namespace ccks::gpu {
namespace {

// A worker asleep looks at its line this often even if nobody rings: heartbeat and idle limits are far longer.
constexpr std::uint64_t kWorkerSleepNs = 20'000'000;

}  // namespace

void Sleeper::wait(std::uint64_t timeout_ns) {
  timespec timeout{};
  timeout.tv_sec = static_cast<time_t>(timeout_ns / 1'000'000'000);
  timeout.tv_nsec = static_cast<long>(timeout_ns % 1'000'000'000);
  // Returns at once if the word is no longer 1. Any other return is a wake-up, a signal or the time: all mean "look again".
  syscall(SYS_futex, &asleep_, FUTEX_WAIT_PRIVATE, 1u, &timeout, nullptr, 0);
}

void Sleeper::wake_slow() { syscall(SYS_futex, &asleep_, FUTEX_WAKE_PRIVATE, 1, nullptr, nullptr, 0); }

Bells::Bells(std::uint32_t workers)
    : count_(workers), workers_(new Worker[workers]), seen_(new std::uint32_t[workers + 1]()) {
  for (std::uint32_t i = 0; i < workers; ++i) workers_[i].bells = this;
}

void Bells::ring_worker(std::uint32_t index) {
  Worker& worker = workers_[index];
  worker.rung.count.fetch_add(1, std::memory_order_seq_cst);  // [B3] pairs with [B2]
  worker.sleeper.wake();
}

void Bells::ring_scheduler() {
  clients_.count.fetch_add(1, std::memory_order_seq_cst);  // [B3] pairs with [B2]
  scheduler_.wake();
}

bool Bells::worker_sleep(void* argument) {
  Worker& worker = *static_cast<Worker*>(argument);
  return worker.sleeper.sleep(kWorkerSleepNs, [&worker] {
    const std::uint32_t rung = worker.rung.count.load(std::memory_order_seq_cst);  // [B2] pairs with [B3]
    const bool moved = rung != worker.rung_seen;
    worker.rung_seen = rung;
    return moved;
  });
}

void Bells::worker_posted(void* argument) {
  Worker& worker = *static_cast<Worker*>(argument);
  worker.posted.count.fetch_add(1, std::memory_order_seq_cst);  // [B3] pairs with [B2]
  worker.bells->scheduler_.wake();
}

bool Bells::scheduler_has_news() {
  bool moved = false;
  for (std::uint32_t i = 0; i <= count_; ++i) {
    const std::atomic<std::uint32_t>& word = i < count_ ? workers_[i].posted.count : clients_.count;
    const std::uint32_t count = word.load(std::memory_order_seq_cst);  // [B2] pairs with [B3]
    moved = moved || count != seen_[i];
    seen_[i] = count;
  }
  return moved;
}

void Bells::scheduler_wait(std::uint64_t timeout_ns) {
  scheduler_.sleep(timeout_ns, [this] { return scheduler_has_news(); });
}

}  // namespace ccks::gpu
