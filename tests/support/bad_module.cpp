// A generated program as bad as can be: for tests of ccks-run. It takes its plan from the spec named in CCKS_BAD_SPEC, and
// its ops do what CCKS_BAD_OPS says: nothing, fault, wild (write where no memory is), or endless.
#include <atomic>
#include <cstdlib>
#include <cstring>
#include <string_view>
#include <thread>

#include "ccks/program.hpp"
#include "ccks/worker/host_entry.hpp"

namespace {

std::string_view wanted() {
  static const char* const kWanted = std::getenv("CCKS_BAD_OPS");
  return kWanted != nullptr ? kWanted : "nothing";
}

struct BadOps {
  template <class Lanes>
  static ccks::wire::FaultCode run(Lanes&, const ccks::wire::RunFrame&, const ccks::wire::OpParams&, ccks::wire::u32) {
    std::atomic<bool> never{false};
    if (wanted() == "fault") return ccks::wire::FaultCode::op_fault;
    if (wanted() == "wild") std::memset(reinterpret_cast<void*>(std::strtoul("64", nullptr, 10)), 1, 64);
    while (wanted() == "endless" && !never.load(std::memory_order_relaxed)) std::this_thread::yield();
    return ccks::wire::FaultCode::none;
  }
};

}  // namespace

extern "C" const ccks::GeneratedProgram* ccks_generated_program() {
  static const ccks::Result<ccks::Program> kProgram = ccks::Program::from_spec_file(std::getenv("CCKS_BAD_SPEC"));
  if (!kProgram.ok()) return nullptr;
  static const ccks::GeneratedProgram kGenerated{
      kProgram.value().plan(),
      {.host = [](const ccks::wire::WorkerParams* params, std::uint32_t index, void* context) {
        ccks::worker::host_worker_main<BadOps>(params, index, context);
      }}};
  return &kGenerated;
}
