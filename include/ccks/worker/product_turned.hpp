// matmul of few rows where lanes run in warps and b lies in columns, as weights of checkpoints do: b is read once, 16 bytes a
// lane along k, kSteps vectors of kColumns columns under way at a time. A warp has its columns to itself and adds up over its
// lanes; a stands in scratch as floats where it fits, fetched while the first of b is under way.
//
// The walk over b is a function of its own that knows neither shape nor epilogue, and is short: one copy serves every product of
// a program. Weights pass through all caches between two ops of a kind, so code that only one op runs is fetched anew each time.
#pragma once

#include "ccks/worker/gemm_warps.hpp"
#include "ccks/worker/marked.hpp"
#include "ccks/worker/staged_rows.hpp"

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

/// As many values of a row of a: as they are where they take 16 bytes too.
template <class T, u32 kValues>
struct ValuesOf {
  static constexpr bool kFloats = true;
  float v[kValues];
  CCKS_INLINE void load(T type, const u8* from) {
    CCKS_UNROLL
    for (u32 i = 0; i < kValues; ++i) load_value(type, from + i * bytes_of(type), v + i);
  }
  CCKS_INLINE void unpack(float (&to)[kValues]) const {
    CCKS_UNROLL
    for (u32 i = 0; i < kValues; ++i) to[i] = v[i];
  }
};
template <Dtype D, u32 kValues>
  requires(kValues * sizeof(Storage<D>) == 16)
struct ValuesOf<Fixed<D>, kValues> : RawPacket<D, false> {
  static constexpr bool kFloats = false;
};

inline constexpr u32 kTurnedColumns = 256;  // of a tile, at most

/// What the walk over b goes by.
struct TurnedWindow {
  const u8* row;      // of a
  const u8* columns;  // of b
  u32 sums, staged;   // [row][column] of results, and a, in scratch; kUnstaged: a does not fit
  u32 pitch, column_bytes, m, n, k;
};
inline constexpr u32 kUnstaged = 0xffffffffu;

/// A warp's columns, kColumns at a time, each in strides of k.
template <u32 kRows, u32 kColumns, u32 kSteps, bool kStaged, class A, class B, class Norm, class Lanes>
class TurnedWalk {
 public:
  using Vector = typename PacketOf<B>::Type;
  static constexpr u32 kCount = Vector::kCount, kWarp = Lanes::kWarp, kStride = kWarp * kCount;
  static constexpr u32 kNext = Lanes::kLanes / kWarp * kColumns;
  using Values = ValuesOf<A, kCount>;

  CCKS_INLINE TurnedWalk(Lanes& lanes, A type_a, B type_b, const Norm& norm, const TurnedWindow& w)
      : lanes_(lanes), type_a_(type_a), type_b_(type_b), norm_(norm), w_(w), first_(lanes.lane() % kWarp * kCount) {}

  CCKS_INLINE void run() {
    u32 j = lanes_.lane() / kWarp * kColumns, p = 0;
    clear();
    bool begun = !kStaged;
    CCKS_NO_UNROLL
    while (j < w_.n || !begun) {
      Vector v[kSteps][kColumns];
      const u32 column = least(j, w_.n - kColumns);  // of an odd number the last but one is multiplied twice
      load(v, column, p);
      if (!begun) stage();  // by all warps, those without columns too
      begun = true;
      if (j >= w_.n) return;
      use(v, p);
      p += kSteps * kStride;
      if (p < w_.k) continue;
      put(column);
      p = 0;
      j += kNext;
    }
  }

 private:
  /// What is beyond the end is loaded from before it, and not used.
  CCKS_INLINE void load(Vector (&v)[kSteps][kColumns], u32 j, u32 p) const {
    const u8* from = w_.columns + u64{j} * w_.column_bytes;
    CCKS_UNROLL
    for (u32 s = 0; s < kSteps; ++s) {
      const u8* at = from + least(p + first_ + s * kStride, w_.k - kCount) * bytes_of(type_b_);
      CCKS_UNROLL
      for (u32 c = 0; c < kColumns; ++c) v[s][c].load(type_b_, at + c * w_.column_bytes);
    }
  }

  CCKS_INLINE Values* staged() const { return reinterpret_cast<Values*>(lanes_.scratch() + w_.staged); }
  /// Rows that are normed, as they lie in memory or as floats.
  CCKS_INLINE void stage_normed() const {
    float* floats = reinterpret_cast<float*>(staged());
    u8* raw = lanes_.scratch() + w_.staged;
    norm_rows(lanes_, type_a_, w_.row, w_.pitch, norm_, w_.m, w_.k, [&](u32 i, u32 p, float (&v)[kVector]) {
      if constexpr (Values::kFloats) {
        round_four(type_a_, v);
        *reinterpret_cast<Four<float>*>(floats + i * w_.k + p) = {{v[0], v[1], v[2], v[3]}};
      } else {
        store_four(type_a_, raw + (i * w_.k + p) * bytes_of(type_a_), v);
      }
    });
    lanes_.sync();
  }
  /// a as it is, or normed. Packets of a lane are all under way before the first is stored: a comes from other workers, through the L2.
  CCKS_INLINE void stage() const {
    if constexpr (Norm::kNorms) {
      if (norm_.on()) return stage_normed();
    }
    constexpr u32 kFlight = 4;
    const u32 packets = w_.k / kCount;
    CCKS_NO_UNROLL
    for (u32 i = 0; i < w_.m; ++i) {
      CCKS_NO_UNROLL
      for (u32 from = lanes_.lane(); from < packets; from += kFlight * Lanes::kLanes) {
        Values x[kFlight];
        CCKS_UNROLL
        for (u32 f = 0; f < kFlight; ++f)
          x[f].load(type_a_, w_.row + i * w_.pitch + least(from + f * Lanes::kLanes, packets - 1) * kCount * bytes_of(type_a_));
        CCKS_UNROLL
        for (u32 f = 0; f < kFlight; ++f)  // several lanes may store the last, the same
          staged()[i * packets + least(from + f * Lanes::kLanes, packets - 1)] = x[f];
      }
    }
    lanes_.sync();
  }
  /// Of row `row`, from this lane's place at k = p on.
  CCKS_INLINE Values values_of(u32 row, u32 p) const {
    if constexpr (kStaged) {
      return staged()[row * (w_.k / kCount) + (p + first_) / kCount];
    } else {
      Values x;
      x.load(type_a_, w_.row + row * w_.pitch + (p + first_) * bytes_of(type_a_));
      return x;
    }
  }

  CCKS_INLINE void use(const Vector (&v)[kSteps][kColumns], u32 p) {
    CCKS_UNROLL
    for (u32 s = 0; s < kSteps; ++s) {
      if (p + first_ + s * kStride >= w_.k) break;
      float w[kColumns][kCount];
      CCKS_UNROLL
      for (u32 c = 0; c < kColumns; ++c) v[s][c].unpack(w[c]);
      CCKS_UNROLL
      for (u32 i = 0; i < kRows; ++i) {
        float x[kCount];
        values_of(kRows == 1 ? 0 : least(i, w_.m - 1), p + s * kStride).unpack(x);
        CCKS_UNROLL
        for (u32 c = 0; c < kColumns; ++c) {
          CCKS_UNROLL
          for (u32 e = 0; e < kCount; ++e) acc_[i * kColumns + c] += x[e] * w[c][e];
        }
      }
    }
  }
  CCKS_INLINE void put(u32 j) {
    float* sums = reinterpret_cast<float*>(lanes_.scratch() + w_.sums);
    scatter_sums<kRows * kColumns>(lanes_, acc_, 1, kWarp, 0, [&](u32 at, u32 count, const float* sum) {
      CCKS_UNROLL
      for (u32 i = 0; i < count; ++i) {
        const u32 r = (at + i) / kColumns;
        if (r < w_.m) sums[r * w_.n + j + (at + i) % kColumns] = sum[i];
      }
    });
    clear();
  }
  /// No initializer: that would be loaded from memory.
  CCKS_INLINE void clear() {
    CCKS_UNROLL
    for (u32 i = 0; i < kRows * kColumns; ++i) acc_[i] = 0;
  }

  Lanes& lanes_;
  A type_a_;
  B type_b_;
  const Norm& norm_;
  const TurnedWindow& w_;
  u32 first_;
  float acc_[kRows * kColumns];
};

/// Arguments one by one, which stay in registers.
template <u32 kRows, u32 kColumns, u32 kSteps, bool kStaged, class A, class B, class Norm, class Lanes>
CCKS_OUTLINE void walk_turned(Lanes& lanes, A type_a, B type_b, const Norm norm, const u8* row, const u8* columns, u32 sums, u32 staged,
                              u32 pitch, u32 column_bytes, u32 m, u32 n, u32 k) {
  const TurnedWindow window{row, columns, sums, staged, pitch, column_bytes, m, n, k};
  TurnedWalk<kRows, kColumns, kSteps, kStaged, A, B, Norm, Lanes>(lanes, type_a, type_b, norm, window).run();
}

/// Whether a tile whose rows are normed can keep them in scratch beside its sums.
template <class Types>
CCKS_INLINE bool normed_rows_stay(const Call& call, u32 m, u32 scratch_bytes) {
  using Values = ValuesOf<TypeOf<0, Types>, PacketOf<TypeOf<1, Types>>::Type::kCount>;
  const u32 row = static_cast<u32>(call.operands[0].dim[3]) / PacketOf<TypeOf<1, Types>>::Type::kCount * static_cast<u32>(sizeof(Values));
  return m * row + 8 * kTurnedColumns * static_cast<u32>(sizeof(float)) <= scratch_bytes;
}

/// Up to kRows rows. Each lane's results are one of a column's: all are put in order in scratch, and finished from there.
template <u32 kRows, u32 kColumns, u32 kSteps>
struct TurnedRows {
  template <class Types, class Lanes, class Expr>
  static CCKS_INLINE void run(Lanes& lanes, const Call& call, u32 tile, const Types& types, const Expr& expr) {
    const auto t = product_tile<Types>(call, tile);
    if (!await_inputs(lanes)) return;
    EpilogueValues<1, Types> values;
    u32 done = lanes.lane();  // of the results, row by row: the next that this lane finishes
    const auto load_next = [&] {
      if (done < t.m * t.n) values.load(call, types, t.c0, t.c1, t.row + done / t.n, t.column + done % t.n);
    };
    load_next();
    Scratch scratch = scratch_of(lanes);
    float* sums = scratch.take<float>(kRows * kTurnedColumns);
    walk<Types>(lanes, call, types, t, sums, scratch);
    lanes.sync();
    CCKS_NO_UNROLL
    while (done < t.m * t.n) {
      finish_marked<1>(call, types, expr, sums + done, values, t.c0, t.c1, t.row + done / t.n, t.column + done % t.n);
      done += Lanes::kLanes;
      load_next();
    }
  }

 private:
  template <class Types, class Lanes>
  static CCKS_INLINE void walk(Lanes& lanes, const Call& call, const Types& types, const ProductTile<Types>& t, const float* sums,
                               Scratch scratch) {
    using A = TypeOf<0, Types>;
    using B = TypeOf<1, Types>;
    using Values = ValuesOf<A, PacketOf<B>::Type::kCount>;
    const A type_a = types.template type<0>();
    const B type_b = types.template type<1>();
    const OperandParams &a = call.operands[0], &b = call.operands[1];
    // A single column stands for both of a pair (wire::detail::may_end_anywhere).
    const u32 k = static_cast<u32>(a.dim[3]), column_bytes = t.n == 1 ? 0 : static_cast<u32>(b.stride[3]) * bytes_of(type_b);
    const u8* row = operand_base(call.frame, a) + u64{row_offset(a, t.c0, t.c1, t.row)} * bytes_of(type_a);
    const u8* columns = operand_base(call.frame, b) + u64{row_offset(b, t.c0, t.c1, 0)} * bytes_of(type_b) + u64{t.column} * column_bytes;
    const u32 pitch = static_cast<u32>(a.stride[2]) * bytes_of(type_a);
    const auto norm = norm_of(call, types);
    const Values* staged = scratch.take<Values>(t.m * (k / PacketOf<B>::Type::kCount));
    const auto place = [&](const void* p) { return static_cast<u32>(static_cast<const u8*>(p) - lanes.scratch()); };
    if (NormOf<Types>::kAlways || staged != nullptr)
      walk_turned<kRows, kColumns, kSteps, true>(lanes, type_a, type_b, norm, row, columns, place(sums), place(staged), pitch, column_bytes, t.m, t.n, k);
    else if constexpr (!NormOf<Types>::kAlways)  // normed rows are staged: normed_rows_stay
      walk_turned<kRows, kColumns, kSteps, false>(lanes, type_a, type_b, norm, row, columns, place(sums), kUnstaged, pitch, column_bytes, t.m, t.n, k);
  }
};

}  // namespace CCKS_ISA
}  // namespace ccks::worker
