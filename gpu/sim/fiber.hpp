// Fiber: a stack of its own on one thread. ucontext makes it, setjmp and longjmp change over to it: swapcontext would make
// two system calls each time, and a simulation changes over a hundred million times.
#pragma once

#include <csetjmp>
#include <cstddef>
#include <memory>

namespace ccks::gpu::sim {

/// One thread. A fiber that is destroyed is not unwound: what it holds on its stack is not destroyed either.
class Fiber {
 public:
  /// What the thread itself runs on: others switch back to it.
  Fiber() = default;
  ~Fiber();
  Fiber(const Fiber&) = delete;
  Fiber& operator=(const Fiber&) = delete;

  /// Prepares to run entry(argument) once it is switched to. `entry` must not return: it switches away for good.
  void start(void (*entry)(void*), void* argument);
  /// From the fiber that runs, which is *this, to `next`. Returns when somebody switches back.
  void switch_to(Fiber& next);

 private:
  void begin();

  std::unique_ptr<std::byte[]> stack_;
  void (*entry_)(void*) = nullptr;
  void* argument_ = nullptr;
  bool fresh_ = false;
  std::jmp_buf place_{};
};

}  // namespace ccks::gpu::sim
