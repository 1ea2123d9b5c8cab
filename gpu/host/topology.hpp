// The cores this process may use, and how many workers make sense on them.
#pragma once

#include <cstdint>
#include <string>
#include <thread>
#include <vector>

namespace ccks::gpu {

/// Topology of the cores in the process's affinity mask. A hyperthread pair is one core.
struct Topology {
  std::vector<std::uint32_t> cores;  // one logical CPU of each physical core, in hwloc's order (neighbours share caches)
  std::uint32_t threads = 1;         // logical CPUs
  std::uint32_t quota = 0;           // whole CPUs a cgroup grants; 0: no limit
  std::string cpu_name;              // model, for people

  /// Cores that can really run at once.
  std::uint32_t usable() const;
};

/// Reads it afresh; about a millisecond.
Topology read_topology();

/// All cores of a small machine (up to 4); else one fewer, which the scheduler keeps; at most kMaxDefaultWorkers.
std::uint32_t default_workers(const Topology& topology);
inline constexpr std::uint32_t kMaxDefaultWorkers = 64;  // beyond, one scheduler thread and one memory system gain little

/// Pins `thread` to logical CPU `cpu`; false if the system refuses.
bool pin_thread(std::thread& thread, std::uint32_t cpu);

}  // namespace ccks::gpu
