// The race oracle: says whether a plan misbehaves at given dims, by brute force and without any part of the checker.
//
// It runs the plan tile by tile on memory whose cells hold hashes of where their values came from, and compares
// outputs, states, inputs and reports with a run straight from the program's views. Beside that it closes the
// happens-before graph over all tiles and looks for two accesses of a cell that it does not order, for waits that are
// never met, and for anything outside its bounds. Cells are four bytes: programs for it use f32 and i32 only.
#pragma once

#include <stdexcept>

#include "tests/unit/codegen/check_oracle_ops.hpp"

namespace ccks::codegen::oracle {

/// One plan at one set of dims.
class Oracle {
 public:
  Oracle(const spec::Program& program, const PlanImage& original, std::span<const std::int64_t> dims)
      : p_(program),
        original_(original),
        dims_(dims.begin(), dims.end()),
        values_(evaluate(original)),
        expected_(run_program()) {}

  /// Empty where the plan behaves; else what goes wrong.
  std::string harm(const PlanImage& plan);

 private:
  struct Outcome {
    std::map<std::string, std::vector<Hash>> values;  // outputs, states, inputs, reports
  };
  struct Tile {
    std::size_t op;
    Index4 c;
  };
  struct Failure {
    std::string why;
  };

  std::vector<std::int64_t> evaluate(const PlanImage& plan) const;
  std::int64_t cells_of_tensor(const PlanImage& plan, const std::vector<std::int64_t>& v, std::size_t t) const {
    std::int64_t n = 1;
    for (std::size_t d = 0; d < plan.tensors[t].rank; ++d) n *= v[plan.tensors[t].shape[d]];
    return n;
  }
  bool watched(std::size_t t) const {
    return p_.tensors[t].kind != spec::TensorKind::intermediate && p_.tensors[t].alias_of == spec::kNone;
  }
  static Hash initial(const std::string& tensor, std::int64_t cell) {
    return mix(hash_text(tensor), static_cast<Hash>(cell) + 17);
  }
  Outcome run_program() const;
  const spec::Op& spec_op(const plan::OpDesc& d) const {
    for (const spec::Op& op : p_.ops)
      if (op.name == d.name) return op;
    throw Failure{"an op the program does not have"};
  }

  // One plan under test.
  Cells cells_of(const PlanImage& plan, std::uint32_t operand) const;
  std::int64_t space_cells(const PlanImage& plan, int space) const;
  void check_limits(const PlanImage& plan);
  void make_tiles(const PlanImage& plan);
  void order_tiles(const PlanImage& plan);
  void wait_edges(const PlanImage& plan, std::size_t tile, const plan::WaitDesc& w,
                  const std::vector<std::vector<std::size_t>>& senders);
  void check_forms(const PlanImage& plan);
  void check_flags(const PlanImage& plan);
  void races(const PlanImage& plan);
  void touch(std::size_t tile, int space, std::int64_t cell, bool write);
  Outcome run_plan(const PlanImage& plan);
  bool before(std::size_t a, std::size_t b) const { return reach_[b][a]; }
  std::vector<std::uint32_t> guards_of(const PlanImage& plan, const plan::OpDesc& d, const spec::Op& op) const;
  std::array<std::int64_t, 2> routed_rows(const plan::OpDesc& d, std::span<const Cells> operands, std::int64_t row_tile) const;
  bool missing(const PlanImage& plan, const Tile& tile) const;
  Range4 out_range(const plan::OpDesc& d, const spec::Op& op, std::span<const Cells> operands, std::size_t k,
                   const Index4& c) const;

  const spec::Program& p_;
  const PlanImage& original_;
  std::vector<std::int64_t> dims_, values_;
  Outcome expected_;

  std::vector<std::int64_t> v_;
  std::vector<Tile> tiles_;
  std::vector<std::vector<bool>> reach_;
  struct CellState {
    std::optional<std::size_t> writer;
    std::vector<std::size_t> readers;
  };
  std::array<std::vector<CellState>, 3> cells_;
};

inline std::vector<std::int64_t> Oracle::evaluate(const PlanImage& plan) const {
  std::vector<std::int64_t> v;
  for (const plan::DimNode& n : plan.dims) {
    const auto a = [&] { return v.at(n.a); };
    const auto b = [&] { return v.at(n.b); };
    const auto floor = [&] {
      if (b() == 0) throw Failure{"a division by zero"};
      std::int64_t q = a() / b();
      if (a() % b() != 0 && (a() < 0) != (b() < 0)) --q;
      return q;
    };
    switch (n.op) {
      case plan::DimOp::constant:
        v.push_back(n.value);
        break;
      case plan::DimOp::symbol:
        v.push_back(dims_.at(static_cast<std::size_t>(n.value)));
        break;
      case plan::DimOp::add:
        v.push_back(a() + b());
        break;
      case plan::DimOp::sub:
        v.push_back(a() - b());
        break;
      case plan::DimOp::mul:
        v.push_back(a() * b());
        break;
      case plan::DimOp::floordiv:
        v.push_back(floor());
        break;
      case plan::DimOp::floormod:
        v.push_back(a() - floor() * b());
        break;
      case plan::DimOp::ceildiv:
        v.push_back(floor() + (a() % b() != 0 ? 1 : 0));
        break;
      case plan::DimOp::min:
        v.push_back(std::min(a(), b()));
        break;
      case plan::DimOp::max:
        v.push_back(std::max(a(), b()));
        break;
    }
  }
  return v;
}

inline Oracle::Outcome Oracle::run_program() const {
  std::vector<std::int64_t> bases;
  std::int64_t next = 0;
  for (std::size_t t = 0; t < p_.tensors.size(); ++t) {
    bases.push_back(next);
    next += p_.tensors[t].alias_of == spec::kNone ? cells_of_tensor(original_, values_, t) : 0;
  }
  std::vector<Hash> memory(static_cast<std::size_t>(next), 3);
  for (std::size_t t = 0; t < p_.tensors.size(); ++t)
    if (watched(t) && p_.tensors[t].kind != spec::TensorKind::output)
      for (std::int64_t i = 0; i < cells_of_tensor(original_, values_, t); ++i)
        memory[static_cast<std::size_t>(bases[t] + i)] = initial(p_.tensors[t].name, i);
  Outcome out;
  for (std::size_t i = 0; i < original_.ops.size(); ++i) {
    const plan::OpDesc& d = original_.ops[i];
    const spec::Op& op = spec_op(d);
    std::vector<Cells> operands;
    for (std::size_t k = 0; k < op.inputs.size() + op.outputs.size(); ++k)
      operands.push_back(cells_of_view(p_, op, k, dims_, bases));
    Hash salt = salt_of(original_, d, values_);
    for (const std::uint32_t g : guards_of(original_, d, op)) {
      const plan::GuardDesc& guard = original_.guards[g];
      const std::uint32_t tensor = p_.reports[guard.report].tensor;
      salt = mix(mix(mix(salt, memory[static_cast<std::size_t>(bases[tensor])]), guard.compare),
                 static_cast<Hash>(guard.value * 1024));
    }
    std::vector<std::pair<std::int64_t, Hash>> writes;
    compute(
        op, operands, salt,
        [&](const Cells& c, const Index4& at) { return memory[static_cast<std::size_t>(c.at(at))]; },
        [&](std::size_t k, const Index4& o, Hash h) { writes.emplace_back(operands[k].at(o), h); });
    for (const auto& [cell, h] : writes) memory[static_cast<std::size_t>(cell)] = h;
    if (d.report != plan::kNone) {
      const Cells& c = operands[original_.reports[d.report].operand - d.operand_first];
      whole(c).each([&](const Index4& at) {
        out.values[original_.reports[d.report].name].push_back(memory[static_cast<std::size_t>(c.at(at))]);
      });
    }
  }
  for (std::size_t t = 0; t < p_.tensors.size(); ++t)
    if (watched(t))
      for (std::int64_t i = 0; i < cells_of_tensor(original_, values_, t); ++i)
        out.values[p_.tensors[t].name].push_back(memory[static_cast<std::size_t>(bases[t] + i)]);
  return out;
}

inline std::vector<std::uint32_t> Oracle::guards_of(const PlanImage& plan, const plan::OpDesc& d,
                                                    const spec::Op& op) const {
  std::vector<std::uint32_t> out;
  for (std::uint32_t g = d.guard_first; g < d.guard_first + d.guard_count; ++g) out.push_back(g);
  if (op.kind() == spec::OpKind::select) {
    const auto& v = &plan == &original_ ? values_ : v_;
    for (std::int64_t g = v.at(d.dims[0]); g < v.at(d.dims[0]) + v.at(d.dims[1]); ++g)
      out.push_back(static_cast<std::uint32_t>(g));
  }
  for (const std::uint32_t g : out)
    if (g >= plan.guards.size()) throw Failure{"a guard that does not exist"};
  return out;
}

inline std::int64_t Oracle::space_cells(const PlanImage& plan, int space) const {
  return static_cast<std::int64_t>((space == 0   ? plan.arena_bytes
                                    : space == 1 ? plan.weight_bytes
                                                 : plan.state_bytes) /
                                   4);
}

inline Cells Oracle::cells_of(const PlanImage& plan, std::uint32_t operand) const {
  const plan::OperandDesc& d = plan.operands.at(operand);
  Cells c;
  c.space = static_cast<int>(d.space);
  if (v_.at(d.offset) % 4 != 0 || wire::dtype_bytes(d.dtype) != 4) throw Failure{"a misaligned operand"};
  c.base = v_.at(d.offset) / 4;
  std::int64_t lo = c.base, hi = c.base;
  bool any = true;
  for (std::size_t a = 0; a < 4; ++a) {
    c.dim[a] = v_.at(d.dim[a]);
    c.stride[a] = v_.at(d.stride[a]);
    if (c.dim[a] < 0) throw Failure{"a negative extent"};
    any = any && c.dim[a] > 0;
    (c.stride[a] < 0 ? lo : hi) += (c.dim[a] - 1) * c.stride[a];
  }
  if (any && (lo < 0 || hi >= space_cells(plan, c.space))) throw Failure{"an operand outside of its space"};
  return c;
}

inline void Oracle::check_limits(const PlanImage& plan) {
  std::int64_t tiles = 0;
  for (const plan::OpDesc& d : plan.ops) {
    const std::int64_t n = v_.at(d.grid[0]) * v_.at(d.grid[1]) * v_.at(d.grid[2]) * v_.at(d.grid[3]);
    for (int a = 0; a < 4; ++a)
      if (v_.at(d.grid[a]) < 0 || v_.at(d.tile[a]) < 1) throw Failure{"a grid or tile without extent"};
    tiles += n;
  }
  if (tiles > 4000) throw Failure{"far too many tiles"};
  if (tiles > plan.max_tasks) throw Failure{"more tiles than tasks"};
  for (std::size_t r = 0; r < plan.reports.size(); ++r) {
    const plan::ReportDesc& d = plan.reports[r];
    if (std::uint64_t{d.offset} + d.max_bytes > plan.report_bytes || v_.at(d.elements) * 4 > d.max_bytes ||
        d.offset % 4)
      throw Failure{"a report outside of its area"};
    for (std::size_t q = 0; q < r; ++q)
      if (d.offset < plan.reports[q].offset + plan.reports[q].max_bytes &&
          plan.reports[q].offset < d.offset + d.max_bytes)
        throw Failure{"two reports in one place"};
  }
}

inline void Oracle::make_tiles(const PlanImage& plan) {
  tiles_.clear();
  for (std::size_t op = 0; op < plan.ops.size(); ++op) {
    const plan::OpDesc& d = plan.ops[op];
    Range4{{}, {v_[d.grid[0]], v_[d.grid[1]], v_[d.grid[2]], v_[d.grid[3]]}}.each([&](const Index4& c) {
      tiles_.push_back({op, c});
    });
  }
}

inline void Oracle::wait_edges(const PlanImage& plan, std::size_t tile, const plan::WaitDesc& w,
                               const std::vector<std::vector<std::size_t>>& senders) {
  const plan::SignalDesc& s = plan.signals.at(w.signal);
  std::array<std::int64_t, 2> lo{}, hi{};
  for (std::size_t i = 0; i < 2; ++i) {
    const plan::WaitAxisDesc& a = w.axis[i];
    const std::int64_t extent = v_.at(a.extent), block = v_.at(a.block);
    if (block < 1) throw Failure{"a wait without blocks"};
    const auto clip = [&](std::int64_t x) { return std::clamp<std::int64_t>(x, 0, std::max<std::int64_t>(0, extent)); };
    const bool moves = a.grid_axis >= 0;
    const std::int64_t base =
        moves ? tiles_[tile].c[static_cast<std::size_t>(a.grid_axis)] * v_.at(a.step) + v_.at(a.offset) : 0;
    const std::int64_t from = moves ? clip(base) : 0, to = moves ? clip(base + v_.at(a.length)) : extent;
    if (from >= to) return;
    lo[i] = from / block;
    hi[i] = (to + block - 1) / block;
  }
  for (std::int64_t i = lo[0]; i < hi[0]; ++i) {
    for (std::int64_t j = lo[1]; j < hi[1]; ++j) {
      const std::int64_t e = s.event_first + i * v_.at(w.axis[0].stride) + j * v_.at(w.axis[1].stride);
      if (e < 0 || e >= static_cast<std::int64_t>(senders.size()))
        throw Failure{"a wait for an event outside of the slot"};
      const auto& from = senders[static_cast<std::size_t>(e)];
      const std::int64_t total = v_.at(s.total);
      if (static_cast<std::int64_t>(from.size()) != total)
        throw Failure{"an event gets another number of signals than awaited"};
      for (const std::size_t sender : from) {
        if (sender >= tile) throw Failure{"a wait for a tile that is sent later"};  // in order on one worker: for ever
        for (std::size_t t = 0; t < reach_[tile].size(); ++t) reach_[tile][t] = reach_[tile][t] || reach_[sender][t];
        reach_[tile][sender] = true;
      }
    }
  }
}

inline void Oracle::order_tiles(const PlanImage& plan) {
  std::vector<std::vector<std::size_t>> senders(plan.event_count);
  for (std::size_t t = 0; t < tiles_.size(); ++t) {
    const plan::OpDesc& d = plan.ops[tiles_[t].op];
    for (std::uint32_t g = d.signal_first; g < d.signal_first + d.signal_count; ++g) {
      const plan::SignalDesc& s = plan.signals.at(g);
      std::int64_t e = s.event_first;
      for (std::size_t i = 0; i < 2; ++i)
        if (s.grid_axis[i] >= 0) e += tiles_[t].c[static_cast<std::size_t>(s.grid_axis[i])] * v_.at(s.stride[i]);
      if (e < 0 || e >= static_cast<std::int64_t>(plan.event_count))
        throw Failure{"a signal outside of the slot's events"};
      senders[static_cast<std::size_t>(e)].push_back(t);
    }
  }
  reach_.assign(tiles_.size(), std::vector<bool>(tiles_.size()));
  for (std::size_t t = 0; t < tiles_.size(); ++t) {
    const plan::OpDesc& d = plan.ops[tiles_[t].op];
    for (std::uint32_t w = d.wait_first; w < d.wait_first + d.wait_count; ++w)
      wait_edges(plan, t, plan.waits.at(w), senders);
    if (missing(plan, tiles_[t])) reach_[t].assign(tiles_.size(), false);
  }
}

/// Rows [first, end) of a row tile of experts for one way to route, made of where the counts lie: half of what is left to an expert, or none of it.
inline std::array<std::int64_t, 2> Oracle::routed_rows(const plan::OpDesc& d, std::span<const Cells> operands, std::int64_t row_tile) const {
  const std::int64_t rows = operands[d.input_count].dim[2], experts = operands[1].dim[1], height = v_[d.tile[2]];
  const Hash seed = mix(static_cast<Hash>(operands[3].base), static_cast<Hash>(operands[3].space));
  std::int64_t first = 0;
  for (std::int64_t e = 0; e < experts && first < rows; ++e) {
    const bool last = e + 1 == experts;
    const std::int64_t taken = last ? rows - first : (mix(seed, static_cast<Hash>(e)) & 3) == 0 ? 0 : (rows - first + 1) / 2;
    const std::int64_t tiles = (taken + height - 1) / height;
    if (row_tile < tiles) return {first + row_tile * height, first + std::min(taken, (row_tile + 1) * height)};
    row_tile -= tiles;
    first += taken;
  }
  return {rows, rows};
}
/// A tile that no expert has rows for: whoever counts signals for it, whenever.
inline bool Oracle::missing(const PlanImage& plan, const Tile& tile) const {
  const plan::OpDesc& d = plan.ops[tile.op];
  if (spec_op(d).kind() != spec::OpKind::expert_matmul) return false;
  std::vector<Cells> operands;
  for (std::uint32_t k = 0; k < std::uint32_t{d.input_count} + d.output_count; ++k) operands.push_back(cells_of(plan, d.operand_first + k));
  const auto [first, end] = routed_rows(d, operands, tile.c[2]);
  return first >= end;
}

/// Elements of output `k` that tile `c` stores.
inline Range4 Oracle::out_range(const plan::OpDesc& d, const spec::Op& op, std::span<const Cells> operands,
                                std::size_t k, const Index4& c) const {
  const Cells& out = operands[k];
  if (op.kind() == spec::OpKind::route || op.kind() == spec::OpKind::report) return whole(out);
  Range4 r;
  for (std::size_t a = 0; a < 4; ++a) {
    r.lo[a] = std::min(out.dim[a], c[a] * v_[d.tile[a]]);
    r.hi[a] = std::min(out.dim[a], (c[a] + 1) * v_[d.tile[a]]);
  }
  if (op.kind() == spec::OpKind::scatter) {
    const std::int64_t rows = std::min(out.dim[2], operands[0].dim[2]), first = std::min(rows, c[2] * v_[d.tile[2]]), end = std::min(rows, (c[2] + 1) * v_[d.tile[2]]);
    r.lo[2] = scattered(out.dim[2], end) + 1, r.hi[2] = scattered(out.dim[2], first) + 1;
  }
  if (op.kind() == spec::OpKind::topk) r.lo[3] = 0, r.hi[3] = out.dim[3];
  if (op.kind() == spec::OpKind::expert_matmul) {
    const auto [first, end] = routed_rows(d, operands, c[2]);
    r.lo[2] = std::min(out.dim[2], first), r.hi[2] = std::min(out.dim[2], end);
  }
  return r;
}

inline void Oracle::touch(std::size_t tile, int space, std::int64_t cell, bool write) {
  if (write && space == 1) throw Failure{"a weight is written"};
  CellState& s = cells_[static_cast<std::size_t>(space)].at(static_cast<std::size_t>(cell));
  if (s.writer && *s.writer != tile && !before(*s.writer, tile))
    throw Failure{"a write that nothing orders against another access"};
  if (!write) {
    if (s.readers.empty() || s.readers.back() != tile) s.readers.push_back(tile);
    return;
  }
  for (const std::size_t r : s.readers)
    if (r != tile && !before(r, tile)) throw Failure{"a read that nothing orders against a later write"};
  s.readers.clear();
  s.writer = tile;
}

inline void Oracle::races(const PlanImage& plan) {
  for (int s = 0; s < 3; ++s)
    cells_[static_cast<std::size_t>(s)].assign(static_cast<std::size_t>(space_cells(plan, s)), {});
  for (std::size_t t = 0; t < tiles_.size(); ++t) {
    const plan::OpDesc& d = plan.ops[tiles_[t].op];
    const spec::Op& op = spec_op(d);
    std::vector<Cells> operands;
    for (std::uint32_t k = 0; k < std::uint32_t{d.input_count} + d.output_count; ++k)
      operands.push_back(cells_of(plan, d.operand_first + k));
    for (const std::uint32_t g : guards_of(plan, d, op)) {
      if (plan.guards[g].offset % 4 != 0 || plan.guards[g].offset + 4 > plan.arena_bytes)
        throw Failure{"a guard outside of the arena"};
      touch(t, 0, static_cast<std::int64_t>(plan.guards[g].offset / 4), false);
    }
    for (std::size_t k = 0; k < op.inputs.size(); ++k) {
      if (operands[k].space == 1) continue;  // nobody writes weights
      const Range4 out = out_range(d, op, operands, op.inputs.size(), tiles_[t].c);
      if (out.lo[0] >= out.hi[0] || out.lo[1] >= out.hi[1] || out.lo[2] >= out.hi[2] || out.lo[3] >= out.hi[3])
        continue;
      // Windows grow with their element, so the first and the last one bound what the tile reads.
      const Cells& to = operands[op.inputs.size()];
      Range4 w = needs(op, operands, k, to, out.lo);
      const Range4 last = needs(op, operands, k, to, {out.hi[0] - 1, out.hi[1] - 1, out.hi[2] - 1, out.hi[3] - 1});
      for (std::size_t a = 0; a < 4; ++a) {
        w.lo[a] = std::min(w.lo[a], last.lo[a]);
        w.hi[a] = std::max(w.hi[a], last.hi[a]);
        if (w.hi[a] > operands[k].dim[a]) throw Failure{"a read outside of an operand"};
      }
      w.each([&](const Index4& i) { touch(t, operands[k].space, operands[k].at(i), false); });
    }
    for (std::size_t k = op.inputs.size(); k < operands.size(); ++k)
      out_range(d, op, operands, k, tiles_[t].c).each([&](const Index4& o) {
        touch(t, operands[k].space, operands[k].at(o), true);
      });
  }
}

inline Oracle::Outcome Oracle::run_plan(const PlanImage& plan) {
  std::array<std::vector<Hash>, 3> memory;
  for (int s = 0; s < 3; ++s)
    memory[static_cast<std::size_t>(s)].assign(static_cast<std::size_t>(space_cells(plan, s)), 5);
  const auto cell_of = [&](std::size_t t, std::int64_t i) -> Hash& {
    const plan::TensorDesc& d = plan.tensors[t];
    const auto at = static_cast<std::int64_t>(d.offset / 4) + i;
    auto& space = memory[static_cast<std::size_t>(d.space)];
    if (d.offset % 4 != 0 || at >= static_cast<std::int64_t>(space.size()) ||
        i * 4 >= static_cast<std::int64_t>(d.max_bytes))
      throw Failure{"a tensor outside of its space"};
    return space[static_cast<std::size_t>(at)];
  };
  for (std::size_t t = 0; t < p_.tensors.size(); ++t)
    if (watched(t) && p_.tensors[t].kind != spec::TensorKind::output)
      for (std::int64_t i = 0; i < cells_of_tensor(plan, v_, t); ++i) cell_of(t, i) = initial(p_.tensors[t].name, i);
  Outcome out;
  for (const plan::OpDesc& d : plan.ops) {
    const spec::Op& op = spec_op(d);
    std::vector<Cells> operands;
    for (std::uint32_t k = 0; k < std::uint32_t{d.input_count} + d.output_count; ++k)
      operands.push_back(cells_of(plan, d.operand_first + k));
    Hash salt = salt_of(plan, d, v_);
    for (const std::uint32_t g : guards_of(plan, d, op))
      salt = mix(mix(mix(salt, memory[0].at(plan.guards[g].offset / 4)), plan.guards[g].compare),
                 static_cast<Hash>(plan.guards[g].value * 1024));
    std::vector<std::vector<bool>> stored(operands.size());
    const auto linear = [&](std::size_t k, const Index4& o) {
      const Index4& e = operands[k].dim;
      return static_cast<std::size_t>(((o[0] * e[1] + o[1]) * e[2] + o[2]) * e[3] + o[3]);
    };
    for (std::size_t k = op.inputs.size(); k < operands.size(); ++k) {
      const Index4& e = operands[k].dim;
      stored[k].resize(static_cast<std::size_t>(e[0] * e[1] * e[2] * e[3]));
      for (const Tile& t : tiles_)
        if (&plan.ops[t.op] == &d)
          out_range(d, op, operands, k, t.c).each([&](const Index4& o) { stored[k][linear(k, o)] = true; });
    }
    std::vector<std::tuple<int, std::int64_t, Hash>> writes;
    compute(
        op, operands, salt,
        [&](const Cells& c, const Index4& at) {
          return memory[static_cast<std::size_t>(c.space)].at(static_cast<std::size_t>(c.at(at)));
        },
        [&](std::size_t k, const Index4& o, Hash h) {
          if (stored[k][linear(k, o)]) writes.emplace_back(operands[k].space, operands[k].at(o), h);
        });
    for (const auto& [space, cell, h] : writes)
      memory[static_cast<std::size_t>(space)].at(static_cast<std::size_t>(cell)) = h;
    if (d.report != plan::kNone) {
      const plan::ReportDesc& r = plan.reports.at(d.report);
      const Cells c = cells_of(plan, r.operand);
      whole(c).each([&](const Index4& at) {
        out.values[r.name].push_back(memory[static_cast<std::size_t>(c.space)].at(static_cast<std::size_t>(c.at(at))));
      });
    }
  }
  for (std::size_t t = 0; t < p_.tensors.size(); ++t)
    if (watched(t))
      for (std::int64_t i = 0; i < cells_of_tensor(plan, v_, t); ++i)
        out.values[p_.tensors[t].name].push_back(cell_of(t, i));
  return out;
}

/// What bodies rely on beyond reading and writing: rows and heads in one piece, row tiles for every way to route.
inline void Oracle::check_forms(const PlanImage& plan) {
  for (std::size_t i = 0; i < plan.ops.size(); ++i) {
    const plan::OpDesc& d = plan.ops[i];
    const spec::Op& op = spec_op(d);
    if (d.input_count != op.inputs.size() || d.output_count != op.outputs.size() ||
        static_cast<int>(d.kind) != static_cast<int>(op.kind()))
      throw Failure{"another op"};
    const Cells out = cells_of(plan, d.operand_first + d.input_count);
    const std::int64_t grid = v_.at(d.grid[3]), tile = v_.at(d.tile[3]);
    using K = spec::OpKind;
    const K kind = op.kind();
    if ((kind == K::softmax || kind == K::rmsnorm || kind == K::layernorm) && tile < out.dim[3])
      throw Failure{"a row in pieces"};
    std::int64_t heads = 0;
    if (const auto* a = std::get_if<spec::AttentionAttrs>(&op.attrs)) heads = a->heads;
    if (const auto* a = std::get_if<spec::RopeAttrs>(&op.attrs)) heads = a->heads;
    if (heads > 0 && grid > 1 && tile % (out.dim[3] / heads) != 0) throw Failure{"a head in pieces"};
    if (kind != K::expert_matmul) continue;
    const std::int64_t rows = out.dim[2], experts = cells_of(plan, d.operand_first + 1).dim[1],
                       height = v_.at(d.tile[2]);
    std::int64_t left = rows, tiles = 0;  // the worst routing: a row to each expert, the rest to one of them
    for (std::int64_t e = 0; e < experts && left > 0; ++e, --left) ++tiles;
    tiles += left / height;
    if (v_.at(d.grid[2]) < tiles) throw Failure{"too few row tiles"};
  }
}

/// Promises made to bodies by flags.
inline void Oracle::check_flags(const PlanImage& plan) {
  for (const plan::OpDesc& d : plan.ops) {
    for (std::uint32_t k = d.operand_first; k < d.operand_first + d.input_count + d.output_count; ++k) {
      const Cells c = cells_of(plan, k);
      std::int64_t next = 1;
      bool gapless = true, empty = false;
      for (std::size_t a = 4; a-- > 0; next *= c.dim[a]) {
        gapless = gapless && (c.dim[a] == 1 || c.stride[a] == next);
        empty = empty || c.dim[a] == 0;
      }
      if ((plan.operands[k].flags & wire::kOperandContiguous) && !gapless && !empty)
        throw Failure{"an operand called contiguous"};
      if (!(plan.operands[k].flags & wire::kOperandStreamed) || empty) continue;
      whole(c).each([&](const Index4& i) {
        if (cells_[static_cast<std::size_t>(c.space)].at(static_cast<std::size_t>(c.at(i))).writer)
          throw Failure{"an operand fetched before it is written"};
      });
    }
  }
}

inline std::string Oracle::harm(const PlanImage& plan) {
  try {
    v_ = evaluate(plan);
    check_limits(plan);
    check_forms(plan);
    make_tiles(plan);
    order_tiles(plan);
    races(plan);
    check_flags(plan);
    if (run_plan(plan).values != expected_.values) return "other values than the program's";
    return {};
  } catch (const Failure& failure) {
    return failure.why;
  } catch (const std::out_of_range&) {
    return "an index out of range";
  }
}

}  // namespace ccks::codegen::oracle
