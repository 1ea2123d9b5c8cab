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
    const std::uint64_t sent = (info.tiles + info.chunk - 1) / info.chunk;
    tasks += sent;
    cost += std::uint64_t{info.tiles} * info.tile_cost;
    widest = std::max(widest, sent);
  }
  const std::uint64_t lists = std::min<std::uint64_t>(widest, tables.workers);
  return tasks >= kSpineTasks * lists && cost <= kSpineTaskNs * tasks;
}

void Instance::count_list_tasks(const PlanTables& tables) {
  std::fill(list_fill_.begin(), list_fill_.end(), 0);
  std::fill(list_cost_.begin(), list_cost_.end(), 0);
  dealer_.begin();
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
    stretches_[s] = {tables.spine != Spine::fitting || fits_lists(tables, s), 0, 0};
    has_tiles_ |= !stretches_[s].listed;
    for (const std::uint32_t op : tables.ops_of(tables.stretches[s])) {
      stretches_[s].tiles += ops_[op].tiles;
      ops_[op].stretch = stretches_[s].listed ? s : plan::kNone;
    }
  }
  count_list_tasks(tables);
  auto* lists = table<wire::ListParams>(head().lists);
  std::uint32_t total = 0;
  for (std::uint32_t list = 0; list < tables.list_count(); ++list) {
    lists[list] = {total, list_fill_[list]};
    StretchInstance& stretch = stretches_[list / tables.workers];
    if (list_fill_[list] > 0) ++stretch.lists;
    idle_workers_ |= stretch.listed && list_fill_[list] == 0;
    total += list_fill_[list];
    list_fill_[list] = lists[list].first;
  }
  if (total > tables.plan.max_tasks)
    return {ErrorCode::invalid_data, "the lists hold more tasks than the plan reserves"};
  write_list_tasks(tables);
  head().frame_bytes = head().list_tasks + total * static_cast<std::uint32_t>(sizeof(wire::Task));
  return {};
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
