// Counted dims: how they are read, what ops may do with rows that may not count, and how they leave the program.
#include "spec/counted.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <unordered_map>

#include "spec/operand.hpp"
#include "spec/ops.hpp"
#include "spec/view.hpp"

namespace ccks::spec {

namespace {

constexpr std::size_t kMostCounted = 32;  // every expression of every op is searched for each of them

}  // namespace

std::optional<Expr> read_counted_dim(Builder& b, const std::string& name, const Yaml& node) {
  b.check_keys(node, {"counted", "max"}, "the counted dim " + in_quotes(name));
  constexpr std::int64_t kMostRows = INT32_MAX;  // a count is an i32
  const auto count = b.text(*node.find("counted"));
  if (!count || !b.check_name(*count)) return std::nullopt;
  const Yaml* max = node.find("max");
  if (max == nullptr) {
    b.diagnostics.error(code::kMissingKey, node.span, fmt::format("the counted dim '{}' needs 'max', for which storage is planned", name),
                        fmt::format("{}: {{counted: {}, max: 1024}}", name, count->text));
    return std::nullopt;
  }
  const auto most = b.dim(*max);
  if (!most) return std::nullopt;
  if (mentions_counted(b, *most)) {
    b.diagnostics.error(code::kCountedRows, max->span, fmt::format("{} is counted at run time, and bounds nothing", in_quotes(b.print(*most))),
                        "a bound is known when a run is submitted");
    return std::nullopt;
  }
  const bool given = std::any_of(b.options.constants.begin(), b.options.constants.end(), [&](const auto& c) { return c.first == name; });
  if (given) b.diagnostics.error(code::kUnknownOverride, node.span, fmt::format("'{}' is counted by '{}' at run time and cannot be set", name, count->text));
  const Interval range = most->bounds(b.program.symbols);
  if (range.lo < 0 || range.hi > kMostRows) {
    b.diagnostics.error(code::kDimValue, max->span, fmt::format("'max' may be {}, and lies in [0, 2^31 - 1]", range.lo < 0 ? range.lo : range.hi));
    return std::nullopt;
  }
  if (b.counted.size() == kMostCounted) {
    b.diagnostics.error(code::kTooLarge, node.span, fmt::format("more than {} counted dims", kMostCounted));
    return std::nullopt;
  }
  const auto symbol = static_cast<SymbolId>(b.program.symbols.size());
  b.program.symbols.push_back({name, range, std::nullopt});
  b.program.counted.push_back({name, *most, kNone});
  b.counted.push_back({symbol, count->text, b.dim_places[name], count->span});
  return Expr::symbol(symbol);
}

std::uint32_t counted_of(const Builder& b, const Expr& e) {
  for (std::uint32_t c = 0; c < b.counted.size(); ++c)
    if (e.op() == Expr::Op::symbol && e.symbol_id() == b.counted[c].symbol) return c;
  return kNone;
}

bool mentions_counted(const Builder& b, const Expr& e) {
  if (b.counted.empty() || e.op() == Expr::Op::constant) return false;
  if (e.op() == Expr::Op::symbol) return counted_of(b, e) != kNone;
  return std::any_of(e.operands().begin(), e.operands().end(), [&](const Expr& part) { return mentions_counted(b, part); });
}

// ---- counts -------------------------------------------------------------------------------------------------------

namespace {

/// Whether `v` can count; said where it cannot.
bool is_count(Builder& b, CountedSymbol& c, const std::string& name, const View& v) {
  const TensorKind kind = b.program.tensors[b.root_of(v.tensor)].kind;
  const auto refuse = [&](Code code, std::string message, std::string hint) {
    b.diagnostics.error(code, c.count_place, std::move(message), std::move(hint));
    c.refused = true;
    return false;
  };
  if (kind == TensorKind::input || kind == TensorKind::weight)
    return refuse(code::kCountedRows, fmt::format("'{}' counts '{}' and is {}, not made by an op", c.count, name, kind == TensorKind::input ? "an input" : "a weight"),
                  "what is known when a run is submitted is a symbol: {range: [low, high]}");
  if (!b.is_always_written(v.tensor)) return false;  // an op further down may do it
  if (b.dtype_of(v) != Dtype::i32)
    return refuse(code::kDtypeMismatch, fmt::format("'{}' counts '{}' and is {}, not i32", c.count, name, wire::dtype_name(b.dtype_of(v))),
                  "convert with a map: int(x), dtype: i32");
  if (v.dims.size() != 1 || !(v.dims[0].extent == Expr(1)))
    return refuse(code::kShapeMismatch, fmt::format("'{}' counts '{}' and has the shape {}, not [1]", c.count, name, b.print_shape(v)), "");
  return true;
}

}  // namespace

void report_counts(Builder& b, const Span& where) {
  for (std::uint32_t i = 0; i < b.counted.size(); ++i) {
    if (b.counted[i].tensor != kNone || b.counted[i].refused) continue;
    const auto bound = b.scopes.root().names.find(b.counted[i].count);
    if (bound == b.scopes.root().names.end()) continue;
    const std::string name = b.program.counted[i].name;
    if (bound->second.poisoned) b.counted[i].refused = true;
    if (bound->second.poisoned || !is_count(b, b.counted[i], name, bound->second.view)) continue;
    const View count = bound->second.view;
    const std::uint32_t report = make_report(b, count, {name, b.counted[i].place}, where);
    b.counted[i].refused = report == kNone;
    if (report == kNone) continue;
    b.mark_read(count.tensor);
    b.counted[i].tensor = b.root_of(count.tensor);
    b.program.counted[i].report = report;
  }
}

// ---- what ops may do ----------------------------------------------------------------------------------------------

namespace {

enum class Rows : std::uint8_t {
  own,     // row i of the result is made of row i
  any,     // other rows say which of these are read
  mixed,
};

/// How rows of input `k`, its first dim, get into those of the result.
Rows rows_of(const Op& op, std::size_t k) {
  const std::size_t rank = op.inputs[k].dims.size();
  const auto own_if = [](bool own) { return own ? Rows::own : Rows::mixed; };
  switch (op.kind()) {
    case OpKind::map:
    case OpKind::select:
      return Rows::own;
    case OpKind::reduce:
      return own_if(std::get<ReduceAttrs>(op.attrs).axes.front() != 0);
    case OpKind::softmax:
    case OpKind::rmsnorm:
    case OpKind::layernorm:
    case OpKind::argmax:
    case OpKind::topk:
      return own_if(k == 0 && rank > 1);
    case OpKind::matmul:
      return own_if(k != 1 || rank > 2);
    case OpKind::conv2d:
      return own_if(k != 1);
    case OpKind::rope:
      return Rows::own;
    case OpKind::gather:
      return own_if(k == 1);
    case OpKind::attention:
      if ((k != 1 && k != 2) || rank > 2) return Rows::own;
      return std::get<AttentionAttrs>(op.attrs).reach ? Rows::any : Rows::mixed;
    default:
      return Rows::mixed;
  }
}

/// Says of one op what it may not do.
class CountedCheck {
 public:
  CountedCheck(Builder& b, const Op& op, bool masks, const Span& where) : b_(b), op_(op), masks_(masks), where_(where) {}

  bool run() {
    for (std::size_t k = 0; k < op_.inputs.size(); ++k)
      if (!check_places(op_.inputs[k]) || (!masks_ && !check_input(k))) return false;
    for (const View& v : op_.outputs)
      if (!check_output(v)) return false;
    const auto* rope = std::get_if<RopeAttrs>(&op_.attrs);
    return rope == nullptr || !mentions_counted(b_, rope->position) || refuse_place();
  }

 private:
  bool refuse(Code code, std::string message, std::string hint) const {
    b_.diagnostics.error(code, where_, std::move(message), std::move(hint));
    return false;
  }
  bool refuse(std::string message, std::string hint) const { return refuse(code::kCountedRows, std::move(message), std::move(hint)); }
  bool refuse_place() const { return refuse("a place in a tensor depends on a dim that is counted at run time", "read and write counted rows in whole: [:, ...]"); }
  std::string tensor_name(const View& v) const { return b_.program.tensors[b_.root_of(v.tensor)].name; }
  const std::string& dim_name(std::uint32_t c) const { return b_.program.counted[c].name; }

  /// What the first dim of `v` counts; false: something else counts, or in another way. kNone: nothing.
  bool find_rows(const View& v, std::uint32_t& counted) const {
    counted = v.dims.empty() ? kNone : counted_of(b_, v.dims[0].extent);
    for (std::size_t d = counted == kNone ? 0 : 1; d < v.dims.size(); ++d)
      if (mentions_counted(b_, v.dims[d].extent))
        return refuse(fmt::format("'{}' has the shape {}: what is counted at run time is the first dim, and nothing is computed from it", tensor_name(v), b_.print_shape(v)),
                      "use its 'max' for tensors of other shapes");
    return counted == kNone || is_known(counted);
  }
  bool is_known(std::uint32_t c) const {
    CountedSymbol& symbol = b_.counted[c];
    if (symbol.tensor != kNone) return true;
    if (symbol.refused) return false;
    symbol.refused = true;
    return refuse(code::kUsedBeforeWritten, fmt::format("'{}' is counted by '{}', which no op has made yet", dim_name(c), symbol.count),
                  fmt::format("an op in front, outside of repeat, if and while, makes '{}'", symbol.count));
  }
  /// What the rows of the tensor under `v` count.
  std::uint32_t tensor_rows(TensorId tensor) const {
    const Shape& shape = b_.program.tensors[tensor].shape;
    return shape.empty() ? kNone : counted_of(b_, shape[0]);
  }
  /// Whether `v` has all rows of its tensor, in order, as its first dim.
  static bool has_all_rows(const View& v) {
    const auto of_rows = [](const ViewDim& d) { return d.base_dim == 0; };
    return std::count_if(v.dims.begin(), v.dims.end(), of_rows) == 1 && v.dims[0].base_dim == 0 && v.dims[0].offset == Expr(0) && v.dims[0].step == 1;
  }
  bool check_places(const View& v) const {
    for (const ViewDim& d : v.dims)
      if (mentions_counted(b_, d.offset)) return refuse_place();
    for (const Expr& e : v.fixed)
      if (mentions_counted(b_, e)) return refuse_place();
    return true;
  }

  bool check_output(const View& v) const {
    std::uint32_t rows = kNone;
    if (!check_places(v) || !find_rows(v, rows)) return false;
    const TensorId root = b_.root_of(v.tensor);
    for (const CountedSymbol& c : b_.counted)
      if (c.tensor == root) return refuse(fmt::format("'{}' has told how many rows there are, and is written again", tensor_name(v)), "write to another tensor");
    if (rows != tensor_rows(v.tensor) || (rows != kNone && !has_all_rows(v)))
      return refuse(fmt::format("rows that are counted at run time are all rows of what they are written to, and '{}' has others", tensor_name(v)),
                    "write them to a new name, or to a tensor whose first dim is the counted one");
    const OpKind kinds[] = {OpKind::scatter, OpKind::route, OpKind::expert_matmul, OpKind::combine, OpKind::report, OpKind::custom};
    const bool can = rows == kNone || std::find(std::begin(kinds), std::end(kinds), op_.kind()) == std::end(kinds);
    return can || refuse(fmt::format("{} makes no counted rows", op_kind_name(op_.kind())), "");
  }

  bool check_input(std::size_t k) const {
    const View& v = op_.inputs[k];
    std::uint32_t rows = v.dims.empty() ? kNone : counted_of(b_, v.dims[0].extent);
    const TensorId root = b_.root_of(v.tensor);
    const std::uint32_t held = tensor_rows(root);
    if (held != kNone && tensor_rows(v.tensor) != held)
      return refuse(fmt::format("'{}' has counted rows, and a reshape that does not keep them", tensor_name(v)), fmt::format("let '{}' be the first dim", dim_name(held)));
    if (held != kNone && (rows != held || !has_all_rows(v))) {
      const bool moved = std::any_of(v.dims.begin(), v.dims.end(), [&](const ViewDim& d) { return counted_of(b_, d.extent) == held; });
      return refuse(fmt::format("'{}' has counted rows, and {} reads {}", tensor_name(v), op_kind_name(op_.kind()), moved ? "them as another dim than the first" : "some of them only"), "take all rows, as the first dim");
    }
    return find_rows(v, rows) && (rows == kNone || check_rows(k, rows));
  }
  bool check_rows(std::size_t k, std::uint32_t rows) const {
    const Rows how = rows_of(op_, k);
    const std::string which = fmt::format("of '{}' only rows that '{}' counts hold anything, and {}", tensor_name(op_.inputs[k]), b_.counted[rows].count, op_kind_name(op_.kind()));
    if (how == Rows::mixed)
      return refuse(which + " would mix others with them",
                    op_.kind() == OpKind::attention ? "say with 'reach' which rows each may attend to" : "ops that keep rows apart take them, and attention with 'reach'");
    if (how == Rows::any || (!op_.outputs[0].dims.empty() && counted_of(b_, op_.outputs[0].dims[0].extent) == rows)) return true;
    return refuse(which + " makes rows of another dim of them", fmt::format("let the result have '{}' rows, too", dim_name(rows)));
  }

  Builder& b_;
  const Op& op_;
  bool masks_;
  Span where_;
};

}  // namespace

bool check_counted(Builder& b, const Op& op, bool masks, const Span& where) {
  if (b.counted.empty()) return true;
  std::size_t nodes = 0;
  for (const std::vector<View>* views : {&op.inputs, &op.outputs})
    for (const View& v : *views)
      for (const ViewDim& d : v.dims) nodes += d.extent.weight() + d.offset.weight();
  return b.spend(nodes, 0, where) && CountedCheck(b, op, masks, where).run();
}

// gather refuses an index outside its table, and rows behind the count may hold one: those that a tile computes beside others get row 0.
std::optional<View> mask_index(Builder& b, const View& index, const Span& where) {
  const std::uint32_t c = index.dims.empty() ? kNone : counted_of(b, index.dims[0].extent);
  if (c == kNone || b.counted[c].tensor == kNone) return index;
  View wide = index;
  wide.dims[0].extent = b.program.counted[c].most;
  Shape shape = shape_of(wide);
  const Report& report = b.program.reports[b.program.counted[c].report];
  auto count = broadcast(b, b.whole_view(report.tensor), shape, where, "a count");
  if (!count) return std::nullopt;
  Tensor tensor;
  tensor.name = b.unique_tensor_name(b.scopes.top().prefix + b.program.counted[c].name + ".index");
  tensor.dtype = b.dtype_of(index);
  tensor.shape = shape;
  tensor.location = where.location;
  const std::string name = tensor.name;
  const View out = b.whole_view(b.add_tensor(std::move(tensor)));
  ElementExpr e;
  const auto i64 = ScalarType::i64;
  e.nodes = {{ExprFn::argument, i64, kNone, kNone, kNone, 0, 0}, {ExprFn::index, i64, kNone, kNone, kNone, 0, 0},       {ExprFn::argument, i64, kNone, kNone, kNone, 0, 1},
             {ExprFn::lt, ScalarType::boolean, 1, 2},            {ExprFn::constant, i64, kNone, kNone, kNone, 0, 0}, {ExprFn::select, i64, 3, 0, 4}};
  Op op;
  op.attrs = MapAttrs{std::move(e)};
  op.inputs = {wide, *count};
  op.outputs = {out};
  if (!b.emit(std::move(op), b.scopes.top().prefix + "map." + name, where, true)) return std::nullopt;
  b.mark_read(out.tensor);
  b.mark_read(index.tensor);
  View masked = out;
  masked.dims[0].extent = index.dims[0].extent;
  return masked;
}

// ---- out of the program -------------------------------------------------------------------------------------------

namespace {

/// Puts bounds in the place of counted symbols, and numbers the others anew.
class Settle {
 public:
  explicit Settle(Builder& b) : b_(b) {
    std::vector<Symbol> kept;
    for (SymbolId id = 0; id < b.program.symbols.size(); ++id) {
      const std::uint32_t c = counted_of(b, Expr::symbol(id));
      if (c == kNone) {
        values_.push_back(Expr::symbol(static_cast<SymbolId>(kept.size())));
        kept.push_back(b.program.symbols[id]);
      } else {
        values_.push_back(settled(b.program.counted[c].most));
      }
    }
    symbols_ = std::move(kept);
  }

  void run() {
    Program& p = b_.program;
    for (Op& op : p.ops) mark(op);
    for (Tensor& t : p.tensors) {
      t.counted = t.shape.empty() ? kNone : counted_of(b_, t.shape[0]);
      for (Expr& e : t.shape) settle(e);
    }
    for (Op& op : p.ops) settle_op(op);
    for (auto& [name, e] : p.named_dims) settle(e);
    for (CountedDim& c : p.counted) settle(c.most);
    for (RaggedDim& r : p.ragged) {
      r.rows = values_[r.rows].symbol_id();
      settle(r.count);
    }
    for (RuntimeCheck& check : p.checks) settle(check.lhs), settle(check.rhs);
    p.symbols = std::move(symbols_);
    prove_checks();
  }

 private:
  /// Rows that count, and those that are read along with them.
  void mark(Op& op) const {
    const std::uint32_t rows = op.outputs.empty() || op.outputs[0].dims.empty() ? kNone : counted_of(b_, op.outputs[0].dims[0].extent);
    if (rows == kNone) return;
    for (View& v : op.outputs) v.dims[0].counted = rows;
    for (std::size_t k = 0; k < op.inputs.size(); ++k)
      if (rows_of(op, k) == Rows::own && moves(op, k)) op.inputs[k].dims[0].counted = rows;
  }
  /// Whether the first dim of input `k` is the result's. Tables of norms and angles have others.
  static bool moves(const Op& op, std::size_t k) {
    const std::size_t rank = op.inputs[k].dims.size();
    if (rank == 0) return false;
    if (op.kind() == OpKind::rope && k == 1) return op.inputs[0].dims.size() == 2;
    return true;
  }
  Expr settled(const Expr& e) {
    if (e.op() == Expr::Op::constant) return e;
    if (e.op() == Expr::Op::symbol) return values_[e.symbol_id()];
    const std::span<const Expr> parts = e.operands();
    const auto known = known_.find(parts.data());
    if (known != known_.end()) return known->second.second;
    Expr out = settled(parts[0]);
    for (const Expr& part : parts.subspan(1)) out = joined(e.op(), out, settled(part));
    known_.emplace(parts.data(), std::pair(e, out));
    return out;
  }
  static Expr joined(Expr::Op op, const Expr& a, const Expr& b) {
    switch (op) {
      case Expr::Op::add:
        return a + b;
      case Expr::Op::mul:
        return a * b;
      case Expr::Op::floordiv:
        return floordiv(a, b);
      case Expr::Op::floormod:
        return floormod(a, b);
      case Expr::Op::min:
        return min(a, b);
      default:
        return max(a, b);
    }
  }
  void settle(Expr& e) { e = settled(e); }
  void settle_op(Op& op) {
    for (std::vector<View>* views : {&op.inputs, &op.outputs})
      for (View& v : *views) {
        for (ViewDim& d : v.dims) settle(d.extent), settle(d.offset);
        for (Expr& e : v.fixed) settle(e);
      }
    if (auto* rope = std::get_if<RopeAttrs>(&op.attrs)) settle(rope->position);
  }
  void prove_checks() const {
    std::vector<RuntimeCheck> open;
    for (RuntimeCheck& check : b_.program.checks) {
      const bool equal = check.relation == RuntimeCheck::Relation::equal;
      const Truth truth = equal ? prove_equal(check.lhs, check.rhs, b_.program.symbols) : prove_less_equal(check.lhs, check.rhs, b_.program.symbols);
      if (truth == Truth::no)
        b_.diagnostics.error(code::kShapeMismatch, {check.location, 1},
                             fmt::format("{} ({} {} {} cannot hold)", check.message, b_.print(check.lhs), equal ? "==" : "<=", b_.print(check.rhs)));
      else if (truth == Truth::unknown)
        open.push_back(std::move(check));
    }
    b_.program.checks = std::move(open);
  }

  Builder& b_;
  std::vector<Expr> values_;  // by symbol
  std::unordered_map<const Expr*, std::pair<Expr, Expr>> known_;  // by operands: the expression, which keeps them where they are, and what it becomes
  std::vector<Symbol> symbols_;
};

}  // namespace

void settle_counted(Builder& b) {
  for (std::uint32_t c = 0; c < b.counted.size(); ++c)
    if (b.counted[c].tensor == kNone && !b.counted[c].refused)
      b.diagnostics.error(code::kUsedBeforeWritten, b.counted[c].count_place, fmt::format("no op makes '{}', which counts '{}'", b.counted[c].count, b.program.counted[c].name),
                          "an i32 tensor of shape [1], made outside of repeat, if and while");
  if (!b.counted.empty() && !b.diagnostics.has_errors()) Settle(b).run();
}

}  // namespace ccks::spec
