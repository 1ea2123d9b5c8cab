// Fixed-width names and the host/device marker. The one header of `wire` that looks at the compiler.
#pragma once

#if defined(__CUDACC_RTC__)
namespace ccks::wire {
using u8 = unsigned char;
using u16 = unsigned short;
using u32 = unsigned int;
using u64 = unsigned long long;
using i32 = int;
using i64 = long long;
}  // namespace ccks::wire
#else
#include <cstdint>
namespace ccks::wire {
using u8 = std::uint8_t;
using u16 = std::uint16_t;
using u32 = std::uint32_t;
using u64 = std::uint64_t;
using i32 = std::int32_t;
using i64 = std::int64_t;
}  // namespace ccks::wire
#endif

// CCKS_HD_ANY marks functions of templates whose arguments (Atoms, Platform, Ops) may live on one side only. Where such a
// function is a template itself, CCKS_ANY_SIDE stands before its `template` and CCKS_HD in its place.
#if defined(__CUDACC__)
#define CCKS_HD __host__ __device__
#define CCKS_ANY_SIDE _Pragma("nv_exec_check_disable")
#define CCKS_HD_ANY CCKS_ANY_SIDE __host__ __device__
#else
#define CCKS_HD
#define CCKS_ANY_SIDE
#define CCKS_HD_ANY
#endif

// Code that is compiled several times for different instruction sets lives in this inline namespace, so that the linker
// never swaps one build of an inline function for another. The build defines CCKS_ISA for such a source file.
#if !defined(CCKS_ISA)
#define CCKS_ISA isa_baseline
#endif

namespace ccks::wire {

inline constexpr u32 kCacheLineBytes = 128;  // two x86 lines: the adjacent-line prefetcher pairs them; one GPU L2 line
inline constexpr u32 kMaxRank = 4;           // tensors are right-aligned to this rank in every wire structure

}  // namespace ccks::wire
