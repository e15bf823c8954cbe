// Tests of dialling back: the side that has accepted a link learns that the peer's address answers. The sockets are real. The
// two processes have different addresses, because within one host every refusal proves a death anyway.
#include <gtest/gtest.h>

#include "base/concat.h"
#include "transports/tcp/tcp_healing_test_support.h"

namespace unisono::conformance {
namespace {

class TcpDialsBack : public TcpHealing {
 protected:
  void SetUp() override { make_both(); }
  // `a` is at 127.0.0.1 and dials. `b` listens everywhere, and is called at 127.0.0.2.
  void make_both() {
    a = transport(id_a, {}, net_a);
    auto made = TcpTransport::make({.self = id_b, .shares_port = false}, net_b);
    ASSERT_TRUE(made.ok()) << made.status().to_string();
    b = std::move(*made);
    a->set_job(job());
    b->set_job(job());
    sink_a = std::make_unique<Recorder>(a.get());
    sink_b = std::make_unique<Recorder>(b.get());
    now = clock_now();
  }
  std::vector<std::string> endpoints_of_b() const { return {concat("tcp://127.0.0.2:", b->port())}; }
  void link(std::vector<std::string> endpoints_of_a) {
    ASSERT_TRUE(a->add_peer(request(id_b, endpoints_of_b(), true)).ok());
    ASSERT_TRUE(b->add_peer(request(id_a, std::move(endpoints_of_a), false)).ok());
    ASSERT_TRUE(within(1 * second, [&] { return both_up(); }));
    settle();
  }
  void link() { link(a->endpoints()); }
  // Asks all that is to be asked.
  void dial_back() {
    a->members_linked();
    b->members_linked();
    ASSERT_TRUE(within(1 * second, [&] { return !a->awaits_confirmations() && !b->awaits_confirmations(); }));
  }
  void kill_a() {
    there_ = a->endpoints()[0].substr(6);
    a.reset();
  }
  void expect_told_at_once() {
    ASSERT_TRUE(within(20 * millisecond, [&] { return !sink_b->losses.empty(); }));
    const auto& text = sink_b->losses[0].at(0).message();
    EXPECT_NE(text.find("; its process is gone: " + there_ + ": connection refused"), std::string::npos) << text;
    EXPECT_EQ(sink_b->fates[0], PeerFate::ended);
  }
  void expect_told_after_a_while() {
    EXPECT_FALSE(within(140 * millisecond, [&] { return !sink_b->losses.empty(); }));
    ASSERT_TRUE(within(100 * millisecond, [&] { return !sink_b->losses.empty(); }));
    const auto& text = sink_b->losses[0].at(0).message();
    EXPECT_NE(text.find("; all its addresses refuse dials: "), std::string::npos) << text;
  }

 private:
  std::string there_;
};

TEST_F(TcpDialsBack, a_refusal_then_proves_the_death_of_a_peer_that_has_dialled) {
  link();
  dial_back();
  kill_a();
  expect_told_at_once();
}

TEST_F(TcpDialsBack, without_it_a_refusal_proves_nothing) {
  link();
  kill_a();
  expect_told_after_a_while();
}

TEST_F(TcpDialsBack, nothing_else_changes) {
  link();
  const auto dials_a = net_a.dials();
  for (int i = 0; i < 3; ++i) dial_back();
  EXPECT_EQ(net_a.dials(), dials_a) << "it has dialled, so it knows already";
  EXPECT_EQ(net_b.dials(), 1u);
  for (auto* net : {&net_a, &net_b}) EXPECT_EQ(net->open(), 1u);
  for (auto* each : {a.get(), b.get()}) {
    EXPECT_EQ(each->counters().refused_connections, 0u);
    EXPECT_EQ(each->last_refusal(), "");
    EXPECT_FALSE(each->is_reconnecting(0));
    EXPECT_FALSE(each->draining());
    EXPECT_EQ(each->link_state(0), "");
  }
  expect_frames_flow();
  EXPECT_EQ(notice(*sink_a) + notice(*sink_b), "");
}

TEST_F(TcpDialsBack, a_peer_that_cannot_be_dialled_is_left_alone) {
  link();
  net_b.dials_blocked = true;
  b->members_linked();
  settle();
  EXPECT_EQ(net_b.dials(), 1u);
  EXPECT_EQ(net_b.open(), 2u);
  ASSERT_TRUE(within(4 * second, [&] { return net_b.open() == 1; }));
  EXPECT_FALSE(b->awaits_confirmations());
  net_b.dials_blocked = false;
  ASSERT_FALSE(within(1 * second, [&] { return net_b.dials() > 1; })) << "it is dialled once";
  expect_frames_flow();
  EXPECT_EQ(notice(*sink_b), "");
  kill_a();
  expect_told_after_a_while();
}

TEST_F(TcpDialsBack, another_process_that_answers_in_its_place_proves_nothing) {
  BreakableStreams net_c;
  auto c = transport({3, 300}, {}, net_c);
  c->set_job(job());
  Recorder sink_c(c.get());
  link(c->endpoints());
  net_a.arrivals_blocked = true;
  b->members_linked();
  ASSERT_TRUE(within(4 * second, [&] {
    c->poll(now, sink_c);
    return !b->awaits_confirmations();
  }));
  EXPECT_EQ(net_b.dials(), 2u);
  c.reset();
  kill_a();
  expect_told_after_a_while();
}

TEST_F(TcpDialsBack, a_link_may_end_while_its_peer_is_asked) {
  for (const bool peer_ends : {false, true}) {
    SCOPED_TRACE(peer_ends);
    link();
    net_b.dials_blocked = true;
    b->members_linked();
    settle();
    EXPECT_EQ(net_b.open(), 2u);
    (peer_ends ? *a : *b).close(0);
    ASSERT_TRUE(within(1 * second, [&] { return net_a.open() == 0 && net_b.open() == 0; }));
    EXPECT_FALSE(b->awaits_confirmations());
    net_b.dials_blocked = false;
    end();
    make_both();
  }
  link();
  b->members_linked();
  settle();
  end();
}

TEST_F(TcpDialsBack, a_connection_that_breaks_meanwhile_heals) {
  link();
  net_b.dials_blocked = true;
  b->members_linked();
  reset();
  net_b.dials_blocked = false;
  ASSERT_TRUE(within(1 * second, [&] { return !sink_a->notices.empty() && !sink_b->notices.empty(); }));
  ASSERT_TRUE(within(4 * second, [&] { return net_a.open() == 1 && net_b.open() == 1; }));
  expect_frames_flow();
  kill_a();
  expect_told_at_once();
}

TEST_F(TcpDialsBack, few_peers_are_asked_at_a_time) {
  constexpr uint64_t peers = TcpDialBack::at_a_time + 3;
  std::vector<std::unique_ptr<TcpTransport>> others;
  std::vector<std::unique_ptr<Recorder>> sinks;
  for (uint64_t i = 0; i < peers; ++i) {
    const PeerId id{1, 1000 + i};
    others.push_back(transport(id, {}, net_a));
    others.back()->set_job(job());
    sinks.push_back(std::make_unique<Recorder>(others.back().get()));
    ASSERT_TRUE(others.back()->add_peer(request(id_b, endpoints_of_b(), true)).ok());
    auto accepted = request(id, others.back()->endpoints(), false);
    accepted.peer = static_cast<PeerIndex>(i);
    ASSERT_TRUE(b->add_peer(accepted).ok());
  }
  const auto all_poll = [&] {
    for (uint64_t i = 0; i < peers; ++i) others[i]->poll(now, *sinks[i]);
  };
  ASSERT_TRUE(within(1 * second, [&] {
    all_poll();
    uint64_t up = 0;
    for (PeerIndex i = 0; i < peers; ++i) up += b->state(i) == LinkState::up ? 1 : 0;
    return up == peers;
  }));
  net_b.dials_blocked = true;
  b->members_linked();
  settle();
  EXPECT_EQ(net_b.dials(), TcpDialBack::at_a_time);
  net_b.dials_blocked = false;
  ASSERT_TRUE(within(1 * second, [&] {
    all_poll();
    return !b->awaits_confirmations();
  }));
  EXPECT_EQ(net_b.dials(), peers);
  for (const auto& other : others) EXPECT_EQ(other->counters().refused_connections, 0u);
  others.clear();
}

class Registry final : public InboundRegistry {
 public:
  bool admit(LinkRequest& request) override {
    request.label = "a peer";
    return true;
  }
  void answered(PeerIndex, const PeerId&, bool) override {}
};

TEST_F(TcpDialsBack, a_process_that_accepts_peers_that_nobody_added_does_so_when_it_is_asked) {
  Registry registry;
  b->accept_inbound(registry);
  ASSERT_TRUE(a->add_peer(request(id_b, endpoints_of_b(), true)).ok());
  ASSERT_TRUE(within(1 * second, [&] { return both_up(); }));
  settle();
  EXPECT_EQ(net_b.dials(), 0u) << "the peer may be one that nobody shall dial";
  b->dial_back(0);
  ASSERT_TRUE(within(1 * second, [&] { return net_b.dials() == 1 && net_b.open() == 1; }));
  expect_frames_flow();
  kill_a();
  expect_told_at_once();
}

}  // namespace
}  // namespace unisono::conformance
