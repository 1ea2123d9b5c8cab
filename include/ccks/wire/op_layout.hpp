// The agreement between planner and tile ops: for each op code its tile space, dims[], scalars[] and operands.
// The tile space has rank 4, right-aligned like operands. Unless said otherwise it is the shape of output 0, and
// tile coordinates are row-major in the grid: tile = ((c0 * grid[1] + c1) * grid[2] + c2) * grid[3] + c3.
#pragma once

#include "ccks/wire/base.hpp"

namespace ccks::wire {

/// Same values as spec::OpKind.
enum class OpCode : u8 {
  map = 0,            // operands broadcast to the output by stride 0. dims[0, 1]: see kOpFlat, [2, 3]: kTileElementsDim
  reduce = 1,         // dims: [0] spec::ReduceFn, [1] mask of reduced axes (bit i: axis i of rank 4), [2] to [6]: see kReduceBodyDim. The output operand keeps
                      // reduced dims with extent 1. Tile space: the output so kept
  softmax = 2,        // scalars: [0] scale. tile[3] is the whole last dim
  rmsnorm = 3,        // scalars: [0] eps. tile[3] whole
  layernorm = 4,      // scalars: [0] eps; dims: [0] has bias. tile[3] whole
  matmul = 5,         // a[.., m, k], b[.., k, n]; batch dims broadcast by stride 0. dims[0, 1]: see kOpVectors; [kNormDim], [kRopeDim], [kTwinDim]: see there.
                      // With two more outputs its depth is shared out over tiles: axis 0 of the tile space, which the output has not, counts them
                      // (worker/product_split.hpp)
  attention = 6,      // dims: [0] heads, [1] kv heads, [2] causal, [3] chunks (worker/attention_split.hpp), [4] to [7]: see op_shape.hpp, but [kPageDim]; scalars: [0] scale. tile[3] = a whole
                      // number of heads. Input 3, if any (never with chunks): i32 [n, 2], the positions that each row attends to. Input 4, if any (never causal):
                      // i32 [n, p], pages of each row
  rope = 7,           // dims: [0] heads, [1] position of row 0, [2] 1: has positions, 2: has a table, [3] interleaved, [4] original context, 0: no scaling;
                      // scalars: [0] theta, [1] factor, [2] low, [3] high of spec::RopeScaling.
                      // tile[3] = a whole number of heads; input 1, if any, is positions as [1, 1, 1, n] i32, or cosines and
                      // then sines of the pairs of a head, [1, 1, n, head dim] f32, the head dim a power of two
  gather = 8,         // table rank-aligned [1, 1, v, d] (inner dims flattened), index [1, 1, 1, t] flattened; tile space [1, 1, t, d]:
                      // both table rows and output rows must be contiguous; indices outside [0, v) are faults
  argmax = 9,         // tile space: x with the last dim extent 1; the output operand likewise. dims: [0] columns of a tile where tiles share
                      // out rows, else 0: the tile space's last dim then counts them (worker/argmax_split.hpp)
  topk = 10,          // dims: [0] k. tile space as argmax; outputs [.., k]
  conv2d = 11,        // dims: [0, 1] stride, [2, 3] padding, [4, 5] dilation (h, w). tile space [n, oc, oh, ow]
  route = 12,         // dims: [0] k, [1] softmax over all, [2] renormalize. One tile, or of two inputs tiles of whole rows of weight. Input logits, or values and indices of a topk [t, k]. Outputs: weight [t, k], expert [t, k],
                      // count [1, 1, 1, e], row [t, k], source [1, 1, 1, t * k]
  expert_matmul = 13, // dims: [0] top_k, [1] gather, [2] experts, [kTwinDim]. Inputs x, b[1, e, k, n], source, count. Dynamic: tile coordinate 2 counts the
                      // row tiles of all experts, expert by expert, ceil(count[e] / tile[2]) each; tiles beyond do not exist
  combine = 14,       // dims: [0] top_k. Inputs x [t * k, d], weight [t, k], row [t, k]
  report = 15,        // one tile; output i32 or f32 contiguous; published (OpParams::report)
  select = 16,        // then, else, out; takes `then` where all guards [dims[0], dims[0] + dims[1]) of the frame hold.
                      // These are not the op's own guards
  custom = 17,
  scatter = 18,       // x [1, 1, n, d] (inner dims flattened, as of the output), index [1, 1, 1, n], output [1, 1, v, d]. Tile space: x. Indices outside [0, v)
                      // write nothing
};

/// dims[7]: for matmul, conv2d and expert_matmul, the input index of the first epilogue operand. Argument 0 of an epilogue
/// is the accumulator, argument 1 + i is that input + i. For map, argument i is input i.
inline constexpr u32 kEpilogueDim = 7;

/// dims[7]: for attention with input 4, the rows of a page: k and v are pools, and position j of row i is row page * pages[i, j / page] + j % page of them,
/// where that page lies in them whole; else there is no such position.
inline constexpr u32 kPageDim = 7;

/// dims[5]: for matmul, the input index, the last, of a weight [1, 1, 1, k]; 0: none. With one, rows of a are first normed, as an
/// rmsnorm op with that weight would, and rounded to a's dtype. scalars: [0] eps.
inline constexpr u32 kNormDim = 5;

/// dims[4]: for matmul, the input index, in front of kNormDim's, of a rope's table as rope has it; 0: none. With one, heads are turned: the
/// tile space is [2, heads, m, pairs of a head], of which axis 0 is which of a pair, tile[0] is 2 and there is no code. Products are
/// rounded to the output's dtype and then turned, as a rope op that reads them would.
inline constexpr u32 kRopeDim = 4;

/// dims[3]: for matmul and expert_matmul, 0, or 1 + how many instructions at the front of its code are those of a twin: a second b, input dims[kEpilogueDim],
/// of the same shape and dtype, whose product they finish, rounded to the output's dtype, which is b's. That is argument 1 of the rest of the code, and
/// nobody else sees it. Argument 1 + i of both is input dims[kEpilogueDim] + i, from i = 1 on; the output overlaps no input. Never with kRopeDim.
inline constexpr u32 kTwinDim = 3;
inline constexpr u32 kMostTwinOperands = 12;  // bodies that know neither types nor shape copy them

}  // namespace ccks::wire
