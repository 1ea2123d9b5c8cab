#include "gpu/cuda/worker_code.hpp"

#include <fmt/format.h>

#include <utility>

#include "gpu/cuda/kernels.hpp"

namespace ccks::gpu {
namespace {

/// The worker, or its bodies.
const void* image_of(const WorkerImage& image) { return image.cuda_image != nullptr ? image.cuda_image : ccks_image_generic_worker; }

bool is_apart(const WorkerImage& image) { return image.cuda_loop != nullptr; }

Status open_code(const Driver& driver, const void* image, Kernel& kernel) {
  if (kernel.library == nullptr) CCKS_CU(driver, cuModuleLoadData(&kernel.module, image));
  kernel.image = image;
  return {};
}

Status find_function(const Driver& driver, const char* name, Kernel& kernel) {
  if (kernel.library != nullptr) {
    CUkernel found = nullptr;
    CCKS_CU(driver, cuLibraryGetKernel(&found, kernel.library, name));
    CCKS_CU(driver, cuKernelGetFunction(&kernel.function, found));
  } else {
    CCKS_CU(driver, cuModuleGetFunction(&kernel.function, kernel.module, name));
  }
  const auto attribute = [&](CUfunction_attribute which, unsigned& to) -> Status {
    int value = 0;
    CCKS_CU(driver, cuFuncGetAttribute(&value, which, kernel.function));
    to = static_cast<unsigned>(value);
    return {};
  };
  CCKS_RETURN_IF_ERROR(attribute(CU_FUNC_ATTRIBUTE_MAX_THREADS_PER_BLOCK, kernel.threads));
  CCKS_RETURN_IF_ERROR(attribute(CU_FUNC_ATTRIBUTE_SHARED_SIZE_BYTES, kernel.takes.static_shared_bytes));
  CCKS_RETURN_IF_ERROR(attribute(CU_FUNC_ATTRIBUTE_NUM_REGS, kernel.takes.registers));
  CCKS_RETURN_IF_ERROR(attribute(CU_FUNC_ATTRIBUTE_LOCAL_SIZE_BYTES, kernel.takes.stack_bytes));
  kernel.threads = kernel.threads / 32 * 32;
  return {};
}

}  // namespace

Status load_kernel(const Driver& driver, const void* image, const char* name, Kernel& kernel) {
  CCKS_RETURN_IF_ERROR(open_code(driver, image, kernel));
  return find_function(driver, name, kernel);
}

void unload_kernel(const Driver& driver, Kernel& kernel) {
  // Nothing to be done if one fails.
  if (kernel.module != nullptr) (void)driver.cuModuleUnload(kernel.module);
  if (kernel.library != nullptr) (void)driver.cuLibraryUnload(kernel.library);
  kernel = {};
}

bool WorkerCode::prepares() const {
  CUmoduleLoadingMode mode = CU_MODULE_EAGER_LOADING;
  const bool knows = driver_.cuModuleGetLoadingMode != nullptr && driver_.cuLibraryLoadData != nullptr && driver_.cuLibraryUnload != nullptr &&
                     driver_.cuLibraryGetKernel != nullptr && driver_.cuKernelGetFunction != nullptr;
  return knows && driver_.cuModuleGetLoadingMode(&mode) == CUDA_SUCCESS && mode == CU_MODULE_LAZY_LOADING;
}

bool WorkerCode::is_loaded(const WorkerImage& image) const {
  if (!is_apart(image)) return code_.worker.image == image_of(image) && code_.entry == 0;
  return code_.worker.image == image.cuda_loop && code_.bodies.image == image.cuda_image;
}

Status WorkerCode::prepare(const WorkerImage& image) {
  if (is_loaded(image)) return {};
  unload_kernel(driver_, prepared_);
  prepared_needs_.reset();
  if (is_apart(image)) {
    auto needs = bodies_needs({static_cast<const std::byte*>(image.cuda_image), image.cuda_image_bytes});
    if (!needs.ok()) return needs.status();
    prepared_needs_ = *needs;
  }
  if (!prepares()) return {};
  CCKS_CU(driver_, cuLibraryLoadData(&prepared_.library, image_of(image), nullptr, nullptr, 0, nullptr, nullptr, 0));
  prepared_.image = image_of(image);
  return {};
}

/// What is there goes only once the new code has come: the driver gives memory for code back with the last of it, and a load that has to get it anew waits
/// for the kernel of the operating system. It goes then, though: kept modules fill that memory, and the load that needs the next piece of it waits 200 us
/// longer.
Status WorkerCode::load(const WorkerImage& image) {
  if (is_loaded(image)) return {};
  const bool apart = is_apart(image);
  const void* loop = apart ? image.cuda_loop : image_of(image);
  const bool has_loop = code_.worker.function != nullptr && code_.worker.image == loop;
  Code next;
  if (has_loop) next.worker = code_.worker;
  if (prepared_.image == image_of(image)) std::swap(apart ? next.bodies : next.worker, prepared_);
  Status loaded = has_loop ? Status() : load_kernel(driver_, loop, "ccks_worker", next.worker);
  if (loaded.ok() && apart) loaded = load_bodies(image, next);
  if (loaded.ok()) std::swap(code_, next);
  if (loaded.ok() && !has_loop) ++kernels_;
  if (has_loop) next.worker = {};  // both have it
  unload_kernel(driver_, next.worker);
  unload_kernel(driver_, next.bodies);
  return loaded;
}

void WorkerCode::unload() {
  for (Kernel* kernel : {&code_.worker, &code_.bodies, &prepared_}) unload_kernel(driver_, *kernel);
}

/// A call from one image into another is no concern of the compiler's: that the loop has what bodies need is found out here. What they need has been read off the file, so that a
/// handoff asks the driver for nothing but one address.
Status WorkerCode::load_bodies(const WorkerImage& image, Code& code) {
  const Kernel& loop = code.worker;
  Kernel& bodies = code.bodies;
  std::optional<BodiesNeeds> needs = bodies.library != nullptr ? prepared_needs_ : std::nullopt;
  if (!needs) {
    auto found = bodies_needs({static_cast<const std::byte*>(image.cuda_image), image.cuda_image_bytes});
    if (!found.ok()) return found.status();
    needs = *found;
  }
  CCKS_RETURN_IF_ERROR(open_code(driver_, image.cuda_image, bodies));
  if (!needs) {
    CCKS_RETURN_IF_ERROR(find_function(driver_, "ccks_bodies", bodies));
    needs = bodies.takes;
  }
  if (needs->registers > loop.takes.registers || needs->static_shared_bytes > loop.takes.static_shared_bytes) {
    return {ErrorCode::invalid_data, fmt::format("op bodies of {} registers and {} bytes of static shared memory do not go with a worker loop of {} and {}: compile both alike (ccks/worker/apart_ops.cuh)",
                                                 needs->registers, needs->static_shared_bytes, loop.takes.registers, loop.takes.static_shared_bytes)};
  }
  CCKS_RETURN_IF_ERROR(make_stack(loop.takes.stack_bytes + needs->stack_bytes));
  return find_entry(code);
}

Status WorkerCode::find_entry(Code& code) const {
  constexpr const char* kEntry = "ccks_bodies_entry";
  std::size_t bytes = 0;
  if (code.bodies.library != nullptr && driver_.cuLibraryGetGlobal != nullptr) {
    CCKS_CU(driver_, cuLibraryGetGlobal(&code.entry, &bytes, code.bodies.library, kEntry));
  } else if (code.bodies.module != nullptr && driver_.cuModuleGetGlobal != nullptr) {
    CCKS_CU(driver_, cuModuleGetGlobal(&code.entry, &bytes, code.bodies.module, kEntry));
  } else {
    return {ErrorCode::unsupported, "the CUDA driver is too old for workers whose bodies are an image of their own: it does not find variables"};
  }
  return {};
}

/// What a kernel that calls by address has for its stack is the context's limit, since its compiler does not see who is called.
Status WorkerCode::make_stack(unsigned bytes) const {
  std::size_t limit = 0;
  CCKS_CU(driver_, cuCtxGetLimit(&limit, CU_LIMIT_STACK_SIZE));
  if (limit < bytes) CCKS_CU(driver_, cuCtxSetLimit(CU_LIMIT_STACK_SIZE, bytes));
  return {};
}

}  // namespace ccks::gpu
