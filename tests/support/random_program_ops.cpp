// What random programs are made of: one function for each kind of op or idiom.
#include <array>

#include "tests/support/random_program_text.hpp"

namespace ccks::test {
namespace {

std::string field(const std::string& key, const std::string& text) { return key + ": " + quoted(text); }
std::string number(std::int64_t v) { return std::to_string(v); }
std::string bool_word(bool b) { return b ? "true" : "false"; }

// Sometimes ", dtype: X"; `dtype` becomes what the op then stores.
std::string maybe_dtype(Draft& d, std::string& dtype) {
  if (!d.dice.chance(20)) return "";
  dtype = d.any_dtype();
  return ", dtype: " + dtype;
}

std::string promoted(const Value& a, const Value& b) { return a.dtype == b.dtype ? a.dtype : "f32"; }

// Bounded functions of one operand, continuous wherever they compare.
const std::vector<std::string>& unary_forms() {
  static const std::vector<std::string> kForms{"silu(a)",
                                               "gelu(a)",
                                               "gelu_tanh(a)",
                                               "tanh(a)",
                                               "sigmoid(a) + 0.5",
                                               "relu(a) - 0.25",
                                               "softplus(a)",
                                               "erf(a)",
                                               "exp(min(a, 1.0)) * 0.5",
                                               "log(1.0 + a * a)",
                                               "sqrt(1.0 + a * a) - 1.0",
                                               "a * rsqrt(1.0 + a * a)",
                                               "sin(a)",
                                               "cos(a)",
                                               "abs(a)",
                                               "a / (1.0 + a * a)",
                                               "max(a, -0.5)",
                                               "min(a, 0.75) * 2",
                                               "(abs(a) + 0.5) ** 1.5 * 0.5",
                                               "pow(abs(a) + 1.0, -1.0)",
                                               "select(a > 0.25, a, 0.25 + 0.5 * (a - 0.25))",
                                               "select(not (a <= 0.0) and true, a, 0.1 * a)",
                                               "-a",
                                               "(a + 1) * 0.5 - 2 / 3",
                                               "a * float(index(0) % 3 + 1) * 0.5"};
  return kForms;
}

const std::vector<std::string>& binary_forms() {
  static const std::vector<std::string> kForms{"a + b",           "a - 0.5 * b",         "a * tanh(b)",
                                               "a * sigmoid(b)",  "a / (1.0 + b * b)",   "max(a, b)",
                                               "min(a, 0.5 * b)", "0.75 * a + 0.25 * b", "silu(a) * tanh(b)"};
  return kForms;
}

// Functions with steps, for operands that are the same to the bit on both sides.
const std::vector<std::string>& exact_forms() {
  static const std::vector<std::string> kForms{
      "floor(a * 2)",      "ceil(a)",          "round(a * 4) * 0.25",
      "sign(a)",           "a % 0.5",          "float(a > 0.5 or a < -1.0)",
      "float(int(a * 2))", "(a // 0.5) * 0.5", "select(a == 0.0 or a >= 1.0, 1.0, a)",
      "float(bool(a))",    "float(a != 0)"};
  return kForms;
}

void add_map(Draft& d) {
  const Value a = d.any_float(1 + d.dice.below(3));
  const bool stepped = a.exact && d.dice.chance(50);
  std::string dtype = a.dtype;
  const std::string extra = maybe_dtype(d, dtype);
  const std::string& form = d.dice.pick(stepped ? exact_forms() : unary_forms());
  d.op("map", field("expr", form) + ", with: {" + field("a", d.use(a)) + "}" + extra, a.shape, dtype);
}

void add_binary_map(Draft& d) {
  const Value a = d.any_float(2 + d.dice.below(2)), b = d.float_like(a);
  std::string dtype = promoted(a, b);
  const std::string extra = maybe_dtype(d, dtype);
  d.op("map",
       field("expr", d.dice.pick(binary_forms())) + ", with: {" + field("a", d.use(a)) + ", " + field("b", d.use(b)) +
           "}" + extra,
       a.shape, dtype);
}

// A row along the last dim and a column along the others, broadcast over a matrix.
void add_broadcast_map(Draft& d) {
  const Value a = d.any_float(2), row = d.weight({a.last()}, a.dtype);
  if (d.dice.chance(50)) {
    d.op("map",
         field("expr", "a * r + 0.5 * r") + ", with: {" + field("a", d.use(a)) + ", " + field("r", row.text) + "}",
         a.shape, a.dtype);
    return;
  }
  const std::string fn = d.dice.pick<std::string>({"mean", "max", "min"});
  const Value column = d.op("reduce", field("x", d.use(a)) + ", fn: " + fn + ", axes: -1, keepdims: true",
                            {a.shape[0], fixed(1)}, a.dtype);
  d.op("map",
       field("expr", "a * 0.5 + c * r") + ", with: {" + field("a", a.text) + ", " + field("c", d.use(column)) + ", " +
           field("r", row.text) + "}",
       a.shape, a.dtype);
}

void add_reduce(Draft& d) {
  Value x = d.any_float(2 + d.dice.below(2));
  std::string fn = d.dice.pick<std::string>({"sum", "mean", "max", "min", "prod"});
  if (fn == "prod")  // of factors near one, or it would leave the range of f16
    x = d.op("map", field("expr", "1.0 + 0.05 * tanh(a)") + ", with: {" + field("a", d.use(x)) + "}, dtype: f32",
             x.shape, "f32");
  const std::size_t axis = d.dice.below(x.rank());
  const bool keep = d.dice.chance(50), both = x.rank() == 3 && d.dice.chance(30);
  std::vector<Extent> shape;
  for (std::size_t i = 0; i < x.rank(); ++i) {
    const bool reduced = i == axis || (both && i == (axis + 1) % 3);
    if (!reduced)
      shape.push_back(x.shape[i]);
    else if (keep)
      shape.push_back(fixed(1));
  }
  const std::string axes = both ? "[" + number(static_cast<std::int64_t>(axis)) + ", " +
                                      number(static_cast<std::int64_t>((axis + 1) % 3)) + "]"
                                : number(static_cast<std::int64_t>(axis));
  std::string dtype = x.dtype;
  const std::string extra = maybe_dtype(d, dtype);
  d.op("reduce", field("x", d.use(x)) + ", fn: " + fn + ", axes: " + axes + ", keepdims: " + bool_word(keep) + extra,
       shape, dtype);
}

void add_norm(Draft& d) {
  const Value x = d.any_float(1 + d.dice.below(3));
  std::string dtype = x.dtype;
  const std::string extra = maybe_dtype(d, dtype);
  const auto kind = d.dice.below(3);
  if (kind == 0) {
    const std::string scale = d.dice.chance(50) ? ", scale: 0.5" : "";
    d.op("softmax", field("x", d.use(x)) + scale + extra, x.shape, dtype);
    return;
  }
  const Value w = d.weight({x.last()}, d.any_dtype());
  // The larger eps keeps a norm of nearly equal values from blowing up their rounding.
  std::string fields = field("x", d.use(x)) + ", weight: " + w.text + ", eps: 0.01" + extra;
  if (kind == 1) {
    d.op("rmsnorm", fields, x.shape, dtype);
    return;
  }
  if (d.dice.chance(50)) fields += ", bias: " + d.weight({x.last()}, d.any_dtype()).text;
  d.op("layernorm", fields, x.shape, dtype);
}

// An epilogue over a result of this shape, or nothing.
std::string maybe_epilogue(Draft& d, const std::vector<Extent>& shape) {
  switch (d.dice.below(5)) {
    case 0:
      return ", " + field("epilogue",
                          d.dice.pick<std::string>({"silu(acc)", "acc * 0.5", "max(acc, 0.1 * acc)", "tanh(acc)",
                                                    "select(index(0) < 2, acc, acc * 0.5)", "acc + 0.01 * float(index(1) - index(0))"}));
    case 1: {
      const Value bias = d.weight({shape.back()}, d.any_dtype());
      return ", " + field("epilogue", "gelu(acc) + 0.1 * b") + ", with: {b: " + bias.text + "}";
    }
    case 2: {
      Value like;
      like.shape = shape;
      const Value other = d.float_like(like);
      return ", " + field("epilogue", "acc + r") + ", with: {" + field("r", d.use(other)) + "}";
    }
    default:
      return "";
  }
}

void add_matmul(Draft& d) {
  const Value a = d.any_float(2);
  const Extent n = fixed(static_cast<std::int64_t>(8 * (1 + d.dice.below(8))));
  const bool transposed = d.dice.chance(70);
  // Without a transpose the default deviation would be that of the wrong dim.
  const Value b = transposed ? d.weight({n, a.last()}, a.dtype) : d.weight({a.last(), n}, a.dtype, "{normal: 0.15}");
  const std::vector<Extent> shape{a.shape[0], n};
  std::string dtype = a.dtype;
  const std::string extra = maybe_dtype(d, dtype);
  d.use(a);
  const std::string epilogue = maybe_epilogue(d, shape);
  d.op("matmul", field("a", a.text) + ", b: " + b.text + (transposed ? ", transpose_b: true" : "") + epilogue + extra,
       shape, dtype);
}

void add_batched_matmul(Draft& d) {
  const Value a = d.any_float(3);
  // Scores of each batch against itself, or one matrix for all batches.
  if (d.dice.chance(50)) {
    const std::vector<Extent> shape{a.shape[0], a.shape[1], a.shape[1]};
    d.op("matmul",
         field("a", d.use(a)) + ", " + field("b", a.text) + ", transpose_b: true, " +
             field("epilogue", "tanh(acc * 0.1)"),
         shape, a.dtype);
    return;
  }
  const Value b = d.weight({fixed(32), a.last()}, a.dtype);
  d.op("matmul", field("a", d.use(a)) + ", b: " + b.text + ", transpose_b: true", {a.shape[0], a.shape[1], fixed(32)},
       a.dtype);
}

// A projection of x to `width` columns.
Value project(Draft& d, const Value& x, std::int64_t width) {
  const Value w = d.weight({fixed(width), x.last()}, x.dtype);
  std::vector<Extent> shape = x.shape;
  shape.back() = fixed(width);
  return d.op("matmul", field("a", d.use(x)) + ", b: " + w.text + ", transpose_b: true", shape, x.dtype);
}

void add_attention(Draft& d) {
  const Value x = d.any_float(2 + d.dice.below(2));
  const std::int64_t kv_heads = 1 + static_cast<std::int64_t>(d.dice.below(2)),
                     heads = kv_heads * (1 + static_cast<std::int64_t>(d.dice.below(2)));
  const std::int64_t head_dim = d.dice.chance(50) ? 8 : 16;
  const Value q = project(d, x, heads * head_dim), k = project(d, x, kv_heads * head_dim),
              v = project(d, x, kv_heads * head_dim);
  std::string fields = field("q", d.use(q)) + ", " + field("k", d.use(k)) + ", " + field("v", d.use(v)) +
                       ", heads: " + number(heads) + ", kv_heads: " + number(kv_heads) +
                       ", causal: " + bool_word(d.dice.chance(60));
  if (d.dice.chance(30)) fields += ", scale: 0.2";
  // Appending to a cache: `at` plus the rows stays below the cache's length for every value of the symbols.
  const bool few_rows = x.shape[0].constant ? x.shape[0].value <= 60 : x.shape[0].text.find(' ') == std::string::npos;
  if (x.rank() == 2 && few_rows && d.dice.chance(50)) {
    const std::vector<Extent> cache{fixed(80), fixed(kv_heads * head_dim)};
    const Value ck = d.declare("state", cache, x.dtype, d.dice.chance(50) ? "{normal: 0.5}" : ""),
                cv = d.declare("state", cache, x.dtype);
    const std::string at = number(static_cast<std::int64_t>(d.dice.below(16)));
    fields += ", append: {k: " + ck.text + ", v: " + cv.text + ", at: " + at + "}";
  }
  d.op("attention", fields, q.shape, x.dtype);
}

// Rows written into pools where an index says, and attention that finds them, and what lay there before, through pages. No two rows have one slot, but
// several may read one page, and some of both are nowhere.
void add_pools(Draft& d) {
  const Value x = d.any_float(2);
  const std::int64_t kv_heads = 1 + static_cast<std::int64_t>(d.dice.below(2)), heads = kv_heads * (1 + static_cast<std::int64_t>(d.dice.below(2)));
  const std::int64_t head_dim = d.dice.chance(50) ? 8 : 16, page = 1 + static_cast<std::int64_t>(d.dice.below(9)), per_row = 1 + static_cast<std::int64_t>(d.dice.below(4));
  const Value q = project(d, x, heads * head_dim), k = project(d, x, kv_heads * head_dim), v = project(d, x, kv_heads * head_dim);
  const std::vector<Extent> pool{fixed(40), fixed(kv_heads * head_dim)};
  const Value pk = d.declare("state", pool, x.dtype, "{normal: 0.5}"), pv = d.declare("state", pool, x.dtype, d.dice.chance(50) ? "{uniform: [-1, 1]}" : "");
  const Value count = d.input({x.shape[0]}, d.dice.chance(50) ? "i32" : "i64", "{count: 0}");
  const Value slot = d.op("map", field("expr", d.dice.pick<std::string>({"40 - a", "a * 2 - 3", "a", "a * 3 + 1"})) + ", with: {a: " + d.use(count) + "}", count.shape,
                          count.dtype, true);
  const Value reach = d.input({x.shape[0], fixed(2)}, "i32", "{integers: [-3, " + number(page * per_row + 3) + "]}");
  const Value pages = d.input({x.shape[0], fixed(per_row)}, "i32", "{integers: [-1, " + number(40 / page + 2) + "]}");
  d.entry("{op: scatter, " + field("x", d.use(k)) + ", index: " + d.use(slot) + ", out: " + pk.text + "}");
  d.entry("{op: scatter, " + field("x", d.use(v)) + ", index: " + slot.text + ", out: " + pv.text + "}");
  d.op("attention",
       field("q", d.use(q)) + ", k: " + pk.text + ", v: " + pv.text + ", heads: " + number(heads) + ", kv_heads: " + number(kv_heads) + ", reach: " + d.use(reach) +
           ", pages: " + d.use(pages) + ", page: " + number(page),
       q.shape, x.dtype);
  if (d.dice.chance(30)) d.entry("{op: scatter, " + field("x", v.text) + ", index: " + slot.text + ", out: " + pk.text + "}");  // behind who reads it
}

void add_rope(Draft& d) {
  Value x = d.any_float(2 + d.dice.below(2));
  if (x.last().value % 8 != 0) x = project(d, x, 32);
  std::string fields = field("x", d.use(x)) + ", heads: " + (d.dice.chance(50) ? "1" : "2") +
                       ", theta: " + (d.dice.chance(50) ? "10000" : "100");
  if (d.dice.chance(30)) fields += ", style: interleaved";
  switch (d.dice.below(3)) {
    case 0:
      fields += ", position: 3";
      break;
    case 1:
      fields += ", " + field("position", "2 * n");
      break;
    default: {
      const Value positions = d.input({x.shape[x.rank() - 2]}, "i32", "{integers: [0, 50]}");
      fields += ", positions: " + d.use(positions);
    }
  }
  d.op("rope", fields, x.shape, x.dtype);
}

void add_gather(Draft& d) {
  const std::vector<Extent> index_shape = d.dice.chance(70) ? std::vector<Extent>{d.dice.pick(d.symbols)}
                                                            : std::vector<Extent>{fixed(3), d.dice.pick(d.symbols)};
  const Value index = d.input(index_shape, d.dice.chance(50) ? "i32" : "i64", "{integers: [0, 20]}");
  const Extent width = fixed(static_cast<std::int64_t>(8 * (1 + d.dice.below(4))));
  const Value table = d.weight({fixed(20), width}, d.any_dtype());
  std::vector<Extent> shape = index_shape;
  shape.push_back(width);
  d.op(d.dice.chance(50) ? "gather" : "embedding", "table: " + table.text + ", index: " + d.use(index), shape,
       table.dtype, true);
}

void add_choice(Draft& d) {
  const Value x = d.any_exact(1 + d.dice.below(3));
  std::vector<Extent> shape = x.shape;
  if (d.dice.chance(50)) {
    shape.pop_back();
    d.op("argmax", field("x", d.use(x)), shape, "i32", true);
    return;
  }
  const std::int64_t k = 1 + static_cast<std::int64_t>(d.dice.below(6));
  shape.back() = fixed(k);
  Value values, indices;
  values.text = values.source = d.fresh_name("v");
  indices.text = indices.source = d.fresh_name("v");
  values.shape = indices.shape = shape;
  values.dtype = x.dtype;
  indices.dtype = "i32";
  values.exact = indices.exact = true;
  d.entry("{op: topk, " + field("x", d.use(x)) + ", k: " + number(k) + ", out: [" + values.text + ", " + indices.text +
          "]}");
  for (const Value& v : {values, indices}) {
    d.will_be_read(v.source);
    d.add(v);
  }
}

void add_conv2d(Draft& d) {
  const std::int64_t channels = 1 + static_cast<std::int64_t>(d.dice.below(4)),
                     kernels = 1 + static_cast<std::int64_t>(d.dice.below(5));
  const bool symbolic = d.dice.chance(50);
  const Extent height = symbolic ? d.symbols[0] : fixed(9);
  const std::string dtype = d.any_dtype();
  const Value x =
      d.input({fixed(1 + static_cast<std::int64_t>(d.dice.below(2))), fixed(channels), height, fixed(10)}, dtype);
  const Value w = d.weight({fixed(kernels), fixed(channels), fixed(3), fixed(3)}, dtype);
  // A kernel of 3 with padding 1 keeps the size; the constant image also tries strides and dilation.
  std::string fields = "x: " + d.use(x) + ", weight: " + w.text + ", padding: 1";
  std::vector<Extent> shape{x.shape[0], fixed(kernels), height, fixed(10)};
  if (!symbolic && d.dice.chance(50)) {
    fields += ", stride: [2, 1], dilation: [1, 2]";
    shape[2] = fixed((9 + 2 - 3) / 2 + 1);
    shape[3] = fixed(10 + 2 - 5 + 1);
  }
  if (d.dice.chance(50))
    fields += ", " + field("epilogue", "relu(acc) + 0.1 * c") + ", with: {" +
              field("c", d.weight({fixed(kernels), fixed(1), fixed(1)}, dtype).text) + "}";
  const Value y = d.op("conv2d", fields, shape, dtype);
  if (symbolic || d.dice.chance(50)) return;
  const std::int64_t rest = element_count(shape) / shape[0].value;
  d.op("map",
       field("expr", "a * 0.5") + ", with: {" +
           field("a", d.use(y) + ".reshape(" + shape[0].text + ", " + number(rest) + ")") + "}",
       {shape[0], fixed(rest)}, dtype);
}

void add_experts(Draft& d) {
  const Value x = d.any_float(2);
  const std::int64_t experts = 3 + static_cast<std::int64_t>(d.dice.below(6)),
                     k = 1 + static_cast<std::int64_t>(d.dice.below(3)), hidden = 16;
  const Value logits = d.input({x.shape[0], fixed(experts)}, "f32");
  const std::string r = d.fresh_name("r");
  d.entry("{op: route, logits: " + d.use(logits) + ", k: " + number(k) +
          ", softmax: " + d.dice.pick<std::string>({"all", "chosen"}) +
          ", renormalize: " + bool_word(d.dice.chance(50)) + ", out: " + r + "}");
  const Extent rows{x.shape[0].constant ? number(x.shape[0].value * k) : "(" + x.shape[0].text + ") * " + number(k),
                    x.shape[0].value * k, x.shape[0].constant};
  const Value up = d.weight({fixed(experts), fixed(hidden), x.last()}, x.dtype, "{normal: 0.2}");
  const Value down = d.weight({fixed(experts), fixed(hidden), x.last()}, x.dtype, "{normal: 0.25}");
  const Value h = d.op("expert_matmul",
                       field("x", d.use(x)) + ", route: " + r + ", b: " + up.text +
                           ", transpose_b: true, input: tokens, " + field("epilogue", "silu(acc)"),
                       {rows, fixed(hidden)}, x.dtype);
  const Value y = d.op("expert_matmul", field("x", d.use(h)) + ", route: " + r + ", b: " + down.text + ", input: rows",
                       {rows, x.last()}, x.dtype);
  const std::vector<Extent> combined{x.shape[0], x.last()};
  const std::string epilogue = maybe_epilogue(d, combined);
  d.op("combine", field("x", d.use(y)) + ", route: " + r + epilogue, combined, x.dtype);
}

void add_concat(Draft& d) {
  const Value a = d.any_float(2);
  const Value b =
      d.op("map", field("expr", "0.5 * a - 0.1") + ", with: {" + field("a", d.use(a)) + "}", a.shape, a.dtype);
  const bool wide = d.dice.chance(60);
  std::vector<Extent> shape = a.shape;
  Extent& along = shape[wide ? 1 : 0];
  if (2 * element_count(shape) > kMaxElements) return;
  along = along.constant ? fixed(2 * along.value) : Extent{"2 * (" + along.text + ")", 2 * along.value, false};
  d.op("concat", "inputs: [" + quoted(a.text) + ", " + quoted(d.use(b)) + "], axis: " + (wide ? "-1" : "0"), shape,
       a.dtype);
}

// Ops that only name views, and a map that reads through the last of them.
void add_views(Draft& d) {
  const Value x = d.input({fixed(2 + static_cast<std::int64_t>(d.dice.below(3))), d.dice.pick(d.symbols), fixed(16)},
                          d.any_dtype());
  const std::string t = d.fresh_name("w"), s = d.fresh_name("w"), b = d.fresh_name("w");
  d.entry("{op: transpose, x: " + d.use(x) + ", axes: [1, 0, 2], out: " + t + "}");
  d.entry("{op: slice, x: " + t + ", range: \":, 1, 2:14:3\", out: " + s + "}");
  d.entry("{op: broadcast, x: " + s + ", shape: " + shape_list({fixed(3), x.shape[1], fixed(4)}) + ", out: " + b + "}");
  d.op("map", field("expr", "tanh(a) + 0.5") + ", with: {a: " + b + "}", {fixed(3), x.shape[1], fixed(4)}, x.dtype);
  const std::string flat = d.fresh_name("w");
  const std::vector<Extent> shape{
      Extent{x.shape[0].text + " * " + x.shape[1].text, x.shape[0].value * x.shape[1].value, false}, fixed(16)};
  d.entry("{op: reshape, x: " + x.text + ", shape: " + shape_list(shape) + ", out: " + flat + "}");
  d.op("map", field("expr", "a * 0.75") + ", with: {a: " + flat + "}", shape, x.dtype);
}

// Windows of a declared intermediate, written by several ops.
void add_windows(Draft& d) {
  const Extent rows = d.dice.pick(d.symbols);
  const Value whole = d.declare("intermediate", {rows, fixed(24)}, d.any_dtype());
  const Value a = d.input({rows, fixed(16)}, d.any_dtype()), w = d.weight({fixed(8), fixed(16)}, a.dtype);
  d.entry("{op: map, expr: \"a + 0.5\", with: {a: " + d.use(a) + "}, out: \"" + whole.text + "[:, 0:16]\"}");
  d.entry("{op: matmul, a: " + a.text + ", b: " + w.text + ", transpose_b: true, out: \"" + whole.text +
          "[:, 16:24]\"}");
  d.will_be_read(whole.source);
  d.add(whole);
}

// A state that is read, then partly overwritten.
void add_state(Draft& d) {
  const Value state =
      d.declare("state", {fixed(64), fixed(16)}, d.any_dtype(), d.dice.chance(60) ? "{uniform: [-1, 1]}" : "");
  const Extent rows = d.symbols[0];
  const Value x = d.input({rows, fixed(16)}, state.dtype);
  const Value sum = d.op("map", "expr: \"x + 0.5 * s\", with: {x: " + d.use(x) + ", s: \"" + state.text + "[0:n, :]\"}",
                         {rows, fixed(16)}, state.dtype);
  d.entry("{op: map, expr: \"tanh(a)\", with: {a: " + d.use(sum) + "}, out: \"" + state.text + "[8:8 + n, :]\"}");
  d.op("reduce", "x: \"" + state.text + "[4:40, :]\", fn: mean, axes: 0", {fixed(16)}, state.dtype);
}

void add_integers(Draft& d) {
  const std::string dtype = d.dice.chance(50) ? "i32" : "i64";
  const Value a = d.input({d.dice.pick(d.symbols), fixed(8)}, dtype, "{integers: [-50, 50]}");
  const std::string form =
      d.dice.pick<std::string>({"a * 3 + 1", "a % 7", "a // 4", "max(a, 5) - min(a, 3)", "abs(a) + index(1)",
                                "select(a > 10 and a != 12, a, 0 - a)", "-a + sign(a)", "(a + index(0)) % -5"});
  const Value b = d.op("map", field("expr", form) + ", with: {a: " + d.use(a) + "}", a.shape, dtype, true);
  switch (d.dice.below(3)) {
    case 0:
      d.op("reduce", "x: " + d.use(b) + ", fn: " + d.dice.pick<std::string>({"sum", "max", "min"}) + ", axes: 1",
           {b.shape[0]}, dtype, true);
      break;
    case 1:
      d.op("map", "expr: \"a > 2\", with: {a: " + d.use(b) + "}", b.shape, "bool", true);
      break;
    default:
      d.op("map", "expr: \"float(a) * 0.01\", with: {a: " + d.use(b) + "}", b.shape, "f32");
      break;
  }
}

// `if` on a reported input, sometimes one inside the other; both sides joined where they meet.
void add_branch(Draft& d) {
  const Value flag = d.input({fixed(1)}, d.dice.pick<std::string>({"i32", "i64", "bool"}), "");
  const Value x = d.any_float(2);
  const std::string report = d.fresh_name("flag"), then = d.fresh_name("t"), joined = d.fresh_name("v");
  d.entry("{op: report, name: " + report + ", x: " + d.use(flag) + "}");
  const Value otherwise =
      d.op("map", field("expr", "0.5 * a") + ", with: {" + field("a", d.use(x)) + "}", x.shape, x.dtype);
  const Value w = d.weight({x.last(), x.last()}, x.dtype);
  std::string body =
      "{op: matmul, " + field("a", x.text) + ", b: " + w.text + ", transpose_b: true, out: " + then + "}";
  if (d.dice.chance(40))
    body += ", {if: \"" + report + " >= 1\", ops: [{op: map, expr: \"tanh(a)\", with: {a: " + then + "}, out: " + then +
            "x}], out: {" + then + "y: {then: " + then + "x, else: " + then + "}}}";
  const std::string side = body.find(then + "y") != std::string::npos ? then + "y" : then;
  const std::string sign = d.dice.pick<std::string>({"== 1", "> 0", "!= 1", "< 1", ">= 0", "<= -1"});
  d.entry("{if: \"" + report + " " + sign + "\", ops: [" + body + "], out: {" + joined + ": {then: " + side +
          ", else: " + d.use(otherwise) + "}}}");
  Value v = otherwise;
  v.text = v.source = joined;
  v.exact = false;
  d.will_be_read(joined);
  d.add(v);
}

// As many passes as an input says, three at most; now and then with a branch in each.
void add_loop(Draft& d) {
  const Value limit = d.input({fixed(1)}, "i32", "{integers: [0, 6]}");
  const Value x = d.any_float(2);
  const Value h = d.op("map", field("expr", "0.5 * a") + ", with: {" + field("a", d.use(x)) + "}", x.shape, x.dtype);
  const Value k = d.op("map", "expr: 0 * a, with: {a: " + d.use(limit) + "}, dtype: i32", limit.shape, "i32", true);
  const Value more = d.op("map", "expr: \"int(a > 0)\", with: {a: " + limit.text + "}, dtype: i32", limit.shape, "i32", true);
  const Value w = d.weight({h.last(), h.last()}, h.dtype);
  const std::string go = d.fresh_name("go"), odd = d.fresh_name("odd");
  d.entry("{op: report, name: " + go + ", x: " + d.use(more) + "}");
  d.use(h), d.use(k);
  std::string body = "{op: matmul, a: " + h.text + ", b: " + w.text + ", transpose_b: true, out: " + h.text + "}, {op: map, expr: " + k.text +
                     " + 1, dtype: i32, out: " + k.text + "}";
  if (d.dice.chance(40)) {
    body += ", {op: report, name: " + odd + ", x: " + k.text + "}, {if: \"" + odd + " != 2\", ops: [{op: map, expr: \"tanh(a)\", with: {a: " +
            h.text + "}, out: " + h.text + "}], out: {" + h.text + ": }}";
  }
  d.entry("{while: " + go + " == 1, most: 3, name: " + go + "s, carry: [" + h.text + ", " + k.text + "], ops: [" + body +
          ", {op: map, expr: \"int(a < b)\", with: {a: " + k.text + ", b: " + limit.text + "}, dtype: i32, out: " + go + "x}, {op: report, name: " +
          go + ", x: " + go + "x}]}");
}

// Layers with their own weights; the value that they hand on keeps its name.
void add_repeat(Draft& d) {
  Value x = d.any_float(2);
  if (!x.last().constant) x = d.input({d.dice.pick(d.symbols), fixed(16)}, d.any_dtype());  // weights are shaped by it
  const Value h = d.op("map", "expr: a, with: {" + field("a", d.use(x)) + "}", x.shape, x.dtype);
  const std::string l = d.fresh_name("l"), g = d.fresh_name("g"), w = d.fresh_name("w"), inner = d.fresh_name("h");
  const std::string type = ", dtype: " + h.dtype + ", kind: weight";
  d.entry("{repeat: {index: " + l + ", from: 0, to: " + number(1 + static_cast<std::int64_t>(d.dice.below(3))) +
          "}, tensors: {" + g + ": {shape: " + shape_list({h.last()}) + type + ", from: \"layers.{" + l +
          "}.norm\"}, " + w + ": {shape: " + shape_list({h.last(), h.last()}) + type + "}}, ops: [" +
          "{op: rmsnorm, x: " + h.text + ", weight: " + g + ", out: " + inner + "}, " + "{op: matmul, a: " + inner +
          ", b: " + w + ", transpose_b: true, epilogue: \"0.5 * acc + r\", with: {r: " + h.text + "}, out: " + h.text +
          "}]}");
}

// A report of a few exact values, which only the host reads.
void add_report(Draft& d) {
  const Value x = d.any_exact(1);
  d.entry("{op: report, name: " + d.fresh_name("seen") + ", x: " + quoted(d.use(x) + "[0:4]") + "}");
}

using Maker = void (*)(Draft&);

}  // namespace

void add_random_ops(Draft& d) {
  static constexpr std::array<Maker, 24> kMakers{
      add_map,     add_map,      add_binary_map, add_broadcast_map,  add_reduce,    add_norm,
      add_norm,    add_matmul,   add_matmul,     add_batched_matmul, add_attention, add_rope,
      add_gather,  add_choice,   add_conv2d,     add_experts,        add_concat,    add_views,
      add_windows, add_integers, add_branch,     add_repeat,         add_loop,
      add_pools};
  switch (d.dice.below(25)) {
    case 23:
      return add_state(d);
    case 24:
      return add_report(d);
    default:
      return kMakers[d.dice.below(kMakers.size())](d);
  }
}

void add_counted(Draft& d) {
  const Extent most = d.dice.pick(d.symbols);
  const Value x = d.input({most, fixed(16)}, d.any_dtype());
  const Value given = d.input({fixed(1)}, "i32", "{integers: [-2, " + number(most.value + 4) + "]}");
  const Value count = d.op("map", "expr: \"c + 0\", with: {c: " + d.use(given) + "}", {fixed(1)}, "i32", true);
  const Extent rows = d.counted_dim(most, count);
  Value h = d.op("map", "expr: \"a * 0.5\", with: {a: " + d.use(x) + "}, shape: " + shape_list({rows, fixed(16)}), {rows, fixed(16)}, x.dtype);
  const Value place = d.op("map", "expr: \"index(0) * 3 % 20\", dtype: i32, shape: " + shape_list({rows}), {rows}, "i32", true);
  const auto steps = 1 + d.dice.below(5);
  for (std::uint64_t i = 0; i < steps; ++i) {
    switch (d.dice.below(6)) {
      case 0: {
        const Value table = d.weight({fixed(20), fixed(16)}, h.dtype);
        const Value g = d.op("gather", "table: " + table.text + ", index: " + d.use(place), h.shape, h.dtype);
        h = d.op("map", "expr: \"tanh(a + b)\", with: {a: " + d.use(h) + ", b: " + d.use(g) + "}", h.shape, h.dtype);
        break;
      }
      case 1: {
        const Value w = d.weight({fixed(16), fixed(16)}, h.dtype);
        h = d.op("matmul", "a: " + d.use(h) + ", b: " + w.text + ", transpose_b: true", h.shape, h.dtype);
        break;
      }
      case 2: {
        const Value w = d.weight({fixed(16)}, h.dtype);
        h = d.op("rmsnorm", "x: " + d.use(h) + ", weight: " + w.text, h.shape, h.dtype);
        break;
      }
      case 3: {
        const Value reach = d.op("map", "expr: \"select(index(1) == 0, 0, min(c, index(0) + 3))\", with: {c: " + d.use(count) + "}, dtype: i32, shape: " + shape_list({rows, fixed(2)}),
                                 {rows, fixed(2)}, "i32", true);
        h = d.op("attention", "q: " + d.use(h) + ", k: " + h.text + ", v: " + h.text + ", heads: 2, reach: " + d.use(reach), h.shape, h.dtype);
        break;
      }
      case 4:
        d.op("reduce", "x: " + d.use(h) + ", fn: sum, axes: 1", {rows}, h.dtype);
        break;
      default: {
        const Value all = d.op("map", "expr: \"select(index(1) == 0, 0, c)\", with: {c: " + d.use(count) + "}, dtype: i32, shape: [3, 2]", {fixed(3), fixed(2)}, "i32", true);
        const Value q = d.input({fixed(3), fixed(16)}, h.dtype);
        d.op("attention", "q: " + d.use(q) + ", k: " + d.use(h) + ", v: " + h.text + ", heads: 2, reach: " + d.use(all), q.shape, h.dtype);
      }
    }
  }
}

}  // namespace ccks::test
