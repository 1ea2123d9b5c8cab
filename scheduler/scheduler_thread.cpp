#include "scheduler/scheduler_thread.hpp"

#include <pthread.h>

#include <optional>

#include "scheduler/copilot.hpp"
#include "scheduler/delayed_links.hpp"
#include "scheduler/pin.hpp"

namespace ccks::scheduler {
namespace {

struct SteadyClock {
  std::uint64_t now_ns() const { return scheduler::now_ns(); }
};

void pause_core() {
#if defined(__x86_64__) || defined(__i386__)
  __builtin_ia32_pause();
#elif defined(__aarch64__)
  asm volatile("yield");
#endif
}

enum Stop : std::uint32_t { kGoOn = 0, kPark = 1, kAbandon = 2 };

}  // namespace

struct SchedulerThread::State {
  State(const CopilotSetup& s, const SchedulerThreadOptions& o) : setup(s), options(o) {
    if (s.link_delay_ns == 0)
      copilot.emplace(s);
    else
      delayed.emplace(s);
  }
  CopilotSetup setup;
  SchedulerThreadOptions options;
  // One of the two.
  std::optional<Copilot<wire::HostAtoms, SteadyClock>> copilot;
  std::optional<Copilot<wire::HostAtoms, SteadyClock, DelayedLinks>> delayed;
  // Relaxed on both sides: the word says only "leave", and joining the thread orders the rest.
  std::atomic<std::uint32_t> stop{kGoOn};
};

SchedulerThread::SchedulerThread(const CopilotSetup& setup, const SchedulerThreadOptions& options)
    : state_(std::make_unique<State>(setup, options)), thread_([this] { main(); }) {}

SchedulerThread::~SchedulerThread() { stop(true); }

void SchedulerThread::stop(bool abandon) {
  if (!thread_.joinable()) return;
  state_->stop.store(abandon ? kAbandon : kPark, std::memory_order_relaxed);
  state_->setup.device->wake_scheduler();
  thread_.join();
}

void SchedulerThread::main() {
  pthread_setname_np(pthread_self(), "ccks-scheduler");
  if (state_->options.pin) pin_scheduler_thread(state_->options.busy_workers);
  if (state_->copilot) return drive(*state_->copilot);
  drive(*state_->delayed);
}

template <class AnyCopilot>
void SchedulerThread::drive(AnyCopilot& copilot) {
  State& state = *state_;
  std::uint32_t idle = 0;
  std::uint32_t stop = kGoOn;
  while ((stop = state.stop.load(std::memory_order_relaxed)) == kGoOn) {
    if (copilot.step()) {
      idle = 0;
      continue;
    }
    ++idle;
    // Where workers sleep, cores are few and every spin is taken from one of them.
    const bool sleepy =
        state.setup.doorbells ? idle > kSpinsBeforeSleep : idle > kSpinsBeforeYield && !copilot.in_flight();
    if (sleepy) {
      state.setup.device->scheduler_wait(copilot.sleep_ns());
    } else {
      pause_core();
    }
  }
  if (stop == kAbandon) copilot.fail_all(ErrorCode::cancelled, "the engine was stopped");
  for (std::uint32_t w = 0; w < state.setup.params.workers; ++w) {
    copilot.park(w, stop == kAbandon ? wire::kParkAbandon : wire::kParkAfterTask);
  }
}

}  // namespace ccks::scheduler
