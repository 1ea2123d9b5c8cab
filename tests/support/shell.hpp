// A command as a shell runs it.
#pragma once

#include <sys/wait.h>

#include <cstdio>
#include <string>

namespace ccks::test {

struct Ended {
  int exit_code = -1;
  std::string text;  // stdout and stderr
};

inline Ended run_shell(const std::string& command) {
  Ended out;
  std::FILE* pipe = popen((command + " 2>&1").c_str(), "r");
  char block[4096];
  for (std::size_t got = 0; (got = std::fread(block, 1, sizeof(block), pipe)) > 0;) out.text.append(block, got);
  const int status = pclose(pipe);
  out.exit_code = WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
  return out;
}

}  // namespace ccks::test
