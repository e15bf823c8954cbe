// Tests of promises that only TCP makes: how links are made and ended, and their limits.
#include "transports/tcp/tcp_transport.h"

#include <gtest/gtest.h>

#include "base/concat.h"
#include "net/tcp_socket.h"
#include "tests/conformance/tcp_pair.h"

namespace unisono::conformance {
namespace {

class Tcp : public TcpPair {
 protected:
  // Sends frames with this payload until the network has not taken one completely. Returns their number.
  uint64_t fill_network(ByteView payload) {
    uint64_t sent = 0;
    do {
      a->send(0, data_header(sent, payload.size()), payload, sent);
      ++sent;
    } while (a->counters().sent_frames == sent);
    return sent;
  }
};

TEST_F(Tcp, a_link_names_its_addresses_and_interface) {
  link();
  EXPECT_NE(a->describe(0).find("tcp 127.0.0.1:"), std::string::npos) << a->describe(0);
  EXPECT_NE(a->describe(0).find("-> " + b->endpoints()[0].substr(6) + " (lo)"), std::string::npos) << a->describe(0);
}

TEST_F(Tcp, a_dialler_may_connect_long_before_the_listener_adds_it) {
  ASSERT_TRUE(a->add_peer(request(id_b, b->endpoints(), true)).ok());
  for (int i = 0; i < 200; ++i) turn();
  EXPECT_EQ(a->state(0), LinkState::connecting);
  ASSERT_TRUE(b->add_peer(request(id_a, {}, false)).ok());
  EXPECT_TRUE(until([&] { return both_up(); }));
}

TEST_F(Tcp, connections_wait_until_the_job_is_known) {
  auto late = transport(id_b);
  Recorder hear(late.get());
  ASSERT_TRUE(late->add_peer(request(id_a, {}, false)).ok());
  ASSERT_TRUE(a->add_peer(request(id_b, late->endpoints(), true)).ok());
  for (int i = 0; i < 200; ++i) {
    turn();
    late->poll(clock_now(), hear);
  }
  EXPECT_EQ(late->state(0), LinkState::connecting);
  late->set_job(job());
  EXPECT_TRUE(until([&] {
    late->poll(clock_now(), hear);
    return a->state(0) == LinkState::up && late->state(0) == LinkState::up;
  }));
}

TEST_F(Tcp, a_reachable_address_connects_despite_unreachable_ones) {
  // Only the last endpoint is the peer's. Nobody listens at the first, the dialling process itself listens at the second, and
  // the third is of another transport.
  const auto nobody = transport(PeerId{9, 9})->endpoints()[0];
  std::vector<std::string> endpoints = {nobody, a->endpoints()[0], "shm://host/name", b->endpoints()[0]};
  ASSERT_TRUE(a->add_peer(request(id_b, endpoints, true)).ok());
  ASSERT_TRUE(b->add_peer(request(id_a, {}, false)).ok());
  EXPECT_TRUE(until([&] { return both_up(); }));
  expect_link_works();
}

TEST_F(Tcp, a_link_that_never_comes_up_names_every_address_and_its_error) {
  const auto nobody = transport(PeerId{9, 9})->endpoints()[0];
  ASSERT_TRUE(a->add_peer(request(id_b, {nobody, a->endpoints()[0]}, true, 300 * millisecond)).ok());
  ASSERT_TRUE(until([&] { return !sink_a->losses.empty(); }));
  EXPECT_EQ(loss_of_a().code(), Code::unavailable);
  const auto& text = loss_of_a().message();
  EXPECT_NE(text.find("rank 3 (host b, pid 42)"), std::string::npos) << text;
  EXPECT_NE(text.find(nobody.substr(6) + ": connection refused"), std::string::npos) << text;
  EXPECT_NE(text.find(a->endpoints()[0].substr(6) + ": refused: another process is there"), std::string::npos) << text;
  EXPECT_EQ(a->state(0), LinkState::lost);
}

TEST_F(Tcp, the_waiting_side_names_its_endpoints_when_nobody_connects) {
  ASSERT_TRUE(a->add_peer(request(id_b, {}, false, 50 * millisecond)).ok());
  ASSERT_TRUE(until([&] { return !sink_a->losses.empty(); }));
  EXPECT_EQ(loss_of_a().code(), Code::unavailable);
  EXPECT_NE(loss_of_a().message().find(a->endpoints()[0]), std::string::npos) << loss_of_a().message();
}

TEST_F(Tcp, another_job_is_refused_at_once_by_name) {
  b->set_job(job(0x77));
  ASSERT_TRUE(a->add_peer(request(id_b, b->endpoints(), true)).ok());
  ASSERT_TRUE(b->add_peer(request(id_a, {}, false)).ok());
  ASSERT_TRUE(until([&] { return !sink_a->losses.empty(); }));
  EXPECT_EQ(loss_of_a().code(), Code::unavailable);
  EXPECT_NE(loss_of_a().message().find("another job"), std::string::npos) << loss_of_a().message();
  EXPECT_EQ(b->counters().refused_connections, 1u);
  EXPECT_EQ(b->state(0), LinkState::connecting);
}

TEST_F(Tcp, an_index_can_be_used_again_after_lost_and_after_close) {
  link();
  b->close(0);
  ASSERT_TRUE(until([&] { return !sink_a->losses.empty(); }));
  sink_a->losses.clear();
  link();
  expect_link_works();
  a->close(0);
  ASSERT_TRUE(until([&] { return !sink_b->losses.empty(); }));
  sink_b->losses.clear();
  link();
  expect_link_works();
}

TEST_F(Tcp, bad_requests_are_refused) {
  EXPECT_EQ(a->add_peer(request(id_a, b->endpoints(), true)).code(), Code::invalid) << "itself";
  EXPECT_EQ(a->add_peer(request(id_b, {}, true)).code(), Code::invalid) << "nowhere to dial";
  EXPECT_EQ(a->add_peer(request(id_b, {"tcp://nonsense"}, true)).code(), Code::invalid);
  auto far = request(id_b, b->endpoints(), true);
  far.peer = UINT32_MAX;
  EXPECT_EQ(a->add_peer(far).code(), Code::invalid);
  auto keyless = transport(PeerId{5, 5});
  EXPECT_EQ(keyless->add_peer(request(id_b, b->endpoints(), true)).code(), Code::invalid) << "no key";
}

TEST_F(Tcp, the_loss_of_a_link_names_peer_cause_addresses_and_bytes) {
  link();
  expect_link_works();
  b.reset();
  ASSERT_TRUE(until([&] { return !sink_a->losses.empty(); }));
  const auto& text = loss_of_a().message();
  EXPECT_EQ(loss_of_a().code(), Code::peer_lost);
  EXPECT_NE(text.find("rank 3 (host b, pid 42): "), std::string::npos) << text;
  EXPECT_NE(text.find("closed the connection; its process is gone: 127.0.0.1:"), std::string::npos) << text;
  EXPECT_NE(text.find(": connection refused; tcp 127.0.0.1:"), std::string::npos) << text;
  EXPECT_NE(text.find("100064 bytes sent, 0 received"), std::string::npos) << text;
}

TEST(TcpMake, a_taken_port_error_names_the_port) {
  const auto first = transport(id_a);
  const auto second = TcpTransport::make({.self = id_b, .interface = "127.0.0.1", .port = first->port()});
  ASSERT_FALSE(second.ok());
  EXPECT_EQ(second.status().code(), Code::unavailable);
  const auto& text = second.status().message();
  EXPECT_NE(text.find(concat("127.0.0.1:", first->port(), ": address already in use")), std::string::npos) << text;
}

TEST(TcpMake, an_unknown_interface_error_lists_the_interfaces) {
  const auto made = TcpTransport::make({.interface = "nonesuch0"});
  ASSERT_FALSE(made.ok());
  EXPECT_EQ(made.status().code(), Code::invalid);
  EXPECT_NE(made.status().message().find("lo 127.0.0.1"), std::string::npos) << made.status().message();
}

TEST(TcpMake, make_refuses_stream_counts_out_of_range) {
  EXPECT_EQ(TcpTransport::make({.streams = 0}).status().code(), Code::invalid);
  EXPECT_EQ(TcpTransport::make({.streams = tcp_streams_max + 1u}).status().code(), Code::invalid);
}

TEST(TcpMake, the_default_listens_at_all_interfaces_loopback_last) {
  auto made = TcpTransport::make({.self = id_a});
  ASSERT_TRUE(made.ok());
  const auto endpoints = (*made)->endpoints();
  ASSERT_FALSE(endpoints.empty());
  EXPECT_TRUE(parse_tcp_endpoint(endpoints.back())->is_loopback()) << endpoints.back();
  for (const auto& endpoint : endpoints) EXPECT_EQ(parse_tcp_endpoint(endpoint)->port(), (*made)->port());
}

TEST(TcpMake, an_interface_by_name_has_one_port_on_all_its_addresses) {
  auto made = TcpTransport::make({.self = id_a, .interface = "lo"});
  ASSERT_TRUE(made.ok()) << made.status().to_string();
  for (const auto& endpoint : (*made)->endpoints()) {
    const auto address = *parse_tcp_endpoint(endpoint);
    EXPECT_TRUE(address.is_loopback());
    Descriptor socket(::socket(address.family(), SOCK_STREAM, 0));
    EXPECT_EQ(::connect(socket.get(), address.get(), address.bytes), 0) << endpoint;
  }
}

TEST_F(Tcp, what_the_other_host_has_acknowledged_is_given_back_without_a_copy) {
  link();
  expect_link_works();  // the network's word counts only after the peer was heard on the connection
  const auto payload = pattern(70'000, test_seed());  // the network takes it at once
  ASSERT_FALSE(a->send(0, data_header(7, payload.size()), payload, 7));
  bool given_back = false;
  for (int i = 0; i < 100'000 && !given_back; ++i) {
    b->poll(clock_now(), *sink_b);
    given_back = a->release_acknowledged(7, UINT64_MAX);
  }
  EXPECT_TRUE(given_back);
  EXPECT_EQ(process_resend_memory().used(), 0u);
  EXPECT_FALSE(a->release_acknowledged(7, UINT64_MAX)) << "there is nothing more to give back";
  a->poll(clock_now(), *sink_a);
  EXPECT_EQ(sink_a->sent_ids[7], 1u);
  ASSERT_FALSE(a->send(0, data_header(8, payload.size()), payload, 8));
  for (int i = 0; i < 1000; ++i) {
    b->poll(clock_now(), *sink_b);
    ASSERT_FALSE(a->release_acknowledged(9, UINT64_MAX)) << "these sends have another id";
  }
}

TEST_F(Tcp, frames_that_the_kernel_took_survive_close) {
  link();
  const auto payload = pattern(256u << 10, test_seed());
  const auto taken = fill_network(payload) - 1;
  ASSERT_GT(taken, 0u);
  // `a` has unread input when it closes. That must not cause a reset, which would destroy frames in flight.
  for (int i = 0; i < 50; ++i) b->send(0, data_header(0, 0), {}, 0);
  a->close(0);
  ASSERT_TRUE(until([&] { return !sink_b->losses.empty(); }));
  EXPECT_GE(sink_b->frames.size(), taken);
}

TEST_F(Tcp, the_last_frames_reach_a_peer_that_reads_late_after_a_frame_half_written) {
  link();
  auto payload = pattern((1u << 20) - 4093, test_seed());
  const auto whole = payload;
  const auto sent = fill_network(payload);                       // the last frame is half written
  a->send(0, data_header(sent, payload.size()), payload, sent);  // nothing of this frame is written
  a->cancel({});
  payload.assign(payload.size(), std::byte{});
  auto drain = data_header(77, 0);
  drain.kind = FrameKind::goodbye;
  a->send(0, drain, {}, 0);
  for (int i = 0; i < 50; ++i) b->send(0, data_header(0, 0), {}, 0);
  a->close(0);
  for (int i = 0; i < 100; ++i) a->poll(clock_now(), *sink_a);  // `b` is not polled yet
  ASSERT_TRUE(until([&] { return !sink_b->losses.empty(); }));
  ASSERT_EQ(sink_b->frames.size(), sent + 1);
  EXPECT_EQ(sink_b->frames[sent - 1].payload, whole);
  EXPECT_EQ(sink_b->frames[sent].header.kind, FrameKind::goodbye);
}

TEST_F(Tcp, a_sink_that_keeps_views_delays_only_that_peer) {
  TcpOptions tight;
  tight.pool.owner_bytes_max = 1u << 20;
  b = transport(id_b, tight);
  b->set_job(job());
  sink_b = std::make_unique<Recorder>(b.get());
  sink_b->keep_views = true;
  link();
  const auto payload = pattern(256u << 10, test_seed());
  size_t sent = 0;
  const auto pump = [&] {
    for (; sent < 40 && a->credit(0) > 0; ++sent) a->send(0, data_header(sent, payload.size()), payload, sent);
  };
  for (int i = 0; i < 2000; ++i) {
    pump();
    turn();
  }
  EXPECT_EQ(sink_b->views.size(), 4u);
  ASSERT_TRUE(until([&] {
    pump();
    for (const auto& view : std::exchange(sink_b->views, {})) b->release(view);
    return sink_b->frames.size() == 40;
  }));
  EXPECT_TRUE(sink_b->losses.empty());
}

TEST_F(Tcp, a_peer_that_reads_nothing_is_lost_when_too_many_frames_are_queued) {
  link();
  // The number of queued frames without payload is bounded, too.
  for (int i = 0; i < 2'000'000 && sink_a->losses.empty(); ++i) {
    EXPECT_TRUE(a->send(0, data_header(1, 0), {}, 0));
    if (i % 10'000 == 0) a->poll(clock_now(), *sink_a);
  }
  ASSERT_FALSE(sink_a->losses.empty());
  EXPECT_NE(loss_of_a().message().find("frames are queued"), std::string::npos) << loss_of_a().message();
}

TEST_F(Tcp, links_beyond_the_direct_limit_work) {
  constexpr size_t count = 12;
  auto cluster = ConnectorCluster<TcpTransport>::make(
      count, [](size_t, PeerId self) { return TcpTransport::make({.self = self, .interface = "127.0.0.1"}); });
  ASSERT_NE(cluster, nullptr);
  all_peers_send_to_all_peers(*cluster);
}

}  // namespace
}  // namespace unisono::conformance
