// How much a link costs before it carries data. The ranks of a large group make a link with every other rank, and all at once,
// so what one link sends too much delays every join.
#include <gtest/gtest.h>

#include <map>
#include <utility>

#include "tests/conformance/udp_virtual_cluster.h"
#include "transports/udp/udp_transport.h"

namespace unisono {
namespace {

using conformance::data_header;
using conformance::pattern;
using Datagram = VirtualNetwork::Datagram;

bool is_hello(const Datagram& datagram, UdpHelloStep step) {
  return datagram.header().kind == DatagramKind::hello &&
         static_cast<UdpHelloStep>(datagram.bytes[sizeof(DatagramHeader)]) == step;
}

// Returns true if the datagram belongs to a train, which measures the rate of a path.
bool is_of_train(const Datagram& datagram) {
  PathQuestion question;
  return datagram.header().kind == DatagramKind::path_probe && get_question(datagram.header(), question) && question.count > 1;
}

bool begins_train(const Datagram& datagram) { return is_of_train(datagram) && datagram.header().packet_index == 0; }

void send(VirtualCluster& cluster, PeerIndex from, PeerIndex to, size_t bytes, uint64_t id) {
  static const auto payload = pattern(1 << 20, 5);
  cluster.transports[from]->send(to, data_header(id, bytes), std::span(payload).first(bytes), id);
}

TEST(UdpJoin, a_link_takes_three_hellos_and_four_questions_about_sizes_and_no_train) {
  std::map<std::pair<std::string, std::string>, int> datagrams;  // by the addresses of a link, the lower one first
  int trains = 0;
  VirtualCluster cluster(6);
  cluster.network.watcher = [&](const Datagram& datagram) {
    const auto from = datagram.from.to_string(), to = datagram.to.to_string();
    ++datagrams[std::minmax(from, to)];
    trains += begins_train(datagram);
  };
  cluster.link_all();
  cluster.pass(300 * millisecond);  // Pings come later.
  EXPECT_EQ(datagrams.size(), 15u);
  for (const auto& [link, count] : datagrams) EXPECT_LE(count, 3 + 4 + 4) << link.first << " " << link.second;
  EXPECT_EQ(trains, 0);
  for (PeerIndex peer = 1; peer < 6; ++peer) EXPECT_TRUE(cluster.transports[0]->datagram_bytes_known({{peer}}));
}

TEST(UdpJoin, a_peer_that_comes_late_answers_once_although_it_was_asked_often) {
  int asks = 0, answers = 0;
  VirtualCluster cluster(2);
  cluster.network.watcher = [&](const Datagram& datagram) {
    asks += is_hello(datagram, UdpHelloStep::ask);
    answers += is_hello(datagram, UdpHelloStep::answer);
  };
  cluster.paused = 1;
  ASSERT_TRUE(cluster.add(0, 1).ok());
  cluster.pass(200 * millisecond);
  ASSERT_GE(asks, 4);
  ASSERT_TRUE(cluster.add(1, 0).ok());
  cluster.paused = -1;
  ASSERT_TRUE(cluster.until([&] { return cluster.both_up(0, 1); }));
  EXPECT_EQ(answers, 1);
}

TEST(UdpJoin, the_best_address_is_asked_first_and_further_ones_if_it_does_not_answer) {
  std::map<std::string, int> asks;
  VirtualCluster cluster(2);
  cluster.network.watcher = [&](const Datagram& datagram) {
    if (is_hello(datagram, UdpHelloStep::ask)) ++asks[datagram.to.to_string()];
  };
  LinkRequest request{.peer = 1, .id = VirtualCluster::id(1), .label = "rank 1", .endpoints = {}, .dial = true};
  request.deadline = cluster.network.now + second;
  for (const char* address : {"10.0.7.1", "10.0.7.2", "10.0.7.3", "10.0.0.2"})
    request.endpoints.push_back(concat("udp://", address, ":4500"));
  ASSERT_TRUE(cluster.transports[0]->add_peer(request).ok());
  ASSERT_TRUE(cluster.add(1, 0).ok());
  cluster.pass(30 * millisecond);
  EXPECT_EQ(asks, (std::map<std::string, int>{{"10.0.7.1:4500", 2}}));
  ASSERT_TRUE(cluster.until([&] { return cluster.both_up(0, 1); }, 100 * millisecond));
  EXPECT_EQ(asks.at("10.0.7.1:4500"), 4);
  EXPECT_EQ(asks.at("10.0.7.3:4500"), 1);
}

TEST(UdpJoin, short_data_sends_no_train_and_long_data_sends_one_on_its_link) {
  std::map<std::string, int> trains;
  VirtualCluster cluster(3);
  cluster.network.watcher = [&](const Datagram& datagram) {
    if (begins_train(datagram)) ++trains[datagram.to.to_string()];
  };
  cluster.link_all();
  for (uint64_t id = 1; id <= 20; ++id) {
    cluster.pass(10 * millisecond);
    send(cluster, 0, 1, 1000, id);
    send(cluster, 0, 2, 1000, id);
  }
  cluster.pass(100 * millisecond);
  EXPECT_TRUE(trains.empty());
  for (uint64_t id = 21; id <= 23; ++id) {
    send(cluster, 0, 1, 1 << 20, id);
    ASSERT_TRUE(cluster.until([&] { return cluster.frame_sinks[0]->sent_ids[id] > 0; }));
  }
  EXPECT_EQ(trains, (std::map<std::string, int>{{"10.0.0.2:4500", 1}}));
}

TEST(UdpJoin, one_path_is_measured_at_a_time) {
  constexpr PeerIndex count = 6;
  int trains = 0, answered = 0;
  VirtualCluster cluster(count);
  cluster.link_all();
  cluster.pass(100 * millisecond);
  cluster.network.watcher = [&](const Datagram& datagram) {
    if (begins_train(datagram)) {
      EXPECT_EQ(trains++, answered);
    }
    const auto header = datagram.header();
    const bool is_answer = header.kind == DatagramKind::path_probe && header.phase == static_cast<uint8_t>(PathPhase::answer);
    answered += is_answer && datagram.to.to_string() == "10.0.0.1:4500";
  };
  for (PeerIndex peer = 1; peer < count; ++peer) send(cluster, 0, peer, 1 << 20, peer);
  ASSERT_TRUE(cluster.until([&] { return trains == count - 1; }));
}

TEST(UdpJoin, a_caller_may_have_the_rate_measured_before_it_sends_data) {
  int trains = 0;
  VirtualCluster cluster(2);
  cluster.network.watcher = [&](const Datagram& datagram) { trains += begins_train(datagram); };
  cluster.link_all();
  cluster.transports[0]->measure_rate(1);
  cluster.transports[0]->measure_rate(1);
  cluster.pass(100 * millisecond);
  EXPECT_EQ(trains, 1);
  send(cluster, 0, 1, 1 << 20, 7);
  ASSERT_TRUE(cluster.until([&] { return cluster.frame_sinks[0]->sent_ids[7] > 0; }));
  EXPECT_EQ(trains, 1);
}

TEST(UdpJoin, each_datagram_of_a_train_is_a_packet_of_its_own_and_data_may_share_packets) {
  std::map<bool, int> trains, fragments;  // how many datagrams had to be alone, and how many not
  VirtualCluster cluster(2);
  cluster.network.watcher = [&](const Datagram& datagram) {
    if (is_of_train(datagram)) ++trains[datagram.alone];
    if (datagram.header().kind == DatagramKind::fragment) ++fragments[datagram.alone];
  };
  cluster.link_all();
  cluster.transports[0]->measure_rate(1);
  send(cluster, 0, 1, 1 << 20, 7);
  ASSERT_TRUE(cluster.until([&] { return cluster.frame_sinks[0]->sent_ids[7] > 0; }));
  EXPECT_EQ(trains, (std::map<bool, int>{{true, PathProbe::train_datagrams}}));
  EXPECT_GT(fragments[false], 100);
  EXPECT_EQ(fragments[true], 0);
}

}  // namespace
}  // namespace unisono
