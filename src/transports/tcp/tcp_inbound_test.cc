// Tests of a transport with an InboundRegistry. A process that nobody added connects, two processes dial each other, a peer
// connects again, or nobody listens any more.
#include <gtest/gtest.h>

#include <tuple>

#include "base/concat.h"
#include "tests/conformance/tcp_pair.h"

namespace unisono::conformance {
namespace {

constexpr PeerIndex inbound_index = 7;

class TestRegistry final : public InboundRegistry {
 public:
  bool admit(LinkRequest& request) override {
    if (full) return false;
    inbound.push_back(request.id);
    request.peer = inbound_index;
    request.label = concat("inbound ", request.id.low);
    return true;
  }
  void answered(PeerIndex peer, const PeerId& id, bool goes_on) override { answers.emplace_back(peer, id, goes_on); }

  bool full = false;
  std::vector<PeerId> inbound;
  std::vector<std::tuple<PeerIndex, PeerId, bool>> answers;
};

// Two transports `a` and `b` with registries; `a` has the smaller id. Time is virtual, so nothing depends on the speed of the
// machine.
class InboundConnection : public TcpPair {
 protected:
  void SetUp() override {
    TcpPair::SetUp();
    now = clock_now();
    a->accept_inbound(registry_a);
    b->accept_inbound(registry_b);
  }
  LinkRequest request_without_id(const TcpTransport& there) { return request(PeerId{}, there.endpoints(), true); }
  void dial(TcpTransport& from, const TcpTransport& to, PeerId id, PeerIndex index = 0) {
    auto dialled = request(id, to.endpoints(), true);
    dialled.peer = index;
    ASSERT_TRUE(from.add_peer(dialled).ok());
  }
  // Returns the peer index of the only link that is up; SIZE_MAX if no link or both links are up.
  static size_t up_index(const TcpTransport& transport) {
    const bool added = transport.state(0) == LinkState::up, inbound = transport.state(inbound_index) == LinkState::up;
    return added == inbound ? SIZE_MAX : added ? 0 : inbound_index;
  }
  bool linked() { return up_index(*a) != SIZE_MAX && up_index(*b) != SIZE_MAX; }
  void poll_a() { a->poll(now, *sink_a); }
  void poll_b() { b->poll(now, *sink_b); }
  // Polls both transports often, without advancing the time, so that all bytes in flight are handled.
  void settle() {
    for (int i = 0; i < 40; ++i) poll_a(), poll_b();
  }
  // Advances the time until done() is true. Returns false if done() is still false after `time`.
  bool within(Nanos time, const std::function<bool()>& done) {
    for (const auto limit = now + time; now <= limit; now += 10 * millisecond) {
      settle();
      if (done()) return true;
    }
    return false;
  }
  // Expects exactly one link, the same on both sides and usable in both directions. No link may be lost, and no dial may be
  // pending.
  void expect_one_link() {
    ASSERT_TRUE(within(2 * second, [&] { return linked(); }));
    EXPECT_FALSE(within(2 * second, [&] { return !linked(); }));
    expect_frame(*a, *sink_b);
    expect_frame(*b, *sink_a);
    EXPECT_TRUE(sink_a->losses.empty());
    EXPECT_TRUE(sink_b->losses.empty());
  }
  void expect_frame(TcpTransport& from, Recorder& to) {
    const auto payload = pattern(100'000, test_seed());
    const auto before = to.frames.size();
    from.send(static_cast<PeerIndex>(up_index(from)), data_header(1, payload.size()), payload, 1);
    ASSERT_TRUE(within(1 * second, [&] { return to.frames.size() == before + 1; }));
    EXPECT_EQ(to.frames.back().payload, payload);
  }
  bool dialled_by(const TcpTransport& dialler, const TcpTransport& listener) {
    return dialler.describe(static_cast<PeerIndex>(up_index(dialler))).find("-> " + listener.endpoints()[0].substr(6)) !=
           std::string::npos;
  }

  TestRegistry registry_a, registry_b;
  Nanos now = 0;
};

TEST_F(InboundConnection, a_process_that_nobody_added_gets_a_link) {
  dial(*a, *b, id_b);
  expect_one_link();
  EXPECT_EQ(registry_b.inbound, std::vector<PeerId>{id_a});
  EXPECT_EQ(b->state(inbound_index), LinkState::up);
  EXPECT_EQ(a->remote(0).port(), b->port());
  EXPECT_EQ(b->remote(0).bytes, 0u);
}

TEST_F(InboundConnection, the_listener_answers_with_its_id) {
  ASSERT_TRUE(a->add_peer(request_without_id(*b)).ok());
  expect_one_link();
  EXPECT_EQ(registry_a.answers, (std::vector{std::tuple(PeerIndex{0}, id_b, true)}));
  EXPECT_EQ(registry_b.inbound, std::vector<PeerId>{id_a});
}

TEST_F(InboundConnection, an_address_that_leads_to_a_linked_peer_makes_no_second_link) {
  dial(*a, *b, id_b);
  ASSERT_TRUE(within(1 * second, [&] { return linked(); }));
  auto again = request_without_id(*b);
  again.peer = 1;
  ASSERT_TRUE(a->add_peer(again).ok());
  ASSERT_TRUE(within(1 * second, [&] { return !registry_a.answers.empty(); }));
  EXPECT_EQ(registry_a.answers[0], std::tuple(PeerIndex{1}, id_b, false));
  expect_one_link();
  EXPECT_EQ(a->state(1), LinkState::unknown);
}

TEST_F(InboundConnection, a_dial_that_reaches_this_process_is_detected) {
  ASSERT_TRUE(a->add_peer(request_without_id(*a)).ok());
  ASSERT_TRUE(within(1 * second, [&] { return !registry_a.answers.empty(); }));
  EXPECT_EQ(registry_a.answers[0], std::tuple(PeerIndex{0}, id_a, false));
  settle();
  EXPECT_EQ(a->state(0), LinkState::unknown);
  EXPECT_TRUE(sink_a->losses.empty());
  EXPECT_EQ(a->counters().refused_connections, 0u);
}

TEST_F(InboundConnection, crossing_dials_make_one_link_of_the_smaller_id) {
  // Tries several orders in which the processes notice each other. If `lead` is negative, `a` alone is polled first; if it is
  // positive, `b` alone.
  for (int lead = -6; lead <= 6; ++lead) {
    SCOPED_TRACE(lead);
    SetUp();
    dial(*a, *b, id_b);
    dial(*b, *a, id_a);
    for (int i = 0; i < -lead; ++i) poll_a();
    for (int i = 0; i < lead; ++i) poll_b();
    expect_one_link();
    EXPECT_TRUE(dialled_by(*a, *b));
    EXPECT_FALSE(dialled_by(*b, *a));
  }
}

TEST_F(InboundConnection, the_second_to_dial_finds_the_link_of_the_first) {
  for (const bool a_first : {true, false}) {
    SCOPED_TRACE(a_first);
    SetUp();
    auto& first = a_first ? *a : *b;
    auto& second = a_first ? *b : *a;
    dial(first, second, a_first ? id_b : id_a);
    // The hello of `first` has arrived at `second`, which has not read it yet. Now `second` dials.
    for (int i = 0; i < 20; ++i) a_first ? poll_a() : poll_b();
    dial(second, first, a_first ? id_a : id_b);
    expect_one_link();
  }
}

TEST_F(InboundConnection, crossing_dials_without_an_id_make_one_link) {
  for (const bool b_knows : {true, false}) {
    for (int lead = -8; lead <= 8; ++lead) {
      SCOPED_TRACE(concat(b_knows ? "b knows a" : "b does not know a", ", lead ", lead));
      SetUp();
      registry_a = {}, registry_b = {};
      ASSERT_TRUE(a->add_peer(request_without_id(*b)).ok());
      if (b_knows) dial(*b, *a, id_a);
      else ASSERT_TRUE(b->add_peer(request_without_id(*a)).ok());
      for (int i = 0; i < -lead; ++i) poll_a();
      for (int i = 0; i < lead; ++i) poll_b();
      expect_one_link();
    }
  }
}

TEST_F(InboundConnection, the_dial_of_the_larger_id_is_accepted_if_the_smaller_cannot_connect) {
  dial(*a, *b, id_b);
  auto nowhere = request(id_b, {"tcp://127.0.0.1:1"}, true);
  a->close(0);
  ASSERT_TRUE(a->add_peer(nowhere).ok());
  dial(*b, *a, id_a);
  EXPECT_FALSE(within(900 * millisecond, [&] { return linked(); }));
  expect_one_link();
}

TEST_F(InboundConnection, a_peer_that_connects_anew_replaces_its_half_dead_link) {
  Unauthenticated old(*b);
  old.send_bytes(hello_from(id_a, id_b));
  ASSERT_TRUE(within(1 * second, [&] { return b->state(inbound_index) == LinkState::up; }));
  old.send_struct(begin_at(0));
  dial(*a, *b, id_b);
  EXPECT_FALSE(within(280 * millisecond, [&] { return a->state(0) == LinkState::up; }));
  EXPECT_TRUE(sink_b->losses.empty());
  ASSERT_TRUE(within(50 * millisecond, [&] { return a->state(0) == LinkState::up; }));
  ASSERT_EQ(sink_b->losses[inbound_index].size(), 1u);
  EXPECT_EQ(sink_b->losses[inbound_index][0].code(), Code::peer_lost);
  EXPECT_NE(sink_b->losses[inbound_index][0].message().find("connected again"), std::string::npos)
      << sink_b->losses[inbound_index][0].message();
  EXPECT_EQ(registry_b.inbound, (std::vector{id_a, id_a}));
  expect_frame(*a, *sink_b);
  ASSERT_TRUE(within(1 * second, [&] { return old.closed(); }));
}

TEST_F(InboundConnection, a_peer_whose_old_link_ends_meanwhile_need_not_wait) {
  auto old = std::make_unique<Unauthenticated>(*b);
  old->send_bytes(hello_from(id_a, id_b));
  ASSERT_TRUE(within(1 * second, [&] { return b->state(inbound_index) == LinkState::up; }));
  old->send_struct(begin_at(0));
  dial(*a, *b, id_b);
  settle();
  EXPECT_EQ(a->state(0), LinkState::connecting);
  old.reset();
  EXPECT_TRUE(
      within(100 * millisecond, [&] { return a->state(0) == LinkState::up && b->state(inbound_index) == LinkState::up; }));
}

TEST_F(InboundConnection, a_full_registry_refuses_inbound_connections) {
  registry_b.full = true;
  Unauthenticated inbound(*b);
  inbound.send_bytes(hello_from(PeerId{7, 7}, id_b));
  ASSERT_TRUE(within(1 * second, [&] { return inbound.closed(); }));
  EXPECT_EQ(inbound.refusal(), TcpRefusal::busy);
  EXPECT_EQ(b->counters().refused_connections, 1u);
}

TEST_F(InboundConnection, a_hello_with_another_key_gets_neither_an_id_nor_acceptance) {
  Unauthenticated unauthenticated(*b), namesake(*b), nobody(*b);
  unauthenticated.send_bytes(hello_from(PeerId{7, 7}, PeerId{}, job(1)));
  namesake.send_bytes(hello_from(id_b, id_b));
  nobody.send_bytes(hello_from(PeerId{}, id_b));
  ASSERT_TRUE(within(1 * second, [&] { return unauthenticated.closed() && namesake.closed() && nobody.closed(); }));
  EXPECT_EQ(unauthenticated.refusal(), TcpRefusal::other_job);
  ASSERT_TRUE(unauthenticated.reply());
  EXPECT_EQ(unauthenticated.reply()->self, PeerId{});
  EXPECT_EQ(namesake.refusal(), TcpRefusal::not_expected);
  EXPECT_EQ(nobody.refusal(), TcpRefusal::not_expected);
  EXPECT_TRUE(registry_b.inbound.empty());
}

TEST_F(InboundConnection, repeated_hellos_without_an_id_are_refused) {
  Unauthenticated curious(*b);
  curious.send_bytes(hello_from(PeerId{7, 7}, PeerId{}));
  ASSERT_TRUE(within(1 * second, [&] {
    EXPECT_FALSE(curious.closed());
    return curious.reply().has_value();
  }));
  EXPECT_EQ(curious.refusal(), TcpRefusal::introduction);
  EXPECT_EQ(curious.reply()->self, id_b);
  curious.send_struct(hello_from(PeerId{7, 7}, PeerId{}).hello);
  ASSERT_TRUE(within(1 * second, [&] { return curious.closed(); }));
  EXPECT_EQ(b->counters().refused_connections, 1u);
}

TEST_F(InboundConnection, a_dial_that_is_refused_everywhere_ends_at_once_if_asked_to) {
  const auto nobody = transport(PeerId{9, 9})->endpoints()[0];
  // Nobody listens at the first address. At the second address `a` itself listens, so process id_b is not there either.
  auto asked = request(id_b, {nobody, a->endpoints()[0]}, true);
  asked.fail_if_refused = true;
  ASSERT_TRUE(a->add_peer(asked).ok());
  ASSERT_TRUE(within(200 * millisecond, [&] { return !sink_a->losses.empty(); }));
  EXPECT_EQ(loss_of_a().code(), Code::peer_lost);
  EXPECT_NE(loss_of_a().message().find(nobody.substr(6) + ": connection refused"), std::string::npos) << loss_of_a().message();
}

TEST_F(InboundConnection, one_address_without_an_answer_leaves_it_open_whether_a_peer_is_gone) {
  // A listening socket where connections open but no hello is ever answered.
  Descriptor silent(::socket(AF_INET, SOCK_STREAM, 0));
  const auto loopback = *parse_tcp_address("127.0.0.1");
  ASSERT_EQ(::bind(silent.get(), loopback.get(), loopback.bytes), 0);
  ASSERT_EQ(::listen(silent.get(), 8), 0);
  const auto nobody = transport(PeerId{9, 9})->endpoints()[0];
  auto asked = request(id_b, {nobody, local_address(silent.get()).endpoint()}, true, 500 * millisecond);
  asked.fail_if_refused = true;
  ASSERT_TRUE(a->add_peer(asked).ok());
  ASSERT_TRUE(within(1 * second, [&] { return !sink_a->losses.empty(); }));
  EXPECT_EQ(loss_of_a().code(), Code::unavailable);
}

TEST_F(InboundConnection, another_job_and_no_answer_give_different_errors) {
  b->set_job(job(0x77));
  ASSERT_TRUE(a->add_peer(request_without_id(*b)).ok());
  ASSERT_TRUE(within(1 * second, [&] { return !sink_a->losses.empty(); }));
  EXPECT_EQ(loss_of_a().code(), Code::invalid);
  EXPECT_NE(loss_of_a().message().find("another job"), std::string::npos) << loss_of_a().message();
}

TEST_F(InboundConnection, a_link_of_several_streams_is_refused) {
  Unauthenticated first(*b), second(*b);
  auto greeting = hello_from(PeerId{7, 7}, id_b);
  greeting.hello.stream_count = 2;
  first.send_bytes(greeting.seal());
  greeting.hello.stream_index = 1;
  second.send_bytes(greeting.seal());
  for (auto* unauthenticated : {&first, &second}) {
    ASSERT_TRUE(until([&] { return unauthenticated->closed(); }));
    EXPECT_EQ(unauthenticated->refusal(), TcpRefusal::stream);
  }
  EXPECT_TRUE(registry_b.inbound.empty());
}

using TcpNoInbound = TcpPair;

TEST_F(TcpNoInbound, without_a_registry_a_dial_without_an_id_is_refused) {
  EXPECT_EQ(a->add_peer(request(PeerId{}, b->endpoints(), true)).code(), Code::invalid);
  Unauthenticated curious(*b);
  curious.send_bytes(hello_from(PeerId{7, 7}, PeerId{}));
  ASSERT_TRUE(until([&] { return curious.closed(); }));
  EXPECT_EQ(curious.refusal(), TcpRefusal::other_process);
}

}  // namespace
}  // namespace unisono::conformance
