// Supervisor: a thread that looks at a counter, and does something when it stands still.
#pragma once

#include <functional>
#include <thread>

#include "scheduler/futex.hpp"

namespace ccks::scheduler {

/// Looks kLooks times in `limit_ns`; when so many looks in a row have seen the same, calls `silent`. A process that was stopped has missed
/// looks, not made them, so its time does not count.
class Supervisor {
 public:
  Supervisor(std::uint64_t limit_ns, std::function<std::uint64_t()> counter, std::function<void()> silent);
  ~Supervisor();
  Supervisor(const Supervisor&) = delete;
  Supervisor& operator=(const Supervisor&) = delete;

 private:
  static constexpr std::uint32_t kLooks = 8;
  void main();

  std::uint64_t pause_ns_;
  std::function<std::uint64_t()> counter_;
  std::function<void()> silent_;
  WaitWord over_;
  std::thread thread_;
};

}  // namespace ccks::scheduler
