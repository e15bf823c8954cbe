// Hosts made of network name spaces on one switch, made and removed by the test that uses them. Needs root.
#pragma once

#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cinttypes>
#include <cstdint>
#include <cstdio>
#include <string>
#include <utility>
#include <vector>

#include "child_process.h"

namespace unisono::testing {

using Words = std::vector<std::string>;

// For tests that make name spaces.
class NameSpaces : public ::testing::Test {
 protected:
  void SetUp() override {
    // Only root may make them, and a container's root may be refused. Where they can be made, whatever goes wrong later is a
    // failure.
    if (run({"unshare", "--net", "true"}).code != 0) GTEST_SKIP() << "SKIPPED: this process may not make network name spaces";
  }
};

// Host "a" is 10.77.0.1, "b" is 10.77.0.2 and so on, each at its interface eth0.
class Hosts {
 public:
  explicit Hosts(const std::string& hosts) : prefix_("uns" + std::to_string(::getpid())), hosts_(hosts) {
    ip({"netns", "add", prefix_ + "switch"});
    ip({"-n", prefix_ + "switch", "link", "add", "bridge", "type", "bridge"});
    ip({"-n", prefix_ + "switch", "link", "set", "bridge", "up"});
    for (const char host : hosts) {
      const std::string name(1, host);
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

  static std::string address(char host) { return "10.77.0." + std::to_string(host - 'a' + 1); }
  const std::string& trouble() const { return trouble_; }

  void inside(const std::string& host, const Words& words) {
    Words all{"netns", "exec", prefix_ + host};
    all.insert(all.end(), words.begin(), words.end());
    ip(all);
  }
  // Segments leave as they are on a cable, not joined to large ones: for rules that look at their length.
  void send_single_segments(const std::string& host) { inside(host, {"ip", "link", "set", "eth0", "gso_max_segs", "1"}); }
  // Also drops packets that arrive at the host and match `rule`.
  void drop_at(const std::string& host, const std::string& rule) {
    inside(host,
           {"nft",
            "add table ip doctor; add chain ip doctor input { type filter hook input priority 0; }; add rule ip doctor input " +
                rule + " drop"});
  }
  // Replaces the rules for packets that arrive at any host. `sets`: nftables sets that the rules use.
  void filter(const Words& rules, const std::string& sets = "") {
    std::string text = "add table ip doctor; delete table ip doctor; add table ip doctor; " + sets +
                       "add chain ip doctor input { type filter hook input priority 0; }; ";
    for (const auto& rule : rules) text += "add rule ip doctor input " + rule + "; ";
    for (const char host : hosts_) inside(std::string(1, host), {"nft", text});
  }
  // Packets that matched each of the host's counting rules, in order.
  std::vector<uint64_t> counted(char host) {
    const auto listed = run({"ip", "netns", "exec", prefix_ + host, "nft", "list", "table", "ip", "doctor"});
    std::vector<uint64_t> counts;
    const std::string before = "counter packets ";
    for (auto at = listed.out.find(before); at != std::string::npos; at = listed.out.find(before, at + 1))
      counts.push_back(std::stoull(listed.out.substr(at + before.size())));
    return counts;
  }
  // Packets that the switch sent to the host, and packets that its full queue dropped.
  std::array<uint64_t, 2> queued(char host) {
    const auto listed =
        run({"ip", "netns", "exec", prefix_ + "switch", "tc", "-s", "qdisc", "show", "dev", std::string("port-") + host});
    std::array<uint64_t, 2> counts{};
    if (std::sscanf(listed.out.c_str() + std::min(listed.out.size(), listed.out.find("Sent")),
                    "Sent %*u bytes %" SCNu64 " pkt (dropped %" SCNu64, &counts[0], &counts[1]) != 2) {
      trouble_ = "no counts of a queue in " + listed.out;
    }
    return counts;
  }
  void limit(const std::string& host, const std::string& rate) {
    inside(host, {"tc", "qdisc", "add", "dev", "eth0", "root", "tbf", "rate", rate, "burst", "64kb", "latency", "50ms"});
    inside("switch",
           {"tc", "qdisc", "add", "dev", "port-" + host, "root", "tbf", "rate", rate, "burst", "64kb", "latency", "50ms"});
  }
  // A cable of their own between two hosts, which all that they send each other takes.
  void connect(char one, char other, const std::string& rate) {
    ip({"link", "add", "cable", "netns", prefix_ + one, "type", "veth", "peer", "name", "cable", "netns", prefix_ + other});
    for (const auto& [from, to] : {std::pair{one, other}, std::pair{other, one}}) {
      const std::string host(1, from);
      inside(host, {"ip", "link", "set", "cable", "up"});
      inside(host, {"ip", "route", "add", address(to) + "/32", "dev", "cable", "src", address(from)});
      inside(host, {"tc", "qdisc", "add", "dev", "cable", "root", "tbf", "rate", rate, "burst", "32kb", "latency", "50ms"});
    }
  }

  // Before a program that is to run there, under a host name of its own; `first` are shell commands that come before it.
  Words wrapper(char host, const std::string& first = "") const {
    return {"ip",           "netns",   "exec",
            prefix_ + host, "unshare", "--uts",
            "sh",           "-c",      std::string("hostname host-") + host + first + " && exec \"$0\" \"$@\""};
  }
  const std::string& names() const { return hosts_; }

 private:
  void ip(Words words) {
    words.insert(words.begin(), "ip");
    const auto done = run(words);
    if (done.code != 0 && trouble_.empty()) trouble_ = words[1] + " " + words[2] + ": " + done.error;
  }

  const std::string prefix_;
  const std::string hosts_;
  std::string trouble_;
};

}  // namespace unisono::testing
