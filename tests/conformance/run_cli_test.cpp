// ccks-run as a user meets it: exit codes, messages, files.
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <span>
#include <string>
#include <thread>
#include <vector>

#include "ccks/tensor_file.hpp"
#include "tests/support/sanitized.hpp"
#include "tests/support/shell.hpp"
#include "tests/paths.hpp"

namespace ccks::test {
namespace {

namespace fs = std::filesystem;

std::string example(const std::string& name) {
  return std::string(CCKS_SOURCE_DIR) + "/spec/examples/" + name + ".yaml";
}

class RunCli : public testing::Test {
 protected:
  void SetUp() override {
    folder_ = fs::path(CCKS_BINARY_DIR) / ("run_cli." + std::to_string(getpid()) + "." +
                                           testing::UnitTest::GetInstance()->current_test_info()->name());
    fs::create_directories(folder_);
  }
  void TearDown() override { fs::remove_all(folder_); }
  std::string path(const std::string& name) const { return (folder_ / name).string(); }
  static Ended ccks_run(const std::string& arguments) { return run_shell(std::string(CCKS_RUN) + " " + arguments); }
  bool folder_is_empty() const { return fs::is_empty(folder_); }
  fs::path folder_;
};

TEST_F(RunCli, InputsMayStayOnTheDevice) {
  EXPECT_EQ(ccks_run(example("mlp") + " --device host --set d=64 --verify --json --iters 3 --keep-inputs").exit_code, 0);
  EXPECT_EQ(ccks_run(example("mlp") + " --device host --set d=64 --iters 3 --keep-inputs --slots 2").exit_code, 2) << "runs in another slot would have none";
}

TEST_F(RunCli, EachIterationMayHaveInputsOfItsOwn) {
  std::vector<float> x(3 * 4 * 64);
  for (std::size_t i = 0; i < x.size(); ++i) x[i] = static_cast<float>(i * 37 % 101) / 101 - 0.5f;
  const std::vector<std::int64_t> stack{3, 4, 64}, alone{4, 64}, wrong{4, 3, 64};
  const auto write = [&](const char* name, const std::vector<std::int64_t>& shape) {
    ASSERT_TRUE(write_npy(path(name), {wire::Dtype::f32, shape, std::as_bytes(std::span(x)).first(shape.size() == 2 ? x.size() * 4 / 3 : x.size() * 4)}).ok());
  };
  write("xs.npy", stack), write("x.npy", alone), write("wrong.npy", wrong);
  const std::string mlp = example("mlp") + " --device host --set d=64 --set n=4 --iters 5 ", each = "--input-each x=" + path("xs.npy");
  for (const char* how : {" --in-flight 1", " --in-flight 3 --workers 2 --workers-per-run 1", " --arm stream"}) {
    const Ended ended = ccks_run(mlp + each + how + " --verify --json --output-each y=" + path("ys.npy"));
    ASSERT_EQ(ended.exit_code, 0) << ended.text;
    EXPECT_NE(ended.text.find("\"each\":{\"us\":["), std::string::npos) << ended.text;
    const Result<HostTensor> y = read_npy(path("ys.npy"));
    ASSERT_TRUE(y.ok());
    ASSERT_EQ(y->shape, (std::vector<std::int64_t>{5, 4, 64}));
    const auto row = [&](std::size_t i) { return std::vector<std::byte>(y->bytes.begin() + static_cast<std::ptrdiff_t>(i * 1024), y->bytes.begin() + static_cast<std::ptrdiff_t>(i * 1024 + 1024)); };
    EXPECT_EQ(row(0), row(3));
    EXPECT_NE(row(0), row(1));
    EXPECT_NE(row(1), row(2));
  }
  EXPECT_EQ(ccks_run(mlp + "--input-each x=" + path("wrong.npy")).exit_code, 1);
  EXPECT_EQ(ccks_run(mlp + each + " --input x=" + path("x.npy")).exit_code, 1) << "given twice";
  EXPECT_EQ(ccks_run(mlp + each + " --keep-inputs").exit_code, 2);
  EXPECT_EQ(ccks_run(example("mlp") + " --device sim --set d=64 --in-flight 2").exit_code, 2);
}

TEST_F(RunCli, VerifiesAndPrintsOneJsonObject) {
  const Ended ended = ccks_run(example("mlp") + " --device host --set d=64 --verify --json --iters 3");
  EXPECT_EQ(ended.exit_code, 0) << ended.text;
  for (const char* key :
       {"\"program\":\"mlp\"", "\"device\":\"host\"", "\"transport\"", "\"workers\"", "\"policy\":\"lookahead\"",
        "\"iterations\":3", "\"tasks_per_iteration\"", "\"p50\"", "\"p99\"", "\"max_rel_err\"", "\"passed\":true"}) {
    EXPECT_NE(ended.text.find(key), std::string::npos) << key << " in " << ended.text;
  }
}

TEST_F(RunCli, OutputsCanBeInputsAndTimelinesAreWritten) {
  const std::string base = example("mlp") + " --device host --set d=64 --set n=4 ";
  ASSERT_EQ(ccks_run(base + "--output y=" + path("y.npy") + " --trace " + path("t.json") + " --record " + path("r"))
                .exit_code,
            0);
  const Ended again = ccks_run(base + "--input x=" + path("y.npy") + " --verify --replay " + path("r"));
  EXPECT_EQ(again.exit_code, 0) << again.text;
  std::ifstream trace(path("t.json"));
  const std::string text((std::istreambuf_iterator<char>(trace)), {});
  EXPECT_NE(text.find("traceEvents"), std::string::npos);
  EXPECT_NE(text.find("worker 0"), std::string::npos);
  EXPECT_EQ(std::distance(fs::directory_iterator(folder_), {}), 3) << "a temporary file was left behind";
}

TEST_F(RunCli, MistakesHaveTheirExitCodes) {
  const std::string mlp = example("mlp");
  EXPECT_EQ(ccks_run("").exit_code, 2);
  EXPECT_EQ(ccks_run("--help").exit_code, 0);
  EXPECT_EQ(ccks_run("--version").exit_code, 0);
  EXPECT_EQ(ccks_run(mlp + " --policy best").exit_code, 2);
  EXPECT_EQ(ccks_run(mlp + " --set n").exit_code, 2);
  EXPECT_EQ(ccks_run(mlp + " --set n=five").exit_code, 2);
  EXPECT_EQ(ccks_run(mlp + " --device sim --link nowhere").exit_code, 2);
  EXPECT_EQ(ccks_run("nowhere.yaml").exit_code, 1);
  EXPECT_EQ(ccks_run(mlp + " --device host --set n=0").exit_code, 1);
  EXPECT_EQ(ccks_run(mlp + " --device host --input x=nowhere.npy").exit_code, 1);
  EXPECT_EQ(ccks_run(mlp + " --device host --weights nowhere.safetensors").exit_code, 1);
  EXPECT_EQ(ccks_run(mlp + " --device host --set d=64 --output q=" + path("q.npy")).exit_code, 1);
  EXPECT_EQ(ccks_run(mlp + " --device host --set d=64 --output y=" + path("no/such/folder.npy")).exit_code, 1);
  EXPECT_EQ(ccks_run(mlp + " --device host --set d=64 --trace " + path("no/t.json")).exit_code, 1);
  EXPECT_EQ(ccks_run(mlp + " --device host --set d=64 --replay " + path("none")).exit_code, 1);
  EXPECT_TRUE(folder_is_empty());
}

TEST_F(RunCli, AFullDiskLeavesNothingHalfWritten) {
  if (access("/dev/full", W_OK) != 0) GTEST_SKIP() << "no /dev/full here";
  const Ended ended = ccks_run(example("mlp") + " --device host --set d=64 --output y=/dev/full");
  EXPECT_EQ(ended.exit_code, 1) << ended.text;
  EXPECT_NE(ended.text.find("/dev/full"), std::string::npos) << ended.text;
}

TEST_F(RunCli, MalformedRecordIsRefused) {
  std::ofstream(path("r")) << "not a record, but long enough to hold a header of sixty-four bytes, and more";
  const Ended ended = ccks_run(example("mlp") + " --device host --set d=64 --replay " + path("r"));
  EXPECT_EQ(ended.exit_code, 1) << ended.text;
}

// A program that is started and left to itself.
class Child {
 public:
  explicit Child(std::vector<std::string> arguments) {
    arguments.insert(arguments.begin(), CCKS_RUN);
    std::vector<char*> pointers;
    for (std::string& argument : arguments) pointers.push_back(argument.data());
    pointers.push_back(nullptr);
    pid_ = fork();
    if (pid_ == 0) {
      execv(CCKS_RUN, pointers.data());
      _exit(127);
    }
  }
  void send(int signal_number) const { EXPECT_EQ(kill(pid_, signal_number), 0); }
  /// False: it has ended before.
  bool stop() {
    send(SIGSTOP);
    EXPECT_EQ(waitpid(pid_, &status_, WUNTRACED), pid_);
    ended_ = !WIFSTOPPED(status_);
    return !ended_;
  }
  /// CPU time that it has taken so far, of a stopped one.
  double cpu_seconds() const {
    std::ifstream stat("/proc/" + std::to_string(pid_) + "/stat");
    std::string field;
    while (stat >> field && field.back() != ')') {
    }
    double user = 0, system = 0;
    for (int i = 0; i < 11; ++i) stat >> field;  // up to the two times
    stat >> user >> system;
    return (user + system) / static_cast<double>(sysconf(_SC_CLK_TCK));
  }
  /// Its exit code; 128 and the signal's number if one ended it. `cpu_seconds`: what it has taken in all.
  int wait(double* cpu_seconds = nullptr) {
    rusage usage{};
    if (!ended_) {
      EXPECT_EQ(wait4(pid_, &status_, 0, &usage), pid_);
    }
    ended_ = true;
    const auto seconds = [](const timeval& t) { return static_cast<double>(t.tv_sec) + 1e-6 * static_cast<double>(t.tv_usec); };
    if (cpu_seconds != nullptr) *cpu_seconds = seconds(usage.ru_utime) + seconds(usage.ru_stime);
    return WIFEXITED(status_) ? WEXITSTATUS(status_) : 128 + WTERMSIG(status_);
  }

 private:
  pid_t pid_ = -1;
  int status_ = 0;
  bool ended_ = false;
};

TEST_F(RunCli, SignalsStopCleanlyAndNoOutputIsClaimed) {
  for (const int signal_number : {SIGINT, SIGTERM}) {
    const std::string record = path("r");
    Child child({example("mlp"), "--device", "host", "--set", "d=64", "--iters", "100000000", "--quiet", "--output",
                       "y=" + path("y.npy"), "--record", record});
    std::this_thread::sleep_for(std::chrono::seconds(2));
    child.send(signal_number);
    EXPECT_EQ(child.wait(), 130);
    EXPECT_FALSE(fs::exists(path("y.npy")));
    for (const auto& entry : fs::directory_iterator(folder_)) EXPECT_EQ(entry.path().string(), record) << "left behind";
  }
}

class StoppedRun : public RunCli {
 protected:
  std::vector<std::string> arguments(int iterations) const {
    return {example("mlp"), "--device", "host",     "--set",            "d=64", "--iters", std::to_string(iterations), "--verify",
            "--quiet",      "--output", "y=" + output()};
  }
  std::string output() const { return path("y.npy"); }

  /// Stops a run twice, lets it end, and says whether it was in flight at the second stop: it took more CPU time afterwards than
  /// `rest_seconds`, which is all that a run takes besides its iterations.
  bool in_flight_at_both_stops(int iterations, double rest_seconds) {
    Child child(arguments(iterations));
    double before = 0, in_all = 0;
    for (int i = 0; i < 2; ++i) {
      std::this_thread::sleep_for(std::chrono::milliseconds(500));
      if (!child.stop()) break;
      before = child.cpu_seconds();
      std::this_thread::sleep_for(std::chrono::seconds(1));
      child.send(SIGCONT);
    }
    EXPECT_EQ(child.wait(&in_all), 0);
    EXPECT_TRUE(fs::exists(output()));
    return in_all - before > rest_seconds;
  }
};

TEST_F(StoppedRun, GoesOnWhereItWas) {
  Child shortest(arguments(1));
  double rest_seconds = 0;
  ASSERT_EQ(shortest.wait(&rest_seconds), 0);
  // Sanitizers make every iteration ten times as long. Where a run was over too soon, a longer one is stopped.
  int iterations = sanitized() ? 1500 : 30000;
  bool in_flight = false;
  for (int i = 0; i < 4 && !in_flight && !HasFailure(); ++i, iterations *= 4) {
    in_flight = in_flight_at_both_stops(iterations, rest_seconds);
  }
  EXPECT_TRUE(in_flight);
}

class BadOps : public RunCli {
 protected:
  Ended run_bad(const std::string& ops, const std::string& arguments) const {
    const std::string spec = example("mlp");
    return run_shell("CCKS_BAD_SPEC=" + spec + " CCKS_BAD_OPS=" + ops + " " CCKS_RUN " " + spec + " --module " CCKS_BAD_MODULE
                     " --device host --output y=" + path("y.npy") + " " + arguments);
  }
};

TEST_F(BadOps, WrongValuesAreExitCodeThree) {
  const Ended ended = run_bad("nothing", "--verify");
  EXPECT_EQ(ended.exit_code, 3) << ended.text;
}

TEST_F(BadOps, AFaultIsExitCodeFourAndNamed) {
  const Ended ended = run_bad("fault", "");
  EXPECT_EQ(ended.exit_code, 4) << ended.text;
  EXPECT_NE(ended.text.find("the op reported a fault: op '"), std::string::npos) << ended.text;
  EXPECT_TRUE(folder_is_empty());
}

TEST_F(BadOps, AnOpThatNeverEndsIsExitCodeFourAndNamed) {
  const Ended ended = run_bad("endless", "--task-deadline 0.5");
  EXPECT_EQ(ended.exit_code, 4) << ended.text;
  EXPECT_NE(ended.text.find("an op that never ends"), std::string::npos) << ended.text;
  EXPECT_TRUE(folder_is_empty());
}

TEST_F(BadOps, AWildWriteEndsTheProcessAndNothingIsClaimed) {
  const Ended ended = run_bad("wild", "");
  EXPECT_NE(ended.exit_code, 0) << ended.text;  // a worker is a thread: the system ends the process
  EXPECT_TRUE(folder_is_empty());
}

TEST_F(RunCli, AMissingGpuIsExitCodeFour) {
  const Ended ended = run_shell("CCKS_CUDA_DRIVER=/nonexistent " CCKS_RUN " " + example("mlp") + " --device cuda");
  EXPECT_EQ(ended.exit_code, 4) << ended.text;
  EXPECT_NE(ended.text.find("unavailable: "), std::string::npos) << ended.text;
}

TEST_F(RunCli, ExampleServerServesItsClients) {
  const Ended ended = run_shell(std::string(CCKS_SERVER) + " " + example("mlp") + " 20 3 100 7");
  EXPECT_EQ(ended.exit_code, 0) << ended.text;
  EXPECT_NE(ended.text.find("60 requests served, 0 failed"), std::string::npos) << ended.text;
}

}  // namespace
}  // namespace ccks::test
