#include "spec/operand.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <numeric>

#include "spec/ragged.hpp"
#include "spec/view.hpp"

namespace ccks::spec {
namespace {

using Maybe = std::optional<View>;

/// Reads one operand: a name, then any number of [..], .T, .transpose(..), .reshape(..), .broadcast(..).
class OperandParser {
 public:
  OperandParser(Builder& b, const Text& text, std::size_t position = 0) : b_(b), text_(text), position_(position) {}

  Maybe run() {
    skip_blanks();
    const std::size_t at = position_;
    const std::string name = read_name();
    if (name.empty()) return fail(code::kViewSyntax, at, 1, "a tensor's name should stand here");
    Maybe v = resolve(name, at);
    while (v && !at_end()) v = postfix(*v);
    return v;
  }

  /// Index list up to and with ']', or to the end of the text where `closed` is false.
  Maybe slice(const View& v, bool closed) {
    View out = v;
    out.dims.clear();
    std::size_t i = 0;
    for (;;) {
      if (i >= v.dims.size())
        return fail(code::kViewSyntax, position_, 1,
                    fmt::format("more indices than the {} dims of the tensor", v.dims.size()));
      if (!index(v.dims[i++], out)) return std::nullopt;
      if (accept(',')) continue;
      if (closed ? accept(']') : at_end()) break;
      return fail(code::kViewSyntax, position_, 1, closed ? "']' or ',' is missing" : "unexpected text in a range");
    }
    out.dims.insert(out.dims.end(), v.dims.begin() + static_cast<std::ptrdiff_t>(i), v.dims.end());
    return out;
  }

 private:
  std::nullopt_t fail(Code code, std::size_t at, std::size_t length, std::string message, std::string hint = {}) {
    b_.diagnostics.error(code, text_.at(at, length), std::move(message), std::move(hint));
    return std::nullopt;
  }
  void skip_blanks() {
    while (position_ < text_.text.size() && (text_.text[position_] == ' ' || text_.text[position_] == '\t'))
      ++position_;
  }
  bool at_end() {
    skip_blanks();
    return position_ >= text_.text.size();
  }
  bool accept(char c) {
    skip_blanks();
    if (position_ >= text_.text.size() || text_.text[position_] != c) return false;
    ++position_;
    return true;
  }
  std::string read_word() {
    const std::size_t at = position_;
    while (position_ < text_.text.size() && is_name_part(text_.text[position_])) ++position_;
    return text_.text.substr(at, position_ - at);
  }
  /// Parts of a name are joined by dots; a part that is a postfix ends it.
  std::string read_name() {
    if (position_ >= text_.text.size() || !is_name_start(text_.text[position_])) return {};
    std::string name = read_word();
    while (position_ < text_.text.size() && text_.text[position_] == '.') {
      const std::size_t dot = position_++;
      const std::string word = read_word();
      if (word == "T" || word == "transpose" || word == "reshape" || word == "broadcast") {
        position_ = dot;
        break;
      }
      name += "." + word;
    }
    return name;
  }

  Maybe resolve(const std::string& name, std::size_t at) {
    const Binding* binding = b_.scopes.find(name);
    if (!binding) {
      if (Maybe table = ragged_table(b_, name)) {
        b_.mark_read(table->tensor);
        return table;
      }
      if (b_.later_names.count(name))
        return fail(code::kUsedBeforeWritten, at, name.size(), in_quotes(name) + " is used before an op writes it",
                    "names made inside 'repeat' or 'if' end with it; otherwise move the op up");
      return fail(code::kUnknownTensor, at, name.size(), "unknown tensor " + in_quotes(name),
                  did_you_mean(name, b_.scopes.tensor_names()));
    }
    if (binding->poisoned) return std::nullopt;
    const Tensor& root = b_.program.tensors[b_.root_of(binding->view.tensor)];
    const bool needs_write = root.kind == TensorKind::output || root.kind == TensorKind::intermediate;
    if (needs_write && !b_.is_written(binding->view.tensor))
      return fail(code::kUsedBeforeWritten, at, name.size(), in_quotes(name) + " is used before an op writes it",
                  "move the op up");
    b_.mark_read(binding->view.tensor);
    return binding->view;
  }

  Maybe postfix(const View& v) {
    const std::size_t at = position_;
    if (accept('[')) return slice(v, true);
    if (!accept('.')) return fail(code::kViewSyntax, at, 1, "expected '[' or '.' after the tensor");
    const std::string word = read_word();
    if (word == "T") {
      if (v.dims.size() >= 2) return swap_last(v);
      return fail(code::kWrongRank, at, 2, ".T needs two dims or more");
    }
    if (!accept('(')) return fail(code::kViewSyntax, position_, 1, "'(' is missing");
    const auto list = arguments();
    if (!list) return std::nullopt;
    const Span where = text_.at(at, position_ - at);
    if (word == "transpose") return transpose(v, *list, where);
    if (word == "reshape") return reshape(b_, v, *list, where);
    return broadcast(b_, v, *list, where, "this operand");
  }

  std::optional<Shape> arguments() {
    Shape list;
    if (accept(')')) return list;
    do {
      const auto e = expression();
      if (!e) return std::nullopt;
      list.push_back(*e);
    } while (accept(','));
    if (!accept(')')) return fail(code::kViewSyntax, position_, 1, "')' is missing");
    if (list.size() > kMaxRank) return fail(code::kWrongRank, position_, 1, "tensors have at most 4 dims");
    return list;
  }

  std::optional<Expr> expression() {
    DimParser parser(text_, position_, b_, b_.diagnostics);
    auto e = parser.expression();
    position_ = parser.position();
    return e;
  }

  Maybe transpose(const View& v, const Shape& list, const Span& where) {
    std::vector<std::uint32_t> order;
    for (const Expr& e : list) {
      const auto i = e.as_constant();
      const bool fresh = i && *i >= 0 && *i < static_cast<std::int64_t>(v.dims.size()) &&
                         std::find(order.begin(), order.end(), static_cast<std::uint32_t>(*i)) == order.end();
      if (fresh) order.push_back(static_cast<std::uint32_t>(*i));
    }
    if (order.size() == v.dims.size() && list.size() == order.size()) return permute(v, order);
    b_.diagnostics.error(code::kBadAxis, where, fmt::format("transpose takes each of the {} dims once", v.dims.size()),
                         "e.g. x.transpose(1, 0, 2)");
    return std::nullopt;
  }

  /// One index of a slice: `i` drops the dim, `lo:hi` and `lo:hi:step` narrow it.
  bool index(const ViewDim& d, View& out) {
    skip_blanks();
    const std::size_t at = position_;
    Expr lo = 0;
    const bool open_start = accept(':');
    if (!open_start) {
      const auto first = expression();
      if (!first) return false;
      lo = *first;
      if (!accept(':')) return single(d, lo, at, out);
    }
    Expr hi = d.extent;
    skip_blanks();
    const char next = position_ < text_.text.size() ? text_.text[position_] : '\0';
    if (next != ',' && next != ']' && next != ':' && next != '\0') {
      const auto last = expression();
      if (!last) return false;
      hi = *last;
    }
    std::int64_t step = 1;
    if (accept(':') && !read_step(step)) return false;
    return narrow(d, lo, hi, step, at, out);
  }

  bool read_step(std::int64_t& step) {
    const std::size_t at = position_;
    const auto e = expression();
    if (!e) return false;
    const auto value = e->as_constant();
    if (!value || *value < 1 || *value > (std::int64_t{1} << 31)) {
      fail(code::kViewSyntax, at, position_ - at, "a step is a constant of at least 1");
      return false;
    }
    step = *value;
    return true;
  }

  bool single(const ViewDim& d, const Expr& i, std::size_t at, View& out) {
    const Span where = text_.at(at, position_ - at);
    if (!b_.require_less_equal(Expr(0), i, code::kViewOutOfRange, where, "an index is negative") ||
        !b_.require_less_equal(i + Expr(1), d.extent, code::kViewOutOfRange, where,
                               "an index lies past the end of its dim"))
      return false;
    if (d.base_dim != kNone) out.fixed[d.base_dim] = d.offset + i * Expr(d.step);
    return true;
  }

  bool narrow(const ViewDim& d, const Expr& lo, const Expr& hi, std::int64_t step, std::size_t at, View& out) {
    const Span where = text_.at(at, std::max<std::size_t>(1, position_ - at));
    if (!b_.require_less_equal(Expr(0), lo, code::kViewOutOfRange, where, "a range begins before 0") ||
        !b_.require_less_equal(lo + Expr(1), hi, code::kViewOutOfRange, where, "a range is empty") ||
        !b_.require_less_equal(hi, d.extent, code::kViewOutOfRange, where, "a range ends past the end of its dim"))
      return false;
    ViewDim n = d;
    n.extent = ceildiv(hi - lo, Expr(step));
    if (d.base_dim != kNone) {
      n.offset = d.offset + lo * Expr(d.step);
      if (__builtin_mul_overflow(d.step, step, &n.step)) return false;
    }
    out.dims.push_back(std::move(n));
    return true;
  }

  Builder& b_;
  const Text& text_;
  std::size_t position_;
};

}  // namespace

Maybe parse_operand(Builder& b, const Text& text) { return OperandParser(b, text).run(); }

Maybe parse_slice(Builder& b, const View& v, const Text& text) { return OperandParser(b, text).slice(v, false); }

Maybe reshape(Builder& b, const View& v, const Shape& shape, const Span& where) {
  if (!is_whole(v, b.program.tensors[v.tensor])) {
    b.diagnostics.error(code::kBadView, where, "only a whole tensor can be reshaped",
                        "copy the window with a map first");
    return std::nullopt;
  }
  Expr have = 1, want = 1;
  for (const ViewDim& d : v.dims) have = have * d.extent;
  for (const Expr& e : shape) {
    if (!b.require_less_equal(Expr(1), e, code::kBadShape, where, "an extent must be at least 1")) return std::nullopt;
    want = want * e;
  }
  if (!b.require_equal(
          have, want, code::kShapeMismatch, where,
          fmt::format("reshape from {} to {} changes the number of elements", b.print_shape(v), b.print(shape))))
    return std::nullopt;
  const TensorId root = b.root_of(v.tensor);
  if (b.program.tensors[root].shape == shape) return b.whole_view(root);
  for (TensorId id = 0; id < b.program.tensors.size(); ++id)
    if (b.program.tensors[id].alias_of == root && b.program.tensors[id].shape == shape) return b.whole_view(id);
  Tensor alias;
  alias.name = b.unique_tensor_name(b.program.tensors[root].name + ".reshaped");
  alias.dtype = b.program.tensors[root].dtype;
  alias.shape = shape;
  alias.alias_of = root;
  alias.location = where.location;
  return b.whole_view(b.add_tensor(std::move(alias)));
}

}  // namespace ccks::spec
