// Shares of an expert_matmul (wire::kSharesDim): its tiles are no blocks of rows and columns, which are as many as experts turn out to have rows, but equal parts of what
// there is to do. Each tile finds its own from the counts: no worker has one more than another, none finds that its tile does not exist, and how many there are is known before
// the router has run.
//
// What there is to do is laid out in a line: row tiles of all experts, expert by expert, of each all columns, a column of a row tile as long as it takes. Share i of s
// begins where i s-ths of that line end, at a column that two shares agree about, and goes through as many parts as it has row tiles.
#pragma once

#include "ccks/worker/expert_window.hpp"

namespace ccks::worker {
inline namespace CCKS_ISA {

/// Rows of one tile, or part, of an expert_matmul.
struct ExpertRows {
  i32 expert = 0;
  u32 first = 0;  // routed row
  u32 count = 0;  // 0: there is none
  bool sound = true;
};

/// What one body multiplies at a time: rows of an expert by columns [column, column + columns).
struct ExpertPart {
  ExpertRows rows;
  i32 column = 0;
  u32 columns = 0;
};

/// What a column of so many rows takes beside others (worker/README.md, 2026-11-29): up to 64 its weights, on their way from memory, and ever more of the rows beside them.
CCKS_INLINE constexpr u32 expert_column_cost(u32 rows) { return rows == 0 ? 0 : rows <= 8 ? 32 : rows <= 16 ? 33 : rows <= 32 ? 34 : rows <= 64 ? 54 : 46; }
/// Columns at which a share of so many rows may begin, where bodies take `block` at a time: of few rows half a block takes half as long (expert_stream.hpp).
CCKS_INLINE constexpr u32 expert_share_columns(u32 rows, u32 block) { return rows <= 16 ? block / 2 : block; }

/// Of an expert that has taken so many rows a column of all its row tiles.
CCKS_INLINE u32 expert_cost(u32 taken, u32 rows_per_tile) {
  return taken / rows_per_tile * expert_column_cost(rows_per_tile) + expert_column_cost(taken % rows_per_tile);
}

/// An expert on the line of all that there is to do, in the units of expert_column_cost.
struct ExpertPlace {
  u32 expert, first, taken;  // first: the routed row before which others' end
  u64 at;                    // where the expert begins
};

/// Share `index` of `shares` of what experts that have taken `rows` rows have to do by `columns` columns, of which bodies take `block` at a time.
struct ShareOf {
  u32 index, shares, columns, rows, rows_per_tile, block;
};

/// What is to be found out about a share: [begin, end) of the line, and an expert that begins at `begin` or before; end 0: it is empty.
struct FoundShare {
  ExpertPlace place = {0, 0, 0, 0};
  u64 begin = 0, end = 0;
  bool sound = true;

  /// cost: of a column of all row tiles of all experts.
  CCKS_INLINE void take(const ShareOf& of, u32 cost) {
    const u64 all = u64{cost} * of.columns;
    begin = all * of.index / of.shares;
    end = all * (of.index + 1) / of.shares;
  }
};

/// The parts of a share, one after the other: [begin, end) of the line. All lanes have it alike.
template <class C>
class ExpertShare {
 public:
  /// `found` is sound.
  CCKS_INLINE ExpertShare(const View<C>& count, u32 experts, const ShareOf& of, const FoundShare& found)
      : count_(count), experts_(experts), columns_(of.columns), rows_per_tile_(of.rows_per_tile), block_(of.block), place_(found.place), begin_(found.begin), end_(found.end) {}

  /// False: there are no more.
  CCKS_INLINE bool next(ExpertPart& part) {
    while (place_.at < end_) {
      if (done_ >= place_.taken) {
        if (!step_expert()) return false;
        continue;
      }
      const u32 here = least(rows_per_tile_, place_.taken - done_), cost = expert_column_cost(here);
      const u64 whole = u64{cost} * columns_;
      const u32 from = place_.at < begin_ ? column_at(begin_, here, cost) : 0, to = column_at(end_, here, cost);
      part = {{static_cast<i32>(place_.expert), place_.first + done_, here, true}, static_cast<i32>(from), to - from};
      place_.at += whole;
      done_ += here;
      if (from < to) return true;
    }
    return false;
  }

 private:
  CCKS_INLINE bool step_expert() {
    place_.first += place_.taken;
    if (++place_.expert >= experts_) return false;
    place_.taken = static_cast<u32>(load_int(count_.type, count_.at(0, 0, 0, static_cast<i32>(place_.expert)), 0));
    done_ = 0;
    return true;
  }
  /// The column of the row tile at place_.at at which a share that ends, or begins, `where` on the line does.
  CCKS_INLINE u32 column_at(u64 where, u32 rows, u32 cost) const {
    if (where >= place_.at + u64{cost} * columns_) return columns_;
    const u32 step = expert_share_columns(rows, block_), column = static_cast<u32>(where - place_.at) / cost;
    return least((column + step / 2) / step * step, columns_);
  }

  View<C> count_;
  u32 experts_, columns_, rows_per_tile_, block_;
  ExpertPlace place_;
  u64 begin_, end_;
  u32 done_ = 0;  // rows of the expert, in row tiles that are passed
};

}  // namespace CCKS_ISA
}  // namespace ccks::worker
