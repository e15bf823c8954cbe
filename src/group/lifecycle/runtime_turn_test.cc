// Tests which thread gets the runtime's mutex, and when.
#include <gtest/gtest.h>

#include <atomic>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "group/lifecycle/runtime.h"

namespace unisono {
namespace {

// A transport without peers whose every poll reports progress.
class BusyTransport : public Transport {
 public:
  explicit BusyTransport(std::atomic<uint64_t>& polls) : polls_(polls) {}
  const char* name() const override { return "busy"; }
  size_t credit(PeerIndex) override { return 0; }
  size_t slot_bytes() const override { return 0; }
  Slot acquire(std::span<const PeerIndex>, size_t, bool) override { return {}; }
  void commit(const Slot&, const FrameHeader&) override {}
  void abandon(const Slot&) override {}
  bool send(PeerIndex, const FrameHeader&, std::span<const std::byte>, uint64_t) override { return false; }
  void release(const View&) override {}
  void cancel(const Cancellation&) override {}
  bool poll(Nanos, Sink&) override { return ++polls_ > 0; }
  Nanos next_deadline() const override { return never; }
  void close(PeerIndex) override {}
  int wait_handle() const override { return -1; }
  bool arm() override { return false; }
  void disarm() override {}
  TransportCounters counters() const override { return {}; }
  std::string describe(PeerIndex) const override { return "busy"; }

 private:
  std::atomic<uint64_t>& polls_;
};

TEST(RuntimeTurn, a_caller_gets_the_lock_while_a_busy_thread_drives) {
  std::atomic<uint64_t> polls{0};
  std::vector<Link> links;
  links.push_back({std::make_unique<BusyTransport>(polls), nullptr});
  auto runtime = Runtime::make({}, {.low = 1, .high = 0}, std::move(links));
  ASSERT_TRUE(runtime.ok()) << runtime.status().to_string();
  std::atomic<bool> enough{false}, ended{false};
  std::thread driver([&] {
    (void)(*runtime)->wait([&](GuardedState&) { return enough.load(); }, monotonic_now() + 5 * second);
    ended = true;
  });
  for (const auto before = polls.load(); polls.load() == before;) std::this_thread::yield();
  for (int turn = 0; turn < 20; ++turn) {
    (*runtime)->locked([](GuardedState&) {});
    EXPECT_FALSE(ended) << "turn " << turn << ": had to wait until the other was done";
  }
  enough = true;
  driver.join();
}

}  // namespace
}  // namespace unisono
