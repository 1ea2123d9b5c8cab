// A kernel for each ordered access of the CUDA platform: probe_<function>_<type>. check.py says what each must compile to.
#include "ccks/worker/platform_cuda.hpp"

namespace {

using ccks::wire::SlotWords;
using ccks::wire::u32;
using ccks::wire::u64;
using Atoms = ccks::worker::CudaAtoms;
namespace ptx = ccks::worker::ptx;

}  // namespace

#define PROBE_LOAD(name, type) \
  extern "C" __global__ void probe_##name##_##type(const type* from, type* to) { *to = Atoms::name(from); }
#define PROBE_STORE(name, type) \
  extern "C" __global__ void probe_##name##_##type(type* to, type value) { Atoms::name(to, value); }
#define PROBE_RETURN(name, type) \
  extern "C" __global__ void probe_##name##_##type(type* at, type value, type* old) { *old = Atoms::name(at, value); }
#define PROBE_SHARED_LOAD(name) \
  extern "C" __global__ void probe_##name##_u32(u32* to) { __shared__ u32 word; *to = ptx::name(&word); }
#define PROBE_SHARED_STORE(name) \
  extern "C" __global__ void probe_##name##_u32(u32 value) { __shared__ u32 word; ptx::name(&word, value); }

PROBE_LOAD(load_slot_acquire, SlotWords)
PROBE_LOAD(load_slot_relaxed, SlotWords)
PROBE_STORE(store_slot_release, SlotWords)
PROBE_STORE(store_slot_release_device, SlotWords)
PROBE_STORE(store_slot_relaxed, SlotWords)
PROBE_LOAD(link_load_acquire, u32)
PROBE_LOAD(link_load_relaxed, u32)
PROBE_LOAD(link_load_relaxed, u64)
PROBE_STORE(link_store_release, u32)
PROBE_STORE(link_store_relaxed, u32)
PROBE_STORE(link_store_relaxed, u64)
PROBE_LOAD(event_load_acquire, u32)
PROBE_LOAD(event_load_relaxed, u32)
PROBE_STORE(event_add_release, u32)
PROBE_STORE(event_add_relaxed, u32)
PROBE_RETURN(queue_add_relaxed, u32)
PROBE_RETURN(queue_add_acq_rel, u32)
PROBE_LOAD(queue_load_relaxed, u64)
PROBE_LOAD(queue_load_acquire, u64)
PROBE_STORE(queue_store_release, u64)
PROBE_STORE(queue_store_relaxed, u64)
extern "C" __global__ void probe_ld_relaxed_gpu_pair(const u64* from, u64* to) {
  u64 pair[2];
  ptx::ld_relaxed_gpu(from, pair);
  *to = pair[0] + pair[1];
}
PROBE_SHARED_LOAD(ld_acquire_cta_shared)
PROBE_SHARED_LOAD(ld_relaxed_cta_shared)
PROBE_SHARED_STORE(st_release_cta_shared)
PROBE_SHARED_STORE(st_relaxed_cta_shared)
PROBE_SHARED_STORE(red_relaxed_cta_shared_add)
extern "C" __global__ void probe_atom_relaxed_cta_shared_add_u32(u32 value, u32* to) {
  extern __shared__ u32 word[];
  *to = ptx::atom_relaxed_cta_shared_add(word, value);
}

/// Uses a slot's first and last word only: a load in parts would leave the rest out, and could tear.
extern "C" __global__ void probe_slot_in_part(const SlotWords* from, u32* to) {
  const SlotWords words = Atoms::load_slot_acquire(from);
  *to = static_cast<u32>(words.low) + ccks::wire::slot_seq(words);
}
