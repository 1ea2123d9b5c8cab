// A row of 16-bit floats with tags (wire::tagged_value, two elements a word): what a product whose weights come through a ring takes of the op in front of it
// before that one's events are there, and how such products leave it. From the store of a value to its use there is then one way through the L2: no release, no
// event, no gate, no second load. Only in workers of programs whose streamed products have one row (CCKS_WORKER_ROW_TAGS); with more rows, events say so.
//
// Memory ordering
//   words   stored and loaded whole, relaxed: a word publishes nothing but itself, and says itself of which run it is. Beside words a body that has overtaken its
//           events reads what no op of the run writes, or what its worker has acquired before (the host sees to it, scheduler/overtaking.hpp).
//   values  the row itself, plain. A body that has overtaken its events leaves words, then meets the gate [P21, P22], and only then stores the row: whatever any op
//           writes beside words follows its events and precedes its signals [E1, E2], as without tags. So who waits for events relies on nothing new, and a tile
//           that its worker leaves before has stored nothing but words, which are the same when it is run again.
// Who does not find a word once the events are there reads the row itself: its producer has left no words, or the worker leaves before the tile.
#pragma once

#include "ccks/worker/marked.hpp"
#include "ccks/worker/staged_rows.hpp"

namespace ccks::worker {
inline namespace CCKS_ISA {

inline constexpr u32 kTaggedPacket = 4;  // elements of two words

/// Of operand `o`, of one row; null: it has no tagged copy.
CCKS_INLINE const u64* tagged_row(const RunFrame& frame, const OperandParams& o) {
  return o.tags == 0 ? nullptr : reinterpret_cast<const u64*>(operand_base(frame, o) + o.tags);
}

/// Inputs: what a body that has begun early knows of those that it waits for. bool are_there() const: their events are there, or the tile is not to run;
/// miss() const says that a lane has not found its tags though, and bool has_missed() const, behind a barrier of all, whether one has.
template <class Lanes, class Inputs>
class TaggedRow {
 public:
  CCKS_INLINE TaggedRow(Lanes& lanes, Inputs inputs, const u64* words, u32 tag, u32 k) : lanes_(lanes), inputs_(inputs), words_(words), tag_(tag), k_(k) {}

  /// Packets of a lane, kCount of them, of a piece that begins at element `from`: waits until their tags are there. Beyond the end: zeros. By all lanes.
  template <u32 kCount>
  CCKS_INLINE void await(u32 from, u64 (&w)[kCount][2]) {
    const u32 first = from + lanes_.lane() * kTaggedPacket;
    CCKS_UNROLL
    for (u32 u = 0; u < kCount; ++u) w[u][0] = w[u][1] = at(first, u) < k_ ? 0 : u64{tag_} << 32;
    bool last = false;  // the events were there before this look
    u32 asker = Lanes::kWarp;
    // All workers wait for the same words, and looks of all lanes of all of them keep those waiting that are to come: where many words have not, one lane of a
    // warp looks, until it has its own, and then all that have not theirs.
    for (bool all = true;;) {
      if (all || lanes_.lane() % Lanes::kWarp == asker) {
        CCKS_UNROLL
        for (u32 u = 0; u < kCount; ++u)
          if (is_late(w[u])) lanes_.load_tagged(words_ + at(first, u) / 2, w[u]);  // only what has not come
      }
      bool late = false;
      CCKS_UNROLL
      for (u32 u = 0; u < kCount; ++u) late = late || is_late(w[u]);
      const u32 missing = lanes_.which(late);
      if (missing == 0) return;
      if (last) break;
      last = lanes_.any(inputs_.are_there());
      const u32 next = lanes_.ones_of((missing & (0u - missing)) - 1);
      all = last || next != asker || lanes_.ones_of(missing) <= kFewLate;
      asker = next;
    }
    inputs_.miss();
  }

 private:
  static constexpr u32 kFewLate = 4;  // lanes
  CCKS_INLINE bool is_late(const u64 (&w)[2]) const { return static_cast<u32>(w[0] >> 32) != tag_ || static_cast<u32>(w[1] >> 32) != tag_; }
  static CCKS_INLINE u32 at(u32 first, u32 u) { return first + u * Lanes::kLanes * kTaggedPacket; }

  Lanes& lanes_;
  Inputs inputs_;
  const u64* words_;
  u32 tag_, k_;
};

/// The four elements of a packet as they would lie in memory, and as floats.
CCKS_INLINE u64 packet_of(const u64 (&w)[2]) { return u64{static_cast<u32>(w[1])} << 32 | static_cast<u32>(w[0]); }
template <u32 kCount, Dtype D>
CCKS_INLINE void floats_of(Fixed<D>, const u64 (&w)[kCount][2], float (&v)[kCount][kVector]) {
  CCKS_UNROLL
  for (u32 u = 0; u < kCount; ++u) {
    CCKS_UNROLL
    for (u32 i = 0; i < 2; ++i) {
      const u32 pair = static_cast<u32>(w[u][i]);
      if constexpr (D == Dtype::bf16) {  // as in unpack
        v[u][2 * i] = bit_cast<float>(pair << 16);
        v[u][2 * i + 1] = bit_cast<float>(pair & 0xffff0000u);
      } else {
        v[u][2 * i] = to_float<D>(bit_cast<Storage<D>>(static_cast<u16>(pair)));
        v[u][2 * i + 1] = to_float<D>(bit_cast<Storage<D>>(static_cast<u16>(pair >> 16)));
      }
    }
  }
}

/// Puts a row of k elements into scratch at `to`, normed where there is a weight, as stage_streamed does. False: tags have not come, what lies there is no row.
/// Not inlined, as stage_streamed. Ends with a barrier.
template <class A, class W, class Lanes, class Inputs>
CCKS_OUTLINE bool stage_tagged(Lanes& lanes, Inputs inputs, A type, W norm_type, const u64* words, u32 tag, const u8* weight, float eps, u32 to, u32 k) {
  constexpr u32 kKept = 2, kPiece = kKept * Lanes::kLanes * kTaggedPacket;
  static_assert(kTaggedPacket == kVector);
  u8* staged = lanes.scratch() + to;
  TaggedRow<Lanes, Inputs> row(lanes, inputs, words, tag, k);
  if (weight == nullptr) {
    constexpr u32 kFlight = 8;  // all of a row of 8,192
    u64 packets[kFlight][2];
    CCKS_NO_UNROLL
    for (u32 from = 0; from < k; from += kFlight * Lanes::kLanes * kTaggedPacket) {
      row.await(from, packets);
      CCKS_UNROLL
      for (u32 u = 0; u < kFlight; ++u) {
        const u32 at = from + (lanes.lane() + u * Lanes::kLanes) * kTaggedPacket;
        if (at < k) *reinterpret_cast<u64*>(staged + at * 2) = packet_of(packets[u]);
      }
    }
  } else {
    const auto put = [&](u32, u32 p, const float (&v)[kVector]) { store_four(type, staged + p * 2, v); };
    u64 packets[kKept][2];
    float w[kKept][kVector], v[kKept][kVector];
    float squares = 0;
    load_piece(lanes, norm_type, weight, 0, k, w);  // there before the row is
    CCKS_NO_UNROLL
    for (u32 from = 0; from < k; from += kPiece) {
      row.await(from, packets);
      floats_of(type, packets, v);
      squares = add_squares(squares, v);
    }
    const float scale = row_scale(lanes, squares, k, eps);
    if (k <= kPiece) {
      put_piece(lanes, 0, 0, k, scale, v, w, put);
    } else {
      CCKS_NO_UNROLL
      for (u32 from = 0; from < k; from += kPiece) {
        row.await(from, packets);
        floats_of(type, packets, v);
        load_piece(lanes, norm_type, weight, from, k, w);
        put_piece(lanes, 0, from, k, scale, v, w, put);
      }
    }
  }
  lanes.sync();
  return !inputs.has_missed();
}

template <class T>
inline constexpr bool kIsHalf = false;
template <Dtype D>
inline constexpr bool kIsHalf<Fixed<D>> = D == Dtype::bf16 || D == Dtype::f16;

template <Dtype D>
CCKS_INLINE float half_of(Fixed<D>, u64 word, u32 element) {
  return to_float<D>(bit_cast<Storage<D>>(static_cast<u16>(word >> (element % 2 * 16))));
}

/// Leaves a value of a row in the tagged copy at `words`, two lanes' in a word. All lanes of a warp call it, with elements that follow one another, an even
/// one first; `mine`: the element is this lane's.
template <Dtype D, class Lanes>
CCKS_INLINE void store_tagged_pair(Lanes& lanes, Fixed<D>, u8* words, u32 element, float value, bool mine) {
  const u32 bits = bit_cast<u16>(from_float<D>(value)), other = lanes.shuffle_xor(bits, 1);
  if (mine && lanes.lane() % 2 == 0) lanes.store_tagged(reinterpret_cast<u64*>(words) + element / 2, wire::tagged_value(bits | other << 16, lanes.tag()));
}

/// Whether a streamed tile of such types may be one row on lanes that know of tags. Of bodies made for more rows nothing of them is in the code.
template <class Lanes, class Types>
CCKS_HD constexpr bool may_be_row() {
  if constexpr (RowTaggingLanes<Lanes>)
    return !kShaped<Types> || !may_have_rows_beyond<Types>(1);
  else
    return false;
}

/// The end of a streamed tile: who goes through its results, and what becomes of them beside being stored. Here nothing.
template <class Lanes, class Types, bool kRow = may_be_row<Lanes, Types>()>
class StreamedEnd {
 public:
  CCKS_INLINE StreamedEnd(Lanes&, const OperandParams&, u32 results) : results_(results) {}
  CCKS_INLINE bool begin() const { return true; }
  CCKS_INLINE u32 lanes_end() const { return results_; }
  CCKS_INLINE u32 result_of(u32 at) const { return at; }
  CCKS_INLINE bool take_beside(const Call&, const Types&, const EpilogueValues<1, Types>&, const ProductTile<Types>&, u32, u32) const { return true; }
  CCKS_INLINE OnlyStores also(u32) const { return {}; }
  CCKS_INLINE void finish(const Call&) const {}

 private:
  u32 results_;
};

/// Of one row: leaves words where the output has a tagged copy. If the tile has overtaken its events it has no more results than there are lanes (product_body),
/// and each lane keeps its own until the gate has let the tile through.
template <class Lanes, class Types>
class StreamedEnd<Lanes, Types, true> {
  using Out = decltype(declared<Types>().last(0));
  using Values = EpilogueValues<1, Types>;

 public:
  CCKS_INLINE StreamedEnd(Lanes& lanes, const OperandParams& out, u32 results)
      : lanes_(lanes), out_(out), results_(results), gives_(kIsHalf<Out> && out.tags != 0 && lanes.tag() != 0), overtakes_(lanes.has_begun_early()) {}

  /// Nobody waits for words of a tile that leaves none, so it meets the gate first. False: it is not to run.
  CCKS_INLINE bool begin() {
    if (!overtakes_ || gives_) return true;
    overtakes_ = false;
    return lanes_.await_inputs();
  }

  /// Whole warps where words are made, of two lanes' results each: lanes beyond the last result make that too, and store nothing.
  CCKS_INLINE u32 lanes_end() const { return gives_ ? round_up(results_, Lanes::kWarp) : results_; }
  CCKS_INLINE u32 result_of(u32 at) const { return least(at, results_ - 1); }

  /// What of the epilogue's operands are rows with tags, in place of what was loaded where they lie, which may not have been there yet. Words are, or soon will be;
  /// where one is not though the events are, operands are read where they lie. False: the tile is not to run.
  CCKS_INLINE bool take_beside(const Call& call, const Types& types, Values& values, const ProductTile<Types>& t, u32 row, u32 column) {
    if constexpr (Values::kCount != 0 && !kTwins<Types>) {
      if (!overtakes_) return true;
      for (bool last = false; lanes_.any(is_late<0>(call, types, values, column));) {
        if (last) {
          if (!lanes_.await_inputs()) return false;
          values.load(call, types, t.c0, t.c1, row, column);
          return true;
        }
        last = lanes_.any(lanes_.are_inputs_there());
      }
    }
    return true;
  }

  /// For finish_marked.
  struct Also {
    StreamedEnd& end;
    bool mine;

    CCKS_INLINE bool stores() const { return mine && !end.overtakes_; }
    CCKS_INLINE void operator()(const OperandParams& out, u8* begin, u32 element, const float* values) const {
      if constexpr (kIsHalf<Out>) {
        if (!end.gives_) return;
        store_tagged_pair(end.lanes_, Out{}, begin + out.tags, element, values[0], mine);
        end.kept_ = values[0];
        end.element_ = element;
      }
    }
  };
  CCKS_INLINE Also also(u32 at) { return {*this, at < results_}; }

  CCKS_INLINE void finish(const Call& call) {
    if (!overtakes_) return;
    if (!lanes_.await_inputs() || lanes_.lane() >= results_) return;
    StoreAt<1, Out>{operand_base(call.frame, out_) + u64{element_} * bytes_of(Out{}), Out{}}(&kept_);
  }

 private:
  /// Whether a word of the epilogue's operands is not of this run.
  template <u32 kIndex>
  CCKS_INLINE bool is_late(const Call& call, const Types& types, Values& values, u32 column) {
    if constexpr (kIndex < Values::kCount) {
      bool late = false;
      if constexpr (kIsHalf<TypeOf<Values::kFirst + kIndex, Types>>) {
        const OperandParams& o = call.operands[Values::kFirst + kIndex];
        if (o.tags != 0) {
          const u64 word = lanes_.load_tagged(reinterpret_cast<const u64*>(operand_base(call.frame, o) + o.tags) + column / 2);
          late = static_cast<u32>(word >> 32) != lanes_.tag();
          values.v[kIndex][0] = half_of(types.template type<Values::kFirst + kIndex>(), word, column);
        }
      }
      return is_late<kIndex + 1>(call, types, values, column) || late;
    } else {
      return false;
    }
  }

  Lanes& lanes_;
  const OperandParams& out_;
  u32 results_;
  bool gives_, overtakes_;
  float kept_ = 0;
  u32 element_ = 0;
};

}  // namespace CCKS_ISA
}  // namespace ccks::worker
