#include "elastic/roster/roster_suspicions.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <ranges>
#include <set>

#include "elastic/roster/elastic_test_support.h"

namespace unisono {
namespace {

using test::peer_claim;
using test::peer_id;

PeerClaim brief(uint64_t number, PeerStatus status = PeerStatus::suspect, uint32_t incarnation = 1) {
  auto claim = peer_claim(number, status, incarnation);
  claim.entry.facts = {};
  claim.brief = true;
  return claim;
}

std::vector<PeerClaim> take(RosterSuspicions& suspicions, size_t count, Nanos now = 0) {
  std::vector<PeerClaim> claims;
  suspicions.take(count, claims, now);
  return claims;
}

TEST(RosterSuspicions, each_is_told_in_brief_as_often_as_asked_and_then_no_more) {
  RosterSuspicions suspicions;
  suspicions.add(peer_claim(1, PeerStatus::suspect, 4), 3, 0);
  for (int i = 0; i < 3; ++i) EXPECT_EQ(take(suspicions, 10), std::vector{brief(1, PeerStatus::suspect, 4)});
  EXPECT_TRUE(suspicions.empty());
  EXPECT_TRUE(take(suspicions, 10).empty());
  suspicions.add(peer_claim(1), 0, 0);
  EXPECT_TRUE(suspicions.empty());
}

TEST(RosterSuspicions, the_newest_of_a_peer_takes_the_place_of_what_was_told) {
  RosterSuspicions suspicions;
  suspicions.add(brief(1, PeerStatus::suspect, 1), 9, 0);
  (void)take(suspicions, 1);
  suspicions.add(brief(1, PeerStatus::alive, 2), 2, 0);
  EXPECT_EQ(suspicions.size(), 1u);
  size_t told = 0;
  for (; !suspicions.empty(); ++told) EXPECT_EQ(take(suspicions, 5), std::vector{brief(1, PeerStatus::alive, 2)});
  EXPECT_EQ(told, 8u) << "as often as the one before it still would have been";
}

TEST(RosterSuspicions, those_told_least_go_first_and_none_is_told_twice_at_once) {
  for (const size_t count : {1, 2, 7, 32, 99, 100, 200}) {
    RosterSuspicions suspicions;
    for (uint64_t number = 1; number <= 100; ++number) suspicions.add(brief(number), 1000, 0);
    std::map<PeerId, size_t> told;
    for (size_t total = 0; total < 1000;) {
      const auto claims = take(suspicions, count);
      ASSERT_EQ(claims.size(), std::min<size_t>(count, 100));
      std::set<PeerId> once;
      for (const auto& claim : claims) EXPECT_TRUE(once.insert(claim.entry.id).second);
      for (const auto& claim : claims) ++told[claim.entry.id];
      total += claims.size();
    }
    const auto [least, most] = std::ranges::minmax(told | std::views::values);
    EXPECT_LE(most - least, 1u) << count;
    EXPECT_EQ(told.size(), 100u);
    suspicions.add(brief(777), 5, 0);
    EXPECT_EQ(take(suspicions, 1).front().entry.id, peer_id(777)) << "news before what was told";
  }
}

TEST(RosterSuspicions, the_age_of_who_is_gone_grows_while_it_waits) {
  RosterSuspicions suspicions;
  auto claim = brief(1, PeerStatus::dead);
  claim.gone_ms = 250;
  claim.proven = true;
  suspicions.add(claim, 2, 10 * second);
  EXPECT_EQ(take(suspicions, 1, 10 * second).front(), claim);
  claim.gone_ms = 1250;
  EXPECT_EQ(take(suspicions, 1, 11 * second).front(), claim);
}

TEST(RosterSuspicions, covers_what_is_no_news_about_who_lives) {
  RosterSuspicions suspicions;
  suspicions.add(brief(5, PeerStatus::suspect, 3), 4, 0);
  EXPECT_TRUE(suspicions.covers(brief(5, PeerStatus::suspect, 3)));
  EXPECT_TRUE(suspicions.covers(brief(5, PeerStatus::alive, 3)));
  EXPECT_TRUE(suspicions.covers(brief(5, PeerStatus::suspect, 2)));
  EXPECT_FALSE(suspicions.covers(brief(5, PeerStatus::alive, 4)));
  EXPECT_FALSE(suspicions.covers(brief(5, PeerStatus::dead, 1))) << "when it went, and whether that is proven, may be news";
  EXPECT_FALSE(suspicions.covers(brief(6, PeerStatus::alive, 1)));
  auto whole = peer_claim(5, PeerStatus::alive, 1);
  EXPECT_FALSE(suspicions.covers(whole)) << "its facts may be news";
  for (int i = 0; i < 4; ++i) (void)take(suspicions, 1);
  EXPECT_FALSE(suspicions.covers(brief(5, PeerStatus::suspect, 3))) << "not told any more";
}

}  // namespace
}  // namespace unisono
