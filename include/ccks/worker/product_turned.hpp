// matmul of few rows where lanes run in warps and b lies in columns, as weights of checkpoints do: b is read once, 16 bytes a
// lane along k, kSteps vectors of kColumns columns under way while as many are multiplied. A warp has its columns to itself and
// adds up over its lanes; a stands in scratch as floats where it fits, fetched while the first of b is under way.
#pragma once

#include "ccks/worker/gemm_warps.hpp"
#include "ccks/worker/marked.hpp"

namespace ccks::worker {
inline namespace CCKS_ISA {

/// What a lane loads at once of a column of b: 16 bytes as they are, or, where only the frame knows the dtype, eight floats.
template <class T>
struct PacketOf {
  using Type = FloatPacket<T>;
};
template <Dtype D>
struct PacketOf<Fixed<D>> {
  using Type = RawPacket<D, true>;
};

/// kCount values of a row of a.
template <u32 kCount, class T>
CCKS_INLINE void load_values(T type, const u8* from, float (&to)[kCount]) {
  if constexpr (kCount % kVector == 0) {
    CCKS_UNROLL
    for (u32 i = 0; i < kCount; i += kVector) load_four(type, from + i * bytes_of(type), to + i);
  } else {
    CCKS_UNROLL
    for (u32 i = 0; i < kCount; ++i) load_value(type, from + i * bytes_of(type), to + i);
  }
}

inline constexpr u32 kTurnedColumns = 256;  // of a tile, at most

/// Up to kRows rows. Each lane's results are one of a column's: all are put in order in scratch, and finished from there.
template <u32 kRows, u32 kColumns, u32 kSteps>
struct TurnedRows {
  template <class Types, class Lanes, class Expr>
  static CCKS_INLINE void run(Lanes& lanes, const Call& call, u32 tile, const Types& types, const Expr& expr) {
    const auto t = product_tile<Types>(call, tile);
    EpilogueValues<1, Types> values;
    u32 done = lanes.lane();  // of the results, row by row: the next that this lane finishes
    const auto load_next = [&] {
      if (done < t.m * t.n) values.load(call, types, t.c0, t.c1, t.row + done / t.n, t.column + done % t.n);
    };
    load_next();
    Scratch scratch = scratch_of(lanes);
    float* sums = scratch.take<float>(kRows * kTurnedColumns);  // [row][column]
    Walk<Types, Lanes>(lanes, call, types, t, sums, scratch).run();
    lanes.sync();
    CCKS_NO_UNROLL
    while (done < t.m * t.n) {
      finish_marked<1>(call, types, expr, sums + done, values, t.c0, t.c1, t.row + done / t.n, t.column + done % t.n);
      done += Lanes::kLanes;
      load_next();
    }
  }

 private:
  /// A warp's columns, kColumns at a time, each in strides of k. The next vectors are under way while these are multiplied.
  template <class Types, class Lanes>
  class Walk {
   public:
    using A = TypeOf<0, Types>;
    using B = TypeOf<1, Types>;
    using Vector = typename PacketOf<B>::Type;
    static constexpr u32 kCount = Vector::kCount, kWarp = Lanes::kWarp, kStride = kWarp * kCount;
    static constexpr u32 kNext = Lanes::kLanes / kWarp * kColumns;
    using Vectors = Vector[kSteps][kColumns];
    static constexpr bool kMayStage = kCount % kVector == 0;

    CCKS_INLINE Walk(Lanes& lanes, const Call& call, const Types& types, const ProductTile<Types>& t, float* sums, Scratch scratch)
        : lanes_(lanes), type_a_(types.template type<0>()), type_b_(types.template type<1>()), sums_(sums), m_(t.m), n_(t.n),
          first_(lanes.lane() % kWarp * kCount) {
      const OperandParams &a = call.operands[0], &b = call.operands[1];
      k_ = static_cast<u32>(a.dim[3]);
      pitch_ = static_cast<u32>(a.stride[2]) * bytes_of(type_a_);
      column_bytes_ = static_cast<u32>(b.stride[3]) * bytes_of(type_b_);
      row_ = operand_base(call.frame, a) + u64{row_offset(a, t.c0, t.c1, t.row) + first_} * bytes_of(type_a_);
      columns_ = operand_base(call.frame, b) + u64{row_offset(b, t.c0, t.c1, 0) + first_} * bytes_of(type_b_) +
                 u64{t.column} * column_bytes_;
      loaded_.j = used_.j = lanes.lane() / kWarp * kColumns;
      if constexpr (kMayStage) staged_ = scratch.take<float>(m_ * k_);
    }

    CCKS_INLINE void run() {
      Vectors here, next;
      load(here);
      if constexpr (kMayStage) {
        if (staged_ != nullptr) stage();
      }
      CCKS_NO_UNROLL
      while (used_.j < n_) {
        load(next);
        use(here);
        if (used_.j >= n_) break;
        load(here);
        use(next);
      }
    }

   private:
    struct Place {
      u32 j = 0, p = 0;
    };
    /// True: the columns are at their end.
    CCKS_INLINE bool advance(Place& place) const {
      place.p += kSteps * kStride;
      if (place.p < k_) return false;
      place.p = 0;
      place.j += kNext;
      return true;
    }

    CCKS_INLINE void load(Vectors& v) {
      if (loaded_.j >= n_) return;
      const u8* from = columns_ + u64{loaded_.j} * column_bytes_ + loaded_.p * bytes_of(type_b_);
      CCKS_UNROLL
      for (u32 s = 0; s < kSteps; ++s) {
        CCKS_UNROLL
        for (u32 c = 0; c < kColumns; ++c)
          if (loaded_.p + first_ + s * kStride < k_)
            v[s][c].load(type_b_, from + c * u64{column_bytes_} + s * kStride * bytes_of(type_b_));
      }
      advance(loaded_);
    }

    /// a as floats: [row][four of a packet][packet][4], so that neighbouring lanes read neighbouring fours. Packets of a lane are
    /// all under way before the first is stored: a comes from another worker, through the L2.
    CCKS_INLINE void stage() {
      constexpr u32 kFlight = 4;
      const u32 packets = k_ / kCount;
      const u8* rows = row_ - first_ * bytes_of(type_a_);
      CCKS_NO_UNROLL
      for (u32 i = 0; i < m_; ++i) {
        CCKS_NO_UNROLL
        for (u32 from = lanes_.lane(); from < packets; from += kFlight * Lanes::kLanes) {
          float x[kFlight][kCount];
          CCKS_UNROLL
          for (u32 f = 0; f < kFlight; ++f) {
            const u32 at = from + f * Lanes::kLanes;
            if (at < packets) load_values<kCount>(type_a_, rows + i * pitch_ + at * kCount * bytes_of(type_a_), x[f]);
          }
          CCKS_UNROLL
          for (u32 f = 0; f < kFlight; ++f) {
            const u32 at = from + f * Lanes::kLanes;
            if (at < packets) keep(i, at, x[f]);
          }
        }
      }
      lanes_.sync();
    }
    CCKS_INLINE void keep(u32 row, u32 packet, const float (&x)[kCount]) {
      CCKS_UNROLL
      for (u32 q = 0; q < kCount / kVector; ++q) {
        const float* from = x + q * kVector;
        *reinterpret_cast<Four<float>*>(staged_at(row, q, packet)) = {{from[0], from[1], from[2], from[3]}};
      }
    }
    CCKS_INLINE float* staged_at(u32 row, u32 four, u32 packet) const {
      const u32 packets = k_ / kCount;
      return staged_ + ((row * (kCount / kVector) + four) * packets + packet) * kVector;
    }
    /// Of row `row`, kCount values from this lane's place at k = p on.
    CCKS_INLINE void values_of(u32 row, u32 p, float (&x)[kCount]) const {
      if constexpr (kMayStage) {
        if (staged_ != nullptr) {
          CCKS_UNROLL
          for (u32 q = 0; q < kCount / kVector; ++q) {
            const Four<float> four = *reinterpret_cast<const Four<float>*>(staged_at(row, q, (p + first_) / kCount));
            CCKS_UNROLL
            for (u32 e = 0; e < kVector; ++e) x[q * kVector + e] = four.v[e];
          }
          return;
        }
      }
      load_values<kCount>(type_a_, row_ + row * pitch_ + p * bytes_of(type_a_), x);
    }

    CCKS_INLINE void use(const Vectors& v) {
      CCKS_UNROLL
      for (u32 s = 0; s < kSteps; ++s) {
        if (used_.p + first_ + s * kStride >= k_) break;
        float w[kColumns][kCount];
        CCKS_UNROLL
        for (u32 c = 0; c < kColumns; ++c) v[s][c].unpack(w[c]);
        CCKS_UNROLL
        for (u32 i = 0; i < kRows; ++i) {
          float x[kCount];
          values_of(least(i, m_ - 1), used_.p + s * kStride, x);
          CCKS_UNROLL
          for (u32 c = 0; c < kColumns; ++c) {
            CCKS_UNROLL
            for (u32 e = 0; e < kCount; ++e) acc_[i * kColumns + c] += x[e] * w[c][e];
          }
        }
      }
      const u32 j = used_.j;
      if (!advance(used_)) return;
      scatter_sums<kRows * kColumns>(lanes_, acc_, 1, kWarp, 0, [&](u32 at, u32 count, const float* sum) {
        CCKS_UNROLL
        for (u32 i = 0; i < count; ++i) {
          const u32 r = (at + i) / kColumns;
          if (r < m_) sums_[r * n_ + j + (at + i) % kColumns] = sum[i];
        }
      });
      CCKS_UNROLL
      for (u32 i = 0; i < kRows * kColumns; ++i) acc_[i] = 0;
    }

    Lanes& lanes_;
    A type_a_;
    B type_b_;
    float* sums_;
    float* staged_ = nullptr;
    u32 m_, n_, first_, k_, pitch_, column_bytes_;
    const u8* row_;      // of a, from this lane's first element on
    const u8* columns_;  // of b, the same
    Place loaded_, used_;
    float acc_[kRows * kColumns] = {};
  };
};

}  // namespace CCKS_ISA
}  // namespace ccks::worker
