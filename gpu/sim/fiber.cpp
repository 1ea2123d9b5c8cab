// longjmp between stacks is what fortified builds take for an attack, so this file is not one.
#undef _FORTIFY_SOURCE

#include "gpu/sim/fiber.hpp"

#include <ucontext.h>

#include <cassert>
#include <vector>

namespace ccks::gpu::sim {
namespace {

// The real scheduler and worker run on it, and they format messages: a quarter of this is used.
constexpr std::size_t kStackBytes = 128 * 1024;

// Stacks of fibers that are gone: a simulation makes thousands of worlds one after the other.
thread_local std::vector<std::unique_ptr<std::byte[]>> spare_stacks;
// makecontext hands over ints only.
thread_local void (*starting_entry)(void*) = nullptr;
thread_local void* starting_argument = nullptr;

void enter() { starting_entry(starting_argument); }

}  // namespace

Fiber::~Fiber() {
  if (stack_ != nullptr) spare_stacks.push_back(std::move(stack_));
}

void Fiber::start(void (*entry)(void*), void* argument) {
  entry_ = entry;
  argument_ = argument;
  fresh_ = true;
  if (stack_ != nullptr) return;
  if (spare_stacks.empty()) {
    stack_ = std::make_unique_for_overwrite<std::byte[]>(kStackBytes);
    return;
  }
  stack_ = std::move(spare_stacks.back());
  spare_stacks.pop_back();
}

void Fiber::begin() {
  fresh_ = false;
  ucontext_t context;
  [[maybe_unused]] const int got = getcontext(&context);
  assert(got == 0);
  context.uc_stack.ss_sp = stack_.get();
  context.uc_stack.ss_size = kStackBytes;
  context.uc_link = nullptr;
  makecontext(&context, enter, 0);
  starting_entry = entry_;
  starting_argument = argument_;
  setcontext(&context);
}

void Fiber::switch_to(Fiber& next) {
  if (_setjmp(place_) != 0) return;
  if (next.fresh_) next.begin();
  std::longjmp(next.place_, 1);
}

}  // namespace ccks::gpu::sim
