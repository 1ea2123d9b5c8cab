#include "gpu/sim/explorer.hpp"

#include <cstdlib>

namespace ccks::gpu::sim {

Explorer::Explorer(std::uint64_t seed, const Noise& noise, Upcoming& upcoming)
    : upcoming_(upcoming), random_(seed), noise_(noise) {}

Explorer::Agent Explorer::add(std::string name, Side side, std::function<void()> body, Agent again) {
  const Agent index = again == kNobody ? static_cast<Agent>(agents_.size()) : again;
  if (again == kNobody) {
    agents_.emplace_back();
    time_.push_back(kNever);
    watched_.push_back(nullptr);
  }
  AgentState& agent = agents_[index];
  agent.explorer = this;
  agent.index = index;
  agent.name = std::move(name);
  agent.side = side;
  agent.alive = true;
  agent.sleeping = false;
  agent.body = std::move(body);
  agent.fiber.start(&Explorer::enter, &agent);
  time_[index] = now_;
  if (index != self_ && now_ < others_) others_ = now_;
  return index;
}

void Explorer::enter(void* argument) {
  auto& agent = *static_cast<AgentState*>(argument);
  agent.body();
  agent.explorer->leave();
}

// The agent that runs has ended.
void Explorer::leave() {
  agents_[self_].alive = false;
  time_[self_] = kNever;
  change_over();
  std::abort();  // nobody switches to an agent that has ended
}

void Explorer::run(std::uint64_t max_steps, Nanos max_time) {
  max_steps_ = max_steps;
  max_time_ = max_time;
  stopped_ = false;
  change_over();
  self_ = kNobody;
}

void Explorer::stop() {
  stopped_ = true;
  time_[self_] = kNever;
  agents_[self_].alive = false;
  agents_[self_].fiber.switch_to(outside_);
  std::abort();
}

// To the agent whose time is earliest; back to run() if there is none, or a limit is reached. What is due before happens
// first, and may wake another.
void Explorer::change_over() {
  const Agent from = self_;
  for (;;) {
    Nanos best = kNever, second = kNever;
    Agent next = kNobody;
    const Agent count = static_cast<Agent>(time_.size());
    for (Agent i = 0; i < count; ++i) {
      const Nanos t = time_[i];
      if (t < best) {
        second = best;
        best = t;
        next = i;
      } else if (t < second) {
        second = t;
      }
    }
    if (next_due_ != kNever && next_due_ <= best) {
      const Nanos due = next_due_;
      next_due_ = kNever;
      if (due > now_) now_ = due;
      others_ = kNever;
      upcoming_.happen(due);
      continue;
    }
    const bool over = next == kNobody || best > max_time_ || steps_ >= max_steps_;
    Fiber& here = from == kNobody ? outside_ : agents_[from].fiber;
    if (over) {
      if (from == kNobody) return;
      return here.switch_to(outside_);
    }
    now_ = best > now_ ? best : now_;
    others_ = second;
    self_ = next;
    if (watched_[next] != nullptr) {
      watched_[next] = nullptr;
      --watchers_;
    }
    agents_[next].sleeping = false;
    if (next == from) return;
    return here.switch_to(agents_[next].fiber);
  }
}

Nanos Explorer::noisy_cost(Nanos cost) {
  if (noise_.speed_spread != 0) {
    if (random_.chance(48)) agents_[self_].speed = static_cast<std::uint32_t>(random_.below(noise_.speed_spread + 1));
    cost <<= agents_[self_].speed;
  }
  if (noise_.jitter_percent != 0) cost += random_.below(cost * noise_.jitter_percent / 100 + 1);
  if (random_.chance(noise_.stall_one_in)) cost += random_.below(noise_.stall_ns);
  return cost;
}

void Explorer::advance(Nanos cost) {
  ++steps_;
  if (noisy()) cost = noisy_cost(cost);
  time_[self_] += cost;
  give_way();
}

void Explorer::give_way() {
  const Nanos mine = time_[self_];
  if (next_due_ <= mine || others_ <= mine || steps_ >= max_steps_ || mine > max_time_) return change_over();
  now_ = mine;
}

void Explorer::sleep(Nanos most, const void* watched) {
  ++steps_;
  time_[self_] += most;
  agents_[self_].sleeping = true;
  if (watched != nullptr) {
    watched_[self_] = watched;
    ++watchers_;
  }
  change_over();
}

void Explorer::wake(Agent agent, Nanos at) {
  if (!agents_[agent].sleeping) return;
  if (at < now_) at = now_;
  if (at >= time_[agent]) return;
  time_[agent] = at;
  if (at < others_) others_ = at;
}

void Explorer::delay(Agent agent, Nanos ns) {
  if (!agents_[agent].alive) return;
  agents_[agent].sleeping = false;
  if (time_[agent] < now_) time_[agent] = now_;
  time_[agent] += ns;
}

void Explorer::kill(Agent agent) {
  agents_[agent].alive = false;
  agents_[agent].sleeping = false;
  time_[agent] = kNever;
  if (watched_[agent] == nullptr) return;
  watched_[agent] = nullptr;
  --watchers_;
}

void Explorer::stored(const void* address, Nanos at) {
  if (watchers_ == 0) return;
  for (Agent i = 0; i < watched_.size(); ++i) {
    if (watched_[i] == address) wake(i, at);
  }
}

}  // namespace ccks::gpu::sim
