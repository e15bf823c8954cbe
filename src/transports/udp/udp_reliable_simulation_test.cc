// Simulations of one reliable link without sockets: whole frames over a virtual network that loses, delays, reorders and
// repeats datagrams in both directions.
#include <gtest/gtest.h>

#include <algorithm>
#include <memory>
#include <queue>
#include <vector>

#include "base/random.h"
#include "transports/udp/path/udp_pacer.h"
#include "transports/udp/path/udp_rate_control.h"
#include "transports/udp/reliable/udp_fragments.h"
#include "transports/udp/reliable/udp_loss_detector.h"
#include "transports/udp/reliable/udp_reassembler.h"

namespace unisono {
namespace {

constexpr uint32_t ethernet_fragment_bytes = 1416;

struct PathSettings {
  double loss = 0, doubled = 0;
  Nanos delay = 100 * microsecond, jitter = 0;  // jitter is uniform and independent for each datagram, so it reorders datagrams
  double rate = 125e6;                          // bytes/s; the queue for the link has no limit
  double burst = 1;                             // mean number of datagrams lost in a row
  Nanos dead_from = never, dead_to = never;     // nothing arrives between these times
  size_t owner_bytes_max = 64u << 20;           // limit of the receiver's payload pool
};

struct Frame {
  FrameHeader header;
  std::vector<std::byte> payload;
};

class Network : Sink {
 public:
  Network(const PathSettings& path, uint64_t seed)
      : path_(path),
        random_(seed),
        pool_({.owner_bytes_max = path.owner_bytes_max}),
        bucket_(12'500'000, 1472),
        control_({.start = 12'500'000}) {}

  void send_frame(uint32_t payload_bytes) {
    Frame frame;
    frame.payload.resize(payload_bytes);
    for (auto& byte : frame.payload) byte = static_cast<std::byte>(random_.next());
    frame.header.operation = frames_.size();
    frame.header.payload_bytes = payload_bytes;
    seal_frame(frame.header);
    fragments_ += FragmentPosition{{}, 64 + payload_bytes, ethernet_fragment_bytes}.fragments();
    frames_.push_back(std::move(frame));
  }

  // Runs until the sender knows that all frames have arrived, or until the time `until`. Returns true if all frames have
  // arrived.
  bool run(Nanos until) {
    while (confirmed_ < frames_.size() && now_ < until) {
      while (pushed_ < frames_.size() && !queue_.full())
        queue_.push(64 + frames_[pushed_++].header.payload_bytes, ethernet_fragment_bytes);
      transmit();
      Nanos next = std::min({losses_.due(), acks_.due(), wake_});
      if (!air_.empty()) next = std::min(next, air_.top().at);
      if (next == never || sent_ > 100 * fragments_ + 1000) return false;
      now_ = std::max(now_, next);
      for (; !air_.empty() && air_.top().at <= now_; air_.pop())
        air_.top().acknowledgement.empty() ? receive(air_.top()) : hear(air_.top());
      if (acks_.due() <= now_) acknowledge();
      if (losses_.due() <= now_) {
        lost_.clear();
        losses_.expire(rtt_, now_, lost_);
        for (const auto& name : lost_) queue_.lost(name);
      }
    }
    return confirmed_ == frames_.size();
  }

  uint64_t sent() const { return sent_; }  // datagrams with a fragment, repetitions included
  uint64_t acknowledgements() const { return acks_sent_; }
  uint64_t fragments() const { return fragments_; }  // fragments of all frames, each counted once
  const LossDetector& losses() const { return losses_; }
  Nanos now() const { return now_; }
  size_t delivered() const { return delivered_; }

 private:
  struct Datagram {
    Nanos at = 0;
    uint32_t flow_seq = 0, sent_at_us = 0;
    FragmentPosition position;
    std::vector<std::byte> acknowledgement;  // empty: the datagram is a fragment
    bool operator>(const Datagram& other) const { return at > other.at; }
  };
  static uint32_t us(Nanos now) { return static_cast<uint32_t>(now / microsecond); }

  void put_on_air(Datagram datagram, bool& bad) {
    bad = bad ? !random_.chance(1 / path_.burst) : random_.chance(path_.loss / (path_.burst * (1 - path_.loss)));
    const bool gone = path_.burst > 1 ? bad : random_.chance(path_.loss);
    if (gone || (now_ >= path_.dead_from && now_ < path_.dead_to)) return;
    const auto left = datagram.at;
    for (int copies = random_.chance(path_.doubled) ? 2 : 1; copies > 0; --copies) {
      datagram.at = left + path_.delay + static_cast<Nanos>(random_.below(static_cast<uint64_t>(path_.jitter) + 1));
      air_.push(datagram);
    }
  }

  void transmit() {
    wake_ = never;
    while (const auto position = queue_.next()) {
      if (!losses_.may_send(position->bytes() + 56, control_.rate(), rtt_)) return;
      if (!bucket_.take(position->bytes() + 56, now_)) {
        wake_ = bucket_.ready_at(position->bytes() + 56, now_);
        return;
      }
      queue_.taken(position->name);
      losses_.sent(++flow_seq_, position->name, position->bytes() + 56, rtt_, now_);
      control_.sent(position->bytes() + 56);
      ++sent_;
      free_at_ = std::max(free_at_, now_) + static_cast<Nanos>((position->bytes() + 84) / path_.rate * 1e9);
      put_on_air({.at = free_at_, .flow_seq = flow_seq_, .sent_at_us = us(now_), .position = *position, .acknowledgement{}},
                 bad_there_);
    }
  }

  void receive(const Datagram& datagram) {
    const auto& frame = frames_[datagram.position.name.frame];
    const auto parts = fragment_parts(datagram.position, frame.header, frame.payload);
    std::vector<std::byte> bytes(parts.header.begin(), parts.header.end());
    bytes.insert(bytes.end(), parts.payload.begin(), parts.payload.end());
    meter_.arrived(datagram.flow_seq, datagram.sent_at_us, us(now_) + 777, now_);
    const auto result = reassembler_.add(datagram.position, bytes, *this);
    if (result == FragmentResult::no_memory) acks_.refused(now_);
    if (!to_be_acknowledged(result)) return;
    acks_.received(datagram.flow_seq, true, now_);
    if (result == FragmentResult::whole) acks_.make_due(now_);
  }

  void acknowledge() {
    std::byte out[ack_bytes_max];
    const auto bytes = acks_.write(meter_.report(0, us(now_) + 777), out, now_);
    ++acks_sent_;
    put_on_air({.at = now_, .position{}, .acknowledgement = std::vector<std::byte>(out, out + bytes)}, bad_back_);
  }

  void hear(const Datagram& datagram) {
    Acknowledgement ack;
    ASSERT_EQ(read_ack(datagram.acknowledgement, flow_seq_, ack), AckFault::none);
    rtt_.echoed(us(now_), ack.feedback.echo_sent_at_us, ack.feedback.echo_held_us);
    if (control_.feedback(ack.feedback, rtt_, now_)) bucket_.set(control_.rate(), 1472, now_);
    arrived_.clear();
    lost_.clear();
    losses_.acknowledged(ack, rtt_, now_, arrived_, lost_);
    for (const auto& name : arrived_) confirmed_ += queue_.arrived(name);
    for (const auto& name : lost_) queue_.lost(name);
  }

  std::byte* receive_buffer(PeerIndex, const FrameHeader&) override { return nullptr; }
  void received(PeerIndex, const FrameHeader& header, const View& view) override {
    const auto& frame = frames_[header.operation];
    EXPECT_EQ(view.bytes, frame.payload.size());
    EXPECT_TRUE(std::equal(view.data, view.data + view.bytes, frame.payload.begin()));
    got_.resize(frames_.size());
    EXPECT_FALSE(got_[header.operation]) << "twice";
    got_[header.operation] = true;
    ++delivered_;
    pool_.give(view.handle);
  }
  void sent(uint64_t) override {}
  void lost(PeerIndex, const Status&, PeerFate) override {}
  void credit(PeerIndex) override {}

  PathSettings path_;
  Random random_;
  PayloadPool pool_;
  std::vector<Frame> frames_;
  std::vector<bool> got_;
  std::priority_queue<Datagram, std::vector<Datagram>, std::greater<>> air_;
  Nanos now_ = second, free_at_ = 0, wake_ = never;
  bool bad_there_ = false, bad_back_ = false;

  FragmentQueue queue_;
  LossDetector losses_{8192};
  RttEstimator rtt_;
  TokenBucket bucket_;
  RateControl control_;
  uint32_t flow_seq_ = UINT32_MAX - 500;
  std::vector<FragmentName> arrived_, lost_;

  Reassembler reassembler_{0, pool_};
  AckBuilder acks_{{}};
  ArrivalMeter meter_;

  size_t pushed_ = 0, confirmed_ = 0, delivered_ = 0;
  uint64_t sent_ = 0, acks_sent_ = 0, fragments_ = 0;
};

// Queues about 8 MB of frames of all sizes.
void fill(Network& network, uint64_t seed) {
  Random random(seed);
  for (int i = 0; i < 40; ++i) network.send_frame(static_cast<uint32_t>(random.below(400'000)));
  for (int i = 0; i < 400; ++i) network.send_frame(static_cast<uint32_t>(random.below(2000)));
}

TEST(ReliableSimulation, every_frame_arrives_once_and_whole_at_up_to_30_percent_loss) {
  for (const double loss : {0.0, 0.01, 0.1, 0.2, 0.3}) {
    for (uint64_t seed = 1; seed <= 3; ++seed) {
      SCOPED_TRACE(testing::Message() << "loss " << loss << " seed " << seed);
      Network network({.loss = loss}, seed);
      fill(network, seed);
      ASSERT_TRUE(network.run(second + 300 * millisecond)) << "8 MB take 67 ms at the link's rate";
      EXPECT_EQ(network.delivered(), 440u);
      const double fragments = static_cast<double>(network.fragments());
      const double explained = fragments / (1 - loss);
      EXPECT_LE(static_cast<double>(network.sent()), explained * 1.05 + 50);
      EXPECT_LE(static_cast<double>(network.acknowledgements()), 0.2 * fragments);
    }
  }
}

TEST(ReliableSimulation, reordering_and_duplication_cost_little) {
  for (const double loss : {0.0, 0.1}) {
    Network network({.loss = loss, .doubled = 0.1, .jitter = 300 * microsecond}, 4);
    fill(network, 4);
    ASSERT_TRUE(network.run(11 * second));
    EXPECT_EQ(network.delivered(), 440u);
    EXPECT_LE(static_cast<double>(network.sent()), 1.05 * static_cast<double>(network.fragments()) / (1 - loss));
  }
}

TEST(ReliableSimulation, bursts_of_losses_are_repaired) {
  Network network({.loss = 0.1, .burst = 8}, 5);
  fill(network, 5);
  ASSERT_TRUE(network.run(11 * second));
  EXPECT_EQ(network.delivered(), 440u);
  EXPECT_LE(static_cast<double>(network.sent()), 1.1 * static_cast<double>(network.fragments()) / 0.9);
}

TEST(ReliableSimulation, an_outage_causes_no_storm_and_frames_follow_soon_after_it) {
  Network network({.dead_from = second + 50 * millisecond, .dead_to = 3 * second}, 6);
  fill(network, 6);
  EXPECT_FALSE(network.run(3 * second));
  ASSERT_TRUE(network.run(11 * second));
  EXPECT_LE(network.now(), 3 * second + 200 * millisecond);
  EXPECT_LE(network.sent(), network.fragments() + network.fragments() / 10 + 600)
      << "what was in flight, and two datagrams per 50 ms";
}

TEST(ReliableSimulation, one_short_frame_takes_a_round_trip_and_few_datagrams) {
  Nanos slowest = 0;
  uint64_t datagrams = 0;
  for (uint64_t seed = 0; seed < 300; ++seed) {
    Network network({.loss = 0.2}, seed);
    network.send_frame(1000);
    ASSERT_TRUE(network.run(11 * second));
    slowest = std::max(slowest, network.now() - second);
    datagrams += network.sent() + network.acknowledgements();
  }
  EXPECT_LE(slowest, second);
  EXPECT_LE(datagrams, 300u * 4);
}

TEST(ReliableSimulation, a_receiver_short_of_memory_receives_all_frames) {
  Network network({.loss = 0.05, .owner_bytes_max = 1u << 20}, 8);
  for (int i = 0; i < 100; ++i) network.send_frame(200'000);
  ASSERT_TRUE(network.run(30 * second));
  EXPECT_EQ(network.delivered(), 100u);
  EXPECT_LE(network.sent(), 20 * network.fragments())
      << "1 MiB for a hundred frames of 200 kB: most is refused, again and again, but ever more seldom";
}

}  // namespace
}  // namespace unisono
