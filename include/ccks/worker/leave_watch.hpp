// LeaveWatch: why a worker leaves: it was asked to, the host's heartbeat stands still, or it has been idle for too long.
// Reads the host's line, which costs 1.3 us over PCIe, so it is asked rarely.
//
// Memory ordering
//   HostLine::park and heartbeat_ns are relaxed on both sides: each is a lone word that publishes nothing else.
#pragma once

#include "ccks/worker/platform.hpp"

namespace ccks::worker {
inline namespace CCKS_ISA {

/// The host's heartbeat as a worker last saw it.
struct Heartbeat {
  u64 value = 0;
  u64 seen_at = 0;  // by the worker's clock
};

template <class Platform>
class LeaveWatch {
 public:
  /// All must outlive the watch.
  CCKS_HD_ANY LeaveWatch(Platform& platform, const wire::WorkerParams& params, u32 index, Heartbeat& beat)
      : platform_(platform), params_(params), beat_(beat),
        host_(reinterpret_cast<const wire::HostLine*>(params.host_lines) + index) {}

  CCKS_HD_ANY void start() { beat_.seen_at = platform_.now_ns(); }

  /// Park request, stale heartbeat, idle limit; true with the reason if the worker should leave. `idle_since` 0: not idle.
  CCKS_HD_ANY bool should_leave(u64 idle_since, wire::ParkReason& reason) {
    return should_leave(HostWords{park_request(), heartbeat()}, idle_since, reason);
  }
  /// The same for whoever has looked already.
  CCKS_HD_ANY bool should_leave(const HostWords& host, u64 idle_since, wire::ParkReason& reason) {
    const u64 now = platform_.now_ns();
    if (host.park != wire::kParkNo) {
      reason = wire::ParkReason::requested;
    } else if (heartbeat_is_stale(host.heartbeat, now)) {
      reason = wire::ParkReason::stale_heartbeat;
    } else if (idle_since != 0 && params_.idle_limit_ns != 0 && now - idle_since > params_.idle_limit_ns) {
      reason = wire::ParkReason::idle;
    } else {
      return false;
    }
    return true;
  }

  /// Between two tasks, `busy_ns` after the last call: looks for a request every so many tasks and so much work.
  CCKS_HD_ANY bool asked_between_tasks(u64 busy_ns) {
    unchecked_ns_ += busy_ns;
    if (++unchecked_tasks_ < kTasksPerLook && unchecked_ns_ < kLookNs) return false;
    unchecked_tasks_ = 0;
    unchecked_ns_ = 0;
    return park_request() != wire::kParkNo;
  }

  /// Whether the host wants the worker out of a wait inside a task.
  CCKS_HD_ANY bool abandon_requested() { return park_request() == wire::kParkAbandon; }
  /// The same for a wait that can be taken up again: then a stale heartbeat ends it too. `reason` is set with kParkSuspend.
  CCKS_HD_ANY wire::ParkRequest asked_inside_task(wire::ParkReason& reason) {
    const u32 request = park_request();
    if (request == wire::kParkAbandon) return wire::kParkAbandon;
    reason = wire::ParkReason::requested;
    if (request == wire::kParkSuspend) return wire::kParkSuspend;
    reason = wire::ParkReason::stale_heartbeat;
    return heartbeat_is_stale(heartbeat(), platform_.now_ns()) ? wire::kParkSuspend : wire::kParkNo;
  }
  /// Between two tiles of one inbox task: looks for a request every so many tiles.
  CCKS_HD_ANY bool suspend_between_tiles() {
    if (++unchecked_tiles_ < kTilesPerLook) return false;
    unchecked_tiles_ = 0;
    return park_request() == wire::kParkSuspend;
  }
  CCKS_HD_ANY u32 park_request() { return platform_.uniform(platform_.atoms().link_load_relaxed(&host_->park)); }

  static constexpr u64 kLookNs = 100'000;  // 1 % of the worker's time even if a read took 1 us

 private:
  static constexpr u32 kTasksPerLook = 64;
  static constexpr u32 kTilesPerLook = 16;

  CCKS_HD_ANY u64 heartbeat() {
    if (params_.heartbeat_limit_ns == 0) return 0;
    return platform_.uniform(platform_.atoms().link_load_relaxed(&host_->heartbeat_ns));
  }
  CCKS_HD_ANY bool heartbeat_is_stale(u64 beat, u64 now) {
    if (params_.heartbeat_limit_ns == 0) return false;
    if (beat != beat_.value) beat_ = {beat, now};
    return now - beat_.seen_at > params_.heartbeat_limit_ns;
  }

  Platform& platform_;
  const wire::WorkerParams& params_;
  Heartbeat& beat_;
  const wire::HostLine* host_;
  u32 unchecked_tasks_ = 0, unchecked_tiles_ = 0;
  u64 unchecked_ns_ = 0;
};

}  // namespace CCKS_ISA
}  // namespace ccks::worker
