// CudaLanes: a worker is a thread block, a lane one of its first kCudaLanes threads. Compiles with nvcc and NVRTC.
// On the host side of a .cu file it only has to exist.
#pragma once

#include "ccks/worker/isa.hpp"
#include "ccks/worker/lanes.hpp"

#if defined(__CUDACC__)

#include "ccks/worker/tile_hints.hpp"
#include "ccks/worker/weight_stream.hpp"

#include "ccks/worker/ptx.hpp"
#include "ccks/worker/ptx_group.hpp"

namespace ccks::worker {
inline namespace CCKS_ISA {

/// Threads that run op bodies: enough warps to keep loads in flight, few enough for the registers that bodies want.
inline constexpr u32 kCudaLanes = 256;

/// A block's dynamic shared memory. By its name, so that bodies that are linked know it to be shared memory, and where.
__device__ __forceinline__ u8* dynamic_shared() {
  extern __shared__ __align__(128) u8 ccks_scratch[];
  return ccks_scratch;
}

// Where loop and bodies are images of their own neither may have static shared memory: each would lay it out alone. What both know of lies in front of scratch.
#if CCKS_WORKER_APART
struct alignas(128) ApartBlock {
  u64 slots[32];  // of folds
  u64 bodies;     // address of the function that runs them
};
__device__ __forceinline__ ApartBlock& apart_block() { return *reinterpret_cast<ApartBlock*>(dynamic_shared()); }
inline constexpr u32 kSharedInFront = kCudaApartBytes;
#else
inline constexpr u32 kSharedInFront = 0;
#endif

#if defined(__CUDA_ARCH__)

class CudaLanes {
 public:
  static constexpr bool kSingleLane = false;
  static constexpr u32 kWarp = 32;
  static constexpr u32 kLanes = kCudaLanes;
  static constexpr u32 kApartBarrier = 8;  // and three more
  static constexpr u32 kBarrier = 1;  // 0 is for the whole block, which may have warps that are no lanes

  /// Scratch is the block's dynamic shared memory, of `bytes`.
  CCKS_INLINE CudaLanes(u8*, u32 bytes) : bytes_(bytes) {}

  /// The next body begins before its inputs are there. They are once a warp that is no lane arrives at `barrier`, if then *stays is 0; and
  /// before that, once *let is `number` at least, to who looks at *stays before it stores anything.
  CCKS_INLINE void begin_early(u32 barrier, const u32* stays, const u32* let, u32 number) {
    inputs_ = barrier;
    stays_ = stays;
    let_ = let;
    number_ = number;
  }
  CCKS_INLINE bool are_inputs_there() const { return static_cast<i32>(ptx::ld_acquire_cta_shared(let_) - number_) >= 0; }  // [P22] pairs with [P21]
  CCKS_INLINE bool has_begun_early() const { return inputs_ != 0; }
  CCKS_INLINE bool await_inputs() {
    if (inputs_ == 0) return runs_;
    const u32* stays = stays_;  // before what drops the L1, in which this lies
    const u32 barrier = inputs_;
    inputs_ = 0;
    ptx::barrier_sync(barrier, kLanes + kWarp);
    return runs_ = ptx::ld_relaxed_cta_shared(stays) == 0;
  }

  CCKS_INLINE bool stays() const { return ptx::ld_relaxed_cta_shared(stays_) != 0; }

  /// Bodies may wait for tags that may not come: once *hurry is not 0 they say in *given_up that they do not wait any longer, as `number`.
  CCKS_INLINE void begin_tagged(const u32* hurry, u32* given_up, u32 number) {
    hurry_ = hurry;
    given_up_ = given_up;
    number_ = number;
  }
  // Relaxed, all: lone words, of which the second is looked at behind a barrier.
  CCKS_INLINE bool is_hurried() const { return ptx::ld_relaxed_cta_shared(hurry_) != 0; }
  CCKS_INLINE void give_up() const { ptx::st_relaxed_cta_shared(given_up_, number_); }
  CCKS_INLINE bool has_given_up() const { return ptx::ld_relaxed_cta_shared(given_up_) != 0; }

  CCKS_INLINE u32 lane() const { return threadIdx.x & (kLanes - 1); }  // so that the compiler knows how large it may be
  CCKS_INLINE u32 lanes() const { return kLanes; }
  CCKS_INLINE void sync() { ptx::barrier_sync(kBarrier, kLanes); }
#if __CUDA_ARCH__ >= 800
  template <Dtype D>
  CCKS_INLINE void multiply(float (&sum)[2], const u32 (&a)[2], const u32 (&b)[2]) {
    if constexpr (D == Dtype::bf16)
      ptx::mma_8x16x8_bf16(sum, a, b);
    else
      ptx::mma_8x16x8_f16(sum, a, b);
  }
  template <Dtype D>
  CCKS_INLINE void multiply_wide(float (&sum)[4], const u32 (&a)[4], const u32 (&b)[2]) {
    if constexpr (D == Dtype::bf16)
      ptx::mma_16x16x8_bf16(sum, a, b);
    else
      ptx::mma_16x16x8_f16(sum, a, b);
  }
  CCKS_INLINE u32 turn(u32 word) const { return ptx::movmatrix(word); }
  template <Dtype D>
  CCKS_INLINE u32 pair(float low, float high) const {
    return D == Dtype::bf16 ? ptx::cvt_bf16x2(low, high) : ptx::cvt_f16x2(low, high);
  }
  CCKS_INLINE u32 low_halves(u32 a, u32 b) const { return __byte_perm(a, b, 0x5410); }
  CCKS_INLINE u32 high_halves(u32 a, u32 b) const { return __byte_perm(a, b, 0x7632); }
  CCKS_INLINE float larger(float a, float b) const { return fmaxf(a, b); }
  CCKS_INLINE float power_of_two(float v) const { return ptx::ex2(v); }
  CCKS_INLINE float inverse(float v) const { return ptx::rcp(v); }
  CCKS_INLINE float inverse_root(float v) const {
    const float near = ptx::rsqrt(v);
    return near * (1.5f - 0.5f * v * near * near);
  }
  CCKS_INLINE void copy_sixteen(u8* to, const u8* from, bool there) { ptx::copy_async_16_or_zero(to, from, there); }
  CCKS_INLINE void copy_sixteen_once(u8* to, const u8* from, bool there) { ptx::copy_async_16_once(to, from, there); }
  CCKS_INLINE void commit_copies() { ptx::copy_commit(); }
  template <u32 kLeft>
  CCKS_INLINE void await_copies() {
    ptx::copy_wait<static_cast<int>(kLeft)>();
  }
#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
  CCKS_INLINE void show_copies() { ptx::fence_proxy_async_shared(); }
  template <Dtype D, u32 kN>
  CCKS_INLINE void multiply_group(float (&sum)[kN][4], const u8* a, const u8* b, bool adds = true) {
    const u64 rows = ptx::group_operand(a), columns = ptx::group_operand(b);
    ptx::group_begin();
    CCKS_UNROLL
    for (u32 part = 0; part < 4; ++part) ptx::group_multiply<D == Dtype::bf16>(sum, rows + 2 * part, columns + 2 * part, part != 0 || adds ? 1 : 0);
    ptx::group_commit();
  }
  template <Dtype D, u32 kParts, u32 kN>
  CCKS_INLINE void multiply_parts(float (&sum)[kN][4], const u8* base, u32 a, u32 b, u32 first, bool adds) {
    const u64 operand = ptx::group_operand(base);
    ptx::group_begin();
    CCKS_UNROLL
    for (u32 part = 0; part < kParts; ++part) {
      const u32 on = 2 * (first + part);
      ptx::group_multiply<D == Dtype::bf16>(sum, ptx::group_operand_on(operand, a / 16 + on), ptx::group_operand_on(operand, b / 16 + on), part != 0 || adds ? 1 : 0);
    }
    ptx::group_commit();
  }
  CCKS_INLINE u32 of_warp(u32 v) const { return __shfl_sync(0xffffffffu, v, 0); }
  CCKS_INLINE void arrive_at(u32 which) { ptx::barrier_arrive(kApartBarrier + which, kLanes); }
  CCKS_INLINE void meet_at(u32 which) { ptx::barrier_sync(kApartBarrier + which, kLanes); }
  CCKS_INLINE void begin_group() { ptx::group_begin(); }
  CCKS_INLINE void commit_group() { ptx::group_commit(); }
  template <Dtype D, bool kFresh = false, u32 kN>
  CCKS_INLINE void multiply_held(float (&sum)[kN][4], const u32 (&a)[4], const u8* b, u32 part) {
    ptx::group_multiply_held<D == Dtype::bf16, kFresh>(sum, a, ptx::group_operand(b) + 2 * part);
  }
  template <Dtype D>
  CCKS_INLINE void multiply_down(float (&sum)[8][4], const u32 (&a)[4], const u8* b) {
    ptx::group_multiply_down<D == Dtype::bf16>(sum, a, ptx::group_operand(b));
  }
  template <u32 kN>
  CCKS_INLINE void await_group(float (&sum)[kN][4]) {
    ptx::group_wait(sum);
  }
  template <u32 kLeft>
  CCKS_INLINE void await_groups_before() {
    ptx::group_wait_for_those_before<static_cast<int>(kLeft)>();
  }
#endif
  template <class T>
  CCKS_INLINE const T* nearby(const T* p) const {
    const u8* scratch = this->scratch();  // the compiler knows where this lies, and so what is as far from it
    return reinterpret_cast<const T*>(scratch + (static_cast<i64>(__cvta_generic_to_shared(p)) - static_cast<i64>(__cvta_generic_to_shared(scratch))));
  }
#endif
  /// The next body's weights come through the ring, or not. tag: of its run.
  CCKS_INLINE void begin_tile(bool streams, u32 tag = 0) {
    streams_ = streams;
    tag_ = tag;
  }
  CCKS_INLINE u32 tag() const { return tag_; }
  // Relaxed: the word says all there is to know.
  CCKS_INLINE u64 load_tagged(const u64* p) const { return ptx::ld_relaxed_gpu(p); }
  CCKS_INLINE void load_tagged(const u64* p, u64 (&v)[2]) const { ptx::ld_relaxed_gpu(p, v); }
  CCKS_INLINE void store_tagged(u64* p, u64 v) const { ptx::st_relaxed_gpu(p, v); }
  CCKS_INLINE bool any(bool here) const { return __any_sync(0xffffffffu, here) != 0; }
  CCKS_INLINE u32 which(bool here) const { return __ballot_sync(0xffffffffu, here); }
#if CCKS_WORKER_ROW_TAGS
  static constexpr bool kRowTags = true;
#endif
#if __CUDA_ARCH__ >= 900 && CCKS_WORKER_STREAMS
  static constexpr bool kStreams = true;
  CCKS_INLINE bool streams() const { return streams_; }
  /// Kept in registers while a tile takes its stages: whatever lies behind a barrier in memory would be loaded anew each time.
  class Stream {
   public:
    CCKS_INLINE Stream(StreamRing& ring) : ring_(ring), stages_(ring.stages), at_(ring.place) {}
    /// What the copies have brought is there for whoever has seen the phase end.
    CCKS_INLINE const u8* await() const {
      while (!ptx::mbarrier_ended_acquire(&ring_.full[at_.stage], at_.round % 2)) {  // [P18] pairs with [P17]
      }
      return stage_of(ring_, at_.stage);
    }
    CCKS_INLINE void free() {
      __syncwarp();
      if (threadIdx.x % kWarp == 0) ptx::mbarrier_arrive_release(&ring_.empty[at_.stage]);  // [P19] pairs with [P20]
      at_.step(stages_);
    }
    /// By all lanes, behind a barrier behind the last stage: the next tile begins there.
    CCKS_INLINE void leave() const {
      if (threadIdx.x == 0) ring_.place = at_;
    }

   private:
    StreamRing& ring_;
    u32 stages_;
    StreamPlace at_;
  };
  CCKS_INLINE Stream stream(StreamRing& ring) const { return Stream(const_cast<StreamRing&>(*nearby(&ring))); }
#else
  static constexpr bool kStreams = false;
#endif
  // [AP1] release of what this worker has stored, and [AP2] acquire of what those have that counted themselves in before, by [AP1].
  CCKS_INLINE u32 count_in(u32* word) { return ptx::atom_acq_rel_gpu_add(word, 1); }
  CCKS_INLINE void count_in_scratch(u32* word) const { ptx::red_relaxed_cta_shared_add(word, 1); }  // relaxed: read behind a barrier
#if __CUDA_ARCH__ >= 700
  CCKS_INLINE u32 same_in_warp(u32 v) const {
    __syncwarp();
    return __match_any_sync(0xffffffffu, v);
  }
  CCKS_INLINE i32 most_in_warp(i32 v) const {
#if __CUDA_ARCH__ >= 800
    return __reduce_max_sync(0xffffffffu, v);
#else
    for (u32 step = 1; step < kWarp; step *= 2) v = most(v, __shfl_xor_sync(0xffffffffu, v, static_cast<int>(step)));
    return v;
#endif
  }
  CCKS_INLINE void sync_warp() const { __syncwarp(); }
  CCKS_INLINE u32 ones_of(u32 mask) const { return static_cast<u32>(__popc(mask)); }
#endif
  template <class T>
  CCKS_INLINE T shuffle_xor(T v, u32 mask) {
    return __shfl_xor_sync(0xffffffffu, v, static_cast<int>(mask));
  }
  CCKS_INLINE u8* scratch() const { return dynamic_shared() + kSharedInFront; }
  /// Without a look at the object, which lies in memory, where there is no ring beside scratch.
  CCKS_INLINE u32 scratch_bytes() const { return kStreams ? bytes_ : ptx::dynamic_shared_bytes() - kSharedInFront; }

  template <class T>
  CCKS_INLINE T sum(T v) {
    return fold(v, [](T a, T b) { return a + b; });
  }
  template <class T>
  CCKS_INLINE T max(T v) {
    return fold(v, [](T a, T b) { return a > b ? a : b; });
  }
  template <class T>
  CCKS_INLINE T min(T v) {
    return fold(v, [](T a, T b) { return a < b ? a : b; });
  }

 private:
  // Within warps by shuffles, then over the warps' results through shared memory. Every warp folds those in the same
  // order, so all lanes get the same bits. The barrier before the store keeps the slots of the fold before from being
  // overwritten.
  template <class T, class F>
  CCKS_INLINE T fold(T v, F f) {
    static_assert(sizeof(T) <= 8);
    T* shared = reinterpret_cast<T*>(fold_slots());
    for (u32 step = kWarp / 2; step > 0; step /= 2) v = f(v, __shfl_xor_sync(0xffffffffu, v, step));
    constexpr u32 warps = kLanes / kWarp;
    sync();
    if (threadIdx.x % kWarp == 0) shared[threadIdx.x / kWarp] = v;
    sync();
    T all = shared[0];
    for (u32 i = 1; i < warps; ++i) all = f(all, shared[i]);
    return all;
  }

  static CCKS_INLINE u64* fold_slots() {
#if CCKS_WORKER_APART
    return apart_block().slots;
#else
    __shared__ u64 slots[kWarp];
    return slots;
#endif
  }

  u32 bytes_;
  bool runs_ = true, streams_ = false;
  u32 inputs_ = 0;  // the barrier, until it has been passed
  u32 number_ = 0, tag_ = 0;
  const u32 *stays_ = nullptr, *let_ = nullptr, *hurry_ = nullptr;
  u32* given_up_ = nullptr;
};

#else

class CudaLanes {
 public:
  static constexpr bool kSingleLane = false;
  static constexpr u32 kWarp = 32;
  static constexpr u32 kLanes = kCudaLanes;
  static constexpr bool kStreams = false;
  CCKS_INLINE CudaLanes(u8* scratch, u32 bytes) : scratch_(scratch), bytes_(bytes) {}
  CCKS_INLINE void begin_tagged(const u32*, u32*, u32) {}
  CCKS_INLINE void begin_tile(bool, bool = false, u32 = 0) {}
  CCKS_INLINE void begin_early(u32, const u32*, const u32*, u32) {}
  CCKS_INLINE bool await_inputs() { return true; }
  CCKS_INLINE u32 lane() const { return 0; }
  CCKS_INLINE u32 lanes() const { return kLanes; }
  CCKS_INLINE void sync() {}
  CCKS_INLINE u32 count_in(u32*) { return 0; }
  template <class T>
  CCKS_INLINE T shuffle_xor(T v, u32) {
    return v;
  }
  CCKS_INLINE u8* scratch() const { return scratch_; }
  CCKS_INLINE u32 scratch_bytes() const { return bytes_; }
  template <class T>
  CCKS_INLINE T sum(T v) {
    return v;
  }
  template <class T>
  CCKS_INLINE T max(T v) {
    return v;
  }
  template <class T>
  CCKS_INLINE T min(T v) {
    return v;
  }

 private:
  u8* scratch_;
  u32 bytes_;
};

#endif

}  // namespace CCKS_ISA
}  // namespace ccks::worker

#endif  // __CUDACC__
