// `unisono doctor` on hosts made of network name spaces on one switch. Each test misconfigures something.
#include <gtest/gtest.h>
#include <stdlib.h>
#include <unistd.h>

#include <fstream>
#include <memory>
#include <sstream>

#include "base/concat.h"
#include "hosts.h"

namespace unisono::testing {
namespace {

class DoctorHosts : public Hosts {
 public:
  using Hosts::Hosts;

  // Runs one rank on each host. Returns their outputs, indexed by host. settings[i]: environment variables of host i.
  std::vector<Finished> doctor(const std::vector<Words>& settings = {}, const std::string& timeout = "10s",
                               const Words& more = {}) {
    std::vector<std::unique_ptr<ChildProcess>> ranks;
    for (size_t rank = 0; rank < names().size(); ++rank) {
      const auto folder = folder_of(rank, settings);
      ChildOptions options{.environment = {concat("RANK=", rank), concat("WORLD_SIZE=", names().size()),
                                           "MASTER_ADDR=" + address(names()[0]), "MASTER_PORT=29500",
                                           "UNISONO_JOB=doctor-test"}};
      if (rank < settings.size())
        options.environment.insert(options.environment.end(), settings[rank].begin(), settings[rank].end());
      auto words = wrapper(names()[rank], folder).words;
      words.insert(words.end(), {UNISONO_TOOL, "doctor", "--timeout", timeout});
      words.insert(words.end(), more.begin(), more.end());
      ranks.push_back(std::make_unique<ChildProcess>(words, options));
    }
    std::vector<Finished> done;
    for (auto& rank : ranks) done.push_back(rank->wait());
    return done;
  }

 private:
  // The setting HOSTS_FILE=path replaces /etc/hosts for one rank only, because `ip netns exec` gives each command its own
  // mounts.
  static std::string folder_of(size_t rank, const std::vector<Words>& settings) {
    if (rank >= settings.size()) return "";
    for (const auto& setting : settings[rank]) {
      if (setting.starts_with("HOSTS_FILE=")) return " && mount --bind \"$HOSTS_FILE\" /etc/hosts";
    }
    return "";
  }
};

void expect_says(const Finished& done, const Words& parts) {
  for (const auto& part : parts)
    EXPECT_TRUE(contains(done.out, part)) << "no \"" << part << "\" in\n" << done.out << done.error;
}

using Doctor = NameSpaces;

TEST_F(Doctor, finds_no_error_in_a_healthy_pair) {
  DoctorHosts hosts("ab");
  ASSERT_EQ(hosts.error(), "");
  const auto done = hosts.doctor();
  EXPECT_EQ(done[0].code, 0) << done[0].out << done[0].error;
  EXPECT_EQ(done[1].code, 0) << done[1].out << done[1].error;
  EXPECT_EQ(done[1].out, "") << "rank 0 speaks for all";
  expect_says(done[0], {"2 of 2 ranks, rendezvous at tcp://10.77.0.1:29500", "host host-b, rank 1", "10.77.0.2 (eth0): global",
                        "0 errors, 0 warnings"});
  EXPECT_FALSE(contains(done[0].out, " NO")) << done[0].out;
}

TEST_F(Doctor, warns_of_nothing_when_a_host_has_many_addresses) {
  DoctorHosts hosts("ab");
  hosts.add_containers("a", 30);
  ASSERT_EQ(hosts.error(), "");
  const auto done = hosts.doctor({}, "20s");
  EXPECT_EQ(done[0].code, 0) << done[0].out << done[0].error;
  expect_says(done[0], {"2 of 2 ranks", "0 errors, 0 warnings"});
  EXPECT_FALSE(contains(done[0].out, "172.17.1.1 (veth1) of host")) << done[0].out;
}

TEST_F(Doctor, names_the_direction_that_a_firewall_drops) {
  DoctorHosts hosts("ab");
  hosts.drop_at("b", "ip saddr 10.77.0.1 tcp flags & (syn | ack) == syn");
  ASSERT_EQ(hosts.error(), "");
  const auto done = hosts.doctor();
  EXPECT_EQ(done[0].code, 1);
  expect_says(done[0], {"error    rank 0 (host host-a) cannot connect to rank 1 (host host-b): 10.77.0.2:",
                        "(eth0): no answer after 2.5 s", "the other direction works", "a firewall on host host-b",
                        "iptables -I INPUT -p tcp -s 10.77.0.1 -j ACCEPT", "1 error,"});
}

TEST_F(Doctor, reports_on_both_sides_when_nothing_reaches_rank_0) {
  DoctorHosts hosts("ab");
  hosts.drop_at("a", "ip saddr 10.77.0.2");
  ASSERT_EQ(hosts.error(), "");
  const auto done = hosts.doctor({}, "3s");
  EXPECT_EQ(done[0].code, 1);
  expect_says(done[0], {"rank 1 of 2 did not connect to tcp://10.77.0.1:29500 within 3.", "here: rank 0 (host host-a)"});
  EXPECT_EQ(done[1].code, 1);
  expect_says(done[1], {"rank 1 (host host-b) cannot reach rank 0 at tcp://10.77.0.1:29500 within ",
                        "10.77.0.1:29500: no answer", "--dport 29500"});
}

TEST_F(Doctor, finds_a_path_that_loses_long_frames) {
  DoctorHosts hosts("ab");
  hosts.send_single_segments("a");
  hosts.drop_at("b", "ip length > 1100");
  ASSERT_EQ(hosts.error(), "");
  const auto done = hosts.doctor();
  EXPECT_EQ(done[0].code, 1);
  expect_says(done[0], {"error    from rank 0 (host host-a) to rank 1 (host host-b) short frames pass",
                        "full segments of 1448 bytes do not", "with segments of 960 bytes they do",
                        "ip link set dev eth0 mtu 1000", "net.ipv4.tcp_mtu_probing=1", "stuck"});
  EXPECT_FALSE(contains(done[0].out, "neither do they the other way")) << done[0].out;
}

TEST_F(Doctor, names_the_host_whose_link_is_slow) {
  DoctorHosts hosts("abc");
  hosts.limit_rate("a", "1gbit");
  hosts.limit_rate("b", "1gbit");
  hosts.limit_rate("c", "100mbit");
  ASSERT_EQ(hosts.error(), "");
  const auto done = hosts.doctor();
  EXPECT_EQ(done[0].code, 0) << done[0].out;
  expect_says(done[0], {"warning  rank 0 (host host-a) sends to rank 2 (host host-c) at 1",
                        "warning  rank 2 (host host-c) sends to rank 1 (host host-b) at 1", "times as much", "ethtool",
                        "hint     links between hosts are thin", "UNISONO_CODEC=int8"});
  EXPECT_FALSE(contains(done[0].out, "rank 0 (host host-a) sends to rank 1")) << done[0].out;
}

TEST_F(Doctor, names_the_unreachable_interface_and_the_reachable_one) {
  DoctorHosts hosts("ab");
  hosts.run_in("b", {"ip", "link", "add", "wrong0", "type", "veth", "peer", "name", "nowhere0"});
  hosts.run_in("b", {"ip", "address", "add", "10.99.0.2/24", "dev", "wrong0"});
  hosts.run_in("b", {"ip", "link", "set", "wrong0", "up"});
  hosts.run_in("b", {"ip", "link", "set", "nowhere0", "up"});
  ASSERT_EQ(hosts.error(), "");
  const auto done = hosts.doctor({{}, {"UNISONO_INTERFACE=wrong0"}});
  EXPECT_EQ(done[0].code, 1);
  expect_says(done[0],
              {"because host host-b is set to use interface wrong0: 10.99.0.2:", "network is unreachable",
               "10.77.0.2:", "on eth0 answers", "on host host-b: --interface eth0 (UNISONO_INTERFACE=eth0)", "1 error,"});
}

TEST_F(Doctor, warns_of_an_unreachable_address_beside_a_reachable_one) {
  DoctorHosts hosts("ab");
  hosts.run_in("b", {"ip", "address", "add", "10.99.0.2/32", "dev", "lo"});
  ASSERT_EQ(hosts.error(), "");
  const auto done = hosts.doctor();
  EXPECT_EQ(done[0].code, 0) << done[0].out;
  expect_says(done[0], {"warning  10.99.0.2 (lo) of host host-b cannot be reached from host host-a",
                        "tried before the one that works", "--interface eth0"});
}

TEST_F(Doctor, names_the_loopback_address_to_which_the_rendezvous_name_resolves) {
  DoctorHosts hosts("ab");
  ASSERT_EQ(hosts.error(), "");
  char path[] = "/tmp/unisono-doctor-XXXXXX";
  ::close(::mkstemp(path));
  std::ofstream(path) << "127.0.0.1 localhost\n127.0.1.1 meeting-point\n";
  const auto done = hosts.doctor({{}, {"MASTER_ADDR=meeting-point", std::string("HOSTS_FILE=") + path}}, "2s");
  ::unlink(path);
  EXPECT_EQ(done[1].code, 1);
  expect_says(done[1],
              {"rank 1 (host host-b) cannot reach rank 0 at tcp://meeting-point:29500",
               "127.0.1.1:29500: connection refused; this address is this host itself", "MASTER_ADDR=<address>", "/etc/hosts"});
  EXPECT_EQ(done[0].code, 1);
  expect_says(done[0], {"rank 1 of 2 did not connect"});
}

TEST(DoctorHere, starts_its_ranks_itself_and_writes_its_findings) {
  char path[] = "/tmp/unisono-doctor-XXXXXX";
  ::close(::mkstemp(path));
  const auto done = run({UNISONO_TOOL, "doctor", "-n", "2", "--output", path});
  std::stringstream json;
  json << std::ifstream(path).rdbuf();
  ::unlink(path);
  EXPECT_EQ(done.code, 0) << done.out << done.error;
  expect_says(done, {"2 of 2 ranks", "pairs that share memory: 0-1", "0 errors"});
  EXPECT_TRUE(contains(json.str(), "\"kind\":\"doctor\"")) << json.str();
  EXPECT_TRUE(contains(json.str(), "\"round_trip_us\":")) << json.str();
}

TEST(DoctorHere, examines_a_machine_alone) {
  const auto done = run({UNISONO_TOOL, "doctor", "--verbose"});
  EXPECT_EQ(done.code, 0) << done.out << done.error;
  expect_says(done, {"this machine alone", "shared memory   can be made", "descriptors ", "clock source ", "lo "});
}

TEST(DoctorHere, a_limit_on_files_that_forbids_shared_memory_is_an_error) {
  const auto done = run({"sh", "-c", "ulimit -f 1000; exec \"$0\" doctor", UNISONO_TOOL});
  EXPECT_EQ(done.code, 1);
  expect_says(done, {"gives no shared memory", "ulimit -f", "--transport tcp"});
}

TEST(DoctorHere, invalid_options_are_refused) {
  EXPECT_EQ(run({UNISONO_TOOL, "doctor", "--timeout", "soon"}).code, 2);
  EXPECT_EQ(run({UNISONO_TOOL, "doctor", "-n", "0"}).code, 2);
  EXPECT_EQ(run({UNISONO_TOOL, "doctor", "--rendezvous", "nonsense", "-n", "2"}).code, 2);
}

}  // namespace
}  // namespace unisono::testing
