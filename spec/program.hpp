// The program: a checked spec. Every later stage (reference interpreter, planner, checker) reads this and nothing else.
// Names are resolved, `repeat` and `include` are expanded, shapes and dtypes of every tensor are known (symbolically),
// and every op is one of the kinds below with its operands as views of tensors.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <variant>
#include <vector>

#include "ccks/wire/dtype.hpp"
#include "spec/expr.hpp"

namespace ccks::spec {

using wire::Dtype;
using TensorId = std::uint32_t;
using OpId = std::uint32_t;
inline constexpr std::uint32_t kNone = 0xffffffffu;
inline constexpr std::size_t kMaxRank = 4;

/// Where in the text something was written. `file` indexes Program::files; line and column count from 1.
struct SourceLocation {
  std::uint32_t file = 0;
  std::uint32_t line = 0;
  std::uint32_t column = 0;
};

enum class TensorKind : std::uint8_t {
  input,         // bound for each run by the client
  weight,        // bound once before the first run, read-only
  state,         // lives across runs of one state instance; zero at first
  output,        // readable by the client once the run is done
  intermediate,  // inferred; lives from its first write to its last read
};

/// How a tensor is filled when nobody gives it: seeded, reproducible. See spec/README.md for the defaults.
struct Init {
  enum class Kind : std::uint8_t { automatic, normal, uniform, integers, zeros, ones, count } kind = Kind::automatic;
  double a = 0;  // normal: standard deviation; uniform: low;  integers: low (inclusive); count: the dim along which values follow each other
  double b = 0;  //                             uniform: high; integers: high (exclusive)
};

struct Tensor {
  std::string name;
  Dtype dtype = Dtype::f32;
  TensorKind kind = TensorKind::intermediate;
  std::vector<Expr> shape;    // 0 to kMaxRank dims
  std::string from;           // weight: name in the checkpoint, or several with '|' between them: the first that is there; empty: `name`
  Init init;
  TensorId alias_of = kNone;  // reshape: the same contiguous elements as that tensor, which is never itself an alias
  std::uint32_t counted = kNone;  // CountedDim that its first dim is
  SourceLocation location;
};

/// One dim of a view. `base_dim == kNone` is a broadcast: extent given, every index reads the same element.
struct ViewDim {
  Expr extent;
  std::uint32_t base_dim = kNone;
  Expr offset;            // first index in the base dim
  std::int64_t step = 1;  // distance in the base dim between neighbours, at least 1
  std::uint32_t counted = kNone;  // CountedDim that it is; only of dims[0]. `extent` is its bound
};

/// View is a strided window on a tensor. Base dims that no view dim covers are fixed at `fixed[base_dim]`.
struct View {
  TensorId tensor = kNone;
  std::vector<ViewDim> dims;                 // what the op sees, outermost first
  std::array<Expr, kMaxRank> fixed{};        // per base dim; used only where uncovered
};

// ---- element expressions (map, epilogues) -------------------------------------------------------------------------

/// Scalar type inside an expression. Floats compute in f32 (the reference in f64), ints in i64.
enum class ScalarType : std::uint8_t { f32, i64, boolean };

enum class ExprFn : std::uint8_t {
  constant, argument, index,                       // leaves: literal; operand k; index of output dim k (i64)
  add, sub, mul, div, mod, min, max, pow,          // arithmetic; div of ints floors, mod has the divisor's sign
  neg, abs, floor, ceil, round, sign,              // round is half to even
  exp, log, sqrt, rsqrt, sin, cos, tanh, erf, sigmoid, silu, gelu, gelu_tanh, relu, softplus,
  lt, le, gt, ge, eq, ne, logical_and, logical_or, logical_not,
  select,                                          // select(cond, a, b)
  to_f32, to_i64, to_bool,                         // conversions; to_i64 truncates
};

/// One node; children are indices of earlier nodes of the same ElementExpr.
struct ExprNode {
  ExprFn fn = ExprFn::constant;
  ScalarType type = ScalarType::f32;
  std::uint32_t a = kNone, b = kNone, c = kNone;
  double value = 0;         // constant
  std::uint32_t index = 0;  // argument: operand; index: output dim
};

/// A typed expression in evaluation order; the last node is the result. Empty means identity of argument 0.
struct ElementExpr {
  std::vector<ExprNode> nodes;
  bool empty() const { return nodes.empty(); }
};

// ---- ops ----------------------------------------------------------------------------------------------------------
// Operands stand in Op::inputs in the order given here. For every op all views are already broadcast or checked to the
// shapes named in the comment. "acc" of an epilogue is argument 0; further epilogue operands follow the op's own inputs
// and are broadcast to the output's shape.

struct MapAttrs { ElementExpr expr; };                             // inputs: any; each broadcast to the output's shape
enum class ReduceFn : std::uint8_t { sum, mean, max, min, prod };
struct ReduceAttrs { ReduceFn fn; std::vector<std::uint32_t> axes; bool keepdims; };  // inputs: x; axes ascending
struct SoftmaxAttrs { double scale = 1; };                         // inputs: x[..., d], over the last dim of x * scale
struct RmsnormAttrs { double eps; };                               // inputs: x[..., d], weight[d]
struct LayernormAttrs { double eps; bool has_bias; };              // inputs: x[..., d], weight[d], (bias[d])
/// out[..., m, n] = epilogue(sum_k a[..., m, k] * b[..., k, n]). Transposes are already folded into the views, so that
/// b's last dim is always n. f32 accumulation. inputs: a, b, epilogue operands...; rank of a, b, out equal (2 to 4).
/// With `norm`, of programs that the planner has changed, one more input, the last, is its weight[k]: the rows that are multiplied
/// are rmsnorm(a) with that weight, rounded to a's dtype. With `rope`, likewise, an input in front of that one is a table of angles
/// [m, 2 * n] (cosines of a head's pairs, then their sines), out is [2, heads, m, n], both of n pairs of each head, and there is no epilogue:
/// what a rope op would make of the products as they would have been stored. With `twin`, likewise, inputs[2] is a second b, and argument 1 of
/// the epilogue is twin(a * inputs[2]), rounded to out's dtype; other arguments of `twin` are numbered as those of the epilogue.
struct MatmulAttrs {
  ElementExpr epilogue;
  std::optional<RmsnormAttrs> norm{};
  bool rope = false;
  std::optional<ElementExpr> twin{};
};
/// Scaled dot-product attention over a context. q [.., n, heads*head_dim], k and v [.., context, kv_heads*head_dim],
/// out like q; rank 2, or 3 with a leading batch dim. With `causal`, row i attends to context positions
/// j <= i + context - n. Softmax in f32. Appending to a state tensor is two earlier map ops (copies into a window).
/// With `reach` (rank 2), inputs[3] is i32 [n, 2]: row i attends only to context positions in [reach[i, 0], reach[i, 1]), as far as there are
/// such; a row without any is zero. With `page` > 0 (and reach), inputs[4] is i32 [n, p]: k and v are pools of rows, the context is p * page positions, and
/// position j of row i is row pages[i, j / page] * page + j % page of the pools; positions on a page that does not lie in the pools whole do not exist.
struct AttentionAttrs { std::uint32_t heads, kv_heads; bool causal; double scale; bool reach = false; std::uint32_t page = 0; };
/// Rotary embedding of x [.., n, heads*head_dim]; row i has position `position` + i (or positions[i], inputs[1], i32[n]).
/// `interleaved`: pairs (2j, 2j+1); else pairs (j, j + head_dim/2). Angle = pos * theta^(-2j/head_dim).
/// `scaling`, where `original` > 0: frequencies whose wave is longer than original / low positions are divided by `factor`, those
/// shorter than original / high stay, and between them both are mixed (Llama 3.1).
struct RopeScaling { double factor = 1, low = 1, high = 4; std::int64_t original = 0; };
struct RopeAttrs {
  std::uint32_t heads;
  double theta;
  Expr position;
  bool has_positions;
  bool interleaved;
  RopeScaling scaling{};
};
struct GatherAttrs {};                                             // inputs: table[v, d...], index[...] (i32/i64); out index.shape + table.shape[1:]
struct ArgmaxAttrs {};                                             // inputs: x[..., d]; out [...] i32; first of equals
/// inputs: x[..., d]; outputs: values[..., k] (x's dtype), indices[..., k] i32, by falling value, first of equals first.
struct TopkAttrs { std::uint32_t k; };
/// NCHW. inputs: x[n, c, h, w], weight[oc, c, kh, kw], epilogue operands...; out[n, oc, oh, ow]; zero padding.
struct Conv2dAttrs { std::array<std::uint32_t, 2> stride, padding, dilation; ElementExpr epilogue; };
/// Mixture-of-experts routing. inputs: logits[t, e]. outputs: weight f32[t, k] (softmax over the chosen, or softmax
/// over all then renormalised if `renormalize`, else as is), expert i32[t, k], count i32[e], row i32[t, k] (where the
/// pair stands among t*k routed rows, sorted by expert then token), source i32[t*k] (routed row -> token*k + choice).
/// softmax_over_all: probabilities from all logits; otherwise softmax over the k chosen logits.
struct RouteAttrs { std::uint32_t k; bool softmax_over_all; bool renormalize; };
/// inputs: x, b[e, k, n] (transposes folded), source i32[t*k], count i32[e], epilogue operands over out.
/// x has t rows (rows are gathered by token: source / top_k) if `gather`, else t*k routed rows. out[t*k, n].
/// With `twin`, as a matmul's: inputs[4] is the second b, operands of both expressions come behind it.
struct ExpertMatmulAttrs {
  std::uint32_t top_k;
  bool gather;
  ElementExpr epilogue;
  std::optional<ElementExpr> twin{};
};
/// inputs: x[t*k, d] routed rows, weight f32[t, k], row i32[t, k], epilogue operands...; out[t, d] = epilogue(sum_j weight[t, j] * x[row[t, j]]).
struct CombineAttrs {
  std::uint32_t top_k;
  ElementExpr epilogue{};
};
/// inputs: x (1 to 1024 elements, dtype i32, i64, bool or f32); output: a copy, 'report.<name>', of dtype i32 or f32, which
/// guards read; the host receives the same values. i64 and bool are converted to i32.
struct ReportAttrs { std::uint32_t report; };
/// Joins an `if`: inputs: then, else, same shape and dtype as out. Copies `then` where `condition` held, else `else`.
struct SelectAttrs { std::uint32_t condition; };
/// A tile body given as code (only where inline code was allowed). inputs as named; tile sizes per output dim.
struct CustomAttrs {
  std::vector<std::string> input_names;
  std::string code;
  std::vector<std::uint32_t> tile;
  ElementExpr reference;  // empty: the reference interpreter cannot check this op
};
/// inputs: x[n, d...], index[n] (i32/i64); out[v, d...]: row i of x becomes row index[i] of out, or none where that is outside [0, v); what other rows hold
/// stays. Of rows with the same index, elements of any stay.
struct ScatterAttrs {};

using OpAttrs = std::variant<MapAttrs, ReduceAttrs, SoftmaxAttrs, RmsnormAttrs, LayernormAttrs, MatmulAttrs,
                             AttentionAttrs, RopeAttrs, GatherAttrs, ArgmaxAttrs, TopkAttrs, Conv2dAttrs, RouteAttrs,
                             ExpertMatmulAttrs, CombineAttrs, ReportAttrs, SelectAttrs, CustomAttrs, ScatterAttrs>;

/// Same order as OpAttrs, so that `OpKind(attrs.index())` holds.
enum class OpKind : std::uint8_t {
  map, reduce, softmax, rmsnorm, layernorm, matmul, attention, rope, gather, argmax, topk, conv2d, route,
  expert_matmul, combine, report, select, custom, scatter,
};

/// Lower-case name as the language spells it.
const char* op_kind_name(OpKind kind);

struct Op {
  std::string name;  // unique; from the spec or derived from kind and output, e.g. "layers.3.matmul.u"
  OpAttrs attrs;
  std::vector<View> inputs;
  std::vector<View> outputs;
  std::uint32_t condition = kNone;  // guard: index in Program::conditions; skipped where that is false
  SourceLocation location;
  OpKind kind() const { return static_cast<OpKind>(attrs.index()); }
};

struct Report {
  std::string name;
  TensorId tensor;  // the intermediate 'report.<name>'
  OpId op;
};

/// `report <cmp> value`, on element 0 of the report, and only where `parent` holds too.
struct Condition {
  enum class Cmp : std::uint8_t { eq, ne, lt, le, gt, ge } cmp;
  std::uint32_t report;
  double value;
  std::uint32_t parent = kNone;
};

/// A relation that could not be proved from the ranges and is checked when a run is submitted (R2).
struct RuntimeCheck {
  enum class Relation : std::uint8_t { equal, less_equal } relation;
  Expr lhs, rhs;
  std::string message;  // e.g. "matmul 'u': inner dims of a and b differ"
  SourceLocation location;
};

/// A constant dim that a checkpoint's config.json may say: `from` names its keys, dots lead into objects, the first that is there
/// counts. Text stands for the number that `values` gives it.
struct ConfigDim {
  std::string name;
  std::vector<std::string> from;
  std::optional<std::int64_t> absent;  // where a config has none of them; without it the dim keeps its value
  std::vector<std::pair<std::string, std::int64_t>> values;
};

/// A symbol that counts the rows of sequences of different lengths, one after another, and the inputs that say which rows are whose. They follow from the
/// lengths, which come with each run; each is made where the program names it. A sequence begins at a multiple of `pad` rows, and rows in all are
/// a multiple of `round`: rows between and behind sequences belong to none.
struct RaggedDim {
  /// reach: i32 [rows, 2], the rows [begin, end) of the sequence that a row belongs to; [0, 0) of a row of none.
  /// spans: i32 [count, 2], the same of each sequence. position: i32 [rows], of a row in its sequence, from 0; 0 of a row of none.
  enum Table : std::uint8_t { reach, spans, position };
  static constexpr std::size_t kTables = 3;
  SymbolId rows = 0;
  Expr count;                 // sequences
  Interval length;            // of one
  std::int64_t pad = 1, round = 1;
  std::array<TensorId, kTables> tables{kNone, kNone, kNone};
};

/// A dim whose storage is planned for `most` rows and of which a run has as many as an op of the program finds out. Rows behind them hold anything: no op
/// whose results count reads them, so their tiles need not run.
struct CountedDim {
  std::string name;
  Expr most;
  std::uint32_t report = kNone;  // says how many, one i32: below 0 as 0, above `most` as `most`
};

/// Program is a checked spec. Ops are in an order in which every tensor is written before it is read.
/// Several ops may write one tensor (concat, append), always in disjoint windows, except state tensors and windows
/// rewritten on purpose, where text order is the meaning.
struct Program {
  std::string name;
  std::vector<std::string> files;  // as given by the user; files[0] is the spec itself
  std::vector<Symbol> symbols;
  std::vector<std::pair<std::string, Expr>> named_dims;  // every entry of `dims`, in text order, for messages
  std::vector<ConfigDim> config_dims;
  std::vector<RaggedDim> ragged;
  std::vector<CountedDim> counted;
  std::vector<Tensor> tensors;
  std::vector<Op> ops;
  std::vector<Report> reports;
  std::vector<Condition> conditions;
  std::vector<RuntimeCheck> checks;

  const Tensor& tensor(TensorId id) const { return tensors[id]; }
  std::optional<TensorId> find_tensor(const std::string& name) const;
};

}  // namespace ccks::spec
