// Elastic runs of processes on several hosts. The network is cut or loses packets, a firewall blocks connections, or
// unauthenticated peers connect.
#include <gtest/gtest.h>

#include <string>

#include "base/concat.h"
#include "elastic_peers.h"
#include "hosts.h"

namespace unisono::testing {
namespace {

const std::string right_key = "key=" + std::string(64, 'a');
constexpr uint16_t port = 4040;  // free, because the network name spaces are new

class ElasticNetwork : public NameSpaces {
 protected:
  // Starts one averaging peer on each of the given hosts.
  static std::vector<size_t> start(ElasticPeers& run, const Hosts& hosts, const std::string& of) {
    std::vector<size_t> peers;
    for (const char host : of) peers.push_back(run.add("", hosts.wrapper(host)));
    run.ask(peers, "elastic_loop");
    return peers;
  }
  // Disables IPv6. The tests' rules are for IPv4, and peers would get around them by link-local addresses.
  static void ipv4_only(Hosts& hosts) {
    for (const char host : hosts.names())
      hosts.run_in(std::string(1, host),
                   {"nft", "add table ip6 none; add chain ip6 none input { type filter hook input priority 0; policy drop; }"});
  }
  static std::string sums(size_t members) { return concat("elastic_wait:exact=1,members=", members); }
  static std::string endpoint(char host) { return concat(Hosts::address(host), ":", port); }
};

using LongElasticNetwork = ElasticNetwork;

// Neither part knows whether the other part's peers are alive, so each makes its own layouts. The parts reunite when a peer
// contacts a peer that it believes dead.
TEST_F(LongElasticNetwork, a_partition_averages_in_both_parts_which_unite_afterwards) {
  Hosts hosts("abcd");
  ASSERT_EQ(hosts.error(), "");
  ipv4_only(hosts);
  ASSERT_EQ(hosts.error(), "");
  ElasticPeers run("min_peers=4,gather=500,stall=500", port);
  const auto peers = start(run, hosts, "abcd");
  expect_exact(run.ask(peers, sums(4)), {1, 1, 1, 1});
  const std::string left = "{ 10.77.0.1, 10.77.0.2 }", right = "{ 10.77.0.3, 10.77.0.4 }";
  hosts.filter({"ip saddr " + left + " ip daddr " + right + " drop", "ip saddr " + right + " ip daddr " + left + " drop"});
  for (const size_t peer : {0, 1})
    EXPECT_TRUE(run.wait_for_status(
        peer, [](const Line& status) { return status.says("worker-2:dead:") && status.says("worker-3:dead:"); }));
  for (const size_t peer : {2, 3})
    EXPECT_TRUE(run.wait_for_status(
        peer, [](const Line& status) { return status.says("worker-0:dead:") && status.says("worker-1:dead:"); }));
  expect_exact(run.ask({0, 1}, sums(2)), {1, 1});
  expect_exact(run.ask({2, 3}, sums(2)), {0, 0, 1, 1});
  hosts.filter({});
  ASSERT_EQ(hosts.error(), "");
  expect_exact(run.ask(peers, sums(4)), {1, 1, 1, 1});
  run.finish(peers);
}

TEST_F(ElasticNetwork, a_lossy_network_averages_correct_values) {
  Hosts hosts("abc");
  ElasticPeers run("min_peers=3", port);
  for (const char host : hosts.names()) hosts.send_single_segments(std::string(1, host));
  ASSERT_EQ(hosts.error(), "");
  const auto peers = start(run, hosts, "abc");
  expect_exact(run.ask(peers, sums(3)), {1, 1, 1});
  hosts.filter({"meta l4proto tcp numgen random mod 100 < 3 counter drop"});
  ASSERT_EQ(hosts.error(), "");
  const auto first = run.ask(peers, sums(3)).front().number("done");
  run.ask(peers, concat(sums(3), ",from=", first + 10));
  for (const char host : hosts.names()) EXPECT_GT(hosts.packet_counts(host).front(), 0U) << host;
  hosts.filter({});
  expect_exact(run.ask(peers, sums(3)), {1, 1, 1});
  run.finish(peers);
}

// At 60 Mbit/s a round takes about 0.2 s, so the peer can be killed in the middle of one.
TEST_F(ElasticNetwork, a_peer_that_is_killed_inside_a_round_is_named_in_reports) {
  Hosts hosts("abcd");
  ASSERT_EQ(hosts.error(), "");
  for (const char host : hosts.names()) hosts.limit_rate(std::string(1, host), "60mbit");
  ASSERT_EQ(hosts.error(), "");
  ElasticPeers run("min_peers=4,elements=65536", port);
  const auto peers = start(run, hosts, "abcd");
  expect_exact(run.ask(peers, sums(4)), {1, 1, 1, 1});
  const auto vector_bytes = 65536 * 8 * sizeof(float);
  run.ask({1}, concat("elastic_receive:bytes=",
                      vector_bytes / 2));  // a peer receives 1.5 vectors per round, so this is inside a round
  run.kill(1);
  for (const auto& step : run.ask({0, 2, 3}, "elastic_wait:absent=worker-1")) {
    EXPECT_TRUE(step.says("worker-1_(dead")) << step.text;
    EXPECT_EQ(step.value("exact"), "0") << step.text;
  }
  for (const auto& step : run.ask({0, 2, 3}, "elastic_wait:members=3,outcome=averaged"))
    EXPECT_EQ(step.value("shares"), shares_of({1, 0, 1, 1})) << step.text;
  run.finish({0, 2, 3});
}

TEST_F(ElasticNetwork, a_joiner_that_is_killed_while_it_loads_frees_its_slot_for_the_next_one) {
  Hosts hosts("abc");
  ASSERT_EQ(hosts.error(), "");
  hosts.limit_rate("c", "50mbit");  // at this rate loading 8 MiB takes more than a second
  ASSERT_EQ(hosts.error(), "");
  ElasticPeers run("min_peers=2,elements=262144", port);
  const auto peers = start(run, hosts, "ab");
  run.ask(peers, sums(2));
  run.begin("", hosts.wrapper('c'));
  EXPECT_TRUE(run.wait_for_status(
      0, [](const Line& status) { return status.number("serving") == 1 && status.says("worker-2:joining:"); }));
  run.kill(2);
  EXPECT_TRUE(run.wait_for_status(0, "worker-2:dead:"));
  for (const auto peer : peers) EXPECT_TRUE(run.wait_for_status(peer, "serving=0 "));
  expect_exact(run.ask(peers, sums(2)), {1, 1});
  const auto next = run.begin("", hosts.wrapper('c'));
  const auto line = run.joined(next);
  ASSERT_TRUE(line.ok()) << line.text;
  EXPECT_EQ(line.value("loaded"), "1") << line.text;
  EXPECT_GE(line.number("bytes"), 262144 * 8 * 4) << line.text;
  run.finish({0, 1, next});
}

TEST_F(ElasticNetwork, a_peer_without_the_key_is_refused_and_counted) {
  Hosts hosts("ab");
  ASSERT_EQ(hosts.error(), "");
  ElasticPeers run("min_peers=2", port);
  const auto founder = run.add(right_key, hosts.wrapper('a'));
  int64_t refused = 0;
  for (const auto& key : {"key=" + std::string(64, 'b'), std::string("key=")}) {
    const auto unauthenticated = run.begin(key + ",join=1500", hosts.wrapper('b'));
    const auto line = run.joined(unauthenticated);
    EXPECT_EQ(line.code(), "invalid") << line.text;
    EXPECT_TRUE(line.message().starts_with("RUN_ID_MISMATCH")) << line.text;
    EXPECT_TRUE(line.says(endpoint('a'))) << line.text;
    EXPECT_EQ(run[unauthenticated].finish(), 0);
    const auto status = run.ask({founder}, "elastic_status").front();
    EXPECT_GT(status.number("refused"), refused) << status.text;
    EXPECT_FALSE(status.says(concat("worker-", unauthenticated))) << status.text;
    refused = status.number("refused");
  }
  const auto member = run.add(right_key, hosts.wrapper('b'));
  run.ask({founder, member}, "elastic_loop");
  run.ask({founder, member}, sums(2));
  EXPECT_EQ(run.ask({founder}, "elastic_status").front().number("refused"), refused);
  run.finish({founder, member});
}

// Every container of a host adds addresses to it.
TEST_F(ElasticNetwork, hosts_with_many_addresses_take_part) {
  Hosts hosts("ab");
  hosts.add_containers("a", 30);
  hosts.add_containers("b", 30);
  ASSERT_EQ(hosts.error(), "");
  ElasticPeers run("min_peers=2", port);
  const auto peers = start(run, hosts, "ab");
  expect_exact(run.ask(peers, sums(2)), {1, 1});
  run.finish(peers);
}

TEST_F(ElasticNetwork, a_run_without_a_key_refuses_a_peer_with_a_key) {
  Hosts hosts("ab");
  ASSERT_EQ(hosts.error(), "");
  ElasticPeers run("min_peers=1", port);
  const auto founder = run.add("", hosts.wrapper('a'));
  const auto unauthenticated = run.begin(right_key + ",join=1500", hosts.wrapper('b'));
  const auto line = run.joined(unauthenticated);
  EXPECT_TRUE(line.message().starts_with("RUN_ID_MISMATCH")) << line.text;
  EXPECT_EQ(run[unauthenticated].finish(), 0);
  EXPECT_GT(run.ask({founder}, "elastic_status").front().number("refused"), 0);
  run.finish({founder});
}

// A peer that leaves waits at most two seconds for peers that its goodbye cannot reach. It does not wait for addresses that
// never answered.
TEST_F(ElasticNetwork, a_peer_leaves_soon_even_if_no_other_peer_answers) {
  Hosts hosts("abc");
  hosts.drop_at("c", "meta l4proto tcp");
  ASSERT_EQ(hosts.error(), "");
  ElasticPeers run("min_peers=2", port);
  run.add("seeds=" + endpoint('c'), hosts.wrapper('a'));
  run.add("seeds=" + endpoint('a'), hosts.wrapper('b'));
  constexpr int64_t drain_ms = 2000, slack_ms = 1000;
  run.ask({0, 1}, "elastic_status");
  hosts.filter({"meta l4proto tcp drop"});
  ASSERT_EQ(hosts.error(), "");
  const auto began = now_ns();
  run.finish({0, 1});
  expect_within("both leave in", now_ns() - began, drain_ms + slack_ms);
}

// The client's firewall blocks incoming connections. The other peers, including later joiners, must not even try to connect to
// it.
TEST_F(ElasticNetwork, a_client_behind_a_firewall_averages_with_all) {
  Hosts hosts("abcd");
  ipv4_only(hosts);
  hosts.drop_at("c", "tcp flags & (syn | ack) == syn counter");
  ASSERT_EQ(hosts.error(), "");
  ElasticPeers run("min_peers=2", port);
  run.add("weight=1", hosts.wrapper('a'));
  run.add("weight=2,role=client", hosts.wrapper('c'));
  run.ask({0, 1}, "elastic_loop");
  expect_exact(run.ask({0, 1}, sums(2)), {1, 2});
  run.add("weight=3", hosts.wrapper('b'));
  run.add("weight=4", hosts.wrapper('d'));
  run.ask({2, 3}, "elastic_loop");
  const auto steps = run.ask({0, 1, 2, 3}, sums(4));
  expect_exact(steps, {1, 2, 3, 4});
  const int64_t vector_bytes = 4000 * 8 * sizeof(float);
  EXPECT_LT(steps[1].number("sent"), vector_bytes * 5 / 4) << "it sends its values, and no results: " << steps[1].text;
  for (const size_t peer : {0, 2, 3}) EXPECT_TRUE(run.wait_for_status(peer, "worker-1:alive:client"));
  EXPECT_EQ(hosts.packet_counts('c'), std::vector<uint64_t>{0});
  run.finish({0, 1, 2, 3});
}

}  // namespace
}  // namespace unisono::testing
