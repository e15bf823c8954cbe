// For tests of links whose connections break. The sockets are real, and the test breaks them. Time is virtual, so that no limit
// depends on the speed of the machine.
#pragma once

#include <gtest/gtest.h>

#include <functional>
#include <string>

#include "tests/conformance/breakable_streams.h"
#include "tests/conformance/tcp_pair.h"

namespace unisono::conformance {

// The parameter: true if the connections are encrypted.
class TcpHealing : public TcpPair, public testing::WithParamInterface<bool> {
 protected:
  void SetUp() override { make({}, {}); }
  void TearDown() override { end(); }
  // The transports end before their networks.
  void end() {
    a.reset();
    b.reset();
  }
  void make(TcpOptions options_a, TcpOptions options_b) {
    end();
    if (GetParam() && !tls) tls = *TlsContext::make({*SecretKey::draw()});
    options_a.tls = options_b.tls = tls;
    a = transport(id_a, options_a, net_a);
    b = transport(id_b, options_b, net_b);
    ASSERT_TRUE(a && b);
    a->set_job(job());
    b->set_job(job());
    sink_a = std::make_unique<Recorder>(a.get());
    sink_b = std::make_unique<Recorder>(b.get());
    now = clock_now();
    // `a` has the smaller id, and dials.
    ASSERT_TRUE(a->add_peer(request(id_b, b->endpoints(), true)).ok());
    ASSERT_TRUE(b->add_peer(request(id_a, a->endpoints(), false)).ok());
    ASSERT_TRUE(within(1 * second, [&] { return both_up(); }));
    settle();
  }
  void poll_a() {
    if (a) a->poll(now, *sink_a);
  }
  void poll_b() {
    if (b) b->poll(now, *sink_b);
  }
  // Polls both often at the same time, so that all bytes on the way are handled.
  void settle() {
    for (int i = 0; i < 40; ++i) poll_a(), poll_b();
  }
  // Advances the time until done() is true. Returns false if done() is still false after `time`.
  bool within(Nanos time, const std::function<bool()>& done, Nanos step = 1 * millisecond) {
    for (const auto limit = now + time; now <= limit; now += step) {
      for (int i = 0; i < 4; ++i) poll_a(), poll_b();
      if (done()) return true;
    }
    return false;
  }
  void reset() {
    net_a.reset_all();
    settle();
  }
  void block(bool blocked) {
    for (auto* net : {&net_a, &net_b}) net->dials_blocked = net->arrivals_blocked = blocked;
  }
  void expect_no_loss() {
    EXPECT_TRUE(sink_a->losses.empty()) << loss_of_a().message();
    EXPECT_TRUE(sink_b->losses.empty()) << sink_b->losses[0].at(0).message();
  }
  void expect_frames_flow() {
    const auto payload = pattern(100'000, test_seed());
    const auto before_a = sink_a->frames.size(), before_b = sink_b->frames.size();
    const auto told_a = sink_a->sent_ids[1], told_b = sink_b->sent_ids[1];
    EXPECT_FALSE(a->send(0, data_header(1, payload.size()), payload, 1));
    EXPECT_FALSE(b->send(0, data_header(1, payload.size()), payload, 1));
    ASSERT_TRUE(within(1 * second, [&] {
      return sink_a->frames.size() == before_a + 1 && sink_b->frames.size() == before_b + 1 && sink_a->sent_ids[1] > told_a &&
             sink_b->sent_ids[1] > told_b;
    }));
    EXPECT_EQ(sink_a->frames.back().payload, payload);
    EXPECT_EQ(sink_b->frames.back().payload, payload);
    expect_no_loss();
  }
  LinkRequest again(PeerId to, std::vector<std::string> endpoints, bool dial) const {
    auto link = request(to, std::move(endpoints), dial);
    link.deadline = now + 2 * second;
    link.fail_if_refused = true;
    return link;
  }
  void lose_link() {
    block(true);
    reset();
    ASSERT_TRUE(within(11 * second, [&] { return !sink_a->losses.empty() && !sink_b->losses.empty(); }));
  }
  void add_again() {
    ASSERT_TRUE(a->add_peer(again(id_b, b->endpoints(), true)).ok());
    ASSERT_TRUE(b->add_peer(again(id_a, a->endpoints(), false)).ok());
  }
  static std::string notice(const Recorder& sink) {
    std::string text;
    for (const auto& [peer, kind, what] : sink.notices) {
      EXPECT_EQ(kind, EventKind::reconnected);
      text += what + "\n";
    }
    return text;
  }

  BreakableStreams net_a, net_b;
  std::shared_ptr<const TlsContext> tls;  // null: the connections are not encrypted
  Nanos now = 0;
};

}  // namespace unisono::conformance
