// The stages of a simulated worker on lines of time of their own: what hides behind a body costs nothing, what does not, the rest.
#include <gtest/gtest.h>

#include <cstdlib>

#include "gpu/sim/atoms.hpp"
#include "tests/support/sanitized.hpp"

namespace ccks::gpu::sim {
namespace {

using wire::u32;
using wire::u64;

LinkModel simple_link() {
  LinkModel link;
  link.event_read_ns = 200;
  link.event_write_ns = 100;
  link.issue_ns = 10;
  link.release_ns = 300;
  link.link_release_ns = 500;
  link.read_ns = 1000;
  link.write_ns = 600;
  link.host_miss_ns = 0;
  return link;
}

MachineOptions options(bool side_by_side) {
  MachineOptions out;
  out.link = simple_link();
  out.side_by_side = side_by_side;
  return out;
}

constexpr Nanos kThere = 100;  // a look on its way, or an exchange

/// One worker, and those it deals with.
class Stages : public testing::Test {
 protected:
  void SetUp() override {
    if (ccks::test::sanitized()) GTEST_SKIP() << "fibers: not under sanitizers";
  }
  void play(const std::function<void()>& worker, bool side_by_side = true) {
    machine_ = std::make_unique<Machine>(options(side_by_side));
    atoms_ = {machine_.get()};
    machine_->explorer().add("worker", Side::device, worker);
    machine_->explorer().run(kNever, kNever - 1);
  }
  /// The event stands at 1 from then on.
  void changes_at(Nanos at) {
    machine_->explorer().add("another", Side::device, [this, at] {
      machine_->work(at - machine_->now() - kThere);
      (void)machine_->exchange_add(&event_, 1, Order::relaxed);
    });
  }
  Nanos time() const { return machine_->explorer().own_time(); }
  /// When a wait for the event is over.
  Nanos await() {
    while (atoms_.event_load_acquire(&event_) == 0) {
    }
    return time();
  }

  std::unique_ptr<Machine> machine_;
  SimAtoms atoms_;
  u32 event_ = 0;
  u64 record_ = 0;
};

TEST_F(Stages, LooksComeOneAfterTheOther) {
  EXPECT_EQ(look_that_sees(1000, 0, 100, 100), 1100u);
  EXPECT_EQ(look_that_sees(1000, 1100, 100, 100), 1100u);
  EXPECT_EQ(look_that_sees(1000, 1101, 100, 100), 1300u);
  EXPECT_EQ(look_that_sees(1000, 1300, 100, 100), 1300u);
  EXPECT_EQ(look_that_sees(1000, 5000, 0, 0), 1000u);
}

TEST_F(Stages, AnEventThatChangedBehindABodyCostsTheGateNothing) {
  Nanos over = 0;
  const auto worker = [&] {
    changes_at(400);
    machine_->work(5000);  // a body
    over = await();
  };
  play(worker);
  EXPECT_EQ(over, 5000u);
  event_ = 0;
  play(worker, false);
  EXPECT_EQ(over, 5200u);  // stages that follow one another
}

TEST_F(Stages, ALookUnderWayAtABodysEndCostsWhatIsLeftOfIt) {
  Nanos over = 0;
  play([&] {
    changes_at(4850);  // seen by the look that left at 4,800 and is back at 5,000
    machine_->work(4950);
    over = await();
  });
  EXPECT_EQ(over, 5000u);
}

TEST_F(Stages, AnEventThatHasNotChangedIsLookedAtUntilItHas) {
  Nanos over = 0;
  play([&] {
    changes_at(6050);
    machine_->work(5000);
    over = await();
  });
  EXPECT_EQ(over, 6200u);
}

TEST_F(Stages, SignalsGoOutBesideTheNextBody) {
  Nanos seen = 0;
  play([&] {
    machine_->explorer().add("another", Side::device, [&] { seen = await(); });
    machine_->work(1000);
    machine_->signal_for(50);
    atoms_.event_add_release(&event_, 1);
    EXPECT_EQ(time(), 1000u);  // the next body may begin
  });
  // 1,000 and 50, 10 to issue, 300 for the release, 100 on its way: 1,460; the look that reads it is back at 1,600.
  EXPECT_EQ(seen, 1600u);
}

TEST_F(Stages, ASignalDoesNotWaitForWhatAnotherWarpPosts) {
  Nanos seen = 0, posted = 0;
  play([&] {
    machine_->explorer().add("another", Side::device, [&] { seen = await(); });
    machine_->explorer().add("host", Side::host, [&] {
      while (machine_->load_link(&record_, 8, Order::acquire) == 0) {
      }
      posted = machine_->now();
    });
    machine_->work(1000);
    machine_->store_link(&record_, 8, 1, Order::relaxed);  // arrives at 1,610
    atoms_.event_add_release(&event_, 1);                  // does not wait for it
  });
  EXPECT_EQ(seen, 1600u);
  EXPECT_GT(posted, 1600u);
}

TEST_F(Stages, APostThatReleasesComesBehindTheSignals) {
  play([&] {
    machine_->explorer().add("host", Side::host, [&] {
      while (machine_->load_link(&record_, 8, Order::acquire) == 0) {
      }
      EXPECT_EQ(event_, 1u);
    });
    machine_->signal_for(3000);
    atoms_.event_add_relaxed(&event_, 1);  // seen 3,110 from now
    machine_->store_link(&record_, 8, 1, Order::release);
  });
  EXPECT_EQ(event_, 1u);
  EXPECT_EQ(record_, 1u);
}

TEST_F(Stages, AnEventThatTheWorkerAddsAllOfIsNotWaitedFor) {
  Nanos over = 0;
  play([&] {
    machine_->work(1000);
    machine_->will_add(&event_, 1);
    atoms_.event_add_release(&event_, 1);
    over = await();
  });
  EXPECT_EQ(over, 1000u);
}

TEST_F(Stages, OfAnEventThatOthersAddToTheWorkerSeesWhatIsThere) {
  Nanos over = 0;
  play([&] {
    machine_->work(1000);
    machine_->will_add(&event_, 2);
    atoms_.event_add_release(&event_, 1);
    over = await();  // on its way until 1,410
  });
  EXPECT_EQ(over, 1600u);
}

}  // namespace
}  // namespace ccks::gpu::sim
