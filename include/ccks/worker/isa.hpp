// What the tile ops need to know about compiler and instruction set. The one header of the ops, with math.hpp and the
// lanes headers, that looks at the compiler.
//
// The host worker is compiled once per instruction set and all copies end up in one program. Everything the ops define
// stands in an inline namespace named CCKS_ISA (wire/base.hpp has the default), so that no linker can pick an AVX-512
// copy of a function for a machine without it; for the same reason hot code calls nothing inline of the standard
// library.
#pragma once

#include "ccks/wire/base.hpp"
#include "ccks/wire/dtype.hpp"
#include "ccks/wire/frame.hpp"
#include "ccks/wire/op_layout.hpp"
#include "ccks/wire/op_shape.hpp"
#include "ccks/wire/task.hpp"

#if defined(__CUDACC__)
#define CCKS_HOST_BODIES 0  // one-lane bodies use vector extensions that device compilers do not know
#define CCKS_INLINE __host__ __device__ __forceinline__
#define CCKS_OUTLINE inline __host__ __device__ __noinline__
// 0: none of a program's weights come through a ring, and its worker is made without: a tenth of the loop's code, and a call of each
// product of a fixed shape.
#if !defined(CCKS_WORKER_STREAMS)
#define CCKS_WORKER_STREAMS 1
#endif
// 1: products of the program that stream hand their rows on by tags: tiles of one row (tagged_rows.hpp; WorkerImage::cuda_row_tags), and relays.
#if !defined(CCKS_WORKER_ROW_TAGS)
#define CCKS_WORKER_ROW_TAGS 0
#endif
// Rows of each product of a relay (WorkerImage::cuda_relay_rows).
#if !defined(CCKS_WORKER_RELAY_ROWS)
#define CCKS_WORKER_RELAY_ROWS 1
#endif
// 1: relays have steps by experts that a route has chosen (WorkerImage::cuda_relay_experts).
#if !defined(CCKS_WORKER_RELAY_EXPERTS)
#define CCKS_WORKER_RELAY_EXPERTS 0
#endif
// 1: bodies have most of the shared memory that there is (kCudaGroupedScratchBytes), and the pipeline has less, so that more is left for the L1.
#if !defined(CCKS_WORKER_ROOMY)
#define CCKS_WORKER_ROOMY 0
#endif
// 1: the program has experts' bodies whose tiles run in turn (body_turns.cuh): it is roomy, and none of its weights come through a ring.
#if !defined(CCKS_WORKER_TURNS)
#define CCKS_WORKER_TURNS 0
#endif
// 1: bodies are an image of their own, which the loop calls by address (apart_ops.cuh).
#if !defined(CCKS_WORKER_APART)
#define CCKS_WORKER_APART 0
#endif
// How many registers a linked function leaves as they were for its caller, in front of it and of its declarations (not of templates: CUDA 13.0 forgets it where
// such a function is used before it is defined). By the usual convention it is more than eighty: a function of many registers then begins and ends with storing
// and loading 250 to 700 bytes a lane. Functions that call each other have different numbers, since that is where return addresses go; who has 128 sums in
// registers beside each other has room for no more than eight.
#if __CUDACC_VER_MAJOR__ >= 13
#define CCKS_KEEPS(registers) CCKS_PRAGMA(nv_abi preserve_n_data(registers))
#define CCKS_PRAGMA(text) _Pragma(#text)
#else
#define CCKS_KEEPS(registers)
#endif
#define CCKS_IVDEP
#define CCKS_UNROLL _Pragma("unroll")  // rows of registers need indices known when compiled
#define CCKS_NO_UNROLL _Pragma("unroll 1")  // long bodies: several turns at once want more registers than there are
#else
#define CCKS_UNROLL
#define CCKS_NO_UNROLL
#define CCKS_HOST_BODIES 1
#define CCKS_INLINE inline __attribute__((always_inline))
#define CCKS_OUTLINE inline __attribute__((noinline))  // one copy of what generic ops do for six dtypes: build time
#if defined(__clang__)
#define CCKS_IVDEP  // clang warns where it cannot follow, and checks overlap at run time by itself
#else
#define CCKS_IVDEP _Pragma("GCC ivdep")  // the loop carries no dependence: rows of registers never overlap by halves
#endif
#endif

namespace ccks::worker {
inline namespace CCKS_ISA {

using wire::Dtype;
using wire::ExprInstr;
using wire::ExprOp;
using wire::FaultCode;
using wire::GuardParams;
using wire::i32;
using wire::i64;
using wire::OpCode;
using wire::OperandParams;
using wire::OpParams;
using wire::RunFrame;
using wire::u16;
using wire::u32;
using wire::u64;
using wire::u8;

template <class To, class From>
CCKS_INLINE constexpr To bit_cast(From from) {
  static_assert(sizeof(To) == sizeof(From));
  return __builtin_bit_cast(To, from);
}

template <class T>
CCKS_INLINE constexpr T least(T a, T b) {
  return a < b ? a : b;
}
template <class T>
CCKS_INLINE constexpr T most(T a, T b) {
  return a > b ? a : b;
}
CCKS_INLINE constexpr u32 ceil_div(u32 a, u32 b) { return (a + b - 1) / b; }
CCKS_INLINE constexpr u32 round_up(u32 a, u32 b) { return ceil_div(a, b) * b; }

/// Of v > 0, rounded down.
CCKS_INLINE u32 log2_of(u32 v) {
#if defined(__CUDA_ARCH__)
  return 31 - static_cast<u32>(__clz(static_cast<int>(v)));
#elif defined(__CUDACC_RTC__)
  return 0;
#else
  return 31 - static_cast<u32>(__builtin_clz(v));
#endif
}
/// The least power of two that is at least v > 0.
CCKS_INLINE u32 ceil_pow2(u32 v) { return v == 1 ? 1 : 2u << log2_of(v - 1); }

/// Copies bytes that do not overlap; for bodies of one lane.
CCKS_INLINE void copy_bytes(void* to, const void* from, u64 bytes) {
#if defined(__CUDACC__)
  for (u64 i = 0; i < bytes; ++i) static_cast<u8*>(to)[i] = static_cast<const u8*>(from)[i];
#else
  __builtin_memcpy(to, from, bytes);
#endif
}

/// 16 bytes as they are, in registers.
struct alignas(16) Sixteen {
  u32 word[4];
};
/// Loads what will not be read again soon, at a multiple of 16, and lets it leave the caches first.
CCKS_INLINE Sixteen load_once(const u8* p) {
#if defined(__CUDA_ARCH__)
  const uint4 v = __ldcs(reinterpret_cast<const uint4*>(p));
  return {{v.x, v.y, v.z, v.w}};
#else
  return *reinterpret_cast<const Sixteen*>(p);
#endif
}

/// Asks for the line at `p` ahead of need; never faults.
CCKS_INLINE void prefetch_line(const void* p) {
#if defined(__CUDA_ARCH__)
  asm volatile("prefetch.global.L2 [%0];" ::"l"(p));
#elif !defined(__CUDACC_RTC__)
  __builtin_prefetch(p);
#endif
}
/// The same of a run of bytes; both are multiples of 16. In one instruction where there is one.
CCKS_INLINE void prefetch_bytes(const u8* p, u32 bytes) {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
  asm volatile("cp.async.bulk.prefetch.L2.global [%0], %1;" ::"l"(p), "r"(bytes));
#else
  for (u32 at = 0; at < bytes; at += wire::kCacheLineBytes) prefetch_line(p + at);
#endif
}

}  // namespace CCKS_ISA
}  // namespace ccks::worker
