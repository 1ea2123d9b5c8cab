// ccks-run and checkpoints: dims from config.json, weights by their names, and words for what does not fit.
#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdint>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <map>
#include <string>
#include <vector>

#include "tests/paths.hpp"

namespace ccks::test {
namespace {

namespace fs = std::filesystem;

constexpr int kWidth = 32, kHeads = 4, kKvHeads = 2, kFfn = 48, kVocab = 40;
const std::string kConfig = R"({"hidden_size": 32, "num_hidden_layers": 1, "num_attention_heads": 4, "num_key_value_heads": 2,
  "intermediate_size": 48, "vocab_size": 40, "rope_theta": 10000.0, "torch_dtype": "bfloat16", "rope_scaling": null})";

struct Stored {
  std::string dtype = "BF16";
  std::vector<std::int64_t> shape;
};
using Tensors = std::map<std::string, Stored>;

Tensors tensors() {
  const std::string layer = "model.layers.0.";
  const std::int64_t kv = kWidth / kHeads * kKvHeads;
  return {{"model.embed_tokens.weight", {"BF16", {kVocab, kWidth}}},
          {"model.norm.weight", {"BF16", {kWidth}}},
          {layer + "input_layernorm.weight", {"BF16", {kWidth}}},
          {layer + "post_attention_layernorm.weight", {"BF16", {kWidth}}},
          {layer + "self_attn.q_proj.weight", {"BF16", {kWidth, kWidth}}},
          {layer + "self_attn.k_proj.weight", {"BF16", {kv, kWidth}}},
          {layer + "self_attn.v_proj.weight", {"BF16", {kv, kWidth}}},
          {layer + "self_attn.o_proj.weight", {"BF16", {kWidth, kWidth}}},
          {layer + "mlp.gate_proj.weight", {"BF16", {kFfn, kWidth}}},
          {layer + "mlp.up_proj.weight", {"BF16", {kFfn, kWidth}}},
          {layer + "mlp.down_proj.weight", {"BF16", {kWidth, kFfn}}}};
}

/// Values differ from one tensor to the next, so that one taken for another shows.
void write_safetensors(const fs::path& path, const Tensors& all) {
  std::string header = "{", data;
  std::uint32_t state = 1;
  for (const auto& [name, tensor] : all) {
    std::size_t bytes = tensor.dtype == "F32" ? 4 : 2;
    std::string shape;
    for (const std::int64_t extent : tensor.shape) {
      bytes *= static_cast<std::size_t>(extent);
      shape += (shape.empty() ? "" : ",") + std::to_string(extent);
    }
    header += (header.size() > 1 ? ",\"" : "\"") + name + "\":{\"dtype\":\"" + tensor.dtype + "\",\"shape\":[" + shape +
              "],\"data_offsets\":[" + std::to_string(data.size()) + "," + std::to_string(data.size() + bytes) + "]}";
    for (std::size_t i = 0; i < bytes; i += 2) {
      state = state * 1664525u + 1013904223u;
      data += static_cast<char>(state >> 24);                                // mantissa
      data += static_cast<char>(0x3d | (state >> 16 & 0x80));                // +-0.03 to 0.12
    }
  }
  header += "}";
  while (header.size() % 8 != 0) header += ' ';
  const std::uint64_t size = header.size();
  std::ofstream file(path, std::ios::binary);
  file.write(reinterpret_cast<const char*>(&size), 8);
  file << header << data;
}

class Checkpoint : public testing::Test {
 protected:
  void SetUp() override {
    folder_ = fs::temp_directory_path() / ("ccks_checkpoint_" + std::to_string(::getpid()));
    fs::remove_all(folder_);
    fs::create_directories(folder_);
  }
  void TearDown() override { fs::remove_all(folder_); }

  void write(const Tensors& all, const std::string& config = kConfig) {
    write_safetensors(folder_ / "model.safetensors", all);
    std::ofstream(folder_ / "config.json") << config;
  }
  /// Exit code of ccks-run; output_ is what it printed, errors included.
  int run(const std::string& options = "") {
    const std::string command = std::string(CCKS_RUN) + " " CCKS_SOURCE_DIR "/spec/examples/llama.yaml --device host --workers 2 --set context=16 --weights " +
                                folder_.string() + " " + options + " 2>&1";
    output_.clear();
    std::FILE* pipe = ::popen(command.c_str(), "r");
    char buffer[512];
    while (std::fgets(buffer, sizeof(buffer), pipe) != nullptr) output_ += buffer;
    const int status = ::pclose(pipe);
    return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
  }
  bool said(const std::string& text) const { return output_.find(text) != std::string::npos; }

  fs::path folder_;
  std::string output_;
};

TEST_F(Checkpoint, DimsComeFromItsConfigAndTheHeadIsTied) {
  write(tensors());
  EXPECT_EQ(run("--verify --set n=3"), 0) << output_;
  EXPECT_TRUE(said("verified")) << output_;
  EXPECT_FALSE(said("not used")) << output_;
}

TEST_F(Checkpoint, AHeadOfItsOwnIsTaken) {
  write(tensors());
  ASSERT_EQ(run("--json --output logits=" + (folder_ / "tied.npy").string()), 0) << output_;
  Tensors all = tensors();
  all["lm_head.weight"] = {"BF16", {kVocab, kWidth}};
  write(all);
  ASSERT_EQ(run("--verify --output logits=" + (folder_ / "own.npy").string()), 0) << output_;
  const auto bytes = [](const fs::path& path) {
    std::ifstream file(path, std::ios::binary);
    return std::string(std::istreambuf_iterator<char>(file), {});
  };
  EXPECT_NE(bytes(folder_ / "tied.npy"), bytes(folder_ / "own.npy"));
}

TEST_F(Checkpoint, ShardsWithAnIndex) {
  Tensors first = tensors(), second;
  second.insert(first.extract("model.norm.weight"));
  second.insert(first.extract("model.layers.0.mlp.up_proj.weight"));
  write_safetensors(folder_ / "model-00001-of-00002.safetensors", first);
  write_safetensors(folder_ / "model-00002-of-00002.safetensors", second);
  std::ofstream(folder_ / "config.json") << kConfig;
  std::string map;
  for (const auto& [name, tensor] : first) map += "\"" + name + "\":\"model-00001-of-00002.safetensors\",";
  for (const auto& [name, tensor] : second) map += "\"" + name + "\":\"model-00002-of-00002.safetensors\",";
  map.pop_back();
  std::ofstream(folder_ / "model.safetensors.index.json") << "{\"metadata\":{},\"weight_map\":{" << map << "}}";
  EXPECT_EQ(run("--verify"), 0) << output_;
}

TEST_F(Checkpoint, WhatIsMissingOrMisshapedIsNamed) {
  Tensors all = tensors();
  all.erase("model.layers.0.self_attn.v_proj.weight");
  write(all);
  EXPECT_EQ(run(), 1);
  EXPECT_TRUE(said("model.layers.0.self_attn.v_proj.weight")) << output_;
  all = tensors();
  all["model.norm.weight"].shape = {kWidth + 1};
  write(all);
  EXPECT_EQ(run(), 1);
  EXPECT_TRUE(said("model.norm.weight") && said("[33]") && said("[32]")) << output_;
  all = tensors();
  all["model.norm.weight"].dtype = "F32";
  write(all);
  EXPECT_EQ(run(), 1);
  EXPECT_TRUE(said("is f32, the program wants bf16")) << output_;
  all = tensors();
  all.erase("model.embed_tokens.weight");
  write(all);
  EXPECT_EQ(run(), 1);
  EXPECT_TRUE(said("model.embed_tokens.weight")) << output_;
}

TEST_F(Checkpoint, TensorsThatNobodyWantsAreMentioned) {
  Tensors all = tensors();
  all["model.layers.0.self_attn.q_proj.bias"] = {"BF16", {kWidth}};
  write(all);
  EXPECT_EQ(run(), 0) << output_;
  EXPECT_TRUE(said("1 tensors of the checkpoint are not used: model.layers.0.self_attn.q_proj.bias")) << output_;
}

TEST_F(Checkpoint, ConfigsThatTheProgramDoesNotFitAreRefused) {
  const auto with = [](std::string from, std::string to) {
    std::string out = kConfig;
    return out.replace(out.find(from), from.size(), to);
  };
  write(tensors(), with("\"rope_scaling\": null", R"("rope_scaling": {"rope_type": "yarn", "factor": 4.0})"));
  EXPECT_EQ(run(), 1);
  EXPECT_TRUE(said("'yarn'") && said("llama3")) << output_;
  EXPECT_EQ(run("--set rope_scaled=0 --set rope_factor=1"), 0) << output_;  // what is set goes first
  write(tensors(), with("10000.0", "10000.5"));
  EXPECT_EQ(run(), 1);
  EXPECT_TRUE(said("rope_theta")) << output_;
  write(tensors(), with("32", "31"));
  EXPECT_EQ(run(), 1);
  write(tensors(), "[1, 2]");
  EXPECT_EQ(run(), 1);
  EXPECT_TRUE(said("not a JSON object")) << output_;
}

TEST_F(Checkpoint, ScalingOfPositionsIsTakenFromEitherPlace) {
  const auto with = [](const std::string& to) {
    std::string out = kConfig;
    const std::string from = "\"rope_theta\": 10000.0, ";
    out.erase(out.find(from), from.size());
    const std::string scaling = "\"rope_scaling\": null";
    return out.replace(out.find(scaling), scaling.size(), to);
  };
  const std::string fields = R"("rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0, "original_max_position_embeddings": 8)";
  write(tensors(), with("\"rope_theta\": 500.0, \"rope_scaling\": {" + fields + "}"));
  ASSERT_EQ(run("--verify --set pos=11 --json"), 0) << output_;
  const std::string old_place = output_.substr(output_.find("\"reports\""), 30);
  write(tensors(), with("\"rope_parameters\": {\"rope_theta\": 500.0, " + fields + "}"));
  ASSERT_EQ(run("--verify --set pos=11 --json"), 0) << output_;
  EXPECT_EQ(old_place, output_.substr(output_.find("\"reports\""), 30));
}

}  // namespace
}  // namespace ccks::test
