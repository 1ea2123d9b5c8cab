// Measured costs of workers, for predict_plan. One table, with where each figure comes from: an H200 (PCIe Gen5 x16, driver 580, CUDA
// 13.0), traces of bench/llama_decode.py --trace (1B shape, context 64, at 2e9e273) unless said otherwise. Times of bodies in a
// trace begin where the events are there and end where the stores are done.
#include "codegen/predict_plan.hpp"

namespace ccks::codegen {

PredictCosts predict_costs(const std::string& gpu) {
  PredictCosts costs;
  if (gpu != "h200") return costs;
  costs.source = "measured on an H200: bodies by timelines of a llama's step, of layers of experts and of an encoder, hops by ccks-bench dispatch";
  costs.bytes_per_us = 4.67e6;  // read-only sweep
  costs.hop_us = 1.2;           // dispatch: a layer of a chain of empty ops takes 0.87; the rest is what it takes to publish stores
  costs.spread = 0.25;          // of products: 9.3 us on average and 12 to 13 for the last
  costs.next_us = 0.2;          // dispatch: 324 M tasks a second of 132 workers are 0.4 us a task, with its record; half of it here
  costs.ends_us = 2;            // of chained runs: a signal behind the last task, and the first list of the next
  costs.other = {4.0, 0, 0};    // rope 4.7, a report of one word 3.3: what any body takes whose code and operands come from far
  costs.few_rows = {0.8, 33.5e3, 0};  // at 3656bc1: 16 columns of 2,048 2.8, of 8,192 7.9, 64 of 2,048 with two weights 16.2
  costs.block = {4.4, 33.8e3, 1.0e6};
  costs.attention = {3.5, 17e3, 0};   // attention_step.hpp: 65 positions 3.7, 256 of them, and what brings parts together, 6.5
  costs.rows = {2.6, 25e3, 0};         // a norm 3.0, argmax of 128,256 floats 24.1
  costs.gather = {3.3, 0, 0};
  costs.combine = {3, 30e3, 0};     // of a row of 2,048 of eight experts each 4.7, of four 8.5, of eight 10.7 to 16.5 (moe_layer, worker/README.md, 2026-11-30)
  // Tiles of many rows: traces of ragged_encoder and moe_layer on an H200 (include/ccks/worker/README.md, 2026-11-29).
  // Products: stamps of ragged_encoder at fd1b045, 1.98 GHz, and 0.5 to 0.7 between two (2026-11-30); a step of 192 columns is as it was.
  costs.groups.fixed_us = 0.9;  // 512 deep: 64 and 128 columns with a row of their own 3.6 and 4.9, 192 with a bias 6.3, 256 with a row of its own 8.9, with a gelu behind the bias 10.3
  costs.groups.column_us = 0.0165;
  costs.groups.step_us = {0.287, 0.316, 0.4, 0.53};  // 2,048 deep, with a row of its own: of 64, 128 and 256 columns 10.5, 12.5 and 21.6
  costs.groups.narrow_fixed_us = 5;  // 64 x 64 of 512 9.6; of a step of 64 rows of a Llama, and of 16, a fit to what they take
  costs.groups.narrow_us = 0.3;
  costs.groups.expert_us = 6;        // gate and up of 128 columns by 2,048 36 of four rows on average, 38 of 32, 52 of 110; down of 512 by 768 27, 31 and 46; since walks take fewer instructions, a fit to runs of 64 to 2,048 tokens (6a9f6e3)
  costs.groups.expert_bytes_per_us = 41e3;
  costs.groups.row_us = 0.125;
  costs.groups.missing_us = 2;
  costs.groups.attention_us = 6;     // 128 rows that attend to some 400: one head 14.5, two 28.4, eight 89
  costs.groups.head_us = 4;
  costs.groups.attention_operations_per_us = 2.4e6;
  // Steps: traces of 365756a and f530cce on an H200 and of what 51becb5 has on an H100, whose clock is the same (bench/README.md, 2026-11-27).
  costs.step.piece_bytes = 16384;  // of a stage, worker/relay_stream.cuh
  costs.step.stages = 11;          // beside a row of 8,192
  costs.step.ahead = 12;           // kRelayAhead
  costs.step.latency_us = 0.8;     // supposed
  costs.step.landing_us = 0.4;     // an H200 whose weights all came from the L2, and nothing was waited for: 0.41 a stage
  costs.step.piece_us = 0.175;     // an H100: q, of eight pieces, 2.8, k, of four, 2.1
  costs.step.fixed_us = 1.3;       // an H200 at f530cce: o, of four, without a norm, 1.7, k 2.3
  costs.step.hop_us = 0.9;         // an H200: rows of 2,048 are there 1.2 to 2.0 behind the last that made them, rows of 8,192 2.9
  costs.step.word_us = 0.00025;
  costs.step.more_words_us = 0.00018;  // an H200: of four and eight rows a product of rows of 8,192 takes 1.5 more a row (worker/README.md, 2026-11-28)
  costs.step.attention_us = 2.3;   // of 64 positions
  costs.step.bytes_per_us = 17e3;  // as of other bodies of attention
  costs.step.parts_us = 3.2;       // an H100: what a step takes more at 512 than at 64, a layer
  costs.step.begin_us = 4.5;       // an H200: from the last angles to the first row 4.8
  // Traces of moe_layer of one token at 113daf2 on an H200: the first list is seen 2.7 behind submit, the last 2 later; a row is there 5.7 behind its list.
  costs.step.alone_us = 9;
  costs.step.answers_us = 7;       // 44 to 46 in all, of which a trace knows of 34.4 behind the first list
  costs.step.route_us = 5;         // a fit; by traces of moe_layer at 6a9f6e3 experts are known 3.0 (one token) and 4.5 (eight) behind the last logits
  return costs;
}

}  // namespace ccks::codegen
