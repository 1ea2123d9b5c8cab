#include "scheduler/scheduler_thread.hpp"

#include <pthread.h>
#include <signal.h>
#include <unistd.h>

#include <mutex>
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

constexpr useconds_t kSignalAgainUs = 200;

enum Stop : std::uint32_t { kGoOn = 0, kPark = 1, kAbandon = 2, kLost = 3 };

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
  // Relaxed on both sides: the word says only "leave", and joining the thread, or [T1], orders the rest.
  std::atomic<std::uint32_t> stop{kGoOn};
  std::atomic<std::uint64_t> beats{0};  // relaxed: a counter
  WaitWord gone;                        // 1: it has ended
  std::atomic<std::uint32_t> parked{0}; // 1: it stands in the signal's handler for ever [T1]
};

namespace {

// Of this thread, if it is a scheduler's.
thread_local std::atomic<std::uint32_t>* stop_here = nullptr;
thread_local std::atomic<std::uint32_t>* parked_here = nullptr;
thread_local std::atomic<std::uint32_t> shields{0};  // relaxed throughout: of one thread and its signal handler
thread_local std::atomic<std::uint32_t> grace{0};    // signals that pass: time to begin with what a shield was before; relaxed as above
constexpr std::uint32_t kGrace = 2;
struct sigaction before_ours;

// A scheduler's thread that is lost stays in here. Everything else is for whoever had the signal before.
void on_signal(int number, siginfo_t* info, void* context) {
  const bool open = shields.load(std::memory_order_relaxed) == 0;                // relaxed: see there
  if (stop_here != nullptr && stop_here->load(std::memory_order_relaxed) == kLost) {  // relaxed: see State
    if (!open) return;  // it is asked again
    const std::uint32_t passing = grace.load(std::memory_order_relaxed);  // relaxed, both: see there
    if (passing > 0) return grace.store(passing - 1, std::memory_order_relaxed);
    // [T1] release: all that the thread has done is seen by whoever finds it parked in [T2].
    parked_here->store(1, std::memory_order_release);
    for (;;) pause();
  }
  if ((before_ours.sa_flags & SA_SIGINFO) != 0) {
    before_ours.sa_sigaction(number, info, context);
  } else if (before_ours.sa_handler != SIG_DFL && before_ours.sa_handler != SIG_IGN) {
    before_ours.sa_handler(number);
  }
}

// SIGURG: ignored by default, so one that comes from elsewhere does no harm.
void install_handler() {
  static std::once_flag once;
  std::call_once(once, [] {
    struct sigaction ours = {};
    ours.sa_sigaction = on_signal;
    ours.sa_flags = SA_SIGINFO | SA_RESTART;
    sigaction(SIGURG, &ours, &before_ours);
  });
}

}  // namespace

SchedulerThread::SchedulerThread(const CopilotSetup& setup, const SchedulerThreadOptions& options)
    : state_(std::make_shared<State>(setup, options)), thread_([state = state_] { main(state); }) {}

SchedulerThread::~SchedulerThread() { stop(true); }

void SchedulerThread::stop(bool abandon) {
  if (!thread_.joinable()) return;
  state_->stop.store(abandon ? kAbandon : kPark, std::memory_order_relaxed);
  state_->setup.device->wake_scheduler();
  thread_.join();
}

// relaxed, both: see there.
Shield::Shield() { shields.fetch_add(1, std::memory_order_relaxed); }
Shield::~Shield() {
  grace.store(kGrace, std::memory_order_relaxed);
  shields.fetch_sub(1, std::memory_order_relaxed);
}

std::uint64_t SchedulerThread::beats() const { return state_->beats.load(std::memory_order_relaxed); }  // relaxed: a counter

bool SchedulerThread::lose(std::uint64_t grace_ns, std::uint64_t timeout_ns) {
  if (!thread_.joinable()) return true;
  install_handler();
  state_->stop.store(kLost, std::memory_order_relaxed);  // relaxed: see State
  state_->setup.device->wake_scheduler();
  if (state_->gone.wait([](std::uint32_t gone) { return gone != 0; }, grace_ns)) return thread_.join(), true;
  const std::uint64_t since = now_ns();
  // [T2] acquire: pairs with [T1].
  while (state_->parked.load(std::memory_order_acquire) == 0) {
    if (state_->gone.load() != 0) return thread_.join(), true;
    if (now_ns() - since > timeout_ns) return false;
    pthread_kill(thread_.native_handle(), SIGURG);  // again and again: behind a shield it does nothing
    usleep(kSignalAgainUs);
  }
  thread_.detach();
  return true;
}

void SchedulerThread::main(const std::shared_ptr<State>& state) {
  pthread_setname_np(pthread_self(), "ccks-scheduler");
  sigset_t urgent;  // whatever the process blocks
  sigemptyset(&urgent);
  sigaddset(&urgent, SIGURG);
  pthread_sigmask(SIG_UNBLOCK, &urgent, nullptr);
  if (state->options.pin) pin_scheduler_thread(state->options.busy_workers);  // takes locks: not to be stopped in there
  parked_here = &state->parked;
  stop_here = &state->stop;
  state->copilot ? drive(*state, *state->copilot) : drive(*state, *state->delayed);
  stop_here = nullptr;
  state->gone.store(1);
}

template <class AnyCopilot>
void SchedulerThread::drive(State& state, AnyCopilot& copilot) {
  std::uint32_t idle = 0;
  std::uint32_t stop = kGoOn;
  std::uint64_t beats = 0;
  while ((stop = state.stop.load(std::memory_order_relaxed)) == kGoOn) {
    state.beats.store(++beats, std::memory_order_relaxed);
    if (copilot.step()) {
      idle = 0;
      continue;
    }
    ++idle;
    // Where workers sleep, cores are few and every spin is taken from one of them.
    const bool sleepy =
        state.setup.doorbells ? idle > kSpinsBeforeSleep : idle > kSpinsBeforeYield && !copilot.in_flight();
    if (sleepy && !copilot.ticks()) {
      state.setup.device->scheduler_wait(copilot.sleep_ns());
    } else {
      pause_core();
    }
  }
  if (stop == kLost) return;
  if (stop == kAbandon) copilot.fail_all(ErrorCode::cancelled, "the engine was stopped");
  for (std::uint32_t w = 0; w < state.setup.params.workers; ++w) {
    copilot.park(w, stop == kAbandon ? wire::kParkAbandon : wire::kParkAfterTask);
  }
}

}  // namespace ccks::scheduler
