// Products of four warps together, in the background, of what lies in shared memory (wgmma). sm_90a has them alone.
#pragma once

#include "ccks/worker/ptx.hpp"

#if defined(__CUDACC__) && defined(__CUDA_ARCH_FEAT_SM90_ALL)

namespace ccks::worker::ptx {

#define CCKS_SUMS_1(j) "+f"(d[j][0]), "+f"(d[j][1]), "+f"(d[j][2]), "+f"(d[j][3])
#define CCKS_SUMS_2(j) CCKS_SUMS_1(j), CCKS_SUMS_1(j + 1)
#define CCKS_SUMS_4(j) CCKS_SUMS_2(j), CCKS_SUMS_2(j + 2)
#define CCKS_SUMS_8(j) CCKS_SUMS_4(j), CCKS_SUMS_4(j + 4)
#define CCKS_SUMS_6(j) CCKS_SUMS_4(j), CCKS_SUMS_2(j + 4)
#define CCKS_SUMS_12(j) CCKS_SUMS_8(j), CCKS_SUMS_4(j + 8)
#define CCKS_SUMS_16(j) CCKS_SUMS_8(j), CCKS_SUMS_8(j + 8)
#define CCKS_SUMS_20(j) CCKS_SUMS_16(j), CCKS_SUMS_4(j + 16)
#define CCKS_SUMS_24(j) CCKS_SUMS_16(j), CCKS_SUMS_8(j + 16)
#define CCKS_SUMS_32(j) CCKS_SUMS_24(j), CCKS_SUMS_8(j + 24)
#define CCKS_WORDS_1 "%0, %1, %2, %3"
#define CCKS_WORDS_2 CCKS_WORDS_1 ", %4, %5, %6, %7"
#define CCKS_WORDS_4 "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15"
#define CCKS_WORDS_8 CCKS_WORDS_4 ", %16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31"
#define CCKS_WORDS_6 CCKS_WORDS_4 ", %16, %17, %18, %19, %20, %21, %22, %23"
#define CCKS_WORDS_12 CCKS_WORDS_8 ", %32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47"
#define CCKS_WORDS_16 CCKS_WORDS_8 ", %32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47, %48, %49, %50, %51, %52, %53, %54, %55, %56, %57, %58, %59, %60, %61, %62, %63"
#define CCKS_WORDS_20 CCKS_WORDS_16 ", %64, %65, %66, %67, %68, %69, %70, %71, %72, %73, %74, %75, %76, %77, %78, %79"
#define CCKS_WORDS_24                                                                                                                                            \
  CCKS_WORDS_16 ", %64, %65, %66, %67, %68, %69, %70, %71, %72, %73, %74, %75, %76, %77, %78, %79, %80, %81, %82, %83, %84, %85, %86, %87, %88, %89, %90, %91, %92, %93, %94, %95"
#define CCKS_WORDS_32 CCKS_WORDS_24 ", %96, %97, %98, %99, %100, %101, %102, %103, %104, %105, %106, %107, %108, %109, %110, %111, %112, %113, %114, %115, %116, %117, %118, %119, %120, %121, %122, %123, %124, %125, %126, %127"
#define CCKS_GROUP_MULTIPLY(type, columns, n, first, second, third)                                                                                   \
  asm volatile("{ .reg .pred p; setp.ne.b32 p, %" #third ", 0; wgmma.mma_async.sync.aligned.m64n" #columns "k16.f32." #type "." #type " {" CCKS_WORDS_##n \
               "}, %" #first ", %" #second ", p, 1, 1, 0, 0; }"                                                                                \
               : CCKS_SUMS_##n(0)                                                                                                              \
               : "l"(a), "l"(b), "r"(adds))

inline constexpr u64 kOperandLayout = u64{1} << 62 | u64{1024 / 16} << 32;  // swizzle 128B, and from eight rows to the next
/// Rows of 128 bytes, on a multiple of 1,024: packet p of 16 bytes of row r stands at place p ^ r % 8 (swizzle 128B). Start, and from eight rows to the
/// next, in units of 16 bytes.
__device__ __forceinline__ u64 group_operand(const void* rows) {
  constexpr u64 kUnused = u64{1} << 16;
  return kOperandLayout | kUnused | (shared_address(rows) >> 4 & 0x3fff);
}
/// The same, so many units on, within shared memory: nothing is carried into the upper word, which is the same of all operands.
__device__ __forceinline__ u64 group_operand_on(u64 operand, u32 units) { return kOperandLayout | (static_cast<u32>(operand) + units); }
/// Before the first product: what this thread has done with the sums is done.
__device__ __forceinline__ void group_begin() { asm volatile("wgmma.fence.sync.aligned;" ::: "memory"); }
__device__ __forceinline__ void group_commit() { asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory"); }

/// d[64 x 8 kN] += a[64 x 16] times b[8 kN x 16] turned, of 16-bit floats: the operands as group_operand says, 16 elements along k from there on. Without `adds` d is what comes out,
/// whatever it was.
template <bool kBf16, u32 kN>
__device__ __forceinline__ void group_multiply(float (&d)[kN][4], u64 a, u64 b, u32 adds) {
  static_assert(kN == 1 || kN == 2 || kN == 4 || kN == 6 || kN == 8 || kN == 12 || kN == 16 || kN == 20 || kN == 24 || kN == 32);
  if constexpr (kN == 1 && kBf16) CCKS_GROUP_MULTIPLY(bf16, 8, 1, 4, 5, 6);
  if constexpr (kN == 1 && !kBf16) CCKS_GROUP_MULTIPLY(f16, 8, 1, 4, 5, 6);
  if constexpr (kN == 2 && kBf16) CCKS_GROUP_MULTIPLY(bf16, 16, 2, 8, 9, 10);
  if constexpr (kN == 2 && !kBf16) CCKS_GROUP_MULTIPLY(f16, 16, 2, 8, 9, 10);
  if constexpr (kN == 4 && kBf16) CCKS_GROUP_MULTIPLY(bf16, 32, 4, 16, 17, 18);
  if constexpr (kN == 4 && !kBf16) CCKS_GROUP_MULTIPLY(f16, 32, 4, 16, 17, 18);
  if constexpr (kN == 6 && kBf16) CCKS_GROUP_MULTIPLY(bf16, 48, 6, 24, 25, 26);
  if constexpr (kN == 6 && !kBf16) CCKS_GROUP_MULTIPLY(f16, 48, 6, 24, 25, 26);
  if constexpr (kN == 8 && kBf16) CCKS_GROUP_MULTIPLY(bf16, 64, 8, 32, 33, 34);
  if constexpr (kN == 8 && !kBf16) CCKS_GROUP_MULTIPLY(f16, 64, 8, 32, 33, 34);
  if constexpr (kN == 12 && kBf16) CCKS_GROUP_MULTIPLY(bf16, 96, 12, 48, 49, 50);
  if constexpr (kN == 12 && !kBf16) CCKS_GROUP_MULTIPLY(f16, 96, 12, 48, 49, 50);
  if constexpr (kN == 16 && kBf16) CCKS_GROUP_MULTIPLY(bf16, 128, 16, 64, 65, 66);
  if constexpr (kN == 16 && !kBf16) CCKS_GROUP_MULTIPLY(f16, 128, 16, 64, 65, 66);
  if constexpr (kN == 20 && kBf16) CCKS_GROUP_MULTIPLY(bf16, 160, 20, 80, 81, 82);
  if constexpr (kN == 20 && !kBf16) CCKS_GROUP_MULTIPLY(f16, 160, 20, 80, 81, 82);
  if constexpr (kN == 24 && kBf16) CCKS_GROUP_MULTIPLY(bf16, 192, 24, 96, 97, 98);
  if constexpr (kN == 24 && !kBf16) CCKS_GROUP_MULTIPLY(f16, 192, 24, 96, 97, 98);
  if constexpr (kN == 32 && kBf16) CCKS_GROUP_MULTIPLY(bf16, 256, 32, 128, 129, 130);
  if constexpr (kN == 32 && !kBf16) CCKS_GROUP_MULTIPLY(f16, 256, 32, 128, 129, 130);
}
#define CCKS_HELD_MULTIPLY(type, columns, n, adds, first, second, third, fourth, operand, down)                                                 \
  asm volatile("{ .reg .pred p; setp.ne.b32 p, " #adds ", 0; wgmma.mma_async.sync.aligned.m64n" #columns "k16.f32." #type "." #type " {" CCKS_WORDS_##n \
               "}, {%" #first ", %" #second ", %" #third ", %" #fourth "}, %" #operand ", p, 1, 1, " #down "; }"                                \
               : CCKS_SUMS_##n(0)                                                                                                               \
               : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b))

/// group_multiply of what a lane has in its registers, as mma_16x16x8 has it; kFresh: d is what comes out, whatever it was.
template <bool kBf16, bool kFresh, u32 kN>
__device__ __forceinline__ void group_multiply_held(float (&d)[kN][4], const u32 (&a)[4], u64 b) {
  static_assert(kN == 4 || kN == 8);
  if constexpr (kN == 4 && kBf16 && kFresh) CCKS_HELD_MULTIPLY(bf16, 32, 4, 0, 16, 17, 18, 19, 20, 0);
  if constexpr (kN == 4 && kBf16 && !kFresh) CCKS_HELD_MULTIPLY(bf16, 32, 4, 1, 16, 17, 18, 19, 20, 0);
  if constexpr (kN == 4 && !kBf16 && kFresh) CCKS_HELD_MULTIPLY(f16, 32, 4, 0, 16, 17, 18, 19, 20, 0);
  if constexpr (kN == 4 && !kBf16 && !kFresh) CCKS_HELD_MULTIPLY(f16, 32, 4, 1, 16, 17, 18, 19, 20, 0);
  if constexpr (kN == 8 && kBf16 && kFresh) CCKS_HELD_MULTIPLY(bf16, 64, 8, 0, 32, 33, 34, 35, 36, 0);
  if constexpr (kN == 8 && kBf16 && !kFresh) CCKS_HELD_MULTIPLY(bf16, 64, 8, 1, 32, 33, 34, 35, 36, 0);
  if constexpr (kN == 8 && !kBf16 && kFresh) CCKS_HELD_MULTIPLY(f16, 64, 8, 0, 32, 33, 34, 35, 36, 0);
  if constexpr (kN == 8 && !kBf16 && !kFresh) CCKS_HELD_MULTIPLY(f16, 64, 8, 1, 32, 33, 34, 35, 36, 0);
}
/// d[64 x 64] += a[64 x 16] times b[16 x 64]: sixteen rows as group_operand says.
template <bool kBf16>
__device__ __forceinline__ void group_multiply_down(float (&d)[8][4], const u32 (&a)[4], u64 b) {
  if constexpr (kBf16)
    CCKS_HELD_MULTIPLY(bf16, 64, 8, 1, 32, 33, 34, 35, 36, 1);
  else
    CCKS_HELD_MULTIPLY(f16, 64, 8, 1, 32, 33, 34, 35, 36, 1);
}

/// All products of these warps are done. With the sums, so that nobody looks at them earlier.
template <u32 kN>
__device__ __forceinline__ void group_wait(float (&d)[kN][4]) {
  if constexpr (kN == 1) asm volatile("wgmma.wait_group.sync.aligned 0;" : CCKS_SUMS_1(0)::"memory");
  if constexpr (kN == 2) asm volatile("wgmma.wait_group.sync.aligned 0;" : CCKS_SUMS_2(0)::"memory");
  if constexpr (kN == 4) asm volatile("wgmma.wait_group.sync.aligned 0;" : CCKS_SUMS_4(0)::"memory");
  if constexpr (kN == 6) asm volatile("wgmma.wait_group.sync.aligned 0;" : CCKS_SUMS_6(0)::"memory");
  if constexpr (kN == 8) asm volatile("wgmma.wait_group.sync.aligned 0;" : CCKS_SUMS_8(0)::"memory");
  if constexpr (kN == 12) asm volatile("wgmma.wait_group.sync.aligned 0;" : CCKS_SUMS_12(0)::"memory");
  if constexpr (kN == 16) asm volatile("wgmma.wait_group.sync.aligned 0;" : CCKS_SUMS_16(0)::"memory");
  if constexpr (kN == 20) asm volatile("wgmma.wait_group.sync.aligned 0;" : CCKS_SUMS_20(0)::"memory");
  if constexpr (kN == 24) asm volatile("wgmma.wait_group.sync.aligned 0;" : CCKS_SUMS_24(0)::"memory");
  if constexpr (kN == 32) asm volatile("wgmma.wait_group.sync.aligned 0;" : CCKS_SUMS_32(0)::"memory");
}

/// All products but those of the kLeft groups committed last are done; their sums are not looked at yet.
template <int kLeft>
__device__ __forceinline__ void group_wait_for_those_before() {
  asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(kLeft) : "memory");
}

#undef CCKS_HELD_MULTIPLY
#undef CCKS_GROUP_MULTIPLY
#undef CCKS_WORDS_32
#undef CCKS_WORDS_24
#undef CCKS_WORDS_20
#undef CCKS_WORDS_16
#undef CCKS_WORDS_12
#undef CCKS_WORDS_8
#undef CCKS_WORDS_6
#undef CCKS_WORDS_4
#undef CCKS_WORDS_2
#undef CCKS_WORDS_1
#undef CCKS_SUMS_32
#undef CCKS_SUMS_24
#undef CCKS_SUMS_20
#undef CCKS_SUMS_16
#undef CCKS_SUMS_12
#undef CCKS_SUMS_8
#undef CCKS_SUMS_6
#undef CCKS_SUMS_4
#undef CCKS_SUMS_2
#undef CCKS_SUMS_1

}  // namespace ccks::worker::ptx

#endif
