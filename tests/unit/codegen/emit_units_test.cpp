// Workers in units: bodies are named by what they are, so that programs share them.
#include <gtest/gtest.h>

#include <set>

#include "ccks/worker/tile_hints.hpp"
#include "codegen/emit_sources.hpp"

namespace ccks::codegen {
namespace {

Bodies::Body typed(const std::string& type) { return {type, ""}; }

std::vector<GeneratedFile> units_of(std::vector<Bodies::Body> list) {
  Bodies bodies;
  bodies.count = list.size();
  bodies.list = std::move(list);
  const auto units = emit_worker_units(bodies);
  EXPECT_TRUE(units.ok()) << units.status().to_string();
  return units.ok() ? *units : std::vector<GeneratedFile>();
}

TEST(EmitUnits, TheLoopEachBodyAndTheSwitch) {
  const auto units = units_of({typed("TypedOp<A>"), typed("TypedOp<B>")});
  ASSERT_EQ(units.size(), 5u);
  EXPECT_EQ(units.front().path, "worker.cu");
  EXPECT_NE(units.front().text.find("CCKS_CUDA_WORKER("), std::string::npos);
  EXPECT_EQ(units.back().path, "switch.cu");
  std::set<std::string> paths;
  for (const GeneratedFile& unit : units) {
    EXPECT_TRUE(paths.insert(unit.path).second) << unit.path;
    EXPECT_EQ(unit.text.find('@'), std::string::npos) << unit.text;
  }
  for (std::size_t i = 0; i < 2; ++i) {
    const std::string name = units[2 + i].path.substr(0, units[2 + i].path.size() - 3);
    EXPECT_NE(units[2 + i].text.find("CCKS_CUDA_LINKED_BODY(" + name + ","), std::string::npos);
    EXPECT_NE(units.back().text.find("return " + name + "(lanes, frame, op, tile);"), std::string::npos);
  }
  EXPECT_NE(units[2].text.find("using Body = TypedOp<A>;"), std::string::npos);
}

TEST(EmitUnits, BlocksHaveAFunctionOfTheirOwn) {
  const auto units = units_of({typed("TypedOp<A>"), typed("BlocksOp<B>")});
  ASSERT_EQ(units.size(), 5u);
  const std::string name = units[3].path.substr(0, units[3].path.size() - 3);
  EXPECT_EQ(units[2].text.find("CCKS_CUDA_LINKED_BLOCKS("), std::string::npos);
  EXPECT_NE(units[3].text.find("CCKS_CUDA_LINKED_BLOCKS(" + name + ","), std::string::npos);
  EXPECT_NE(units.back().text.find("return has_blocks(op) ? " + name + "_block(frame, op, tile) : " + name + "(lanes, frame, op, tile);"), std::string::npos);
}

TEST(EmitUnits, TilesOfExpertsRunInTurn) {
  Bodies bodies;
  bodies.list = {typed("TypedOp<OpCode::expert_matmul, A>"), typed("TypedOp<OpCode::matmul, B>")};
  bodies.count = 2;
  for (const std::uint32_t scratch_bytes : {worker::kCudaExpertScratchBytes, worker::kCudaGroupedScratchBytes}) {
    bodies.scratch_bytes = scratch_bytes;
    const auto units = emit_worker_units(bodies).value();
    const std::string loop = scratch_bytes == worker::kCudaGroupedScratchBytes ? "#define CCKS_WORKER_TURNS 1\n" : "#define CCKS_WORKER_TURNS 0\n";
    EXPECT_LT(units[0].text.find(loop), units[0].text.find("#include")) << "scratch has no room for what is kept from tile to tile, or has";
    const auto name = [&](std::size_t i) { return units[2 + i].path.substr(0, units[2 + i].path.size() - 3); };
    EXPECT_NE(units[2].text.find("CCKS_CUDA_LINKED_TURNS(" + name(0) + ","), std::string::npos);
    EXPECT_NE(units[3].text.find("CCKS_CUDA_LINKED_BODY(" + name(1) + ","), std::string::npos);
    const std::string& calls = units.back().text;
    EXPECT_NE(calls.find("unsigned " + name(0) + "(void*, unsigned, unsigned, const void*, const void*, unsigned);"), std::string::npos);
    EXPECT_NE(calls.find("return " + name(0) + "(lanes, turns, number, frame, op, tile);"), std::string::npos);
    EXPECT_NE(calls.find("return " + name(1) + "(lanes, frame, op, tile);"), std::string::npos);
  }
  bodies.list.erase(bodies.list.begin());
  EXPECT_NE(emit_worker_units(bodies).value()[0].text.find("#define CCKS_WORKER_TURNS 0\n"), std::string::npos) << "no body has turns";
}

TEST(EmitUnits, BodiesAreFoundByHalves) {
  const auto units = units_of({typed("TypedOp<A>"), typed("TypedOp<B>"), typed("TypedOp<C>")});
  ASSERT_EQ(units.size(), 6u);
  const auto call = [&](std::size_t i) { return "return " + units[2 + i].path.substr(0, units[2 + i].path.size() - 3) + "(lanes, frame, op, tile);\n"; };
  const std::string expected = "  if (body < 3) {\n    if (body < 1) {\n      " + call(0) + "    } else {\n      if (body < 2) {\n        " + call(1) +
                               "      } else {\n        " + call(2) + "      }\n    }\n  }\n  return ";
  EXPECT_NE(units.back().text.find(expected), std::string::npos) << units.back().text;
}

TEST(EmitUnits, ProgramsShareAllButTheSwitch) {
  const auto one = units_of({typed("TypedOp<A>"), typed("TypedOp<B>")});
  const auto other = units_of({typed("TypedOp<C>"), typed("TypedOp<A>")});
  EXPECT_EQ(one[0].text, other[0].text);
  EXPECT_EQ(one[1].text, other[1].text);
  EXPECT_EQ(one[2].path, other[3].path);
  EXPECT_EQ(one[2].text, other[3].text);
  EXPECT_NE(one.back().text, other.back().text);
}

TEST(EmitUnits, FewBodiesOfFixedShapeAreOneUnitWithTheLoop) {
  const auto bodies_of = [](std::size_t count, const std::string& last) {
    Bodies bodies;
    for (std::size_t i = 0; i < count; ++i) {
      bodies.list.push_back(typed(i + 1 < count ? "ShapedOp<A" + std::to_string(i) + ">" : last));
      bodies.aliases += "using Op" + std::to_string(i) + " = " + bodies.list.back().type + ";\n";
    }
    bodies.count = count;
    return bodies;
  };
  const auto one = emit_worker_units(bodies_of(3, "ShapedOp<B>")).value();
  ASSERT_EQ(one.size(), 1u);
  EXPECT_NE(one[0].text.find("CCKS_CUDA_WORKER("), std::string::npos);
  EXPECT_NE(one[0].text.find("using Op2 = ShapedOp<B>;"), std::string::npos);
  EXPECT_NE(one[0].text.find("case 2: return Op2::run_inline(lanes, frame, op, tile);"), std::string::npos);
  EXPECT_EQ(one[0].text.find('@'), std::string::npos) << one[0].text;
  EXPECT_GT(emit_worker_units(bodies_of(3, "TypedOp<B>")).value().size(), 1u) << "a body reads shapes";
  EXPECT_GT(emit_worker_units(bodies_of(9, "ShapedOp<B>")).value().size(), 1u) << "one core would compile them all";
}

TEST(EmitUnits, WalksStandApartWhereThereIsScratchForThem) {
  Bodies bodies;
  bodies.list = {typed("TypedOp<OpCode::matmul, Code<>, Dtype::bf16, Dtype::bf16, Dtype::bf16>"),
                 typed("TypedOp<OpCode::attention, Code<>, Dtype::f16, Dtype::f16, Dtype::f16, Dtype::f16>"),
                 typed("TypedOp<OpCode::expert_matmul, Code<>, Dtype::f16, Dtype::f16, Dtype::i32, Dtype::i32, Dtype::f16>")};
  bodies.count = 3;
  const auto paths = [&](std::uint32_t scratch_bytes) {
    bodies.scratch_bytes = scratch_bytes;
    std::set<std::string> out;
    const auto units = emit_worker_units(bodies).value();
    for (const GeneratedFile& unit : units) {
      const bool streams = unit.text.find("#define CCKS_WORKER_STREAMS 1\n") != std::string::npos;
      const bool none = unit.text.find("#define CCKS_WORKER_STREAMS 0\n") != std::string::npos;
      EXPECT_EQ(streams, unit.path != "prefetch.cu" && scratch_bytes < worker::kCudaGroupedScratchBytes) << unit.path;
      EXPECT_EQ(none, unit.path != "prefetch.cu" && scratch_bytes >= worker::kCudaGroupedScratchBytes) << unit.path;
      if (!unit.path.starts_with("ccks_body_")) out.insert(unit.path);
    }
    const std::string& loop = units.front().text;
    const char* const rooms[] = {"#define CCKS_WORKER_ROOMY 0\n", "#define CCKS_WORKER_ROOMY 1\n"};
    EXPECT_LT(loop.find(rooms[scratch_bytes >= worker::kCudaGroupedScratchBytes ? 1 : 0]), loop.find("#include"));
    return out;
  };
  EXPECT_EQ(paths(worker::kCudaExpertScratchBytes), (std::set<std::string>{"worker.cu", "prefetch.cu", "switch.cu"}));
  EXPECT_EQ(paths(worker::kCudaGroupedScratchBytes), (std::set<std::string>{"worker.cu", "prefetch.cu", "switch.cu", "products_bf16.cu", "experts_f16.cu", "attention_f16.cu"}));
}

TEST(EmitUnits, TheLoopIsMadeWithOrWithoutReadyQueues) {
  for (const char* body : {"ShapedOp<A>", "TypedOp<A>"}) {
    Bodies bodies;
    bodies.list = {typed(body)};
    bodies.count = 1;
    for (const bool queues : {true, false}) {
      const std::string line = std::string("#define CCKS_WORKER_QUEUES ") + (queues ? "1" : "0") + "\n";
      const std::size_t at = emit_worker_units(bodies, queues).value()[0].text.find(line);
      EXPECT_LT(at, emit_worker_units(bodies, queues).value()[0].text.find("#include")) << body << ": " << line;
    }
  }
}

TEST(EmitUnits, TheLoopIsMadeWithoutWhatAProgramHasNoUseFor) {
  const auto defines = [](const char* type, bool decides) {
    Bodies bodies;
    bodies.list = {typed(type)};
    bodies.count = 1;
    bodies.decides = decides;
    const std::string text = emit_worker_units(bodies).value()[0].text;
    const std::string head = text.substr(0, text.find("#include"));
    const auto says = [&](const char* name) { return head.find(std::string("#define CCKS_WORKER_") + name + " 1\n") != std::string::npos; };
    EXPECT_NE(says("DECIDES"), head.find("#define CCKS_WORKER_DECIDES 0\n") != std::string::npos);
    EXPECT_NE(says("TAGS"), head.find("#define CCKS_WORKER_TAGS 0\n") != std::string::npos);
    return std::pair{says("DECIDES"), says("TAGS")};
  };
  using Both = std::pair<bool, bool>;
  EXPECT_EQ(defines("ShapedOp<OpCode::matmul, Code<>, Dtype::f32, Dtype::f32, Dtype::f32>", false), (Both{false, true}));
  EXPECT_EQ(defines("TypedOp<OpCode::matmul, Code<>, Dtype::f32, Dtype::f32, Dtype::f32>", true), (Both{true, false})) << "made for any shape, which finds no tags in one row";
  EXPECT_EQ(defines("ShapedOp<OpCode::matmul, Code<>, Dtype::bf16, Dtype::bf16, Dtype::bf16>", false), (Both{false, false}));
  EXPECT_EQ(defines("ShapedOp<OpCode::map, Code<>, Dtype::f32, Dtype::f32>", false), (Both{false, false}));
}

TEST(EmitUnits, TheLoopHasARingForWeightsWhereAProductOf16BitsMayWantIt) {
  const auto streams = [](const char* head, const char* type) {
    Bodies bodies;
    bodies.list = {typed(std::string(head) + type), typed(std::string(head) + "<OpCode::map, Code<>, Dtype::bf16, Dtype::bf16>")};
    bodies.count = 2;
    const std::string text = emit_worker_units(bodies).value()[0].text;
    EXPECT_NE(text.find("#define CCKS_WORKER_STREAMS "), std::string::npos);
    return text.find("#define CCKS_WORKER_STREAMS 1\n") < text.find("#include");
  };
  for (const char* head : {"ShapedOp", "TypedOp"}) {
    EXPECT_TRUE(streams(head, "<OpCode::matmul, Code<>, Dtype::bf16, Dtype::bf16, Dtype::bf16>"));
    EXPECT_TRUE(streams(head, "<OpCode::matmul, Code<>, Dtype::f16, Dtype::f16, Dtype::f32>"));
    EXPECT_FALSE(streams(head, "<OpCode::matmul, Code<>, Dtype::f32, Dtype::f32, Dtype::f32>"));
    EXPECT_FALSE(streams(head, "<OpCode::softmax, Code<>, Dtype::bf16, Dtype::bf16>"));
  }
}

TEST(EmitUnits, RowsGoByTheirTagsWhereTheProgramHasThem) {
  Bodies bodies;
  bodies.list = {typed("TypedOp<OpCode::matmul, Code<>, Dtype::bf16, Dtype::bf16, Dtype::bf16>"), typed("TypedOp<OpCode::map, Code<>, Dtype::bf16, Dtype::bf16>")};
  bodies.count = 2;
  const auto with_tags = [&] {
    std::set<std::string> out;
    const auto units = emit_worker_units(bodies).value();
    for (const GeneratedFile& unit : units) {
      if (unit.text.find("#define CCKS_WORKER_ROW_TAGS 1\n") < unit.text.find("#include")) out.insert(unit.path);
    }
    return out;
  };
  EXPECT_TRUE(with_tags().empty());
  bodies.rows_handed_on = 2;
  EXPECT_TRUE(take_rows(bodies));
  const std::set<std::string> units = with_tags();
  EXPECT_EQ(units.size(), 2u) << "the loop and the product";
  EXPECT_TRUE(units.contains("worker.cu"));
  EXPECT_NE(emit_worker_units(bodies).value()[0].text.find("#define CCKS_WORKER_RELAY_ROWS 2\n"), std::string::npos);
  bodies.scratch_bytes = worker::kCudaGroupedScratchBytes;
  EXPECT_FALSE(take_rows(bodies)) << "no ring";
  EXPECT_TRUE(with_tags().empty());
}

TEST(EmitUnits, TheLoopAloneKnowsOfExpertsThatARouteChooses) {
  Bodies bodies;
  bodies.list = {typed("TypedOp<OpCode::matmul, Code<>, Dtype::bf16, Dtype::bf16, Dtype::bf16>"), typed("TypedOp<OpCode::route, Code<>, Dtype::f32>")};
  bodies.count = 2;
  bodies.scratch_bytes = worker::kCudaGroupedScratchBytes;
  const auto loop_has = [&](const std::string& text) { return emit_worker_units(bodies).value()[0].text.find(text) != std::string::npos; };
  EXPECT_FALSE(take_experts(bodies));
  EXPECT_TRUE(loop_has("#define CCKS_WORKER_ROW_TAGS 0\n") && loop_has("#define CCKS_WORKER_RELAY_EXPERTS 0\n"));
  bodies.routed_rows = 8;
  EXPECT_TRUE(take_experts(bodies));
  EXPECT_TRUE(loop_has("#define CCKS_WORKER_RELAY_ROWS 8\n"));
  EXPECT_TRUE(loop_has("#define CCKS_WORKER_ROW_TAGS 1\n") && loop_has("#define CCKS_WORKER_RELAY_EXPERTS 1\n"));
  const std::vector<GeneratedFile> units = emit_worker_units(bodies).value();
  for (const GeneratedFile& unit : units) {
    if (unit.path != "worker.cu") EXPECT_EQ(unit.text.find("ROW_TAGS 1"), std::string::npos) << unit.path;
  }
  bodies.rows_handed_on = 2;
  EXPECT_FALSE(take_experts(bodies)) << "relays have two rows";
}

TEST(EmitUnits, CodeOfASpecStandsInItsOwnUnit) {
  const auto units = units_of({typed("TypedOp<A>"), {"Custom1", "struct Custom1 { /* twice */ };\n"}});
  ASSERT_EQ(units.size(), 5u);
  EXPECT_NE(units[3].text.find("struct Custom1 { /* twice */ };"), std::string::npos);
  EXPECT_NE(units[3].text.find("custom_for_each"), std::string::npos);
  EXPECT_LT(units[3].text.find("custom_for_each"), units[3].text.find("struct Custom1"));
  for (const std::size_t i : {0u, 1u, 2u, 4u}) EXPECT_EQ(units[i].text.find("Custom1"), std::string::npos);
  const auto changed = units_of({{"Custom1", "struct Custom1 { /* thrice */ };\n"}});
  EXPECT_NE(changed[2].path, units[3].path);
}

}  // namespace
}  // namespace ccks::codegen
