// The scheduler thread allocates nothing while work is in flight. operator new of this program counts what an armed
// thread asks for; callbacks run on the scheduler thread and arm it.
#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <new>

#include "tests/paths.hpp"
#include "tests/support/engine_runs.hpp"

namespace {

thread_local bool armed = false;
std::atomic<std::uint64_t> allocations{0};  // relaxed throughout: a counter

void* count_and_allocate(std::size_t bytes) {
  if (armed) allocations.fetch_add(1, std::memory_order_relaxed);
  return std::malloc(bytes == 0 ? 1 : bytes);
}

}  // namespace

// Not inlined: the compiler would see malloc and free behind new and delete, and warn of a mismatch.
[[gnu::noinline]] void* operator new(std::size_t bytes) {
  if (void* memory = count_and_allocate(bytes)) return memory;
  throw std::bad_alloc();
}
[[gnu::noinline]] void* operator new(std::size_t bytes, const std::nothrow_t&) noexcept { return count_and_allocate(bytes); }
[[gnu::noinline]] void operator delete(void* memory) noexcept { std::free(memory); }
[[gnu::noinline]] void operator delete(void* memory, std::size_t) noexcept { std::free(memory); }

namespace ccks::test {
namespace {

class EngineAllocation : public testing::TestWithParam<std::string> {};

TEST_P(EngineAllocation, SchedulerThreadAllocatesNothingInFlight) {
  const GraphPlan plan(layered_graph(3));
  EngineOptions options;
  set_way(options, GetParam());
  options.trace_records = 1024;
  if (options.workers_per_run == 0) options.record_path = std::string(CCKS_BINARY_DIR) + "/allocation." + GetParam() + ".record";  // decisions for groups are not recorded
  Engine engine = open_graph_engine(plan, options);
  std::uint64_t before = 0;
  for (std::uint64_t i = 0; i < 300; ++i) {
    RunRequest request;
    request.dims = {{"n", 1 + static_cast<std::int64_t>(i % 8)}};
    if (i == 0) request.on_done = [](const Status&) { armed = true; };
    // The control: the counter must see what a callback allocates on that thread. (A new-expression could be optimised
    // away.)
    if (i == 200) request.on_done = [](const Status&) { ::operator delete(::operator new(8)); };
    Result<ccks::Run> run = engine.submit(std::move(request));
    ASSERT_TRUE(run.ok());
    if (i == 1) before = allocations.load(std::memory_order_relaxed);
    if (i == 199) {
      ASSERT_TRUE(engine.drain(std::chrono::seconds(20)).ok());
      EXPECT_EQ(allocations.load(std::memory_order_relaxed), before);
    }
  }
  ASSERT_TRUE(engine.drain(std::chrono::seconds(20)).ok());
  EXPECT_GE(allocations.load(std::memory_order_relaxed), before + 1);
  std::remove(options.record_path.c_str());
}

// Runs that follow each other alone, each sent by submit(): what the thread makes out ahead has its room from the beginning.
TEST(PrimedAllocation, TheSchedulerThreadAllocatesNothing) {
  const GraphPlan plan(layered_graph(3));
  Engine engine = open_graph_engine(plan, options_of("static"));
  std::uint64_t before = 0;
  for (std::uint64_t i = 0; i < 300; ++i) {
    RunRequest request;
    request.dims = {{"n", 4}};
    if (i == 0) request.on_done = [](const Status&) { armed = true; };
    if (i == 200) request.on_done = [](const Status&) { ::operator delete(::operator new(8)); };  // the control, as above
    Result<ccks::Run> run = engine.submit(std::move(request));
    ASSERT_TRUE(run.ok());
    ASSERT_TRUE(run->wait().ok());
    if (i == 1) before = allocations.load(std::memory_order_relaxed);
    if (i == 199) {
      EXPECT_EQ(allocations.load(std::memory_order_relaxed), before);
    }
  }
  EXPECT_GT(engine.stats().runs_primed, 0u);
  EXPECT_GE(allocations.load(std::memory_order_relaxed), before + 1);
}

INSTANTIATE_TEST_SUITE_P(Policies, EngineAllocation, testing::ValuesIn(kWays),
                         [](const auto& policy) { return policy.param; });

}  // namespace
}  // namespace ccks::test
