// Relays: tiles of a list that run one behind the other with none of a worker's stages between them. What a tile takes from other workers within the run it
// takes as rows with tags (wire::tagged_value, two 16-bit floats a word), and leaves so; no event of the run is waited for or signalled on the way. What a tile does is
// written out by the host as a step, so that a worker decides nothing and its code is short: code that does not fit a multiprocessor's caches is what a decode step waits
// for otherwise (worker/relay.cuh).
//
// A relay is one record of a list (TileRecord), whose op says so by its body, kRelayBody: dims[0] steps, which lie dims[1] bytes from the frame's start; none wants more than dims[2]
// bytes of scratch (relay_step_bytes of kMarkedLanes), and no more than dims[3] stages of weights are under way, dims[7] while a product is at its stages. While
// all stages are full the L2 is asked for what comes behind them, dims[4] pieces at most, dims[5] cycles from one to the next. It waits for what its tiles read of ops that are no part of it, and signals what others wait for.
//
// The rows that a run begins with, embeddings, are of a table. The gather that would copy them is no step: who reads the rows reads them in the table (kRelayLookedUpRow). Which they are lies where
// the gather's indices do; or a pick of the run in front leaves each as a word, and then the relay waits for those words in place of its run's turn.
#pragma once

#include "ccks/wire/frame.hpp"

namespace ccks::wire {

inline constexpr u16 kRelayBody = 0xffff;

// pick: where the largest element is of a row that ranked products have made. For the host alone, since no step is of such a kind: look_up, the gather of
// rows of a table; norm, whose rows products take as they were in front of it, and norm themselves.
// route: which experts a row goes to, and for what share, found by each list for itself of the words of their logits; the steps behind it in the list take weights by that. addend: for the host alone, the
// product by the chosen experts that a combine adds up, which is one product of the relay (RelayExperts::along_depth).
enum class RelayKind : u8 { product = 0, attention = 1, pick = 2, look_up = 3, norm = 4, route = 5, addend = 6 };

/// What becomes of the products of a step.
enum class RelayEnd : u8 {
  plain = 0,   // the product
  sum = 1,     // the product + beside
  twin = 2,    // the product by the first run of columns times act(the product by the second), which is rounded to bf16 before
  turned = 3,  // the runs are the halves of a head: pairs are turned by the angles beside
};
enum class RelayAct : u8 { none = 0, silu = 1, gelu_tanh = 2, relu = 3 };

enum RelayFlags : u8 {
  kRelayPlainRow = 1,     // row: elements as they are, there before the relay begins
  kRelayPlainBeside = 2,  // beside, of RelayEnd::sum: the same
  kRelayFloats = 4,       // what is stored is f32, not bf16
  kRelayMoves = 8,        // store: bytes from where the op's output lies in this run, which its block says
  kRelayRanks = 16,       // a plain product: beside: where it leaves words of the largest of its elements, relay_rank_words of them. `second`: which element of the row its first is
  kRelayLookedUpRow = 32,     // row, plain ones: the table's first row
  kRelayLookedUpBeside = 64,  // beside, plain ones: the same
  kRelayWide = 128,           // a product: a stage has twice kRelayColumns, each of half of kRelayDepth elements: relay_is_wide
};

/// Of a product, whether its columns are those of experts that a route has chosen, for any of its rows: of those that are a list's share of them (relay_share), which its route finds, by the rows that chose each, whose results are
/// multiplied by its share of the row before they are left as words; or of all of them, whose sums are each row's results.
enum class RelayExperts : u8 { none = 0, share = 1, all = 2 };

inline constexpr int kRelayLookUpDim = 6;  // of a relay's op: bytes from the frame's start to the block of the gather whose row is looked up; 0: there is none
/// Of that gather: the tag of the words that say which rows, i32, OperandParams::tags bytes from the indices. Without such words tags are 0.
inline constexpr int kLookUpTagDim = 7;

inline constexpr i32 kRelayRow = 256;          // a row has a multiple of so many elements
inline constexpr u32 kRelayDepth = 2048;       // elements along k of a stage, at most; scratch has room for a multiple of it
inline constexpr i32 kMostRelayNormed = 8192;  // elements of a row with a norm: lanes hold all of it until its factor is known
inline constexpr i32 kRelayColumns = 4;        // of a stage, or half of them (kRelayWide); a step has a multiple of so many, and so has each of its runs
inline constexpr i32 kMostRelayColumns = 128;  // of a step, both runs counted; more only of RelayEnd::plain, for which nothing is fetched ahead
inline constexpr u32 kMostRelayRows = 8;       // of each product of a relay: all of them have as many
/// kMostRelayColumns of products of `rows` rows: lanes finish a result each.
CCKS_HD constexpr u32 relay_columns(u32 rows) { return rows <= 2 ? kMostRelayColumns : rows <= 4 ? kMostRelayColumns / 2 : kMostRelayColumns / 4; }
inline constexpr i32 kMostRelayQueries = 8;
inline constexpr u32 kMostRelayExperts = 256, kMostChosenExperts = 16;  // that a route finds some among, and that it finds for a row
inline constexpr i32 kRelayShareColumns = 2;     // of each of the two runs: what a stage of a share of experts has
inline constexpr u32 kLeastShareCost = 8, kMostShareCost = 10;
inline constexpr i32 kRelayExpertColumns = 8;    // of a stage of RelayExperts::all, of one expert's depth, or so much of it:
inline constexpr u32 kRelayExpertDepth = 1024;
inline constexpr i32 kMostRelayExpertColumns = 2 * kRelayExpertColumns;  // of such a step: one set of the units' rows
inline constexpr u32 kRelayExpertSlice = 32;     // elements along k that a warp multiplies at a time: an expert's depth has a multiple of so many
/// Of a step that ranks: of each row, of each 32 of the columns walked at a time, over all of them, the rank of the largest element (worker/argmax_split.hpp) and which of the row it is: so
/// many pairs of words a row, row by row. Behind them a word, released, that says no more than that its list's steps in front have stored what they store; and one for the alignment of pairs.
inline constexpr i32 kRelayRankColumns = 32;
CCKS_HD constexpr u32 relay_rank_pairs(u32 rows) { return relay_columns(rows) / kRelayRankColumns; }
CCKS_HD constexpr u32 relay_rank_words(u32 rows) { return 2 * rows * relay_rank_pairs(rows) + 2; }
inline constexpr u32 kMostRelayStepBytes = 38 * 1024;   // relay_step_bytes: what the least scratch of a worker, 48 KiB, has beside what all steps share
inline constexpr u32 kMostRelayRowsBytes = 128 * 1024;  // the same where products have several rows: of the ring's room, too

/// Some columns of a product, or a tile of attention. All addresses are of the device; dtypes are bf16 where nothing else is said.
struct alignas(128) RelayStep {
  u64 row;      // product: words or elements of the row of a. attention: words of the queries of its kv head, group * head dim of them. pick: words of ranks, relay_rank_words of each step that ranks. route: words of logits, f32, one an element
  u64 words;    // of the first result; 0: nobody takes them by words. Of pairs the second half is `second` elements on. pick: a word a row, of its index
  u64 store;    // of the first result, where it lies as it is; 0 (without kRelayMoves): nobody reads it there. pick: of the indices, i32
  u64 block;    // of the op (BlockRef): what changes from run to run, output's place, context, caches
  u64 columns;  // product: the first column of b. attention: words of the newest position's keys of its kv head
  u64 beyond;   // product: bytes from the end of the first run of columns to the second. attention: words of the newest position's values
  u64 norm;     // product: weight of a norm, k elements; 0: none. attention: words of what parts have found, one behind the other (relay_part_words)
  u64 beside;   // sum: words or elements of what is added. turned: the cosine of the first pair, f32. Where it ranks: words of ranks
  u32 column_bytes, k;  // product. RelayExperts::all: k: of one expert, whose rows lie one behind the other in each row of `row`, by place
  u16 n, run;           // product: columns, of both runs, and of the first. RelayExperts::share: n: columns of a run that each expert has. attention: n: queries of the kv head, run: dims of a head. pick: n: pairs of words of each row in all. route: n: experts, run: chosen ones
  u32 second;           // turned: elements from a pair's first to its second, in words and in store. Where it ranks: see there
  float scale;          // product: eps of the norm. attention: of scores
  u8 kind, end, act, flags;  // RelayKind, RelayEnd, RelayAct, RelayFlags
  u32 sines;            // turned: bytes from a pair's cosine to its sine
  u32 op, tile;         // of the frame
  u16 part, kv_head;    // attention. product: part 1: the step in front has multiplied the same row, which is still there. route: which of the lists it is, of how many; `second`: columns that those share
  // Of a product of several rows, elements from one to the next: of row, of words, of store, of what beside says. Of attention row_pitch is which of the rows it is of.
  u32 row_pitch, words_pitch, store_pitch, beside_pitch;
  u8 by_pieces;  // of a product of several rows: 1: scratch has no more of them than kRelayDepth elements at a time, and weights come in that order, of all columns; it has no more than relay_columns, no norm, and is not kRelayWide
  u8 experts, slot;   // RelayExperts; of a share which of its experts
  u8 float_words;     // of a product: 1: words are of one result each, f32
  u32 expert_bytes;   // where columns are experts': from one's first to the next's
};
static_assert(sizeof(RelayStep) == 128);

/// Whether columns of `k` elements end in a piece that would fill no more than half of a stage, and `n` of them, of all runs of a step, come out even where a stage has twice as many of half the depth.
CCKS_HD constexpr bool relay_is_wide(u32 k, u32 n) { return n % (2 * kRelayColumns) == 0 && (k - 1) % kRelayDepth < kRelayDepth / 2; }
/// Stages that columns of a step come in.
CCKS_HD constexpr u32 relay_stages(u32 k, u32 n) {
  const u32 parts = relay_is_wide(k, n) ? 2 : 1;
  return n / (kRelayColumns * parts) * ((k + kRelayDepth / parts - 1) / (kRelayDepth / parts));
}

/// What a stage of an expert counts that `rows` rows have chosen, where lists share out the stages of all of them: of more rows it takes longer. An H200, moe_layer of eight tokens, 125 stages a list: most lists take 65 us, some 72,
/// the last 76. Supposed: those have experts of three and four rows, and the one of five; with these counts they are no longer the last.
CCKS_HD constexpr u32 relay_share_cost(u32 rows) { return rows <= 2 ? kLeastShareCost : rows <= 4 ? 9 : kMostShareCost; }
/// What list `list` of `lists` has of all that stages of experts count, which lie one behind the other.
struct RelaySpan {
  u32 begin, end;
};
CCKS_HD constexpr RelaySpan relay_span(u32 all, u32 list, u32 lists) {
  const u32 each = all / lists, more = all - each * lists;
  return {each * list + (list < more ? list : more), each * (list + 1) + (list + 1 < more ? list + 1 : more)};
}
/// Columns of a run.
struct RelayShare {
  u32 first, columns;
};
/// count / cost, rounded up, of a cost of relay_share_cost: by constants, which takes no division.
CCKS_HD constexpr u32 relay_cost_stages(u32 count, u32 cost) {
  static_assert(kLeastShareCost == 8 && kMostShareCost == 10);
  return cost == 8 ? (count + 7) / 8 : cost == 9 ? (count + 8) / 9 : (count + 9) / 10;
}
/// Of an expert's `columns`, whose stages begin at `start` and count `cost` each, those of stages that begin in the span.
CCKS_HD constexpr RelayShare relay_share(const RelaySpan& span, u32 start, u32 cost, u32 columns) {
  const u32 stages = columns / kRelayShareColumns, from = span.begin <= start ? 0 : relay_cost_stages(span.begin - start, cost), to = span.end <= start ? 0 : relay_cost_stages(span.end - start, cost);
  const u32 first = from < stages ? from : stages, behind = to < stages ? to : stages;
  return {first * kRelayShareColumns, (behind - first) * kRelayShareColumns};
}
/// Experts of a share, at most, where `active` may be.
CCKS_HD constexpr u32 relay_share_slots(u32 active, u32 columns, u32 lists) {
  const u32 stages = columns / kRelayShareColumns, most = (active * stages * kMostShareCost + lists - 1) / lists, expert = stages * kLeastShareCost;
  const u32 slots = most == 0 ? 0 : (most - 1) / expert + 2;
  return slots < active ? slots : active;
}
/// Rows of one expert each that a warp takes at a time in a step of RelayExperts::all, and for which it has room: there may be more than the rows of an expert take.
inline constexpr u32 kRelayExpertRowsAhead = 4;
CCKS_HD constexpr u32 relay_expert_rows(u32 rows) { return rows == 1 ? 4 : rows <= 5 ? 8 : 16; }

/// Words (tagged_value of an f32) of what one part of a context leaves for part 0: per query its values, then its top and its sum.
CCKS_HD constexpr u32 relay_part_words(u32 queries, u32 dims) { return queries * (dims + 2); }

/// Of scratch, what a step of `warps` warps wants for itself: `rows` rows; or queries, the newest key and value, and what warps have found, padded.
CCKS_HD constexpr u32 relay_step_bytes(const RelayStep& s, u32 warps, u32 rows = 1) {
  if (static_cast<RelayKind>(s.kind) == RelayKind::pick || static_cast<RelayKind>(s.kind) == RelayKind::route) return 0;
  if (static_cast<RelayExperts>(s.experts) == RelayExperts::all) return relay_expert_rows(rows) * kRelayExpertDepth * 2;
  if (static_cast<RelayKind>(s.kind) == RelayKind::product) return (s.by_pieces != 0 ? 1 : (s.k + kRelayDepth - 1) / kRelayDepth) * kRelayDepth * 2 * rows;
  return (u32{s.n} + 2) * s.run * 2 + warps * s.n * (u32{s.run} + 8) * 4;
}

}  // namespace ccks::wire
