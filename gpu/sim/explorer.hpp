// Explorer: many agents on one thread and one virtual clock. Each agent is a fiber with a time of its own; the one whose
// time is earliest runs, until its time has passed that of another. So a schedule is nothing but how long each step takes,
// and a seeded explorer that makes steps take odd times tries odd schedules.
#pragma once

#include <cstdint>
#include <deque>
#include <functional>
#include <string>
#include <vector>

#include "gpu/sim/fiber.hpp"
#include "gpu/sim/random.hpp"

namespace ccks::gpu::sim {

using Nanos = std::uint64_t;
inline constexpr Nanos kNever = ~Nanos{0};

enum class Side : std::uint8_t { host, device };

/// How much chance there is in how long steps take. All zero: steps take what they cost, and time predicts.
struct Noise {
  std::uint32_t jitter_percent = 0;  // a step takes up to so much more than it costs
  std::uint32_t speed_spread = 0;    // agents are slower than they are by up to 2^spread, now this one, now that one
  std::uint32_t stall_one_in = 0;    // one step in so many takes up to stall_ns longer
  Nanos stall_ns = 0;
  std::uint64_t from_step = 0;       // steps outside have none
  std::uint64_t to_step = kNever;
};

/// What becomes visible, or happens, at a given time without any agent: stores on their way.
class Upcoming {
 public:
  virtual ~Upcoming() = default;
  /// All that is due at `now` or before; may wake agents.
  virtual void happen(Nanos now) = 0;
};

class Explorer {
 public:
  using Agent = std::uint32_t;
  static constexpr Agent kNobody = ~Agent{0};

  /// `upcoming` must outlive the explorer.
  Explorer(std::uint64_t seed, const Noise& noise, Upcoming& upcoming);

  /// A new agent, from now on; or `again`, which has ended, with another body. `body` may return.
  Agent add(std::string name, Side side, std::function<void()> body, Agent again = kNobody);
  /// From outside: runs the agents until stop(), a limit, or until nobody is left who could do anything.
  void run(std::uint64_t max_steps, Nanos max_time);

  // ---- agents only ----
  /// A scheduling point: the agent that runs takes `cost` longer. May come back late.
  void advance(Nanos cost);
  /// The agent that runs has taken `cost` longer; others get their turn at its next scheduling point.
  void spend(Nanos cost) { time_[self_] += cost; }
  /// Sleeps for `most`, or until wake(). `watched`: an address; whoever stores there wakes it.
  void sleep(Nanos most, const void* watched = nullptr);
  /// Ends the run: the agent that calls goes on never.
  [[noreturn]] void stop();

  // ---- anybody ----
  Agent self() const { return self_; }
  Side side() const { return agents_[self_].side; }
  Side side_of(Agent agent) const { return agents_[agent].side; }
  Nanos now() const { return now_; }
  /// How far the agent that runs is: now(), and what it has spent since its last scheduling point.
  Nanos own_time() const { return time_[self_]; }
  std::uint64_t steps() const { return steps_; }
  bool inside() const { return self_ != kNobody; }
  bool alive(Agent agent) const { return agents_[agent].alive; }
  const std::string& name(Agent agent) const { return agents_[agent].name; }
  std::size_t agents() const { return agents_.size(); }
  /// Whether run() came back because somebody called stop().
  bool stopped() const { return stopped_; }
  /// An agent that sleeps goes on at `at`, or when it would have if that is sooner.
  void wake(Agent agent, Nanos at);
  /// An agent other than the one that runs stands where it stands for `ns`, or for ever.
  void delay(Agent agent, Nanos ns);
  void kill(Agent agent);
  /// Wakes all that watch `address`.
  void stored(const void* address, Nanos at);
  /// Something will happen at `at`.
  void expect(Nanos at) { next_due_ = at < next_due_ ? at : next_due_; }
  Random& random() { return random_; }
  bool noisy() const { return steps_ >= noise_.from_step && steps_ < noise_.to_step; }
  const Noise& noise() const { return noise_; }

 private:
  struct AgentState {
    Explorer* explorer = nullptr;
    Agent index = 0;
    std::string name;
    Side side = Side::host;
    bool alive = false;
    bool sleeping = false;
    std::uint32_t speed = 0;  // power of two
    std::function<void()> body;
    Fiber fiber;
  };

  static void enter(void* agent);
  Nanos noisy_cost(Nanos cost);
  void change_over();
  void give_way();
  void leave();

  std::deque<AgentState> agents_;    // stable addresses
  std::vector<Nanos> time_;          // per agent; kNever: ended
  std::vector<const void*> watched_; // per agent; null: nothing
  std::uint32_t watchers_ = 0;
  Fiber outside_;
  Upcoming& upcoming_;
  Random random_;
  Noise noise_;
  Agent self_ = kNobody;
  Nanos now_ = 0;
  Nanos others_ = kNever;    // earliest time of all agents but the one that runs
  Nanos next_due_ = kNever;  // nothing happens before; may be early
  std::uint64_t steps_ = 0, max_steps_ = kNever;
  Nanos max_time_ = kNever;
  bool stopped_ = false;
};

}  // namespace ccks::gpu::sim
