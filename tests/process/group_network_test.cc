// Two hosts made of network name spaces with a virtual cable between them: shared memory inside, TCP between.
#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <sstream>

#include "group_cluster.h"
#include "hosts.h"

namespace unisono::testing {
namespace {

struct NetworkOptions {
  bool ipv6 = false;
  std::string rate = {};  // of the cable, as tc takes it; empty: as fast as it goes
};

class TwoHosts {
 public:
  explicit TwoHosts(const NetworkOptions& options) : name_("uni" + std::to_string(::getpid())), options_(options) {
    for (const auto* host : {"a", "b"}) ip({"netns", "add", name_ + host});
    ip({"link", "add", name_ + "a", "netns", name_ + "a", "type", "veth", "peer", "name", name_ + "b", "netns", name_ + "b"});
    for (const std::string host : {"a", "b"}) {
      const auto link = name_ + host;
      if (options.ipv6) inside(host, {"ip", "address", "add", address(host) + "/64", "dev", link, "nodad"});
      else inside(host, {"ip", "address", "add", address(host) + "/24", "dev", link});
      inside(host, {"ip", "link", "set", link, "up"});
      inside(host, {"ip", "link", "set", "lo", "up"});
      if (!options.rate.empty())
        inside(host,
               {"tc", "qdisc", "add", "dev", link, "root", "tbf", "rate", options.rate, "burst", "256kb", "latency", "100ms"});
    }
  }
  ~TwoHosts() {
    for (const auto* host : {"a", "b"}) (void)run({"ip", "netns", "delete", name_ + host});
  }
  TwoHosts(const TwoHosts&) = delete;

  void pull_the_cable() { inside("a", {"ip", "link", "set", name_ + "a", "down"}); }
  void plug_it_in_again() { inside("a", {"ip", "link", "set", name_ + "a", "up"}); }

  bool works() const { return trouble_.empty(); }
  const std::string& trouble() const { return trouble_; }
  std::string address(const std::string& host) const {
    return (options_.ipv6 ? "fd77::" : "10.77.0.") + std::string(host == "a" ? "1" : "2");
  }
  // The name space is new, so every port in it is free.
  std::string rendezvous() const {
    return options_.ipv6 ? "tcp://[" + address("a") + "]:29500" : "tcp://" + address("a") + ":29500";
  }
  // Before a program that is to run there, under a host name of its own.
  Words wrapper(const std::string& host) const {
    return {"ip",         "netns",   "exec",
            name_ + host, "unshare", "--uts",
            "sh",         "-c",      "hostname host-" + host + " && exec \"$0\" \"$@\""};
  }

 private:
  void ip(Words words) {
    words.insert(words.begin(), "ip");
    const auto done = run(words);
    if (done.code != 0 && trouble_.empty()) trouble_ = done.error;
  }
  void inside(const std::string& host, const Words& words) {
    Words all{"netns", "exec", name_ + host};
    all.insert(all.end(), words.begin(), words.end());
    ip(all);
  }

  const std::string name_;
  const NetworkOptions options_;
  std::string trouble_;
};

// "shm" or "tcp" of the link to each rank.
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

TEST_F(Network, of_two_hosts_uses_shared_memory_inside_and_tcp_between) {
  TwoHosts hosts({});
  ASSERT_TRUE(hosts.works()) << hosts.trouble();
  work_over(hosts, "all_reduce:count=2000003,iters=3,check=1", 10'000);
}

// A packet that gets lost for ever is no message that a peer has gone: only the deadline says so.
TEST_F(Network, cut_in_two_goes_on_as_two_groups) {
  TwoHosts hosts({});
  ASSERT_TRUE(hosts.works()) << hosts.trouble();
  Cluster group(4, {.rendezvous = hosts.rendezvous(),
                    .wrappers = {hosts.wrapper("a"), hosts.wrapper("a"), hosts.wrapper("b"), hosts.wrapper("b")}});
  expect_all_ok(group.ask_all("all_reduce:count=100001"));
  hosts.pull_the_cable();
  for (const auto& line : group.ask_all("all_reduce:count=100001,timeout=1000")) {
    EXPECT_EQ(line.code(), "late") << line.text;
    expect_within("late after", line.number("us") * 1000, 1000 + 200);
  }
  for (const auto& line : group.ask_all("reform")) {
    EXPECT_TRUE(line.ok()) << line.text;
    EXPECT_EQ(line.number("world"), 2) << line.text;
    expect_within("reform", line.number("us") * 1000, 2000);
  }
  expect_all_ok(group.ask_all("all_reduce:count=100001,iters=10,check=1"));
  hosts.plug_it_in_again();
  expect_all_ok(group.ask_all("all_reduce:count=100001,iters=10,check=1"));
  expect_all_ok(group.ask_all("reform"));
  for (const auto& line : group.ask_all("members")) EXPECT_EQ(line.number("world"), 2) << line.text;
  group.finish();
}

TEST_F(Network, with_ipv6_alone_works) {
  // A kernel that was started without IPv6 has nothing that could be tested.
  if (!std::filesystem::exists("/proc/net/if_inet6")) GTEST_SKIP() << "SKIPPED: this kernel has no IPv6";
  TwoHosts hosts({.ipv6 = true});
  ASSERT_TRUE(hosts.works()) << hosts.trouble();
  work_over(hosts, "all_reduce:count=2000003,iters=3,check=1", 10'000);
}

TEST_F(Network, with_one_gigabit_per_second_works) {
  TwoHosts hosts({.rate = "1gbit"});
  ASSERT_TRUE(hosts.works()) << hosts.trouble();
  work_over(hosts, "all_reduce:count=4000003,iters=2,check=1", 20'000);
}

// A packet comes every 120 us. A rank that polled for each would take a core from the computation.
TEST_F(Network, a_thin_link_keeps_no_core_busy) {
  for (const auto* transport : {"tcp", "udp"}) {
    TwoHosts hosts({.rate = "100mbit"});
    ASSERT_TRUE(hosts.works()) << hosts.trouble();
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

// The bytes that a rank sends say whether it owns part of the tensor: b and c, with a slow cable between them, should own
// little.
TEST_F(Network, with_one_slow_pair_sums_elsewhere) {
  Hosts hosts("abcd");
  hosts.connect('b', 'c', "20mbit");
  for (const char host : hosts.names())
    hosts.inside(std::string(1, host),
                 {"tc", "qdisc", "add", "dev", "eth0", "root", "tbf", "rate", "200mbit", "burst", "64kb", "latency", "50ms"});
  ASSERT_EQ(hosts.trouble(), "");
  Cluster group(4, {.rendezvous = "tcp://" + Hosts::address('a') + ":29500",
                    .wrappers = {hosts.wrapper('a'), hosts.wrapper('b'), hosts.wrapper('c'), hosts.wrapper('d')}});
  auto lines = group.ask_all("all_reduce:count=250003,check=1");
  expect_all_ok(lines);
  for (const auto& line : lines) EXPECT_EQ(line.value("schedule"), "two_step_fitted") << line.text;
  expect_all_ok(group.ask_all("matrix:counts=0/1/1000"));
  lines = group.ask_all("all_reduce:count=250003,check=1,schedule=2");
  expect_all_ok(lines);
  for (const auto& line : lines) EXPECT_EQ(line.value("schedule"), "two_step") << line.text;
  // Without a the hosts have other numbers, and nobody measures again: b and c still own little, so d sends the most.
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
