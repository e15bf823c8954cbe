// `unisono doctor` on hosts made of network name spaces on one switch, each with something wrong with it.
#include <gtest/gtest.h>
#include <stdlib.h>
#include <unistd.h>

#include <fstream>
#include <memory>
#include <sstream>

#include "hosts.h"

namespace unisono::testing {
namespace {

bool contains(const std::string& text, const std::string& part) { return text.find(part) != std::string::npos; }

class DoctorHosts : public Hosts {
 public:
  using Hosts::Hosts;

  // Runs one rank on each host, in order. settings[i] are the environment variables of host i.
  std::vector<Finished> doctor(const std::vector<Words>& settings = {}, const std::string& timeout = "10s",
                               const Words& more = {}) {
    std::vector<std::unique_ptr<ChildProcess>> ranks;
    for (size_t rank = 0; rank < names().size(); ++rank) {
      const auto folder = folder_of(rank, settings);
      ChildOptions options{.environment = {"RANK=" + std::to_string(rank), "WORLD_SIZE=" + std::to_string(names().size()),
                                           "MASTER_ADDR=" + address(names()[0]), "MASTER_PORT=29500",
                                           "UNISONO_JOB=doctor-test"}};
      if (rank < settings.size())
        options.environment.insert(options.environment.end(), settings[rank].begin(), settings[rank].end());
      auto words = wrapper(names()[rank], folder);
      words.insert(words.end(), {UNISONO_TOOL, "doctor", "--timeout", timeout});
      words.insert(words.end(), more.begin(), more.end());
      ranks.push_back(std::make_unique<ChildProcess>(words, options));
    }
    std::vector<Finished> done;
    for (auto& rank : ranks) done.push_back(rank->wait());
    return done;
  }

 private:
  // HOSTS_FILE=path among the settings stands in for /etc/hosts; `ip netns exec` gives every command mounts of its own.
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
  ASSERT_EQ(hosts.trouble(), "");
  const auto done = hosts.doctor();
  EXPECT_EQ(done[0].code, 0) << done[0].out << done[0].error;
  EXPECT_EQ(done[1].code, 0) << done[1].out << done[1].error;
  EXPECT_EQ(done[1].out, "") << "rank 0 speaks for all";
  expect_says(done[0], {"2 of 2 ranks, meeting at tcp://10.77.0.1:29500", "host host-b, rank 1", "10.77.0.2 (eth0): global",
                        "0 errors, 0 warnings"});
  EXPECT_FALSE(contains(done[0].out, " NO")) << done[0].out;
}

TEST_F(Doctor, names_the_direction_that_a_firewall_drops) {
  DoctorHosts hosts("ab");
  hosts.drop_at("b", "ip saddr 10.77.0.1 tcp flags & (syn | ack) == syn");
  ASSERT_EQ(hosts.trouble(), "");
  const auto done = hosts.doctor();
  EXPECT_EQ(done[0].code, 1);
  expect_says(done[0], {"error    rank 0 (host host-a) cannot connect to rank 1 (host host-b): 10.77.0.2:",
                        "(eth0): no answer after 2.5 s", "the other direction works", "a firewall on host host-b",
                        "iptables -I INPUT -p tcp -s 10.77.0.1 -j ACCEPT", "1 error,"});
}

TEST_F(Doctor, tells_both_sides_when_nothing_gets_to_rank_0) {
  DoctorHosts hosts("ab");
  hosts.drop_at("a", "ip saddr 10.77.0.2");
  ASSERT_EQ(hosts.trouble(), "");
  const auto done = hosts.doctor({}, "3s");
  EXPECT_EQ(done[0].code, 1);
  expect_says(done[0], {"rank 1 of 2 did not come to tcp://10.77.0.1:29500 within 3.", "here: rank 0 (host host-a)"});
  EXPECT_EQ(done[1].code, 1);
  expect_says(done[1], {"rank 1 (host host-b) does not get to rank 0 at tcp://10.77.0.1:29500 within ",
                        "10.77.0.1:29500: no answer", "--dport 29500"});
}

TEST_F(Doctor, finds_long_frames_that_get_lost) {
  DoctorHosts hosts("ab");
  hosts.send_single_segments("a");
  hosts.drop_at("b", "ip length > 1100");
  ASSERT_EQ(hosts.trouble(), "");
  const auto done = hosts.doctor();
  EXPECT_EQ(done[0].code, 1);
  expect_says(done[0], {"error    from rank 0 (host host-a) to rank 1 (host host-b) short frames pass",
                        "full segments of 1448 bytes do not", "with segments of 960 bytes they do",
                        "ip link set dev eth0 mtu 1000", "net.ipv4.tcp_mtu_probing=1", "stuck"});
  EXPECT_FALSE(contains(done[0].out, "neither do they the other way")) << done[0].out;
}

TEST_F(Doctor, names_the_host_whose_link_is_slow) {
  DoctorHosts hosts("abc");
  hosts.limit("a", "1gbit");
  hosts.limit("b", "1gbit");
  hosts.limit("c", "100mbit");
  ASSERT_EQ(hosts.trouble(), "");
  const auto done = hosts.doctor();
  EXPECT_EQ(done[0].code, 0) << done[0].out;
  expect_says(done[0], {"warning  rank 0 (host host-a) sends to rank 2 (host host-c) at 1",
                        "warning  rank 2 (host host-c) sends to rank 1 (host host-b) at 1", "times as much", "ethtool",
                        "hint     links between hosts are thin", "UNISONO_CODEC=int8"});
  EXPECT_FALSE(contains(done[0].out, "rank 0 (host host-a) sends to rank 1")) << done[0].out;
}

TEST_F(Doctor, names_the_interface_that_others_do_not_reach_and_the_one_that_they_do) {
  DoctorHosts hosts("ab");
  hosts.inside("b", {"ip", "link", "add", "wrong0", "type", "veth", "peer", "name", "nowhere0"});
  hosts.inside("b", {"ip", "address", "add", "10.99.0.2/24", "dev", "wrong0"});
  hosts.inside("b", {"ip", "link", "set", "wrong0", "up"});
  hosts.inside("b", {"ip", "link", "set", "nowhere0", "up"});
  ASSERT_EQ(hosts.trouble(), "");
  const auto done = hosts.doctor({{}, {"UNISONO_INTERFACE=wrong0"}});
  EXPECT_EQ(done[0].code, 1);
  expect_says(done[0],
              {"because host host-b is told to use interface wrong0: 10.99.0.2:", "network is unreachable",
               "10.77.0.2:", "on eth0 answers", "on host host-b: --interface eth0 (UNISONO_INTERFACE=eth0)", "1 error,"});
}

TEST_F(Doctor, warns_of_an_address_that_nobody_reaches_beside_a_good_one) {
  DoctorHosts hosts("ab");
  hosts.inside("b", {"ip", "address", "add", "10.99.0.2/32", "dev", "lo"});
  ASSERT_EQ(hosts.trouble(), "");
  const auto done = hosts.doctor();
  EXPECT_EQ(done[0].code, 0) << done[0].out;
  expect_says(done[0], {"warning  10.99.0.2 (lo) of host host-b cannot be reached from host host-a",
                        "tried before the one that works", "--interface eth0"});
}

TEST_F(Doctor, names_the_loopback_address_that_the_meeting_points_name_leads_to) {
  DoctorHosts hosts("ab");
  ASSERT_EQ(hosts.trouble(), "");
  char path[] = "/tmp/unisono-doctor-XXXXXX";
  ::close(::mkstemp(path));
  std::ofstream(path) << "127.0.0.1 localhost\n127.0.1.1 meeting-point\n";
  const auto done = hosts.doctor({{}, {"MASTER_ADDR=meeting-point", std::string("HOSTS_FILE=") + path}}, "2s");
  ::unlink(path);
  EXPECT_EQ(done[1].code, 1);
  expect_says(done[1],
              {"rank 1 (host host-b) does not get to rank 0 at tcp://meeting-point:29500",
               "127.0.1.1:29500: connection refused; this address is the host itself", "MASTER_ADDR=<address>", "/etc/hosts"});
  EXPECT_EQ(done[0].code, 1);
  expect_says(done[0], {"rank 1 of 2 did not come"});
}

TEST(DoctorHere, starts_its_ranks_itself_and_writes_what_it_found) {
  char path[] = "/tmp/unisono-doctor-XXXXXX";
  ::close(::mkstemp(path));
  const auto done = run({UNISONO_TOOL, "doctor", "-n", "2", "--json", path});
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

TEST(DoctorHere, wrong_words_are_refused) {
  EXPECT_EQ(run({UNISONO_TOOL, "doctor", "--timeout", "soon"}).code, 2);
  EXPECT_EQ(run({UNISONO_TOOL, "doctor", "-n", "0"}).code, 2);
  EXPECT_EQ(run({UNISONO_TOOL, "doctor", "--rendezvous", "nonsense", "-n", "2"}).code, 2);
}

}  // namespace
}  // namespace unisono::testing
