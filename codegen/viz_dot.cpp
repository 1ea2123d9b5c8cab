// dot_to_svg: runs Graphviz without a shell. Its input is an unnamed file, so that neither side can block the other.
#include <fcntl.h>
#include <spawn.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>

#include "codegen/viz_graph.hpp"

extern char** environ;

namespace ccks::codegen {
namespace {

/// A file descriptor that closes itself.
struct Fd {
  int fd = -1;
  explicit Fd(int f = -1) : fd(f) {}
  Fd(const Fd&) = delete;
  Fd& operator=(const Fd&) = delete;
  ~Fd() { close_now(); }
  void close_now() {
    if (fd >= 0) close(fd);
    fd = -1;
  }
};

Status failed(const char* what) { return {ErrorCode::io_error, std::string(what) + ": " + std::strerror(errno)}; }

Status fill(int fd, const std::string& text) {
  for (std::size_t done = 0; done < text.size();) {
    const ssize_t n = write(fd, text.data() + done, text.size() - done);
    if (n < 0 && errno != EINTR) return failed("writing the graph");
    if (n > 0) done += static_cast<std::size_t>(n);
  }
  return lseek(fd, 0, SEEK_SET) == 0 ? Status() : failed("writing the graph");
}

Status drain(int fd, std::string& out) {
  char buffer[65536];
  for (;;) {
    const ssize_t n = read(fd, buffer, sizeof buffer);
    if (n == 0) return {};
    if (n < 0 && errno != EINTR) return failed("reading from dot");
    if (n > 0) out.append(buffer, static_cast<std::size_t>(n));
  }
}

Status start(int in, int out, pid_t& pid) {
  posix_spawn_file_actions_t actions;
  posix_spawn_file_actions_init(&actions);
  posix_spawn_file_actions_adddup2(&actions, in, STDIN_FILENO);
  posix_spawn_file_actions_adddup2(&actions, out, STDOUT_FILENO);
  char name[] = "dot", format[] = "-Tsvg";
  char* const argv[] = {name, format, nullptr};
  const int error = posix_spawnp(&pid, "dot", &actions, nullptr, argv, environ);
  posix_spawn_file_actions_destroy(&actions);
  if (error == ENOENT)
    return {ErrorCode::unavailable, "the program 'dot' is not installed (package graphviz); the DOT source needs none"};
  return error == 0 ? Status() : Status(ErrorCode::unavailable, std::string("starting dot: ") + std::strerror(error));
}

}  // namespace

Result<std::string> dot_to_svg(const std::string& dot_source) {
  Fd source(memfd_create("graph", MFD_CLOEXEC));
  if (source.fd < 0) return failed("reserving memory for the graph");
  CCKS_RETURN_IF_ERROR(fill(source.fd, dot_source));
  int ends[2];
  if (pipe2(ends, O_CLOEXEC) != 0) return failed("opening a pipe");
  Fd reader(ends[0]), writer(ends[1]);
  pid_t pid = 0;
  CCKS_RETURN_IF_ERROR(start(source.fd, writer.fd, pid));
  writer.close_now();
  std::string svg;
  const Status read_status = drain(reader.fd, svg);
  reader.close_now();
  int code = 0;
  while (waitpid(pid, &code, 0) < 0)
    if (errno != EINTR) return failed("waiting for dot");
  CCKS_RETURN_IF_ERROR(read_status);
  if (!WIFEXITED(code) || WEXITSTATUS(code) != 0) return Status(ErrorCode::io_error, "dot failed on the graph");
  return svg;
}

}  // namespace ccks::codegen
