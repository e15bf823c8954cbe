// Processes leave over lossy links. Their last frames and their goodbyes must arrive, and every process must be gone soon.
#include <gtest/gtest.h>

#include <algorithm>
#include <iostream>

#include "tests/conformance/udp_virtual_cluster.h"

namespace unisono {
namespace {

using conformance::data_header;
using conformance::pattern;

// Every process sends a last frame to all others. A process leaves when it has received the last frames of all others. It
// leaves as Runtime does: it waits for its pending frames, closes its links, and waits for its drains.
class Leaving {
 public:
  Leaving(size_t count, uint64_t seed, double lose) : cluster(count, seed), steps_(count), begun_(count), gone_at_(count) {
    cluster.link_all();
    cluster.pass(100 * millisecond);
    cluster.network.lose = lose;
    cluster.after_turn = [this] {
      for (size_t i = 0; i < steps_.size(); ++i) advance(i);
    };
  }
  void send_all(size_t bytes) {
    const auto payload = pattern(bytes, 1);
    for (size_t from = 0; from < steps_.size(); ++from) {
      for (size_t to = 0; to < steps_.size(); ++to) {
        if (from != to) cluster.transports[from]->send(static_cast<PeerIndex>(to), data_header(from, bytes), payload, from);
      }
    }
    ASSERT_TRUE(cluster.until(
        [&] { return std::all_of(steps_.begin(), steps_.end(), [](Step step) { return step == Step::gone; }); }, 30 * second));
  }
  // Returns the longest time that a process needed from its last received frame to being gone.
  Nanos slowest() const {
    Nanos slowest = 0;
    for (size_t i = 0; i < steps_.size(); ++i) slowest = std::max(slowest, gone_at_[i] - begun_[i]);
    return slowest;
  }
  bool in_vain() const { return in_vain_; }

  VirtualCluster cluster;

 private:
  enum class Step { receiving, settling, parting, gone };
  void advance(size_t i) {
    auto& transport = cluster.transports[i];
    const auto now = cluster.network.now;
    if (steps_[i] == Step::receiving) {
      if (cluster.frame_sinks[i]->frames.size() + 1 < steps_.size()) {
        for (const auto& [peer, why] : cluster.frame_sinks[i]->losses)
          EXPECT_TRUE(has_frame_of(i, peer)) << i << " lacks the frame of " << peer << ": " << why.at(0).message();
        return;
      }
      begun_[i] = now;
      steps_[i] = Step::settling;
    }
    if (steps_[i] == Step::settling && (!transport->has_pending() || now - begun_[i] > patience)) {
      in_vain_ |= transport->has_pending();
      for (size_t j = 0; j < steps_.size(); ++j) transport->close(static_cast<PeerIndex>(j));
      steps_[i] = Step::parting;
    }
    if (steps_[i] == Step::parting && (!transport->has_pending() || now - begun_[i] > patience)) {
      transport.reset();
      gone_at_[i] = now;
      steps_[i] = Step::gone;
    }
  }
  bool has_frame_of(size_t i, PeerIndex peer) const {
    const auto& frames = cluster.frame_sinks[i]->frames;
    return std::any_of(frames.begin(), frames.end(), [&](const auto& frame) { return frame.header.operation == peer; });
  }
  static constexpr Nanos patience = 2 * second;
  std::vector<Step> steps_;
  std::vector<Nanos> begun_, gone_at_;
  bool in_vain_ = false;
};

TEST(UdpLeaving, all_frames_arrive_and_all_processes_leave_soon_at_any_loss) {
  for (const double lose : {0.0, 0.1, 0.2, 0.3}) {
    Nanos slowest = 0;
    int in_vain = 0;
    for (uint64_t seed = 1; seed <= 100; ++seed) {
      Leaving leaving(4, seed, lose);
      leaving.send_all(seed % 2 == 0 ? 0 : 20'000);
      ASSERT_FALSE(::testing::Test::HasFailure()) << "seed " << seed << ", loss " << lose;
      slowest = std::max(slowest, leaving.slowest());
      in_vain += leaving.in_vain();
    }
    std::cout << "    loss " << lose << ": the slowest of 400 took " << static_cast<double>(slowest) / millisecond << " ms\n";
    EXPECT_EQ(in_vain, 0);
    EXPECT_LE(slowest, lose > 0 ? 1500 * millisecond : 10 * millisecond) << lose;
  }
}

// A frame is pending until its receiver confirms it; a goodbye is pending until it is answered.
TEST(UdpLeaving, only_frames_in_flight_and_the_goodbye_are_pending) {
  VirtualCluster cluster(2);
  cluster.link_all();
  cluster.pass(100 * millisecond);
  EXPECT_FALSE(cluster.transports[0]->has_pending()) << "a link alone has nothing pending";
  cluster.transports[0]->send(1, data_header(1, 100), pattern(100, 1), 1);
  EXPECT_TRUE(cluster.transports[0]->has_pending());
  ASSERT_TRUE(cluster.until([&] { return !cluster.transports[0]->has_pending(); }));
  EXPECT_EQ(cluster.frame_sinks[1]->frames.size(), 1u);
  cluster.transports[0]->close(1);
  EXPECT_TRUE(cluster.transports[0]->has_pending()) << "its goodbye";
  ASSERT_TRUE(cluster.until([&] { return !cluster.transports[0]->has_pending(); }));
  EXPECT_EQ(cluster.frame_sinks[1]->losses[0].size(), 1u);
}

TEST(UdpLeaving, a_drain_to_a_closed_port_ends_at_the_first_refusal) {
  VirtualCluster cluster(2);
  cluster.link_all();
  cluster.pass(100 * millisecond);
  cluster.network.filter = [](const VirtualNetwork::Datagram&) { return false; };
  cluster.transports[1].reset();  // the filter drops the goodbye of process 1
  const auto since = cluster.network.now;
  cluster.transports[0]->close(1);
  ASSERT_TRUE(cluster.until([&] { return !cluster.transports[0]->has_pending(); }));
  EXPECT_LE(cluster.network.now - since, 10 * millisecond);
}

TEST(UdpLeaving, an_unanswered_goodbye_is_repeated_a_few_times) {
  VirtualCluster cluster(2);
  cluster.link_all();
  cluster.pass(100 * millisecond);
  int words = 0;
  cluster.paused = 1;
  cluster.network.filter = [&](const VirtualNetwork::Datagram& datagram) {
    return words += datagram.header().kind == DatagramKind::control, false;
  };
  const auto since = cluster.network.now;
  cluster.transports[0]->close(1);
  ASSERT_TRUE(cluster.until([&] { return !cluster.transports[0]->has_pending(); }));
  EXPECT_LE(cluster.network.now - since, 500 * millisecond);
  EXPECT_GE(words, 8);
  EXPECT_LE(words, 20);
}

// The peer neither confirms nor refuses anything. After the drain time (2 s by default) the link and its frames are abandoned.
TEST(UdpLeaving, unconfirmed_frames_are_dropped_at_the_drain_timeout) {
  VirtualCluster cluster(2);
  cluster.link_all();
  cluster.pass(100 * millisecond);
  cluster.paused = 1;
  cluster.transports[0]->send(1, data_header(1, 100), pattern(100, 1), 1);
  cluster.pass(millisecond);
  const auto since = cluster.network.now;
  cluster.transports[0]->close(1);
  ASSERT_TRUE(cluster.until([&] { return !cluster.transports[0]->has_pending(); }));
  EXPECT_NEAR(static_cast<double>(cluster.network.now - since), 2e9, 2e8);
}

}  // namespace
}  // namespace unisono
