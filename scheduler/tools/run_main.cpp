// ccks-run: runs a spec on a device and says how it went.
#include <signal.h>
#include <unistd.h>

#include <atomic>
#include <cstdio>

#include "scheduler/tools/run_report.hpp"

namespace {

std::atomic<bool> interrupted{false};
static_assert(std::atomic<bool>::is_always_lock_free, "a signal handler may only touch lock-free atomics");

// The first Ctrl-C asks for a clean stop; the handler is gone then, so that the second one kills.
void on_signal(int) { interrupted.store(true, std::memory_order_relaxed); }  // relaxed: the flag carries no data

void catch_signals() {
  struct sigaction action {};
  action.sa_handler = on_signal;
  action.sa_flags = static_cast<int>(SA_RESETHAND);
  sigaction(SIGINT, &action, nullptr);
  sigaction(SIGTERM, &action, nullptr);
}

void print(std::FILE* to, const std::string& text) { std::fwrite(text.data(), 1, text.size(), to); }

}  // namespace

int main(int argc, char** argv) {
  ccks::run::Options options;
  int exit_code = ccks::run::kDone;
  if (!ccks::run::parse_options(argc, argv, options, exit_code)) return exit_code;
  catch_signals();
  const bool progress = !options.json && !options.quiet && isatty(STDERR_FILENO) == 1;
  ccks::run::Outcome outcome;
  const auto on_token = [&](const ccks::GeneratedToken& token) {
    if (options.quiet) return;
    print(stdout, ccks::run::token_line(options, token));
    std::fflush(stdout);
  };
  if (const ccks::run::Failure failure = ccks::run::run_session(options, interrupted, progress, outcome, on_token)) {
    print(stderr, "ccks-run: " + failure.message + (failure.message.ends_with('\n') ? "" : "\n"));
    return failure.exit_code;
  }
  if (options.json) {
    print(stdout, ccks::run::to_json(options, outcome));
  } else if (!options.quiet) {
    print(stdout, ccks::run::to_text(options, outcome));
  }
  if (std::fflush(stdout) != 0) return ccks::run::kInputAtFault;
  return outcome.verified && !outcome.verification.passed ? ccks::run::kVerificationFailed : ccks::run::kDone;
}
