// HostPlatform: a worker that is one thread. Sleeping and waking belong to the device (gpu/bell.hpp), which hands
// them over as plain functions, so that generated workers in other modules need nothing else from the library.
#pragma once

#include <atomic>
#include <chrono>
#include <thread>

#include "ccks/wire/atoms.hpp"
#include "ccks/worker/lanes.hpp"
#include "ccks/worker/platform.hpp"

namespace ccks::worker {

/// HostWorkerContext is what the host device hands to a HostWorkerEntry as `context`. Owned by the device, which keeps it
/// until the worker has left.
struct HostWorkerContext {
  u8* scratch = nullptr;     // 128-byte aligned
  u32 scratch_bytes = 0;
  u32 pause_spins = 0;       // turns of a wait that only pause the core: long where cores are plenty, short where few
  u32 yield_spins = 0;       // turns after those that give the core away; then the worker sleeps
  void* bell = nullptr;      // argument of the two functions
  bool (*sleep)(void* bell) = nullptr;   // sleeps until the doorbell rings; true if it slept
  void (*posted)(void* bell) = nullptr;  // a record went out
};

inline namespace CCKS_ISA {

/// One lane: barriers and reductions are nothing.
class HostLanes {
 public:
  static constexpr bool kSingleLane = true;
  HostLanes(u8* scratch, u32 bytes) : scratch_(scratch), scratch_bytes_(bytes) {}
  u32 lane() const { return 0; }
  u32 lanes() const { return 1; }
  void sync() const {}
  // [AP1] release of what this worker has stored, and [AP2] acquire of what those have that counted themselves in before, by [AP1].
  u32 count_in(u32* word) const { return std::atomic_ref<u32>(*word).fetch_add(1, std::memory_order_acq_rel); }
  template <class T>
  T sum(T v) const { return v; }
  template <class T>
  T max(T v) const { return v; }
  template <class T>
  T min(T v) const { return v; }
  u8* scratch() const { return scratch_; }
  u32 scratch_bytes() const { return scratch_bytes_; }

 private:
  u8* scratch_;
  u32 scratch_bytes_;
};

/// Tells the core that this is a spin loop: frees the sibling hyperthread and saves power.
inline void cpu_pause() {
#if defined(__x86_64__) || defined(__i386__)
  __builtin_ia32_pause();
#elif defined(__aarch64__)
  asm volatile("yield");
#endif
}

class HostPlatform : public OneControlLane {
 public:
  using Lanes = HostLanes;
  using Atoms = wire::HostAtoms;
  static constexpr bool kPipelined = false;
  static constexpr bool kStagesOps = false;
  static constexpr u32 kPollSlots = 16;  // two lines of 128 bytes: what one look brings into the cache anyway

  explicit HostPlatform(const HostWorkerContext& context)
      : context_(context), lanes_(context.scratch, context.scratch_bytes) {}

  Lanes& lanes() { return lanes_; }
  Atoms atoms() const { return {}; }
  WorkerShared<kPollSlots>& shared() { return shared_; }
  u64 now_ns() const {
    const auto now = std::chrono::steady_clock::now().time_since_epoch();
    return static_cast<u64>(std::chrono::duration_cast<std::chrono::nanoseconds>(now).count());
  }

  u32 poll(const wire::Task* inbox, u32 mask, u32 position) {
    wire::RingConsumer<wire::Task, Atoms> ring(inbox, mask + 1, position);
    return ring.poll_many(shared_.staged, kPollSlots);
  }

  void relax(u32 spins) const {
    if (spins < context_.pause_spins) return cpu_pause();
    if (spins < context_.pause_spins + context_.yield_spins) return std::this_thread::yield();
    std::this_thread::sleep_for(std::chrono::microseconds(20));  // an event is at most an op away: stay close
  }
  bool idle(u32 misses) const {
    if (misses < context_.pause_spins) return cpu_pause(), false;
    if (misses < context_.pause_spins + context_.yield_spins) return std::this_thread::yield(), false;
    return context_.sleep(context_.bell);
  }
  void posted() const { context_.posted(context_.bell); }

 private:
  const HostWorkerContext& context_;
  Lanes lanes_;
  WorkerShared<kPollSlots> shared_{};
};

}  // namespace CCKS_ISA
}  // namespace ccks::worker
