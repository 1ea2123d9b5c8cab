// CudaLanes: a worker is a thread block, a lane one of its first kCudaLanes threads. Compiles with nvcc and NVRTC.
// On the host side of a .cu file it only has to exist.
#pragma once

#include "ccks/worker/isa.hpp"
#include "ccks/worker/lanes.hpp"

#if defined(__CUDACC__)

#include "ccks/worker/ptx.hpp"

namespace ccks::worker {
inline namespace CCKS_ISA {

/// Threads that run op bodies: enough warps to keep loads in flight, few enough for the registers that bodies want.
inline constexpr u32 kCudaLanes = 256;

#if defined(__CUDA_ARCH__)

class CudaLanes {
 public:
  static constexpr bool kSingleLane = false;
  static constexpr u32 kWarp = 32;
  static constexpr u32 kLanes = kCudaLanes;
  static constexpr u32 kBarrier = 1;  // 0 is for the whole block, which may have warps that are no lanes

  /// Scratch is the block's dynamic shared memory, of `bytes`.
  CCKS_INLINE CudaLanes(u8*, u32 bytes) : bytes_(bytes) {}

  /// The next body begins before its inputs are there. They are once a warp that is no lane arrives at `barrier`, if then *stays is 0.
  CCKS_INLINE void begin_early(u32 barrier, const u32* stays) {
    inputs_ = barrier;
    stays_ = stays;
  }
  CCKS_INLINE bool await_inputs() {
    if (inputs_ == 0) return runs_;
    ptx::barrier_sync(inputs_, kLanes + kWarp);
    inputs_ = 0;
    return runs_ = ptx::ld_relaxed_cta_shared(stays_) == 0;
  }

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
#endif
  // [AP1] release of what this worker has stored, and [AP2] acquire of what those have that counted themselves in before, by [AP1].
  CCKS_INLINE u32 count_in(u32* word) { return ptx::atom_acq_rel_gpu_add(word, 1); }
  template <class T>
  CCKS_INLINE T shuffle_xor(T v, u32 mask) {
    return __shfl_xor_sync(0xffffffffu, v, static_cast<int>(mask));
  }
  /// By its name, so that bodies that are linked know it to be shared memory, and where.
  CCKS_INLINE u8* scratch() const {
    extern __shared__ __align__(128) u8 ccks_scratch[];
    return ccks_scratch;
  }
  CCKS_INLINE u32 scratch_bytes() const { return bytes_; }

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
    __shared__ u64 slots[kWarp];
    T* shared = reinterpret_cast<T*>(slots);
    for (u32 step = kWarp / 2; step > 0; step /= 2) v = f(v, __shfl_xor_sync(0xffffffffu, v, step));
    constexpr u32 warps = kLanes / kWarp;
    sync();
    if (threadIdx.x % kWarp == 0) shared[threadIdx.x / kWarp] = v;
    sync();
    T all = shared[0];
    for (u32 i = 1; i < warps; ++i) all = f(all, shared[i]);
    return all;
  }

  u32 bytes_;
  bool runs_ = true;
  u32 inputs_ = 0;  // the barrier, until it has been passed
  const u32* stays_ = nullptr;
};

#else

class CudaLanes {
 public:
  static constexpr bool kSingleLane = false;
  static constexpr u32 kWarp = 32;
  static constexpr u32 kLanes = kCudaLanes;
  CCKS_INLINE CudaLanes(u8* scratch, u32 bytes) : scratch_(scratch), bytes_(bytes) {}
  CCKS_INLINE void begin_early(u32, const u32*) {}
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
