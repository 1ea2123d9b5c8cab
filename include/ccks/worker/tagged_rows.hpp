// A row of 16-bit floats with tags (wire::tagged_value, two elements a word): what a product whose weights come through a ring takes of the op in front of it
// before that one's events are there, and how such ops leave it. From the store of a value to its use there is then one way through the L2: no release, no
// event, no gate, no second load.
//
// Memory ordering
//   words   stored and loaded whole, relaxed: a word publishes nothing but itself. What else the body reads no op of the run writes, or its worker has waited for
//           before; what it writes nobody has in use any more once all the row's words are there (the host sees to both, scheduler/overtaking.hpp).
//   settle  the body meets the gate behind its stores: its signals follow the events that it has overtaken, as those of any tile do [E1, E2].
// Who does not find a word once the events are there reads the row itself: its producer has left no tags, or the worker leaves before the tile.
#pragma once

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

/// Leaves a value of a row in the tagged copy at `words`, two lanes' in a word. All lanes of a warp call it, with elements that follow one another, an even
/// one first; `mine`: the element is this lane's.
template <Dtype D, class Lanes>
CCKS_INLINE void store_tagged_pair(Lanes& lanes, Fixed<D>, u8* words, u32 element, float value, bool mine) {
  const u32 bits = bit_cast<u16>(from_float<D>(value)), other = lanes.shuffle_xor(bits, 1);
  if (mine && lanes.lane() % 2 == 0) lanes.store_tagged(reinterpret_cast<u64*>(words) + element / 2, wire::tagged_value(bits | other << 16, lanes.tag()));
}

/// Element `element` of a row whose words have been stored, for a tile that has overtaken its events: they are there, or soon will be.
template <Dtype D, class Lanes>
CCKS_INLINE float load_tagged_element(Lanes& lanes, Fixed<D>, const u8* words, u32 element) {
  const u64* at = reinterpret_cast<const u64*>(words) + element / 2;
  u64 word = lanes.load_tagged(at);
  while (static_cast<u32>(word >> 32) != lanes.tag()) word = lanes.load_tagged(at);
  return to_float<D>(bit_cast<Storage<D>>(static_cast<u16>(word >> (element % 2 * 16))));
}

/// For finish_marked: the same of results, if the output has a tagged copy. Before the store, which nobody waits for as long.
template <class Lanes, class T>
struct TaggedPairs {
  Lanes& lanes;
  T type;
  bool mine;

  CCKS_INLINE bool stores() const { return mine; }
  CCKS_INLINE void operator()(const OperandParams& out, u8* begin, u32 element, const float* values) const {
    if constexpr (TaggingLanes<Lanes> && kIsHalf<T>) {
      if (out.tags != 0 && lanes.tag() != 0) store_tagged_pair(lanes, type, begin + out.tags, element, values[0], mine);
    }
  }
};

}  // namespace CCKS_ISA
}  // namespace ccks::worker
