#include "group/lifecycle/membership.h"

#include <gtest/gtest.h>

#include "engine/group_core.h"

namespace unisono {
namespace {

MemberRecord member(uint32_t rank, const std::string& host) {
  MemberRecord record;
  record.id = {.low = rank + 1, .high = 0};
  record.rank = rank;
  record.host = host;
  return record;
}

Roster roster_of(const std::vector<std::string>& hosts) {
  Roster roster;
  for (const auto& host : hosts) roster.members.push_back(member(static_cast<uint32_t>(roster.members.size()), host));
  return roster;
}

Topology measured(double inside_bytes_per_us, double between_bytes_per_us) {
  Topology topology{.inside = shared_memory_profile(2), .between = network_tcp_profile(2)};
  topology.inside = measured_profile(topology.inside, {.latency_us = 1, .bytes_per_us = inside_bytes_per_us});
  topology.between = measured_profile(topology.between, {.latency_us = 1, .bytes_per_us = between_bytes_per_us});
  topology.inside_measured = topology.between_measured = true;
  return topology;
}

TEST(Membership, knows_processes_by_number_and_members_by_record) {
  Membership members({.low = 1, .high = 0}, {});
  members.set_roster(roster_of({"a", "b"}));
  const auto peer = members.add_process({.low = 2, .high = 0});
  members.set_peers({self_peer, peer});
  EXPECT_EQ(members.index_of({.low = 2, .high = 0}), peer);
  EXPECT_EQ(members.index_of({.low = 3, .high = 0}), self_peer);
  ASSERT_NE(members.record_of(peer), nullptr);
  EXPECT_EQ(members.record_of(peer)->host, "b");
  EXPECT_EQ(members.record_of(self_peer)->host, "a");
  EXPECT_EQ(members.record_of(peer + 1), nullptr);
}

TEST(Membership, a_new_formation_makes_the_topology_unknown) {
  Membership members({.low = 1, .high = 0}, {});
  members.set_roster(roster_of({"a", "b"}));
  members.set_peers({self_peer, 0});
  members.set_topology_known(measured(10'000, 10'000));
  EXPECT_TRUE(members.topology_known());
  members.begin_formation();
  EXPECT_FALSE(members.topology_known());
  EXPECT_EQ(members.formation(), 1u);
}

TEST(Membership, a_rank_has_thin_links_if_all_its_links_are_thin) {
  Membership members({.low = 1, .high = 0}, {});
  members.set_roster(roster_of({"a", "b"}));
  members.set_peers({self_peer, 0});
  members.set_topology_known(measured(10'000, 10));
  EXPECT_TRUE(members.has_thin_links()) << "alone on its host";
  members.set_topology_known(measured(10'000, 10'000));
  EXPECT_FALSE(members.has_thin_links());
  members.set_roster(roster_of({"a", "a", "b"}));
  members.set_peers({self_peer, 0, 1});
  members.set_topology_known(measured(10'000, 10));
  EXPECT_FALSE(members.has_thin_links()) << "the link inside the host is fast";
}

TEST(Membership, known_links_follow_their_hosts_to_new_numbers) {
  Membership members({.low = 1, .high = 0}, {});
  members.set_roster(roster_of({"a", "b", "c"}));
  members.set_peers({self_peer, 0, 1});
  auto topology = measured(10'000, 10'000);
  topology.links = HostLinks(3);
  topology.links.between(1, 2) = {.latency_us = 1, .bytes_per_us = 12};
  topology.links.between(0, 1) = {.latency_us = 1, .bytes_per_us = 1};
  members.set_topology_known(topology);
  members.set_roster(roster_of({"c", "b", "new"}));
  const auto links = members.known_links(topology.links);
  ASSERT_EQ(links.hosts, 3u);
  EXPECT_EQ(links.between(0, 1).bytes_per_us, 12) << "b and c";
  EXPECT_EQ(links.between(0, 2).bytes_per_us, 0) << "not measured";
}

TEST(Membership, hosts_of_one_name_are_kept_apart_by_their_networks) {
  Membership members({.low = 1, .high = 0}, {});
  auto roster = roster_of({"same", "same", "same"});
  for (Rank rank = 0; rank < 3; ++rank) roster.members[rank].network = 10 + rank;
  members.set_roster(roster);
  members.set_peers({self_peer, 0, 1});
  auto topology = measured(10'000, 10);
  topology.links = HostLinks(3);
  topology.links.between(1, 2) = {.latency_us = 1, .bytes_per_us = 12};
  members.set_topology_known(topology);
  EXPECT_TRUE(members.has_thin_links()) << "alone on its host";
  roster.members.erase(roster.members.begin());
  members.set_roster(roster);
  EXPECT_EQ(members.known_links(topology.links).between(0, 1).bytes_per_us, 12);
}

TEST(Membership, readiness_is_unknown_until_a_member_reports_it) {
  Membership members({.low = 1, .high = 0}, {});
  EXPECT_EQ(members.ready(0), nullptr);
  members.set_ready(0, {.epoch = 3, .datagram_bytes = 1472, .auth = DatagramAuth::mac});
  ASSERT_NE(members.ready(0), nullptr);
  EXPECT_EQ(members.ready(0)->epoch, 3u);
}

}  // namespace
}  // namespace unisono
