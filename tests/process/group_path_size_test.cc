// Groups of real processes on hosts whose network begins to drop long packets without a notice, as when a tunnel is switched
// on.
#include <gtest/gtest.h>

#include "base/concat.h"
#include "lossy_hosts.h"

namespace unisono::testing {
namespace {

// Drops IP packets of more than 1400 bytes that arrive at a host. The number includes the headers of IP and UDP.
const Words long_packets = {"iif eth0 meta length > 1400 drop"};

class PathSize : public LossyHosts {};

std::string members_of(Cluster& group, size_t rank) { return group[rank].ask("members").value("members"); }

TEST_F(PathSize, datagrams_become_shorter_when_long_ones_are_dropped) {
  for (const bool merged : {false, true}) {  // whether the kernel may merge datagrams; merged ones are dropped, too
    SCOPED_TRACE(merged);
    Hosts hosts("ab");
    if (!merged) {
      for (const auto* host : {"a", "b"}) hosts.send_single_segments(host);
    }
    Cluster group(2, options(hosts));
    ASSERT_EQ(hosts.error(), "");
    const std::string exact = "all_reduce:count=100003,iters=20,check=1,timeout=10000";
    const std::string lossy = "all_reduce:count=100003,iters=20,timeout=10000,lossy=loss_budget~0,check=1";
    expect_all_ok(group.ask_all(exact));
    expect_all_ok(group.ask_all(lossy));
    EXPECT_NE(members_of(group, 0).find("(eth0,_1472_bytes)"), std::string::npos) << members_of(group, 0);
    hosts.filter(long_packets);
    ASSERT_EQ(hosts.error(), "");
    for (const auto& call : {exact, lossy}) {
      const auto lines = group.ask_all(call);
      expect_all_ok(lines);
      expect_within(call, lines[0].number("us") * 1000, 5000);
    }
    for (const size_t rank : {0, 1}) {
      EXPECT_NE(members_of(group, rank)
                    .find("(eth0,_1200_bytes),_datagrams_to_it_are_now_1200_bytes,_because_larger_ones_get_no_"
                          "acknowledgement"),
                std::string::npos)
          << members_of(group, rank);
    }
    group.finish();
    for (const size_t rank : {0, 1}) {
      const auto other = concat("unisono: warning: rank ", 1 - rank, " (host ");
      const auto lines = group[rank].output();
      EXPECT_NE(lines.find(other), std::string::npos) << lines;
      EXPECT_EQ(count_of(lines,
                         "): datagrams to it are now 1200 bytes, because larger ones get no acknowledgement "
                         "(smaller_datagrams; rank "),
                1u)
          << lines;
    }
  }
}

TEST_F(PathSize, with_tcp_the_late_text_says_that_large_segments_get_no_acknowledgement) {
  Hosts hosts("ab");
  for (const auto* host : {"a", "b"}) hosts.send_single_segments(host);
  auto with = options(hosts);
  with.transport = "tcp";
  Cluster group(2, with);
  expect_all_ok(group.ask_all("all_reduce:count=100003,check=1"));
  hosts.filter(long_packets);
  ASSERT_EQ(hosts.error(), "");
  for (const auto& line : group.ask_all("all_reduce:count=100003,timeout=3000")) {
    EXPECT_EQ(line.code(), "late") << line.text;
    for (const auto* part :
         {"large segments to it get no acknowledgement: TCP has sent ", " bytes, and the first one again ",
          "Either the network carries nothing to it, or no packets of 1500 bytes; \"ping -M do -s 1472 10.77.0."})
      EXPECT_NE(line.message().find(part), std::string::npos) << part << " in " << line.text;
  }
}

}  // namespace
}  // namespace unisono::testing
