#include "scheduler/tools/run_options.hpp"

#include <CLI/CLI.hpp>
#include <charconv>
#include <iostream>

namespace ccks::run {
namespace {

constexpr const char* kFooter =
    "Inputs and outputs are .npy files, weights .safetensors files (or an index, or a folder of shards). What is not\n"
    "given is seeded: the same seed gives the same values everywhere. State tensors are zero before every iteration\n"
    "unless given with --input.\n\n"
    "--weights with a config.json beside it (or --config) also gives the dims that the spec takes from there. --generate keeps the\n"
    "workers resident from token to token, keys and values in the state, and sends each step before the token in front of it is\n"
    "known; a step that turns out not to be wanted (--eos) is dropped, and the state stands as if it had not been.\n\n"
    "Compiled workers are kept in CCKS_CACHE_DIR, else XDG_CACHE_HOME/ccks, else ~/.cache/ccks: 256 MB at most, or\n"
    "CCKS_CACHE_MB. The compiler (NVRTC, nvJitLink) is taken from CCKS_NVRTC_DIR, if set.\n\n"
    "--device sim takes no GPU and computes on this CPU; bodies take the time that the GPU's memory and matrix units need,\n"
    "so it predicts what scheduling and the link add to that. --trace writes the predicted timeline.\n\n"
    "Exit codes: 0 done; 1 the spec, an input or an output file is at fault; 2 wrong usage; 3 verification failed;\n"
    "4 device error or timeout; 130 interrupted by SIGINT or SIGTERM: the run was cancelled, no output was written.";

// What neither --generate nor --serve goes with.
constexpr const char* kPlainRunsOnly[] = {"--verify", "--record", "--replay", "--iters", "--input", "--input-each", "--output-each", "--in-flight", "--keep-inputs", "--lengths"};

// "name=value" in two; CLI11 turns the exception into a message and exit code.
NameAndPath split(const std::string& option, const std::string& text) {
  const std::size_t at = text.find('=');
  if (at == std::string::npos || at == 0 || at + 1 == text.size()) {
    throw CLI::ValidationError(option, "'" + text + "' is not of the form NAME=VALUE");
  }
  return {text.substr(0, at), text.substr(at + 1)};
}

std::pair<std::string, std::int64_t> split_dim(const std::string& text) {
  const NameAndPath parts = split("--set", text);
  std::int64_t value = 0;
  const char* end = parts.second.data() + parts.second.size();
  const auto result = std::from_chars(parts.second.data(), end, value);
  if (result.ec != std::errc() || result.ptr != end)
    throw CLI::ValidationError("--set", "'" + parts.second + "' is not an integer");
  return {parts.first, value};
}

struct RawPairs {
  std::vector<std::string> dims, lengths, inputs, inputs_each, outputs, outputs_each;
};

void add_data_options(CLI::App& app, Options& options, RawPairs& raw) {
  app.add_option("spec", options.spec, "The fusion description (YAML)")->required()->type_name("SPEC");
  app.add_option("--set", raw.dims, "Value of a dim, e.g. --set n=17")
      ->type_name("NAME=INT")
      ->expected(1)
      ->multi_option_policy(CLI::MultiOptionPolicy::TakeAll);
  app.add_option("--lengths", raw.lengths, "Lengths of the sequences of a ragged dim: 5,17,3, or a .npy file of integers (default: seeded)")
      ->type_name("NAME=INTS|FILE")
      ->expected(1)
      ->multi_option_policy(CLI::MultiOptionPolicy::TakeAll);
  app.add_option("--input", raw.inputs, "Input (or state) from a .npy file")
      ->type_name("NAME=FILE")
      ->expected(1)
      ->multi_option_policy(CLI::MultiOptionPolicy::TakeAll);
  app.add_option("--weights", options.weights, "Checkpoint: .safetensors, index or folder")
      ->type_name("FILE")
      ->expected(1)
      ->multi_option_policy(CLI::MultiOptionPolicy::TakeAll);
  app.add_option("--config", options.config,
                 "Checkpoint: its config.json, which gives dims their values (default: beside the weights); --set goes first")
      ->type_name("FILE");
  app.add_option("--output", raw.outputs, "Write an output to a .npy file")
      ->type_name("NAME=FILE")
      ->expected(1)
      ->multi_option_policy(CLI::MultiOptionPolicy::TakeAll);
  app.add_option("--input-each", raw.inputs_each, "Inputs of the iterations, stacked in a .npy file: each takes the next, from the start again\n"
                                                   "behind the last. --verify then looks at every iteration, and --json tells them apart")
      ->type_name("NAME=FILE")
      ->expected(1)
      ->multi_option_policy(CLI::MultiOptionPolicy::TakeAll);
  app.add_option("--output-each", raw.outputs_each, "Write what each iteration put out, stacked, to a .npy file")
      ->type_name("NAME=FILE")
      ->expected(1)
      ->multi_option_policy(CLI::MultiOptionPolicy::TakeAll);
  app.add_option("--seed", options.seed, "Seed of what is not given")->capture_default_str();
  app.add_option("--module", options.module,
                 "Generated program (shared library) to run instead of the interpreter's plan")
      ->type_name("LIB");
  app.add_flag("--allow-inline", options.allow_inline, "Accept ops given as code");
  app.add_flag("--no-fold", options.no_fold, "Norms stay ops of their own, and do not become part of the products that read them")
      ->excludes("--module");
}

void add_code_options(CLI::App& app, Options& options) {
  app.add_option("--code", options.code, "What workers on a GPU run: one worker for all programs, or one compiled for this")
      ->check(CLI::IsMember({"auto", "generic", "jit"}))
      ->capture_default_str()
      ->excludes("--module");
  app.add_option("--jit-only", options.jit_only, "Compile the workers for that GPU and stop; needs no GPU (e.g. sm_90a)")
      ->type_name("ARCH")
      ->excludes("--module");
}

void add_run_options(CLI::App& app, Options& options) {
  app.add_option("--device", options.device, "Where to run; sim predicts: co-pilot and workers are real, processors and time are not")
      ->check(CLI::IsMember({"auto", "host", "cuda", "sim"}))
      ->capture_default_str();
  app.add_option("--transport", options.transport, "Where inboxes and outboxes live")
      ->check(CLI::IsMember({"auto", "coherent", "pinned"}))
      ->capture_default_str();
  app.add_option("--link", options.link,
                 "Device sim: what crossing between the processors costs. pcie5 (measured on an H200), c2c (Grace-class,\n"
                 "an assumption), or NAME:FIELD=NS,... such as far:read_ns=2000,write_ns=1500")
      ->capture_default_str();
  app.add_option("--gpu", options.gpu, "Device sim: whose memory and matrix units ops run at, as in ccks-gen explain")
      ->capture_default_str();
  app.add_option("--workers", options.workers, "Workers; 0: the device's default")->check(CLI::Range(0, 4096));
  app.add_option("--workers-per-run", options.workers_per_run,
                 "Each run stays on so many workers, and delays no run on others; 0: all")
      ->check(CLI::Range(0, 4096));
  app.add_flag("--no-prime", options.no_prime, "Every run is sent by the scheduler's thread, also where submit() could");
  app.add_flag("--no-row-tags", options.no_row_tags, "Products of one row wait for events, also where they could take it by its tags, in the same workers");
  app.add_flag("--no-relays", options.no_relays, "Tiles of a decode step run one by one, each from a record of its own, in the same workers");
  app.add_option("--slots", options.slots, "Runs that may be in flight")
      ->check(CLI::Range(1, 4096))
      ->capture_default_str();
  app.add_option("--iters", options.iterations, "Iterations")
      ->check(CLI::Range(1, 1'000'000'000))
      ->capture_default_str();
  app.add_flag("--keep-inputs", options.keep_inputs, "Inputs are written for the first iteration alone, and stay on the device for the others")
      ->excludes(app.get_option("--slots"))
      ->excludes(app.get_option("--input-each"));
  app.add_option("--in-flight", options.in_flight, "Iterations in flight at a time: when one has ended the next is submitted")
      ->check(CLI::Range(1, 4096))
      ->capture_default_str()
      ->excludes(app.get_option("--keep-inputs"));
  app.add_option("--arm", options.arm,
                 "How ops reach the device. Resident workers: copilot (as --policy says), static (lists only), gpu_queue\n"
                 "(ready queues on the device). One launch per op: stream, graph, graph_pdl (programmatic dependent\n"
                 "launch); the host device has stream only")
      ->check(CLI::IsMember({"copilot", "static", "gpu_queue", "stream", "graph", "graph_pdl"}))
      ->capture_default_str();
  app.add_option("--policy", options.policy, "Who decides what runs next, with --arm copilot")
      ->check(CLI::IsMember({"static", "lookahead", "reactive"}))
      ->capture_default_str();
  app.add_option("--spine", options.spine, "What lookahead sends as lists instead of tiles")
      ->check(CLI::IsMember({"auto", "lists", "tiles"}))
      ->capture_default_str();
  app.add_option("--speculate", options.speculate_mib,
                 "Routed experts: ask for so many MiB of the weights that the last iteration needed before the router has run")
      ->type_name("MIB")
      ->check(CLI::Range(0.0, 1e6));
  app.add_option("--wrong-guesses", options.wrong_guesses, "Speculate: percent of the guesses that are made wrong, to measure what they cost")
      ->type_name("PERCENT")
      ->check(CLI::Range(0.0, 100.0));
  app.add_option("--task-deadline", options.task_deadline_s,
                 "Seconds after which a task that does not end fails the run; 0: the engine's default")
      ->check(CLI::Range(0.0, 1e6));
  app.add_flag("--verify", options.verify, "Compare with the reference interpreter");
  app.add_option("--trace", options.trace, "Write a timeline (Chrome trace JSON, opens in Perfetto)")
      ->type_name("FILE");
  app.add_option("--record", options.record, "Write every decision to a file")->type_name("FILE");
  app.add_option("--replay", options.replay, "Take decisions from such a file")->type_name("FILE");
  app.add_flag("--json", options.json, "Print one JSON object instead of the summary");
  app.add_flag("--quiet", options.quiet, "Print neither progress nor summary");
}

void add_generate_options(CLI::App& app, Options& options) {
  CLI::Option* generate = app.add_option("--generate", options.generate,
                                         "Tokens to generate, by a program with tokens [n] at pos, next and report token (llama.yaml).\n"
                                         "They are printed as they come; --output stacks what each token's run put out")
                              ->type_name("N")
                              ->check(CLI::Range(1, 1 << 20));
  CLI::Option* prompt = app.add_option("--prompt-ids", options.prompt_ids, "Generate: the prompt's token ids, a row of integers in a .npy file")
                            ->type_name("FILE")
                            ->needs(generate);
  generate->needs(prompt);
  app.add_option("--eos", options.eos, "Generate: ids that end it")->type_name("ID")->delimiter(',')->needs(generate);
  app.add_option("--ahead", options.ahead, "Generate and serve: runs sent before it is known whether they are wanted")
      ->check(CLI::Range(0, 64))
      ->capture_default_str();
  app.add_option("--prompt-chunk", options.prompt_chunk, "Generate: tokens of the prompt in one run; 0: as many as the program takes")
      ->check(CLI::Range(0, 1 << 20))
      ->needs(generate);
  for (const char* other : kPlainRunsOnly) generate->excludes(app.get_option(other));
  CLI::Option* serve = app.add_option("--serve", options.serve,
                                      "Requests to serve, many at a time, by a program of steps (llama_serve.yaml): a JSON list of {\"arrival_ms\": 0,\n"
                                      "\"prompt\": [ids] or \"prompt_tokens\": number, \"max_tokens\": number, \"stop\": [ids]}, replayed as they arrive")
                           ->type_name("FILE")
                           ->check(CLI::ExistingFile)
                           ->excludes(generate);
  app.add_option("--serve-tokens", options.serve_tokens, "Serve: write what each request got (JSON)")->type_name("FILE")->needs(serve);
  app.add_option("--serve-rows", options.serve_rows, "Serve: rows of a step at most; 0: as many as the program takes")->type_name("N")->needs(serve);
  for (const char* other : kPlainRunsOnly) serve->excludes(app.get_option(other));
}

}  // namespace

bool parse_options(int argc, char** argv, Options& options, int& exit_code) {
  CLI::App app("Runs a fusion description: plans it, drives resident workers, checks the result.", "ccks-run");
  app.footer(kFooter);
  app.set_version_flag("--version", std::string("ccks-run " CCKS_VERSION));
  RawPairs raw;
  add_data_options(app, options, raw);
  add_run_options(app, options);
  add_code_options(app, options);
  add_generate_options(app, options);
  try {
    app.parse(argc, argv);
    for (const std::string& text : raw.dims) options.dims.push_back(split_dim(text));
    for (const std::string& text : raw.lengths) options.lengths.push_back(split("--lengths", text));
    for (const std::string& text : raw.inputs) options.inputs.push_back(split("--input", text));
    for (const std::string& text : raw.inputs_each) options.inputs_each.push_back(split("--input-each", text));
    for (const std::string& text : raw.outputs) options.outputs.push_back(split("--output", text));
    for (const std::string& text : raw.outputs_each) options.outputs_each.push_back(split("--output-each", text));
  } catch (const CLI::ParseError& error) {
    exit_code = app.exit(error, std::cout, std::cerr) == 0 ? kDone : kUsage;
    return false;
  }
  if (options.arm == "static") options.policy = "static";
  return true;
}

}  // namespace ccks::run
