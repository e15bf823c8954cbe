// A link whose connections break again and again, at random points, also in the middle of greetings, while frames of 1 B to
// 4 MiB flow both ways. Every frame must arrive once and unchanged, and on a single stream in order.
#include <gtest/gtest.h>

#include <map>

#include "base/concat.h"
#include "tests/conformance/breakable_streams.h"
#include "tests/conformance/tcp_pair.h"

namespace unisono::conformance {
namespace {

constexpr size_t largest = 4u << 20;

// The payloads of one side's frames. They are parts of one pattern.
class Payloads {
 public:
  explicit Payloads(uint64_t seed) : seed_(seed), bytes_(pattern(2 * largest, seed)) {}
  // As many small payloads as large ones.
  ByteView of(uint64_t number) const {
    Random random(mix64(seed_ + number));
    const size_t bytes = (size_t{1} << random.below(22)) + random.below(3);
    return ByteView(bytes_).subspan(random.below(largest), std::min(bytes, largest));
  }

 private:
  uint64_t seed_;
  Bytes bytes_;
};

// One side. It sends payloads from memory that it overwrites as soon as it may, and checks those that arrive.
class RandomSide final : public Sink {
 public:
  RandomSide(uint64_t own_seed, uint64_t peer_seed, bool in_order)
      : own_(own_seed), peers_(peer_seed), in_order_(in_order), random_(own_seed) {}

  void send_some(TcpTransport& transport) {
    if (next_ >= frames || random_.below(4) != 0 || transport.credit(0) == 0) return;
    const auto payload = own_.of(next_);
    auto& memory = pending_[next_];
    memory.assign(payload.begin(), payload.end());
    if (transport.send(0, data_header(next_, memory.size()), memory, next_)) sent(next_);
    ++next_;
  }
  bool done(const RandomSide& peer) const { return next_ == frames && pending_.empty() && arrived_.size() == peer.frames; }

  std::string state() const {
    return concat(next_, " of ", frames, " sent, ", pending_.size(), " of them not given back, ", arrived_.size(),
                  " arrived; ");
  }

  std::byte* receive_buffer(PeerIndex, const FrameHeader& header) override {
    if (header.operation % 3 == 0) return nullptr;
    auto& target = targets_[header.operation];
    target.resize(header.payload_bytes);
    return target.data();
  }
  void received(PeerIndex, const FrameHeader& header, const View& view) override {
    const auto number = header.operation;
    EXPECT_TRUE(same({view.data, view.bytes}, peers_.of(number))) << "frame " << number;
    EXPECT_TRUE(arrived_.insert({number, true}).second) << "frame " << number << " arrived twice";
    if (in_order_) {
      EXPECT_EQ(number + 1, arrived_.size()) << "out of order";
    }
    if (view.handle != 0) transport->release(view);
    targets_.erase(number);
  }
  void sent(uint64_t id) override {
    const auto found = pending_.find(id);
    ASSERT_NE(found, pending_.end()) << "sent(" << id << ") twice";
    std::ranges::fill(found->second, std::byte{0xDD});
    given_back_.push_back(std::move(found->second));
    if (given_back_.size() > 8) given_back_.erase(given_back_.begin());
    pending_.erase(found);
  }
  void lost(PeerIndex, const Status& why, PeerFate) override { ADD_FAILURE() << why.message(); }
  void credit(PeerIndex) override {}
  void noticed(PeerIndex, EventKind, const std::string& text) override { ++texts[text.substr(text.find(": ") + 2)]; }

  uint64_t frames = UINT64_MAX;
  TcpTransport* transport = nullptr;
  std::map<std::string, size_t> texts;

 private:
  Payloads own_, peers_;
  bool in_order_;
  Random random_;
  uint64_t next_ = 0;
  std::map<uint64_t, Bytes> pending_;
  std::vector<Bytes> given_back_;  // so that memory that must not be read any more is there and wrong
  std::map<uint64_t, bool> arrived_;
  std::map<uint64_t, Bytes> targets_;

  friend class TcpRandomHealing;
};

class TcpRandomHealing : public testing::Test {
 protected:
  void run(uint32_t streams, int breaks) {
    BreakableStreams net_a, net_b;
    const auto seed = test_seed();
    std::printf("    seed %llu\n", static_cast<unsigned long long>(seed));
    TcpOptions options;
    options.streams = streams;
    const auto a = transport(id_a, options, net_a), b = transport(id_b, options, net_b);
    RandomSide side_a(seed, seed + 1, streams == 1), side_b(seed + 1, seed, streams == 1);
    side_a.transport = a.get(), side_b.transport = b.get();
    a->set_job(job());
    b->set_job(job());
    ASSERT_TRUE(a->add_peer(request(id_b, b->endpoints(), true)).ok());
    ASSERT_TRUE(b->add_peer(request(id_a, a->endpoints(), false)).ok());
    Random random(seed + 2);
    // Each turn takes a little virtual time, so that no limit depends on the speed of the machine.
    Nanos now = clock_now();
    int until_break = 30;
    for (int broken = 0, turns = 0; !(side_a.done(side_b) && side_b.done(side_a)) && !HasFailure();
         ++turns, now += 50 * microsecond) {
      ASSERT_LT(turns, 2'000'000) << broken << " connections broken; a: " << side_a.state() << a->describe(0)
                                  << "; b: " << side_b.state() << b->describe(0);
      side_a.send_some(*a);
      side_b.send_some(*b);
      if (random.below(3) != 0) a->poll(now, side_a);
      if (random.below(3) != 0) b->poll(now, side_b);
      auto& net = random.below(2) == 0 ? net_a : net_b;
      if (broken == breaks || net.open() == 0 || --until_break > 0) continue;
      net.shut(random.below(net.open()));
      until_break = 1 + static_cast<int>(random.below(30));
      if (++broken < breaks) continue;
      side_a.frames = side_a.next_ + 20;
      side_b.frames = side_b.next_ + 20;
    }
    for (const auto& [text, times] : side_a.texts) std::printf("    %zu reconnections: %s\n", times, text.c_str());
    std::printf("    %zu and %zu frames\n", side_a.arrived_.size(), side_b.arrived_.size());
    EXPECT_FALSE(side_a.texts.empty());
    EXPECT_GE(a->counters().sent_frames, side_a.frames) << "a frame that is written again counts again";
    EXPECT_EQ(b->counters().received_frames, side_a.frames);
  }
};

TEST_F(TcpRandomHealing, no_frame_is_lost_doubled_or_damaged_on_one_stream) { run(1, 200); }
TEST_F(TcpRandomHealing, no_frame_is_lost_doubled_or_damaged_on_three_streams) { run(3, 200); }

}  // namespace
}  // namespace unisono::conformance
