// Links between hosts survive what happens to their connections: resets, outages, firewalls, a changed address. Operations end
// with the right bits, and no peer is lost. A process that is really gone is still noticed at once.
//
// Each test runs twice. In one run each host has its own processes, as containers do. So a peer can be judged by the network
// alone. In the other run all processes are on one machine, as far as they can see.
#include <gtest/gtest.h>

#include <algorithm>
#include <string>

#include "base/concat.h"
#include "elastic_peers.h"
#include "hosts.h"

namespace unisono::testing {
namespace {

constexpr int64_t death_limit_ms = 2000;  // generous, for loaded machines; the goal is one round trip and 10 ms
const std::string large = "all_reduce:count=16777216,iters=2", small = "all_reduce:count=16384,iters=500";
// takes long enough for a disturbance that can be made only once
const std::string many = "all_reduce:count=1048576,iters=100";

class Links : public NameSpaces, public ::testing::WithParamInterface<HostProcesses> {
 protected:
  static ClusterOptions options(const Hosts& hosts) {
    ClusterOptions options{
        .transport = "tcp", .environment = {"UNISONO_LOG=info"}, .rendezvous = "tcp://" + Hosts::address('a') + ":29500"};
    for (const char host : hosts.names()) options.wrappers.push_back(hosts.wrapper(host));
    return options;
  }
  // Makes all ranks run `call`, which repeats an operation, and calls `disturb` in its midst. Then all answers must be ok.
  // Returns whether no rank was done before `disturb` was.
  template <typename Disturb>
  bool in_the_midst_of(Cluster& group, const std::string& call, const Disturb& disturb) {
    const auto all = group.all_but({});
    const auto numbers = group.send_command(all, call);
    for (const auto rank : all) EXPECT_TRUE(group[rank].has_begun(numbers[rank]));
    disturb();
    const auto disturbed_at = now_ns();
    const auto lines = group.answers(all, numbers);
    expect_all_ok(lines);
    for (const auto& line : lines) noted_ += line.number("noted");
    return std::ranges::all_of(lines, [&](const Line& line) { return line.at() > disturbed_at; });
  }
  // Does the same until it has succeeded so many times.
  template <typename Disturb>
  void in_the_midst_of(Cluster& group, const std::string& call, int times, const Disturb& disturb) {
    for (int tries = 20 * times; times > 0 && tries > 0 && !HasFailure(); --tries)
      times -= in_the_midst_of(group, call, disturb) ? 1 : 0;
    EXPECT_EQ(times, 0) << "operations are over too soon to be disturbed";
  }
  // Ends the group. These ranks, and reports of operations, must have said what happened to the links.
  void finish(Cluster& group, const std::vector<size_t>& reconnected) const {
    group.finish();
    EXPECT_TRUE(reconnected.empty() || noted_ > 0);
    for (const auto rank : reconnected)
      EXPECT_GE(count_of(group[rank].output(), ": reconnected to it after "), 1u)
          << "rank " << rank << ": " << group[rank].output();
  }

  // Returns whether a process on one host has dialled one on the other and ended the connection, within some seconds.
  static bool has_dialled(Hosts& hosts, char one, char other) {
    const auto ended = [&](char from, char to) {
      return hosts.run_in(std::string(1, from), {"ss", "--no-header", "--tcp", "--numeric", "state", "time-wait",
                                                 "sport != :29500 and dport != :29500 and dst " + Hosts::address(to)});
    };
    const auto until = now_ns() + int64_t{5'000'000'000};
    while (now_ns() < until) {
      if (!ended(one, other).empty() || !ended(other, one).empty()) return true;
    }
    return false;
  }

 private:
  int64_t noted_ = 0;  // operations whose reports name a link that was connected anew
};

TEST_P(Links, resets_in_the_midst_of_large_all_reduces_change_no_bit) {
  Hosts hosts("abcd", GetParam());
  ASSERT_EQ(hosts.error(), "");
  Cluster group(4, options(hosts));
  for (const char host : {'a', 'c'}) in_the_midst_of(group, large, 1, [&] { EXPECT_GT(hosts.reset_connections(host), 0u); });
  EXPECT_EQ(hosts.error(), "");
  finish(group, {0, 1, 2, 3});
}

TEST_P(Links, resets_in_the_midst_of_small_all_reduces_change_no_bit) {
  Hosts hosts("abcd", GetParam());
  ASSERT_EQ(hosts.error(), "");
  Cluster group(4, options(hosts));
  for (const char host : hosts.names()) in_the_midst_of(group, small, 1, [&] { EXPECT_GT(hosts.reset_connections(host), 0u); });
  EXPECT_EQ(hosts.error(), "");
  finish(group, {0, 1, 2, 3});
}

TEST_P(Links, an_outage_of_a_second_delays_an_operation_and_no_more) {
  Hosts hosts("abcd", GetParam());
  ASSERT_EQ(hosts.error(), "");
  Cluster group(4, options(hosts));
  for (const std::string& call : {std::string("all_reduce:count=4194304,iters=3"), many})
    in_the_midst_of(group, call, [&] { hosts.cut_off('b', "1"); });
  EXPECT_EQ(hosts.error(), "");
  finish(group, {});
}

// The interface itself goes down. So the host has no routes, and its dials fail at once.
TEST_P(Links, an_interface_may_go_down_for_a_second) {
  Hosts hosts("abc", GetParam());
  ASSERT_EQ(hosts.error(), "");
  Cluster group(3, options(hosts));
  in_the_midst_of(group, many, [&] {
    hosts.run_in("b", {"sh", "-ec", "ip link set eth0 down; ss --tcp --kill state connected; sleep 1; ip link set eth0 up"});
  });
  EXPECT_EQ(hosts.error(), "");
  finish(group, {0, 1, 2});
}

// A firewall lets connections out, and none in.
TEST_P(Links, where_one_side_cannot_dial_the_other_one_does) {
  Hosts hosts("abc", GetParam());
  ASSERT_EQ(hosts.error(), "");
  Cluster group(3, options(hosts));
  for (const char blocked : {'a', 'c'}) {
    SCOPED_TRACE(blocked);
    hosts.drop_at(std::string(1, blocked), "tcp flags & (syn | ack) == syn counter");
    // The blocked host's own dial may arrive before the others have dialled it.
    for (int tries = 0; tries < 20 && hosts.packet_counts(blocked).front() == 0; ++tries)
      in_the_midst_of(group, small, [&] { EXPECT_GT(hosts.reset_connections(blocked), 0u); });
    EXPECT_GT(hosts.packet_counts(blocked).front(), 0U) << "nobody has dialled the blocked host";
    hosts.filter({});
  }
  EXPECT_EQ(hosts.error(), "");
  finish(group, {0, 1, 2});
}

// A router that has forgotten its connections answers with resets, as this firewall does.
TEST_P(Links, resets_by_the_network_change_no_bit) {
  Hosts hosts("abc", GetParam());
  ASSERT_EQ(hosts.error(), "");
  Cluster group(3, options(hosts));
  in_the_midst_of(group, small, 2, [&] {
    hosts.filter({"iif eth0 tcp flags & (syn | ack) == ack counter reject with tcp reset"});
    hosts.filter({});
  });
  EXPECT_EQ(hosts.error(), "");
  finish(group, {0, 1, 2});
}

// The first address answers nothing, and a firewall refuses at the second one. That is an outage, and nobody is dead.
TEST_P(Links, a_refusal_at_an_address_that_has_never_answered_is_no_death) {
  Hosts hosts("ab", GetParam());
  for (const char* host : {"a", "b"}) hosts.run_in(host, {"sh", "-ec", "echo 1 > /proc/sys/net/ipv6/conf/all/disable_ipv6"});
  hosts.run_in("b", {"ip", "address", "add", "10.77.0.102/24", "dev", "eth0"});
  ASSERT_EQ(hosts.error(), "");
  Cluster group(2, options(hosts));
  in_the_midst_of(group, many, 1, [&] {
    hosts.filter({"ip daddr 10.77.0.2 drop", "ip daddr 10.77.0.102 counter reject with tcp reset"});
    EXPECT_GT(hosts.reset_connections('a'), 0u);
    const auto until = now_ns() + int64_t{5'000'000'000};
    while (hosts.packet_counts('b').front() < 3 && now_ns() < until) {}
    EXPECT_GE(hosts.packet_counts('b').front(), 3u) << "it is not dialled again and again";
    hosts.filter({});
  });
  EXPECT_EQ(hosts.error(), "");
  finish(group, {0, 1});
}

TEST_P(Links, a_host_may_lose_one_of_its_addresses) {
  Hosts hosts("abc", GetParam());
  hosts.run_in(
      "b", {"sh", "-ec", "echo 1 > /proc/sys/net/ipv4/conf/eth0/promote_secondaries; ip address add 10.77.0.102/24 dev eth0"});
  ASSERT_EQ(hosts.error(), "");
  Cluster group(3, options(hosts));
  in_the_midst_of(group, many, [&] {
    hosts.run_in("b", {"ip", "address", "delete", Hosts::address('b') + "/24", "dev", "eth0"});
  });
  EXPECT_EQ(hosts.error(), "");
  finish(group, {0, 1, 2});
}

TEST_P(Links, a_host_may_get_an_address_that_nobody_knew) {
  Hosts hosts("abc", GetParam());
  ASSERT_EQ(hosts.error(), "");
  Cluster group(3, options(hosts));
  in_the_midst_of(group, many, [&] {
    hosts.run_in("b",
                 {"sh", "-ec",
                  concat("ip address delete ", Hosts::address('b'), "/24 dev eth0; ip address add 10.77.0.102/24 dev eth0")});
  });
  EXPECT_EQ(hosts.error(), "");
  finish(group, {0, 1, 2});
}

TEST_P(Links, a_process_that_is_killed_is_reported_at_once) {
  Hosts hosts("abcd", GetParam());
  ASSERT_EQ(hosts.error(), "");
  auto with = options(hosts);
  with.wrappers[3] = with.wrappers[2];  // Rank 3 is on the host of rank 2.
  Cluster group(4, with);
  const auto numbers = group.send_command({0, 1, 3}, "all_reduce:count=1000");
  expect_all_ok({group[2].ask("usage")});
  const auto killed_at = now_ns();
  group[2].signal(SIGKILL);
  for (const auto& line : group.answers({0, 1, 3}, numbers)) {
    EXPECT_EQ(line.code(), "peer_lost") << line.text;
    EXPECT_TRUE(line.says("rank 2 was lost: ") && line.says("its process is gone: 10.77.0.3:")) << line.text;
    expect_within("death reported after", line.at() - killed_at, death_limit_ms);
  }
  expect_all_ok(group.ask({0, 1, 3}, "reform"));
  expect_all_ok(group.ask({0, 1, 3}, "all_reduce:count=100003,iters=3,check=1"));
  group.finish({0, 1, 3});
}

// Bytes are on their way in both directions, so the connection ends with a reset. Rank 0 has dialled rank 1, so it knows that a
// refusal at that address means a death.
TEST_P(Links, a_process_that_is_killed_in_an_operation_is_reported_at_once) {
  Hosts hosts("ab", GetParam());
  ASSERT_EQ(hosts.error(), "");
  Cluster group(2, options(hosts));
  const auto numbers = group.send_command({0, 1}, "all_reduce:count=1000000,iters=1000000");
  for (const size_t rank : {0, 1}) ASSERT_TRUE(group[rank].has_begun(numbers[rank]));
  const auto killed_at = now_ns();
  group[1].signal(SIGKILL);
  const auto line = group[0].answer(numbers[0]);
  EXPECT_EQ(line.code(), "peer_lost") << line.text;
  EXPECT_TRUE(line.says("its process is gone: 10.77.0.2:")) << line.text;
  expect_within("death reported after", line.at() - killed_at, death_limit_ms);
  group.finish({0});
}

// Rank 0 has dialled all others, so these have only accepted. They have dialled it back since, and know that a refusal means a
// death.
TEST_P(Links, a_killed_process_that_had_dialled_all_others_is_reported_at_once) {
  Hosts hosts("abc", GetParam());
  ASSERT_EQ(hosts.error(), "");
  Cluster group(3, options(hosts));
  for (const char host : {'b', 'c'}) EXPECT_TRUE(has_dialled(hosts, host, 'a')) << host;
  const auto numbers = group.send_command({1, 2}, "all_reduce:count=1000");
  expect_all_ok({group[0].ask("usage")});
  const auto killed_at = now_ns();
  group[0].signal(SIGKILL);
  for (const auto& line : group.answers({1, 2}, numbers)) {
    EXPECT_EQ(line.code(), "peer_lost") << line.text;
    EXPECT_TRUE(line.says("rank 0 was lost: ") && line.says("its process is gone: 10.77.0.1:")) << line.text;
    expect_within("death reported after", line.at() - killed_at, death_limit_ms);
  }
  for (const size_t rank : {1, 2})
    EXPECT_EQ(count_of(group[rank].output(), ": reconnected to it after "), 0u) << group[rank].output();
  group.finish({1, 2});
}

// A firewall lets no dial through to the process that is killed, and refuses them. So the others wait for its own dial.
TEST_P(Links, a_process_that_could_never_be_dialled_is_waited_for_when_dials_are_refused) {
  Hosts hosts("ab", GetParam());
  for (const char* host : {"a", "b"}) hosts.run_in(host, {"sh", "-ec", "echo 1 > /proc/sys/net/ipv6/conf/all/disable_ipv6"});
  hosts.filter({"iif eth0 ip daddr 10.77.0.1 tcp dport != 29500 tcp flags & (syn | ack) == syn counter reject with tcp reset"});
  ASSERT_EQ(hosts.error(), "");
  Cluster group(2, options(hosts));
  const auto until = now_ns() + int64_t{5'000'000'000};
  while (hosts.packet_counts('a').front() == 0 && now_ns() < until) {}
  EXPECT_GT(hosts.packet_counts('a').front(), 0u) << "nobody has dialled back";
  const auto number = group[1].send_command("all_reduce:count=1000");
  expect_all_ok({group[0].ask("usage")});
  const auto killed_at = now_ns();
  group[0].signal(SIGKILL);
  const auto line = group[1].answer(number);
  EXPECT_EQ(line.code(), "peer_lost") << line.text;
  EXPECT_TRUE(line.says("rank 0 was lost: ") && line.says("all its addresses refuse dials: 10.77.0.1:")) << line.text;
  expect_within("death reported after", line.at() - killed_at, death_limit_ms);
  EXPECT_EQ(hosts.error(), "");
  group.finish({1});
}

TEST_P(Links, of_an_elastic_run_survive_resets_and_an_outage) {
  Hosts hosts("abcd", GetParam());
  ASSERT_EQ(hosts.error(), "");
  ElasticPeers run("min_peers=4,stall=8000,gather=8000", 4040);  // on a loaded machine nobody is late
  std::vector<size_t> peers;
  for (const char host : hosts.names()) peers.push_back(run.add("", hosts.wrapper(host)));
  run.ask(peers, "elastic_loop");
  const auto average_on = [&] { expect_exact(run.ask(peers, "elastic_wait:exact=1,members=4"), {1, 1, 1, 1}); };
  average_on();
  for (const char host : hosts.names()) {
    EXPECT_GT(hosts.reset_connections(host), 0u);
    average_on();
  }
  hosts.cut_off('b', "1");
  average_on();
  EXPECT_EQ(hosts.error(), "");
  // On a loaded machine, a peer may be too late for an averaging step. But none of them is taken for dead.
  for (const auto& line : run.ask(peers, "elastic_summary")) EXPECT_FALSE(line.says("_(dead")) << line.text;
  run.finish(peers);
}

INSTANTIATE_TEST_SUITE_P(, Links, ::testing::Values(HostProcesses::apart, HostProcesses::together),
                         [](const ::testing::TestParamInfo<HostProcesses>& processes) {
                           return processes.param == HostProcesses::apart ? "apart" : "together";
                         });

}  // namespace
}  // namespace unisono::testing
