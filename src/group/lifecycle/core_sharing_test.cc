// Two ranks on one core. The peer of these tests runs only when the thread that polls yields, and not while it only polls.
#include "group/lifecycle/core_sharing.h"

#include <gtest/gtest.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <atomic>
#include <memory>
#include <vector>

#include "group/api/calls.h"
#include "group/lifecycle/runtime.h"

namespace {

std::atomic<uint64_t> yields{0};

}  // namespace

// It replaces the function of the C library in this program.
extern "C" int sched_yield() noexcept {
  ++yields;
  return static_cast<int>(::syscall(SYS_sched_yield));
}

namespace unisono {
namespace {

TEST(CoreSharing, begins_when_a_yield_has_helped_and_ends_after_several_calls_without) {
  CoreSharing sharing;
  sharing.call_ended(false);
  EXPECT_FALSE(sharing.is_likely());
  for (int turn = 0; turn < 100; ++turn) {  // two ranks take turns: each runs for two calls
    sharing.call_ended(true);
    EXPECT_TRUE(sharing.is_likely());
    sharing.call_ended(false);
    EXPECT_TRUE(sharing.is_likely());
  }
  for (int calls = 1; calls < CoreSharing::calls_alone - 1; ++calls) sharing.call_ended(false);
  EXPECT_TRUE(sharing.is_likely());
  sharing.call_ended(false);
  EXPECT_FALSE(sharing.is_likely());
}

// A link to one peer. The peer answers each frame with the same one, after the next yield or sleep. If `has_own_core` is set,
// it answers at once.
class SameCoreTransport : public Transport {
 public:
  explicit SameCoreTransport(bool looks_ahead) : looks_ahead_(looks_ahead) {}
  const char* name() const override { return "same core"; }
  size_t credit(PeerIndex) override { return 1; }
  size_t slot_bytes() const override { return 0; }
  Slot acquire(std::span<const PeerIndex>, size_t, bool) override { return {}; }
  void commit(const Slot&, const FrameHeader&) override {}
  void abandon(const Slot&) override {}
  bool send(PeerIndex, const FrameHeader& header, std::span<const std::byte>, uint64_t) override {
    frame_ = header;
    frame_.sender = 1 - header.sender;
    frames_ = 1;
    yields_before_ = yields;
    slept_ = false;
    return true;
  }
  void release(const View&) override {}
  bool looks_ahead() const override { return looks_ahead_; }
  Next next(PeerIndex, const FrameHeader&, const std::byte*&) override {
    ++looks;
    return has_answer() ? Next::expected : Next::none;
  }
  void take_next(std::span<const PeerIndex>) override { frames_ = 0; }
  void cancel(const Cancellation&) override {}
  bool poll(Nanos, Sink& sink) override {
    ++polls;
    if (!has_answer()) return false;
    frames_ = 0;
    sink.received(0, frame_, {});
    return true;
  }
  Nanos next_deadline() const override { return never; }
  void close(PeerIndex) override {}
  int wait_handle() const override { return -1; }
  bool arm() override {
    ++sleeps;
    slept_ = true;
    return false;  // the peer has sent while this thread slept
  }
  void disarm() override {}
  TransportCounters counters() const override { return {}; }
  std::string describe(PeerIndex) const override { return "same core"; }

  bool has_own_core = false;
  uint64_t looks = 0, polls = 0, sleeps = 0;

 private:
  bool has_answer() const { return frames_ > 0 && (has_own_core || slept_ || yields > yields_before_); }

  const bool looks_ahead_;
  FrameHeader frame_;
  int frames_ = 0;
  bool slept_ = false;
  uint64_t yields_before_ = 0;
};

class SameCore : public ::testing::Test {
 protected:
  void make(bool looks_ahead) {
    auto own = std::make_unique<SameCoreTransport>(looks_ahead);
    transport = own.get();
    std::vector<Link> links;
    links.push_back({std::move(own), nullptr});
    runtime = std::move(Runtime::make({}, {.low = 1, .high = 0}, std::move(links)).value());
    runtime->locked([&](GuardedState& guarded) {
      guarded.engine.set_topology({shared_memory_profile(2), network_tcp_profile(2)});
      guarded.engine.add_peer(0, *transport, "peer");
      group = &guarded.engine.make_group(1, 7, {self_peer, 0}, {0, 0});
    });
  }
  struct Counts {
    uint64_t looks = 0;  // how often all calls together looked for the peer's frame on the fast path
    int by_executor = 0, slept = 0;
  };
  // Runs barriers. On a loaded machine, a few may go through the executor or sleep, because the test lost its core.
  Counts run(int calls) {
    Counts counts;
    for (int call = 0; call < calls; ++call) {
      runtime->locked([](GuardedState& guarded) { guarded.engine.poll(monotonic_now()); });
      transport->looks = transport->polls = transport->sleeps = 0;
      const auto report =
          runtime->run(group, std::move(*barrier_call({0, 2, 10 * second}, {})), 0, [](GuardedState&) { return Status(); });
      EXPECT_TRUE(report.ok()) << report.status().to_string();
      counts.looks += transport->looks;
      counts.by_executor += transport->polls > 0;
      counts.slept += transport->sleeps > 0;
    }
    return counts;
  }

  SameCoreTransport* transport = nullptr;
  std::shared_ptr<Runtime> runtime;
  GroupCore* group = nullptr;
};

TEST_F(SameCore, calls_stay_on_the_fast_path_and_soon_yield) {
  make(true);
  const auto counts = run(100);
  EXPECT_LT(counts.by_executor, 20);
  EXPECT_LT(counts.looks, 100 * 200u) << "a call that does not expect its peer on the core looks a thousand times";
}

TEST_F(SameCore, a_peer_that_has_its_own_core_costs_no_yields) {
  make(true);
  (void)run(5);
  transport->has_own_core = true;
  const uint64_t before = yields;
  EXPECT_LE(run(20).looks, 20u);
  EXPECT_EQ(yields, before);
}

TEST_F(SameCore, calls_of_the_executor_do_not_sleep) {
  make(false);
  EXPECT_LT(run(100).slept, 20);
}

}  // namespace
}  // namespace unisono
