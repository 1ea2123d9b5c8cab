// Instance: the lists of a frame.
#include <algorithm>
#include <cstring>

#include "scheduler/instance.hpp"
#include "scheduler/tuning.hpp"

namespace ccks::scheduler {
namespace {

std::uint32_t tasks_of(std::uint32_t tiles) {
  return (tiles + wire::kMaxTilesPerTask - 1) / wire::kMaxTilesPerTask;
}

}  // namespace

// The tasks a stretch would be sent as tile by tile, against the lists it would take, and how long they are.
bool Instance::fits_lists(const PlanTables& tables, std::uint32_t stretch) {
  std::uint64_t tasks = 0;
  std::uint64_t cost = 0;
  std::uint64_t widest = 0;
  for (const std::uint32_t op : tables.ops_of(tables.stretches[stretch])) {
    const OpInstance& info = ops_[op];
    if ((tables.plan.ops[op].flags & wire::kOpDynamic) != 0) return true;  // not held, so which tiles there are is found out by who has them
    const std::uint64_t sent = (info.tiles + info.chunk - 1) / info.chunk;
    tasks += sent;
    cost += std::uint64_t{info.tiles} * info.tile_cost;
    widest = std::max(widest, sent);
  }
  const std::uint64_t lists = std::min<std::uint64_t>(widest, tables.workers);
  const std::uint64_t longest = tables.record_capacity > 0 ? kSpineTaskNs * kGpuCostScale : kSpineTaskNs;
  return tasks >= kSpineTasks * lists && cost <= longest * tasks;
}

void Instance::count_list_tasks(const PlanTables& tables) {
  std::fill(list_fill_.begin(), list_fill_.end(), 0);
  std::fill(list_cost_.begin(), list_cost_.end(), 0);
  dealer_.begin(relays_.crew());
  for (std::uint32_t s = 0; s < tables.stretch_count(); ++s) {
    if (!stretches_[s].listed) continue;
    dealer_.deal(tables, ops_, s, [&](const DealtTiles& tiles) {
      const std::uint32_t list = s * tables.workers + tiles.worker;
      const OpInstance& op = ops_[tiles.op];
      list_fill_[list] += tasks_of(tiles.count);
      const std::uint64_t cost = list_cost_[list] + std::uint64_t{tiles.count} * op.tile_cost;
      list_cost_[list] = static_cast<std::uint32_t>(std::min<std::uint64_t>(cost, 0xffffffffu));
      if (op.reports && tiles.first == 0) report_list_[tables.op_report[tiles.op]] = list;
    });
  }
}

void Instance::write_list_tasks(const PlanTables& tables) {
  auto* tasks = table<wire::Task>(head().list_tasks);
  dealer_.begin();
  for (std::uint32_t s = 0; s < tables.stretch_count(); ++s) {
    if (!stretches_[s].listed) continue;
    dealer_.deal(tables, ops_, s, [&](const DealtTiles& tiles) {
      std::uint32_t& at = list_fill_[s * tables.workers + tiles.worker];
      for (std::uint32_t done = 0; done < tiles.count; done += wire::kMaxTilesPerTask) {
        wire::Task task;
        const std::uint32_t count = std::min(tiles.count - done, wire::kMaxTilesPerTask);
        task.tile = wire::Task::pack_tiles(tiles.first + done, count);
        task.op = static_cast<std::uint16_t>(tiles.op);
        tasks[at++] = task;
      }
    });
  }
}

Status Instance::fill_lists(const PlanTables& tables) {
  std::fill(report_list_.begin(), report_list_.end(), plan::kNone);
  has_tiles_ = tables.stretch_ops.size() < ops_.size();
  idle_workers_ = false;
  if (tables.stretch_count() == 0) return {};
  for (std::uint32_t s = 0; s < tables.stretch_count(); ++s) {
    stretches_[s] = {};
    stretches_[s].listed = tables.spine != Spine::fitting || fits_lists(tables, s);
    has_tiles_ |= !stretches_[s].listed;
    for (const std::uint32_t op : tables.ops_of(tables.stretches[s])) {
      stretches_[s].tiles += ops_[op].tiles;
      ops_[op].stretch = stretches_[s].listed ? s : plan::kNone;
    }
  }
  std::fill(signal_sent_.begin(), signal_sent_.end(), std::uint8_t{1});
  head().records = 0;
  relays_.decide(relay_source(tables), ops_);
  count_list_tasks(tables);
  if (tables.record_capacity > 0 && make_records(tables)) {
    std::fill(list_fill_.begin(), list_fill_.end(), 0);
    records_.count(list_fill_);
    head().records = tables.layout.records;
    const std::uint32_t end = head().records + number_lists(tables) * static_cast<std::uint32_t>(sizeof(wire::TileRecord));
    head().frame_bytes = relays() ? relays_.lay_out(end) : end;
    records_.place(table<wire::TileRecord>(head().records), list_fill_);
    if (relays()) relays_.write(relay_source(tables), bytes());
    for (std::size_t i = 0; i < signal_sent_.size(); ++i) signal_sent_[i] = records_.watched(static_cast<std::uint32_t>(i));
    return {};
  }
  relays_.clear();
  count_list_tasks(tables);
  const std::uint32_t total = number_lists(tables);
  if (total > tables.plan.max_tasks)
    return {ErrorCode::invalid_data, "the lists hold more tasks than the plan reserves"};
  write_list_tasks(tables);
  head().frame_bytes = head().list_tasks + total * static_cast<std::uint32_t>(sizeof(wire::Task));
  return {};
}

// From how many entries each list has to where it lies; list_fill_ then says where its next entry goes.
std::uint32_t Instance::number_lists(const PlanTables& tables) {
  auto* lists = table<wire::ListParams>(head().lists);
  std::uint32_t total = 0;
  filled_.clear();
  for (std::uint32_t list = 0; list < tables.list_count(); ++list) {
    lists[list] = {total, list_fill_[list]};
    StretchInstance& stretch = stretches_[list / tables.workers];
    if (list % tables.workers == 0) stretch.filled_first = static_cast<std::uint32_t>(filled_.size());
    if (list_fill_[list] > 0) {
      ++stretch.lists;
      filled_.push_back(list);
    }
    idle_workers_ |= stretch.listed && list_fill_[list] == 0;
    total += list_fill_[list];
    list_fill_[list] = lists[list].first;
  }
  return total;
}

bool Instance::make_records(const PlanTables& tables) {
  records_.begin(tables, {table<wire::OpParams>(head().ops), table<wire::OperandParams>(head().operands), waits(),
                          signals(), table<std::uint32_t>(head().bases)}, &relays_);
  for (std::uint32_t op = 0; op < tables.op_count(); ++op) {
    if (ops_[op].stretch == plan::kNone) records_.watch(op);
  }
  bool fit = true;
  dealer_.begin(relays_.crew());
  for (std::uint32_t s = 0; s < tables.stretch_count(); ++s) {
    if (!stretches_[s].listed) continue;
    records_.begin_stretch();
    dealer_.deal(tables, ops_, s, [&](const DealtTiles& tiles) {
      fit = fit && records_.add(s * tables.workers + tiles.worker, tiles, ops_[tiles.op].tile_cost);
    });
    fit = fit && records_.end_stretch();
  }
  return fit;
}

RelaySource Instance::relay_source(const PlanTables& tables) const {
  return {&tables, table<wire::OpParams>(head().ops), table<wire::OperandParams>(head().operands), signals(), head().arena, head().weights, place_};
}

std::uint64_t Instance::tasks() const {
  std::uint64_t out = 0;
  for (const OpInstance& op : ops_) {
    if (op.stretch == plan::kNone) out += (op.tiles + op.chunk - 1) / op.chunk;
  }
  for (std::uint32_t list = 0; list < head().list_count; ++list) out += lists()[list].count;
  return out;
}

}  // namespace ccks::scheduler
