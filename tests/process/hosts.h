// Hosts for tests. Each is a network name space and, as the hosts of containers are, a process name space. One switch connects
// them. A test makes and removes them. It must run as root.
#pragma once

#include <gtest/gtest.h>
#include <sched.h>
#include <sys/mount.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cinttypes>
#include <cstdint>
#include <cstdio>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "base/concat.h"
#include "child_process.h"

namespace unisono::testing {

// The base class of tests that make network name spaces. It skips them where that is not allowed.
class NameSpaces : public ::testing::Test {
 protected:
  void SetUp() override {
    // Only root may make name spaces. In some containers not even root may. If this process may make them, every later error is
    // a failure of the test.
    if (run({"unshare", "--net", "--pid", "--fork", "--mount-proc", "true"}).code != 0)
      GTEST_SKIP() << "SKIPPED: this process may not make name spaces of networks and processes";
    static const bool apart = keep_names_to_itself();
    ASSERT_TRUE(apart);
  }

 private:
  // The names of network name spaces are mounts. This process gets mounts of its own, so that the names end with it, and the
  // name spaces, too.
  static bool keep_names_to_itself() {
    if (::unshare(CLONE_NEWNS) != 0 || ::mount("none", "/", nullptr, MS_REC | MS_SLAVE, nullptr) != 0) return false;
    ::mkdir("/run/netns", 0755);
    return ::mount("none", "/run/netns", "tmpfs", 0, nullptr) == 0;
  }
};

// Whether each host has a process name space, so that its processes are unknown to the others.
enum class HostProcesses : uint8_t { apart, together };

// Host "a" has the address 10.77.0.1, host "b" has 10.77.0.2, and so on. The address belongs to the interface eth0 of the host.
class Hosts {
 public:
  explicit Hosts(const std::string& hosts, HostProcesses processes = HostProcesses::apart)
      : prefix_(concat("uns", ::getpid())), hosts_(hosts) {
    ip({"netns", "add", prefix_ + "switch"});
    ip({"-n", prefix_ + "switch", "link", "add", "bridge", "type", "bridge"});
    ip({"-n", prefix_ + "switch", "link", "set", "bridge", "up"});
    for (const char host : hosts) {
      const std::string name(1, host);
      if (processes == HostProcesses::apart) spaces_[host] = std::make_unique<ProcessSpace>();
      ip({"netns", "add", prefix_ + name});
      ip({"link", "add", "eth0", "netns", prefix_ + name, "type", "veth", "peer", "name", "port-" + name, "netns",
          prefix_ + "switch"});
      ip({"-n", prefix_ + "switch", "link", "set", "port-" + name, "up", "master", "bridge"});
      ip({"-n", prefix_ + name, "address", "add", address(host) + "/24", "dev", "eth0"});
      ip({"-n", prefix_ + name, "link", "set", "eth0", "up"});
      ip({"-n", prefix_ + name, "link", "set", "lo", "up"});
    }
  }
  ~Hosts() {
    for (const char host : hosts_) (void)run({"ip", "netns", "delete", prefix_ + host});
    (void)run({"ip", "netns", "delete", prefix_ + "switch"});
  }
  Hosts(const Hosts&) = delete;

  static std::string address(char host) { return concat("10.77.0.", host - 'a' + 1); }
  const std::string& error() const { return error_; }

  std::string run_in(const std::string& host, const Words& words) {
    Words all{"netns", "exec", prefix_ + host};
    all.insert(all.end(), words.begin(), words.end());
    return ip(all);
  }
  // Resets the host's TCP connections, except those of the rendezvous. Returns how many there were. Both ends are told.
  size_t reset_connections(char host) {
    const auto listed = run_in(std::string(1, host), {"ss", "--no-header", "--tcp", "--numeric", "--kill", "state", "connected",
                                                      "sport != :29500 and dport != :29500"});
    return count_of(listed, "\n");
  }
  // The network carries nothing to and from the host for this time.
  void cut_off(char host, const std::string& seconds) {
    const std::string port = std::string("port-") + host;
    run_in("switch", {"sh", "-ec", concat("ip link set ", port, " down; sleep ", seconds, "; ip link set ", port, " up")});
  }
  // Makes the host send packets that are not merged into large segments, so that rules see the same packets as on a real cable.
  void send_single_segments(const std::string& host) { run_in(host, {"ip", "link", "set", "eth0", "gso_max_segs", "1"}); }
  // In addition, drops the packets that arrive at this host and match the nftables rule.
  void drop_at(const std::string& host, const std::string& rule) {
    run_in(host,
           {"nft",
            "add table ip doctor; add chain ip doctor input { type filter hook input priority 0; }; add rule ip doctor input " +
                rule + " drop"});
  }
  // Replaces the nftables rules for packets that arrive at any host. sets: definitions of the sets that the rules use.
  void filter(const Words& rules, const std::string& sets = "") {
    std::string text = "add table ip doctor; delete table ip doctor; add table ip doctor; " + sets +
                       "add chain ip doctor input { type filter hook input priority 0; }; ";
    for (const auto& rule : rules) text += "add rule ip doctor input " + rule + "; ";
    for (const char host : hosts_) run_in(std::string(1, host), {"nft", text});
  }
  // Returns how many packets matched each of the host's rules that have a counter. The numbers are in the order of the rules.
  std::vector<uint64_t> packet_counts(char host) {
    const auto listed = run({"ip", "netns", "exec", prefix_ + host, "nft", "list", "table", "ip", "doctor"});
    std::vector<uint64_t> counts;
    const std::string before = "counter packets ";
    for (auto at = listed.out.find(before); at != std::string::npos; at = listed.out.find(before, at + 1))
      counts.push_back(std::stoull(listed.out.substr(at + before.size())));
    return counts;
  }
  // Returns how many packets the switch has sent to the host, and how many it has dropped because the queue to the host was
  // full.
  std::array<uint64_t, 2> queue_counts(char host) {
    const auto listed =
        run({"ip", "netns", "exec", prefix_ + "switch", "tc", "-s", "qdisc", "show", "dev", std::string("port-") + host});
    std::array<uint64_t, 2> counts{};
    if (std::sscanf(listed.out.c_str() + std::min(listed.out.size(), listed.out.find("Sent")),
                    "Sent %*u bytes %" SCNu64 " pkt (dropped %" SCNu64, &counts[0], &counts[1]) != 2) {
      error_ = "no counts of a queue in " + listed.out;
    }
    return counts;
  }
  // Gives the host the addresses of a machine that runs `count` containers: a bridge, and an interface for each container.
  void add_containers(const std::string& host, int count) {
    const std::string each =
        "ip link add veth$i type veth peer name peer$i && ip link set veth$i up && ip link set peer$i up && "
        "ip address add 172.17.$i.1/24 dev veth$i";
    run_in(host, {"sh", "-ec", concat("for i in $(seq ", count, "); do ", each, "; done")});
  }
  void limit_rate(const std::string& host, const std::string& rate) {
    run_in(host, {"tc", "qdisc", "add", "dev", "eth0", "root", "tbf", "rate", rate, "burst", "64kb", "latency", "50ms"});
    run_in("switch",
           {"tc", "qdisc", "add", "dev", "port-" + host, "root", "tbf", "rate", rate, "burst", "64kb", "latency", "50ms"});
  }
  // Adds a cable between two hosts. All packets between them then take this cable.
  void connect(char one, char other, const std::string& rate) {
    ip({"link", "add", "cable", "netns", prefix_ + one, "type", "veth", "peer", "name", "cable", "netns", prefix_ + other});
    for (const auto& [from, to] : {std::pair{one, other}, std::pair{other, one}}) {
      const std::string host(1, from);
      run_in(host, {"ip", "link", "set", "cable", "up"});
      run_in(host, {"ip", "route", "add", address(to) + "/32", "dev", "cable", "src", address(from)});
      run_in(host, {"tc", "qdisc", "add", "dev", "cable", "root", "tbf", "rate", rate, "burst", "32kb", "latency", "50ms"});
    }
  }

  // A program that is started with this runs on `host`, and sees that host's own host name and processes. `first` holds shell
  // commands that run before the program.
  Wrapper wrapper(char host, const std::string& first = "") const {
    return named_wrapper(host, std::string("host-") + host, first);
  }
  // Does the same, but the program sees this host name.
  Wrapper named_wrapper(char host, const std::string& name, const std::string& first = "") const {
    const auto space = spaces_.find(host);
    const std::string mount = space == spaces_.end() ? "" : " && mount -t proc proc /proc";
    const Words words{"ip",           "netns",   "exec",
                      prefix_ + host, "unshare", "--uts",
                      "sh",           "-c",      concat("hostname ", name, mount, first, " && exec \"$0\" \"$@\"")};
    return {words, space == spaces_.end() ? -1 : space->second->descriptor()};
  }
  const std::string& names() const { return hosts_; }

 private:
  std::string ip(Words words) {
    words.insert(words.begin(), "ip");
    const auto done = run(words);
    if (done.code != 0 && error_.empty()) error_ = words[1] + " " + words[2] + ": " + done.error;
    return done.out;
  }

  const std::string prefix_;
  const std::string hosts_;
  std::map<char, std::unique_ptr<ProcessSpace>> spaces_;
  std::string error_;
};

}  // namespace unisono::testing
