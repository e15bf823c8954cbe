// Elastic runs of processes on several hosts: networks that are cut, that lose packets, that let nobody in, and unauthenticated
// peers.
#include <gtest/gtest.h>

#include <string>

#include "elastic_peers.h"
#include "hosts.h"

namespace unisono::testing {
namespace {

constexpr uint16_t port = 4040;  // the name spaces are new, so it is free

class ElasticNetwork : public NameSpaces {
 protected:
  // One peer on each of these hosts, all averaging.
  static std::vector<size_t> start(ElasticPeers& run, const Hosts& hosts, const std::string& of) {
    std::vector<size_t> peers;
    for (const char host : of) peers.push_back(run.add("", hosts.wrapper(host)));
    run.ask(peers, "elastic_loop");
    return peers;
  }
  // Hosts have link-local addresses of their own, too, by which peers would find each other past rules for IPv4.
  static void ipv4_only(Hosts& hosts) {
    for (const char host : hosts.names())
      hosts.inside(std::string(1, host),
                   {"nft", "add table ip6 none; add chain ip6 none input { type filter hook input priority 0; policy drop; }"});
  }
  static std::string sums(size_t members) { return "elastic_wait:exact=1,members=" + std::to_string(members); }
  static std::string endpoint(char host) { return Hosts::address(host) + ":" + std::to_string(port); }
};

using LongElasticNetwork = ElasticNetwork;

// Neither part knows whether the other lives. Each has its own layouts, until a peer asks one that is dead to it.
TEST_F(LongElasticNetwork, cut_in_two_goes_on_in_both_parts_which_unite_afterwards) {
  Hosts hosts("abcd");
  ASSERT_EQ(hosts.trouble(), "");
  ipv4_only(hosts);
  ASSERT_EQ(hosts.trouble(), "");
  ElasticPeers run("min_peers=4,gather=500,stall=500", port);
  const auto peers = start(run, hosts, "abcd");
  expect_exact(run.ask(peers, sums(4)), {1, 1, 1, 1});
  const std::string left = "{ 10.77.0.1, 10.77.0.2 }", right = "{ 10.77.0.3, 10.77.0.4 }";
  hosts.filter({"ip saddr " + left + " ip daddr " + right + " drop", "ip saddr " + right + " ip daddr " + left + " drop"});
  for (const size_t peer : {0, 1})
    EXPECT_TRUE(
        run.becomes(peer, [](const Line& status) { return status.says("worker-2:dead:") && status.says("worker-3:dead:"); }));
  for (const size_t peer : {2, 3})
    EXPECT_TRUE(
        run.becomes(peer, [](const Line& status) { return status.says("worker-0:dead:") && status.says("worker-1:dead:"); }));
  expect_exact(run.ask({0, 1}, sums(2)), {1, 1});
  expect_exact(run.ask({2, 3}, sums(2)), {0, 0, 1, 1});
  hosts.filter({});
  ASSERT_EQ(hosts.trouble(), "");
  expect_exact(run.ask(peers, sums(4)), {1, 1, 1, 1});
  run.finish(peers);
}

TEST_F(ElasticNetwork, that_loses_packets_averages_right_values) {
  Hosts hosts("abc");
  ElasticPeers run("min_peers=3", port);
  for (const char host : hosts.names()) hosts.send_single_segments(std::string(1, host));
  ASSERT_EQ(hosts.trouble(), "");
  const auto peers = start(run, hosts, "abc");
  expect_exact(run.ask(peers, sums(3)), {1, 1, 1});
  hosts.filter({"meta l4proto tcp numgen random mod 100 < 3 counter drop"});
  ASSERT_EQ(hosts.trouble(), "");
  const auto first = run.ask(peers, sums(3)).front().number("done");
  run.ask(peers, sums(3) + ",from=" + std::to_string(first + 10));
  for (const char host : hosts.names()) EXPECT_GT(hosts.counted(host).front(), 0U) << host;
  hosts.filter({});
  expect_exact(run.ask(peers, sums(3)), {1, 1, 1});
  run.finish(peers);
}

// A round takes a fifth of a second there.
TEST_F(ElasticNetwork, a_peer_that_is_killed_inside_a_round_is_named_in_reports) {
  Hosts hosts("abcd");
  ASSERT_EQ(hosts.trouble(), "");
  for (const char host : hosts.names()) hosts.limit(std::string(1, host), "60mbit");
  ASSERT_EQ(hosts.trouble(), "");
  ElasticPeers run("min_peers=4,elements=65536", port);
  const auto peers = start(run, hosts, "abcd");
  expect_exact(run.ask(peers, sums(4)), {1, 1, 1, 1});
  const auto vector_bytes = 65536 * 8 * sizeof(float);
  run.ask({1},
          "elastic_hear:bytes=" + std::to_string(vector_bytes / 2));  // of one and a half of it in a round: in the midst of one
  run.kill(1);
  for (const auto& step : run.ask({0, 2, 3}, "elastic_wait:absent=worker-1")) {
    EXPECT_TRUE(step.says("worker-1_(dead")) << step.text;
    EXPECT_EQ(step.value("exact"), "0") << step.text;
  }
  for (const auto& step : run.ask({0, 2, 3}, "elastic_wait:members=3,outcome=averaged"))
    EXPECT_EQ(step.value("shares"), shares_of({1, 0, 1, 1})) << step.text;
  run.finish({0, 2, 3});
}

TEST_F(ElasticNetwork, a_joiner_that_is_killed_while_it_loads_leaves_room_for_the_next_one) {
  Hosts hosts("abc");
  ASSERT_EQ(hosts.trouble(), "");
  hosts.limit("c", "50mbit");  // loading 8 MiB takes more than a second
  ASSERT_EQ(hosts.trouble(), "");
  ElasticPeers run("min_peers=2,elements=262144", port);
  const auto peers = start(run, hosts, "ab");
  run.ask(peers, sums(2));
  run.begin("", hosts.wrapper('c'));
  EXPECT_TRUE(
      run.becomes(0, [](const Line& status) { return status.number("serving") == 1 && status.says("worker-2:joining:"); }));
  run.kill(2);
  EXPECT_TRUE(run.becomes(0, "worker-2:dead:"));
  for (const auto peer : peers) EXPECT_TRUE(run.becomes(peer, "serving=0 "));
  expect_exact(run.ask(peers, sums(2)), {1, 1});
  const auto next = run.begin("", hosts.wrapper('c'));
  const auto line = run.joined(next);
  ASSERT_TRUE(line.ok()) << line.text;
  EXPECT_EQ(line.value("loaded"), "1") << line.text;
  EXPECT_GE(line.number("bytes"), 262144 * 8 * 4) << line.text;
  run.finish({0, 1, next});
}

TEST_F(ElasticNetwork, who_does_not_show_the_run_key_is_refused_and_counted) {
  Hosts hosts("ab");
  ASSERT_EQ(hosts.trouble(), "");
  ElasticPeers run("min_peers=2", port);
  const auto founder = run.add("key=open-sesame", hosts.wrapper('a'));
  int64_t refused = 0;
  for (const auto* key : {"key=open-barley", "key="}) {
    const auto unauthenticated = run.begin(std::string(key) + ",join=1500", hosts.wrapper('b'));
    const auto line = run.joined(unauthenticated);
    EXPECT_EQ(line.code(), "invalid") << line.text;
    EXPECT_TRUE(line.message().starts_with("RUN_ID_MISMATCH")) << line.text;
    EXPECT_TRUE(line.says(endpoint('a'))) << line.text;
    EXPECT_EQ(run[unauthenticated].finish(), 0);
    const auto status = run.ask({founder}, "elastic_status").front();
    EXPECT_GT(status.number("refused"), refused) << status.text;
    EXPECT_FALSE(status.says("worker-" + std::to_string(unauthenticated))) << status.text;
    refused = status.number("refused");
  }
  const auto member = run.add("key=open-sesame", hosts.wrapper('b'));
  run.ask({founder, member}, "elastic_loop");
  run.ask({founder, member}, sums(2));
  EXPECT_EQ(run.ask({founder}, "elastic_status").front().number("refused"), refused);
  run.finish({founder, member});
}

TEST_F(ElasticNetwork, a_run_without_a_key_refuses_who_brings_one) {
  Hosts hosts("ab");
  ASSERT_EQ(hosts.trouble(), "");
  ElasticPeers run("min_peers=1", port);
  const auto founder = run.add("", hosts.wrapper('a'));
  const auto unauthenticated = run.begin("key=open-sesame,join=1500", hosts.wrapper('b'));
  const auto line = run.joined(unauthenticated);
  EXPECT_TRUE(line.message().starts_with("RUN_ID_MISMATCH")) << line.text;
  EXPECT_EQ(run[unauthenticated].finish(), 0);
  EXPECT_GT(run.ask({founder}, "elastic_status").front().number("refused"), 0);
  run.finish({founder});
}

// Whom a goodbye does not reach is not waited for, but for the two seconds that a farewell may take; nor is an address that
// never answers.
TEST_F(ElasticNetwork, who_leaves_while_nobody_answers_is_soon_gone) {
  Hosts hosts("abc");
  hosts.drop_at("c", "meta l4proto tcp");
  ASSERT_EQ(hosts.trouble(), "");
  ElasticPeers run("min_peers=2", port);
  run.add("seeds=" + endpoint('c'), hosts.wrapper('a'));
  run.add("seeds=" + endpoint('a'), hosts.wrapper('b'));
  constexpr int64_t drain_ms = 2000, slack_ms = 1000;
  run.ask({0, 1}, "elastic_status");
  hosts.filter({"meta l4proto tcp drop"});
  ASSERT_EQ(hosts.trouble(), "");
  const auto began = now_ns();
  run.finish({0, 1});
  expect_within("both leave in", now_ns() - began, drain_ms + slack_ms);
}

// Its firewall lets no connection in, and nobody even tries: neither whom it knows nor those who come later.
TEST_F(ElasticNetwork, a_client_behind_a_firewall_averages_with_all) {
  Hosts hosts("abcd");
  ipv4_only(hosts);
  hosts.drop_at("c", "tcp flags & (syn | ack) == syn counter");
  ASSERT_EQ(hosts.trouble(), "");
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
  for (const size_t peer : {0, 2, 3}) EXPECT_TRUE(run.becomes(peer, "worker-1:alive:client"));
  EXPECT_EQ(hosts.counted('c'), std::vector<uint64_t>{0});
  run.finish({0, 1, 2, 3});
}

}  // namespace
}  // namespace unisono::testing
