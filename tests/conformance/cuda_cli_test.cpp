// ccks-run with drivers that are missing, too old or failing, and with one that counts calls. Each needs a process of its
// own: a driver is opened once.
#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdio>
#include <filesystem>
#include <fstream>
#include <map>
#include <string>

#include "tests/paths.hpp"

namespace ccks::test {
namespace {

struct Ended {
  int exit_code = -1;
  std::string text;  // stdout and stderr
};

Ended run_with(const std::string& environment, const std::string& arguments) {
  const std::string command = "env -u CCKS_CUDA_DRIVER " + environment + " " CCKS_RUN " " CCKS_SOURCE_DIR
                              "/spec/examples/mlp.yaml --code generic --set d=64 " + arguments + " 2>&1";
  Ended out;
  std::FILE* pipe = popen(command.c_str(), "r");
  char block[4096];
  for (std::size_t got = 0; (got = std::fread(block, 1, sizeof(block), pipe)) > 0;) out.text.append(block, got);
  const int status = pclose(pipe);
  out.exit_code = WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
  return out;
}

std::string played(const std::string& settings) {
  return "CCKS_CUDA_DRIVER=" CCKS_FAKE_CUDA_LIBRARY " CCKS_FAKE_CUDA=" + settings;
}

/// Calls by thread name, as the counting driver wrote them down.
std::map<std::string, unsigned long> read_log(const std::string& path) {
  std::map<std::string, unsigned long> out;
  std::ifstream file(path);
  std::string name;
  unsigned long calls = 0;
  while (file >> name >> calls) out[name] = calls;
  return out;
}

struct Lack {
  const char* name;
  std::string environment;
  const char* words;
};

class CudaLacks : public testing::TestWithParam<Lack> {};

TEST_P(CudaLacks, CudaIsExitCodeFourAndAutoRunsOnTheHostWithANotice) {
  const Ended cuda = run_with(GetParam().environment, "--device cuda");
  EXPECT_EQ(cuda.exit_code, 4) << cuda.text;
  EXPECT_NE(cuda.text.find(GetParam().words), std::string::npos) << cuda.text;
  const Ended any = run_with(GetParam().environment, "--device auto --verify");
  EXPECT_EQ(any.exit_code, 0) << any.text;
  EXPECT_NE(any.text.find("(host, "), std::string::npos) << any.text;
  EXPECT_NE(any.text.find(std::string("no GPU is used: ")), std::string::npos) << any.text;
  EXPECT_NE(any.text.find(GetParam().words), std::string::npos) << any.text;
}

INSTANTIATE_TEST_SUITE_P(
    Drivers, CudaLacks,
    testing::Values(
        Lack{"NoDriver", "CCKS_CUDA_DRIVER=/nonexistent/libcuda.so", "no CUDA driver on this machine"},
        Lack{"NotALibrary", "CCKS_CUDA_DRIVER=" CCKS_SOURCE_DIR "/README.md", "no CUDA driver on this machine"},
        Lack{"OldDriver", "CCKS_CUDA_DRIVER=" CCKS_FAKE_CUDA_OLD_LIBRARY, "too old: it lacks cuLaunchCooperativeKernel"},
        Lack{"InitFails", played("init_error=100"), "CUDA_ERROR_NO_DEVICE"},
        Lack{"NoGpu", played("devices=0"), "the CUDA driver finds no GPU"},
        Lack{"NotCooperative", played("cooperative=0"), "cannot launch cooperative grids"}),
    [](const auto& lack) { return lack.param.name; });

TEST(CudaCli, ALaunchThatFailsIsExitCodeFour) {
  const Ended ended = run_with(played("launch_error=719"), "--device cuda");
  EXPECT_EQ(ended.exit_code, 4) << ended.text;
  EXPECT_NE(ended.text.find("CUDA_ERROR_LAUNCH_FAILED"), std::string::npos) << ended.text;
}

TEST(CudaCli, AStickyErrorIsExitCodeFourAndNoOutputIsClaimed) {
  const std::string output = CCKS_BINARY_DIR "/cuda_cli." + std::to_string(getpid()) + ".npy";
  const Ended ended = run_with(played("sticky_error=700,sticky_after_ms=300"),
                               "--device cuda --iters 100000000 --output y=" + output);
  EXPECT_EQ(ended.exit_code, 4) << ended.text;
  EXPECT_NE(ended.text.find("CUDA_ERROR_ILLEGAL_ADDRESS"), std::string::npos) << ended.text;
  EXPECT_FALSE(std::filesystem::exists(output));
}

void expect_no_call_of_the_scheduler(const std::string& settings, const std::string& extra) {
  const std::string log = CCKS_BINARY_DIR "/cuda_cli." + std::to_string(getpid()) + ".log";
  const Ended ended = run_with(played(settings + "log=" + log), "--device cuda --verify --iters 200 " + extra);
  EXPECT_EQ(ended.exit_code, 0) << ended.text;
  unsigned long by_scheduler = 0, by_others = 0;  // the main thread has the name of the program's file, whatever that is
  for (const auto& [thread, calls] : read_log(log)) (thread == "ccks-scheduler" ? by_scheduler : by_others) += calls;
  EXPECT_GT(by_others, 200u);
  EXPECT_EQ(by_scheduler, 0u);
  std::filesystem::remove(log);
}

TEST(CudaCli, TheSchedulerThreadMakesNoCudaCallOnAPlayedGpu) {
  for (const char* policy : {"static", "lookahead", "reactive"}) {
    expect_no_call_of_the_scheduler("", std::string("--policy ") + policy);
  }
}

TEST(CudaCli, TheSchedulerThreadMakesNoCudaCallOnAGpu) {
  const Ended probe = run_with("", "--device cuda");
  if (probe.exit_code == 4 && probe.text.find("unavailable") != std::string::npos) GTEST_SKIP() << probe.text;
  for (const char* policy : {"static", "lookahead", "reactive"}) {
    expect_no_call_of_the_scheduler("forward=1,", std::string("--policy ") + policy);
  }
}

}  // namespace
}  // namespace ccks::test
