// WorkerCode: the machine code that a device's workers run, and how it gives way to other code. Owned by one CudaDevice, whose context is current in every call; loads, unloads and
// limits of the context wait for resident workers, so nothing but prepare() is called beside them.
#pragma once

#include "ccks/device.hpp"
#include "gpu/cubin.hpp"
#include "gpu/cuda/driver.hpp"

namespace ccks::gpu {

/// A kernel and the module or library that it is of.
struct Kernel {
  const void* image = nullptr;
  CUmodule module = nullptr;    // this or the other
  CUlibrary library = nullptr;
  CUfunction function = nullptr;
  unsigned threads = 0;         // of a block, whole warps
  BodiesNeeds takes;
};

/// Loads `image`, or takes up a library of it that is there already, and finds the kernel.
Status load_kernel(const Driver& driver, const void* image, const char* name, Kernel& kernel);
void unload_kernel(const Driver& driver, Kernel& kernel);

class WorkerCode {
 public:
  explicit WorkerCode(const Driver& driver) : driver_(driver) {}

  /// Opens `image` for the load to come where that waits for nobody, and refuses bodies that no loop could call. Workers may be resident.
  Status prepare(const WorkerImage& image);
  /// Makes it the code of the next launch. If it cannot be loaded everything stays as it was.
  Status load(const WorkerImage& image);
  void unload();

  /// The kernel to launch.
  const Kernel& kernel() const { return code_.worker; }
  /// How many there have been, so that what was found out of one is not taken for another's.
  std::uint64_t kernels() const { return kernels_; }
  /// Where the address of the op bodies' function stands on the GPU, if they are an image of their own; else 0.
  CUdeviceptr bodies_entry() const { return code_.entry; }

 private:
  struct Code {
    Kernel worker, bodies;
    CUdeviceptr entry = 0;
  };

  bool prepares() const;
  bool is_loaded(const WorkerImage& image) const;
  Status load_bodies(const WorkerImage& image, Code& code);
  Status find_entry(Code& code) const;
  Status make_stack(unsigned bytes) const;

  const Driver& driver_;
  Code code_;
  Kernel prepared_;  // what prepare() has opened: a library alone
  std::optional<BodiesNeeds> prepared_needs_;
  std::uint64_t kernels_ = 0;
};

}  // namespace ccks::gpu
