// predict: what one run of a plan takes on a GPU's workers, by playing its ops through on measured costs. A model of few terms, each
// named: bodies, what memory gives all workers together, hops between workers, and the way in and out.
#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <vector>

#include "codegen/check_model.hpp"

namespace ccks::codegen {

/// What a tile's body takes on one worker: `fixed_us`, and its bytes and operations at the rates of one worker. 0: no such term.
struct BodyCost {
  double fixed_us = 0;
  double bytes_per_us = 0;
  double operations_per_us = 0;
};

/// What tiles of many rows take in 16-bit floats, by four warps together (include/ccks/worker/product_group.hpp). No step_us: nothing was measured, and they take what other blocks do.
struct GroupCost {
  double fixed_us = 0, column_us = 0;                 // of a product's tile, beside its walk, and more for each column
  double narrow_fixed_us = 0;                         // of one of no more than 64 rows and 128 columns
  std::array<double, 4> step_us{};                    // a step of 64 along k: of up to 64, 128, 192 and 256 columns
  double narrow_us = 0;                               // of no more than 64 rows
  double expert_us = 0, expert_bytes_per_us = 0, row_us = 0;  // a tile of an expert: beside its weights, those at the rate of one worker, and a row more
  double missing_us = 0;                              // one that finds that there are no rows for it
  double attention_us = 0, head_us = 0, attention_operations_per_us = 0;  // a tile of attention, each head, and its operations
};

/// What a step of a relay takes (include/ccks/worker/relay.cuh), whose weights come in pieces ahead of it. No piece_us: nothing was measured, and every tile is a body.
struct StepCost {
  double piece_bytes = 0;     // as they are copied
  int stages = 0, ahead = 0;  // pieces that lie in shared memory in front of the one that is multiplied; and behind those, in the L2
  double latency_us = 0;      // from asking to what has landed, of a piece that the L2 has
  double landing_us = 0;      // at least, from one that has landed to the next, of a worker
  double piece_us = 0;        // that has landed: to multiply it
  double fixed_us = 0;        // beside its pieces: half of it in front
  double hop_us = 0;          // from the end of the last that makes a row to where its words are there
  double word_us = 0;         // and more for each element of the row
  double more_words_us = 0;   // and for each element of each further row
  double attention_us = 0, bytes_per_us = 0;  // a step of attention, and its bytes at the rate of one worker
  double parts_us = 0;        // more where a context has several parts that are brought together
  double begin_us = 0;        // from the last op in front to where the first step begins
  double alone_us = 0;        // that long from submit, where the run begins with it: its lists reach all workers, and each opens its own
  double answers_us = 0;      // and from its end to the answer of such a run, of which all workers have told
  double route_us = 0;        // to choose experts of rows whose logits are there, and to find whose columns are whose
};

/// Costs of one kind of GPU. `source` says where they come from; empty: nothing was measured, so nothing is predicted.
struct PredictCosts {
  std::string source;
  double bytes_per_us = 0;  // all workers together
  double hop_us = 0;        // from the end of a body to the beginning of another worker's that waits for it
  double spread = 0;        // of a body: by that much the last of an op's tiles ends after what they take on average
  double next_us = 0;       // between two bodies of one worker that wait for nobody
  double ends_us = 0;       // from submit to the first body and from the last one to the answer, of runs that follow one another
  BodyCost other, few_rows, block, attention, rows, gather, combine;
  GroupCost groups;
  StepCost step;
  /// `op` with `rows` rows of output in a tile.
  const BodyCost& of(wire::OpCode kind, std::int64_t rows) const;
};

/// The costs of `gpu`, a name as explain takes it.
PredictCosts predict_costs(const std::string& gpu);

struct PredictedOp {
  double begin_us = 0, end_us = 0;  // of the first tile and of the last
  double body_us = 0;               // of one tile
  double busy_us = 0;               // all tiles, shared out over all workers
};

struct Prediction {
  double run_us = 0;
  double busy_us = 0;  // bodies, averaged over the workers; the rest is waiting
  std::uint32_t workers = 0;
  std::vector<PredictedOp> ops;
};

/// Tiles go out in the order of ops, to the worker of the tile they follow or to the one that is free first, as lists do. A tile begins
/// when its worker is free and what it waits for is done.
Prediction predict_plan(const check::Model& model, const PredictCosts& costs, std::uint32_t workers);

}  // namespace ccks::codegen
