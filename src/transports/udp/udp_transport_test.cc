#include "transports/udp/udp_transport.h"

#include <gtest/gtest.h>

#include <set>

#include "tests/conformance/udp_virtual_cluster.h"
#include "transports/udp/udp_endpoint.h"

namespace unisono {
namespace {

using conformance::data_header;
using conformance::pattern;
using conformance::same;

void expect_link_works(VirtualCluster& cluster, size_t from, size_t to, size_t bytes = 100'000) {
  const auto payload = pattern(bytes, 5);
  const auto before = cluster.frame_sinks[to]->frames.size();
  ASSERT_GT(cluster.transports[from]->credit(static_cast<PeerIndex>(to)), 0u);
  cluster.transports[from]->send(static_cast<PeerIndex>(to), data_header(1, bytes), payload, 1);
  ASSERT_TRUE(cluster.until([&] { return cluster.frame_sinks[to]->frames.size() > before; }));
  EXPECT_TRUE(same(cluster.frame_sinks[to]->frames.back().payload, payload));
  ASSERT_TRUE(cluster.until([&] { return cluster.frame_sinks[from]->sent_ids[1] > 0; })) << "its memory was never given back";
}

// Making links -----------------------------------------------------------------------------------------------------------

TEST(UdpTransport, a_link_comes_up_whichever_side_adds_it_first) {
  for (const bool dialler_first : {true, false}) {
    VirtualCluster cluster(2);
    ASSERT_TRUE((dialler_first ? cluster.add(0, 1) : cluster.add(1, 0)).ok());
    cluster.pass(100 * millisecond);
    EXPECT_FALSE(cluster.up(0, 1) || cluster.up(1, 0));
    ASSERT_TRUE((dialler_first ? cluster.add(1, 0) : cluster.add(0, 1)).ok());
    ASSERT_TRUE(cluster.until([&] { return cluster.both_up(0, 1); }));
    expect_link_works(cluster, 0, 1);
    expect_link_works(cluster, 1, 0);
  }
}

TEST(UdpTransport, ipv6_links_come_up_too) {
  VirtualCluster cluster(2, 1, true);
  cluster.link_all();
  expect_link_works(cluster, 0, 1);
  EXPECT_EQ(cluster.transports[0]->endpoints(), std::vector<std::string>{"udp://[fd00::1]:4500"});
}

TEST(UdpTransport, datagrams_fill_the_packets_of_both_versions_of_ip) {
  for (const bool v6 : {false, true}) {
    const uint32_t headers = v6 ? ipv6_headers_bytes : ipv4_headers_bytes;
    for (const auto& [packet, filled] :
         std::map<uint32_t, uint32_t>{{1300, 1200}, {1500, 1500 - headers}, {9000, 9000 - headers}}) {
      VirtualCluster cluster(2, 1, v6);
      cluster.network.datagram_bytes_max = packet - headers;
      cluster.link_all();
      cluster.pass(300 * millisecond);
      for (PeerIndex i : {0, 1}) EXPECT_EQ(cluster.transports[i]->flow(1 - i)->datagram_bytes(), filled) << packet;
      expect_link_works(cluster, 0, 1, 1 << 20);
    }
  }
}

// A process dies, and an attacker replays all datagrams that it sent. Its peer must still find it dead, and must answer no
// replayed datagram.
TEST(UdpTransport, recordings_of_a_dead_peer_do_not_keep_it_alive) {
  VirtualCluster cluster(2);
  std::vector<VirtualNetwork::Datagram> recorded;
  cluster.network.watcher = [&](const VirtualNetwork::Datagram& datagram) {
    if (datagram.to.to_string() == cluster.endpoint(0)) recorded.push_back(datagram);
  };
  cluster.link_all();
  expect_link_works(cluster, 0, 1);
  expect_link_works(cluster, 1, 0);
  cluster.pass(3 * second);
  std::set<DatagramKind> kinds;
  for (const auto& datagram : recorded) kinds.insert(datagram.header().kind);
  for (const auto kind : {DatagramKind::fragment, DatagramKind::fragment_ack, DatagramKind::path_probe, DatagramKind::control,
                          DatagramKind::control_ack}) {
    EXPECT_TRUE(kinds.contains(kind)) << "nothing to say again of kind " << static_cast<int>(kind);
  }
  cluster.network.watcher = nullptr;
  cluster.network.filter = [](const VirtualNetwork::Datagram&) { return false; };
  cluster.paused = 1;
  cluster.pass(second);
  const auto said = cluster.transports[0]->flow(1)->received_frames();
  const auto since = cluster.network.now;
  const auto duplicates = cluster.transports[0]->dropped(DatagramFault::duplicate);
  uint64_t again = 0;
  while (cluster.frame_sinks[0]->losses.empty() && cluster.network.now - since < 20 * second) {
    auto datagram = recorded[again++ % recorded.size()];
    datagram.at = cluster.network.now;
    cluster.network.inject(datagram);
    cluster.pass(5 * millisecond);
  }
  EXPECT_LE(cluster.network.now - since, 12 * second);
  ASSERT_FALSE(cluster.frame_sinks[0]->losses.empty());
  EXPECT_GT(again, recorded.size());
  EXPECT_EQ(cluster.transports[0]->flow(1)->received_frames(), said);
  EXPECT_GT(cluster.transports[0]->dropped(DatagramFault::duplicate), duplicates + 100);
}

TEST(UdpTransport, a_link_comes_up_although_every_hello_is_lost_twice) {
  VirtualCluster cluster(2);
  std::map<UdpHelloStep, int> seen;
  cluster.network.filter = [&](const VirtualNetwork::Datagram& datagram) {
    if (datagram.header().kind != DatagramKind::hello) return true;
    return ++seen[static_cast<UdpHelloStep>(datagram.bytes[sizeof(DatagramHeader)])] > 2;
  };
  cluster.link_all();
  expect_link_works(cluster, 0, 1);
  EXPECT_GT(seen[UdpHelloStep::confirm], 2);
}

TEST(UdpTransport, a_link_comes_up_over_a_bad_network) {
  for (uint64_t seed = 1; seed <= 20; ++seed) {
    VirtualCluster cluster(2, seed);
    cluster.network.lose = 0.4;
    cluster.network.repeat = 0.3;
    cluster.network.jitter = 30 * millisecond;
    cluster.link_all();
    EXPECT_EQ(cluster.transports[0]->counters().refused_connections, 0u);
  }
}

TEST(UdpTransport, another_job_gets_no_answer_and_is_counted) {
  VirtualCluster cluster(2);
  cluster.transports[1]->set_job(VirtualCluster::job(0x11));
  size_t answers = 0;
  cluster.network.watcher = [&](const VirtualNetwork::Datagram& datagram) {
    answers += datagram.from.to_string() == cluster.endpoint(1);
  };
  ASSERT_TRUE(cluster.add(0, 1, 0, true, second).ok());
  ASSERT_TRUE(cluster.add(1, 0, 0, false, second).ok());
  ASSERT_TRUE(
      cluster.until([&] { return !cluster.frame_sinks[0]->losses.empty() && !cluster.frame_sinks[1]->losses.empty(); }));
  EXPECT_EQ(answers, 0u);
  EXPECT_GT(cluster.transports[1]->counters().refused_connections, 3u);
  const auto& why = cluster.frame_sinks[0]->losses[1].at(0);
  EXPECT_EQ(why.code(), Code::unavailable);
  EXPECT_NE(why.message().find(VirtualCluster::label(1)), std::string::npos) << why.message();
  EXPECT_NE(why.message().find("udp://" + cluster.endpoint(1)), std::string::npos) << why.message();
}

TEST(UdpTransport, a_process_without_a_job_key_waits_for_it) {
  VirtualCluster cluster(2);
  cluster.start(1, 0, false);
  EXPECT_EQ(cluster.add(1, 0, 0, true).code(), Code::invalid) << "nobody can be dialled without one";
  ASSERT_TRUE(cluster.add(0, 1).ok());
  ASSERT_TRUE(cluster.add(1, 0).ok());
  cluster.pass(200 * millisecond);
  EXPECT_FALSE(cluster.up(0, 1));
  EXPECT_EQ(cluster.transports[1]->counters().refused_connections, 0u);
  cluster.transports[1]->set_job(VirtualCluster::job());
  ASSERT_TRUE(cluster.until([&] { return cluster.both_up(0, 1); }));
}

TEST(UdpTransport, a_wait_without_a_job_key_ends_at_the_deadline) {
  VirtualCluster cluster(2);
  cluster.start(1, 0, false);
  ASSERT_TRUE(cluster.add(1, 0, 0, false, second).ok());
  ASSERT_TRUE(cluster.until([&] { return !cluster.frame_sinks[1]->losses.empty(); }, 2 * second));
  EXPECT_EQ(cluster.frame_sinks[1]->losses[0].at(0).code(), Code::unavailable);
}

TEST(UdpTransport, two_sides_that_both_dial_or_both_wait_fail_at_the_deadline) {
  for (const bool dial : {true, false}) {
    VirtualCluster cluster(2);
    ASSERT_TRUE(cluster.add(0, 1, 0, dial, second).ok());
    ASSERT_TRUE(cluster.add(1, 0, 0, dial, second).ok());
    ASSERT_TRUE(cluster.until(
        [&] { return !cluster.frame_sinks[0]->losses.empty() && !cluster.frame_sinks[1]->losses.empty(); }, 3 * second));
    EXPECT_EQ(cluster.frame_sinks[0]->losses[1].at(0).code(), Code::unavailable);
    EXPECT_EQ(cluster.transports[0]->state(1), LinkState::lost);
  }
}

TEST(UdpTransport, repeated_hellos_change_nothing) {
  VirtualCluster cluster(2);
  std::vector<VirtualNetwork::Datagram> hellos;
  cluster.network.watcher = [&](const VirtualNetwork::Datagram& datagram) {
    if (datagram.header().kind == DatagramKind::hello) hellos.push_back(datagram);
  };
  cluster.link_all();
  cluster.pass(50 * millisecond);
  cluster.network.watcher = nullptr;
  ASSERT_GE(hellos.size(), 3u);
  const auto before = cluster.network.carried;
  for (auto& hello : hellos) {
    hello.at = cluster.network.now;
    cluster.network.inject(hello);
  }
  cluster.pass(millisecond);
  EXPECT_LE(cluster.network.carried - before, 2u) << "a second answer at most, and its confirmation";
  expect_link_works(cluster, 0, 1);
  expect_link_works(cluster, 1, 0);
}

TEST(UdpTransport, a_process_restarted_at_the_same_address_is_another_peer) {
  VirtualCluster cluster(2);
  cluster.link_all();
  expect_link_works(cluster, 0, 1);
  cluster.start(1, 1);
  ASSERT_TRUE(cluster.until([&] { return !cluster.frame_sinks[0]->losses.empty(); }));
  ASSERT_TRUE(cluster.add(0, 1, 1).ok());
  ASSERT_TRUE(cluster.add(1, 0).ok());
  ASSERT_TRUE(cluster.until([&] { return cluster.both_up(0, 1); }));
  expect_link_works(cluster, 0, 1);
}

TEST(UdpTransport, a_link_that_was_closed_can_be_made_again) {
  VirtualCluster cluster(2);
  cluster.link_all();
  cluster.transports[0]->close(1);
  ASSERT_TRUE(cluster.until([&] { return !cluster.frame_sinks[1]->losses.empty(); }));
  cluster.frame_sinks[1]->losses.clear();
  cluster.link_all();
  expect_link_works(cluster, 0, 1);
  cluster.pass(3 * second);
  EXPECT_TRUE(cluster.frame_sinks[0]->losses.empty());
  EXPECT_TRUE(cluster.frame_sinks[1]->losses.empty());
}

TEST(UdpTransport, requests_that_cannot_be_met_are_refused) {
  VirtualCluster cluster(2);
  LinkRequest request;
  request.id = VirtualCluster::id(0);
  EXPECT_EQ(cluster.transports[0]->add_peer(request).code(), Code::invalid) << "itself";
  request.id = VirtualCluster::id(1);
  request.dial = true;
  for (const char* endpoint : {"tcp://10.0.0.2:1", "udp://10.0.0.2", "udp://nowhere:1", "udp://[::1]:5"}) {
    request.endpoints = {endpoint};
    EXPECT_EQ(cluster.transports[0]->add_peer(request).code(), Code::invalid) << endpoint;
  }
}

TEST(UdpEndpoint, is_written_as_it_is_read) {
  for (const std::string text : {"udp://192.168.1.7:45001", "udp://[::1]:45001"}) {
    const auto address = parse_udp_endpoint(text);
    ASSERT_TRUE(address.ok());
    EXPECT_EQ(udp_endpoint(*address), text);
  }
  for (const char* text :
       {"", "udp://", "udp://1.2.3.4", "tcp://1.2.3.4:5", "udp://1.2.3.4:0", "udp://host:5", "udp://::1:5"}) {
    EXPECT_EQ(parse_udp_endpoint(text).status().code(), Code::invalid) << text;
  }
}

// Ending links ------------------------------------------------------------------------------------------------------------

TEST(UdpTransport, a_peer_that_answers_nothing_is_lost_after_ten_seconds_with_its_numbers) {
  VirtualCluster cluster(2);
  cluster.link_all();
  cluster.pass(100 * millisecond);
  const auto since = cluster.network.now;
  cluster.network.filter = [](const VirtualNetwork::Datagram&) { return false; };
  ASSERT_TRUE(cluster.until([&] { return !cluster.frame_sinks[0]->losses.empty(); }, 20 * second));
  EXPECT_NEAR(static_cast<double>(cluster.network.now - since), 10e9, 1e9);
  const auto& why = cluster.frame_sinks[0]->losses[1].at(0);
  EXPECT_EQ(why.code(), Code::peer_lost);
  for (const auto& part : {VirtualCluster::label(1), cluster.endpoint(1), std::string("no answer for 10")}) {
    EXPECT_NE(why.message().find(part), std::string::npos) << why.message();
  }
  EXPECT_EQ(cluster.frame_sinks[0]->fates[1], PeerFate::unknown) << "it may live";
}

TEST(UdpTransport, a_peer_that_is_told_of_a_link_that_was_given_up_does_not_take_its_process_for_dead) {
  VirtualCluster cluster(2);
  cluster.link_all();
  const auto payload = pattern(3000, 9);
  cluster.transports[0]->send(1, data_header(1, payload.size()), payload, 1);
  cluster.network.filter = [](const VirtualNetwork::Datagram&) { return false; };
  cluster.paused = 1;
  ASSERT_TRUE(cluster.until([&] { return !cluster.frame_sinks[0]->losses.empty(); }, 20 * second));
  cluster.network.filter = nullptr;
  cluster.paused = -1;
  ASSERT_TRUE(cluster.until([&] { return !cluster.frame_sinks[1]->losses.empty(); }, 20 * second));
  EXPECT_EQ(cluster.frame_sinks[1]->fates[0], PeerFate::unknown);
  EXPECT_NE(cluster.frame_sinks[1]->losses[0].at(0).message().find("given up"), std::string::npos)
      << cluster.frame_sinks[1]->losses[0].at(0).message();
}

TEST(UdpTransport, a_silence_that_ends_in_time_costs_no_link) {
  VirtualCluster cluster(2);
  cluster.link_all();
  const auto payload = pattern(300'000, 3);
  cluster.transports[0]->send(1, data_header(1, payload.size()), payload, 1);
  cluster.pass(500 * microsecond);
  cluster.network.filter = [](const VirtualNetwork::Datagram&) { return false; };
  cluster.pass(8 * second);
  cluster.network.filter = nullptr;
  ASSERT_TRUE(cluster.until([&] { return cluster.frame_sinks[1]->frames.size() == 1; }));
  EXPECT_TRUE(same(cluster.frame_sinks[1]->frames[0].payload, payload));
  EXPECT_TRUE(cluster.frame_sinks[0]->losses.empty() && cluster.frame_sinks[1]->losses.empty());
}

TEST(UdpTransport, a_process_that_slept_loses_no_peer) {
  VirtualCluster cluster(2);
  cluster.link_all();
  cluster.paused = 0;
  cluster.pass(8 * second);
  cluster.network.now += 30 * second;  // the whole machine sleeps: no other process runs, either
  cluster.paused = -1;
  cluster.pass(3 * second);
  EXPECT_TRUE(cluster.frame_sinks[0]->losses.empty());
  EXPECT_TRUE(cluster.frame_sinks[1]->losses.empty());
  expect_link_works(cluster, 0, 1);
}

TEST(UdpTransport, a_dead_process_is_detected_within_a_second_on_an_idle_link) {
  VirtualCluster cluster(2);
  cluster.link_all();
  cluster.pass(3 * second);
  cluster.network.filter = [](const VirtualNetwork::Datagram& datagram) {
    return datagram.header().kind != DatagramKind::control;
  };
  cluster.transports[1].reset();  // the filter drops the goodbye of process 1
  cluster.network.filter = nullptr;
  const auto since = cluster.network.now;
  ASSERT_TRUE(cluster.until([&] { return !cluster.frame_sinks[0]->losses.empty(); }));
  EXPECT_LE(cluster.network.now - since, second);
  EXPECT_NE(cluster.frame_sinks[0]->losses[1].at(0).message().find("refused"), std::string::npos);
  EXPECT_EQ(cluster.frame_sinks[0]->fates[1], PeerFate::ended);
}

TEST(UdpTransport, one_refusal_among_answers_does_not_end_the_link) {
  VirtualCluster cluster(2);
  cluster.link_all();
  for (int i = 0; i < 20; ++i) {
    auto* socket = cluster.network.find(cluster.endpoint(0));
    ASSERT_NE(socket, nullptr);
    socket->refuse(*parse_tcp_endpoint("tcp://" + cluster.endpoint(1)));
    cluster.pass(30 * millisecond);
  }
  EXPECT_TRUE(cluster.frame_sinks[0]->losses.empty());
  expect_link_works(cluster, 0, 1);
}

TEST(UdpTransport, an_orderly_end_is_reported_at_once_after_all_frames) {
  for (const double lose : {0.0, 0.2}) {
    VirtualCluster cluster(2, 11);
    cluster.link_all();
    cluster.network.lose = lose;
    const auto payload = pattern(3000, 9);
    for (uint64_t i = 0; i < 20; ++i) cluster.transports[0]->send(1, data_header(i, payload.size()), payload, i);
    const auto since = cluster.network.now;
    cluster.transports[0]->close(1);
    ASSERT_TRUE(cluster.until([&] { return !cluster.frame_sinks[1]->losses.empty(); }));
    EXPECT_EQ(cluster.frame_sinks[1]->frames.size(), 20u);
    EXPECT_LE(cluster.network.now - since, lose > 0 ? 1500 * millisecond : 100 * millisecond);
    EXPECT_EQ(cluster.frame_sinks[1]->losses[0].at(0).code(), Code::peer_lost);
    cluster.pass(3 * second);
    EXPECT_FALSE(cluster.transports[0]->draining()) << "it was heard, or given up";
  }
}

// Frames -----------------------------------------------------------------------------------------------------------------

TEST(UdpTransport, frames_arrive_once_and_whole_over_a_bad_network) {
  for (const double lose : {0.01, 0.1, 0.3}) {
    SCOPED_TRACE(lose);
    VirtualCluster cluster(2, 17);
    cluster.network.lose = lose;
    cluster.network.repeat = 0.05;
    cluster.network.jitter = 200 * microsecond;
    cluster.link_all();
    std::vector<Bytes> payloads;
    for (size_t i = 0; i < 40; ++i) payloads.push_back(pattern((i * 7919) % 60'000, i));
    for (size_t i = 0; i < payloads.size(); ++i)
      cluster.transports[0]->send(1, data_header(i, payloads[i].size()), payloads[i], i);
    ASSERT_TRUE(cluster.until([&] { return cluster.frame_sinks[1]->frames.size() >= payloads.size(); }, 60 * second));
    cluster.pass(second);
    ASSERT_EQ(cluster.frame_sinks[1]->frames.size(), payloads.size());
    for (const auto& frame : cluster.frame_sinks[1]->frames) EXPECT_TRUE(same(frame.payload, payloads[frame.header.operation]));
    EXPECT_EQ(cluster.transports[0]->flow(1)->losses().outstanding(), 0u);
  }
}

TEST(UdpTransport, at_most_one_window_is_sent_to_a_peer_that_does_not_poll) {
  VirtualCluster cluster(2);
  cluster.link_all();
  cluster.pass(50 * millisecond);
  const auto payload = pattern(4u << 20, 1);
  cluster.transports[0]->send(1, data_header(1, payload.size()), payload, 1);
  cluster.paused = 1;
  const auto before = cluster.network.carried;
  cluster.pass(2 * second);
  EXPECT_LT((cluster.network.carried - before) * 1144, 2u << 20) << "it is not fed while it sleeps";
  cluster.paused = -1;
  ASSERT_TRUE(cluster.until([&] { return cluster.frame_sinks[1]->frames.size() == 1; }, 60 * second));
}

TEST(UdpTransport, a_path_too_small_for_frames_in_flight_ends_the_link_with_a_reason) {
  VirtualCluster cluster(2);
  cluster.link_all();
  cluster.pass(100 * millisecond);
  cluster.network.datagram_bytes_max = 1000;
  const auto payload = pattern(100'000, 1);
  cluster.transports[0]->send(1, data_header(1, payload.size()), payload, 1);
  ASSERT_TRUE(cluster.until([&] { return !cluster.frame_sinks[0]->losses.empty(); }));
  EXPECT_NE(cluster.frame_sinks[0]->losses[1].at(0).message().find("the path to the peer no longer carries datagrams of"),
            std::string::npos);
  EXPECT_EQ(cluster.frame_sinks[0]->sent_ids[1], 1);
}

TEST(UdpTransport, bytes_in_flight_never_exceed_the_peers_window) {
  VirtualCluster cluster(0);
  cluster.options.window_bytes = 20'000;
  cluster.start(0);
  cluster.start(1);
  cluster.link_all();
  const auto payload = pattern(1u << 20, 1);
  cluster.transports[0]->send(1, data_header(1, payload.size()), payload, 1);
  size_t most = 0;
  cluster.after_turn = [&] { most = std::max(most, cluster.transports[0]->flow(1)->losses().outstanding_bytes()); };
  ASSERT_TRUE(cluster.until([&] { return cluster.frame_sinks[1]->frames.size() == 1; }, 60 * second));
  EXPECT_LE(most, 20'000u);
  EXPECT_GT(most, 10'000u);
}

// A fragment is captured and changed in one byte. It must be counted under one reason and become part of no frame.
TEST(UdpTransport, fragments_of_other_senders_are_counted_and_change_nothing) {
  VirtualCluster cluster(2);
  cluster.link_all();
  cluster.pass(50 * millisecond);
  VirtualNetwork::Datagram caught;
  cluster.network.filter = [&](const VirtualNetwork::Datagram& datagram) {
    if (datagram.header().kind != DatagramKind::fragment) return true;
    if (caught.bytes.empty()) caught = datagram;
    return false;
  };
  const auto payload = pattern(100, 1);
  cluster.transports[0]->send(1, data_header(1, payload.size()), payload, 1);
  ASSERT_TRUE(cluster.until([&] { return !caught.bytes.empty(); }));
  const auto inject = [&](const VirtualNetwork::Datagram& datagram) {
    auto now = datagram;
    now.at = cluster.network.now;
    cluster.network.inject(now);
    cluster.transports[1]->poll(cluster.network.now, *cluster.frame_sinks[1]);
  };
  const auto expect_dropped = [&](DatagramFault reason, const std::function<void(VirtualNetwork::Datagram&)>& change) {
    auto changed = caught;
    change(changed);
    const auto before = cluster.transports[1]->dropped(reason);
    inject(changed);
    EXPECT_EQ(cluster.transports[1]->dropped(reason), before + 1) << name(reason);
    EXPECT_TRUE(cluster.frame_sinks[1]->frames.empty()) << name(reason);
  };
  expect_dropped(DatagramFault::address, [](auto& datagram) { datagram.from.set_port(1); });
  expect_dropped(DatagramFault::tag, [](auto& datagram) { datagram.bytes.back() ^= std::byte{1}; });
  expect_dropped(DatagramFault::tag, [](auto& datagram) { datagram.bytes[offsetof(DatagramHeader, op)] ^= std::byte{1}; });
  expect_dropped(DatagramFault::length, [](auto& datagram) { datagram.bytes.pop_back(); });
  expect_dropped(DatagramFault::epoch, [](auto& datagram) { datagram.bytes[offsetof(DatagramHeader, epoch)] ^= std::byte{2}; });
  expect_dropped(DatagramFault::receiver,
                 [](auto& datagram) { datagram.bytes[offsetof(DatagramHeader, receiver)] ^= std::byte{1}; });
  expect_dropped(DatagramFault::sender,
                 [](auto& datagram) { datagram.bytes[offsetof(DatagramHeader, sender)] ^= std::byte{1}; });
  inject(caught);
  ASSERT_EQ(cluster.frame_sinks[1]->frames.size(), 1u) << "the genuine one";
  const auto before = cluster.transports[1]->dropped(DatagramFault::duplicate);
  inject(caught);
  EXPECT_EQ(cluster.transports[1]->dropped(DatagramFault::duplicate), before + 1);
  EXPECT_EQ(cluster.frame_sinks[1]->frames.size(), 1u);
}

TEST(UdpTransport, a_sink_that_keeps_views_slows_the_sender_and_loses_nothing) {
  VirtualCluster cluster(0);
  cluster.options.pool.owner_bytes_max = 256u << 10;
  cluster.start(0);
  cluster.start(1);
  cluster.link_all();
  cluster.frame_sinks[1]->keep_views = true;
  const auto payload = pattern(60'000, 1);
  for (uint64_t i = 0; i < 20; ++i) cluster.transports[0]->send(1, data_header(i, payload.size()), payload, i);
  cluster.pass(3 * second);
  EXPECT_LE(cluster.frame_sinks[1]->views.size(), 4u);
  EXPECT_TRUE(cluster.frame_sinks[0]->losses.empty()) << "it is alive";
  cluster.after_turn = [&] {
    for (const auto& view : std::exchange(cluster.frame_sinks[1]->views, {})) cluster.transports[1]->release(view);
  };
  ASSERT_TRUE(cluster.until([&] { return cluster.frame_sinks[1]->frames.size() == 20; }));
  for (const auto& frame : cluster.frame_sinks[1]->frames) EXPECT_TRUE(same(frame.payload, payload));
}

TEST(UdpTransport, a_damaged_frame_ends_the_link_as_corrupt) {
  VirtualCluster cluster(2);
  cluster.link_all();
  auto header = data_header(1, 10);
  header.kind = static_cast<FrameKind>(77);  // an authentic fragment of an invalid frame
  cluster.transports[0]->send(1, header, pattern(10, 1), 1);
  ASSERT_TRUE(cluster.until([&] { return !cluster.frame_sinks[1]->losses.empty(); }));
  EXPECT_EQ(cluster.frame_sinks[1]->losses[0].at(0).code(), Code::corrupt);
  EXPECT_EQ(cluster.transports[1]->counters().refused_frames[static_cast<size_t>(FrameFault::kind)], 1u);
}

}  // namespace
}  // namespace unisono
