// sim_explore: plays simulated histories of the real co-pilot and workers, seed after seed, and says which one was wrong.
//
//   sim_explore --seeds 0:5000            those seeds; a failure is shortened and printed with the command that replays it
//   sim_explore --seed 17 [--case TEXT] [--timeline]
//   sim_explore --mutants 0:200           every deliberate bug must be caught within those seeds
#include <cstdio>
#include <cstdlib>
#include <cstring>

#include <chrono>

#include "tests/sim/mutant.hpp"
#include "tests/sim/shrink.hpp"
#include "tests/sim/world.hpp"

namespace {

using namespace ccks;
using namespace ccks::test::sim;

struct Arguments {
  std::string program;  // as it was called
  std::uint64_t first = 0, end = 0;
  std::string change;
  bool one = false, timeline = false, mutants = false;
  Mutation mutation = Mutation::none;
};

int usage() {
  std::fputs("usage: sim_explore --seeds FIRST:END | --seed N [--timeline] | --mutants FIRST:END   [--case TEXT] [--mutant NAME]\n", stderr);
  return 2;
}

bool parse_range(const char* text, Arguments& out) {
  return std::sscanf(text, "%lu:%lu", &out.first, &out.end) == 2 && out.first < out.end;
}

bool parse_mutant(const char* name, Arguments& out) {
  for (std::size_t i = 0; i < kMutations; ++i) {
    if (std::strcmp(text_of(static_cast<Mutation>(i)).name, name) == 0) return out.mutation = static_cast<Mutation>(i), true;
  }
  return false;
}

bool parse(int argc, char** argv, Arguments& out) {
  out.program = argv[0];
  for (int i = 1; i < argc; ++i) {
    const std::string_view name = argv[i];
    const char* value = i + 1 < argc ? argv[i + 1] : "";
    if (name == "--timeline") {
      out.timeline = true;
      continue;
    }
    ++i;
    if (name == "--seeds") {
      if (!parse_range(value, out)) return false;
    } else if (name == "--mutants") {
      out.mutants = true;
      if (!parse_range(value, out)) return false;
    } else if (name == "--seed") {
      out.one = true;
      out.first = std::strtoull(value, nullptr, 10);
      out.end = out.first + 1;
    } else if (name == "--case") {
      out.change = value;
    } else if (name == "--mutant") {
      if (!parse_mutant(value, out)) return false;
    } else {
      return false;
    }
  }
  return out.end > 0;
}

SimCase case_of(std::uint64_t seed, const std::string& change) {
  SimCase out = make_case(seed);
  if (const Status status = change_case(out, change); !status.ok()) {
    std::fprintf(stderr, "%s\n", status.to_string().c_str());
    std::exit(2);
  }
  return out;
}

// What was wrong, and the commands that show it again, the second of them short.
void report(const Arguments& arguments, std::uint64_t seed, const std::string& complaint, const SimCase& sim_case) {
  const std::string mutant = arguments.mutation == Mutation::none ? "" : std::string(" --mutant ") + text_of(arguments.mutation).name;
  std::printf("seed %lu: %s\n  %s\n", seed, complaint.c_str(), describe(sim_case).c_str());
  if (arguments.one) return;
  const char* program = arguments.program.c_str();
  std::printf("  again: %s --seed %lu --case '%s'%s --timeline\n", program, seed, arguments.change.c_str(), mutant.c_str());
  const Shrunk small = shrink(seed, arguments.change);
  std::printf("  short: %lu steps: %s\n  %s --seed %lu --case '%s'%s --timeline\n", small.steps, small.complaint.c_str(), program, seed,
              small.change.c_str(), mutant.c_str());
  std::fflush(stdout);
}

int explore(const Arguments& arguments) {
  std::uint64_t steps = 0, runs = 0, done = 0, primed = 0, relaunches = 0, tiles = 0, bad = 0;
  const auto begin = std::chrono::steady_clock::now();
  for (std::uint64_t seed = arguments.first; seed < arguments.end; ++seed) {
    const SimCase sim_case = case_of(seed, arguments.change);
    const WorldResult result = play(sim_case, arguments.timeline);
    steps += result.steps;
    runs += result.runs;
    done += result.runs_done;
    tiles += result.tiles;
    primed += result.runs_primed;
    relaunches += result.relaunches;
    for (const std::string& line : result.timeline) std::printf("%s\n", line.c_str());
    if (result.complaint.empty()) continue;
    ++bad;
    report(arguments, seed, result.complaint, sim_case);
    if (bad >= 10) break;
  }
  const double seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
  std::printf("%lu seeds, %.1f M steps (%.2f us each), %lu runs, %lu of them done, %lu primed, %lu tiles, %lu relaunches: %lu wrong\n",
              arguments.end - arguments.first, static_cast<double>(steps) / 1e6, seconds * 1e6 / static_cast<double>(steps), runs, done,
              primed, tiles, relaunches, bad);
  return bad == 0 ? 0 : 1;
}

int mutants(const Arguments& arguments) {
  int missed = 0;
  for (std::size_t i = 1; i < kMutations; ++i) {
    Mutant::active = static_cast<Mutation>(i);
    std::uint64_t seed = arguments.first;
    WorldResult result;
    while (seed < arguments.end && (result = play(case_of(seed, arguments.change))).complaint.empty()) ++seed;
    const MutationText& text = text_of(Mutant::active);
    if (seed == arguments.end) {
      ++missed;
      std::printf("MISSED %s: %s\n", text.name, text.what);
    } else {
      std::printf("%-26s seed %4lu: %s\n", text.name, seed, result.complaint.c_str());
    }
    std::fflush(stdout);
  }
  return missed == 0 ? 0 : 1;
}

}  // namespace

int main(int argc, char** argv) {
  Arguments arguments;
  if (!parse(argc, argv, arguments)) return usage();
  Mutant::active = arguments.mutation;
  return arguments.mutants ? mutants(arguments) : explore(arguments);
}
