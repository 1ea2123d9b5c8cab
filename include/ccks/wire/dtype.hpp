// Element types of tensors, as host and device both name them.
#pragma once

#include "ccks/wire/base.hpp"

namespace ccks::wire {

/// Element type of a tensor. The values are part of the plan image.
enum class Dtype : u8 { f32 = 0, f16 = 1, bf16 = 2, i32 = 3, i64 = 4, boolean = 5 };

inline namespace CCKS_ISA {

/// Bytes of one element; `boolean` is one byte, 0 or 1.
CCKS_HD constexpr u32 dtype_bytes(Dtype t) {
  return t == Dtype::f32 || t == Dtype::i32 ? 4u : t == Dtype::i64 ? 8u : t == Dtype::boolean ? 1u : 2u;
}
CCKS_HD constexpr bool dtype_is_float(Dtype t) { return t == Dtype::f32 || t == Dtype::f16 || t == Dtype::bf16; }
/// Of two bytes.
CCKS_HD constexpr bool dtype_is_half(Dtype t) { return t == Dtype::f16 || t == Dtype::bf16; }

/// The spelling used in specs, manifests and messages.
CCKS_HD constexpr const char* dtype_name(Dtype t) {
  constexpr const char* kNames[] = {"f32", "f16", "bf16", "i32", "i64", "bool"};
  return kNames[static_cast<u8>(t)];
}

}  // namespace CCKS_ISA
}  // namespace ccks::wire
