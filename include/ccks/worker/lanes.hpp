// Lanes: what a tile op knows about the machine. A worker is one thread on the host device (one lane) and one thread
// block on a GPU (a lane per thread). Tile ops are templates over a Lanes type and are written for any number of lanes:
// every lane calls the op with the same arguments; loops start at lane() and step by lanes().
//
// A Lanes type has
//   u32 lane() const, u32 lanes() const
//   void sync()                        barrier of all lanes; orders their memory accesses
//   T sum(T), T max(T), T min(T)       over all lanes, for float, i32, i64; every lane gets the result; contains a barrier
//   u8* scratch(), u32 scratch_bytes() memory shared by the lanes, 128-byte aligned, contents undefined between tiles
//   u32 count_in(u32* word)            adds 1, acquires and releases at the scope of all workers; what was there. One lane calls it
//   static constexpr bool kSingleLane  lets the compiler drop barriers and choose bodies made for one thread
// and, where lanes run in warps, which bodies made for many lanes want (WarpLanes):
//   static constexpr u32 kWarp, kLanes lanes of a warp, of all: powers of two; warp w holds lanes [w * kWarp, (w + 1) * kWarp)
//   T shuffle_xor(T v, u32 mask)       the v of the lane whose number in the warp differs by mask; all lanes of the warp call it
//   i32 most_in_warp(i32 v)            the largest v of its lanes; all lanes of the warp call it
//   u32 same_in_warp(u32 v)            which lanes of the warp show the same v, bit by bit; orders the warp's accesses to what it shares, as sync_warp()
//                                      does (MatchLanes); all lanes of the warp call them; u32 ones_of(mask)
//   void count_in_scratch(u32* word)   adds 1 to a word in scratch, that others add to at the same time (CountLanes); what it is then all know behind a barrier
// and, where they can (MatrixLanes), with g = lane / 4 and c = lane % 4 of the warp:
//   void multiply<D>(sum, a, b)        sum[8 x 8] += a[8 x 16] b[16 x 8], of two bytes an element: a lane has of row g of a, and of column
//                                      g of b, elements 2c, 2c + 1 in word 0 and 2c + 8, 2c + 9 in word 1; of row g of sum columns 2c, 2c + 1
//   void multiply_wide<D>(sum, a, b)   multiply for 16 rows of a: rows g and g + 8 in turn in a, and in sum, two words each
//   u32 turn(word)                     of an 8 x 8 matrix of elements of two bytes, columns 2c, 2c + 1 of row g a lane: its transpose
//   const T* nearby(const T* p)        p, which lies in memory that the lanes share
//   u32 pair<D>(low, high)             two floats as elements of two bytes, to nearest even
//   u32 low_halves(a, b), high_halves(a, b)  those of two words in one, of a in the low half
//   float larger(a, b)                 in one instruction; the other where one is NaN
//   float power_of_two(v), inverse(v)  2 to the v and 1 / v, each in one instruction: good to 22 bits
//   void copy_sixteen(to, from, there) 16 bytes into scratch, in the background, or zeros; commit_copies() ends a group of them, await_copies<n>() waits
//                                      for this lane's own but the n youngest groups (CopyLanes); copy_sixteen_once, where there is one, the same of what
//                                      nobody reads again soon
// and, where four warps multiply together (GroupLanes): rows of 64 elements of two bytes in scratch, on a multiple of 1,024 bytes, of which packet p
// of 16 bytes of row r stands at place p ^ r % 8
//   void show_copies()                 what this lane has copied is there for such products behind a barrier
//   void multiply_group<D>(sum[n][4], a, b)  begins sum[64 x 8 n] += a[64 x 64] b[8 n x 64] turned: warp w of the four has rows 16 w to 16 w + 15, eight
//                                      columns at a time, as multiply_wide has them. All four warps call it, the first a multiple of four;
//                                      multiply_group<D>(sum, a, b, false): sum is what comes out, whatever it was
//   void multiply_parts<D, parts>(sum, base, a, b, first, adds)  the same of elements 16 first to 16 (first + parts) - 1 of rows that lie a and b bytes from base on
//   void multiply_held<D>(sum[n][4], a, b, part)  sum[64 x 8 n] += a[64 x 16] b[8 n x 16] turned, a in registers as multiply_wide has it, of b elements 16 part;
//                                      multiply_held<D, true>: sum is what comes out, whatever it was
//                                      and on; multiply_down<D>(sum[8][4], a, b) sum[64 x 64] += a[64 x 16] b[16 x 64]. Between begin_group() and
//                                      commit_group(), behind which they are one that was begun; a stays as it is until that is done
//   void arrive_at(i), meet_at(i)      barriers 0 to 3, each of all lanes, at which some arrive and the others wait for them, too
//   u32 of_warp(v)                     v, which all lanes of the warp have alike: so that the compiler knows it, too, where products depend on it
//   void await_group(sum)              waits until they are done; await_groups_before<n>() until all but the n begun last are,
//                                      whose sums nobody looks at yet
// and, where weights may come through a ring (StreamLanes, weight_stream.hpp):
//   bool streams()                     whether those of this tile do: its sums then lie in scratch (product_streamed.hpp)
//   float inverse_root(v)              1 / sqrt(v), without a call
// and, where bodies may overtake their events (TaggingLanes, tagged_values.hpp):
//   u32 tag() const                    of the values of this run; 0: none are tagged
//   bool are_inputs_there() const      whether the events of a body that has begun early are there, or the tile is not to run; acquires what that says
//   bool stays() const                 the latter
//   bool is_hurried() const            whether who waits for tags that are all it has to know is to give up, since the worker leaves before its tile
//   void give_up(), bool has_given_up()  some lane does; whether one has, behind a barrier of all
//   u64 load_tagged(p), store_tagged(p, v)  a word of a tagged copy, whole; publishes nothing
//   void load_tagged(p, v[2])          two that follow one another, on a multiple of 16
//   bool any(bool)                     whether it is so of any lane of the warp; all of them call it. u32 which(bool): of which, bit by bit
// and, for multiply_streamed, a stream that begins where the tile's stages do:
//   const u8* await(), free(), leave() waits until the next is filled; by all lanes of a warp once they have read what they want of it; by all
//                                      behind a barrier behind the last
#pragma once

#include "ccks/wire/base.hpp"
#include "ccks/wire/dtype.hpp"

namespace ccks::worker {

/// Least scratch every Lanes type offers. An op that wants more says so in its plan (PlanView::scratch_bytes).
inline constexpr wire::u32 kMinScratchBytes = 48 * 1024;  // shared memory of a CUDA block without opt-in

template <class Lanes>
concept WarpLanes = requires(Lanes& lanes) {
  Lanes::kWarp;
  Lanes::kLanes;
  lanes.shuffle_xor(0.0f, wire::u32{1});
};

/// Of an op that is kOpEarly: waits until what other ops write is there. False: the tile does not run, its body stores nothing and
/// returns. All lanes call it; at once true where bodies begin only then.
template <class Lanes>
CCKS_HD inline bool await_inputs(Lanes& lanes) {
  if constexpr (requires { lanes.await_inputs(); })
    return lanes.await_inputs();
  else
    return true;
}

/// Whether what other ops write need not be there yet, so that a body has time to go through its code once without it.
template <class Lanes>
CCKS_HD inline bool has_begun_early(Lanes& lanes) {
  if constexpr (requires { lanes.has_begun_early(); })
    return lanes.has_begun_early();
  else
    return false;
}

template <class Lanes>
concept MatrixLanes = WarpLanes<Lanes> && requires(Lanes& lanes, float (&sum)[2], const wire::u32 (&words)[2]) {
  lanes.template multiply<wire::Dtype::bf16>(sum, words, words);
};

template <class Lanes>
concept StreamLanes = WarpLanes<Lanes> && requires(Lanes& lanes) { lanes.streams(); };

template <class Lanes>
concept TaggingLanes = WarpLanes<Lanes> && requires(Lanes& lanes) { lanes.are_inputs_there(); };

/// Those whose bodies of streamed products take and leave rows by their tags (tagged_rows.hpp): of a program that has such.
template <class Lanes>
concept RowTaggingLanes = TaggingLanes<Lanes> && Lanes::kRowTags;

/// The same lanes without a ring.
template <class Lanes>
struct PlainLanes : Lanes {
  void streams() = delete;
};

}  // namespace ccks::worker
