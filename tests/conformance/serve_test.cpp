// Server: requests that come and go get the tokens that each gets alone, one run after the other.
#include "ccks/serve.hpp"

#include <gtest/gtest.h>

#include <atomic>
#include <fstream>
#include <random>
#include <thread>

#include "scheduler/tools/run_data.hpp"
#include "spec/parse.hpp"
#include "tests/paths.hpp"
#include "tests/support/shell.hpp"
#include "tests/support/temporary_folder.hpp"

namespace ccks::test {
namespace {

using Constants = std::vector<std::pair<std::string, std::int64_t>>;
const Constants kTiny = {{"layers", 2}, {"d", 64}, {"heads", 4}, {"kv_heads", 2}, {"ffn", 96}, {"vocab", 61}, {"context", 48}};
const Constants kServe = {{"page", 4}, {"seats", 6}};
constexpr const char* kOptions = "--set layers=2 --set d=64 --set heads=4 --set kv_heads=2 --set ffn=96 --set vocab=61 --set context=48 --set page=4 --set seats=6";

/// `serve`: of the program of steps, with the weights that the other has.
Engine open_engine(bool serve, const char* arm, std::uint32_t slots) {
  Constants constants = kTiny;
  if (serve) constants.insert(constants.end(), kServe.begin(), kServe.end());
  const std::string path = std::string(CCKS_SOURCE_DIR "/spec/examples/") + (serve ? "llama_serve.yaml" : "llama.yaml");
  SpecOptions options;
  options.constants = constants;
  options.workers_hint = 3;
  Result<Program> program = Program::from_spec_file(path, options);
  EXPECT_TRUE(program.ok()) << program.status().message();
  DeviceOptions device;
  device.kind = "host";
  device.workers = 3;
  EngineOptions engine;
  engine.arm = arm;
  engine.chain_states = true;
  engine.slots = slots;
  Result<Engine> out = Engine::create(open_device(device).value(), *program, engine);
  EXPECT_TRUE(out.ok()) << out.status().message();
  spec::ParseOptions parse;
  parse.constants = kTiny;
  const spec::ParseResult parsed = spec::parse_file(CCKS_SOURCE_DIR "/spec/examples/llama.yaml", parse);
  const std::vector<std::int64_t> dims = {1, 0};
  for (spec::TensorId id = 0; id < parsed.program.tensors.size(); ++id) {
    const spec::Tensor& tensor = parsed.program.tensor(id);
    if (tensor.kind != spec::TensorKind::weight) continue;
    EXPECT_TRUE(out->bind_weight(tensor.name, run::encode(tensor.dtype, spec::seeded_values(parsed.program, id, dims, 7).values)).ok());
  }
  EXPECT_TRUE(out->start().ok());
  return std::move(*out);
}

std::vector<std::int32_t> alone(const std::vector<std::int32_t>& prompt, std::uint32_t count) {
  static Engine engine = open_engine(false, "copilot", 4);
  EXPECT_TRUE(engine.reset_state(0).ok());
  GenerateRequest request;
  request.prompt = prompt;
  request.max_tokens = count;
  return generate(engine, request).value().tokens;
}

struct Wanted {
  std::vector<std::int32_t> prompt, tokens, got;
  std::vector<std::int32_t> stop;
  StopReason reason = StopReason::caller;
  Status status{ErrorCode::internal, "not ended"};
};

std::vector<Wanted> random_requests(std::uint32_t seed, std::size_t count) {
  std::mt19937 random(seed);
  std::vector<Wanted> all(count);
  for (Wanted& w : all) {
    w.prompt.resize(1 + random() % 20);
    for (std::int32_t& id : w.prompt) id = static_cast<std::int32_t>(random() % 61);
    w.tokens = alone(w.prompt, 1 + static_cast<std::uint32_t>(random() % 16));
    if (random() % 3 != 0) continue;
    w.stop = {w.tokens[random() % w.tokens.size()]};
    w.tokens.resize(static_cast<std::size_t>(std::find(w.tokens.begin(), w.tokens.end(), w.stop[0]) - w.tokens.begin()) + 1);
  }
  return all;
}

struct Way {
  const char* arm;
  std::uint32_t ahead, rows;
};
class Serve : public testing::TestWithParam<Way> {};

TEST_P(Serve, EachRequestGetsWhatItGetsAlone) {
  const auto [arm, ahead, rows] = GetParam();
  std::vector<Wanted> all = random_requests(ahead + rows, 30);
  Engine engine = open_engine(true, arm, Server::slots_for(rows, ahead));
  ServeOptions options;
  options.ahead = ahead;
  options.rows = rows;
  Result<Server> server = Server::create(engine, options);
  ASSERT_TRUE(server.ok()) << server.status().message();
  ASSERT_TRUE(server->warm().ok());
  std::mt19937 random(5);
  for (Wanted& w : all) {
    ServeRequest request{w.prompt, static_cast<std::uint32_t>(w.tokens.size()) + (w.stop.empty() ? 0 : 3), w.stop, {}, {}};
    request.on_token = [&w](const ServedToken& token) {
      EXPECT_EQ(token.index, w.got.size());
      w.got.push_back(token.id);
    };
    request.on_end = [&w](const Status& status, StopReason reason) { w.status = status, w.reason = reason; };
    ASSERT_TRUE(server->submit(std::move(request)).ok());
    if (random() % 2) std::this_thread::sleep_for(std::chrono::microseconds(random() % 2000));
  }
  ASSERT_TRUE(server->drain().ok());
  std::uint64_t tokens = 0;
  for (const Wanted& w : all) {
    EXPECT_TRUE(w.status.ok()) << w.status.message();
    EXPECT_EQ(w.got, w.tokens);
    EXPECT_EQ(w.reason, w.stop.empty() ? StopReason::length : StopReason::token);
    tokens += w.tokens.size();
  }
  EXPECT_EQ(server->stats().tokens, tokens);
  EXPECT_GT(server->stats().most_running, 1u);
}
INSTANTIATE_TEST_SUITE_P(Ways, Serve, testing::Values(Way{"copilot", 1, 16}, Way{"copilot", 0, 64}, Way{"static", 3, 8}, Way{"gpu_queue", 1, 16}),
                         [](const auto& way) { return std::string(way.param.arm) + "_ahead" + std::to_string(way.param.ahead); });

TEST(ServeErrors, AProgramWithoutTheParts) {
  Engine engine = open_engine(false, "copilot", 4);
  const Result<Server> server = Server::create(engine, {});
  ASSERT_FALSE(server.ok());
  EXPECT_EQ(server.status().code(), ErrorCode::invalid_argument);
  EXPECT_NE(server.status().message().find("program 'llama' serves nobody: it has no symbol 'm'"), std::string::npos) << server.status().message();
}

TEST(ServeErrors, TooLongAndCutShort) {
  Engine engine = open_engine(true, "copilot", 9);
  std::atomic<int> cancelled = 0;
  {
    ServeOptions options;
    options.rows = 8;
    Server server = Server::create(engine, options).value();
    EXPECT_EQ(server.submit({std::vector<std::int32_t>(40, 1), 10, {}, {}, {}}).code(), ErrorCode::out_of_range);
    for (int i = 0; i < 20; ++i) {
      EXPECT_TRUE(server.submit({{1, 2, 3}, 40, {}, {}, [&](const Status& status, StopReason) { cancelled += status.code() == ErrorCode::cancelled ? 1 : 0; }}).ok());
    }
  }
  EXPECT_GT(cancelled, 10) << "whoever is left when the server goes is told";
}

TEST(ServeTool, ReplaysRequestsAndSaysWhatIsWrongWithThem) {
  const TemporaryFolder own;
  const std::string folder = own.path();
  const auto served = [&](const std::string& list) {
    std::ofstream(folder + "/requests.json") << list;
    return run_shell(std::string(CCKS_RUN) + " " CCKS_SOURCE_DIR "/spec/examples/llama_serve.yaml --device host --quiet " + kOptions + " --serve " + folder +
                       "/requests.json --json --serve-tokens " + folder + "/tokens.json");
  };
  const Ended good = served(R"([{"prompt": [5, 17], "max_tokens": 3}, {"arrival_ms": 2, "prompt_tokens": 9, "max_tokens": 5}])");
  EXPECT_EQ(good.exit_code, 0) << good.text;
  EXPECT_NE(good.text.find("\"tokens\":8"), std::string::npos) << good.text;
  EXPECT_NE(good.text.find("\"ttft_ms\""), std::string::npos) << good.text;
  std::ifstream tokens(folder + "/tokens.json");
  EXPECT_NE(std::string(std::istreambuf_iterator<char>(tokens), {}).find("\"tokens\":["), std::string::npos);
  const auto complaint = [&](const std::string& list, const std::string& words) {
    const Ended bad = served(list);
    EXPECT_EQ(bad.exit_code, 1) << list;
    EXPECT_NE(bad.text.find(words), std::string::npos) << bad.text;
  };
  complaint("{}", "not a JSON list of requests");
  complaint(R"([{"prompt": [5]}])", "request 0: 'max_tokens' is a number from 1 on");
  complaint(R"([{"prompt": [61], "max_tokens": 3}])", "request 0: 61 is not one of the ids 0 to 60");
  complaint(R"([{"prompt": [1], "max_tokens": 3, "tokens": 1}])", "unknown key 'tokens'");
  complaint(R"([{"prompt_tokens": 40, "max_tokens": 30}])", "a sequence has room for 48");
}

}  // namespace
}  // namespace ccks::test
