// Places tensors: fixed offsets at the upper bounds, intermediates that are never in use together on top of each other.
#include <fmt/format.h>

#include <algorithm>
#include <numeric>

#include "codegen/plan_internal.hpp"

namespace ccks::codegen {
namespace {

using spec::TensorKind;

// A cache line pair of the CPU and two L2 lines of the GPU; what cudaMalloc guarantees for a base address.
constexpr std::uint64_t kTensorAlignment = 256;
// Larger than any machine's memory: sizes beyond it come from symbols without sensible bounds.
constexpr std::int64_t kMaxTensorBytes = std::int64_t{1} << 46;

std::uint64_t aligned(std::uint64_t bytes) {
  return (bytes + kTensorAlignment - 1) / kTensorAlignment * kTensorAlignment;
}

Status measure(Planner& planner, TensorIndex id) {
  const spec::Tensor& tensor = planner.program.tensors[id];
  const std::int64_t size = wire::dtype_bytes(tensor.dtype);
  const std::int64_t elements = planner.upper_bound(product(tensor.shape));
  if (elements > kMaxTensorBytes / size)
    return {ErrorCode::unsupported,
            fmt::format("tensor '{}' may need more than 64 TiB; bound its symbols", tensor.name)};
  planner.memory.placements[id].bytes = static_cast<std::uint64_t>(std::max<std::int64_t>(0, elements) * size);
  return {};
}

TensorIndex root_of(const Planner& planner, TensorIndex id) {
  const TensorIndex alias = planner.program.tensors[id].alias_of;
  return alias == spec::kNone ? id : alias;
}

void find_live_ranges(Planner& planner) {
  MemoryPlan& m = planner.memory;
  m.users.resize(planner.program.tensors.size());
  for (OpIndex op = 0; op < planner.ops.size(); ++op)
    for (const LoweredOperand& o : planner.ops[op].operands) {
      auto& users = m.users[o.root];
      if (users.empty() || users.back() != op) users.push_back(op);
    }
  for (TensorIndex id = 0; id < m.users.size(); ++id) {
    const TensorIndex root = root_of(planner, id);
    m.live[id].root = root;
    if (m.users[root].empty()) continue;
    m.live[id].first = m.users[root].front();
    m.live[id].last = m.users[root].back();
    m.placements[id].used = true;
  }
}

/// Reports are read by guards and by the host at any time. Tiles of counted rows may be signalled without having waited for anything, and then somebody reads
/// what lies there, which nobody else must be writing. The space of both is theirs alone.
std::vector<bool> tensors_alone(const Planner& planner) {
  std::vector<bool> alone(planner.program.tensors.size(), false);
  for (const spec::Report& r : planner.program.reports) alone[r.tensor] = true;
  for (const LoweredOp& op : planner.ops)
    for (const LoweredOperand& o : op.operands)
      if (o.write && op.counted_rank != 0) alone[o.root] = true;
  return alone;
}

std::uint64_t take(std::uint64_t& space, std::uint64_t bytes) {
  const std::uint64_t offset = space;
  space += aligned(std::max<std::uint64_t>(bytes, 1));
  return offset;
}

bool may_share(const Planner& planner, const std::vector<bool>& alone, TensorIndex id) {
  const bool owner = planner.program.tensors[id].alias_of == spec::kNone;
  return owner && planner.memory.placements[id].used &&
         planner.program.tensors[id].kind == TensorKind::intermediate && !alone[id];
}

/// Who takes over a space waits for all workers that used it. Chains of small tiles that stay on their workers would have no
/// other event: a GPU shares only what is not small beside its L2.
bool shares_memory(const Planner& planner, const std::vector<bool>& alone) {
  if (!planner.options.reuse_memory || planner.options.device != "cuda") return planner.options.reuse_memory;
  std::uint64_t bytes = 0;
  for (TensorIndex id = 0; id < alone.size(); ++id)
    if (may_share(planner, alone, id)) bytes += aligned(planner.memory.placements[id].bytes);
  return bytes > planner.options.reuse_from_bytes;
}

void place_fixed(Planner& planner, const std::vector<bool>& alone) {
  MemoryPlan& m = planner.memory;
  const bool shares = shares_memory(planner, alone);
  for (TensorIndex id = 0; id < m.placements.size(); ++id) {
    Placement& p = m.placements[id];
    const spec::Tensor& tensor = planner.program.tensors[id];
    if (tensor.alias_of != spec::kNone) continue;
    if (tensor.kind == TensorKind::weight) {
      p.space = wire::Space::weights;
      p.offset = take(m.weight_bytes, p.bytes);
    } else if (tensor.kind == TensorKind::state) {
      p.space = wire::Space::state;
      p.offset = take(m.state_bytes, p.bytes);
    } else {
      const bool wanted = p.used || tensor.kind != TensorKind::intermediate;
      if (wanted) m.unplanned_arena_bytes += aligned(std::max<std::uint64_t>(p.bytes, 1));
      p.shared = shares && may_share(planner, alone, id);
      if (wanted && !p.shared) p.offset = take(m.arena_bytes, p.bytes);
    }
  }
}

struct Taken {
  std::uint64_t offset, end;
};

/// The smallest gap between `taken` that holds `bytes`; behind all of them where none does.
std::uint64_t best_gap(std::vector<Taken>& taken, std::uint64_t base, std::uint64_t bytes) {
  std::sort(taken.begin(), taken.end(), [](const Taken& a, const Taken& b) { return a.offset < b.offset; });
  std::uint64_t best = UINT64_MAX, best_size = UINT64_MAX, at = base;
  for (const Taken& t : taken) {
    if (t.offset > at && t.offset - at >= bytes && t.offset - at < best_size) {
      best = at;
      best_size = t.offset - at;
    }
    at = std::max(at, t.end);
  }
  return best != UINT64_MAX ? best : at;
}

/// Largest first; each goes to the tightest gap left by those in use at the same time. Ranges are stretched by the
/// reuse distance, so that the next owner does not have to wait for ops that have only just run.
void place_shared(Planner& planner) {
  MemoryPlan& m = planner.memory;
  std::vector<TensorIndex> order;
  for (TensorIndex id = 0; id < m.placements.size(); ++id)
    if (m.placements[id].shared) order.push_back(id);
  std::stable_sort(order.begin(), order.end(),
                   [&](TensorIndex a, TensorIndex b) { return m.placements[a].bytes > m.placements[b].bytes; });
  const std::uint64_t base = m.arena_bytes, distance = planner.options.reuse_distance;
  std::vector<TensorIndex> placed;
  std::vector<Taken> taken;
  for (const TensorIndex id : order) {
    Placement& p = m.placements[id];
    taken.clear();
    for (const TensorIndex other : placed)
      if (m.live[other].first <= m.live[id].last + distance && m.live[id].first <= m.live[other].last + distance)
        taken.push_back({m.placements[other].offset,
                         m.placements[other].offset + aligned(std::max<std::uint64_t>(m.placements[other].bytes, 1))});
    const std::uint64_t bytes = aligned(std::max<std::uint64_t>(p.bytes, 1));
    p.offset = best_gap(taken, base, bytes);
    m.arena_bytes = std::max(m.arena_bytes, p.offset + bytes);
    placed.push_back(id);
  }
}

void place_aliases(Planner& planner) {
  for (TensorIndex id = 0; id < planner.memory.placements.size(); ++id) {
    const TensorIndex root = root_of(planner, id);
    if (root != id) planner.memory.placements[id] = planner.memory.placements[root];
  }
}

}  // namespace

Status plan_memory(Planner& planner) {
  MemoryPlan& m = planner.memory;
  m.placements.resize(planner.program.tensors.size());
  m.live.resize(planner.program.tensors.size());
  for (TensorIndex id = 0; id < m.placements.size(); ++id) CCKS_RETURN_IF_ERROR(measure(planner, id));
  find_live_ranges(planner);
  const std::vector<bool> alone = tensors_alone(planner);
  place_fixed(planner, alone);
  place_shared(planner);
  place_aliases(planner);
  return {};
}

}  // namespace ccks::codegen
