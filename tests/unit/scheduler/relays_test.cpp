// Which tiles of a decode step run as steps of a relay, and that steps, records and events are enough to get the step right.
#include "scheduler/relays.hpp"

#include <algorithm>

#include "ccks/wire/op_shape.hpp"
#include "scheduler/overtaking.hpp"
#include "scheduler/tuning.hpp"
#include "tests/unit/scheduler/relay_play.hpp"

namespace ccks::scheduler {
namespace {

using test::RelayOptions;
using test::RelayPlay;
using test::RelayRig;
using test::u32;
using test::u64;

/// Of a Llama's step, as prepared to be run: relays found, frame made.
RelayRig loaded(const RelayOptions& options = {}, std::int64_t n = 1, std::int64_t pos = 5) {
  RelayRig rig(options);
  find_row_edges(rig.tables);
  find_relays(rig.tables);
  rig.load(n, pos);
  return rig;
}

/// Ops that have steps.
std::set<u32> relayed(const RelayRig& rig) {
  std::set<u32> ops;
  for (const wire::RelayStep& step : rig.all_steps()) ops.insert(step.op);
  return ops;
}
std::set<u32> ops_between(u32 first, u32 end) {
  std::set<u32> ops;
  for (u32 op = first; op < end; ++op) ops.insert(op);
  return ops;
}

TEST(Relays, AreOneRecordOfEachList) {
  for (const u32 workers : {8u, 132u}) {
    const RelayRig rig = loaded({.workers = workers});
    EXPECT_EQ(relayed(rig), ops_between(rig.op_of("layers.0.matmul.q"), rig.op_of("report.token")));
    const u32 logits = rig.op_of("matmul.logits");
    u32 tiles = 1;  // of the argmax; and of the logits, which nearly all lists share
    for (const wire::RelayStep& step : rig.all_steps()) tiles += step.op == logits ? 1 : 0;
    EXPECT_LE(tiles, workers + 1);
    EXPECT_GE(tiles + kMostBeside, workers + 1);
    for (const u32 op : ops_between(rig.op_of("layers.0.matmul.q"), rig.op_of("matmul.logits"))) tiles += rig.instance.op(op).tile_count;
    std::set<std::pair<u32, u32>> seen;
    for (const wire::RelayStep& step : rig.all_steps()) EXPECT_TRUE(seen.insert({step.op, step.tile}).second);
    if (workers == 8) EXPECT_EQ(seen.size(), tiles) << "a tile of each for every list: nothing is gained by other shares";
    EXPECT_EQ(rig.instance.relay_steps(), seen.size());
    for (u32 index = 0; index < rig.tables.list_count(); ++index) {
      u32 relays = 0;
      for (const wire::TileRecord& record : rig.list(index)) {
        const auto steps = rig.steps(record);
        relays += steps.empty() ? 0 : 1;
        EXPECT_LE(record.block_offset + record.block_bytes, rig.head().frame_bytes);
        EXPECT_FALSE(RelayRig::has_body(record) && steps.empty() && relayed(rig).contains(record.op)) << "a tile of op " << record.op << " beside its steps";
        if (steps.empty()) continue;
        EXPECT_EQ(record.flags, wire::kRecordBody);
        EXPECT_EQ(record.op, steps.front().op);
        const auto& relay = *reinterpret_cast<const wire::OpParams*>(rig.at(record.block_offset));
        EXPECT_GE(relay.dims[3], 1) << "without a stage under way no weights come";
        EXPECT_GT(relay.dims[7], relay.dims[3]) << "who waits leaves memory to those who are at their stages";
        EXPECT_TRUE(std::is_sorted(steps.begin(), steps.end(), [](const auto& a, const auto& b) { return a.op < b.op; }));
      }
      EXPECT_LE(relays, 1u) << "list " << index;
    }
    EXPECT_LE(rig.head().frame_bytes, rig.tables.layout.max_bytes);
  }
}

// A worker copies the block of what is first of an op, and takes it for all records of that op behind it.
TEST(Relays, RecordsOfAnOpBesideOneAnotherHaveOneBlock) {
  RelayOptions options{.text = test::llama_text("llama_batch"), .workers = 132};
  options.sizes["batch"] = 8, options.sizes["d"] = 2048, options.sizes["heads"] = 32, options.sizes["kv_heads"] = 8;  // rows that are normed apart, each of which the relay waits for
  options.text = test::replaced(options.text, "table: embedding, index: tokens, out: x}", "table: embedding, index: tokens, out: x0}\n  - {op: map, expr: \"1.0 * x0\", out: x}");
  RelayRig rig(options);
  find_row_edges(rig.tables);
  find_relays(rig.tables, 8);
  rig.load(1, 5);
  ASSERT_TRUE(rig.instance.relays());
  u32 several = 0;
  for (u32 index = 0; index < rig.tables.list_count(); ++index) {
    const auto records = rig.list(index);
    for (std::size_t i = 1; i < records.size(); ++i) {
      if (records[i].op != records[i - 1].op) continue;
      EXPECT_EQ(records[i].block_offset, records[i - 1].block_offset) << "list " << index << ", op " << records[i].op;
      EXPECT_EQ(records[i].block_bytes, records[i - 1].block_bytes);
      several += rig.steps(records[i]).empty() ? 0 : 1;
    }
  }
  EXPECT_GT(several, 0u) << "no relay waits for more than a record says";
}

// One worker alone waits for nothing but its turn.
TEST(Relays, NoRecordIsJoinedToOne) {
  RelayOptions options{.workers = 1};
  options.sizes["vocab"] = 256;
  const RelayRig rig = loaded(options);
  for (u32 index = 0; index < rig.tables.list_count(); ++index) {
    const auto records = rig.list(index);
    for (std::size_t i = 1; i < records.size(); ++i) {
      const bool beside = !rig.steps(records[i]).empty() || !rig.steps(records[i - 1]).empty();
      EXPECT_FALSE(beside && (records[i].flags & wire::kRecordJoined) != 0);
    }
  }
}

TEST(Relays, WaitForAllThatComesInFrontAndForNothingElse) {
  const RelayRig rig = loaded();
  std::set<u32> wanted = {rig.tables.turn_event};
  for (const char* name : {"arrived.zero", "rope.angles.0"}) {
    const u32 op = rig.op_of(name);
    const auto signals = std::span(rig.instance.signals() + rig.view.ops[op].signal_first, rig.view.ops[op].signal_count);
    const auto least = std::min_element(signals.begin(), signals.end(), [](const auto& a, const auto& b) { return a.event_count < b.event_count; });
    for (u32 i = 0; i < least->event_count; ++i) wanted.insert(least->event_first + i);
  }
  u32 relays = 0;
  for (u32 index = 0; index < rig.tables.list_count(); ++index) {
    std::set<u32> waits, added;  // of the list up to its relay
    for (const wire::TileRecord& record : rig.list(index)) {
      waits.insert(record.wait_event, record.wait_event + record.wait_count);
      if (!rig.steps(record).empty()) {
        ++relays;
        break;
      }
      added.insert(record.signal_event, record.signal_event + record.signal_count);
    }
    for (const u32 event : wanted) EXPECT_TRUE(waits.contains(event) || added.contains(event)) << "list " << index << ", event " << event;
    for (const u32 event : waits) EXPECT_TRUE(wanted.contains(event) || event < rig.instance.signals()[rig.view.ops[rig.op_of("layers.0.matmul.q")].signal_first].event_first);
  }
  EXPECT_EQ(relays, 8u);
}

// As a slot's runs follow one another; whoever goes on is drawn.
TEST(Relays, StepsGetThroughAndEventsAreSignalledAsOftenAsTheyAreWaitedFor) {
  for (const u32 workers : {8u, 132u}) {
    for (const std::int64_t pos : {0, 5, 300}) {
      RelayOptions options{.workers = workers};
      options.sizes["vocab"] = 8192;  // more signals than a record has
      RelayRig rig = loaded(options, 1, pos);
      for (u32 run = 0; run < 3; ++run) {
        RelayPlay play(rig, run);
        EXPECT_TRUE(play.go()) << "stuck";
        EXPECT_EQ(play.steps(), rig.instance.relay_steps());
        if (testing::Test::HasFailure()) return;
      }
      for (u32 s = 0; s < rig.view.signals.size(); ++s) {
        const wire::SignalParams& signal = rig.instance.signals()[s];
        for (u32 e = 0; e < signal.event_count; ++e)
          EXPECT_EQ(rig.events[signal.event_first + e], rig.instance.sends(s) ? 3 * signal.total : 0) << rig.view.ops[rig.view.signals[s].op].name;
      }
    }
  }
}

// However parts of a context are dealt out, also where one list has several of a head.
TEST(Relays, StepsGetThroughWhereverPartsOfAContextLie) {
  u32 several = 0;
  for (const u32 workers : {1u, 8u, 17u, 132u}) {
    for (const std::int64_t kv_heads : {1, 2, 8}) {
      RelayOptions options;
      options.workers = workers;
      options.sizes = {{"layers", 2}, {"d", 512}, {"heads", 8}, {"kv_heads", kv_heads}, {"ffn", 1024}, {"vocab", 1288}, {"context", 1536}};
      RelayRig rig = loaded(options);
      for (const std::int64_t pos : {128, 300, 1400}) {
        rig.rebuild(1, pos);
        EXPECT_TRUE(RelayPlay(rig, 1).go()) << workers << " workers, " << kv_heads << " heads of keys, position " << pos;
        for (u32 list = 0; list < rig.tables.list_count(); ++list) {
          std::map<u32, u32> parts;
          for (const wire::TileRecord& record : rig.list(list))
            for (const wire::RelayStep& step : rig.steps(record)) several += step.kind == static_cast<std::uint8_t>(wire::RelayKind::attention) && ++parts[step.op * 8 + step.kv_head] == 2 ? 1 : 0;
        }
      }
    }
  }
  EXPECT_GT(several, 0u) << "no list had two parts of a head";
}

TEST(Relays, NobodySignalsWhatOnlyStepsReadFromOneAnother) {
  const RelayRig rig = loaded();
  for (u32 s = 0; s < rig.view.signals.size(); ++s) {
    bool outside = false;
    for (const plan::WaitDesc& wait : rig.view.waits) {
      const u32 op = static_cast<u32>(std::find_if(rig.view.ops.begin(), rig.view.ops.end(),
                                                   [&](const plan::OpDesc& o) { return &wait >= &rig.view.waits[o.wait_first] && &wait < &rig.view.waits[o.wait_first] + o.wait_count; }) -
                                      rig.view.ops.begin());
      outside = outside || (wait.signal == s && !relayed(rig).contains(op));
    }
    if (relayed(rig).contains(rig.view.signals[s].op)) {
      EXPECT_EQ(rig.instance.sends(s), outside);
    }
  }
}

// ---- what is stored, and where ----------------------------------------------------------------------------------------------

TEST(Relays, StoreOnlyWhatIsReadElsewhere) {
  const RelayRig rig = loaded();
  for (const wire::RelayStep& step : rig.all_steps()) {
    const std::string name = rig.view.ops[step.op].name;
    const bool cache = name.ends_with(".k") || name.ends_with("v_cache"), logits = name == "matmul.logits", argmax = name == "argmax.next";
    EXPECT_EQ((step.flags & wire::kRelayMoves) != 0, cache) << name;
    EXPECT_EQ(step.store != 0 && !cache, logits || argmax) << name;
    EXPECT_EQ((step.flags & wire::kRelayFloats) != 0, logits) << name;
    EXPECT_EQ((step.flags & wire::kRelayRanks) != 0, logits) << name;
    EXPECT_EQ(step.words == 0, logits) << name;
  }
}

TEST(Relays, WordsLieBehindTheArenaEachOpsApart) {
  const RelayRig rig = loaded();
  const u64 arena = RelayRig::address(rig.arena), plan = (rig.view.arena_bytes + 255) / 256 * 256;
  std::map<u64, u64> taken;
  for (const RelayPlace& place : rig.tables.relay_places) {
    if (place.row != 0) taken.emplace(place.row, place.row + place.elements * 4);
    if (place.parts != 0) taken.emplace(place.parts, place.parts + (place.part_words + (place.row == 0 ? 1 : 0)) * 8);  // a pick's index
  }
  u64 end = plan;
  for (const auto& [first, behind] : taken) {
    EXPECT_GE(first, end);
    EXPECT_EQ(first % 256, 0u);
    end = behind;
  }
  EXPECT_LE(end, rig.tables.arena_bytes);
  for (const RowEdge& edge : rig.tables.rows) EXPECT_FALSE(taken.contains(edge.copy));
  for (const wire::RelayStep& step : rig.all_steps()) {
    if (step.words == 0) continue;
    const RelayPlace& place = rig.tables.relay_places[step.op];
    if (step.kind == static_cast<std::uint8_t>(wire::RelayKind::pick)) {
      EXPECT_EQ(step.words, arena + place.parts + place.part_words * 8) << "behind all ranks";
      continue;
    }
    EXPECT_GE(step.words, arena + place.row);
    EXPECT_LT(step.words, arena + place.row + place.elements * 4);
  }
}

// ---- the row of an argmax ---------------------------------------------------------------------------------------------------

const char* const kReport = "  - {op: report, x: next, name: token}";

TEST(Relays, ListsShareTheRowOfAnArgmaxEvenly) {
  for (const u32 workers : {1u, 8u, 132u}) {
    RelayOptions options{.workers = workers};
    options.sizes["vocab"] = workers == 1 ? 66'000 : 8200;  // more than a step has; 2,050 units
    const RelayRig rig = loaded(options);
    const u32 logits = rig.op_of("matmul.logits"), columns = static_cast<u32>(options.sizes["vocab"]);
    std::map<u32, u32> runs;  // by the first column: columns
    std::set<u64> places;
    u32 least = columns, most = 0, others = 0;
    for (u32 list = 0; list < rig.tables.list_count(); ++list) {
      u32 all = 0;
      for (const wire::TileRecord& record : rig.list(list)) {
        for (const wire::RelayStep& step : rig.steps(record)) {
          if (step.op != logits) continue;
          EXPECT_TRUE(runs.emplace(step.second, step.n).second && places.insert(step.beside).second);
          all += step.n;
        }
      }
      if (all == 0) {
        ++others;
        continue;
      }
      least = std::min(least, all), most = std::max(most, all);
    }
    EXPECT_LE(others, kMostBeside);
    EXPECT_LE(most - least, static_cast<u32>(2 * wire::kRelayColumns)) << "what a wide stage has";
    u32 at = 0;
    for (const auto& [first, count] : runs) {
      EXPECT_EQ(first, at);
      at = first + count;
    }
    EXPECT_EQ(at, columns);
    for (const wire::RelayStep& step : rig.all_steps()) {
      if (step.kind == static_cast<std::uint8_t>(wire::RelayKind::pick)) EXPECT_EQ(step.n, runs.size() * wire::relay_rank_pairs(1));
    }
  }
}

/// Columns of `op`, of each run, that each list has; each column of the op once.
std::vector<u32> columns_of_lists(const RelayRig& rig, u32 op, u32 columns) {
  std::vector<u32> out(rig.tables.list_count(), 0);
  std::map<u64, u32> runs;  // by where the first column lies
  u64 first = ~u64{0};
  for (u32 list = 0; list < rig.tables.list_count(); ++list) {
    for (const wire::TileRecord& record : rig.list(list)) {
      for (const wire::RelayStep& step : rig.steps(record)) {
        if (step.op != op) continue;
        EXPECT_TRUE(runs.emplace(step.columns / step.column_bytes, step.run).second);
        EXPECT_EQ((step.flags & wire::kRelayWide) != 0, wire::relay_is_wide(step.k, step.n));
        first = std::min(first, step.columns / step.column_bytes);
        out[list] += step.run;
      }
    }
  }
  u64 at = first;
  for (const auto& [begin, count] : runs) {
    EXPECT_EQ(begin, at);
    at = begin + count;
  }
  EXPECT_EQ(at - first, columns);
  return out;
}

// 16 tiles of 48 columns for 20 workers, and 36 pairs of 64: shares of as many columns as a stage has come out more even. Rows that end in half a stage or less are of wide stages.
TEST(Relays, ListsShareColumnsWhereTilesDoNotComeOutEven) {
  RelayOptions options{.workers = 20};
  options.sizes = {{"layers", 1}, {"d", 768}, {"heads", 12}, {"kv_heads", 4}, {"ffn", 2304}, {"vocab", 1024}, {"context", 512}};
  RelayRig rig = loaded(options);
  struct Expected {
    const char* op;
    u32 columns, most, least;  // of a run, of a list
  };
  for (const auto& [name, columns, most, least] : {Expected{"layers.0.matmul.x", 768, 40, 32}, Expected{"layers.0.matmul.x@1", 768, 40, 32}, Expected{"layers.0.matmul.u", 2304, 116, 112}}) {
    std::vector<u32> of_lists = columns_of_lists(rig, rig.op_of(name), columns);
    std::erase(of_lists, 0u);
    EXPECT_EQ(of_lists.size(), 20u) << name;
    EXPECT_EQ(*std::max_element(of_lists.begin(), of_lists.end()), most) << name;
    EXPECT_GE(*std::min_element(of_lists.begin(), of_lists.end()), least) << name;
  }
  EXPECT_TRUE(RelayPlay(rig, 1).go());
}

// Heads are 768 stages, in tiles of 32 and 16, for 19 workers: of shares they have 40 each, in steps that end with a head. Who has two steps of the same row keeps it.
TEST(Relays, ListsShareHeadsWhereTilesDoNotComeOutEven) {
  RelayOptions options{.workers = 19};
  options.sizes = {{"layers", 1}, {"d", 2048}, {"heads", 16}, {"kv_heads", 4}, {"ffn", 512}, {"vocab", 256}, {"context", 512}};
  RelayRig rig = loaded(options);
  const u32 behind = rig.op_of("layers.0.attention.s");
  std::map<u32, u32> stages;
  u32 kept = 0;
  for (u32 list = 0; list < rig.tables.list_count(); ++list) {
    for (const wire::TileRecord& record : rig.list(list)) {
      u64 row = 0;
      for (const wire::RelayStep& step : rig.steps(record)) {
        const bool product = step.kind == static_cast<std::uint8_t>(wire::RelayKind::product);
        if (product) EXPECT_EQ(step.part, row == step.row ? 1 : 0);
        row = product ? step.row : 0;
        if (step.op < behind) stages[list] += wire::relay_stages(step.k, step.n);
        if (step.op < behind) kept += step.part;
      }
    }
  }
  EXPECT_EQ(stages.size(), 19u);
  for (const auto& [list, count] : stages) {
    EXPECT_GE(count, 39u) << list;
    EXPECT_LE(count, 42u) << list;
  }
  EXPECT_GE(kept, 12u);
  EXPECT_TRUE(RelayPlay(rig, 1).go());
}

// The list that finds the token has it before any event says so.
TEST(Relays, WhoPicksReportsWithoutAWait) {
  RelayOptions options{.workers = 132};
  options.sizes["vocab"] = 128 * 1024;  // so that the argmax has tiles on most workers
  const RelayRig rig = loaded(options);
  EXPECT_GT(rig.instance.op(rig.op_of("argmax.next")).tile_count, 1u);
  u32 reports = 0;
  for (u32 list = 0; list < rig.tables.list_count(); ++list) {
    bool picks = false;
    for (const wire::TileRecord& record : rig.list(list)) {
      for (const wire::RelayStep& step : rig.steps(record)) picks = picks || step.kind == static_cast<std::uint8_t>(wire::RelayKind::pick);
      if (record.op != rig.op_of("report.token")) continue;
      ++reports;
      EXPECT_TRUE(picks);
      EXPECT_EQ(record.wait_count, 0);
    }
  }
  EXPECT_EQ(reports, 1u);
}

// What may run before its turn is not held up by the relay in front, nor is a worker that the next run's beginning needs by what comes behind.
TEST(Relays, WhatLiesBetweenTwoHasWorkersOfItsOwn) {
  const RelayRig rig = loaded({.workers = 132});
  std::map<std::string, std::set<u32>> lists;
  std::set<u32> makers, others;
  for (u32 list = 0; list < rig.tables.list_count(); ++list) {
    for (const wire::TileRecord& record : rig.list(list)) {
      const auto steps = rig.steps(record);
      if (steps.empty()) lists[rig.view.ops[record.op].name].insert(list);
      for (const wire::RelayStep& step : steps) (step.kind == static_cast<std::uint8_t>(wire::RelayKind::pick) ? others : makers).insert(list);
    }
  }
  EXPECT_EQ(lists["rope.angles.0"], std::set<u32>{131});
  EXPECT_EQ(lists["rope.angles.0.pairs"], std::set<u32>{131});
  EXPECT_EQ(lists["arrived.zero"], std::set<u32>{131});
  EXPECT_EQ(lists["report.token"], std::set<u32>{130});
  EXPECT_EQ(others, std::set<u32>{130});
  EXPECT_EQ(makers, ops_between(0, 130)) << "nobody is without";
}

// ---- the row that a run begins with -----------------------------------------------------------------------------------------

TEST(Relays, TheFirstRowIsTheTables) {
  const RelayRig rig = loaded();
  const u32 gather = rig.op_of("gather.x");
  const u64 table = RelayRig::address(rig.weights) + rig.operand(gather, 0).offset;
  std::map<std::string, u32> readers;
  for (const wire::RelayStep& step : rig.all_steps()) {
    const bool row = (step.flags & wire::kRelayLookedUpRow) != 0, beside = (step.flags & wire::kRelayLookedUpBeside) != 0;
    if (row) EXPECT_EQ(step.row, table);
    if (beside) EXPECT_EQ(step.beside, table + step.tile * rig.instance.op(step.op).tile[3] * 2u);
    if (row || beside) ++readers[rig.view.ops[step.op].name];
  }
  const auto tiles = [&](const char* op) { return std::pair<const std::string, u32>{op, rig.instance.op(rig.op_of(op)).tile_count}; };
  EXPECT_EQ(readers, (std::map<std::string, u32>{tiles("layers.0.matmul.q"), tiles("layers.0.matmul.k"), tiles("layers.0.matmul.v_cache"), tiles("layers.0.matmul.x")}));
  for (u32 list = 0; list < rig.tables.list_count(); ++list) {
    for (const wire::TileRecord& record : rig.list(list)) EXPECT_NE(record.op, gather) << "nobody wants a copy";
  }
}

// A list that has none of the logits would never say what it has stored, so nobody takes the token by a word.
TEST(Relays, ATokenIsNoWordWhereListsHaveNoneOfItsRow) {
  for (const std::int64_t vocab : {256, 1024}) {
    RelayOptions options{.workers = 132};
    options.sizes["vocab"] = vocab;
    const RelayRig rig = loaded(options);
    const auto next = std::find_if(rig.view.tensors.begin(), rig.view.tensors.end(), [](const plan::TensorDesc& t) { return std::string(t.name) == "next"; });
    EXPECT_EQ(rig.instance.word_of(rig.tables, static_cast<u32>(next - rig.view.tensors.begin())) != 0, vocab == 1024);
    for (const wire::RelayStep& step : rig.all_steps()) {
      if (step.kind == static_cast<std::uint8_t>(wire::RelayKind::pick)) EXPECT_EQ(step.words != 0, vocab == 1024);
    }
  }
}

TEST(Relays, ATablesRowThatOthersReadIsCopied) {
  RelayOptions options;
  options.text = test::replaced(options.text, kReport, std::string("  - {op: map, expr: \"2.0 * x0\", out: doubled}\n") + kReport);
  options.text = test::replaced(options.text, "table: embedding, index: tokens, out: x}", "table: embedding, index: tokens, out: x0}\n  - {op: map, expr: \"1.0 * x0\", out: x}");
  RelayRig rig = loaded(options);
  ASSERT_TRUE(rig.instance.relays());
  for (const wire::RelayStep& step : rig.all_steps()) EXPECT_EQ(step.flags & (wire::kRelayLookedUpRow | wire::kRelayLookedUpBeside), 0);
  EXPECT_TRUE(RelayPlay(rig, 1).go());
}

// Who waits for tiles of the logits finds them signalled tile by tile, so they are dealt out as they are.
TEST(Relays, ARowThatOthersReadIsSharedByTilesAndItsArgmaxIsNoStep) {
  RelayOptions options{.workers = 132};
  options.text = test::replaced(options.text, kReport, std::string("  - {op: map, expr: \"2.0 * logits\", out: doubled}\n") + kReport);
  RelayRig rig = loaded(options);
  EXPECT_EQ(relayed(rig), ops_between(rig.op_of("layers.0.matmul.q"), rig.op_of("argmax.next")));
  for (const wire::RelayStep& step : rig.all_steps()) EXPECT_EQ(step.flags & wire::kRelayRanks, 0);
  EXPECT_TRUE(RelayPlay(rig, 1).go());
}

// A program whose logits no step can make leaves the last row where the op behind reads it, and says so by its event.
TEST(Relays, EndsWhereAnOpCannotBeAStep) {
  RelayOptions options;
  options.text = test::replaced(options.text, "b: lm_head.T, out: logits", "b: lm_head.T, epilogue: tanh(acc), out: logits");
  RelayRig rig = loaded(options);
  EXPECT_EQ(relayed(rig), ops_between(rig.op_of("layers.0.matmul.q"), rig.op_of("matmul.logits")));
  const u32 last = rig.op_of("layers.1.matmul.x@1");
  for (const wire::RelayStep& step : rig.all_steps()) EXPECT_EQ(step.store != 0 && (step.flags & wire::kRelayMoves) == 0, step.op == last) << step.op;
  EXPECT_TRUE(RelayPlay(rig, 1).go());
}

// ---- when there is none -----------------------------------------------------------------------------------------------------

TEST(Relays, SeveralRowsHaveNone) {
  const RelayRig rig = loaded({}, 5, 0);
  EXPECT_FALSE(rig.instance.relays());
  EXPECT_TRUE(rig.all_steps().empty());
}

TEST(Relays, FramesOfOneSlotHaveThemOrNot) {
  RelayRig rig = loaded({}, 5, 0);
  for (const std::int64_t n : {1, 5, 1, 1}) {
    rig.rebuild(n, 7);
    EXPECT_EQ(rig.instance.relays(), n == 1);
    EXPECT_TRUE(RelayPlay(rig, 3).go()) << "with bases as they have come to be";
  }
}

TEST(Relays, UnknownEpiloguesHaveNone) {
  RelayOptions options;
  options.text = test::replaced(options.text, "epilogue: acc + x", "epilogue: acc + 2 * x");
  EXPECT_FALSE(loaded(options).instance.relays());
  options.text = test::replaced(test::llama_text(), "epilogue: silu(acc)", "epilogue: tanh(acc)");
  RelayRig rig = loaded(options);
  EXPECT_EQ(relayed(rig), ops_between(rig.op_of("layers.0.matmul.x@1"), rig.op_of("layers.1.matmul.u"))) << "between two twins that no step can end";
  for (u32 index = 0; index < rig.tables.list_count(); ++index) {
    for (const wire::TileRecord& record : rig.list(index)) {
      const bool behind = record.op >= rig.op_of("layers.1.matmul.u");
      EXPECT_FALSE(behind && (record.flags & wire::kRecordEarly) != 0) << "overtakes events that say nothing of what lies in front of them";
    }
  }
  EXPECT_TRUE(RelayPlay(rig, 1).go());
}

TEST(Relays, RowsOfOtherLengthsHaveNone) {
  RelayOptions options;
  options.sizes["d"] = 640, options.sizes["head_dim"] = 64;
  EXPECT_FALSE(loaded(options).instance.relays()) << "no multiple of 256";
}

// A row that lanes cannot hold, a tile with more residuals than are fetched ahead, and a row for which scratch has no room: each would be a step if nobody looked.
TEST(Relays, StepsKeepToWhatWorkersTake) {
  const auto sizes = [](std::int64_t d, std::int64_t ffn) {
    return std::map<std::string, std::int64_t>{{"layers", 2}, {"d", d}, {"heads", 8}, {"kv_heads", 2}, {"head_dim", 64}, {"ffn", ffn}, {"vocab", 1024}, {"context", 512}};
  };
  RelayOptions few, long_rows, deep;
  few.workers = 2;
  few.sizes = sizes(512, 1024);
  long_rows.sizes = sizes(wire::kMostRelayNormed + wire::kRelayRow, 512);
  deep.sizes = sizes(512, wire::kMostRelayStepBytes / 2 + wire::kRelayRow);
  for (const RelayOptions& options : {RelayOptions{}, few, long_rows, deep}) {
    RelayRig rig = loaded(options);
    for (const wire::RelayStep& step : rig.all_steps()) {
      const bool product = step.kind == static_cast<std::uint8_t>(wire::RelayKind::product), plain = step.end == static_cast<std::uint8_t>(wire::RelayEnd::plain);
      EXPECT_LE(wire::relay_step_bytes(step, wire::kMarkedLanes / 32), wire::kMostRelayStepBytes);
      if (product && !plain) EXPECT_LE(step.n, wire::kMostRelayColumns);
      if (product && step.norm != 0) EXPECT_LE(step.k, static_cast<u32>(wire::kMostRelayNormed));
    }
  }
  EXPECT_FALSE(loaded().all_steps().empty());
}

TEST(Relays, FramesWithoutRoomHaveNone) {
  RelayRig rig = loaded();
  const u32 room = rig.tables.relay_steps;
  u32 with = 0;
  for (u32 steps = 0; steps <= room; ++steps) {
    rig.tables.relay_steps = steps;
    rig.rebuild(1, 5);
    with += rig.instance.relays() ? 1 : 0;
    EXPECT_LE(rig.instance.relay_steps(), steps);
  }
  EXPECT_TRUE(rig.instance.relays());
  EXPECT_LT(with, room / 2);
}

TEST(Relays, EnginesWithoutThemHaveNone) {
  RelayRig rig;
  rig.load();
  EXPECT_FALSE(rig.instance.relays());
}

// Products in a row, with state beside them or without.
std::string chain_text(bool state) {
  std::string text = "ccks: 1\nprogram: chain\ndtype: bf16\ntensors:\n  x: {shape: [1, 512], kind: input}\n  y: {shape: [1, 512], kind: output}\n  w: {shape: [512, 512], kind: weight}\n";
  if (state) text += "  kept: {shape: [1, 512], kind: state}\n";
  text += "ops:\n";
  const char* const names[] = {"x", "a", "b", "c", "d", "y"};
  for (int i = 0; i < 5; ++i) text += std::string("  - {op: matmul, a: ") + names[i] + ", b: w.T, out: " + names[i + 1] + "}\n";
  return text + (state ? "  - {op: matmul, a: d, b: w.T, out: kept}\n" : "");
}

// What a run is fed lies elsewhere from run to run, and only runs of one state feed one another.
TEST(Relays, NoStepReadsWhatMayBeFed) {
  for (const bool state : {false, true}) {
    RelayOptions options{.text = chain_text(state), .sizes = {}};
    RelayRig rig = loaded(options);
    EXPECT_EQ(relayed(rig), ops_between(state ? 1 : 0, state ? 6 : 5));
    for (const wire::RelayStep& step : rig.all_steps()) EXPECT_EQ((step.flags & wire::kRelayPlainRow) != 0, step.op == (state ? 1 : 0));
    EXPECT_TRUE(RelayPlay(rig, 1).go());
  }
}

}  // namespace
}  // namespace ccks::scheduler
