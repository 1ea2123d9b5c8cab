#include <pthread.h>

#include "scheduler/launcher.hpp"
#include "scheduler/pin.hpp"

namespace ccks::scheduler {

LauncherThread::LauncherThread(const CopilotSetup& setup, const LauncherSetup& own, bool pin)
    : launcher_(setup, own), device_(*setup.device), pin_(pin), thread_([this] { main(); }) {}

LauncherThread::~LauncherThread() { stop(); }

void LauncherThread::stop() {
  if (!thread_.joinable()) return;
  stop_.store(true, std::memory_order_relaxed);
  device_.wake_scheduler();
  thread_.join();
}

void LauncherThread::main() {
  pthread_setname_np(pthread_self(), "ccks-launcher");
  if (pin_) pin_scheduler_thread(0);
  while (!stop_.load(std::memory_order_relaxed)) {
    if (!launcher_.step()) launcher_.rest();
  }
  (void)launcher_.step();  // fences and runs that came with the request to leave
  launcher_.fail_all(ErrorCode::cancelled, "the engine was stopped");
}

}  // namespace ccks::scheduler
