// Decode steps that feed one another while they are under way: a relay takes the token of the run in front by a word, and all else that run has stored with it (worker/relay.cuh). Tokens and caches are
// those of one run after the other, to the bit. Only GPUs have relays; other devices run the same programs without.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <string>
#include <tuple>
#include <vector>

#include "ccks/generate.hpp"
#include "tests/paths.hpp"
#include "tests/support/residency.hpp"
#include "tests/support/sanitized.hpp"
#include "tests/support/seeded_halves.hpp"

namespace ccks::test {
namespace {

const std::vector<std::int32_t> kPrompt = {5, 17, 900, 2, 2, 31};
const std::uint32_t kTokens = short_sweeps() ? 40 : 200, kRounds = short_sweeps() ? 3 : 20;

using Param = std::tuple<std::string, std::uint32_t>;  // device, rows

class RelayChain : public ResidencyTest, public testing::WithParamInterface<Param> {
 protected:
  void SetUp() override {
    run::Options options = options_of(folder_, "", kind_, kind_ == "cuda" ? "jit" : "generic");
    options.spec = rows_ == 1 ? CCKS_SOURCE_DIR "/spec/examples/llama.yaml" : CCKS_SOURCE_DIR "/spec/examples/llama_batch.yaml";
    spec::ParseOptions parse;
    parse.constants = {{"layers", 4}, {"d", 512}, {"heads", 8}, {"kv_heads", 2}, {"ffn", 1024}, {"vocab", 1024}, {"context", 512}};
    if (rows_ != 1) parse.constants.emplace_back("batch", rows_);
    options.dims = parse.constants;
    EngineOptions engine;
    engine.arm = "static";
    engine.chain_states = true;
    engine.slots = 4;
    engine.states = 2;
    create(kind_, options, parse, engine);
    if (!engine_) return;
    std::uint32_t seed = 0;
    for (const plan::TensorDesc& tensor : engine_->plan().tensors) {
      if (tensor.kind != plan::TensorKind::weight) continue;
      const std::vector<std::uint16_t> weights = seeded_halves(tensor.max_bytes / 2, ++seed);
      ASSERT_TRUE(engine_->bind_weight(tensor.name, std::as_bytes(std::span(weights))).ok()) << tensor.name;
    }
    ASSERT_TRUE(engine_->start().ok());
  }

  /// A token of each row, then the next.
  std::vector<std::int32_t> prompt() const {
    std::vector<std::int32_t> out;
    for (std::size_t i = 0; i < kPrompt.size(); ++i)
      for (std::uint32_t row = 0; row < rows_; ++row) out.push_back(kPrompt[(i + row) % kPrompt.size()] + static_cast<std::int32_t>(3 * row));
    return out;
  }
  std::vector<std::int32_t> step(std::span<const std::int32_t> tokens, std::int64_t position, std::uint32_t state) {
    RunRequest request;
    request.dims = {{"pos", position}};
    if (rows_ == 1) request.dims.push_back({"n", static_cast<std::int64_t>(tokens.size())});
    request.inputs = {{"tokens", std::as_bytes(tokens)}};
    request.state = state;
    Result<ccks::Run> run = engine_->submit(std::move(request));
    EXPECT_TRUE(run.ok() && run->wait_for(std::chrono::seconds(60)).ok());
    if (!run.ok()) return {};
    const std::vector<double> next = run->report("token").value();
    return {next.begin(), next.end()};
  }
  /// Each token by way of the host.
  std::vector<std::int32_t> one_after_the_other(std::uint32_t state) {
    const std::vector<std::int32_t> given = prompt();
    std::vector<std::int32_t> last, out;
    if (rows_ == 1) last = step(given, 0, state);
    for (std::size_t i = 0; i < kPrompt.size() && rows_ != 1; ++i) last = step(std::span(given).subspan(i * rows_, rows_), static_cast<std::int64_t>(i), state);
    for (auto position = static_cast<std::int64_t>(kPrompt.size()); !HasFailure(); ++position) {
      out.insert(out.end(), last.begin(), last.end());
      if (out.size() >= kTokens * rows_) break;
      last = step(last, position, state);
    }
    return out;
  }
  std::vector<std::int32_t> ahead_of_time(std::uint32_t state, std::uint32_t ahead) {
    const std::vector<std::int32_t> given = prompt();
    GenerateRequest request;
    request.prompt = given;
    request.max_tokens = kTokens;
    request.ahead = ahead;
    request.state = state;
    const Result<GenerateResult> got = generate(*engine_, request);
    EXPECT_TRUE(got.ok()) << got.status().to_string();
    return got.ok() ? got->tokens : std::vector<std::int32_t>{};
  }
  std::vector<std::vector<std::byte>> caches(std::uint32_t state) {
    std::vector<std::vector<std::byte>> out;
    for (const plan::TensorDesc& tensor : engine_->plan().tensors) {
      if (tensor.kind != plan::TensorKind::state || std::string(tensor.name).find("_cache") == std::string::npos) continue;
      out.emplace_back(tensor.max_bytes);
      EXPECT_TRUE(engine_->read_state(state, tensor.name, out.back()).ok()) << tensor.name;
    }
    return out;
  }

  /// Of state 1; says where they begin to differ.
  void expect_same(const std::vector<std::int32_t>& tokens, const std::vector<std::int32_t>& want, const std::vector<std::vector<std::byte>>& want_caches, const std::string& which) {
    ASSERT_EQ(tokens.size(), want.size()) << which;
    const auto apart = std::mismatch(tokens.begin(), tokens.end(), want.begin());
    EXPECT_TRUE(apart.first == tokens.end()) << which << ": token " << apart.first - tokens.begin() << " is another";
    const auto have = caches(1);
    const std::size_t row = want_caches[0].size() / 512 / rows_;  // of a position
    for (std::size_t i = 0; i < have.size(); ++i) {
      const auto differs = std::mismatch(have[i].begin(), have[i].end(), want_caches[i].begin());
      EXPECT_TRUE(differs.first == have[i].end()) << which << ": cache " << i << " from position " << static_cast<std::size_t>(differs.first - have[i].begin()) / row << ", byte "
                                                  << static_cast<std::size_t>(differs.first - have[i].begin()) % row;
    }
  }

  const std::string kind_ = std::get<0>(GetParam());
  const std::uint32_t rows_ = std::get<1>(GetParam());
};

TEST_P(RelayChain, TokensAndCachesAreThoseOfOneRunAfterTheOther) {
  const std::vector<std::int32_t> want = one_after_the_other(0);
  const auto want_caches = caches(0);
  EXPECT_EQ(want_caches.size(), 8u);
  for (const std::uint32_t ahead : {1u, 2u, 3u}) {
    ASSERT_TRUE(engine_->reset_state(1).ok());
    expect_same(ahead_of_time(1, ahead), want, want_caches, "ahead " + std::to_string(ahead));
  }
}

// Workers leave between a relay and the task behind it, too, which they may have in their stages already.
class RelayChainHandoffs : public RelayChain {};

TEST_P(RelayChainHandoffs, ChangeNoBitInTheMiddle) {
  const std::vector<std::int32_t> want = one_after_the_other(0);
  const auto want_caches = caches(0);
  hand_off_during([&] {
    for (std::uint32_t round = 0; round < kRounds && !HasFailure(); ++round) {
      EXPECT_TRUE(engine_->reset_state(1).ok());
      expect_same(ahead_of_time(1, 1 + round % 3), want, want_caches, "round " + std::to_string(round));
    }
  });
}

std::string name_of(const testing::TestParamInfo<Param>& p) { return std::get<0>(p.param) + "_" + std::to_string(std::get<1>(p.param)); }
INSTANTIATE_TEST_SUITE_P(All, RelayChain, testing::Combine(testing::Values("host", "cuda"), testing::Values(1u, 3u)), name_of);
INSTANTIATE_TEST_SUITE_P(All, RelayChainHandoffs, testing::Combine(testing::Values("host", "cuda"), testing::Values(1u, 3u)), name_of);

}  // namespace
}  // namespace ccks::test
