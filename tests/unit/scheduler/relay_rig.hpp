// A Llama's step as an engine has it: a plan for a GPU, its frame, and memory that a test can play it in.
#pragma once

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <fstream>
#include <iterator>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "codegen/plan_image.hpp"
#include "codegen/plan_rewrite.hpp"
#include "scheduler/dims.hpp"
#include "scheduler/instance.hpp"
#include "spec/parse.hpp"
#include "spec/reference.hpp"
#include "tests/paths.hpp"

namespace ccks::scheduler::test {

using wire::u32;
using wire::u64;

inline std::string llama_text(const std::string& name = "llama") {
  std::ifstream in(std::string(CCKS_SOURCE_DIR) + "/spec/examples/" + name + ".yaml");
  return {std::istreambuf_iterator<char>(in), {}};
}
inline std::string replaced(std::string text, const std::string& what, const std::string& by) {
  for (std::size_t at = text.find(what); at != std::string::npos; at = text.find(what, at + by.size())) text.replace(at, what.size(), by);
  return text;
}

struct RelayOptions {
  std::string text = llama_text();
  std::map<std::string, std::int64_t> sizes = {{"layers", 2}, {"d", 512}, {"heads", 8}, {"kv_heads", 2}, {"ffn", 1024}, {"vocab", 1024}, {"context", 512}};
  u32 workers = 8;
  bool chain = true;
  u64 reuse_from_bytes = codegen::PlanOptions{}.reuse_from_bytes;
};

struct RelayRig {
  struct alignas(256) Line {
    std::byte bytes[256];
  };
  using Memory = std::vector<Line>;

  RelayOptions options;
  spec::Program given;
  std::shared_ptr<const codegen::PlanImage> image;
  plan::PlanView view;
  PlanTables tables;
  Instance instance;
  std::vector<std::int64_t> symbols, dims;
  Memory arena, weights, state, frame;
  std::vector<u32> events;
  u32 epoch = 0;
  std::int64_t row = -1;  // of a symbol of that name; -1: as pos

  explicit RelayRig(const RelayOptions& given_options = {}) : options(given_options) {
    spec::ParseOptions parse;
    for (const auto& [name, value] : options.sizes) parse.constants.push_back({name, value});
    spec::ParseResult parsed = spec::parse_text(options.text, "llama.yaml", parse);
    EXPECT_TRUE(parsed.ok) << spec::format_diagnostics(parsed);
    given = parsed.program;
    codegen::PlanOptions plan;
    plan.device = "cuda";
    plan.workers = options.workers;
    plan.reuse_from_bytes = options.reuse_from_bytes;
    image = codegen::make_plan(codegen::rewrite_program(given, plan), plan).value();
    view = image->view();
    tables = make_plan_tables(view, options.workers, Spine::whole, true, options.chain).value();
  }
  /// Behind it, what tables say may be changed no more.
  void load(std::int64_t n = 1, std::int64_t pos = 5) {
    instance.reserve(tables);
    arena = of(tables.arena_bytes), weights = of(view.weight_bytes), state = of(view.state_bytes), frame = of(tables.layout.max_bytes);
    events.assign(tables.event_count, 0);
    rebuild(n, pos);
  }
  static Memory of(std::uint64_t bytes) { return Memory(bytes / sizeof(Line) + 1, Line{}); }
  static u64 address(const Memory& memory) { return reinterpret_cast<u64>(memory.data()); }

  void evaluate(std::int64_t n, std::int64_t pos) {
    symbols.clear();
    for (const plan::SymbolDesc& symbol : view.symbols) {
      const std::string name = symbol.name;
      symbols.push_back(name == "n" || name == "t" ? n : name == "row" && row >= 0 ? row : pos);
    }
    dims.assign(view.dims.size(), 0);
    ASSERT_TRUE(evaluate_plan(view, symbols, dims).ok());
  }
  void rebuild(std::int64_t n, std::int64_t pos) {
    evaluate(n, pos);
    const SlotMemory slot{address(arena), reinterpret_cast<u64>(events.data()), 0, address(frame)};
    ASSERT_TRUE(instance.rebuild(tables, symbols, dims, slot, address(weights), address(state), epoch).ok());
    write();
  }
  bool update(std::int64_t n, std::int64_t pos) {
    evaluate(n, pos);
    const Result<bool> kept = instance.update(tables, symbols, dims);
    write();
    return kept.ok() && *kept;
  }
  void write() { std::memcpy(frame.data(), instance.frame().data(), instance.frame().size()); }

  const wire::RunFrame& head() const { return *reinterpret_cast<const wire::RunFrame*>(instance.frame().data()); }
  const std::byte* at(u32 offset) const { return instance.frame().data() + offset; }
  std::span<const wire::TileRecord> list(u32 index) const {
    const wire::ListParams list = instance.lists()[index];
    return {reinterpret_cast<const wire::TileRecord*>(at(head().records)) + list.first, list.count};
  }
  static bool has_body(const wire::TileRecord& record) { return (record.flags & wire::kRecordBody) != 0; }
  /// Copies of those of a record, since a staging frame need not lie as a device's does; none where it is of no relay.
  std::vector<wire::RelayStep> steps(const wire::TileRecord& record) const {
    const auto& op = *reinterpret_cast<const wire::OpParams*>(at(record.block_offset));
    if (!has_body(record) || op.body != wire::kRelayBody) return {};
    std::vector<wire::RelayStep> out(static_cast<std::size_t>(op.dims[0]));
    std::memcpy(out.data(), at(static_cast<u32>(op.dims[1])), out.size() * sizeof(wire::RelayStep));
    return out;
  }
  std::vector<wire::RelayStep> all_steps() const {
    std::vector<wire::RelayStep> all;
    for (u32 index = 0; index < tables.list_count(); ++index) {
      for (const wire::TileRecord& record : list(index)) {
        const std::vector<wire::RelayStep> some = steps(record);
        all.insert(all.end(), some.begin(), some.end());
      }
    }
    return all;
  }

  u32 op_of(const std::string& name) const {
    for (u32 op = 0; op < view.ops.size(); ++op) {
      if (view.ops[op].name == name) return op;
    }
    ADD_FAILURE() << "no op " << name;
    return 0;
  }
  u32 operand_of(u32 op, u32 index) const { return view.ops[op].operand_first + index; }
  const wire::OperandParams& operand(u32 op, u32 index) const {
    return reinterpret_cast<const wire::OperandParams*>(at(head().operands))[operand_of(op, index)];
  }
};

}  // namespace ccks::scheduler::test
