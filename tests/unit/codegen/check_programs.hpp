// Small programs for tests of the checker and of generated sources: f32 and i32 only, several tiles per op at their
// upper dims, every op kind at least once.
#pragma once

#include <stdexcept>
#include <string>
#include <vector>

#include "spec/parse.hpp"

namespace ccks::codegen::testing {

struct SmallProgram {
  const char* name;
  const char* text;
};

inline constexpr SmallProgram kSmallPrograms[] = {
    {"mlp", R"(ccks: 1
program: mlp
dtype: f32
dims: {n: {range: [1, 90]}, d: 64, f: 96}
tensors:
  x: {shape: [n, d], kind: input}
  g: {shape: [d], kind: weight}
  wu: {shape: [2 * f, d], kind: weight}
  wd: {shape: [d, f], kind: weight}
  y: {shape: [n, d], kind: output}
ops:
  - {op: rmsnorm, x: x, weight: g, eps: 1e-5, out: h}
  - {op: matmul, a: h, b: wu, transpose_b: true, out: u}
  - {op: map, expr: silu(gate) * up, with: {gate: "u[:, 0:f]", up: "u[:, f:2*f]"}, out: v}
  - {op: matmul, a: v, b: wd, transpose_b: true, epilogue: acc + x, out: y}
)"},
    {"chain", R"(ccks: 1
program: chain
dtype: f32
dims: {n: {range: [1, 100]}, d: 64}
tensors:
  x: {shape: [n, d], kind: input}
  w: {shape: [d, d], kind: weight}
  y: {shape: [n, d], kind: output}
ops:
  - {op: matmul, a: x, b: w, out: a}
  - {op: softmax, x: a, out: b}
  - {op: matmul, a: b, b: w, out: c}
  - {op: map, expr: p + q, with: {p: b, q: c}, out: e}
  - {op: matmul, a: e, b: w, out: f}
  - {op: map, expr: tanh(p), with: {p: f}, out: g}
  - {op: matmul, a: g, b: w, out: h}
  - {op: map, expr: p * 2, with: {p: h}, out: i}
  - {op: matmul, a: i, b: w, epilogue: acc + x, out: y}
)"},
    {"attention", R"(ccks: 1
program: attention
dtype: f32
dims: {n: {range: [1, 40]}, pos: {range: [0, 24]}, heads: 4, kv: 2, e: 8, d: heads * e, c: 64}
tensors:
  x: {shape: [n, d], kind: input}
  wq: {shape: [d, d], kind: weight}
  wk: {shape: [d, kv * e], kind: weight}
  wv: {shape: [d, kv * e], kind: weight}
  ck: {shape: [c, kv * e], kind: state}
  cv: {shape: [c, kv * e], kind: state}
  y: {shape: [n, d], kind: output}
ops:
  - {op: matmul, a: x, b: wq, out: q}
  - {op: matmul, a: x, b: wk, out: k}
  - {op: matmul, a: x, b: wv, out: v}
  - {op: rope, x: q, heads: heads, theta: 10000, position: pos, out: q}
  - {op: rope, x: k, heads: kv, theta: 10000, position: pos, out: k}
  - {op: attention, q: q, k: k, v: v, heads: heads, kv_heads: kv, causal: true, append: {k: ck, v: cv, at: pos}, out: s}
  - {op: map, expr: s + x, with: {s: s, x: x}, out: y}
)"},
    {"experts", R"(ccks: 1
program: experts
dtype: f32
dims: {t: {range: [1, 20]}, d: 16, e: 4, k: 2, f: 24}
tensors:
  x: {shape: [t, d], kind: input}
  wr: {shape: [d, e], kind: weight}
  w1: {shape: [e, d, f], kind: weight}
  w3: {shape: [e, d, f], kind: weight}
  w2: {shape: [e, f, d], kind: weight}
  y: {shape: [t, d], kind: output}
ops:
  - {op: matmul, a: x, b: wr, out: logits}
  - {op: route, logits: logits, k: k, out: r}
  - {op: expert_matmul, x: x, b: w1, route: r, input: tokens, epilogue: silu(acc), out: h}
  - {op: expert_matmul, x: x, b: w3, route: r, input: tokens, epilogue: acc * h, out: g}
  - {op: expert_matmul, x: g, b: w2, route: r, input: rows, out: o}
  - {op: combine, x: o, route: r, out: y}
)"},
    {"early", R"(ccks: 1
program: early
dtype: f32
dims: {n: {range: [1, 80]}, d: 64}
tensors:
  x: {shape: [n, d], kind: input}
  w: {shape: [d, d], kind: weight}
  y: {shape: [n, d], kind: output}
ops:
  - {op: matmul, a: x, b: w, out: a}
  - {op: reduce, fn: max, x: "a[n - 1:n, :]", axes: [0, 1], out: m}
  - {op: report, x: m, name: peak}
  - if: peak < 3
    ops:
      - {op: matmul, a: a, b: w, out: b}
      - {op: map, expr: p + q, with: {p: a, q: b}, out: c}
    out: {h: {then: c, else: a}}
  - {op: matmul, a: h, b: w, out: y}
)"},
    {"windows", R"(ccks: 1
program: windows
dtype: f32
dims: {n: {range: [2, 60]}, d: 48}
tensors:
  x: {shape: [n, d], kind: input}
  z: {shape: [n, d], kind: input}
  table: {shape: [17, d], kind: weight}
  ids: {shape: [n], dtype: i32, kind: input}
  g: {shape: [2 * d], kind: weight}
  b: {shape: [2 * d], kind: weight}
  y: {shape: [2 * d, n], kind: output}
  best: {shape: [n], dtype: i32, kind: output}
  values: {shape: [n, 3], kind: output}
ops:
  - {op: gather, table: table, index: ids, out: rows}
  - {op: map, expr: p + q, with: {p: x, q: rows}, out: left}
  - {op: map, expr: p - q, with: {p: z, q: rows}, out: right}
  - {op: concat, inputs: [left, right], axis: 1, out: both}
  - {op: layernorm, x: both, weight: g, bias: b, eps: 1e-5, out: n1}
  - {op: argmax, x: n1, out: best}
  - {op: topk, x: n1, k: 3, out: [values, where]}
  - {op: map, expr: p * 2, with: {p: "n1.T"}, out: y}
)"},
    {"pools", R"(ccks: 1
program: pools
dtype: f32
dims: {n: {range: [1, 20]}, heads: 2, e: 8, d: heads * e, page: 4, slots: 24}
tensors:
  x: {shape: [n, d], kind: input}
  w: {shape: [d, d], kind: weight}
  slot: {shape: [n], dtype: i32, kind: input}
  reach: {shape: [n, 2], dtype: i32, kind: input}
  pages: {shape: [n, 3], dtype: i32, kind: input}
  k: {shape: [slots, d], kind: state}
  v: {shape: [slots, d], kind: state}
  y: {shape: [n, d], kind: output}
  z: {shape: [slots, d], kind: output}
ops:
  - {op: map, expr: v * 0.5, out: z}
  - {op: matmul, a: x, b: w, out: a}
  - {op: scatter, x: a, index: slot, out: k}
  - {op: scatter, x: x, index: slot, out: v}
  - {op: attention, q: a, k: k, v: v, heads: heads, reach: reach, pages: pages, page: page, out: b}
  - {op: map, expr: p + q, with: {p: b, q: x}, out: y}
  - {op: scatter, x: y, index: slot, out: k}
  - {op: scatter, x: b, index: slot, out: z}
)"},
    {"picture", R"(ccks: 1
program: picture
dtype: f32
dims: {n: {range: [1, 2]}, s: {range: [6, 20]}}
tensors:
  x: {shape: [n, 3, s, s], kind: input}
  w1: {shape: [8, 3, 3, 3], kind: weight}
  w2: {shape: [16, 8, 3, 3], kind: weight}
  y: {shape: [n, 16, s, s], kind: output}
ops:
  - {op: conv2d, x: x, weight: w1, padding: 1, epilogue: relu(acc), out: a}
  - {op: conv2d, x: a, weight: w2, padding: 1, out: y}
)"},
};

inline spec::Program parse_small(const SmallProgram& small) {
  spec::ParseResult parsed = spec::parse_text(small.text, std::string(small.name) + ".yaml");
  if (!parsed.ok) throw std::runtime_error(spec::format_diagnostics(parsed));
  return std::move(parsed.program);
}

}  // namespace ccks::codegen::testing
