// Elements in memory: the six dtypes, their conversions, and runs of elements with a stride.
#pragma once

#include "ccks/worker/math.hpp"

namespace ccks::worker {
inline namespace CCKS_ISA {

template <Dtype D>
struct StorageOf;
template <>
struct StorageOf<Dtype::f32> {
  using type = float;
};
template <>
struct StorageOf<Dtype::f16> {
  using type = u16;
};
template <>
struct StorageOf<Dtype::bf16> {
  using type = u16;
};
template <>
struct StorageOf<Dtype::i32> {
  using type = i32;
};
template <>
struct StorageOf<Dtype::i64> {
  using type = i64;
};
template <>
struct StorageOf<Dtype::boolean> {
  using type = u8;
};
template <Dtype D>
using Storage = typename StorageOf<D>::type;

/// A dtype known when the op is compiled.
template <Dtype D>
struct Fixed {
  static constexpr Dtype kDtype = D;
  CCKS_HD static constexpr Dtype get() { return D; }
};
/// A dtype read from the frame.
struct Runtime {
  Dtype dtype;
  CCKS_INLINE Dtype get() const { return dtype; }
};

/// Calls f with the Fixed dtype that `t` stands for.
template <Dtype D, class F>
CCKS_INLINE auto visit(Fixed<D> t, F&& f) {
  return f(t);
}
template <class F>
CCKS_INLINE auto visit(Runtime t, F&& f) {
  switch (t.dtype) {
    case Dtype::f32:
      return f(Fixed<Dtype::f32>{});
    case Dtype::f16:
      return f(Fixed<Dtype::f16>{});
    case Dtype::bf16:
      return f(Fixed<Dtype::bf16>{});
    case Dtype::i32:
      return f(Fixed<Dtype::i32>{});
    case Dtype::i64:
      return f(Fixed<Dtype::i64>{});
    default:
      return f(Fixed<Dtype::boolean>{});
  }
}

template <class T>
CCKS_INLINE constexpr u32 bytes_of(T t) {
  return wire::dtype_bytes(t.get());
}

// ---- one element --------------------------------------------------------------------------------------------------

CCKS_INLINE float bf16_to_f32(u16 v) { return bit_cast<float>(static_cast<u32>(v) << 16); }

/// Nearest, ties to even; NaN stays NaN.
CCKS_INLINE u16 f32_to_bf16(float v) {
  if constexpr (kRoundsByHardware) return hardware_bf16(v);
  const u32 u = bit_cast<u32>(v);
  const u32 rounded = (u + 0x7fffu + ((u >> 16) & 1u)) >> 16;
  const u32 nan = (u >> 16) | 0x40u;
  return static_cast<u16>((u & 0x7fffffffu) > 0x7f800000u ? nan : rounded);
}

/// The exponent is rebased by multiplying with 2^112, which is exact and also right for subnormals.
CCKS_INLINE float f16_to_f32(u16 v) {
  const u32 magnitude = static_cast<u32>(v & 0x7fffu) << 13;
  const u32 scaled = bit_cast<u32>(bit_cast<float>(magnitude) * 5192296858534827628530496329220096.0f);
  const u32 special = magnitude | 0x7f800000u;
  const u32 bits = magnitude >= 0x0f800000u ? special : scaled;
  return bit_cast<float>(bits | static_cast<u32>(v & 0x8000u) << 16);
}

/// Nearest, ties to even. Subnormal results: adding 0.5 lets the adder round at 2^-24, the unit of f16 subnormals.
CCKS_INLINE u16 f32_to_f16(float v) {
  if constexpr (kRoundsByHardware) return hardware_f16(v);
  const u32 u = bit_cast<u32>(v), magnitude = u & 0x7fffffffu, sign = (u >> 16) & 0x8000u;
  const u32 normal = (magnitude + 0xfffu + ((magnitude >> 13) & 1u) - 0x38000000u) >> 13;
  const u32 subnormal = bit_cast<u32>(bit_cast<float>(magnitude) + 0.5f) - 0x3f000000u;
  u32 half = magnitude < 0x38800000u ? subnormal : normal;
  half = magnitude >= 0x477ff000u ? 0x7c00u : half;
  half = magnitude > 0x7f800000u ? 0x7e00u : half;
  return static_cast<u16>(half | sign);
}

CCKS_INLINE i32 saturate_i32(i64 v) {
  return static_cast<i32>(least<i64>(most<i64>(v, -2147483647ll - 1), 2147483647ll));
}

template <Dtype D>
CCKS_INLINE float to_float(Storage<D> v) {
  if constexpr (D == Dtype::f16)
    return f16_to_f32(v);
  else if constexpr (D == Dtype::bf16)
    return bf16_to_f32(v);
  else
    return static_cast<float>(v);
}
template <Dtype D>
CCKS_INLINE i64 to_int(Storage<D> v) {
  if constexpr (wire::dtype_is_float(D))
    return i_from_f(to_float<D>(v));
  else
    return static_cast<i64>(v);
}
/// Integers take the nearest value, ties to even, and saturate; NaN is 0.
template <Dtype D>
CCKS_INLINE Storage<D> from_float(float v) {
  if constexpr (D == Dtype::f32)
    return v;
  else if constexpr (D == Dtype::f16)
    return f32_to_f16(v);
  else if constexpr (D == Dtype::bf16)
    return f32_to_bf16(v);
  else if constexpr (D == Dtype::boolean)
    return v != 0.0f ? 1 : 0;
  else if constexpr (D == Dtype::i32)
    return saturate_i32(i_from_f(f_round(v)));
  else
    return i_from_f(f_round(v));
}
template <Dtype D>
CCKS_INLINE Storage<D> from_int(i64 v) {
  if constexpr (D == Dtype::i32)
    return saturate_i32(v);
  else if constexpr (D == Dtype::i64)
    return v;
  else if constexpr (D == Dtype::boolean)
    return v != 0 ? 1 : 0;
  else
    return from_float<D>(static_cast<float>(v));
}

template <Dtype D>
CCKS_INLINE float load_float(Fixed<D>, const u8* base, i64 index) {
  return to_float<D>(reinterpret_cast<const Storage<D>*>(base)[index]);
}
template <Dtype D>
CCKS_INLINE i64 load_int(Fixed<D>, const u8* base, i64 index) {
  return to_int<D>(reinterpret_cast<const Storage<D>*>(base)[index]);
}
template <Dtype D>
CCKS_INLINE void store_float(Fixed<D>, u8* base, i64 index, float v) {
  reinterpret_cast<Storage<D>*>(base)[index] = from_float<D>(v);
}
template <Dtype D>
CCKS_INLINE void store_int(Fixed<D>, u8* base, i64 index, i64 v) {
  reinterpret_cast<Storage<D>*>(base)[index] = from_int<D>(v);
}
// Function objects, because NVRTC takes generic lambdas for host functions.
struct FloatLoad {
  const u8* base;
  i64 index;
  template <Dtype D>
  CCKS_INLINE float operator()(Fixed<D> t) const {
    return load_float(t, base, index);
  }
};
struct IntLoad {
  const u8* base;
  i64 index;
  template <Dtype D>
  CCKS_INLINE i64 operator()(Fixed<D> t) const {
    return load_int(t, base, index);
  }
};
struct FloatStore {
  u8* base;
  i64 index;
  float v;
  template <Dtype D>
  CCKS_INLINE void operator()(Fixed<D> t) const {
    store_float(t, base, index, v);
  }
};
struct IntStore {
  u8* base;
  i64 index, v;
  template <Dtype D>
  CCKS_INLINE void operator()(Fixed<D> t) const {
    store_int(t, base, index, v);
  }
};
CCKS_OUTLINE float load_float(Runtime t, const u8* base, i64 index) { return visit(t, FloatLoad{base, index}); }
CCKS_OUTLINE i64 load_int(Runtime t, const u8* base, i64 index) { return visit(t, IntLoad{base, index}); }
CCKS_OUTLINE void store_float(Runtime t, u8* base, i64 index, float v) { visit(t, FloatStore{base, index, v}); }
CCKS_OUTLINE void store_int(Runtime t, u8* base, i64 index, i64 v) { visit(t, IntStore{base, index, v}); }

// ---- runs of elements ---------------------------------------------------------------------------------------------
// `stride` is in elements. Buffers are local, so they never overlap the tensor.

template <Dtype D>
CCKS_INLINE void load_run_fixed(const u8* base, i64 stride, u32 n, float* __restrict to) {
  const auto* from = reinterpret_cast<const Storage<D>*>(base);
  if (stride == 1) {
    for (u32 i = 0; i < n; ++i) to[i] = to_float<D>(from[i]);
  } else if (stride == 0) {
    const float v = to_float<D>(from[0]);
    for (u32 i = 0; i < n; ++i) to[i] = v;
  } else {
    for (u32 i = 0; i < n; ++i) to[i] = to_float<D>(from[i * stride]);
  }
}
template <Dtype D>
CCKS_INLINE void load_run_fixed(const u8* base, i64 stride, u32 n, i64* __restrict to) {
  const auto* from = reinterpret_cast<const Storage<D>*>(base);
  for (u32 i = 0; i < n; ++i) to[i] = to_int<D>(from[i * stride]);
}
template <Dtype D>
CCKS_INLINE void store_run_fixed(u8* base, i64 stride, u32 n, const float* __restrict from) {
  auto* to = reinterpret_cast<Storage<D>*>(base);
  if (stride == 1) {
    for (u32 i = 0; i < n; ++i) to[i] = from_float<D>(from[i]);
  } else {
    for (u32 i = 0; i < n; ++i) to[i * stride] = from_float<D>(from[i]);
  }
}
template <Dtype D>
CCKS_INLINE void store_run_fixed(u8* base, i64 stride, u32 n, const i64* __restrict from) {
  auto* to = reinterpret_cast<Storage<D>*>(base);
  for (u32 i = 0; i < n; ++i) to[i * stride] = from_int<D>(from[i]);
}

/// Value is float or i64.
template <Dtype D, class Value>
CCKS_INLINE void load_run(Fixed<D>, const u8* base, i64 stride, u32 n, Value* to) {
  load_run_fixed<D>(base, stride, n, to);
}
template <Dtype D, class Value>
CCKS_INLINE void store_run(Fixed<D>, u8* base, i64 stride, u32 n, const Value* from) {
  store_run_fixed<D>(base, stride, n, from);
}
template <class Value>
struct RunLoad {
  const u8* base;
  i64 stride;
  u32 n;
  Value* to;
  template <Dtype D>
  CCKS_INLINE void operator()(Fixed<D>) const {
    load_run_fixed<D>(base, stride, n, to);
  }
};
template <class Value>
struct RunStore {
  u8* base;
  i64 stride;
  u32 n;
  const Value* from;
  template <Dtype D>
  CCKS_INLINE void operator()(Fixed<D>) const {
    store_run_fixed<D>(base, stride, n, from);
  }
};
template <class Value>
CCKS_OUTLINE void load_run(Runtime t, const u8* base, i64 stride, u32 n, Value* to) {
  visit(t, RunLoad<Value>{base, stride, n, to});
}
template <class Value>
CCKS_OUTLINE void store_run(Runtime t, u8* base, i64 stride, u32 n, const Value* from) {
  visit(t, RunStore<Value>{base, stride, n, from});
}

}  // namespace CCKS_ISA
}  // namespace ccks::worker
