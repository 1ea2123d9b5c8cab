#include "gpu/host/memory.hpp"

#include <fmt/format.h>
#include <numa.h>
#include <sys/mman.h>

#include <cerrno>
#include <cstring>

namespace ccks::gpu {
namespace {

constexpr std::uint64_t kPage = 4096;
constexpr std::uint64_t kHugePage = 2u << 20;  // x86-64 and 4 KiB-page arm64
// Below this, huge pages waste more memory than they save misses.
constexpr std::uint64_t kHugeFrom = 4 * kHugePage;

std::uint64_t round_up(std::uint64_t bytes, std::uint64_t unit) { return (bytes + unit - 1) / unit * unit; }

void place(void* address, std::uint64_t bytes, Placement placement, int node) {
  if (numa_available() < 0 || numa_num_configured_nodes() < 2) return;
  if (placement == Placement::spread) {
    numa_interleave_memory(address, bytes, numa_all_nodes_ptr);
  } else if (node >= 0 && node <= numa_max_node()) {
    numa_tonode_memory(address, bytes, node);
  } else {
    numa_setlocal_memory(address, bytes);
  }
}

class SystemTransport final : public Transport {
 public:
  SystemTransport(bool pinned, int node) : pinned_(pinned), node_(node) {}
  const char* name() const override { return pinned_ ? "pinned" : "coherent"; }
  Result<Block> allocate(std::uint64_t bytes) override {
    auto block = map_pages(bytes, Placement::near_caller, node_);
    // Touched now: the first access of a GPU would be a fault that the CPU has to serve.
    if (block.ok()) std::memset(block->address, 0, block->bytes);
    // Best effort: a low RLIMIT_MEMLOCK costs a page fault now and then, never correctness.
    if (block.ok() && pinned_) (void)mlock(block->address, block->bytes);
    return block;
  }
  void release(const Block& block) override { unmap_pages(block); }

 private:
  bool pinned_;
  int node_;
};

}  // namespace

Result<Block> map_pages(std::uint64_t bytes, Placement placement, int node) {
  const bool huge = bytes >= kHugeFrom;
  if (bytes > UINT64_MAX / 2) return {ErrorCode::out_of_memory, fmt::format("{} bytes is beyond any memory", bytes)};
  const std::uint64_t size = round_up(bytes == 0 ? 1 : bytes, huge ? kHugePage : kPage);
  void* address = mmap(nullptr, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (address == MAP_FAILED) {
    return {ErrorCode::out_of_memory, fmt::format("mmap of {} bytes: {}", size, std::strerror(errno))};
  }
  if (huge) (void)madvise(address, size, MADV_HUGEPAGE);  // a hint: systems without huge pages refuse it
  place(address, size, placement, node);
  return Block{address, size};
}

void unmap_pages(const Block& block) {
  if (block.address != nullptr) munmap(block.address, block.bytes);
}

Result<std::unique_ptr<Transport>> make_system_transport(const std::string& name, int node) {
  if (name != "coherent" && name != "pinned") {
    return {ErrorCode::invalid_argument, fmt::format("unknown transport '{}': use auto, coherent or pinned", name)};
  }
  return std::unique_ptr<Transport>(new SystemTransport(name == "pinned", node));
}

}  // namespace ccks::gpu
