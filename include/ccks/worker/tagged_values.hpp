// Values with tags (wire::tagged_value): what a body that has begun before its events takes of its input, and what it leaves for the next.
// A chain of small products then goes from body to body: the release of one and the next one's event and loads, 2,000 cycles of an H200,
// go beside them.
//
// Memory ordering
//   words   value and tag are one word of eight bytes, stored and loaded whole, relaxed: it publishes nothing but itself. What else a
//           body reads no op of the run writes, and what it writes nobody else has in use in the run, so it needs no order before its
//           events (the host sees to both, scheduler/tagged_edges.hpp).
//   settle  a body that has overtaken its events meets the gate behind its stores: its own signals then follow the events it has
//           waited for, as those of any tile do [E1, E2].
//   alone   where tags are all that a run's ops have to know of each other (wire::kOperandTagsAlone), nobody waits for events: bodies of a strand go from
//           tile to tile, and a tag that has not come when the worker is to leave ends the strand before that tile, which stores nothing.
#pragma once

#include "ccks/worker/call.hpp"

namespace ccks::worker {
inline namespace CCKS_ISA {

template <class T>
inline constexpr bool kIsF32 = false;
template <>
inline constexpr bool kIsF32<Fixed<Dtype::f32>> = true;

/// A stretch of a body's input, which lies at `values` and is `offset` elements from the operand's begin. kMay: the body awaits its
/// inputs here, and settles.
template <bool kMay, class Lanes, class T>
class TaggedInput {
  static constexpr bool kTags = kMay && TaggingLanes<Lanes> && kIsF32<T>;

 public:
  CCKS_INLINE TaggedInput(Lanes& lanes, const OperandParams& operand, u32 offset, const u8* values, T type)
      : lanes_(lanes), values_(values), type_(type) {
    if constexpr (kTags) {
      const bool tags = operand.tags != 0 && lanes.tag() != 0;
      alone_ = tags && (operand.flags & wire::kOperandTagsAlone) != 0;
      overtakes_ = alone_ || (tags && lanes.has_begun_early());
      words_ = reinterpret_cast<const u64*>(values + operand.tags + u64{offset} * sizeof(float));
    }
  }

  /// Whether values may be taken before the events are there. The same on all lanes.
  CCKS_INLINE bool overtakes() const { return kTags && overtakes_; }

  /// to[i] = element place(i), for those that this lane wants; the others stay. By all lanes of a warp.
  template <u32 kCount, class Place, class Wanted>
  CCKS_INLINE void load(Place&& place, Wanted&& wanted, float* to) const {
    bool there = true;
    if constexpr (kTags) {
      if (overtakes_) there = await_tags<kCount>(place, wanted, to);
    }
    // A warp that has come here by its events, or whose lanes did not all find their tags.
    if (overtakes() && !there) return;
    CCKS_UNROLL
    for (u32 i = 0; i < kCount; ++i)
      if (wanted(i)) to[i] = load_float(type_, values_, place(i));
  }

  /// Behind a barrier behind the last load: whether results are results. Not where a warp went on because the worker leaves before this
  /// tile; then no lane stores. Where all have found their tags some may: what they store is what the tile stores when it is run again.
  CCKS_INLINE bool holds() const {
    if constexpr (kTags)
      return alone_ ? !lanes_.has_given_up() : !overtakes_ || !lanes_.stays();
    else
      return true;
  }
  /// By all lanes, once, behind what the body stores.
  CCKS_INLINE void settle() const {
    if (overtakes() && !alone_) (void)await_inputs(lanes_);
  }

 private:
  /// True: values are to be read where they lie, the events are there.
  template <u32 kCount, class Place, class Wanted>
  CCKS_INLINE bool await_tags(Place&& place, Wanted&& wanted, float* to) const {
    const u32 tag = lanes_.tag();
    u64 words[kCount];
    CCKS_UNROLL
    for (u32 i = 0; i < kCount; ++i) words[i] = wanted(i) ? 0 : wire::tagged_value(bit_cast<u32>(to[i]), tag);
    for (;;) {
      // Only what has not come: looks of many workers at many words keep those waiting that are to come.
      CCKS_UNROLL
      for (u32 i = 0; i < kCount; ++i)
        if (static_cast<u32>(words[i] >> 32) != tag) words[i] = lanes_.load_tagged(words_ + place(i));
      bool late = false;
      CCKS_UNROLL
      for (u32 i = 0; i < kCount; ++i) {
        late = late || static_cast<u32>(words[i] >> 32) != tag;
        to[i] = bit_cast<float>(static_cast<u32>(words[i]));
      }
      if (alone_) {
        if (!lanes_.any(late)) return false;
        if (!lanes_.any(lanes_.is_hurried())) continue;
        lanes_.give_up();
        return false;
      }
      const bool there = late && lanes_.are_inputs_there();
      if (!lanes_.any(late && !there)) return lanes_.any(there);
    }
  }

  Lanes& lanes_;
  const u8* values_;
  T type_;
  const u64* words_ = nullptr;
  bool overtakes_ = false, alone_ = false;
};

/// For finish_marked: leaves results in the output's tagged copy, if it has one. Before the store, which nobody waits for as long.
template <class Lanes, class T>
struct TaggedOutput {
  Lanes& lanes;

  CCKS_INLINE void operator()(const OperandParams& out, u8* begin, u32 element, const float* values) const {
    if constexpr (TaggingLanes<Lanes> && kIsF32<T>) {
      if (out.tags == 0 || lanes.tag() == 0) return;
      lanes.store_tagged(reinterpret_cast<u64*>(begin + out.tags) + element, wire::tagged_value(bit_cast<u32>(values[0]), lanes.tag()));
    }
  }
};

}  // namespace CCKS_ISA
}  // namespace ccks::worker
