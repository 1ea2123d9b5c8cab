// The command line of ccks-run.
#pragma once

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

namespace ccks::run {

/// Exit codes of ccks-run; documented in its --help.
enum ExitCode : int {
  kDone = 0,
  kInputAtFault = 1,
  kUsage = 2,
  kVerificationFailed = 3,
  kDeviceError = 4,
  kInterrupted = 130
};

using NameAndPath = std::pair<std::string, std::string>;

struct Options {
  std::string spec;
  std::string device = "auto";
  std::string transport = "auto";
  std::uint32_t workers = 0;
  std::string link = "pcie5";  // device sim: gpu/sim/link_model.hpp
  std::string gpu = "h200";    // device sim: codegen/explain_gpu.hpp
  std::vector<std::pair<std::string, std::int64_t>> dims;
  std::vector<NameAndPath> lengths;  // of a ragged dim: numbers with commas between them, or a .npy file
  std::vector<NameAndPath> inputs;
  std::vector<NameAndPath> inputs_each;   // one more axis in front: an iteration each, from the start again behind the last
  std::vector<std::string> weights;
  std::string config;  // of the checkpoint; empty: config.json beside the weights, if it is there
  std::vector<NameAndPath> outputs;
  std::vector<NameAndPath> outputs_each;  // of all iterations, stacked
  std::uint64_t seed = 1;
  std::uint32_t iterations = 1;
  std::uint32_t in_flight = 1;     // iterations at a time
  bool keep_inputs = false;
  std::string arm = "copilot";
  std::string policy = "lookahead";
  std::string spine = "auto";
  std::uint32_t workers_per_run = 0;
  bool no_row_tags = false;
  bool no_relays = false;
  bool no_prime = false;
  double speculate_mib = 0;        // of experts' weights asked for ahead
  double wrong_guesses = 0;        // percent
  std::uint32_t slots = 1;
  double task_deadline_s = 0;  // 0: the engine's default
  bool verify = false;
  std::uint32_t generate = 0;      // tokens; 0: plain runs
  std::string prompt_ids;
  std::vector<std::int32_t> eos;
  std::uint32_t ahead = 1;         // runs sent before it is known whether they are wanted
  std::uint32_t prompt_chunk = 0;  // tokens of the prompt in one run; 0: as many as the program takes
  std::string serve;               // requests to serve; empty: plain runs
  std::string serve_tokens;        // where their tokens go
  std::uint32_t serve_rows = 0;    // of a step at most; 0: as many as the program takes
  std::string trace;
  std::string record;
  std::string replay;
  bool json = false;
  std::string module;
  std::string code = "auto";  // auto, generic, jit
  std::string jit_only;       // compile for this architecture and stop
  bool allow_inline = false;
  bool no_fold = false;       // norms stay ops of their own
  bool quiet = false;
};

/// Whether iterations are told apart: they have inputs or outputs of their own, or overlap.
inline bool tells_iterations_apart(const Options& options) { return !options.inputs_each.empty() || !options.outputs_each.empty() || options.in_flight > 1; }

inline std::uint64_t speculate_bytes(const Options& options) { return static_cast<std::uint64_t>(options.speculate_mib * (1 << 20)); }

/// Fills `options`. False: the program ends with `exit_code` (help was printed, or the usage was wrong).
bool parse_options(int argc, char** argv, Options& options, int& exit_code);

}  // namespace ccks::run
