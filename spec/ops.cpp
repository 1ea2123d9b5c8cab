#include "spec/ops.hpp"

#include <algorithm>

namespace ccks::spec {

const std::vector<OpForm>& op_forms() {
  static const std::vector<OpForm> kForms{
      {"map", build_map, {"expr", "with", "dtype", "shape"}},
      {"reduce", build_reduce, {"x", "fn", "axes", "keepdims", "dtype"}},
      {"softmax", build_softmax, {"x", "scale", "dtype"}},
      {"rmsnorm", build_rmsnorm, {"x", "weight", "eps", "dtype"}},
      {"layernorm", build_layernorm, {"x", "weight", "bias", "eps", "dtype"}},
      {"matmul", build_matmul, {"a", "b", "transpose_a", "transpose_b", "epilogue", "with", "dtype"}},
      {"attention", build_attention, {"q", "k", "v", "heads", "kv_heads", "causal", "scale", "append", "reach", "pages", "page", "dtype"}},
      {"rope", build_rope, {"x", "heads", "theta", "scaling", "position", "positions", "style", "dtype"}},
      {"gather", build_gather, {"table", "index"}},
      {"embedding", build_gather, {"table", "index"}},
      {"scatter", build_scatter, {"x", "index"}},
      {"argmax", build_argmax, {"x"}},
      {"topk", build_topk, {"x", "k"}},
      {"conv2d", build_conv2d, {"x", "weight", "stride", "padding", "dilation", "epilogue", "with", "dtype"}},
      {"route", build_route, {"logits", "k", "softmax", "renormalize"}},
      {"expert_matmul", build_expert_matmul, {"x", "route", "b", "transpose_b", "input", "epilogue", "with", "dtype"}},
      {"combine", build_combine, {"x", "route", "epilogue", "with", "dtype"}},
      {"report", build_report, {"x"}},
      {"custom", build_custom, {"inputs", "shape", "dtype", "tile", "code", "reference"}},
      {"slice", build_slice, {"x", "range"}},
      {"transpose", build_transpose, {"x", "axes"}},
      {"reshape", build_reshape, {"x", "shape"}},
      {"broadcast", build_broadcast, {"x", "shape"}},
      {"concat", build_concat, {"inputs", "axis"}},
  };
  return kForms;
}

void read_op(Builder& b, const Yaml& node) {
  const Yaml& kind = *node.find("op");
  if (!b.expect(kind, Yaml::Kind::scalar, "'op'")) return;
  const auto& forms = op_forms();
  const auto form = std::find_if(forms.begin(), forms.end(), [&](const OpForm& f) { return f.name == kind.text; });
  OpReader r(b, node, kind.text);
  if (form == forms.end()) {
    std::vector<std::string> names;
    for (const OpForm& f : forms) names.push_back(f.name);
    b.diagnostics.error(code::kUnknownOp, kind.span, "unknown op " + in_quotes(kind.text),
                        did_you_mean(kind.text, names));
    r.poison_outputs();
    return;
  }
  std::vector<std::string> keys = form->keys;
  keys.insert(keys.end(), {"op", "name"});
  if (form->build != build_report) keys.push_back("out");
  const std::size_t errors = b.diagnostics.errors();
  b.check_keys(node, keys, "op " + kind.text);
  // An op with a misspelt key would only be misread: what it says next would not help.
  if (b.diagnostics.errors() != errors)
    r.fail();
  else
    form->build(r);
  if (r.failed()) r.poison_outputs();
}

Dtype promote(Dtype a, Dtype b) {
  if (a == b) return a;
  if (wire::dtype_is_float(a) && wire::dtype_is_float(b)) return Dtype::f32;
  if (wire::dtype_is_float(a)) return a;
  if (wire::dtype_is_float(b)) return b;
  if (a == Dtype::i64 || b == Dtype::i64) return Dtype::i64;
  return Dtype::i32;
}

const char* op_kind_name(OpKind kind) {
  static constexpr const char* kNames[] = {"map",       "reduce",        "softmax", "rmsnorm", "layernorm", "matmul",
                                           "attention", "rope",          "gather",  "argmax",  "topk",      "conv2d",
                                           "route",     "expert_matmul", "combine", "report",  "select",    "custom", "scatter"};
  const auto i = static_cast<std::size_t>(kind);
  return i < std::size(kNames) ? kNames[i] : "unknown";
}

std::optional<TensorId> Program::find_tensor(const std::string& name) const {
  for (TensorId id = 0; id < tensors.size(); ++id)
    if (tensors[id].name == name) return id;
  return std::nullopt;
}

}  // namespace ccks::spec
