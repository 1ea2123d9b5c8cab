// The ops of the language: for each its keys, and the function that checks it and adds it to the program.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "spec/op_reader.hpp"

namespace ccks::spec {

struct OpForm {
  const char* name;
  void (*build)(OpReader&);
  std::vector<std::string> keys;  // besides op, name and out
};

const std::vector<OpForm>& op_forms();

/// Reads `- {op: ..., ...}`.
void read_op(Builder& b, const Yaml& node);

// elementwise and reductions: ops_elementwise.cpp
void build_map(OpReader& r);
void build_reduce(OpReader& r);
void build_softmax(OpReader& r);
void build_rmsnorm(OpReader& r);
void build_layernorm(OpReader& r);
// choosing and looking up: ops_index.cpp
void build_gather(OpReader& r);
void build_scatter(OpReader& r);
void build_argmax(OpReader& r);
void build_topk(OpReader& r);
void build_report(OpReader& r);
/// A report of `x` under `name`, its number; kNone where that is taken.
std::uint32_t make_report(Builder& b, const View& x, const Text& name, const Span& where);
void build_custom(OpReader& r);
// matrices: ops_matrix.cpp, ops_attention.cpp
void build_matmul(OpReader& r);
void build_conv2d(OpReader& r);
void build_attention(OpReader& r);
void build_rope(OpReader& r);
// mixture of experts: ops_moe.cpp
void build_route(OpReader& r);
void build_expert_matmul(OpReader& r);
void build_combine(OpReader& r);
// views: ops_view.cpp
void build_slice(OpReader& r);
void build_transpose(OpReader& r);
void build_reshape(OpReader& r);
void build_broadcast(OpReader& r);
void build_concat(OpReader& r);

/// The dtype of sums and products of both: f32 where two float types differ.
Dtype promote(Dtype a, Dtype b);

}  // namespace ccks::spec
