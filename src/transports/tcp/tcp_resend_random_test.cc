// Random runs of one direction of a stream: a send queue, connections that break anywhere, and a decoder. The payload of a
// sender is overwritten as soon as it is given back.
#include <gtest/gtest.h>

#include <algorithm>
#include <deque>
#include <map>
#include <optional>

#include "base/random.h"
#include "tests/conformance/transport_cluster.h"
#include "transports/tcp/tcp_decoder.h"
#include "transports/tcp/tcp_resend_queue.h"

namespace unisono::conformance {
namespace {

constexpr size_t budget = 48u << 10;

class RandomStream final : private Sink {
 public:
  explicit RandomStream(uint64_t seed) : random_(seed), queue_(pool_, memory_, 4), decoder_(0, inbound_, counters_) {}

  void run(int steps) {
    for (int i = 0; i < steps && !lost_; ++i) step();
    while (!lost_ && queue_.has_unconfirmed()) {
      write(SIZE_MAX);
      deliver(SIZE_MAX);
      confirm();
    }
    if (lost_) return queue_.clear(sent_);
    report();
    EXPECT_EQ(memories_.size(), 0u) << "each payload is given back";
    EXPECT_TRUE(std::ranges::all_of(expected_, [](const auto& frame) { return frame.cancelled; }));
    EXPECT_EQ(pool_.blocks_out(), 0u);
    EXPECT_EQ(memory_.used(), 0u);
  }
  bool lost() const { return lost_; }
  bool cancelled() const { return cancelled_; }
  size_t resent_bytes() const { return resent_bytes_; }
  size_t withdrawn() const { return withdrawn_; }

 private:
  struct Expected {
    uint64_t id = 0;
    size_t bytes = 0;
    bool cancelled = false;
  };

  void step() {
    switch (random_.below(16)) {
      case 0:
      case 1:
      case 2:
      case 3: push(); break;
      case 4:
      case 5:
      case 6: write(random_.below(30'000)); break;
      case 7:
      case 8: arrive(random_.below(30'000)); break;
      case 9: deliver(random_.below(30'000)); break;
      case 10: confirm(); break;
      case 11: acknowledge(); break;
      case 12:
        queue_.release_early(random_.below(2), 1, sent_);
        report();
        break;
      case 13:
        queue_.copy_early(sent_);
        report();
        break;
      case 14:
        if (random_.below(12) == 0) cancel();
        break;
      case 15:
        if (random_.below(2) == 0) reconnect();
        break;
    }
    ASSERT_LE(memory_.used(), budget);
  }

  void push() {
    const size_t sizes[] = {0, 100, TcpResendQueue::copied_bytes_max, 20'000};
    const size_t bytes = sizes[random_.below(4)] + random_.below(3);
    const uint64_t id = ++last_id_;
    auto payload = pattern(bytes, id);
    expected_.push_back({id, bytes});
    if (queue_.push({.operation = id}, payload, id, 0)) poison(payload);
    else memories_[id] = std::move(payload);
  }
  void write(size_t limit) {
    iovec parts[TcpResendQueue::gather_max];
    size_t bytes = 0;
    const int count = queue_.gather(parts, bytes);
    size_t left = bytes = std::min(bytes, limit);
    for (int i = 0; i < count && left > 0; ++i) {
      const size_t part = std::min(left, parts[i].iov_len);
      const auto* data = static_cast<const std::byte*>(parts[i].iov_base);
      network_.insert(network_.end(), data, data + part);
      left -= part;
    }
    queue_.wrote(bytes);
  }
  // The receiver's kernel takes, and acknowledges, the first bytes of the network.
  void arrive(size_t limit) {
    const auto end = network_.begin() + static_cast<ptrdiff_t>(std::min(limit, network_.size()));
    kernel_.insert(kernel_.end(), network_.begin(), end);
    network_.erase(network_.begin(), end);
  }
  void deliver(size_t limit) {
    if (limit == SIZE_MAX) arrive(limit);
    while (limit > 0 && !kernel_.empty()) {
      const auto space = decoder_.space();
      const size_t bytes = std::min({limit, kernel_.size(), space.parts[0].iov_len});
      std::copy_n(kernel_.begin(), bytes, static_cast<std::byte*>(space.parts[0].iov_base));
      kernel_.erase(kernel_.begin(), kernel_.begin() + static_cast<ptrdiff_t>(bytes));
      ASSERT_EQ(decoder_.took(bytes, *this), TcpDecoder::Progress::more);
      limit -= bytes;
    }
  }
  void confirm() {
    queue_.confirm(static_cast<uint32_t>(decoder_.position()), sent_);
    report();
  }
  void acknowledge() {
    queue_.acknowledged(decoder_.position() + kernel_.size(), sent_);
    report();
  }
  void cancel() {
    cancelled_ = true;
    const uint64_t match = random_.below(4);
    const bool intact = queue_.cancel(match, 3);
    for (auto& frame : expected_) {
      if ((frame.id & 3) == match && memories_.contains(frame.id)) frame.cancelled = true;
    }
    for (auto memory = memories_.begin(); memory != memories_.end();) {
      const bool drop = (memory->first & 3) == match;
      if (drop) poison(memory->second);
      memory = drop ? memories_.erase(memory) : std::next(memory);
    }
    EXPECT_TRUE(intact);
  }
  // The connection breaks: what has not arrived is gone, and the receiver drains the rest before it says its position.
  void reconnect() {
    network_.clear();
    deliver(kernel_.size());
    resent_bytes_ += queue_.written() - decoder_.position();
    const auto status = queue_.rewind(decoder_.position(), 0, sent_);
    if (!status.ok()) {
      lost_ = true;
      EXPECT_EQ(status.code(), Code::peer_lost) << status.to_string();
      EXPECT_TRUE(cancelled_) << status.to_string();
    }
    report();
  }
  // The memory stays, so that a queue that still reads it sends wrong bytes.
  void poison(Bytes& memory) {
    std::ranges::fill(memory, std::byte{0xDE});
    poisoned_.push_back(std::move(memory));
  }
  void report() {
    for (const auto id : sent_) {
      const auto memory = memories_.find(id);
      ASSERT_NE(memory, memories_.end()) << "frame " << id << " was reported twice, or after its cancellation";
      poison(memory->second);
      memories_.erase(memory);
    }
    sent_.clear();
  }

  std::byte* receive_buffer(PeerIndex, const FrameHeader& header) override {
    target_.assign(header.payload_bytes, std::byte{});
    return random_.below(2) == 0 ? target_.data() : nullptr;
  }
  void received(PeerIndex, const FrameHeader& header, const View& view) override {
    while (!expected_.empty() && expected_.front().id != header.operation && expected_.front().cancelled) {
      expected_.pop_front();
      ++withdrawn_;
    }
    ASSERT_FALSE(expected_.empty());
    EXPECT_EQ(header.operation, expected_.front().id) << "each frame comes once, and in order";
    const auto payload = pattern(expected_.front().bytes, header.operation);
    EXPECT_TRUE(std::ranges::equal(payload, std::span(view.data, view.bytes))) << "frame " << header.operation;
    inbound_.give(view.handle);
    expected_.pop_front();
  }
  void sent(uint64_t) override {}
  void lost(PeerIndex, const Status&, PeerFate) override {}
  void credit(PeerIndex) override {}

  Random random_;
  PayloadPool pool_{{}}, inbound_{{}};
  ResendMemory memory_{budget};
  TcpResendQueue queue_;
  TcpReceiveCounters counters_;
  TcpDecoder decoder_;
  std::deque<std::byte> network_, kernel_;
  std::deque<Expected> expected_;
  std::map<uint64_t, Bytes> memories_;  // payloads that are not given back
  std::vector<Bytes> poisoned_;
  std::vector<uint64_t> sent_;
  Bytes target_;
  uint64_t last_id_ = 0;
  size_t resent_bytes_ = 0, withdrawn_ = 0;
  bool lost_ = false, cancelled_ = false;
};

TEST(TcpResendRandom, every_byte_arrives_once_and_in_order_whatever_breaks) {
  size_t resent_bytes = 0, withdrawn = 0, lost = 0;
  for (uint64_t seed = 0; seed < 200; ++seed) {
    SCOPED_TRACE(seed);
    RandomStream stream(seed);
    stream.run(400);
    if (HasFailure()) return;
    resent_bytes += stream.resent_bytes();
    withdrawn += stream.withdrawn();
    lost += stream.lost() ? 1 : 0;
  }
  EXPECT_GT(resent_bytes, 1'000'000u);
  EXPECT_GT(withdrawn, 100u);
  EXPECT_GT(lost, 0u);
  EXPECT_LT(lost, 100u);
  std::printf("%zu bytes sent again, %zu frames withdrawn, %zu streams lost\n", resent_bytes, withdrawn, lost);
}

}  // namespace
}  // namespace unisono::conformance
