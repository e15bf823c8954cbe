#include "rendezvous/roster.h"

#include <gtest/gtest.h>

#include "testing/peer_ids.h"

namespace unisono {
namespace {

using test::make_roster;

TEST(Roster, survives_encoding_with_all_fields_at_their_limits) {
  Roster roster = make_roster(3);
  roster.members[1].host = std::string(host_bytes_max, 'h');
  roster.members[1].endpoints.assign(endpoints_max, std::string(endpoint_bytes_max, 'e'));
  roster.members[2].host.clear();
  roster.members[2].endpoints.clear();
  const auto decoded = decode_roster(encode(roster));
  ASSERT_TRUE(decoded.ok()) << decoded.status().to_string();
  EXPECT_EQ(*decoded, roster);
}

TEST(Roster, the_largest_roster_is_accepted) {
  const auto decoded = decode_roster(encode(make_roster(world_size_max)));
  ASSERT_TRUE(decoded.ok());
  EXPECT_EQ(decoded->members.size(), world_size_max);
}

TEST(Roster, finds_the_rank_of_a_process) {
  const Roster roster = make_roster(4);
  EXPECT_EQ(roster.rank_of(roster.members[2].id), Rank{2});
  EXPECT_EQ(roster.rank_of(PeerId{99, 99}), std::nullopt);
}

TEST(Roster, counts_ranks_that_share_cores) {
  Roster roster = make_roster(6);  // six ranks, each on its own host
  for (Rank r = 0; r < 6; ++r) EXPECT_EQ(ranks_beside(roster, r), 1u);
  EXPECT_EQ(hosts_per_machine(roster), 1u);
  roster.members[1].host = roster.members[0].host;
  EXPECT_EQ(ranks_beside(roster, 0), 2u);
  EXPECT_EQ(hosts_per_machine(roster), 1u);
  // ranks 0, 1, 3 and 5 are on three hosts (containers) of one machine
  for (const Rank r : {0u, 1u, 3u, 5u}) roster.members[r].machine = 77;
  roster.members[4].machine = 78;
  EXPECT_EQ(ranks_beside(roster, 3), 4u);
  EXPECT_EQ(ranks_beside(roster, 2), 1u);
  EXPECT_EQ(ranks_beside(roster, 4), 1u);
  EXPECT_EQ(hosts_per_machine(roster), 3u);
}

TEST(Roster, a_host_is_its_network_and_not_its_name) {
  Roster roster = make_roster(5);
  for (auto& member : roster.members) member.host = "same";
  for (const Rank r : {0u, 2u, 3u}) roster.members[r].network = 7;
  roster.members[1].network = 8;  // a container with a network of its own, on the same machine as rank 0
  roster.members[4].network = 9;  // another machine
  roster.members[2].host = "container";
  for (const Rank r : {0u, 1u, 2u, 3u}) roster.members[r].machine = 77;
  EXPECT_EQ(host_numbers(roster), (std::vector<uint32_t>{0, 1, 0, 0, 2}));
  EXPECT_EQ(hosts_of(roster), (std::vector<Rank>{0, 1, 4}));
  EXPECT_TRUE(same_host(roster.members[0], roster.members[2]));
  EXPECT_FALSE(same_host(roster.members[0], roster.members[1]));
  EXPECT_EQ(ranks_beside(roster, 0), 4u) << "all ranks of the machine";
  EXPECT_EQ(ranks_beside(roster, 4), 1u);
  EXPECT_EQ(hosts_per_machine(roster), 2u);
}

TEST(Roster, where_the_network_is_unknown_the_name_decides) {
  Roster roster = make_roster(4);
  roster.members[2].host = roster.members[0].host;
  roster.members[3].host = roster.members[0].host;
  roster.members[3].network = 7;
  EXPECT_EQ(host_numbers(roster), (std::vector<uint32_t>{0, 1, 0, 2}));
  EXPECT_EQ(hosts_of(roster), (std::vector<Rank>{0, 1, 3}));
}

TEST(Roster, label_names_rank_host_and_process) { EXPECT_EQ(label(make_roster(4).members[3]), "rank 3 (host h3, pid 103)"); }

TEST(Roster, digest_and_wire_epoch_depend_on_every_field) {
  const Roster base = make_roster(3);
  std::vector<Roster> others(10, base);
  others[0].epoch++;
  others[1].key[15] = std::byte{1};
  others[2].members.pop_back();
  others[3].members[2].host = "x";
  others[4].members[2].pid++;
  others[5].members[2].id.high++;
  others[6].members[2].endpoints[0] += "x";
  std::swap(others[7].members[0].host, others[7].members[1].host);
  others[8].members[1].machine++;
  others[9].members[1].network++;
  for (size_t i = 0; i < others.size(); ++i) {
    EXPECT_NE(digest(others[i]), digest(base)) << i;
    EXPECT_NE(wire_epoch(others[i]), wire_epoch(base)) << i;
  }
  EXPECT_EQ(digest(make_roster(3)), digest(base));
}

void expect_corrupt(const Bytes& bytes, const std::string& why) {
  const auto decoded = decode_roster(bytes);
  ASSERT_FALSE(decoded.ok());
  EXPECT_EQ(decoded.status().code(), Code::corrupt);
  EXPECT_NE(decoded.status().message().find(why), std::string::npos) << decoded.status().message();
}

TEST(Roster, truncated_bytes_are_refused) {
  const Bytes whole = encode(make_roster(2));
  for (size_t size = 0; size < whole.size(); ++size) {
    EXPECT_FALSE(decode_roster(ByteView(whole).first(size)).ok()) << size;
  }
}

TEST(Roster, extra_bytes_are_refused) {
  Bytes bytes = encode(make_roster(2));
  bytes.push_back(std::byte{0});
  expect_corrupt(bytes, "too many");
}

TEST(Roster, a_roster_without_members_is_refused) {
  Roster roster = make_roster(1);
  roster.members.clear();
  expect_corrupt(encode(roster), "0 members");
}

TEST(Roster, a_world_too_large_is_refused_before_anything_is_stored) {
  ByteWriter writer;
  writer.write(uint32_t{1}).write(RosterKey{}).write(uint32_t{world_size_max + 1});
  expect_corrupt(std::move(writer).take(), "4097 members");
}

TEST(Roster, members_out_of_rank_order_are_refused) {
  Roster roster = make_roster(2);
  roster.members[1].rank = 5;
  expect_corrupt(encode(roster), "says rank 5");
}

TEST(Roster, one_process_twice_is_refused) {
  Roster roster = make_roster(3);
  roster.members[2].id = roster.members[0].id;
  expect_corrupt(encode(roster), "twice");
}

TEST(Roster, a_host_name_too_long_is_refused) {
  Roster roster = make_roster(1);
  roster.members[0].host = std::string(host_bytes_max + 1, 'h');
  EXPECT_EQ(check_member(roster.members[0]).code(), Code::invalid);
  expect_corrupt(encode(roster), "member 0");
}

TEST(Roster, too_many_endpoints_are_refused) {
  Roster roster = make_roster(1);
  roster.members[0].endpoints.assign(endpoints_max + 1, "e");
  EXPECT_EQ(check_member(roster.members[0]).code(), Code::invalid);
  expect_corrupt(encode(roster), "member 0");
}

TEST(Roster, an_endpoint_too_long_is_refused) {
  Roster roster = make_roster(1);
  roster.members[0].endpoints[0] = std::string(endpoint_bytes_max + 1, 'e');
  EXPECT_EQ(check_member(roster.members[0]).code(), Code::invalid);
  expect_corrupt(encode(roster), "member 0");
}

}  // namespace
}  // namespace unisono
