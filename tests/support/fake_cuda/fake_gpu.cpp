#include "tests/support/fake_cuda/fake_gpu.hpp"

#include <cstdlib>
#include <cstring>
#include <thread>
#include <vector>

#include "ccks/wire/atoms.hpp"
#include "ccks/worker/platform_host.hpp"
#include "ccks/worker/tile_hints.hpp"
#include "gpu/host/isa.hpp"

namespace ccks::test {
namespace {

constexpr std::size_t kBlockBytes = 256;  // what the driver aligns to

std::int64_t steady_ns() {
  const auto now = std::chrono::steady_clock::now().time_since_epoch();
  return std::chrono::duration_cast<std::chrono::nanoseconds>(now).count();
}

struct FakeModule {
  HostWorkerEntry entry;  // of a worker, or of what the bodies of an image of their own make of one
  unsigned registers, stack_bytes;
};

/// What a grid's threads use; the last of them lets it go.
struct Grid {
  wire::WorkerParams params;
  std::vector<std::vector<wire::u8>> scratch;
  std::vector<worker::HostWorkerContext> contexts;
};

bool nap(void*) {
  std::this_thread::sleep_for(std::chrono::microseconds(50));
  return true;
}
void posted(void*) {}

std::shared_ptr<Grid> make_grid(const wire::WorkerParams& params, unsigned blocks) {
  auto grid = std::make_shared<Grid>();
  grid->params = params;
  const std::size_t bytes = std::max<std::size_t>(params.scratch_bytes, worker::kHostScratchBytes);
  for (unsigned i = 0; i < blocks; ++i) {
    grid->scratch.emplace_back(bytes + wire::kCacheLineBytes);
    auto* aligned = reinterpret_cast<wire::u8*>(
        (reinterpret_cast<std::uintptr_t>(grid->scratch.back().data()) + wire::kCacheLineBytes - 1) /
        wire::kCacheLineBytes * wire::kCacheLineBytes);
    grid->contexts.push_back({aligned, static_cast<wire::u32>(bytes), 30, 100, nullptr, nap, posted});
  }
  return grid;
}

/// The kernel `ccks_clock` (gpu/cuda/clock.cu).
void play_clock(wire::u32* box, wire::u32 rounds) {
  for (wire::u32 round = 1; round <= rounds; ++round) {
    const std::int64_t since = steady_ns();
    while (wire::HostAtoms::link_load_acquire(&box[0]) != round) {  // [K2] pairs with [K1]
      if (steady_ns() - since > 1'000'000'000) return;
      std::this_thread::yield();
    }
    wire::HostAtoms::link_store_relaxed(reinterpret_cast<wire::u64*>(box + 2), static_cast<wire::u64>(steady_ns()));
    wire::HostAtoms::link_store_release(&box[1], round);  // [K3] pairs with [K4]
  }
}

}  // namespace

FakeGpu& fake_gpu() {
  static FakeGpu* gpu = new FakeGpu;  // never destroyed: a grid that never ends may outlive main
  return *gpu;
}

void FakeGpu::reset() {
  settings_ = {};
  loads_.store(0, std::memory_order_relaxed);
  stack_limit_.store(kStackLimit, std::memory_order_relaxed);
  launches_.store(0, std::memory_order_relaxed);
  blocked_.store(0, std::memory_order_relaxed);
  launched_at_ns_.store(0, std::memory_order_relaxed);  // relaxed: tests reset while nothing runs
}

bool FakeGpu::set(const std::string& name, long value) {
  const std::pair<const char*, long*> all[] = {
      {"devices", &settings_.devices},           {"processors", &settings_.processors},
      {"cooperative", &settings_.cooperative},   {"shared_bytes", &settings_.shared_bytes},
      {"memory_bytes", &settings_.memory_bytes}, {"coherent", &settings_.coherent},
      {"init_error", &settings_.init_error},     {"launch_error", &settings_.launch_error},
      {"load_error", &settings_.load_error},     {"lazy", &settings_.lazy}, {"sticky_error", &settings_.sticky_error},
      {"sticky_after_ms", &settings_.sticky_after_ms}, {"start_delay_ms", &settings_.start_delay_ms}};
  for (const auto& [known, place] : all) {
    // Relaxed: a setting is a lone word, and threads of the device may be reading it.
    if (name == known) return std::atomic_ref(*place).store(value, std::memory_order_relaxed), true;
  }
  return false;
}

CUresult FakeGpu::sticky() const {
  auto& settings = const_cast<FakeSettings&>(settings_);
  const long error = std::atomic_ref(settings.sticky_error).load(std::memory_order_relaxed);  // relaxed: as in set()
  const std::int64_t since = launched_at_ns_.load(std::memory_order_relaxed);
  const bool due = since != 0 && steady_ns() - since >= settings_.sticky_after_ms * 1'000'000;
  return error != 0 && due ? static_cast<CUresult>(error) : CUDA_SUCCESS;
}

void FakeGpu::wait_for_grid() {
  if (!grid_alive()) return;
  blocked_.fetch_add(1, std::memory_order_relaxed);
  while (grid_alive()) std::this_thread::sleep_for(std::chrono::microseconds(100));
}

std::uint64_t FakeGpu::modules_loaded() {
  const std::lock_guard lock(mutex_);
  return modules_.size();
}

// ---- what the GPU is ------------------------------------------------------------------------------------------------

CUresult FakeGpu::device_count(int* count) const {
  *count = static_cast<int>(settings_.devices);
  return CUDA_SUCCESS;
}

CUresult FakeGpu::device_name(char* name, int length) const {
  std::strncpy(name, "Played GPU", static_cast<std::size_t>(length) - 1);
  return CUDA_SUCCESS;
}

CUresult FakeGpu::attribute(int* value, CUdevice_attribute which) const {
  switch (which) {
    case CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT: *value = static_cast<int>(settings_.processors); break;
    case CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK_OPTIN: *value = static_cast<int>(settings_.shared_bytes); break;
    // Workers are played by the host's loop, which takes lists of tasks, as those of a GPU before sm_80 would.
    case CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR: *value = 7; break;
    case CU_DEVICE_ATTRIBUTE_COOPERATIVE_LAUNCH: *value = static_cast<int>(settings_.cooperative); break;
    case CU_DEVICE_ATTRIBUTE_PAGEABLE_MEMORY_ACCESS_USES_HOST_PAGE_TABLES:
    case CU_DEVICE_ATTRIBUTE_HOST_NATIVE_ATOMIC_SUPPORTED: *value = static_cast<int>(settings_.coherent); break;
    default: *value = 0; break;
  }
  return CUDA_SUCCESS;
}

CUresult FakeGpu::total_memory(std::size_t* bytes) const {
  *bytes = static_cast<std::size_t>(settings_.memory_bytes);
  return CUDA_SUCCESS;
}

// ---- streams and memory ---------------------------------------------------------------------------------------------

CUresult FakeGpu::stream_create(CUstream* stream) {
  static int place;
  *stream = reinterpret_cast<CUstream>(&place);  // only the workers' stream ever has something on it
  return sticky();
}

CUresult FakeGpu::stream_query() {
  if (const CUresult error = sticky(); error != CUDA_SUCCESS) return error;
  return grid_alive() ? CUDA_ERROR_NOT_READY : CUDA_SUCCESS;
}

/// Copies are done when they are asked for, so this never waits for a grid that copies run beside.
CUresult FakeGpu::stream_synchronize() { return sticky(); }

CUresult FakeGpu::allocate(void** address, std::size_t bytes, bool device) {
  if (const CUresult error = sticky(); error != CUDA_SUCCESS) return error;
  const std::lock_guard lock(mutex_);
  std::size_t used = bytes;
  for (const auto& [block, size] : device_blocks_) used += size;
  if (device && used > static_cast<std::size_t>(settings_.memory_bytes)) return CUDA_ERROR_OUT_OF_MEMORY;
  const std::size_t size = (bytes + kBlockBytes - 1) / kBlockBytes * kBlockBytes;
  *address = std::aligned_alloc(kBlockBytes, size);
  if (*address == nullptr) return CUDA_ERROR_OUT_OF_MEMORY;
  std::memset(*address, 0xa5, size);  // whoever needs zeros must ask for them
  (device ? device_blocks_ : host_blocks_)[*address] = size;
  return CUDA_SUCCESS;
}

CUresult FakeGpu::release(void* address) {
  if (const CUresult error = sticky(); error != CUDA_SUCCESS) return error;
  wait_for_grid();
  const std::lock_guard lock(mutex_);
  if (device_blocks_.erase(address) + host_blocks_.erase(address) == 0) return CUDA_ERROR_INVALID_VALUE;
  std::free(address);
  return CUDA_SUCCESS;
}

CUresult FakeGpu::copy(void* to, const void* from, std::size_t bytes) {
  if (const CUresult error = sticky(); error != CUDA_SUCCESS) return error;
  std::memcpy(to, from, bytes);
  return CUDA_SUCCESS;
}

CUresult FakeGpu::fill(void* to, unsigned char value, std::size_t bytes) {
  if (const CUresult error = sticky(); error != CUDA_SUCCESS) return error;
  std::memset(to, value, bytes);
  return CUDA_SUCCESS;
}

// ---- code -----------------------------------------------------------------------------------------------------------

CUresult FakeGpu::module_load(CUmodule* module, const void* image) {
  if (const CUresult error = sticky(); error != CUDA_SUCCESS) return error;
  wait_for_grid();
  return make_module(module, image);
}

CUresult FakeGpu::loading_mode(CUmoduleLoadingMode* mode) const {
  *mode = settings_.lazy != 0 ? CU_MODULE_LAZY_LOADING : CU_MODULE_EAGER_LOADING;
  return CUDA_SUCCESS;
}

CUresult FakeGpu::library_load(CUlibrary* library, const void* image) {
  if (const CUresult error = sticky(); error != CUDA_SUCCESS) return error;
  if (settings_.lazy == 0) wait_for_grid();
  return make_module(reinterpret_cast<CUmodule*>(library), image);
}

CUresult FakeGpu::kernel_function(CUfunction* function, CUkernel kernel) {
  wait_for_grid();
  *function = reinterpret_cast<CUfunction>(kernel);
  return CUDA_SUCCESS;
}

CUresult FakeGpu::make_module(CUmodule* module, const void* image) {
  if (settings_.load_error != 0) return static_cast<CUresult>(settings_.load_error);
  const auto* fake = static_cast<const FakeImage*>(image);
  const bool known = std::memcmp(image, FakeImage{}.magic, sizeof(fake->magic)) == 0;
  auto* made = new FakeModule{known ? fake->entry : gpu::best_host_isa().entry, known ? fake->registers : FakeImage{}.registers, known ? fake->stack_bytes : 0};
  *module = reinterpret_cast<CUmodule>(made);
  loads_.fetch_add(1, std::memory_order_relaxed);  // relaxed: a counter
  const std::lock_guard lock(mutex_);
  modules_.insert(*module);
  return CUDA_SUCCESS;
}

CUresult FakeGpu::module_unload(CUmodule module) {
  wait_for_grid();
  const std::lock_guard lock(mutex_);
  if (modules_.erase(module) == 0) return CUDA_ERROR_INVALID_HANDLE;
  delete reinterpret_cast<FakeModule*>(module);
  return CUDA_SUCCESS;
}

CUresult FakeGpu::module_function(CUfunction* function, CUmodule module, const char* name) const {
  const auto* fake = reinterpret_cast<const FakeModule*>(module);
  if (std::strcmp(name, "ccks_worker") == 0 && fake->entry == nullptr) return CUDA_ERROR_NOT_FOUND;
  *function = reinterpret_cast<CUfunction>(module);
  return CUDA_SUCCESS;
}

/// The one variable that is asked for: the entry of bodies, as a word of memory.
CUresult FakeGpu::module_global(CUdeviceptr* address, std::size_t* bytes, CUmodule module, const char* name) const {
  if (std::strcmp(name, "ccks_bodies_entry") != 0) return CUDA_ERROR_NOT_FOUND;
  *address = reinterpret_cast<CUdeviceptr>(&reinterpret_cast<const FakeModule*>(module)->entry);
  *bytes = sizeof(HostWorkerEntry);
  return CUDA_SUCCESS;
}

CUresult FakeGpu::get_limit(std::size_t* value, CUlimit limit) const {
  if (limit != CU_LIMIT_STACK_SIZE) return CUDA_ERROR_UNSUPPORTED_LIMIT;
  *value = stack_limit();
  return CUDA_SUCCESS;
}

/// Local memory is laid out anew, for which nobody may use it.
CUresult FakeGpu::set_limit(CUlimit limit, std::size_t value) {
  if (limit != CU_LIMIT_STACK_SIZE) return CUDA_ERROR_UNSUPPORTED_LIMIT;
  wait_for_grid();
  stack_limit_.store(value, std::memory_order_relaxed);  // relaxed: a lone word
  return CUDA_SUCCESS;
}

CUresult FakeGpu::function_attribute(int* value, CUfunction_attribute which, CUfunction function) const {
  switch (which) {
    case CU_FUNC_ATTRIBUTE_MAX_THREADS_PER_BLOCK: *value = 256; break;
    case CU_FUNC_ATTRIBUTE_LOCAL_SIZE_BYTES: *value = static_cast<int>(reinterpret_cast<const FakeModule*>(function)->stack_bytes); break;
    case CU_FUNC_ATTRIBUTE_NUM_REGS: *value = static_cast<int>(reinterpret_cast<const FakeModule*>(function)->registers); break;
    default: *value = 1024; break;
  }
  return CUDA_SUCCESS;
}

CUresult FakeGpu::occupancy(int* blocks, std::size_t dynamic_shared) const {
  *blocks = dynamic_shared + 1024 <= static_cast<std::size_t>(settings_.shared_bytes) ? 1 : 0;
  return CUDA_SUCCESS;
}

CUresult FakeGpu::launch_clock(void** arguments) {
  if (const CUresult error = sticky(); error != CUDA_SUCCESS) return error;
  auto* box = *static_cast<wire::u32**>(arguments[0]);
  const wire::u32 rounds = *static_cast<wire::u32*>(arguments[1]);
  alive_.fetch_add(1, std::memory_order_relaxed);  // relaxed: starting the thread orders it
  std::thread([this, box, rounds] {
    play_clock(box, rounds);
    alive_.fetch_sub(1, std::memory_order_release);  // [F1] pairs with [F2]
  }).detach();
  return CUDA_SUCCESS;
}

CUresult FakeGpu::launch_grid(CUfunction function, unsigned blocks, void** arguments) {
  if (const CUresult error = sticky(); error != CUDA_SUCCESS) return error;
  if (settings_.launch_error != 0) return static_cast<CUresult>(settings_.launch_error);
  while (grid_alive()) std::this_thread::yield();  // one stream: what was launched before ends first
  launches_.fetch_add(1, std::memory_order_relaxed);
  launched_at_ns_.store(steady_ns(), std::memory_order_relaxed);
  const auto grid = make_grid(*static_cast<const wire::WorkerParams*>(arguments[0]), blocks);
  // Workers whose bodies are apart are played by what stands where they would look for these.
  const HostWorkerEntry entry =
      grid->params.bodies != 0 ? *reinterpret_cast<const HostWorkerEntry*>(grid->params.bodies) : reinterpret_cast<const FakeModule*>(function)->entry;
  const auto delay = std::chrono::milliseconds(settings_.start_delay_ms);
  alive_.fetch_add(blocks, std::memory_order_relaxed);  // relaxed: starting the threads orders it
  for (unsigned i = 0; i < blocks; ++i) {
    std::thread([this, grid, entry, delay, i] {
      std::this_thread::sleep_for(delay);
      entry(&grid->params, i, &grid->contexts[i]);
      alive_.fetch_sub(1, std::memory_order_release);  // [F1] pairs with [F2]
    }).detach();
  }
  return CUDA_SUCCESS;
}

}  // namespace ccks::test
