// Two name spaces of networks and processes act as hosts, and a virtual cable connects them. Ranks on one host use shared
// memory. Ranks on different hosts use TCP.
#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <sstream>

#include "base/concat.h"
#include "group_cluster.h"
#include "hosts.h"

namespace unisono::testing {
namespace {

struct NetworkOptions {
  bool ipv6 = false;
  std::string rate = {};  // rate of the cable, as `tc` takes it; empty: unlimited
};

class TwoHosts {
 public:
  explicit TwoHosts(const NetworkOptions& options) : name_(concat("uni", ::getpid())), options_(options) {
    for (const auto* host : {"a", "b"}) ip({"netns", "add", name_ + host});
    ip({"link", "add", name_ + "a", "netns", name_ + "a", "type", "veth", "peer", "name", name_ + "b", "netns", name_ + "b"});
    for (const std::string host : {"a", "b"}) {
      const auto link = name_ + host;
      if (options.ipv6) run_in(host, {"ip", "address", "add", address(host) + "/64", "dev", link, "nodad"});
      else run_in(host, {"ip", "address", "add", address(host) + "/24", "dev", link});
      run_in(host, {"ip", "link", "set", link, "up"});
      run_in(host, {"ip", "link", "set", "lo", "up"});
      if (!options.rate.empty())
        run_in(host,
               {"tc", "qdisc", "add", "dev", link, "root", "tbf", "rate", options.rate, "burst", "256kb", "latency", "100ms"});
    }
  }
  ~TwoHosts() {
    for (const auto* host : {"a", "b"}) (void)run({"ip", "netns", "delete", name_ + host});
  }
  TwoHosts(const TwoHosts&) = delete;

  void pull_the_cable() { run_in("a", {"ip", "link", "set", name_ + "a", "down"}); }
  void plug_it_in_again() { run_in("a", {"ip", "link", "set", name_ + "a", "up"}); }

  bool works() const { return error_.empty(); }
  const std::string& error() const { return error_; }
  std::string address(const std::string& host) const {
    return (options_.ipv6 ? "fd77::" : "10.77.0.") + std::string(host == "a" ? "1" : "2");
  }
  // Returns the rendezvous address. The port is free, because the name space is new.
  std::string rendezvous() const {
    return options_.ipv6 ? "tcp://[" + address("a") + "]:29500" : "tcp://" + address("a") + ":29500";
  }
  // A program that is started with this runs on `host`, under its own host name.
  Wrapper wrapper(const std::string& host) const {
    const auto first = "hostname host-" + host + " && mount -t proc proc /proc && exec \"$0\" \"$@\"";
    return {Words{"ip", "netns", "exec", name_ + host, "unshare", "--uts", "sh", "-c", first},
            spaces_[host == "a" ? 0 : 1].descriptor()};
  }

 private:
  void ip(Words words) {
    words.insert(words.begin(), "ip");
    const auto done = run(words);
    if (done.code != 0 && error_.empty()) error_ = done.error;
  }
  void run_in(const std::string& host, const Words& words) {
    Words all{"netns", "exec", name_ + host};
    all.insert(all.end(), words.begin(), words.end());
    ip(all);
  }

  const std::string name_;
  const NetworkOptions options_;
  const ProcessSpace spaces_[2];
  std::string error_;
};

// Returns the transport of the link to each rank: "shm" or "tcp".
Words kinds_of_links(const Line& members) {
  Words kinds;
  std::istringstream in(members.value("members"));
  for (std::string member; std::getline(in, member, ';');)
    kinds.push_back(member
                        .substr(member.rfind('/') == std::string::npos
                                    ? 0
                                    : member.find('/', member.find('/', member.find('/') + 1) + 1) + 1)
                        .substr(0, 3));
  return kinds;
}

void work_over(const TwoHosts& hosts, const std::string& large_calls, int64_t limit_ms) {
  Cluster group(4, {.rendezvous = hosts.rendezvous(),
                    .wrappers = {hosts.wrapper("a"), hosts.wrapper("a"), hosts.wrapper("b"), hosts.wrapper("b")}});
  const auto members = group.ask_all("members");
  EXPECT_EQ(kinds_of_links(members[0]), (Words{"sel", "shm", "tcp", "tcp"})) << members[0].text;
  EXPECT_EQ(kinds_of_links(members[2]), (Words{"tcp", "tcp", "sel", "shm"})) << members[2].text;
  expect_all_ok(group.ask_all("matrix:counts=0/7/1000"));
  const auto lines = group.ask_all(large_calls);
  expect_all_ok(lines);
  std::printf("    schedule %s\n", lines[0].value("schedule").c_str());
  expect_within(large_calls, lines[0].number("us") * 1000, limit_ms);
  group[3].signal(SIGKILL);
  for (const auto& line : group.ask({0, 1, 2}, "all_reduce:count=1000")) EXPECT_EQ(line.code(), "peer_lost") << line.text;
  expect_all_ok(group.ask({0, 1, 2}, "reform"));
  expect_all_ok(group.ask({0, 1, 2}, "all_reduce:count=100001,iters=3,check=1"));
  group.finish({0, 1, 2});
}

using Network = NameSpaces;

TEST_F(Network, two_hosts_use_shared_memory_inside_and_tcp_between) {
  TwoHosts hosts({});
  ASSERT_TRUE(hosts.works()) << hosts.error();
  work_over(hosts, "all_reduce:count=2000003,iters=3,check=1", 10'000);
}

// While the cable is out, re-forming waits for the hosts behind it.
constexpr int64_t link_timeout_ms = 10'000;

ClusterOptions four_ranks_on(const TwoHosts& hosts) {
  return {.rendezvous = hosts.rendezvous(),
          .wrappers = {hosts.wrapper("a"), hosts.wrapper("a"), hosts.wrapper("b"), hosts.wrapper("b")}};
}

// A cut cable does not show whether a peer is dead. So calls do not end with peer_lost, but with late at their deadline.
void pull_the_cable_in_a_call(Cluster& group, TwoHosts& hosts) {
  expect_all_ok(group.ask_all("all_reduce:count=100001"));
  hosts.pull_the_cable();
  for (const auto& line : group.ask_all("all_reduce:count=100001,timeout=1000")) {
    EXPECT_EQ(line.code(), "late") << line.text;
    expect_within("late after", line.number("us") * 1000, 1000 + 200);
  }
}

TEST_F(Network, of_a_partition_the_half_with_rank_0_goes_on_and_the_other_ends) {
  TwoHosts hosts({});
  ASSERT_TRUE(hosts.works()) << hosts.error();
  Cluster group(4, four_ranks_on(hosts));
  pull_the_cable_in_a_call(group, hosts);
  const auto lines = group.ask_all("reform");
  for (const size_t rank : {0u, 1u}) {
    EXPECT_TRUE(lines[rank].ok()) << lines[rank].text;
    EXPECT_EQ(lines[rank].number("world"), 2) << lines[rank].text;
    expect_within("reform", lines[rank].number("us") * 1000, link_timeout_ms + 2000);
  }
  for (const size_t rank : {2u, 3u}) {
    EXPECT_EQ(lines[rank].code(), "unavailable") << lines[rank].text;
    for (const auto* part : {"only 2 of 4 ranks can be reached", "rank 0 on host", "no answer for 1", "require_majority=false"})
      EXPECT_TRUE(lines[rank].says(part)) << lines[rank].text;
  }
  expect_all_ok(group.ask({0, 1}, "all_reduce:count=100001,iters=10,check=1"));
  hosts.plug_it_in_again();
  expect_all_ok(group.ask({0, 1}, "all_reduce:count=100001,iters=10,check=1"));
  for (const auto& line : group.ask({2, 3}, "all_reduce:count=10")) EXPECT_EQ(line.code(), "unavailable") << line.text;
}

// TCP tries again about 1.4 s and 3 s after the cable was pulled, so re-forming begins with links that do not work.
TEST_F(Network, a_cable_that_is_plugged_in_again_while_the_group_re_forms_costs_no_rank) {
  TwoHosts hosts({});
  ASSERT_TRUE(hosts.works()) << hosts.error();
  Cluster group(4, four_ranks_on(hosts));
  pull_the_cable_in_a_call(group, hosts);
  const auto numbers = group.send_command(group.all_but({}), "reform");
  hosts.plug_it_in_again();
  for (const auto& line : group.answers(group.all_but({}), numbers)) {
    EXPECT_TRUE(line.ok()) << line.text;
    EXPECT_EQ(line.number("world"), 4) << line.text;
  }
  expect_all_ok(group.ask_all("all_reduce:count=100001,iters=10,check=1"));
  group.finish();
}

// The links are lost after 10 s without an answer. The members live, so the next re-forming makes the links anew.
TEST_F(Network, links_that_an_outage_has_ended_are_made_anew_when_the_group_re_forms) {
  TwoHosts hosts({});
  ASSERT_TRUE(hosts.works()) << hosts.error();
  Cluster group(4, four_ranks_on(hosts));
  expect_all_ok(group.ask_all("all_reduce:count=100001"));
  hosts.pull_the_cable();
  for (const auto& line : group.ask_all("all_reduce:count=100001,timeout=30000"))
    EXPECT_EQ(line.code(), "peer_lost") << line.text;
  hosts.plug_it_in_again();
  for (const auto& line : group.ask_all("reform")) {
    EXPECT_TRUE(line.ok()) << line.text;
    EXPECT_EQ(line.number("world"), 4) << line.text;
  }
  expect_all_ok(group.ask_all("all_reduce:count=100001,iters=10,check=1"));
  group.finish();
}

TEST_F(Network, a_partition_leaves_two_groups_if_no_majority_is_required) {
  TwoHosts hosts({});
  ASSERT_TRUE(hosts.works()) << hosts.error();
  auto options = four_ranks_on(hosts);
  options.environment = {"UNISONO_REQUIRE_MAJORITY=0"};
  Cluster group(4, options);
  pull_the_cable_in_a_call(group, hosts);
  for (const auto& line : group.ask_all("reform")) {
    EXPECT_TRUE(line.ok()) << line.text;
    EXPECT_EQ(line.number("world"), 2) << line.text;
    expect_within("reform", line.number("us") * 1000, link_timeout_ms + 2000);
  }
  expect_all_ok(group.ask_all("all_reduce:count=100001,iters=10,check=1"));
  hosts.plug_it_in_again();
  expect_all_ok(group.ask_all("all_reduce:count=100001,iters=10,check=1"));
  expect_all_ok(group.ask_all("reform"));
  for (const auto& line : group.ask_all("members")) EXPECT_EQ(line.number("world"), 2) << line.text;
  group.finish();
}

TEST_F(Network, with_ipv6_alone_works) {
  // Without IPv6 in the kernel there is nothing to test.
  if (!std::filesystem::exists("/proc/net/if_inet6")) GTEST_SKIP() << "SKIPPED: this kernel has no IPv6";
  TwoHosts hosts({.ipv6 = true});
  ASSERT_TRUE(hosts.works()) << hosts.error();
  work_over(hosts, "all_reduce:count=2000003,iters=3,check=1", 10'000);
}

TEST_F(Network, with_one_gigabit_per_second_works) {
  TwoHosts hosts({.rate = "1gbit"});
  ASSERT_TRUE(hosts.works()) << hosts.error();
  work_over(hosts, "all_reduce:count=4000003,iters=2,check=1", 20'000);
}

// At 100 Mbit/s a packet arrives every 120 us. A rank that polled for each packet would take a core from the computation.
TEST_F(Network, a_thin_link_keeps_no_core_busy) {
  for (const auto* transport : {"tcp", "udp"}) {
    TwoHosts hosts({.rate = "100mbit"});
    ASSERT_TRUE(hosts.works()) << hosts.error();
    Cluster group(
        2, {.transport = transport, .rendezvous = hosts.rendezvous(), .wrappers = {hosts.wrapper("a"), hosts.wrapper("b")}});
    expect_all_ok(group.ask_all("all_reduce:count=1000003"));
    const auto before = group.ask_all("usage"), calls = group.ask_all("all_reduce:count=1000003,iters=3"),
               after = group.ask_all("usage");
    expect_all_ok(calls);
    for (size_t rank = 0; rank < 2; ++rank) {
      const auto cpu_us = after[rank].number("cpu_us") - before[rank].number("cpu_us"), us = calls[rank].number("us");
      std::printf("    %s: %lld us of CPU in %lld us\n", transport, static_cast<long long>(cpu_us), static_cast<long long>(us));
      EXPECT_GT(us, 900'000);
      EXPECT_LT(cpu_us, us * slowness * 2 / 5);
    }
    group.finish();
  }
}

// Every container of a host adds addresses to it.
TEST_F(Network, hosts_with_many_addresses_form_groups_over_every_transport) {
  Hosts hosts("ab");
  hosts.add_containers("a", 30);
  ASSERT_EQ(hosts.error(), "");
  for (const auto* transport : {"auto", "tcp", "udp"}) {
    Cluster group(3, {.transport = transport,
                      .rendezvous = "tcp://" + Hosts::address('a') + ":29500",
                      .wrappers = {hosts.wrapper('a'), hosts.wrapper('a'), hosts.wrapper('b')}});
    expect_all_ok(group.ask_all("matrix:counts=0/1/1000"));
    group.finish();
  }
}

// Ranks of one host are known by its boot id and network, so ranks in other networks are on other hosts, whatever their names.
TEST_F(Network, hosts_of_one_name_are_several_hosts) {
  Hosts hosts("ab");
  ASSERT_EQ(hosts.error(), "");
  std::vector<Wrapper> wrappers;
  for (const char host : {'a', 'a', 'b', 'b'}) wrappers.push_back(hosts.named_wrapper(host, "same"));
  Cluster group(4, {.rendezvous = "tcp://" + Hosts::address('a') + ":29500", .wrappers = wrappers});
  const auto members = group.ask_all("members");
  EXPECT_EQ(kinds_of_links(members[0]), (Words{"sel", "shm", "tcp", "tcp"})) << members[0].text;
  EXPECT_EQ(kinds_of_links(members[2]), (Words{"tcp", "tcp", "sel", "shm"})) << members[2].text;
  for (const auto& line : group.ask_all("links")) {
    EXPECT_TRUE(line.value("inside").ends_with("/measured")) << line.text;
    EXPECT_TRUE(line.value("between").ends_with("/measured")) << line.text;
  }
  group.finish();
}

TEST_F(Network, one_host_of_several_names_is_one_host) {
  Hosts hosts("a");
  ASSERT_EQ(hosts.error(), "");
  Cluster group(2, {.rendezvous = "tcp://" + Hosts::address('a') + ":29500",
                    .wrappers = {hosts.named_wrapper('a', "one"), hosts.named_wrapper('a', "two")}});
  for (const auto& line : group.ask_all("links")) {
    EXPECT_TRUE(line.value("inside").ends_with("/measured")) << line.text;
    EXPECT_TRUE(line.value("between").ends_with("/starting")) << line.text;
  }
  group.finish();
}

// The bytes that a rank sends show how much of the tensor it owns. Between hosts b and c the cable is slow, so they should own
// little. All hosts have the same name, as containers often do.
TEST_F(Network, with_one_slow_pair_sums_elsewhere) {
  Hosts hosts("abcd");
  hosts.connect('b', 'c', "20mbit");
  for (const char host : hosts.names())
    hosts.run_in(std::string(1, host),
                 {"tc", "qdisc", "add", "dev", "eth0", "root", "tbf", "rate", "200mbit", "burst", "64kb", "latency", "50ms"});
  ASSERT_EQ(hosts.error(), "");
  Cluster group(4, {.rendezvous = "tcp://" + Hosts::address('a') + ":29500",
                    .wrappers = {hosts.named_wrapper('a', "same"), hosts.named_wrapper('b', "same"),
                                 hosts.named_wrapper('c', "same"), hosts.named_wrapper('d', "same")}});
  auto lines = group.ask_all("all_reduce:count=250003,check=1");
  expect_all_ok(lines);
  for (const auto& line : lines) EXPECT_EQ(line.value("schedule"), "two_step_fitted") << line.text;
  expect_all_ok(group.ask_all("matrix:counts=0/1/1000"));
  lines = group.ask_all("all_reduce:count=250003,check=1,schedule=2");
  expect_all_ok(lines);
  for (const auto& line : lines) EXPECT_EQ(line.value("schedule"), "two_step") << line.text;
  // Host a is lost, so hosts are renumbered; links are not measured again. The group must still know that the link between b
  // and c is slow. So b and c own little, and d sends the most.
  group[0].signal(SIGKILL);
  for (const auto& line : group.ask({1, 2, 3}, "all_reduce:count=1000")) EXPECT_EQ(line.code(), "peer_lost") << line.text;
  expect_all_ok(group.ask({1, 2, 3}, "reform"));
  lines = group.ask({1, 2, 3}, "all_reduce:count=250003,check=1");
  expect_all_ok(lines);
  for (const auto& line : lines) EXPECT_EQ(line.value("schedule"), "two_step_fitted") << line.text;
  EXPECT_GT(lines[2].number("sent"), std::max(lines[0].number("sent"), lines[1].number("sent")) * 5 / 4);
  group.finish({1, 2, 3});
}

}  // namespace
}  // namespace unisono::testing
