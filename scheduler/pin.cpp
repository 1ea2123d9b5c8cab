#include "scheduler/pin.hpp"

#include <hwloc.h>
#include <numa.h>

namespace ccks::scheduler {
namespace {

// Owns a hwloc topology of the cores this process may use.
class Topology {
 public:
  Topology() { ok_ = hwloc_topology_init(&topology_) == 0 && hwloc_topology_load(topology_) == 0; }
  ~Topology() {
    if (topology_ != nullptr) hwloc_topology_destroy(topology_);
  }
  Topology(const Topology&) = delete;
  Topology& operator=(const Topology&) = delete;

  int cores() const { return ok_ ? hwloc_get_nbobjs_by_type(topology_, HWLOC_OBJ_CORE) : 0; }
  bool bind_to_core(int index) const {
    const hwloc_obj_t core = hwloc_get_obj_by_type(topology_, HWLOC_OBJ_CORE, static_cast<unsigned>(index));
    return core != nullptr && hwloc_set_cpubind(topology_, core->cpuset, HWLOC_CPUBIND_THREAD) == 0;
  }

 private:
  hwloc_topology_t topology_ = nullptr;
  bool ok_ = false;
};

}  // namespace

bool pin_scheduler_thread(std::uint32_t workers) {
  const Topology topology;
  const int cores = topology.cores();
  // One core for the workers' sake and one for everybody else; a pinned thread among sharers only gets in the way.
  if (cores < 4 || static_cast<std::uint32_t>(cores) <= workers) return false;
  if (!topology.bind_to_core(cores - 1)) return false;
  if (numa_available() >= 0) numa_set_localalloc();
  return true;
}

}  // namespace ccks::scheduler
