// Plays the lists of a frame: workers that obey nothing but records and steps, in any order, each a step at a time. Steps do on the host what they say, from words and
// memory alone; a word that is not there yet keeps a step waiting, and one that is written twice is an error. A relay that looks its first row up takes no step before it knows which.
#pragma once

#include <algorithm>
#include <limits>
#include <optional>
#include <random>
#include <set>
#include <tuple>

#include "ccks/wire/event.hpp"
#include "ccks/wire/op_shape.hpp"
#include "ccks/worker/argmax_split.hpp"
#include "tests/unit/scheduler/relay_rig.hpp"

namespace ccks::scheduler::test {

inline float of_half(u32 bits) {
  const u32 word = bits << 16;
  float value;
  std::memcpy(&value, &word, sizeof(value));
  return value;
}
inline u32 half(float value) {
  std::uint16_t bits;
  const double given = value;
  spec::pack_values(wire::Dtype::bf16, {&given, 1}, {reinterpret_cast<std::byte*>(&bits), 2});
  return bits;
}
inline float rounded(float value) { return of_half(half(value)); }
template <class T>
T read_at(u64 address) {
  T value;
  std::memcpy(&value, reinterpret_cast<const void*>(address), sizeof(T));
  return value;
}
template <class T>
void write_at(u64 address, T value) {
  std::memcpy(reinterpret_cast<void*>(address), &value, sizeof(T));
}

class RelayPlay {
 public:
  RelayPlay(RelayRig& rig, u32 seed) : rig_(rig), random_(seed), tag_(wire::value_tag(rig.epoch)), record_(rig.tables.list_count(), 0), step_(record_.size(), 0), routed_(record_.size()) {}

  /// False: it is stuck. in_turn: the run in front has ended; otherwise nobody has said so.
  bool go(bool in_turn = true) {
    if (rig_.tables.chained() && in_turn) rig_.events[rig_.tables.turn_event] += rig_.tables.workers;  // what the run in front adds
    std::vector<u32> open;
    do {
      open.clear();
      for (u32 list = 0; list < record_.size(); ++list)
        if (may_go(list)) open.push_back(list);
      if (!open.empty()) go_on(open[random_() % open.size()]);
    } while (!open.empty() && !testing::Test::HasFailure());
    ++rig_.epoch;
    for (u32 list = 0; list < record_.size(); ++list)
      if (record_[list] != rig_.list(list).size()) return false;
    return true;
  }
  u32 steps() const { return static_cast<u32>(done_.size()); }

 private:
  using Step = wire::RelayStep;

  bool may_go(u32 list) const {
    const auto records = rig_.list(list);
    if (record_[list] == records.size()) return false;
    const wire::TileRecord& record = records[record_[list]];
    for (u32 i = 0; i < record.wait_count; ++i) {
      const u32 target = record.wait_from[i] + (rig_.epoch - rig_.head().epoch0) * record.wait_total[i];
      if (!wire::event_reached(rig_.events[record.wait_event[i]], target)) return false;
    }
    const auto steps = rig_.steps(record);
    return steps.empty() || (knows_row(record) && has_words(steps[step_[list]]));
  }
  void go_on(u32 list) {
    const wire::TileRecord& record = rig_.list(list)[record_[list]];
    const auto steps = rig_.steps(record);
    if (!steps.empty()) {
      looked_up_ = look_up(record);
      list_ = list;
      relay_of_step_ = *reinterpret_cast<const wire::OpParams*>(rig_.at(record.block_offset));
      run(steps[step_[list]]);
      if (++step_[list] != steps.size()) return;
      step_[list] = 0;
    }
    for (u32 i = 0; i < record.signal_count; ++i) ++rig_.events[record.signal_event[i]];
    ++record_[list];
  }

  // ---- the first row ----------------------------------------------------------------------------------------------------------

  /// The gather of the relay that `record` is, and its operands; null: it begins with no table's row.
  const wire::OpParams* gather(const wire::TileRecord& record) const {
    const auto at = static_cast<u32>(reinterpret_cast<const wire::OpParams*>(rig_.at(record.block_offset))->dims[wire::kRelayLookUpDim]);
    return at == 0 ? nullptr : reinterpret_cast<const wire::OpParams*>(rig_.at(at));
  }
  static const wire::OperandParams& operand(const wire::OpParams& op, u32 i) { return reinterpret_cast<const wire::OperandParams*>(&op + 1)[i]; }
  bool knows_row(const wire::TileRecord& record) const {
    const wire::OpParams* op = gather(record);
    if (op == nullptr || operand(*op, 1).tags == 0) return true;
    for (u32 row = 0; row < rows(); ++row)
      if (read_at<u64>(operand(*op, 1).offset + operand(*op, 1).tags + row * 8) >> 32 != static_cast<u32>(op->dims[wire::kLookUpTagDim])) return false;
    return true;
  }
  std::vector<u64> look_up(const wire::TileRecord& record) const {
    const wire::OpParams* op = gather(record);
    std::vector<u64> found;
    for (u32 i = 0; i < rows() && op != nullptr; ++i) {
      const wire::OperandParams& index = operand(*op, 1);
      const auto row = read_at<std::int32_t>(index.offset + index.tags + u64{i} * (index.tags != 0 ? 8 : 4));
      EXPECT_GE(row, 0);
      EXPECT_LT(row, operand(*op, 0).dim[2]);
      found.push_back(static_cast<u64>(row) * static_cast<u64>(operand(*op, 0).stride[2]) * 2);
    }
    return found;
  }
  u64 row_at(const Step& step, wire::RelayFlags flag, u32 row, u32 pitch) const { return (step.flags & flag) != 0 ? looked_up_.at(row) : u64{row} * pitch * 2; }

  // ---- words ----------------------------------------------------------------------------------------------------------------

  bool is_there(u64 words, u64 count) const {
    for (u64 i = 0; i < count; ++i)
      if (read_at<u64>(words + i * 8) >> 32 != tag_) return false;
    return true;
  }
  void put(u64 word, u32 bits) {
    EXPECT_TRUE(written_.insert(word).second) << "a word twice";
    write_at<u64>(word, wire::tagged_value(bits, tag_));
  }
  float element(u64 words, u32 i) const { return of_half(static_cast<u32>(read_at<u64>(words + i / 2 * 8)) >> (i % 2 * 16) & 0xffff); }
  const wire::OpParams& block(const Step& step) const { return *reinterpret_cast<const wire::OpParams*>(step.block); }
  const wire::OperandParams& operand(const Step& step, u32 i) const { return reinterpret_cast<const wire::OperandParams*>(step.block + sizeof(wire::OpParams))[i]; }
  u64 place(const wire::OperandParams& o) const { return o.offset + (o.space == static_cast<std::uint8_t>(wire::Space::state) ? rig_.head().state : 0); }

  u32 parts(const Step& step) const { return static_cast<u32>(block(step).dims[4]) >> 8 & 0xff; }
  u64 part_at(const Step& step, u32 part) const { return step.norm + u64{part} * wire::relay_part_words(step.n, step.run) * 8; }

  bool has_words(const Step& step) const {
    if (step.kind == static_cast<std::uint8_t>(wire::RelayKind::pick)) {
      for (u32 i = 0; i < step.n * rows(); ++i)
        if (!is_there(pair_at(step, i / step.n, i % step.n), 2) || (step.words != 0 && !is_there(pair_at(step, 0, i % step.n / pairs() * pairs()) + rows() * pairs() * 16, 1))) return false;
      return true;
    }
    if (step.kind == static_cast<std::uint8_t>(wire::RelayKind::attention)) {
      const u32 count = step.part == 0 ? parts(step) : 1;
      for (u32 part = 1; part < count; ++part)
        if (!is_there(part_at(step, part), wire::relay_part_words(step.n, step.run))) return false;
      return step.part >= parts(step) || (is_there(step.row, u64{step.n} * step.run / 2) && is_there(step.columns, step.run / 2) && is_there(step.beyond, step.run / 2));
    }
    if (step.kind == static_cast<std::uint8_t>(wire::RelayKind::route)) return is_there(step.row, u64{step.n} * rows());
    const bool words = (step.flags & wire::kRelayPlainRow) == 0, sum = step.end == static_cast<std::uint8_t>(wire::RelayEnd::sum) && (step.flags & wire::kRelayPlainBeside) == 0;
    for (u32 row = 0; row < rows(); ++row) {
      const u32 elements = is_of(step, wire::RelayExperts::all) ? step.row_pitch : step.k;
      if (words && !is_there(step.row + row * step.row_pitch / 2 * 8, elements / 2)) return false;
      if (sum && !is_there(step.beside + row * step.beside_pitch / 2 * 8, step.n / 2)) return false;
    }
    return true;
  }

  // ---- experts ---------------------------------------------------------------------------------------------------------------

  struct Chosen {
    u32 index;
    float share;
  };
  struct Routed {
    std::vector<std::vector<Chosen>> rows;
    std::vector<u32> active;  // experts
    std::vector<std::pair<u32, wire::RelayShare>> parts;  // of the list, each of an expert
    std::optional<u32> place(u32 row, u32 expert) const {
      const auto found = std::find_if(rows[row].begin(), rows[row].end(), [&](const Chosen& one) { return one.index == expert; });
      return found == rows[row].end() ? std::nullopt : std::optional(static_cast<u32>(found - rows[row].begin()));
    }
  };
  static bool is_of(const Step& step, wire::RelayExperts experts) { return step.experts == static_cast<std::uint8_t>(experts); }
  void route(const Step& step) {
    Routed& routed = routed_[list_];
    routed = {};
    for (u32 row = 0; row < rows(); ++row) routed.rows.push_back(choose(step, row));
    for (const std::vector<Chosen>& row : routed.rows)
      for (const Chosen& one : row)
        if (std::find(routed.active.begin(), routed.active.end(), one.index) == routed.active.end()) routed.active.push_back(one.index);
    if (rows() > 1) std::sort(routed.active.begin(), routed.active.end());
    std::vector<u32> begins{0}, costs;
    for (const u32 expert : routed.active) {
      costs.push_back(wire::relay_share_cost(static_cast<u32>(std::count_if(routed.rows.begin(), routed.rows.end(), [&](const auto& row) { return std::any_of(row.begin(), row.end(), [&](const Chosen& one) { return one.index == expert; }); }))));
      begins.push_back(begins.back() + costs.back() * (step.second / wire::kRelayShareColumns));
    }
    for (u32 i = 0; i < costs.size(); ++i) {
      const wire::RelayShare share = wire::relay_share(wire::relay_span(begins.back(), step.part, step.kv_head), begins[i], costs[i], step.second);
      if (share.columns != 0) routed.parts.push_back({routed.active[i], share});
    }
  }
  /// The first of the largest, then of those that are left.
  std::vector<Chosen> choose(const Step& step, u32 row) const {
    const auto logit = [&](u32 i) { return read_at<float>(step.row + (row * step.n + i) * 8); };
    std::vector<Chosen> chosen;
    float all = 0;
    while (chosen.size() < step.run) {
      std::optional<u32> best;
      for (u32 i = 0; i < step.n; ++i) {
        const bool taken = std::any_of(chosen.begin(), chosen.end(), [&](const Chosen& other) { return other.index == i; });
        if (!taken && (!best || logit(i) > logit(*best))) best = i;
      }
      const float part = std::exp(logit(*best) - (chosen.empty() ? logit(*best) : logit(chosen.front().index)));
      chosen.push_back({*best, part});
      all += part;
    }
    for (Chosen& one : chosen) one.share /= all;
    return chosen;
  }
  void run_share(const Step& step) {
    const Routed& routed = routed_[list_];
    if (step.slot >= routed.parts.size()) return;
    const auto& [expert, share] = routed.parts[step.slot];
    Step of = step;  // a twin of one expert's columns
    of.experts = 0;
    of.columns += u64{expert} * step.expert_bytes + u64{share.first} * step.column_bytes;
    of.n = static_cast<std::uint16_t>(2 * share.columns), of.run = static_cast<std::uint16_t>(share.columns);
    of.beyond -= u64{of.run} * step.column_bytes;
    for (u32 row = 0; row < rows(); ++row) {
      const auto place = routed.place(row, expert);
      if (!place) continue;
      const std::vector<float> sums = multiply(of, row);
      std::vector<float> results;
      for (u32 i = 0; i < of.run; ++i) results.push_back(rounded(sums[i] * rounded(act(step, sums[of.run + i]))) * routed.rows[row][*place].share);
      leave(of, row, results, *place * step.n + share.first);
    }
  }
  void run_all(const Step& step) {
    const Routed& routed = routed_[list_];
    for (u32 row = 0; row < rows(); ++row) {
      std::vector<float> sums;
      for (u32 column = 0; column < step.n; ++column) {
        double sum = 0;
        for (u32 place = 0; place < routed.rows[row].size(); ++place)
          for (u32 i = 0; i < step.k; ++i)
            sum += double{element(step.row, row * step.row_pitch + place * step.k + i)} * double{of_half(read_at<std::uint16_t>(step.columns + u64{routed.rows[row][place].index} * step.expert_bytes + u64{column} * step.column_bytes + u64{i} * 2))};
        sums.push_back(static_cast<float>(sum));
      }
      finish(step, row, sums);
    }
  }
  float weight(const Step& step, u32 column, u32 i) const {
    return of_half(read_at<std::uint16_t>(step.columns + u64{column} * step.column_bytes + (column < step.run ? 0 : step.beyond) + u64{i} * 2));
  }

  // ---- steps ----------------------------------------------------------------------------------------------------------------

  void run(const Step& step) {
    EXPECT_TRUE(done_.insert({step.op, step.tile, step.columns}).second) << "twice";
    if (step.kind == static_cast<std::uint8_t>(wire::RelayKind::attention)) return attend(step);
    if (step.kind == static_cast<std::uint8_t>(wire::RelayKind::pick)) return pick(step);
    if (step.kind == static_cast<std::uint8_t>(wire::RelayKind::route)) return route(step);
    EXPECT_LE(wire::relay_step_bytes(step, wire::kMarkedLanes / 32, rows()), static_cast<u32>(relay_of_step_.dims[2]));
    if (is_of(step, wire::RelayExperts::share)) {
      EXPECT_EQ(step.k % wire::kRelayRow, 0u);
      return run_share(step);
    }
    if (is_of(step, wire::RelayExperts::all)) {
      EXPECT_EQ(step.k % wire::kRelayExpertSlice, 0u);
      EXPECT_TRUE(step.n == wire::kRelayExpertColumns || step.n == wire::kMostRelayExpertColumns);
      return run_all(step);
    }
    EXPECT_EQ(step.k % wire::kRelayRow, 0u);
    EXPECT_EQ(step.n % wire::kRelayColumns, 0);
    EXPECT_EQ(step.run % wire::kRelayColumns, 0);
    if (static_cast<wire::RelayEnd>(step.end) != wire::RelayEnd::plain) EXPECT_LE(step.n, wire::relay_columns(rows()));
    for (u32 row = 0; row < rows(); ++row) finish(step, row, multiply(step, row));
  }
  u32 rows() const { return rig_.tables.relay_rows; }
  std::vector<float> multiply(const Step& step, u32 of) const {
    const u32 first = of * step.row_pitch;
    const bool plain = (step.flags & wire::kRelayPlainRow) != 0;
    std::vector<float> row(step.k), sums(step.n);
    for (u32 i = 0; i < step.k; ++i) row[i] = plain ? of_half(read_at<std::uint16_t>(step.row + row_at(step, wire::kRelayLookedUpRow, of, step.row_pitch) + i * 2)) : element(step.row, first + i);
    double squares = 0;
    for (const float value : row) squares += double{value} * value;
    const double factor = step.norm == 0 ? 1 : 1 / std::sqrt(squares / step.k + double{step.scale});
    for (u32 i = 0; i < step.k && step.norm != 0; ++i) row[i] = rounded(static_cast<float>(row[i] * factor * double{of_half(read_at<std::uint16_t>(step.norm + i * 2))}));
    for (u32 column = 0; column < step.n; ++column) {
      double sum = 0;
      for (u32 i = 0; i < step.k; ++i) sum += double{row[i]} * double{weight(step, column, i)};
      sums[column] = static_cast<float>(sum);
    }
    return sums;
  }
  static float act(const Step& step, float x) {
    switch (static_cast<wire::RelayAct>(step.act)) {
      case wire::RelayAct::none:
        return x;
      case wire::RelayAct::silu:
        return x / (1 + std::exp(-x));
      case wire::RelayAct::gelu_tanh:
        return 0.5f * x * (1 + std::tanh(0.7978845608f * (x + 0.044715f * x * x * x)));
      case wire::RelayAct::relu:
        return std::max(x, 0.0f);
    }
    return 0;
  }
  void finish(const Step& step, u32 row, const std::vector<float>& sums) {
    std::vector<float> first, second;
    const u32 beside = row * step.beside_pitch;
    for (u32 i = 0; i < step.run; ++i) {
      const float own = sums[i];
      switch (static_cast<wire::RelayEnd>(step.end)) {
        case wire::RelayEnd::plain:
          first.push_back(own);
          break;
        case wire::RelayEnd::sum:
          first.push_back(own + ((step.flags & wire::kRelayPlainBeside) != 0 ? of_half(read_at<std::uint16_t>(step.beside + row_at(step, wire::kRelayLookedUpBeside, row, step.beside_pitch) + i * 2)) : element(step.beside, beside + i)));
          break;
        case wire::RelayEnd::twin:
          first.push_back(own * rounded(act(step, sums[step.run + i])));
          break;
        case wire::RelayEnd::turned: {
          const float u = rounded(own), v = rounded(sums[step.run + i]), c = read_at<float>(step.beside + (beside + i) * 4), s = read_at<float>(step.beside + (beside + i) * 4 + step.sines);
          first.push_back(u * c - v * s);
          second.push_back(u * s + v * c);
        }
      }
    }
    leave(step, row, first, 0);
    if ((step.flags & wire::kRelayRanks) != 0) return leave_ranks(step, row, first);
    leave(step, row, second, step.second);
  }
  u32 pairs() const { return wire::relay_rank_pairs(rows()); }
  u64 pair_at(const Step& step, u32 row, u32 i) const { return step.row + (i / pairs() * wire::relay_rank_words(rows()) + (row * pairs() + i % pairs()) * 2) * 8; }
  void leave_ranks(const Step& step, u32 row, const std::vector<float>& values) {
    if (row == 0) put(step.beside + rows() * pairs() * 16, 0);
    for (u32 warp = 0; warp < pairs(); ++warp) {
      std::pair<std::int32_t, u32> best{std::numeric_limits<std::int32_t>::min(), 0};
      for (u32 i = 0; i < values.size(); ++i) {
        const auto rank = worker::CCKS_ISA::rank_of(values[i]);
        if (i % wire::relay_columns(rows()) / wire::kRelayRankColumns == warp && rank > best.first) best = {rank, step.second + i};
      }
      put(step.beside + (row * pairs() + warp) * 16, static_cast<u32>(best.first));
      put(step.beside + (row * pairs() + warp) * 16 + 8, best.second);
    }
  }
  void pick(const Step& step) {
    for (u32 row = 0; row < rows(); ++row) {
      std::pair<std::int32_t, u32> best{std::numeric_limits<std::int32_t>::min(), 0};
      for (u32 i = 0; i < step.n; ++i) {
        const auto rank = static_cast<std::int32_t>(read_at<u64>(pair_at(step, row, i)));
        const u32 index = static_cast<u32>(read_at<u64>(pair_at(step, row, i) + 8));
        if (rank > best.first || (rank == best.first && index < best.second)) best = {rank, index};
      }
      write_at<u32>(step.store + row * 4, best.second);
      if (step.words != 0) put(step.words + row * 8, best.second);
    }
  }
  void leave(const Step& step, u32 row, const std::vector<float>& values, u32 at) {
    for (u32 i = 0; i < values.size() && step.words != 0 && step.float_words != 0; ++i) put_float(step.words + (row * step.words_pitch + at + i) * 8, values[i]);
    for (u32 i = 0; i + 1 < values.size() && step.words != 0 && step.float_words == 0; i += 2) put(step.words + (row * step.words_pitch + at + i) / 2 * 8, half(values[i]) | half(values[i + 1]) << 16);
    const bool moves = (step.flags & wire::kRelayMoves) != 0;
    if (step.store == 0 && !moves) return;
    const u64 first = u64{row} * step.store_pitch + at, to = step.store + (moves ? place(operand(step, block(step).input_count)) : 0);
    for (u32 i = 0; i < values.size(); ++i) {
      if ((step.flags & wire::kRelayFloats) != 0)
        write_at<float>(to + (first + i) * 4, values[i]);
      else
        write_at<std::uint16_t>(to + (first + i) * 2, static_cast<std::uint16_t>(half(values[i])));
    }
  }

  // ---- attention --------------------------------------------------------------------------------------------------------------

  struct Part {
    std::vector<double> values;
    double top = -1e30, sum = 0;
  };
  float cached(const Step& step, u32 i, u32 position, u32 dim) const {
    const wire::OperandParams& o = operand(step, i);
    if (position + 1 == static_cast<u32>(o.dim[2])) return element(i == 1 ? step.columns : step.beyond, dim);
    return of_half(read_at<std::uint16_t>(place(o) + u64{step.row_pitch} * static_cast<u64>(o.stride[1]) * 2 + u64{position} * static_cast<u64>(o.stride[2]) * 2 + (u64{step.kv_head} * step.run + dim) * 2));
  }
  Part look(const Step& step, u32 query) const {
    const u32 context = static_cast<u32>(operand(step, 1).dim[2]), count = parts(step);
    Part part{std::vector<double>(step.run, 0.0)};
    const u32 share = (context + count - 1) / count;
    for (u32 j = step.part * share; j < std::min(context, (step.part + 1u) * share); ++j) {
      double score = 0;
      for (u32 d = 0; d < step.run; ++d) score += double{element(step.row, query * step.run + d)} * double{cached(step, 1, j, d)};
      score *= double{step.scale};
      const double top = std::max(part.top, score), left = std::exp(part.top - top), weight = std::exp(score - top);
      part.top = top, part.sum = part.sum * left + weight;
      for (u32 d = 0; d < step.run; ++d) part.values[d] = part.values[d] * left + weight * double{cached(step, 2, j, d)};
    }
    return part;
  }
  void add(const Step& step, u32 query, u32 index, Part& to) const {
    const u64 at = part_at(step, index) + u64{query} * (step.run + 2) * 8;
    const auto word = [&](u32 i) { return double{read_at<float>(at + i * 8)}; };
    const double top = std::max(to.top, word(step.run)), left = std::exp(to.top - top), share = std::exp(word(step.run) - top);
    to.top = top, to.sum = to.sum * left + word(step.run + 1) * share;
    for (u32 d = 0; d < step.run; ++d) to.values[d] = to.values[d] * left + word(d) * share;
  }
  void put_float(u64 at, double value) {
    const auto given = static_cast<float>(value);
    u32 bits;
    std::memcpy(&bits, &given, sizeof(bits));
    put(at, bits);
  }
  void attend(const Step& step) {
    if (step.part >= parts(step)) return;
    std::vector<float> result;
    for (u32 query = 0; query < step.n; ++query) {
      Part part = look(step, query);
      const u64 at = part_at(step, step.part) + u64{query} * (step.run + 2) * 8;
      for (u32 d = 0; d < step.run && step.part != 0; ++d) put_float(at + d * 8, part.values[d]);
      if (step.part != 0) put_float(at + step.run * 8, part.top), put_float(at + (step.run + 1) * 8, part.sum);
      for (u32 other = 1; other < parts(step) && step.part == 0; ++other) add(step, query, other, part);
      for (u32 d = 0; d < step.run; ++d) result.push_back(static_cast<float>(part.values[d] / part.sum));
    }
    if (step.part == 0) leave(step, 0, result, 0);
  }

  RelayRig& rig_;
  std::mt19937 random_;
  u32 tag_;
  std::vector<u64> looked_up_;    // of the step that is run
  wire::OpParams relay_of_step_{};
  std::vector<u32> record_, step_;  // per list: where it stands
  std::vector<Routed> routed_;  // per list
  u32 list_ = 0;                    // of the step that is run
  std::set<u64> written_;
  std::set<std::tuple<u32, u32, u64>> done_;  // a wide tile is several steps
};

}  // namespace ccks::scheduler::test
