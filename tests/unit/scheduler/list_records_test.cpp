// Lists of records: workers that obey nothing but the records, in any order, never run a tile before what it reads is there,
// and always get through. With the waits of the tables as the judge.
#include "scheduler/list_records.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdlib>
#include <set>

#include "scheduler/instance.hpp"
#include "scheduler/tuning.hpp"
#include "tests/support/sanitized.hpp"
#include "tests/unit/scheduler/random_plan.hpp"

namespace ccks::scheduler {
namespace {

constexpr u32 kWorkers = 3;

// ThreadSanitizer takes 10 s for 50 and more than a minute for 300, of code without threads.
u32 seeds() { return ccks::test::short_sweeps() ? 50 : 300; }

struct Rig {
  RandomPlan plan;
  PlanTables tables;
  Instance instance;
  std::vector<std::int64_t> dims;
  std::vector<u32> events;  // as the records signal them
  std::mt19937 random;
  u32 epoch = 0, waits = 0, signals = 0;

  explicit Rig(u32 seed) : plan(seed), random(seed) {
    tables = make_plan_tables(plan.view, kWorkers, Spine::stretches, true).value();
    for (const plan::DimNode& node : plan.dims) dims.push_back(node.value);
    events.assign(plan.view.event_count, 0);
    instance.reserve(tables);
    rebuild();
  }

  void rebuild() {
    SlotMemory slot;
    slot.events = reinterpret_cast<std::uint64_t>(events.data());
    ASSERT_TRUE(instance.rebuild(tables, {}, dims, slot, 0, 0, epoch).ok());
  }
  const wire::RunFrame& head() const { return *reinterpret_cast<const wire::RunFrame*>(instance.frame().data()); }
  const wire::TileRecord& record(u32 list, u32 index) const {
    const auto* records = reinterpret_cast<const wire::TileRecord*>(instance.frame().data() + head().records);
    return records[instance.lists()[list].first + index];
  }
};

// One run of all lists; which worker goes next is drawn.
class ListRun {
 public:
  explicit ListRun(Rig& rig) : rig_(rig), added_(rig.events.size(), 0), next_(rig.tables.list_count(), 0) {}

  void go() {
    while (u32 open = ready()) {
      u32 pick = rig_.random() % open;
      for (u32 list = 0; list < next_.size(); ++list) {
        if (may_go(list) && pick-- == 0) {
          step(list);
          break;
        }
      }
    }
    for (u32 list = 0; list < next_.size(); ++list) EXPECT_EQ(next_[list], rig_.instance.lists()[list].count) << "stuck";
    for (u32 op = 0; op < rig_.tables.op_count(); ++op) {
      for (u32 tile = 0; tile < rig_.instance.op(op).tile_count; ++tile) EXPECT_EQ(ran_.count({op, tile}), 1u);
    }
    ++rig_.epoch;
  }

 private:
  bool may_go(u32 list) const {
    if (next_[list] == rig_.instance.lists()[list].count) return false;
    const wire::TileRecord& record = rig_.record(list, next_[list]);
    for (u32 i = 0; i < record.wait_count; ++i) {
      const u32 target = record.wait_from[i] + (rig_.epoch - rig_.head().epoch0) * record.wait_total[i];
      if (!wire::event_reached(rig_.events[record.wait_event[i]], target)) return false;
    }
    return true;
  }
  u32 ready() const {
    u32 open = 0;
    for (u32 list = 0; list < next_.size(); ++list) open += may_go(list);
    return open;
  }
  void step(u32 list) {
    const wire::TileRecord& record = rig_.record(list, next_[list]++);
    rig_.waits += record.wait_count;
    rig_.signals += record.signal_count;
    if ((record.flags & wire::kRecordBody) != 0) run_body(record);
    for (u32 i = 0; i < record.signal_count; ++i) ++rig_.events[record.signal_event[i]];
  }
  void run_body(const wire::TileRecord& record) {
    const wire::OpParams& op = rig_.instance.op(record.op);
    const wire::TileCoord coord = wire::tile_coord(op.grid, record.tile);
    for (u32 w = op.wait_first; w < op.wait_first + op.wait_count; ++w) {
      const wire::WaitParams& wait = rig_.instance.waits()[w];
      const wire::EventRect rect = wire::wait_rect(wait, coord);
      for (u32 i = 0; i < wire::rect_count(rect); ++i) {
        EXPECT_EQ(added_[wire::rect_event(wait, rect, i)], wait.total) << "op " << record.op << " tile " << record.tile;
      }
    }
    for (u32 s = op.signal_first; s < op.signal_first + op.signal_count; ++s) {
      ++added_[wire::signal_event(rig_.instance.signals()[s], coord)];
    }
    EXPECT_TRUE(ran_.insert({record.op, record.tile}).second) << "twice";
  }

  Rig& rig_;
  std::vector<u32> added_;  // to each event in this run, by the tables
  std::vector<u32> next_;   // per list
  std::set<std::pair<u32, u32>> ran_;
};

TEST(ListRecords, RunNoTileBeforeWhatItReadsIsThere) {
  u32 waits = 0, signals = 0;
  for (u32 seed = 0; seed < seeds(); ++seed) {
    SCOPED_TRACE(seed);
    Rig rig(seed);
    for (int i = 0; i < 5; ++i) {
      if (i == 3) rig.rebuild();
      ListRun(rig).go();
      if (testing::Test::HasFailure()) return;
    }
    waits += rig.waits;
    signals += rig.signals;
  }
  EXPECT_GT(waits, 1000u) << "nobody waits for anybody";
  EXPECT_GT(signals, 1000u);
}

TEST(ListRecords, AWorkerNeitherWaitsForItselfNorSignalsToNobody) {
  for (u32 seed = 0; seed < seeds(); ++seed) {
    Rig rig(seed);
    std::vector<bool> waited(rig.events.size(), false);
    for (u32 list = 0; list < rig.tables.list_count(); ++list) {
      std::set<u32> mine;
      for (u32 i = 0; i < rig.instance.lists()[list].count; ++i) {
        const wire::TileRecord& record = rig.record(list, i);
        for (u32 w = 0; w < record.wait_count; ++w) {
          EXPECT_TRUE(mine.insert(record.wait_event[w]).second) << "waits again, seed " << seed;
          waited[record.wait_event[w]] = true;
        }
      }
    }
    for (u32 op = 0; op < rig.tables.op_count(); ++op) {  // one signal an op
      const wire::SignalParams& signal = rig.instance.signals()[op];
      const auto begin = waited.begin() + signal.event_first;
      const bool anybody = std::find(begin, begin + signal.event_count, true) != begin + signal.event_count;
      for (u32 list = 0; list < rig.tables.list_count(); ++list) {
        for (u32 i = 0; i < rig.instance.lists()[list].count; ++i) {
          const wire::TileRecord& record = rig.record(list, i);
          if (record.op == op && (record.flags & wire::kRecordBody) != 0) {
            EXPECT_EQ(record.signal_count, anybody ? 1u : 0u) << "seed " << seed;
          }
        }
      }
    }
  }
}

TEST(ListRecords, OnlyWhatConcernsNobodyElseIsJoined) {
  u32 joined = 0, apart = 0, long_ones = 0;
  for (u32 seed = 0; seed < seeds(); ++seed) {
    Rig rig(seed);
    for (u32 list = 0; list < rig.tables.list_count(); ++list) {
      std::uint64_t strand_ns = 0;
      for (u32 i = 0; i < rig.instance.lists()[list].count; ++i) {
        const wire::TileRecord& record = rig.record(list, i);
        const bool joins = (record.flags & wire::kRecordJoined) != 0;
        joined += joins;
        apart += !joins;
        const auto plain = [](const wire::TileRecord& r) {
          return (r.flags & (wire::kRecordBody | wire::kRecordGuarded)) == wire::kRecordBody;
        };
        const wire::TileRecord* before = i > 0 ? &rig.record(list, i - 1) : nullptr;
        const bool may = before != nullptr && plain(*before) && before->signal_count == 0 &&
                         rig.instance.op(before->op).report < 0 && plain(record) && record.wait_count == 0 &&
                         strand_ns + rig.instance.ops()[record.op].tile_cost <= kStrandNs;
        long_ones += !joins && before != nullptr && strand_ns + rig.instance.ops()[record.op].tile_cost > kStrandNs;
        strand_ns = (joins ? strand_ns : 0) + rig.instance.ops()[record.op].tile_cost;
        EXPECT_EQ(joins, may) << "seed " << seed << " list " << list << " record " << i;
      }
    }
  }
  EXPECT_GT(joined, 100u);
  EXPECT_GT(long_ones, 20u);
  EXPECT_GT(apart, 100u);
}

/// The records of one stretch after the other, as `rig` has them, for ops with other flags.
std::vector<wire::TileRecord> records_with(const Rig& rig, const std::vector<wire::OpParams>& ops) {
  const auto* frame = rig.instance.frame().data();
  ListRecords made;
  made.reserve(rig.tables);
  made.begin(rig.tables, {ops.data(), reinterpret_cast<const wire::OperandParams*>(frame + rig.head().operands), rig.instance.waits(),
                          rig.instance.signals(), reinterpret_cast<const u32*>(frame + rig.head().bases)});
  std::vector<u32> next(rig.tables.list_count(), 0);
  for (u32 first = 0; first < next.size(); first += rig.tables.workers) {
    made.begin_stretch();
    for (u32 op = 0; op < ops.size(); ++op) {
      for (u32 list = first; list < first + rig.tables.workers; ++list) {
        for (u32 i = 0; i < rig.instance.lists()[list].count; ++i) {
          const wire::TileRecord& record = rig.record(list, i);
          if (record.op != op || (record.flags & wire::kRecordBody) == 0) continue;
          EXPECT_TRUE(made.add(list, {op, list - first, record.tile, 1}, rig.instance.ops()[op].tile_cost));
        }
      }
    }
  }
  std::vector<u32> counts(next.size(), 0);
  made.count(counts);
  for (u32 list = 1; list < next.size(); ++list) next[list] = next[list - 1] + counts[list - 1];
  std::vector<wire::TileRecord> out(next.back() + counts.back());
  made.place(out.data(), next);
  return out;
}

TEST(ListRecords, BodiesThatFetchWeightsBeginBeforeTheyWait) {
  u32 early = 0, late = 0;
  for (u32 seed = 0; seed < 25; ++seed) {
    Rig rig(seed);
    std::vector<wire::OpParams> ops;
    for (u32 op = 0; op < rig.tables.op_count(); ++op) {
      ops.push_back(rig.instance.op(op));
      ops.back().flags |= static_cast<std::uint8_t>((op % 2 != 0 ? wire::kOpEarly : 0) | (op % 4 == 1 ? wire::kOpStreams : 0));
    }
    for (const wire::TileRecord& record : records_with(rig, ops)) {
      const bool plain = (record.flags & (wire::kRecordBody | wire::kRecordGuarded)) == wire::kRecordBody;
      const bool begins = plain && record.wait_count > 0 && record.op % 4 == 3;
      EXPECT_EQ((record.flags & wire::kRecordEarly) != 0, begins) << "seed " << seed << " op " << record.op << " tile " << record.tile;
      early += begins;
      late += plain && record.op % 2 != 0 && !begins;
    }
  }
  EXPECT_GT(early, 20u);
  EXPECT_GT(late, 20u) << "those of the ring, and those that wait for nobody";
}

TEST(ListRecords, ListsThatDoNotFitAreMadeOfTasks) {
  Rig rig(1);
  rig.tables.record_capacity = 1;
  Instance small;
  small.reserve(rig.tables);
  ASSERT_TRUE(small.rebuild(rig.tables, {}, rig.dims, SlotMemory{}, 0, 0, 0).ok());
  const auto& head = *reinterpret_cast<const wire::RunFrame*>(small.frame().data());
  EXPECT_EQ(head.records, 0u);
  EXPECT_NE(rig.head().records, 0u);
  EXPECT_GT(small.tasks(), 0u);
}

}  // namespace
}  // namespace ccks::scheduler
