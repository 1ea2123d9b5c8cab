#include "gpu/host/isa.hpp"

#include <array>

namespace ccks::gpu {

// Defined by worker_entry.cpp, compiled once for each name.
namespace isa_baseline {
void worker_entry(const wire::WorkerParams* params, std::uint32_t index, void* context);
}
#if defined(CCKS_HOST_X86_ISAS)
namespace isa_v3 {
void worker_entry(const wire::WorkerParams* params, std::uint32_t index, void* context);
}
namespace isa_v4 {
void worker_entry(const wire::WorkerParams* params, std::uint32_t index, void* context);
}

namespace {

// The features that the compiler flags in gpu/CMakeLists.txt allow; __builtin_cpu_supports also asks the system whether
// it saves the wide registers.
bool has_v3() {
  return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") && __builtin_cpu_supports("bmi") &&
         __builtin_cpu_supports("bmi2") && __builtin_cpu_supports("f16c");
}
bool has_v4() {
  return has_v3() && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
         __builtin_cpu_supports("avx512cd") && __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl");
}

}  // namespace
#endif

std::span<const IsaEntry> host_isas() {
#if defined(CCKS_HOST_X86_ISAS)
  static const std::array<IsaEntry, 3> kIsas = {{{"baseline", &isa_baseline::worker_entry, true},
                                                 {"x86_64_v3", &isa_v3::worker_entry, has_v3()},
                                                 {"x86_64_v4", &isa_v4::worker_entry, has_v4()}}};
#else
  static const std::array<IsaEntry, 1> kIsas = {{{"baseline", &isa_baseline::worker_entry, true}}};
#endif
  return kIsas;
}

const IsaEntry& best_host_isa() {
  const auto isas = host_isas();
  const IsaEntry* best = &isas[0];
  for (const IsaEntry& isa : isas) {
    if (isa.runs_here) best = &isa;
  }
  return *best;
}

}  // namespace ccks::gpu
