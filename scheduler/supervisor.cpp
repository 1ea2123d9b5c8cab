#include "scheduler/supervisor.hpp"

#include <pthread.h>

namespace ccks::scheduler {

Supervisor::Supervisor(std::uint64_t limit_ns, std::function<std::uint64_t()> counter, std::function<void()> silent)
    : pause_ns_(limit_ns / kLooks + 1), counter_(std::move(counter)), silent_(std::move(silent)), thread_([this] { main(); }) {}

Supervisor::~Supervisor() {
  over_.store(1);
  thread_.join();
}

void Supervisor::main() {
  pthread_setname_np(pthread_self(), "ccks-supervisor");
  std::uint64_t last = counter_();
  std::uint32_t same = 0;
  while (!over_.wait([](std::uint32_t stop) { return stop != 0; }, pause_ns_)) {
    const std::uint64_t now = counter_();
    same = now == last ? same + 1 : 0;
    last = now;
    if (same < kLooks) continue;
    silent_();
    same = 0;
  }
}

}  // namespace ccks::scheduler
