// What steps say is what the program says: played on the host they give the reference interpreter's numbers, from one position to the next.
#include "scheduler/relays.hpp"
#include "scheduler/slot.hpp"
#include "tests/support/sanitized.hpp"
#include "tests/unit/scheduler/relay_play.hpp"

namespace ccks::scheduler {
namespace {

using test::RelayOptions;
using test::RelayPlay;
using test::RelayRig;
using test::u32;
using test::u64;

constexpr std::uint64_t kSeed = 7;

/// A step's memory, filled with numbers, and what of it the ops in front of the relay leave.
class Numbers {
 public:
  explicit Numbers(RelayRig& rig) : rig_(rig) {
    for (spec::TensorId id = 0; id < rig.given.tensors.size(); ++id) {
      const spec::Tensor& tensor = rig.given.tensors[id];
      if (tensor.kind == spec::TensorKind::intermediate || tensor.kind == spec::TensorKind::output) continue;
      bound_[tensor.name] = spec::seeded_values(rig.given, id, rig.symbols, kSeed);
      if (tensor.kind == spec::TensorKind::state) fill_cache(tensor.name);
      put(tensor.name, bound_[tensor.name].values);
    }
  }

  /// At the position that the rig stands at.
  void lead_in() {
    std::vector<double> angles(64);
    for (u32 pair = 0; pair < 32; ++pair) {
      const double angle = static_cast<double>(rig_.symbols.back()) * std::pow(500000.0, -2.0 * pair / 64);
      angles[pair] = std::cos(angle), angles[32 + pair] = std::sin(angle);
    }
    put("rope.angles.0", angles);
  }
  /// What the reference says of this position; its caches are the next one's.
  void expect_same() {
    const spec::TensorMap want = spec::interpret(rig_.given, rig_.symbols, bound_).value();
    for (const auto& [name, tensor] : want) {
      const bool cache = name.find("_cache") != std::string::npos;
      if (name == "next") EXPECT_EQ(get(name, tensor.values.size()), tensor.values);
      if (name != "logits" && name != "y" && !cache) continue;
      const double most = spec::output_tolerance(rig_.given, find(name));
      EXPECT_LE(spec::max_relative_error(get(name, tensor.values.size()), tensor.values), most) << name;
      if (cache) bound_[name] = tensor;
    }
  }

 private:
  spec::TensorId find(const std::string& name) const {
    for (spec::TensorId id = 0; id < rig_.given.tensors.size(); ++id)
      if (rig_.given.tensors[id].name == name) return id;
    ADD_FAILURE() << name;
    return 0;
  }
  const plan::TensorDesc& place(const std::string& name) const {
    return *std::find_if(rig_.view.tensors.begin(), rig_.view.tensors.end(), [&](const plan::TensorDesc& t) { return t.name == name; });
  }
  std::byte* at(const plan::TensorDesc& tensor) const {
    RelayRig::Memory& memory = tensor.space == wire::Space::arena ? rig_.arena : tensor.space == wire::Space::weights ? rig_.weights : rig_.state;
    return reinterpret_cast<std::byte*>(memory.data()) + tensor.offset;
  }
  void put(const std::string& name, const std::vector<double>& values) const {
    const plan::TensorDesc& tensor = place(name);
    spec::pack_values(tensor.dtype, values, {at(tensor), values.size() * wire::dtype_bytes(tensor.dtype)});
  }
  std::vector<double> get(const std::string& name, std::size_t count) const {
    const plan::TensorDesc& tensor = place(name);
    std::vector<double> values(count);
    spec::unpack_values(tensor.dtype, {at(tensor), count * wire::dtype_bytes(tensor.dtype)}, values);
    return values;
  }
  /// As if there had been positions in front.
  void fill_cache(const std::string& name) {
    spec::DenseTensor& cache = bound_[name];
    for (std::size_t i = 0; i < cache.values.size(); ++i)
      cache.values[i] = spec::round_to(spec::Dtype::bf16, static_cast<double>(spec::seeded_number(kSeed, name, i) % 2001) / 1000 - 1);
  }

  RelayRig& rig_;
  spec::TensorMap bound_;
};

RelayRig loaded(const RelayOptions& options, std::int64_t pos) {
  RelayRig rig(options);
  find_relays(rig.tables);
  rig.load(1, pos);
  EXPECT_TRUE(rig.instance.relays());
  return rig;
}

TEST(RelayResults, AreTheReferences) {
  for (const u32 workers : {8u, 132u}) {
    RelayRig rig = loaded({.workers = workers}, 5);
    Numbers numbers(rig);
    numbers.lead_in();
    ASSERT_TRUE(RelayPlay(rig, 1).go());
    numbers.expect_same();
  }
}

// Rows by the experts that a route chooses: each list finds them for itself, and takes weights by that.
TEST(RelayResults, AreTheReferencesOfExperts) {
  struct Sizes {
    u32 workers, top, ffn;
    bool adds;  // x, beside which little is left of what experts make
    u32 rows = 1;
  };
  for (const Sizes& sizes : {Sizes{8, 3, 256, false}, Sizes{132, 3, 256, true}, Sizes{8, 2, 1280, false}, Sizes{8, 4, 192, false}, Sizes{8, 3, 256, false, 2}, Sizes{132, 3, 256, true, 8}, Sizes{3, 4, 192, false, 5}}) {
    const u32 workers = sizes.workers;
    if (ccks::test::short_sweeps() && (workers != 8 || sizes.ffn != 256)) continue;
    SCOPED_TRACE(testing::Message() << sizes.rows << " rows, " << workers << " workers, " << sizes.top << " experts of " << sizes.ffn);
    std::string text = test::llama_text("moe_layer");
    if (!sizes.adds) text = test::replaced(text, ", epilogue: x + acc, out: y", ", out: y");
    const RelayOptions options{.text = text, .sizes = {{"t", sizes.rows}, {"experts", 16}, {"top", sizes.top}, {"d", 512}, {"ffn", sizes.ffn}}, .workers = workers, .chain = false};
    RelayRig rig(options);
    find_relays(rig.tables, sizes.rows, true);
    rig.load(sizes.rows);
    ASSERT_TRUE(rig.instance.relays());
    std::set<u32> routes, ops;
    for (const wire::RelayStep& step : rig.all_steps()) {
      ops.insert(step.op);
      if (step.kind == static_cast<std::uint8_t>(wire::RelayKind::route)) routes.insert(step.tile);
    }
    EXPECT_EQ(routes.size(), workers) << "one a list";
    EXPECT_EQ(ops, (std::set{rig.op_of("matmul.logits"), rig.op_of("route.rt"), rig.op_of("expert_matmul.u"), rig.op_of("combine.y")}));
    Numbers numbers(rig);
    for (u32 seed = 1; seed <= 2; ++seed) {
      ASSERT_TRUE(RelayPlay(rig, seed).go());
      numbers.expect_same();
    }
  }
}

// Tiles of the sum that others wait for are of some rows each: whoever has their columns signals for all of them.
TEST(RelayResults, ExpertsSignalForTilesOfAllRows) {
  std::string text = test::replaced(test::llama_text("moe_layer"), ", epilogue: x + acc, out: y", ", epilogue: x + acc, out: s");
  text = test::replaced(text, "[1, 2048]", "[1, 24]");  // so few that each has tiles of its own
  text += "  - {op: map, expr: s * 1.0, out: y}\n";
  RelayRig rig({.text = text, .sizes = {{"t", 8}, {"experts", 16}, {"top", 2}, {"d", 512}, {"ffn", 64}}, .workers = 132, .chain = false});
  find_relays(rig.tables, 8, true);
  rig.load(8);
  ASSERT_TRUE(rig.instance.relays());
  const plan::OpDesc& sum = rig.view.ops[rig.op_of("combine.s")];
  ASSERT_GT(rig.dims[sum.grid[2]], 1) << "tiles of some rows";
  ASSERT_TRUE(RelayPlay(rig, 1).go());
  for (u32 s = sum.signal_first; s < sum.signal_first + sum.signal_count; ++s) {
    const wire::SignalParams& signal = rig.instance.signals()[s];
    for (u32 e = 0; e < signal.event_count && rig.instance.sends(s); ++e) EXPECT_EQ(rig.events[signal.event_first + e], signal.total);
  }
}

// A relay has one route at most, since whoever fills a ring is ahead of it.
TEST(RelayResults, HaveOneRouteAtMost) {
  std::string text = test::llama_text("moe_layer");
  std::string more = text.substr(text.find("  - {op: rmsnorm"));
  const auto of_second = [&](const std::string& what, const std::string& by) { more = test::replaced(more, what, by); };
  for (const char* name : {"out: h}", "x: h,", "a: h,", "out: logits", "logits: logits", "out: rt", "route: rt", "out: gate}", "* gate", "out: u}", "x: u,", "out: z}", "x: z,"}) {
    std::string other = name;
    other.insert(other.find_last_not_of(" },") + 1, "2");
    of_second(name, other);
  }
  of_second("{op: rmsnorm, x: x,", "{op: rmsnorm, x: y,");
  of_second("x + acc, out: y", "y + acc, out: also");
  text = test::replaced(text, "  y: {shape: [t, d], kind: output}", "  y: {shape: [t, d], kind: output}\n  also: {shape: [t, d], kind: output}") + more;
  RelayRig rig({.text = text, .sizes = {{"t", 1}, {"experts", 16}, {"top", 3}, {"d", 512}, {"ffn", 256}}, .chain = false});
  find_relays(rig.tables, 1, true);
  rig.load();
  std::set<u32> routes;
  for (const wire::RelayStep& step : rig.all_steps())
    if (step.kind == static_cast<std::uint8_t>(wire::RelayKind::route)) routes.insert(step.op);
  EXPECT_LE(routes.size(), 1u);
}

// Steps store neither what a route finds nor what experts make: where anybody else reads that there is no relay of it.
TEST(RelayResults, EndInFrontOfExpertsThatOthersReadOf) {
  for (const std::string& read : {"u", "z", "rt.weight"}) {
    SCOPED_TRACE(read);
    std::string text = test::llama_text("moe_layer");
    text = test::replaced(text, "  y: {shape: [t, d], kind: output}", "  y: {shape: [t, d], kind: output}\n  also: {shape: [" + std::string(read == "u" ? "t * top, ffn" : read == "z" ? "t * top, d" : "t, top") + "], dtype: f32, kind: output}");
    text += "  - {op: map, expr: " + read + " * 1.0, out: also}\n";
    RelayRig rig({.text = text, .sizes = {{"t", 1}, {"experts", 16}, {"top", 3}, {"d", 512}, {"ffn", 256}}, .chain = false});
    find_relays(rig.tables, 1, true);
    rig.load();
    EXPECT_FALSE(rig.instance.relays());
  }
}

// Rows of several sequences, all at one position: of as many products as one row has, whose steps are narrower.
TEST(RelayResults, AreTheReferencesOfSeveralRows) {
  for (const u32 rows : {2u, 3u, 4u, 8u}) {
    for (const u32 workers : {8u, 132u}) {
      if (ccks::test::short_sweeps() && (rows != 3 || workers != 8)) continue;
      SCOPED_TRACE(testing::Message() << rows << " rows, " << workers << " workers");
      RelayOptions options{.text = test::llama_text("llama_batch"), .workers = workers};
      options.sizes["batch"] = rows;
      RelayRig rig(options);
      find_relays(rig.tables, rows);
      rig.load(1, 5);
      ASSERT_TRUE(rig.instance.relays());
      Numbers numbers(rig);
      for (const std::int64_t pos : {5, 6, 300}) {
        if (pos != 5) rig.rebuild(1, pos);
        numbers.lead_in();
        ASSERT_TRUE(RelayPlay(rig, rows).go());
        numbers.expect_same();
      }
      std::size_t products = 0;
      std::set<u32> ops;
      for (const wire::RelayStep& step : rig.all_steps()) ops.insert(step.op);
      for (const u32 op : ops) products += rig.view.ops[op].kind == wire::OpCode::matmul ? 1 : 0;
      EXPECT_EQ(products, 2 * 6 + 1u) << "of two layers, and the logits";
    }
  }
}

// Of long rows there is a piece at a time in scratch, where all of eight would not fit.
TEST(RelayResults, AreTheReferencesOfLongRows) {
  for (const u32 rows : {4u, 8u}) {
    if (ccks::test::short_sweeps() && rows != 4) continue;
    RelayOptions options{.text = test::llama_text("llama_batch"), .workers = 132};
    options.sizes["batch"] = rows, options.sizes["ffn"] = 8448;
    RelayRig rig(options);
    find_relays(rig.tables, rows);
    rig.load(1, 5);
    Numbers numbers(rig);
    numbers.lead_in();
    ASSERT_TRUE(RelayPlay(rig, 1).go());
    numbers.expect_same();
    u32 pieces = 0;
    for (const wire::RelayStep& step : rig.all_steps()) {
      EXPECT_EQ(step.by_pieces != 0, step.k == 8448u && step.kind == static_cast<u32>(wire::RelayKind::product)) << rig.view.ops[step.op].name;
      pieces += step.by_pieces;
    }
    EXPECT_GT(pieces, 0u);
  }
}

// A step says that its row is still there only behind one that has had it whole: of `narrow` and `wide`, which multiply one row, a step of the first goes by pieces, one of the second has too many columns.
TEST(RelayResults, RowsThatGoByPiecesAreNotKept) {
  RelayOptions options;
  options.sizes.clear();
  options.text = R"(
ccks: 1
program: p
dtype: bf16
tensors:
  x: {shape: [4, 512], kind: input}
  w: {shape: [8448, 512], kind: weight}
  w_narrow: {shape: [64, 8448], kind: weight}
  w_wide: {shape: [8192, 8448], kind: weight}
  w_end: {shape: [512, 8192], kind: weight}
  narrow: {shape: [4, 64], kind: output}
  y: {shape: [4, 512], kind: output}
ops:
  - {op: matmul, a: x, b: w.T, out: h}
  - {op: matmul, a: h, b: w_narrow.T, out: narrow}
  - {op: matmul, a: h, b: w_wide.T, out: wide}
  - {op: matmul, a: wide, b: w_end.T, out: y}
)";
  RelayRig rig(options);
  find_relays(rig.tables, 4);
  rig.load();
  u32 pieces = 0;
  for (u32 list = 0; list < rig.tables.list_count(); ++list) {
    for (const wire::TileRecord& record : rig.list(list)) {
      const std::vector<wire::RelayStep> steps = rig.steps(record);
      for (std::size_t i = 0; i < steps.size(); ++i) {
        pieces += steps[i].by_pieces;
        if (steps[i].part == 0) continue;
        ASSERT_NE(i, 0u);
        EXPECT_EQ(steps[i].row, steps[i - 1].row);
        EXPECT_EQ(steps[i - 1].by_pieces, 0) << "list " << list << ", step " << i;
      }
    }
  }
  EXPECT_GT(pieces, 0u);
}

// Eight rows of so many elements are too many bytes for each tile to norm.
RelayOptions with_norms_apart() {
  RelayOptions options{.text = test::llama_text("llama_batch"), .workers = 132};
  options.sizes = {{"layers", 2}, {"d", 2048}, {"heads", 32}, {"kv_heads", 4}, {"ffn", 1024}, {"vocab", 1024}, {"context", 512}, {"batch", 8}};
  return options;
}

TEST(RelayResults, AreTheReferencesWhereNormsAreOpsOfTheirOwn) {
  RelayRig rig(with_norms_apart());
  find_relays(rig.tables, 8);
  rig.load(1, 5);
  ASSERT_TRUE(rig.instance.relays());
  Numbers numbers(rig);
  numbers.lead_in();
  ASSERT_TRUE(RelayPlay(rig, 1).go());
  numbers.expect_same();
  std::set<wire::OpCode> kinds;
  for (const wire::RelayStep& step : rig.all_steps()) kinds.insert(rig.view.ops[step.op].kind);
  EXPECT_EQ(std::count_if(rig.view.ops.begin(), rig.view.ops.end(), [](const plan::OpDesc& op) { return op.kind == wire::OpCode::rmsnorm; }), 5);
  EXPECT_EQ(kinds, (std::set{wire::OpCode::matmul, wire::OpCode::attention, wire::OpCode::argmax})) << "it goes on to the end";
}

// Eight rows of four kv heads: 32 first parts of contexts, which is all there is at position 5.
TEST(RelayResults, NoListHasTwoContextsWhereOthersHaveNone) {
  RelayRig rig(with_norms_apart());
  find_relays(rig.tables, 8);
  rig.load(1, 5);
  for (u32 list = 0; list < rig.tables.list_count(); ++list) {
    std::map<u32, u32> first_parts;  // by op
    for (const wire::TileRecord& record : rig.list(list)) {
      for (const wire::RelayStep& step : rig.steps(record))
        if (step.kind == static_cast<u32>(wire::RelayKind::attention) && step.part == 0) ++first_parts[step.op];
    }
    for (const auto& [op, count] : first_parts) EXPECT_EQ(count, 1u) << "list " << list << ", " << rig.view.ops[op].name;
  }
}

// Somebody outside reads what the last norm makes.
TEST(RelayResults, EndInFrontOfANormThatOthersRead) {
  RelayOptions options = with_norms_apart();
  options.text = test::replaced(options.text, "  - {op: argmax, x: logits, out: next}", "  - {op: argmax, x: logits, out: next}\n  - {op: map, expr: last * 2.0, out: twice}");
  options.text = test::replaced(options.text, "  next: {shape", "  twice: {shape: [batch, d], kind: output}\n  next: {shape");
  RelayRig rig(options);
  find_relays(rig.tables, 8);
  rig.load(1, 5);
  u32 last = 0;
  for (const wire::RelayStep& step : rig.all_steps()) last = std::max(last, step.op);
  EXPECT_EQ(std::string(rig.view.ops[last].name), "layers.1.matmul.x@1");
  Numbers numbers(rig);
  numbers.lead_in();
  EXPECT_TRUE(RelayPlay(rig, 1).go());
}

// Layers whose tensors share the arena, as those of large models do.
TEST(RelayResults, AreTheReferencesWhereMemoryIsReused) {
  for (const std::int64_t layers : {3, 4}) {
    RelayOptions options{.reuse_from_bytes = 0};
    options.sizes["layers"] = layers;
    options.sizes["vocab"] = 8192;  // tiles share out the argmax, and leave what they find where a row lay
    RelayRig rig = loaded(options, 300);
    Numbers numbers(rig);
    numbers.lead_in();
    ASSERT_TRUE(RelayPlay(rig, 2).go());
    numbers.expect_same();
  }
}

TEST(RelayResults, FollowThePositionInOneFrame) {
  RelayRig rig = loaded({}, 126);
  Numbers numbers(rig);
  const std::vector<wire::RelayStep> steps = rig.all_steps();
  for (const std::int64_t pos : {126, 127, 128, 129, 300}) {  // one part of the context, then two and three
    ASSERT_TRUE(pos == 126 || rig.update(1, pos));
    for (const FrameRange& range : rig.instance.take_changes()) EXPECT_LE(range.end, rig.head().records) << "more than ops, operands and blocks";
    EXPECT_EQ(std::memcmp(steps.data(), rig.all_steps().data(), steps.size() * sizeof(wire::RelayStep)), 0);
    numbers.lead_in();
    ASSERT_TRUE(RelayPlay(rig, static_cast<u32>(pos)).go());
    numbers.expect_same();
    if (testing::Test::HasFailure()) return;
  }
}

// A run takes its token from the run in front by a word, and waits for nothing else of it: its turn has not come when it ends. A run that a client gives the same token makes the same of it.
TEST(RelayResults, TakeTheTokenThatTheRunInFrontPicksByAWord) {
  const auto tensor_of = [](const RelayRig& rig, const std::string& name) {
    const auto found = std::find_if(rig.view.tensors.begin(), rig.view.tensors.end(), [&](const plan::TensorDesc& t) { return t.name == name; });
    return static_cast<u32>(found - rig.view.tensors.begin());
  };
  for (const u32 workers : {8u, 132u}) {
    RelayRig front = loaded({.workers = workers}, 5), behind = loaded({.workers = workers}, 6), alone = loaded({.workers = workers}, 6);
    Numbers of_front(front), of_behind(behind), of_alone(alone);
    for (Numbers* numbers : {&of_front, &of_behind, &of_alone}) numbers->lead_in();
    ASSERT_TRUE(RelayPlay(front, 1).go()) << "a run of the same slot before, whose word is not meant";
    const u32 tag = wire::value_tag(front.epoch);
    const u32 tokens = tensor_of(front, "tokens"), next = tensor_of(front, "next");
    const u64 picked = RelayRig::address(front.arena) + front.view.tensors[next].offset, word = front.instance.word_of(front.tables, next);
    ASSERT_NE(word, 0u);
    EXPECT_TRUE(behind.instance.feed(behind.tables, std::vector<Feed>{{tokens, picked, word, tag}}));
    behind.write();
    EXPECT_FALSE(RelayPlay(behind, 1).go(false)) << "before there is a token";
    --behind.epoch;
    behind.rebuild(1, 6);
    behind.events.assign(behind.events.size(), 0);
    EXPECT_TRUE(behind.instance.feed(behind.tables, std::vector<Feed>{{tokens, picked, word, tag}}));
    behind.write();
    ASSERT_TRUE(RelayPlay(front, 2).go());
    of_front.expect_same();
    const auto token = test::read_at<std::int32_t>(picked);
    EXPECT_EQ(test::read_at<u64>(word), wire::tagged_value(static_cast<u32>(token), tag));
    ASSERT_TRUE(RelayPlay(behind, 1).go(false));
    test::write_at<std::int32_t>(RelayRig::address(alone.arena) + alone.view.tensors[tokens].offset, token);
    ASSERT_TRUE(RelayPlay(alone, 3).go());
    const plan::TensorDesc& logits = front.view.tensors[tensor_of(front, "logits")];
    const auto* a = reinterpret_cast<const std::byte*>(behind.arena.data()) + logits.offset;
    const auto* b = reinterpret_cast<const std::byte*>(alone.arena.data()) + logits.offset;
    EXPECT_EQ(std::memcmp(a, b, 1024 * sizeof(float)), 0);
  }
}

// Nobody would ever leave the word.
TEST(RelayResults, OfARunThatFailedNobodyTakesTheToken) {
  RunSlot front, behind;
  EXPECT_FALSE(is_orphan(behind));
  behind.answered_by = &front;
  for (const RunState state : {RunState::queued, RunState::running, RunState::done}) {
    front.state.reset(static_cast<u32>(state));
    EXPECT_FALSE(is_orphan(behind));
  }
  front.state.reset(static_cast<u32>(RunState::failed));
  EXPECT_TRUE(is_orphan(behind));
}

// From run to run of a slot: fed or not, by a word or not.
TEST(RelayResults, WaitForTheirTurnWhereNoWordSaysWhichRow) {
  RelayRig rig = loaded({.workers = 132}, 5);
  Numbers numbers(rig);
  const auto found = std::find_if(rig.view.tensors.begin(), rig.view.tensors.end(), [](const plan::TensorDesc& t) { return std::string(t.name) == "tokens"; });
  const u32 tokens = static_cast<u32>(found - rig.view.tensors.begin());
  struct alignas(16) {
    std::int32_t token = 7;
    u64 word = wire::tagged_value(7, 11);
  } elsewhere;
  const u64 at = reinterpret_cast<u64>(&elsewhere.token), word = reinterpret_cast<u64>(&elsewhere.word);
  const std::vector<Feed> none, plain = {{tokens, at}}, by_word = {{tokens, at, word, 11}};
  numbers.lead_in();
  const auto feed = [&](const std::vector<Feed>& feeds) {
    const bool lists = rig.instance.feed(rig.tables, feeds);
    rig.write();
    return lists;
  };
  EXPECT_FALSE(feed(none));
  EXPECT_TRUE(RelayPlay(rig, 1).go());
  EXPECT_FALSE(feed(plain));
  EXPECT_TRUE(RelayPlay(rig, 2).go());
  EXPECT_TRUE(feed(by_word));
  EXPECT_TRUE(RelayPlay(rig, 3).go()) << "a turn that comes is not in the way";
  EXPECT_FALSE(feed(by_word));
  EXPECT_TRUE(feed(plain));
  EXPECT_TRUE(RelayPlay(rig, 4).go());
  EXPECT_TRUE(feed(by_word));
  EXPECT_TRUE(rig.update(1, 6));
  EXPECT_FALSE(feed(by_word)) << "the next position";
  EXPECT_TRUE(RelayPlay(rig, 5).go(false));
  rig.rebuild(1, 6);
  EXPECT_FALSE(feed(none));
  EXPECT_FALSE(RelayPlay(rig, 6).go(false)) << "not its turn";
}

// Another session's caches lie elsewhere; only the head of the frame says where.
TEST(RelayResults, AreOfTheRunsState) {
  RelayRig rig = loaded({}, 5);
  RelayRig::Memory other = RelayRig::of(rig.view.state_bytes);
  std::swap(rig.state, other);
  rig.instance.set_state(RelayRig::address(rig.state));
  rig.write();
  Numbers numbers(rig);
  numbers.lead_in();
  ASSERT_TRUE(RelayPlay(rig, 1).go());
  numbers.expect_same();
}

// A frame whose caches no longer end where the step writes is to be made anew, and then has no relay that reads them.
TEST(RelayResults, UpdatesThatMoveACacheAloneAreRefused) {
  RelayOptions options;
  options.text = test::replaced(options.text, "out: \"k_cache[pos:pos + n, :]\"", "out: \"k_cache[row:row + n, :]\"");
  options.text = test::replaced(options.text, "  pos: {range", "  row: {range: [0, context - 1], default: 0}\n  pos: {range");
  RelayRig rig = loaded(options, 5);
  EXPECT_TRUE(rig.update(1, 6)) << "both of them";
  rig.row = 3;
  EXPECT_FALSE(rig.update(1, 6));
  rig.rebuild(1, 6);
  for (const wire::RelayStep& step : rig.all_steps()) EXPECT_NE(step.kind, static_cast<std::uint8_t>(wire::RelayKind::attention));
}

}  // namespace
}  // namespace ccks::scheduler
