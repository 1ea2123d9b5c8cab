// A plan and its values at given dims, with waits and signals taken as wire/frame.hpp defines them.
#pragma once

#include <gtest/gtest.h>

#include <array>
#include <functional>
#include <map>
#include <set>
#include <vector>

#include "ccks/plan_eval.hpp"
#include "codegen/check_plan.hpp"
#include "codegen/plan_image.hpp"
#include "spec/parse.hpp"
#include "tests/support/program_builder.hpp"

namespace ccks::test {

using Coordinate = std::array<std::int64_t, 4>;
using Range = std::pair<std::int64_t, std::int64_t>;  // [first, second)

class PlanAt {
 public:
  PlanAt(const plan::PlanView& view, std::vector<std::int64_t> symbols) : view_(view), values_(view.dims.size()) {
    EXPECT_TRUE(plan::evaluate_dims(view.dims, symbols, values_));
  }

  std::int64_t value(plan::DimId id) const { return values_[id]; }
  std::int64_t tiles(std::uint32_t op) const {
    std::int64_t n = 1;
    for (const plan::DimId g : view_.ops[op].grid) n *= value(g);
    return n;
  }
  const plan::WaitDesc& wait(std::uint32_t op, std::uint32_t w) const {
    return view_.waits[view_.ops[op].wait_first + w];
  }
  std::int64_t total(std::uint32_t op, std::uint32_t w) const { return value(view_.signals[wait(op, w).signal].total); }

  void for_each_tile(std::uint32_t op, const std::function<void(const Coordinate&)>& f) const {
    const auto& g = view_.ops[op].grid;
    Coordinate c{};
    for (c[0] = 0; c[0] < value(g[0]); ++c[0])
      for (c[1] = 0; c[1] < value(g[1]); ++c[1])
        for (c[2] = 0; c[2] < value(g[2]); ++c[2])
          for (c[3] = 0; c[3] < value(g[3]); ++c[3]) f(c);
  }
  std::int64_t linear(std::uint32_t op, const Coordinate& c) const {
    std::int64_t index = 0;
    for (std::size_t i = 0; i < 4; ++i) index = index * value(view_.ops[op].grid[i]) + c[i];
    return index;
  }

  /// Events, counted from the group's first, that tile `c` of `op` waits for in its wait `w`.
  std::set<std::int64_t> waited(std::uint32_t op, std::uint32_t w, const Coordinate& c) const {
    std::set<std::int64_t> events;
    const auto& axis = wait(op, w).axis;
    const Range a = blocks(axis[0], c), b = blocks(axis[1], c);
    for (std::int64_t i = a.first; i < a.second; ++i)
      for (std::int64_t j = b.first; j < b.second; ++j)
        events.insert(i * value(axis[0].stride) + j * value(axis[1].stride));
    return events;
  }
  /// Tiles of the producer behind these events.
  std::vector<Coordinate> waited_coordinates(std::uint32_t op, std::uint32_t w, const Coordinate& c) const {
    const auto events = waited(op, w, c);
    const plan::SignalDesc& s = view_.signals[wait(op, w).signal];
    std::vector<Coordinate> tiles;
    for_each_tile(s.op, [&](const Coordinate& t) {
      std::int64_t event = 0;
      for (std::size_t i = 0; i < 2; ++i)
        if (s.grid_axis[i] >= 0) event += t[static_cast<std::size_t>(s.grid_axis[i])] * value(s.stride[i]);
      if (events.count(event)) tiles.push_back(t);
    });
    return tiles;
  }
  std::set<std::int64_t> waited_tiles(std::uint32_t op, std::uint32_t w, const Coordinate& c) const {
    std::set<std::int64_t> tiles;
    for (const Coordinate& t : waited_coordinates(op, w, c)) tiles.insert(linear(wait(op, w).producer, t));
    return tiles;
  }
  /// Every event of every group gets exactly its total.
  bool totals_hold() const {
    for (const plan::SignalDesc& s : view_.signals) {
      std::map<std::int64_t, std::int64_t> counts;
      for_each_tile(s.op, [&](const Coordinate& t) {
        std::int64_t event = 0;
        for (std::size_t i = 0; i < 2; ++i)
          if (s.grid_axis[i] >= 0) event += t[static_cast<std::size_t>(s.grid_axis[i])] * value(s.stride[i]);
        ++counts[event];
      });
      if (static_cast<std::int64_t>(counts.size()) != value(s.event_count) || value(s.event_count) > s.event_max)
        return false;
      for (const auto& [event, count] : counts)
        if (event >= value(s.event_count) || count != value(s.total)) return false;
    }
    return true;
  }

  // For ops whose output is a whole tensor of rank 2.
  Range rows_of(std::uint32_t op, const Coordinate& c) const { return span(op, c, 2, 0); }
  Range columns_of(std::uint32_t op, const Coordinate& c, std::int64_t offset) const { return span(op, c, 3, offset); }
  std::set<std::int64_t> tiles_touching(std::uint32_t op, Range rows, Range columns) const {
    std::set<std::int64_t> tiles;
    for_each_tile(op, [&](const Coordinate& t) {
      const Range r = rows_of(op, t), k = columns_of(op, t, 0);
      if (r.first < rows.second && rows.first < r.second && k.first < columns.second && columns.first < k.second)
        tiles.insert(linear(op, t));
    });
    return tiles;
  }

 private:
  Range span(std::uint32_t op, const Coordinate& c, std::size_t axis, std::int64_t offset) const {
    const plan::OpDesc& o = view_.ops[op];
    const std::int64_t extent = value(view_.operands[o.operand_first + o.input_count].dim[axis]),
                       tile = value(o.tile[axis]);
    return {offset + c[axis] * tile, offset + std::min(extent, (c[axis] + 1) * tile)};
  }
  Range blocks(const plan::WaitAxisDesc& a, const Coordinate& c) const {
    const std::int64_t extent = value(a.extent), block = value(a.block);
    if (a.grid_axis < 0) return {0, (extent + block - 1) / block};
    const std::int64_t at = c[static_cast<std::size_t>(a.grid_axis)] * value(a.step) + value(a.offset);
    const auto clip = [&](std::int64_t v) { return std::min(std::max<std::int64_t>(v, 0), extent); };
    return {clip(at) / block, (clip(at + value(a.length)) + block - 1) / block};
  }

  plan::PlanView view_;
  std::vector<std::int64_t> values_;
};

struct PlanFixture {
  std::shared_ptr<const codegen::PlanImage> image;
  plan::PlanView view;

  explicit PlanFixture(const spec::Program& program, const codegen::PlanOptions& options = {}) {
    auto made = codegen::make_plan(program, options);
    EXPECT_TRUE(made.ok()) << made.status().to_string();
    image = made.ok() ? *made : std::make_shared<const codegen::PlanImage>();
    view = image->view();
  }
  PlanAt at(std::vector<std::int64_t> symbols) const { return PlanAt(view, std::move(symbols)); }
};

/// A program from text and its plan for the device that is the parameter: the test may change the plan and ask the checker.
class PlanOfText : public testing::TestWithParam<const char*> {
 protected:
  void plan_text(const std::string& text) {
    spec::ParseResult parsed = spec::parse_text(text, "p.yaml");
    ASSERT_TRUE(parsed.ok) << spec::format_diagnostics(parsed);
    program_ = std::move(parsed.program);
    codegen::PlanOptions options;
    options.device = GetParam();
    const auto image = codegen::make_plan(program_, options);
    ASSERT_TRUE(image.ok()) << image.status().to_string();
    image_ = **image;
  }
  Status check() const { return codegen::check_plan(program_, image_.view()).status(); }

  spec::Program program_;
  codegen::PlanImage image_;
};

}  // namespace ccks::test
