#include "gpu/host/topology.hpp"

#include <hwloc.h>
#include <pthread.h>
#include <sched.h>

#include <algorithm>
#include <fstream>

namespace ccks::gpu {
namespace {

/// CPU bandwidth limit of cgroup v2 as this process sees it: "<quota> <period>" or "max <period>".
std::uint32_t cgroup_quota() {
  std::ifstream file("/sys/fs/cgroup/cpu.max");
  double quota = 0, period = 0;
  if (!(file >> quota >> period) || period <= 0) return 0;
  return static_cast<std::uint32_t>(std::max(1.0, quota / period + 0.5));
}

void read_cores(hwloc_topology_t topology, const cpu_set_t& allowed, Topology& out) {
  const int cores = hwloc_get_nbobjs_by_type(topology, HWLOC_OBJ_CORE);
  for (int i = 0; i < cores; ++i) {
    const hwloc_obj_t core = hwloc_get_obj_by_type(topology, HWLOC_OBJ_CORE, static_cast<unsigned>(i));
    for (int cpu = hwloc_bitmap_first(core->cpuset); cpu >= 0; cpu = hwloc_bitmap_next(core->cpuset, cpu)) {
      if (cpu < CPU_SETSIZE && CPU_ISSET(cpu, &allowed)) {
        out.cores.push_back(static_cast<std::uint32_t>(cpu));
        break;
      }
    }
  }
}

void read_hwloc(const cpu_set_t& allowed, Topology& out) {
  hwloc_topology_t topology;
  if (hwloc_topology_init(&topology) != 0) return;
  if (hwloc_topology_load(topology) == 0) {
    read_cores(topology, allowed, out);
    const hwloc_obj_t package = hwloc_get_obj_by_type(topology, HWLOC_OBJ_PACKAGE, 0);
    const char* model = package == nullptr ? nullptr : hwloc_obj_get_info_by_name(package, "CPUModel");
    if (model != nullptr) out.cpu_name = model;
  }
  hwloc_topology_destroy(topology);
}

}  // namespace

std::uint32_t Topology::usable() const {
  const std::uint32_t cores_here = static_cast<std::uint32_t>(cores.size());
  return quota == 0 ? cores_here : std::min(cores_here, quota);
}

Topology read_topology() {
  Topology out;
  out.cpu_name = "CPU";
  cpu_set_t allowed;
  CPU_ZERO(&allowed);
  if (sched_getaffinity(0, sizeof(allowed), &allowed) == 0) {
    out.threads = static_cast<std::uint32_t>(std::max(1, CPU_COUNT(&allowed)));
    read_hwloc(allowed, out);
  }
  // Machines that show no cores (some containers) still have logical CPUs.
  if (out.cores.empty()) {
    for (std::uint32_t cpu = 0; cpu < CPU_SETSIZE && out.cores.size() < out.threads; ++cpu) {
      if (CPU_ISSET(cpu, &allowed)) out.cores.push_back(cpu);
    }
  }
  if (out.cores.empty()) out.cores.push_back(0);
  out.quota = cgroup_quota();
  return out;
}

std::uint32_t default_workers(const Topology& topology) {
  const std::uint32_t cores = topology.usable();
  return std::clamp(cores <= 4 ? cores : cores - 1, 1u, kMaxDefaultWorkers);
}

bool pin_thread(std::thread& thread, std::uint32_t cpu) {
  cpu_set_t set;
  CPU_ZERO(&set);
  CPU_SET(cpu, &set);
  return pthread_setaffinity_np(thread.native_handle(), sizeof(set), &set) == 0;
}

}  // namespace ccks::gpu
