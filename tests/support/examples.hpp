// The examples of spec/examples, as small as the conformance suite runs them.
#pragma once

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "tests/paths.hpp"

namespace ccks::test {

struct Example {
  const char* name;
  std::vector<std::pair<std::string, std::int64_t>> dims;
};

inline const std::vector<Example>& examples() {
  static const std::vector<Example> kExamples = {
      {"mlp", {{"n", 5}, {"d", 64}}},
      {"transformer_block",
       {{"n", 7}, {"d", 64}, {"heads", 4}, {"kv_heads", 2}, {"ffn", 96}, {"context", 32}, {"pos", 3}}},
      {"llama",
       {{"layers", 2}, {"d", 128}, {"heads", 4}, {"kv_heads", 2}, {"ffn", 256}, {"vocab", 512}, {"context", 64}, {"n", 3}}},
      {"llama_serve",
       {{"layers", 2}, {"d", 128}, {"heads", 4}, {"kv_heads", 2}, {"ffn", 256}, {"vocab", 512}, {"context", 64}, {"page", 16}, {"seats", 8}, {"n", 6}, {"m", 3}}},
      {"moe_layer", {{"experts", 8}, {"top", 2}, {"d", 64}, {"ffn", 32}, {"t", 9}}},
      {"early_exit", {{"d", 32}, {"heads", 2}, {"ffn", 64}}},
      {"conv_block", {{"batch", 1}, {"c", 8}, {"size", 9}}},
      {"pipeline", {{"m", 33}}},
      {"exit_per_layer", {{"d", 32}, {"heads", 2}, {"ffn", 64}, {"layers", 4}}},
      {"stack_machine", {{"d", 16}, {"words", 5}}},
      {"varying_depth", {{"d", 16}, {"words", 3}}},
      {"bi_rnn", {{"d", 16}, {"words", 5}}},
      {"tree_lstm", {{"d", 16}, {"words", 5}}},
      {"mv_rnn", {{"d", 8}, {"words", 5}}},
      {"drnn", {{"d", 64}, {"most", 7}}},
      {"length_regulator", {{"d", 32}, {"heads", 2}, {"ffn", 64}, {"tokens", 5}}},
      {"ragged_encoder", {{"d", 32}, {"heads", 2}, {"ffn", 64}, {"sequences", 5}, {"rows", 40}}},
  };
  return kExamples;
}

inline std::string spec_of(const Example& example) {
  return std::string(CCKS_SOURCE_DIR) + "/spec/examples/" + example.name + ".yaml";
}

}  // namespace ccks::test
