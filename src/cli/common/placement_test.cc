#include "cli/common/placement.h"

#include <gtest/gtest.h>

namespace unisono::cli {
namespace {

TEST(Placement, hosts_have_slots) {
  const auto hosts = parse_hosts("a:2,user@b,[fe80::1]:3,a:1");
  ASSERT_TRUE(hosts.ok()) << hosts.status().to_string();
  ASSERT_EQ(hosts->size(), 3u);
  EXPECT_EQ((*hosts)[0].name, "a");
  EXPECT_EQ((*hosts)[0].slots, 3u);
  EXPECT_EQ((*hosts)[1].name, "user@b");
  EXPECT_EQ((*hosts)[1].slots, 1u);
  EXPECT_EQ((*hosts)[2].name, "fe80::1");
  EXPECT_EQ((*hosts)[2].slots, 3u);
}

TEST(Placement, malformed_hosts_are_refused) {
  for (const char* text : {"", ",", "a,", "a:", "a:0", "a:x", "a:-1", "a:5000", ":2", "-oProxyCommand=x:1", "fe80::1", "[::1",
                           "[::1]x2", "a:2:3"}) {
    EXPECT_FALSE(parse_hosts(text).ok()) << text;
  }
}

TEST(Placement, ranks_fill_the_hosts_in_order) {
  const auto placed = place_ranks(5, {{"a", 2}, {"localhost", 2}, {"me", 2}, {"c", 2}}, "me");
  ASSERT_TRUE(placed.ok());
  ASSERT_EQ(placed->size(), 2u);
  EXPECT_EQ((*placed)[0].host, "a");
  EXPECT_EQ((*placed)[1].host, "");
  EXPECT_EQ((*placed)[1].first_rank, 2u);
  EXPECT_EQ((*placed)[1].rank_count, 3u);
}

TEST(Placement, all_names_of_this_host_are_one_host) {
  const auto placed = place_ranks(0, {{"localhost", 1}, {"b", 1}, {"me", 2}}, "me");
  ASSERT_EQ(placed->size(), 2u);
  EXPECT_EQ((*placed)[0].rank_count, 3u);
  EXPECT_EQ((*placed)[1].host, "b");
  EXPECT_EQ((*placed)[1].first_rank, 3u);
}

TEST(Placement, a_count_is_optional_with_hosts_and_needed_without) {
  EXPECT_EQ(place_ranks(0, {{"a", 2}, {"b", 3}}, "me")->back().rank_count, 3u);
  EXPECT_FALSE(place_ranks(0, {}, "me").ok());
  EXPECT_EQ(place_ranks(4, {}, "me")->front().rank_count, 4u);
}

TEST(Placement, more_ranks_than_slots_are_refused_with_both_numbers) {
  const auto placed = place_ranks(5, {{"a", 2}, {"b", 2}}, "me");
  ASSERT_FALSE(placed.ok());
  EXPECT_NE(placed.status().message().find("-n 5"), std::string::npos);
  EXPECT_NE(placed.status().message().find("4 slots"), std::string::npos);
}

}  // namespace
}  // namespace unisono::cli
