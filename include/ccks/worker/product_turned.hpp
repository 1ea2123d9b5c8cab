// matmul of few rows where lanes run in warps and b lies in columns, as weights of checkpoints do: b is read once, 16 bytes a
// lane along k, kSteps vectors of kColumns columns under way before the first is used. A warp has its columns to itself and
// adds up over its lanes; a comes from the nearest cache, where all warps find it.
#pragma once

#include "ccks/worker/gemm_warps.hpp"
#include "ccks/worker/marked.hpp"

namespace ccks::worker {
inline namespace CCKS_ISA {

/// What a lane loads at once of a column of b: 16 bytes as they are, or, where only the frame knows the dtype, eight floats.
template <class T>
struct Packet;
template <Dtype D>
struct Packet<Fixed<D>> {
  static constexpr u32 kCount = 16 / sizeof(Storage<D>);
  Sixteen raw = {};
  CCKS_INLINE void load(Fixed<D>, const u8* from) { raw = load_once(from); }
  CCKS_INLINE void unpack(float (&to)[kCount]) const {
    struct Values {
      Storage<D> v[kCount];
    };
    const Values all = bit_cast<Values>(raw);
    CCKS_UNROLL
    for (u32 i = 0; i < kCount; ++i) to[i] = to_float<D>(all.v[i]);
  }
};
template <>
struct Packet<Runtime> {
  static constexpr u32 kCount = 8;
  float v[kCount] = {};
  CCKS_INLINE void load(Runtime type, const u8* from) {
    load_four(type, from, v);
    load_four(type, from + kVector * bytes_of(type), v + kVector);
  }
  CCKS_INLINE void unpack(float (&to)[kCount]) const {
    CCKS_UNROLL
    for (u32 i = 0; i < kCount; ++i) to[i] = v[i];
  }
};

/// kCount values of a row of a.
template <u32 kCount, class T>
CCKS_INLINE void load_values(T type, const u8* from, float (&to)[kCount]) {
  if constexpr (kCount * sizeof(float) > 16 && requires { Packet<T>::kCount; }) {
    if constexpr (Packet<T>::kCount == kCount) {
      Packet<T> all;
      all.load(type, from);
      return all.unpack(to);
    }
  }
  if constexpr (kCount % kVector == 0) {
    CCKS_UNROLL
    for (u32 i = 0; i < kCount; i += kVector) load_four(type, from + i * bytes_of(type), to + i);
  } else {
    CCKS_UNROLL
    for (u32 i = 0; i < kCount; ++i) load_value(type, from + i * bytes_of(type), to + i);
  }
}

/// Up to kRows rows. Each lane's results are one of a column's: all are put in order in scratch, and finished from there.
template <u32 kRows, u32 kColumns, u32 kSteps>
struct TurnedRows {
  template <class Types, class Lanes, class Expr>
  static CCKS_INLINE void run(Lanes& lanes, const Call& call, u32 tile, const Types& types, const Expr& expr) {
    const auto t = product_tile<Types>(call, tile);
    const auto type_a = types.template type<0>();
    const auto type_b = types.template type<1>();
    using Vector = Packet<decltype(types.template type<1>())>;
    constexpr u32 kCount = Vector::kCount, kWarp = Lanes::kWarp, kWarps = Lanes::kLanes / kWarp, kStride = kWarp * kCount;
    const OperandParams &a = call.operands[0], &b = call.operands[1];
    const u32 k = static_cast<u32>(a.dim[3]), first = lanes.lane() % kWarp * kCount;
    const u32 column_bytes = static_cast<u32>(b.stride[3]) * bytes_of(type_b);
    const u8* row = operand_base(call.frame, a) + u64{row_offset(a, t.c0, t.c1, t.row) + first} * bytes_of(type_a);
    const u8* columns = operand_base(call.frame, b) + u64{row_offset(b, t.c0, t.c1, 0) + first} * bytes_of(type_b);
    const u32 pitch = static_cast<u32>(a.stride[2]) * bytes_of(type_a);
    float* sums = reinterpret_cast<float*>(lanes.scratch());  // [row][column]
    EpilogueValues<1, Types> values;
    u32 done = lanes.lane();  // of the results, row by row: the next that this lane finishes
    const auto load_next = [&] {
      if (done < t.m * t.n) values.load(call, types, t.c0, t.c1, t.row + done / t.n, t.column + done % t.n);
    };
    load_next();
    CCKS_NO_UNROLL
    for (u32 j = lanes.lane() / kWarp * kColumns; j < t.n; j += kWarps * kColumns) {
      const u8* from = columns + u64{t.column + j} * column_bytes;
      float acc[kRows * kColumns] = {};
      CCKS_NO_UNROLL
      for (u32 p = 0; p < k; p += kSteps * kStride) {
        Vector v[kSteps][kColumns];
        CCKS_UNROLL
        for (u32 s = 0; s < kSteps; ++s) {
          CCKS_UNROLL
          for (u32 c = 0; c < kColumns; ++c)
            if (p + first + s * kStride < k)
              v[s][c].load(type_b, from + c * u64{column_bytes} + (p + s * kStride) * bytes_of(type_b));
        }
        CCKS_UNROLL
        for (u32 s = 0; s < kSteps; ++s) {
          if (p + first + s * kStride >= k) break;
          float w[kColumns][kCount];
          CCKS_UNROLL
          for (u32 c = 0; c < kColumns; ++c) v[s][c].unpack(w[c]);
          CCKS_UNROLL
          for (u32 i = 0; i < kRows; ++i) {
            float x[kCount];
            load_values<kCount>(type_a, row + least(i, t.m - 1) * pitch + (p + s * kStride) * bytes_of(type_a), x);
            CCKS_UNROLL
            for (u32 c = 0; c < kColumns; ++c) {
              CCKS_UNROLL
              for (u32 e = 0; e < kCount; ++e) acc[i * kColumns + c] += x[e] * w[c][e];
            }
          }
        }
      }
      scatter_sums<kRows * kColumns>(lanes, acc, 1, kWarp, 0, [&](u32 at, u32 count, const float* v) {
        CCKS_UNROLL
        for (u32 i = 0; i < count; ++i) {
          const u32 r = (at + i) / kColumns;
          if (r < t.m) sums[r * t.n + j + (at + i) % kColumns] = v[i];
        }
      });
    }
    lanes.sync();
    CCKS_NO_UNROLL
    while (done < t.m * t.n) {
      finish_marked<1>(call, types, expr, sums + done, values, t.c0, t.c1, t.row + done / t.n, t.column + done % t.n);
      done += Lanes::kLanes;
      load_next();
    }
  }
};

}  // namespace CCKS_ISA
}  // namespace ccks::worker
