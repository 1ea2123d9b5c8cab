// Four neighbouring elements at a time, in one access of up to 16 bytes where a lane is one of many.
#pragma once

#include "ccks/worker/call.hpp"

namespace ccks::worker {
inline namespace CCKS_ISA {

inline constexpr u32 kVector = 4;

template <class S>
struct alignas(sizeof(S) * kVector < 16 ? sizeof(S) * kVector : 16) Four {
  S v[kVector];
};

/// What the address of a vector must be a multiple of.
CCKS_INLINE constexpr u32 vector_alignment(u32 element_bytes) { return least(element_bytes * kVector, 16u); }
CCKS_INLINE bool vector_aligned(const u8* p, u32 element_bytes) {
  return (static_cast<u32>(reinterpret_cast<u64>(p)) & (vector_alignment(element_bytes) - 1)) == 0;
}

template <Dtype D>
CCKS_INLINE void load_four(Fixed<D>, const u8* from, float* to) {
  const Four<Storage<D>> q = *reinterpret_cast<const Four<Storage<D>>*>(from);
  for (u32 i = 0; i < kVector; ++i) to[i] = to_float<D>(q.v[i]);
}
template <Dtype D>
CCKS_INLINE void load_four(Fixed<D>, const u8* from, i64* to) {
  const Four<Storage<D>> q = *reinterpret_cast<const Four<Storage<D>>*>(from);
  for (u32 i = 0; i < kVector; ++i) to[i] = to_int<D>(q.v[i]);
}
template <Dtype D>
CCKS_INLINE void store_four(Fixed<D>, u8* to, const float* from) {
  Four<Storage<D>> q;
  for (u32 i = 0; i < kVector; ++i) q.v[i] = from_float<D>(from[i]);
  *reinterpret_cast<Four<Storage<D>>*>(to) = q;
}
template <Dtype D>
CCKS_INLINE void store_four(Fixed<D>, u8* to, const i64* from) {
  Four<Storage<D>> q;
  for (u32 i = 0; i < kVector; ++i) q.v[i] = from_int<D>(from[i]);
  *reinterpret_cast<Four<Storage<D>>*>(to) = q;
}

template <class Value>
struct FourLoad {
  const u8* from;
  Value* to;
  template <Dtype D>
  CCKS_INLINE void operator()(Fixed<D> t) const {
    load_four(t, from, to);
  }
};
template <class Value>
struct FourStore {
  u8* to;
  const Value* from;
  template <Dtype D>
  CCKS_INLINE void operator()(Fixed<D> t) const {
    store_four(t, to, from);
  }
};
template <class Value>
CCKS_OUTLINE void load_four(Runtime t, const u8* from, Value* to) {
  visit(t, FourLoad<Value>{from, to});
}
template <class Value>
CCKS_OUTLINE void store_four(Runtime t, u8* to, const Value* from) {
  visit(t, FourStore<Value>{to, from});
}

/// The elements that 16 bytes hold.
template <Dtype D>
CCKS_INLINE void unpack(const Sixteen& raw, float (&to)[16 / sizeof(Storage<D>)]) {
  constexpr u32 kCount = 16 / sizeof(Storage<D>);
  if constexpr (D == Dtype::bf16) {  // an instruction each, which compilers do not see in halves of words
    CCKS_UNROLL
    for (u32 i = 0; i < kCount / 2; ++i) {
      to[2 * i] = bit_cast<float>(raw.word[i] << 16);
      to[2 * i + 1] = bit_cast<float>(raw.word[i] & 0xffff0000u);
    }
  } else {
    struct Values {
      Storage<D> v[kCount];
    };
    const Values all = bit_cast<Values>(raw);
    CCKS_UNROLL
    for (u32 i = 0; i < kCount; ++i) to[i] = to_float<D>(all.v[i]);
  }
}

/// Neighbouring elements in registers: 16 bytes as they lie in memory, which kOnce says nobody reads again.
template <Dtype D, bool kOnce>
struct RawPacket {
  static constexpr u32 kCount = 16 / sizeof(Storage<D>);
  Sixteen raw = {};
  CCKS_INLINE void load(Fixed<D>, const u8* from) { raw = kOnce ? load_once(from) : *reinterpret_cast<const Sixteen*>(from); }
  CCKS_INLINE void unpack(float (&to)[kCount]) const { worker::unpack<D>(raw, to); }
};
/// The same as eight floats.
template <class T>
struct FloatPacket {
  static constexpr u32 kCount = 8;
  float v[kCount] = {};
  CCKS_INLINE void load(T type, const u8* from) {
    load_four(type, from, v);
    load_four(type, from + kVector * bytes_of(type), v + kVector);
  }
  CCKS_INLINE void unpack(float (&to)[kCount]) const {
    CCKS_UNROLL
    for (u32 i = 0; i < kCount; ++i) to[i] = v[i];
  }
};

/// Eight elements: as they are where they take 16 bytes.
template <class T>
struct EightOf {
  using Type = FloatPacket<T>;
};
template <Dtype D>
  requires(sizeof(Storage<D>) == 2)
struct EightOf<Fixed<D>> {
  using Type = RawPacket<D, false>;
};
template <class T>
using Eight = typename EightOf<T>::Type;

/// Whether eights along the last dim begin at multiples of 16 bytes, wherever a multiple of eight begins.
template <class V>
CCKS_INLINE bool in_eights(const V& view) {
  const u32 bytes = bytes_of(view.type);
  i64 steps = 0;
  CCKS_UNROLL
  for (u32 i = 0; i < 3; ++i) steps |= view.dim[i] > 1 ? view.stride[i] : 0;
  return view.stride[3] == 1 && (steps * bytes) % 16 == 0 && reinterpret_cast<u64>(view.data) % 16 == 0 && bytes >= 2;
}

/// Four neighbouring elements in registers: as they lie in memory, where their dtype is known. Nobody waits for them before unpack.
template <class T>
struct RawFour {
  float v[kVector] = {};
  CCKS_INLINE void load(T type, const u8* from) { load_four(type, from, v); }
  CCKS_INLINE void unpack(float (&to)[kVector]) const {
    CCKS_UNROLL
    for (u32 i = 0; i < kVector; ++i) to[i] = v[i];
  }
};
template <Dtype D>
struct RawFour<Fixed<D>> {
  static constexpr u32 kBytes = sizeof(Storage<D>);
  struct alignas(vector_alignment(kBytes)) Words {
    u32 word[kBytes * kVector / sizeof(u32)];
  };
  Words raw = {};
  CCKS_INLINE void load(Fixed<D>, const u8* from) { raw = *reinterpret_cast<const Words*>(from); }
  CCKS_INLINE void unpack(float (&to)[kVector]) const {
    if constexpr (D == Dtype::bf16) {  // an instruction each
      CCKS_UNROLL
      for (u32 i = 0; i < kVector; ++i) to[i] = bit_cast<float>(i % 2 == 0 ? raw.word[i / 2] << 16 : raw.word[i / 2] & 0xffff0000u);
    } else {
      const Four<Storage<D>> all = bit_cast<Four<Storage<D>>>(raw);
      CCKS_UNROLL
      for (u32 i = 0; i < kVector; ++i) to[i] = to_float<D>(all.v[i]);
    }
  }
};

/// One element.
template <class T>
CCKS_INLINE void load_value(T type, const u8* from, float* to) {
  *to = load_float(type, from, 0);
}
template <class T>
CCKS_INLINE void load_value(T type, const u8* from, i64* to) {
  *to = load_int(type, from, 0);
}

template <class T>
CCKS_INLINE void store_value(T type, u8* to, float v) {
  store_float(type, to, 0, v);
}
template <class T>
CCKS_INLINE void store_value(T type, u8* to, i64 v) {
  store_int(type, to, 0, v);
}

/// Stores W values, 1 or 4, as a function object: NVRTC takes generic lambdas for host functions.
template <u32 W, class T>
struct StoreAt {
  u8* to;
  T type;
  template <class Value>
  CCKS_INLINE void operator()(const Value* values) const {
    if constexpr (W == kVector)
      store_four(type, to, values);
    else
      store_value(type, to, values[0]);
  }
};

}  // namespace CCKS_ISA
}  // namespace ccks::worker
