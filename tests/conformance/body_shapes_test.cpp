// One program with a shape for every body that frames call for by what they say of an op (ccks/wire/op_shape.hpp), and for the
// bodies behind those: on a GPU with code for any program and with code for this one, and on the host.
#include <gtest/gtest.h>


#include "tests/support/verified_run.hpp"

namespace ccks::test {
namespace {

// Widths that are no multiple of four (odd) keep ops from being marked.
constexpr const char* kSpec = R"yaml(
ccks: 1
program: body_shapes
dtype: @DTYPE@
dims: {batch: 3, heads: 4, n: 16, h: 64, d: 256, odd: 67, m: {range: [1, 48], default: 1}}
tensors:
  x: {shape: [n, d], kind: input}
  row: {shape: [1, d], kind: input}
  few: {shape: [3, d], kind: input}
  eight: {shape: [8, d], kind: input}
  q: {shape: [batch, heads, n, h], kind: input}
  k: {shape: [batch, heads, n, h], kind: input}
  wide: {shape: [2, 2048], kind: input}
  uneven: {shape: [n, odd], kind: input}
  some: {shape: [m, d], kind: input}
  w: {shape: [d, d], kind: weight}
  w_wide: {shape: [40, 2048], kind: weight}
  w_gate: {shape: [40, 2048], kind: weight}
  tall: {shape: [d, 4 * d], kind: weight}
  b: {shape: [d], kind: weight}
  gain: {shape: [2048], kind: weight}
  shift: {shape: [2048], kind: weight}
  w_uneven: {shape: [odd, d], kind: weight}
  keys: {shape: [50, 2 * h], kind: input}
  values: {shape: [50, 2 * h], kind: input}
  slots: {shape: [n], dtype: i32, kind: input, init: {count: 0}}
  page_table: {shape: [n, 3], dtype: i32, kind: input, init: {count: 0}}
  page_reach: {shape: [n, 2], dtype: i32, kind: input, init: {integers: [0, 49]}}
  key_pool: {shape: [600, 2 * h], kind: state, init: {normal: 1}}
  value_pool: {shape: [600, 2 * h], kind: state, init: {normal: 1}}
  flat: {shape: [n, d], kind: output}
  rows: {shape: [n, d], kind: output}
  y_row: {shape: [1, d], kind: output}
  y_few: {shape: [3, d], kind: output}
  y_eight: {shape: [8, 4 * d], kind: output}
  t_row: {shape: [1, d], kind: output}
  t_few: {shape: [3, d], kind: output}
  t_eight: {shape: [8, d], kind: output}
  head: {shape: [batch, heads, n, h], kind: output}
  block: {shape: [n, d], kind: output}
  t_block: {shape: [n, d], kind: output}
  uneven_block: {shape: [n, d], kind: output}
  long_softmax: {shape: [2, 2048], kind: output}
  warp_softmax: {shape: [n, d], kind: output}
  uneven_softmax: {shape: [n, odd], kind: output}
  root: {shape: [2, 2048], kind: output}
  layer: {shape: [2, 2048], kind: output}
  plain_layer: {shape: [n, d], kind: output}
  attended: {shape: [n, d], kind: output}
  attended_row: {shape: [1, d], kind: output}
  attended_pages: {shape: [n, d], kind: output}
  largest: {shape: [2], dtype: i32, kind: output}
  turned: {shape: [1, d], kind: output}
  normed_row: {shape: [1, d], kind: output}
  normed_few: {shape: [3, d], kind: output}
  normed_eight: {shape: [8, d], kind: output}
  normed_wide: {shape: [2, 40], kind: output}
  normed_some: {shape: [m, d], kind: output}
  gated: {shape: [2, 40], kind: output}
  gated_some: {shape: [m, d], kind: output}
  some_wide: {shape: [m, 2048], kind: input}
  w_tall: {shape: [d, 2048], kind: weight}
  w_tall_gate: {shape: [d, 2048], kind: weight}
ops:
  - {op: map, expr: silu(x) * 1.5, out: flat}
  - {op: map, expr: x + b, out: rows}
  - {op: matmul, a: row, b: w, epilogue: gelu_tanh(acc + b), out: y_row}
  - {op: matmul, a: few, b: w, epilogue: acc + b, out: y_few}
  - {op: matmul, a: eight, b: tall, out: y_eight}
  - {op: matmul, a: row, b: w.T, epilogue: acc + b, out: t_row}
  - {op: matmul, a: few, b: w.T, epilogue: acc * b, out: t_few}
  - {op: matmul, a: eight, b: w.T, out: t_eight}
  - {op: matmul, a: q, b: k, transpose_b: true, out: s}
  - {op: softmax, x: s, scale: 0.125, out: p}
  - {op: matmul, a: p, b: k, epilogue: relu(acc) + q, out: head}
  - {op: matmul, a: x, b: w, epilogue: acc + x, out: block}
  - {op: matmul, a: x, b: w.T, out: t_block}
  - {op: matmul, a: uneven, b: w_uneven, out: uneven_block}
  - {op: softmax, x: wide, out: long_softmax}
  - {op: softmax, x: x, out: warp_softmax}
  - {op: softmax, x: uneven, out: uneven_softmax}
  - {op: rmsnorm, x: wide, weight: gain, out: root}
  - {op: layernorm, x: wide, weight: gain, bias: shift, out: layer}
  - {op: layernorm, x: x, weight: b, out: plain_layer}
  - {op: attention, q: x, k: keys, v: values, heads: heads, kv_heads: 2, causal: true, out: attended}
  - {op: attention, q: row, k: keys, v: values, heads: heads, kv_heads: 2, causal: false, out: attended_row}
  - {op: scatter, x: "keys[0:n, :]", index: slots, out: key_pool}
  - {op: scatter, x: "values[0:n, :]", index: slots, out: value_pool}
  - {op: attention, q: x, k: key_pool, v: value_pool, heads: heads, kv_heads: 2, reach: page_reach, pages: page_table, page: 16, out: attended_pages}
  - {op: argmax, x: wide, out: largest}
  - {op: rope, x: row, heads: heads, theta: 10000, position: 5, out: turned}
  - {op: rmsnorm, x: row, weight: b, out: n_row}
  - {op: matmul, a: n_row, b: w.T, epilogue: acc + b, out: normed_row}
  - {op: rmsnorm, x: few, weight: b, out: n_few}
  - {op: matmul, a: n_few, b: w.T, epilogue: acc * b, out: normed_few}
  - {op: rmsnorm, x: eight, weight: b, out: n_eight}
  - {op: matmul, a: n_eight, b: w.T, out: normed_eight}
  - {op: rmsnorm, x: wide, weight: gain, out: n_wide}
  - {op: matmul, a: n_wide, b: w_wide.T, out: normed_wide}
  - {op: rmsnorm, x: some, weight: b, out: n_some}
  - {op: matmul, a: n_some, b: w.T, epilogue: acc + b, out: normed_some}
  - {op: matmul, a: n_wide, b: w_gate.T, epilogue: gelu(acc), out: gate}
  - {op: matmul, a: n_wide, b: w_wide.T, epilogue: acc * gate, out: gated}
  - {op: matmul, a: some_wide, b: w_tall_gate.T, epilogue: sigmoid(acc * 0.03) + b, out: gate_some}
  - {op: matmul, a: some_wide, b: w_tall.T, epilogue: acc * gate_some, out: gated_some}
)yaml";

using Param = std::tuple<const char*, const char*, const char*>;  // device, code, dtype

class BodyShapes : public testing::TestWithParam<Param> {};

// `rows`: of the tensor whose rows vary, one typically: with more its product has other bodies.
void check_body_shapes(const Param& param, std::int64_t rows) {
  const auto& [device, code, dtype] = param;
  const TemporaryFolder folder;
  run::Options options = options_of(folder, with_dtype(kSpec, dtype), device, code);
  options.workers = options.device == "host" ? 3 : 0;
  options.dims = {{"m", rows}};
  expect_verified(options);
}

TEST_P(BodyShapes, MatchTheReference) { check_body_shapes(GetParam(), 1); }
TEST_P(BodyShapes, MatchItWithRowsThatAreNotTypical) { check_body_shapes(GetParam(), 37); }

INSTANTIATE_TEST_SUITE_P(All, BodyShapes,
                         testing::Values(Param{"host", "generic", "f32"}, Param{"host", "generic", "bf16"},
                                         Param{"cuda", "generic", "f32"}, Param{"cuda", "generic", "bf16"},
                                         Param{"cuda", "jit", "f32"}, Param{"cuda", "jit", "bf16"}),
                         [](const testing::TestParamInfo<Param>& p) {
                           return std::string(std::get<0>(p.param)) + "_" + std::get<1>(p.param) + "_" + std::get<2>(p.param);
                         });

}  // namespace
}  // namespace ccks::test
