// generate(): whatever is sent ahead, the tokens are those of one run after the other, and the state is what those leave behind.
#include "ccks/generate.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <mutex>
#include <thread>

#include "codegen/plan_image.hpp"
#include "scheduler/dims.hpp"
#include "scheduler/instance.hpp"
#include "scheduler/tools/run_data.hpp"
#include "spec/parse.hpp"
#include "spec/reference.hpp"
#include "tests/paths.hpp"

namespace ccks::test {
namespace {

using Constants = std::vector<std::pair<std::string, std::int64_t>>;
const Constants kTiny = {{"layers", 2}, {"d", 64}, {"heads", 4}, {"kv_heads", 2}, {"ffn", 96}, {"vocab", 61}, {"context", 40}};
const std::vector<std::int32_t> kPrompt = {5, 17, 60, 2, 2, 31};
constexpr std::uint32_t kTokens = 12;

const std::string& spec_path() {
  static const std::string path = CCKS_SOURCE_DIR "/spec/examples/llama.yaml";
  return path;
}

struct Way {
  const char* name;
  const char* arm;
  const char* policy;
  const char* spine;
  bool chain;
};

/// `rows` > 0: of the program for several rows, with the weights that the other has.
Engine open_engine(const Way& way, std::uint32_t slots = 5, std::uint32_t states = 1, std::int64_t rows = 0) {
  SpecOptions options;
  options.constants = kTiny;
  if (rows > 0) options.constants.emplace_back("batch", rows);
  options.workers_hint = 3;
  Result<Program> program = Program::from_spec_file(rows > 0 ? CCKS_SOURCE_DIR "/spec/examples/llama_batch.yaml" : spec_path(), options);
  EXPECT_TRUE(program.ok()) << program.status().message();
  DeviceOptions device;
  device.kind = "host";
  device.workers = 3;
  EngineOptions engine;
  engine.arm = way.arm;
  engine.policy = way.policy;
  engine.spine = way.spine;
  engine.chain_states = way.chain;
  engine.slots = slots;
  engine.states = states;
  Result<Engine> out = Engine::create(open_device(device).value(), *program, engine);
  EXPECT_TRUE(out.ok()) << out.status().message();
  spec::ParseOptions parse;
  parse.constants = kTiny;
  const spec::ParseResult parsed = spec::parse_file(spec_path(), parse);
  const std::vector<std::int64_t> dims = {1, 0};
  for (spec::TensorId id = 0; id < parsed.program.tensors.size(); ++id) {
    const spec::Tensor& tensor = parsed.program.tensor(id);
    if (tensor.kind != spec::TensorKind::weight) continue;
    const auto bytes = run::encode(tensor.dtype, spec::seeded_values(parsed.program, id, dims, 7).values);
    EXPECT_TRUE(out->bind_weight(tensor.name, bytes).ok());
  }
  EXPECT_TRUE(out->start().ok());
  return std::move(*out);
}

std::int32_t step(Engine& engine, std::span<const std::int32_t> tokens, std::int64_t position, std::uint32_t state) {
  RunRequest request;
  request.dims = {{"n", static_cast<std::int64_t>(tokens.size())}, {"pos", position}};
  request.inputs = {{"tokens", std::as_bytes(tokens)}};
  request.state = state;
  Result<ccks::Run> run = engine.submit(std::move(request));
  EXPECT_TRUE(run.ok() && run->wait().ok());
  return static_cast<std::int32_t>(run->report("token").value().at(0));
}

/// One run after the other, each token by way of the host.
std::vector<std::int32_t> plain(std::vector<std::int32_t> prompt, std::uint32_t count, std::uint32_t state = 0) {
  static Engine engine = open_engine({"plain", "copilot", "lookahead", "auto", false}, 2, 4);
  EXPECT_TRUE(engine.reset_state(state).ok());
  std::vector<std::int32_t> out = {step(engine, prompt, 0, state)};
  auto position = static_cast<std::int64_t>(prompt.size());
  while (out.size() < count) {
    const std::int32_t last = out.back();
    out.push_back(step(engine, {&last, 1}, position++, state));
  }
  return out;
}

GenerateRequest request_of(std::span<const std::int32_t> prompt, std::uint32_t count, std::uint32_t ahead) {
  GenerateRequest request;
  request.prompt = prompt;
  request.max_tokens = count;
  request.ahead = ahead;
  return request;
}

class Generate : public testing::TestWithParam<Way> {};

TEST_P(Generate, TokensAreThoseOfOneRunAfterTheOther) {
  const std::vector<std::int32_t> want = plain(kPrompt, kTokens);
  Engine engine = open_engine(GetParam());
  for (std::uint32_t ahead = 0; ahead <= 3; ++ahead) {
    ASSERT_TRUE(engine.reset_state(0).ok());
    const Result<GenerateResult> got = generate(engine, request_of(kPrompt, kTokens, ahead));
    ASSERT_TRUE(got.ok()) << got.status().message();
    EXPECT_EQ(got->tokens, want) << "ahead " << ahead;
    EXPECT_EQ(got->reason, StopReason::length);
    EXPECT_EQ(got->dropped, 0u);
    EXPECT_EQ(got->position, static_cast<std::int64_t>(kPrompt.size() + kTokens) - 1);
  }
}

// Wherever it stops, what was sent ahead leaves nothing behind: going on from there gives the tokens that would have come.
TEST_P(Generate, StopsAtEveryPlaceAndGoesOnFromThere) {
  const std::vector<std::int32_t> want = plain(kPrompt, kTokens);
  Engine engine = open_engine(GetParam());
  for (std::size_t place = 0; place + 1 < want.size(); ++place) {
    if (std::find(want.begin(), want.begin() + static_cast<std::ptrdiff_t>(place), want[place]) !=
        want.begin() + static_cast<std::ptrdiff_t>(place)) continue;  // it would have stopped earlier
    ASSERT_TRUE(engine.reset_state(0).ok());
    GenerateRequest first = request_of(kPrompt, kTokens, 1 + static_cast<std::uint32_t>(place % 3));
    first.stop = {&want[place], 1};
    const Result<GenerateResult> head = generate(engine, first);
    ASSERT_TRUE(head.ok()) << head.status().message();
    EXPECT_EQ(head->reason, StopReason::token);
    ASSERT_EQ(head->tokens, std::vector<std::int32_t>(want.begin(), want.begin() + static_cast<std::ptrdiff_t>(place) + 1));
    GenerateRequest rest = request_of({&head->tokens.back(), 1}, kTokens - static_cast<std::uint32_t>(place) - 1, 2);
    rest.position = head->position;
    const Result<GenerateResult> tail = generate(engine, rest);
    ASSERT_TRUE(tail.ok()) << tail.status().message();
    EXPECT_EQ(tail->tokens, std::vector<std::int32_t>(want.begin() + static_cast<std::ptrdiff_t>(place) + 1, want.end())) << place;
  }
}

TEST_P(Generate, PromptsInPartsAndUpToTheLastPosition) {
  const std::vector<std::int32_t> want = plain(kPrompt, 35);
  Engine engine = open_engine(GetParam());
  GenerateRequest request = request_of(kPrompt, 100, 1);
  request.prompt_chunk = 4;
  const Result<GenerateResult> got = generate(engine, request);
  ASSERT_TRUE(got.ok()) << got.status().message();
  EXPECT_EQ(got->reason, StopReason::position);
  EXPECT_EQ(got->tokens, want);
}

TEST_P(Generate, StatesBesideEachOther) {
  Engine engine = open_engine(GetParam(), 9, 3);
  std::vector<std::thread> clients;
  for (std::uint32_t state = 0; state < 3; ++state) {
    clients.emplace_back([&, state] {
      std::vector<std::int32_t> prompt = kPrompt;
      prompt.resize(2 + state);
      GenerateRequest request = request_of(prompt, kTokens, 1);
      request.state = state;
      const Result<GenerateResult> got = generate(engine, request);
      ASSERT_TRUE(got.ok()) << got.status().message();
      static std::mutex one;
      const std::lock_guard lock(one);
      EXPECT_EQ(got->tokens, plain(prompt, kTokens)) << "state " << state;
    });
  }
  for (std::thread& client : clients) client.join();
}

TEST_P(Generate, TheCallerMayStopAndRefusalsSayWhy) {
  Engine engine = open_engine(GetParam());
  GenerateRequest request = request_of(kPrompt, kTokens, 1);
  request.on_token = [](const GeneratedToken& token) { return token.index < 2; };
  const Result<GenerateResult> got = generate(engine, request);
  ASSERT_TRUE(got.ok());
  EXPECT_EQ(got->reason, StopReason::caller);
  EXPECT_EQ(got->tokens.size(), 3u);
  request.position = 36;
  EXPECT_EQ(generate(engine, request).status().code(), ErrorCode::out_of_range);
  request.position = 0;
  request.names.token = "nothing";
  EXPECT_FALSE(generate(engine, request).ok());
  request.names = {};
  request.names.next = "logits";
  EXPECT_EQ(generate(engine, request).status().code(), ErrorCode::invalid_argument);
  EXPECT_EQ(generate(engine, request_of({}, 3, 1)).status().code(), ErrorCode::invalid_argument);
  ASSERT_TRUE(engine.drain(std::chrono::seconds(20)).ok());
}

TEST_P(Generate, FeedsThatCannotBe) {
  Engine engine = open_engine(GetParam(), 5, 2);
  const std::int32_t token = 3;
  RunRequest first;
  first.inputs = {{"tokens", std::as_bytes(std::span(&token, 1))}};
  Result<ccks::Run> run = engine.submit(std::move(first));
  ASSERT_TRUE(run.ok());
  const auto refused = [&](std::string_view input, const ccks::Run* from, std::string_view output, std::uint32_t state, std::int64_t n) {
    RunRequest next;
    next.dims = {{"n", n}, {"pos", 1}};
    next.state = state;
    next.feeds = {{input, from, output}};
    return engine.submit(std::move(next)).status().code() == ErrorCode::invalid_argument;
  };
  const ccks::Run none;
  EXPECT_TRUE(refused("tokens", &*run, "logits", 0, 1));
  EXPECT_TRUE(refused("tokens", &*run, "next", 1, 1));   // nothing keeps them in order
  EXPECT_TRUE(refused("tokens", &*run, "next", 0, 2));   // two tokens of one
  EXPECT_TRUE(refused("tokens", &none, "next", 0, 1));
  EXPECT_TRUE(refused("next", &*run, "next", 0, 1));
}

/// The token behind `run`, sent before that has ended: unless its token is one of `values`.
Result<ccks::Run> send_behind(Engine& engine, const ccks::Run& run, std::int64_t position, std::span<const std::int32_t> values) {
  RunRequest next;
  next.dims = {{"n", 1}, {"pos", position}};
  next.feeds = {{"tokens", &run, "next"}};
  next.unless = {&run, "token", values};
  return engine.submit(std::move(next));
}

TEST_P(Generate, WhatATokenSaysIsNotWantedTheSchedulerDrops) {
  const std::vector<std::int32_t> want = plain(kPrompt, 4);
  const auto end = static_cast<std::int64_t>(kPrompt.size());
  Engine engine = open_engine(GetParam());
  const std::vector<std::int32_t> others = {want[0] + 1, want[0] + 2}, stop = {60, want[0]};
  const auto first = [&] {
    RunRequest request;
    request.dims = {{"n", end}, {"pos", 0}};
    request.inputs = {{"tokens", std::as_bytes(std::span(kPrompt))}};
    return engine.submit(std::move(request)).value();
  };
  for (const bool stops : {false, true}) {
    ASSERT_TRUE(engine.reset_state(0).ok());
    ccks::Run run = first();
    ccks::Run next = send_behind(engine, run, end, stops ? stop : others).value();
    ccks::Run last = send_behind(engine, next, end + 1, {}).value();  // wanted, if the one before it is
    EXPECT_TRUE(run.wait().ok());
    EXPECT_EQ(next.wait().code(), stops ? ErrorCode::cancelled : ErrorCode::ok);
    EXPECT_EQ(last.wait().code(), stops ? ErrorCode::cancelled : ErrorCode::ok);
    if (!stops) {
      EXPECT_EQ(last.report("token").value().at(0), want[2]);
    }
  }
  EXPECT_EQ(engine.stats().runs_cancelled, 2u);
  // Whatever the two did, the state is what it was up to where they began.
  EXPECT_EQ(step(engine, {want.data(), 1}, end, 0), want[1]);
}

TEST_P(Generate, WhoCancelsARunThatIsDoneCancelsNoneBehindIt) {
  const std::vector<std::int32_t> want = plain(kPrompt, 2), others = {want[0] + 1};
  Engine engine = open_engine(GetParam());
  RunRequest request;
  request.dims = {{"n", static_cast<std::int64_t>(kPrompt.size())}, {"pos", 0}};
  request.inputs = {{"tokens", std::as_bytes(std::span(kPrompt))}};
  ccks::Run run = engine.submit(std::move(request)).value();
  ASSERT_TRUE(run.wait().ok());
  run.cancel();
  ccks::Run next = send_behind(engine, run, static_cast<std::int64_t>(kPrompt.size()), others).value();
  ASSERT_TRUE(next.wait().ok());
  EXPECT_EQ(next.report("token").value().at(0), want[1]);
}

TEST_P(Generate, ConditionsThatCannotBe) {
  Engine engine = open_engine(GetParam(), 5, 2);
  const std::int32_t token = 3;
  const auto send = [&](const ccks::Run* on, std::string_view report, std::uint32_t state) {
    RunRequest next;
    next.dims = {{"n", 1}, {"pos", 0}};
    next.inputs = {{"tokens", std::as_bytes(std::span(&token, 1))}};
    next.unless = {on, report, {&token, 1}};
    next.state = state;
    return engine.submit(std::move(next));
  };
  const Result<ccks::Run> run = send(nullptr, "", 0);
  ASSERT_TRUE(run.ok());
  const ccks::Run none;
  EXPECT_EQ(send(&none, "token", 0).status().code(), ErrorCode::invalid_argument);
  EXPECT_EQ(send(&*run, "token", 1).status().code(), ErrorCode::invalid_argument);  // nothing keeps them in order
  EXPECT_EQ(send(&*run, "nothing", 0).status().code(), ErrorCode::not_found);
  EXPECT_TRUE(send(&*run, "token", 0).ok());
}

TEST_P(Generate, RowsAreThoseOfEachAlone) {
  const std::vector<std::vector<std::int32_t>> prompts = {{5, 17, 60, 2}, {31, 1, 2, 3}, {9, 9, 44, 58}};
  std::vector<std::int32_t> together, want;
  for (std::size_t i = 0; i < prompts[0].size(); ++i)
    for (const auto& prompt : prompts) together.push_back(prompt[i]);
  std::vector<std::vector<std::int32_t>> alone;
  for (const auto& prompt : prompts) alone.push_back(plain(prompt, kTokens));
  for (std::size_t i = 0; i < kTokens; ++i)
    for (const auto& tokens : alone) want.push_back(tokens[i]);
  Engine engine = open_engine(GetParam(), 5, 1, 3);
  for (std::uint32_t ahead = 0; ahead <= 2; ++ahead) {
    ASSERT_TRUE(engine.reset_state(0).ok());
    const Result<GenerateResult> got = generate(engine, request_of(together, kTokens, ahead));
    ASSERT_TRUE(got.ok()) << got.status().message();
    EXPECT_EQ(got->tokens, want) << "ahead " << ahead;
    EXPECT_EQ(got->rows, 3u);
    EXPECT_EQ(got->times.size(), kTokens);
  }
  // All rows have to have had one of them.
  ASSERT_TRUE(engine.reset_state(0).ok());
  GenerateRequest request = request_of(together, kTokens, 1);
  const std::vector<std::int32_t> stop = {alone[0][1], alone[1][3], alone[2][2]};
  request.stop = stop;
  const auto has = [&](const std::vector<std::int32_t>& tokens, std::size_t end) {
    return std::any_of(tokens.begin(), tokens.begin() + static_cast<std::ptrdiff_t>(end),
                       [&](std::int32_t id) { return std::find(stop.begin(), stop.end(), id) != stop.end(); });
  };
  std::size_t end = 1;
  while (!std::all_of(alone.begin(), alone.end(), [&](const auto& tokens) { return has(tokens, end); })) ++end;
  const Result<GenerateResult> got = generate(engine, request);
  ASSERT_TRUE(got.ok()) << got.status().message();
  EXPECT_EQ(got->reason, StopReason::token);
  EXPECT_EQ(got->times.size(), end);
  // A prompt that is not one of three rows.
  EXPECT_EQ(generate(engine, request_of(std::span(together).first(4), 3, 1)).status().code(), ErrorCode::invalid_argument);
}

INSTANTIATE_TEST_SUITE_P(Ways, Generate,
                         testing::Values(Way{"lookahead", "copilot", "lookahead", "auto", true},
                                         Way{"tiles", "copilot", "lookahead", "tiles", true},
                                         Way{"lists", "copilot", "lookahead", "lists", true},
                                         Way{"fixed", "static", "static", "auto", true},
                                         Way{"reactive", "copilot", "reactive", "auto", true},
                                         Way{"unchained", "copilot", "lookahead", "auto", false},
                                         Way{"gpu_queue", "gpu_queue", "lookahead", "auto", true},
                                         Way{"stream", "stream", "lookahead", "auto", true}),
                         [](const auto& way) { return std::string(way.param.name); });

// ---- frames ----------------------------------------------------------------------------------------------------------

class FrameUpdate : public testing::TestWithParam<bool> {
 protected:
  void SetUp() override {
    spec::ParseOptions parse;
    parse.constants = kTiny;
    program_ = spec::parse_file(spec_path(), parse).program;
    codegen::PlanOptions options;
    options.device = "cuda";
    options.workers = 6;
    plan_ = *codegen::make_plan(program_, options);
    tables_ = scheduler::make_plan_tables(plan_->view(), 6, scheduler::Spine::whole, true, GetParam()).value();
  }
  void build(scheduler::Instance& instance, std::int64_t n, std::int64_t position) {
    const std::vector<std::int64_t> symbols = {n, position};
    instance.reserve(tables_);
    ASSERT_TRUE(instance.rebuild(tables_, symbols, dims(symbols), {4096, 8192, 0, 0}, 512, 1024, 0).ok());
  }
  std::vector<std::int64_t> dims(const std::vector<std::int64_t>& symbols) {
    std::vector<std::int64_t> out(tables_.plan.dims.size());
    EXPECT_TRUE(scheduler::evaluate_plan(tables_.plan, symbols, out).ok());
    return out;
  }
  std::vector<std::byte> copy(const scheduler::Instance& instance) {
    return {instance.frame().begin(), instance.frame().end()};
  }

  spec::Program program_;
  std::shared_ptr<const codegen::PlanImage> plan_;
  scheduler::PlanTables tables_;
};

TEST_P(FrameUpdate, GivesTheFrameThatWouldBeBuiltAndSaysWhatChanged) {
  scheduler::Instance instance, other;
  build(instance, 1, 3);
  build(other, 1, 29);
  std::vector<std::byte> device = copy(instance);
  const std::vector<std::int64_t> symbols = {1, 29};
  ASSERT_TRUE(instance.update(tables_, symbols, dims(symbols)).value());
  EXPECT_TRUE(instance.matches(symbols));
  EXPECT_EQ(instance.dims_hash(), other.dims_hash());
  const auto changes = instance.take_changes();
  ASSERT_FALSE(changes.empty());
  for (const scheduler::FrameRange& range : changes) {
    ASSERT_LE(range.end, device.size());
    std::memcpy(device.data() + range.first, instance.frame().data() + range.first, range.end - range.first);
  }
  EXPECT_EQ(device, copy(instance));
  EXPECT_EQ(device, copy(other));
  EXPECT_TRUE(instance.take_changes().empty());
}

TEST_P(FrameUpdate, LeavesWhatListsHangOnToARebuild) {
  scheduler::Instance instance;
  build(instance, 1, 3);
  const std::vector<std::byte> before = copy(instance);
  const std::vector<std::int64_t> symbols = {7, 3};
  EXPECT_FALSE(instance.update(tables_, symbols, dims(symbols)).value());
  EXPECT_EQ(copy(instance), before);
}

TEST_P(FrameUpdate, FedInputsComeAndGo) {
  scheduler::Instance instance;
  build(instance, 1, 3);
  const std::vector<std::byte> before = copy(instance);
  std::uint32_t tokens = 0;
  while (std::string_view(tables_.plan.tensors[tokens].name) != "tokens") ++tokens;
  const std::vector<scheduler::Feed> feeds = {{tokens, 777'216}};
  instance.feed(tables_, feeds);
  std::size_t moved = 0;
  for (std::uint32_t op = 0; op < tables_.op_count(); ++op) {
    const auto* operands = reinterpret_cast<const wire::OperandParams*>(instance.frame().data() + tables_.blocks[op].offset + sizeof(wire::OpParams));
    for (std::uint32_t i = 0; i < instance.op(op).input_count; ++i) moved += operands[i].offset == 777'216;
  }
  EXPECT_EQ(moved, 1u);
  instance.feed(tables_, {});
  EXPECT_EQ(copy(instance), before);
}

INSTANTIATE_TEST_SUITE_P(Chained, FrameUpdate, testing::Bool());

}  // namespace
}  // namespace ccks::test
