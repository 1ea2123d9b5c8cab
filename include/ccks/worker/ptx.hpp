// The PTX of the CUDA platform: memory accesses named for order and scope, and the special registers. The one header
// with inline assembly for the GPU, but for products of groups of warps (ptx_group.hpp). Addresses are of global memory where the name does not
// say otherwise.
#pragma once

#include "ccks/wire/ring.hpp"

#if defined(__CUDACC__)

namespace ccks::worker::ptx {

using wire::u32;
using wire::u64;

// A slot is never torn: a naturally aligned 16-byte access is one access at system scope, over PCIe too. Of type b128, whose
// accesses PTX promises to be single. A vector of four words is four accesses to PTX, and ptxas does split it: where only
// the first and the last word were used it made two loads, and slots were torn (bench/images/ping_pong.cu).
__device__ __forceinline__ wire::SlotWords ld_acquire_sys_b128(const void* p) {
  wire::SlotWords w;
  asm volatile("{ .reg .b128 slot; ld.acquire.sys.global.b128 slot, [%2]; mov.b128 {%0,%1}, slot; }"
               : "=l"(w.low), "=l"(w.high) : "l"(p) : "memory");
  return w;
}
__device__ __forceinline__ void st_release_sys_b128(void* p, const wire::SlotWords& w) {
  asm volatile("{ .reg .b128 slot; mov.b128 slot, {%1,%2}; st.release.sys.global.b128 [%0], slot; }"
               ::"l"(p), "l"(w.low), "l"(w.high) : "memory");
}
/// The store is of system scope, what it publishes of the GPU's: no one operation has two scopes, hence the fence.
__device__ __forceinline__ void st_release_gpu_to_sys_b128(void* p, const wire::SlotWords& w) {
  asm volatile("{ .reg .b128 slot; mov.b128 slot, {%1,%2}; fence.acq_rel.gpu; st.relaxed.sys.global.b128 [%0], slot; }"
               ::"l"(p), "l"(w.low), "l"(w.high) : "memory");
}
__device__ __forceinline__ wire::SlotWords ld_relaxed_sys_b128(const void* p) {
  wire::SlotWords w;
  asm volatile("{ .reg .b128 slot; ld.relaxed.sys.global.b128 slot, [%2]; mov.b128 {%0,%1}, slot; }"
               : "=l"(w.low), "=l"(w.high) : "l"(p) : "memory");
  return w;
}
__device__ __forceinline__ void st_relaxed_sys_b128(void* p, const wire::SlotWords& w) {
  asm volatile("{ .reg .b128 slot; mov.b128 slot, {%1,%2}; st.relaxed.sys.global.b128 [%0], slot; }"
               ::"l"(p), "l"(w.low), "l"(w.high) : "memory");
}

__device__ __forceinline__ u32 ld_acquire_sys(const u32* p) {
  u32 v;
  asm volatile("ld.acquire.sys.global.u32 %0, [%1];" : "=r"(v) : "l"(p) : "memory");
  return v;
}
__device__ __forceinline__ u32 ld_relaxed_sys(const u32* p) {
  u32 v;
  asm volatile("ld.relaxed.sys.global.u32 %0, [%1];" : "=r"(v) : "l"(p) : "memory");
  return v;
}
__device__ __forceinline__ u64 ld_relaxed_sys(const u64* p) {
  u64 v;
  asm volatile("ld.relaxed.sys.global.u64 %0, [%1];" : "=l"(v) : "l"(p) : "memory");
  return v;
}
__device__ __forceinline__ void st_release_sys(u32* p, u32 v) {
  asm volatile("st.release.sys.global.u32 [%0], %1;" ::"l"(p), "r"(v) : "memory");
}
__device__ __forceinline__ void st_relaxed_sys(u32* p, u32 v) {
  asm volatile("st.relaxed.sys.global.u32 [%0], %1;" ::"l"(p), "r"(v) : "memory");
}
__device__ __forceinline__ void st_relaxed_sys(u64* p, u64 v) {
  asm volatile("st.relaxed.sys.global.u64 [%0], %1;" ::"l"(p), "l"(v) : "memory");
}

__device__ __forceinline__ u32 ld_acquire_gpu(const u32* p) {
  u32 v;
  asm volatile("ld.acquire.gpu.global.u32 %0, [%1];" : "=r"(v) : "l"(p) : "memory");
  return v;
}
__device__ __forceinline__ u32 ld_relaxed_gpu(const u32* p) {
  u32 v;
  asm volatile("ld.relaxed.gpu.global.u32 %0, [%1];" : "=r"(v) : "l"(p) : "memory");
  return v;
}
__device__ __forceinline__ void red_release_gpu_add(u32* p, u32 v) {
  asm volatile("red.release.gpu.global.add.u32 [%0], %1;" ::"l"(p), "r"(v) : "memory");
}

__device__ __forceinline__ void red_relaxed_gpu_add(u32* p, u32 v) {
  asm volatile("red.relaxed.gpu.global.add.u32 [%0], %1;" ::"l"(p), "r"(v) : "memory");
}
// The same where `here`: one instruction, and no branch that parts the warp.
__device__ __forceinline__ void red_release_gpu_add_if(bool here, u32* p, u32 v) {
  asm volatile("{ .reg .pred %here; setp.ne.u32 %here, %2, 0; @%here red.release.gpu.global.add.u32 [%0], %1; }"
               ::"l"(p), "r"(v), "r"(u32{here}) : "memory");
}
__device__ __forceinline__ void red_relaxed_gpu_add_if(bool here, u32* p, u32 v) {
  asm volatile("{ .reg .pred %here; setp.ne.u32 %here, %2, 0; @%here red.relaxed.gpu.global.add.u32 [%0], %1; }"
               ::"l"(p), "r"(v), "r"(u32{here}) : "memory");
}

// ---- within a block: words in shared memory, barriers of some of its warps, copies that go on in the background --------

__device__ __forceinline__ u32 shared_address(const void* p) { return static_cast<u32>(__cvta_generic_to_shared(p)); }

__device__ __forceinline__ u32 ld_acquire_cta_shared(const u32* p) {
  u32 v;
  asm volatile("ld.acquire.cta.shared.u32 %0, [%1];" : "=r"(v) : "r"(shared_address(p)) : "memory");
  return v;
}
__device__ __forceinline__ u32 ld_relaxed_cta_shared(u32 address) {
  u32 v;
  asm volatile("ld.relaxed.cta.shared.u32 %0, [%1];" : "=r"(v) : "r"(address) : "memory");
  return v;
}
__device__ __forceinline__ u32 ld_relaxed_cta_shared(const u32* p) { return ld_relaxed_cta_shared(shared_address(p)); }
__device__ __forceinline__ void st_release_cta_shared(u32* p, u32 v) {
  asm volatile("st.release.cta.shared.u32 [%0], %1;" ::"r"(shared_address(p)), "r"(v) : "memory");
}
__device__ __forceinline__ void st_relaxed_cta_shared(u32* p, u32 v) {
  asm volatile("st.relaxed.cta.shared.u32 [%0], %1;" ::"r"(shared_address(p)), "r"(v) : "memory");
}
__device__ __forceinline__ void red_relaxed_cta_shared_add(u32* p, u32 v) {
  asm volatile("red.relaxed.cta.shared.add.u32 [%0], %1;" ::"r"(shared_address(p)), "r"(v) : "memory");
}
__device__ __forceinline__ u32 atom_relaxed_cta_shared_add(u32* p, u32 v) {
  u32 before;
  asm volatile("atom.relaxed.cta.shared.add.u32 %0, [%1], %2;" : "=r"(before) : "r"(shared_address(p)), "r"(v) : "memory");
  return before;
}

/// Barrier `id` (0 is __syncthreads) of `threads` threads, whole converged warps: waits for all, or only counts this warp in.
__device__ __forceinline__ void barrier_sync(u32 id, u32 threads) {
  asm volatile("bar.sync %0, %1;" ::"r"(id), "r"(threads) : "memory");
}
__device__ __forceinline__ void barrier_arrive(u32 id, u32 threads) {
  asm volatile("bar.arrive %0, %1;" ::"r"(id), "r"(threads) : "memory");
}

/// 16 bytes from global to shared memory, done once a later copy_wait of this thread says so.
__device__ __forceinline__ void copy_async_16(void* to, const void* from) {
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(shared_address(to)), "l"(from) : "memory");
}
/// The same, or zeros where not `there`; `from` is then not read.
__device__ __forceinline__ void copy_async_16_or_zero(void* to, const void* from, bool there) {
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(shared_address(to)), "l"(from), "r"(there ? 16u : 0u) : "memory");
}
/// The same of data that nobody reads again soon: it leaves the L2 first.
__device__ __forceinline__ void copy_async_16_once(void* to, const void* from, bool there) {
  u64 policy;
  asm("createpolicy.fractional.L2::evict_first.b64 %0, 1.0;" : "=l"(policy));
  asm volatile("cp.async.cg.shared.global.L2::cache_hint [%0], [%1], 16, %2, %3;" ::"r"(shared_address(to)), "l"(from), "r"(there ? 16u : 0u), "l"(policy) : "memory");
}
/// Ends a group of copies; a group may be empty.
__device__ __forceinline__ void copy_commit() { asm volatile("cp.async.commit_group;" ::: "memory"); }
/// Waits for all groups of this thread but the `kLeft` newest.
template <int kLeft>
__device__ __forceinline__ void copy_wait() {
  asm volatile("cp.async.wait_group %0;" ::"n"(kLeft) : "memory");
}

// ---- copies in bulk: from global to shared memory, counted by a barrier that lies there too --------------------------------

// Some take places by their address in shared memory as well (shared_address): a loop that has one from memory keeps it in a register, where that of a pointer is made anew at each use.

// Before sm_90 there are none; nobody calls these there (CudaLanes::kStreams).
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
#define CCKS_BULK_ASM(...) asm volatile(__VA_ARGS__)
#else
#define CCKS_BULK_ASM(...) __trap()
#endif
/// A phase ends once `arrivals` have arrived and all bytes expected have landed.
__device__ __forceinline__ void mbarrier_init(u64* barrier, u32 arrivals) {
  CCKS_BULK_ASM("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(shared_address(barrier)), "r"(arrivals) : "memory");
}
/// What this thread has stored to shared memory is there for bulk copies that begin behind it.
__device__ __forceinline__ void fence_proxy_async_shared() { CCKS_BULK_ASM("fence.proxy.async.shared::cta;" ::: "memory"); }
/// The same of what this thread has seen of global memory.
__device__ __forceinline__ void fence_proxy_async_global() { CCKS_BULK_ASM("fence.proxy.async.global;" ::: "memory"); }
__device__ __forceinline__ void mbarrier_arrive_release(u64* barrier) {
  CCKS_BULK_ASM("mbarrier.arrive.release.cta.shared::cta.b64 _, [%0];" ::"r"(shared_address(barrier)) : "memory");
}
/// Arrives, and says how many bytes are to land in this phase.
__device__ __forceinline__ void mbarrier_expect_release(u32 barrier, u32 bytes) {
  CCKS_BULK_ASM("mbarrier.arrive.expect_tx.release.cta.shared::cta.b64 _, [%0], %1;" ::"r"(barrier), "r"(bytes) : "memory");
}
__device__ __forceinline__ void mbarrier_expect_release(u64* barrier, u32 bytes) { mbarrier_expect_release(shared_address(barrier), bytes); }
/// One lane of a whole warp: ptxas then knows that what follows is of a single thread, whose copies take no loop over lanes.
__device__ __forceinline__ bool elected() {
  u32 is = 0;
  CCKS_BULK_ASM("{ .reg .pred p; elect.sync _|p, 0xffffffff; selp.u32 %0, 1, 0, p; }" : "=r"(is));
  return is != 0;
}
/// Whether the phase of this parity has ended. May wait for a time that the machine chooses.
__device__ __forceinline__ bool mbarrier_ended_acquire(u32 barrier, u32 parity) {
  u32 ended = 0;
  CCKS_BULK_ASM("{ .reg .pred p; mbarrier.try_wait.parity.acquire.cta.shared::cta.b64 p, [%1], %2; selp.u32 %0, 1, 0, p; }"
                : "=r"(ended) : "r"(barrier), "r"(parity) : "memory");
  return ended != 0;
}
__device__ __forceinline__ bool mbarrier_ended_acquire(u64* barrier, u32 parity) { return mbarrier_ended_acquire(shared_address(barrier), parity); }
/// The same without a wait.
__device__ __forceinline__ bool mbarrier_has_ended_acquire(u32 barrier, u32 parity) {
  u32 ended = 0;
  CCKS_BULK_ASM("{ .reg .pred p; mbarrier.test_wait.parity.acquire.cta.shared::cta.b64 p, [%1], %2; selp.u32 %0, 1, 0, p; }"
                : "=r"(ended) : "r"(barrier), "r"(parity) : "memory");
  return ended != 0;
}
__device__ __forceinline__ bool mbarrier_has_ended_acquire(u64* barrier, u32 parity) { return mbarrier_has_ended_acquire(shared_address(barrier), parity); }
/// Of data that nobody reads again soon: it leaves the L2 first.
__device__ __forceinline__ u64 evict_first_policy() {
  u64 policy = 0;
  CCKS_BULK_ASM("createpolicy.fractional.L2::evict_first.b64 %0, 1.0;" : "=l"(policy));
  return policy;
}
/// Addresses and bytes are multiples of 16. The bytes count for the barrier's phase once they have landed.
__device__ __forceinline__ void copy_bulk(u32 to, const void* from, u32 bytes, u32 barrier, u64 policy) {
  CCKS_BULK_ASM("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes.L2::cache_hint [%0], [%1], %2, [%3], %4;"
                ::"r"(to), "l"(from), "r"(bytes), "r"(barrier), "l"(policy) : "memory");
}
__device__ __forceinline__ void copy_bulk(void* to, const void* from, u32 bytes, u64* barrier, u64 policy) { copy_bulk(shared_address(to), from, bytes, shared_address(barrier), policy); }
/// The same of data that is read again.
__device__ __forceinline__ void copy_bulk(void* to, const void* from, u32 bytes, u64* barrier) {
  CCKS_BULK_ASM("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];"
                ::"r"(shared_address(to)), "l"(from), "r"(bytes), "r"(shared_address(barrier)) : "memory");
}
/// Asks the L2 alone for so much. Addresses and bytes as above.
__device__ __forceinline__ void prefetch_bulk(const void* from, u32 bytes) {
  CCKS_BULK_ASM("cp.async.bulk.prefetch.L2.global [%0], %1;" ::"l"(from), "r"(bytes) : "memory");
}
#undef CCKS_BULK_ASM

// ---- 16 bits: nearest, ties to even; in one instruction where integers take ten ---------------------------------------------

#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 800
inline constexpr bool kRoundsTo16 = true;
__device__ __forceinline__ wire::u16 cvt_rn_bf16(float v) {
  wire::u16 half;
  asm("cvt.rn.bf16.f32 %0, %1;" : "=h"(half) : "f"(v));
  return half;
}
__device__ __forceinline__ wire::u16 cvt_rn_f16(float v) {
  wire::u16 half;
  asm("cvt.rn.f16.f32 %0, %1;" : "=h"(half) : "f"(v));
  return half;
}
#else
inline constexpr bool kRoundsTo16 = false;
__host__ __device__ __forceinline__ wire::u16 cvt_rn_bf16(float) { return 0; }
__host__ __device__ __forceinline__ wire::u16 cvt_rn_f16(float) { return 0; }
#endif

// ---- matrices ------------------------------------------------------------------------------------------------------------

#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 800
/// Rows 0 to 7 of m16n8k16; the others are zero.
__device__ __forceinline__ void mma_8x16x8_bf16(float (&d)[2], const u32 (&a)[2], const u32 (&b)[2]) {
  [[maybe_unused]] float low0, low1;
  asm("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0,%1,%2,%3}, {%4,%8,%5,%8}, {%6,%7}, {%0,%1,%9,%9};"
      : "+f"(d[0]), "+f"(d[1]), "=f"(low0), "=f"(low1) : "r"(a[0]), "r"(a[1]), "r"(b[0]), "r"(b[1]), "r"(0u), "f"(0.0f));
}
__device__ __forceinline__ void mma_8x16x8_f16(float (&d)[2], const u32 (&a)[2], const u32 (&b)[2]) {
  [[maybe_unused]] float low0, low1;
  asm("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0,%1,%2,%3}, {%4,%8,%5,%8}, {%6,%7}, {%0,%1,%9,%9};"
      : "+f"(d[0]), "+f"(d[1]), "=f"(low0), "=f"(low1) : "r"(a[0]), "r"(a[1]), "r"(b[0]), "r"(b[1]), "r"(0u), "f"(0.0f));
}
/// Sixteen rows of a: d[0], d[1] are of row lane / 4, d[2], d[3] of the row eight below.
__device__ __forceinline__ void mma_16x16x8_bf16(float (&d)[4], const u32 (&a)[4], const u32 (&b)[2]) {
  asm("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
      : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3]) : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
}
__device__ __forceinline__ void mma_16x16x8_f16(float (&d)[4], const u32 (&a)[4], const u32 (&b)[2]) {
  asm("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
      : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3]) : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
}
// An 8 x 8 matrix of 16-bit elements across a warp, two of row lane / 4 a lane, turned.
__device__ __forceinline__ u32 movmatrix(u32 v) {
  u32 turned;
  asm("movmatrix.sync.aligned.m8n8.trans.b16 %0, %1;" : "=r"(turned) : "r"(v));
  return turned;
}
// Two floats as one word of 16-bit ones, to nearest even, `low` in the low half.
__device__ __forceinline__ u32 cvt_bf16x2(float low, float high) {
  u32 word;
  asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(word) : "f"(high), "f"(low));
  return word;
}
__device__ __forceinline__ u32 cvt_f16x2(float low, float high) {
  u32 word;
  asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(word) : "f"(high), "f"(low));
  return word;
}
#endif
/// 2 to the v, to two units in the last place; results below the least normal float are 0. On the host side of a .cu file it only has to exist, as has rcp.
__host__ __device__ __forceinline__ float ex2(float v) {
#if defined(__CUDA_ARCH__)
  asm("ex2.approx.ftz.f32 %0, %0;" : "+f"(v));
#endif
  return v;
}
/// 1 / v, to one unit in the last place.
__host__ __device__ __forceinline__ float rcp(float v) {
#if defined(__CUDA_ARCH__)
  asm("rcp.approx.ftz.f32 %0, %0;" : "+f"(v));
#endif
  return v;
}
/// 1 / sqrt(v), to two units in the last place.
__device__ __forceinline__ float rsqrt(float v) {
  float inverse;
  asm("rsqrt.approx.ftz.f32 %0, %1;" : "=f"(inverse) : "f"(v));
  return inverse;
}

// ---- ready queues -----------------------------------------------------------------------------------------------------

__device__ __forceinline__ u32 atom_relaxed_gpu_add(u32* p, u32 v) {
  u32 old;
  asm volatile("atom.relaxed.gpu.global.add.u32 %0, [%1], %2;" : "=r"(old) : "l"(p), "r"(v) : "memory");
  return old;
}
__device__ __forceinline__ u32 atom_acq_rel_gpu_add(u32* p, u32 v) {
  u32 old;
  asm volatile("atom.acq_rel.gpu.global.add.u32 %0, [%1], %2;" : "=r"(old) : "l"(p), "r"(v) : "memory");
  return old;
}
__device__ __forceinline__ u64 ld_relaxed_gpu(const u64* p) {
  u64 v;
  asm volatile("ld.relaxed.gpu.global.u64 %0, [%1];" : "=l"(v) : "l"(p) : "memory");
  return v;
}
/// Two words that follow one another on a multiple of 16: each is read whole, the two in any order.
__device__ __forceinline__ void ld_relaxed_gpu(const u64* p, u64 (&v)[2]) {
  asm volatile("ld.relaxed.gpu.global.v2.u64 {%0,%1}, [%2];" : "=l"(v[0]), "=l"(v[1]) : "l"(p) : "memory");
}
__device__ __forceinline__ u64 ld_acquire_gpu(const u64* p) {
  u64 v;
  asm volatile("ld.acquire.gpu.global.u64 %0, [%1];" : "=l"(v) : "l"(p) : "memory");
  return v;
}
__device__ __forceinline__ void st_release_gpu(u64* p, u64 v) {
  asm volatile("st.release.gpu.global.u64 [%0], %1;" ::"l"(p), "l"(v) : "memory");
}
__device__ __forceinline__ void st_relaxed_gpu(u64* p, u64 v) {
  asm volatile("st.relaxed.gpu.global.u64 [%0], %1;" ::"l"(p), "l"(v) : "memory");
}

/// Cycles of this SM; wraps.
__device__ __forceinline__ u32 clock32() {
  u32 v;
  asm volatile("mov.u32 %0, %%clock;" : "=r"(v));
  return v;
}
/// Nanoseconds, the same clock on all SMs; steps of 32 ns on an H200.
__device__ __forceinline__ u64 globaltimer() {
  u64 v;
  asm volatile("mov.u64 %0, %globaltimer;" : "=l"(v));
  return v;
}
// Programmatic dependent launch. Before sm_90 there is none, and launches never overlap.
/// The launch behind this one may start once every block has said so or ended.
__device__ __forceinline__ void allow_launches() {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
#endif
}
/// Waits until the launches in front of this one have ended and their writes are visible.
__device__ __forceinline__ void await_launches() {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
}

/// Bytes of dynamic shared memory of this launch.
__device__ __forceinline__ u32 dynamic_shared_bytes() {
  u32 v;
  asm volatile("mov.u32 %0, %dynamic_smem_size;" : "=r"(v));
  return v;
}

}  // namespace ccks::worker::ptx

#endif  // __CUDACC__
