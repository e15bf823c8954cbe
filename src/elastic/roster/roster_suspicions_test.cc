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

TEST(RosterSuspicions, sends_each_brief_claim_the_requested_number_of_times) {
  RosterSuspicions suspicions;
  suspicions.add(peer_claim(1, PeerStatus::suspect, 4), 3, 0);
  for (int i = 0; i < 3; ++i) EXPECT_EQ(take(suspicions, 10), std::vector{brief(1, PeerStatus::suspect, 4)});
  EXPECT_TRUE(suspicions.empty());
  EXPECT_TRUE(take(suspicions, 10).empty());
  suspicions.add(peer_claim(1), 0, 0);
  EXPECT_TRUE(suspicions.empty());
}

TEST(RosterSuspicions, the_newest_suspicion_of_a_peer_replaces_the_earlier_one) {
  RosterSuspicions suspicions;
  suspicions.add(brief(1, PeerStatus::suspect, 1), 9, 0);
  (void)take(suspicions, 1);
  suspicions.add(brief(1, PeerStatus::alive, 2), 2, 0);
  EXPECT_EQ(suspicions.size(), 1u);
  size_t sent = 0;
  for (; !suspicions.empty(); ++sent) EXPECT_EQ(take(suspicions, 5), std::vector{brief(1, PeerStatus::alive, 2)});
  EXPECT_EQ(sent, 8u) << "as often as the one before it still would have been";
}

TEST(RosterSuspicions, least_sent_suspicions_go_first_and_none_twice_in_one_message) {
  for (const size_t count : {1, 2, 7, 32, 99, 100, 200}) {
    RosterSuspicions suspicions;
    for (uint64_t number = 1; number <= 100; ++number) suspicions.add(brief(number), 1000, 0);
    std::map<PeerId, size_t> sent;
    for (size_t total = 0; total < 1000;) {
      const auto claims = take(suspicions, count);
      ASSERT_EQ(claims.size(), std::min<size_t>(count, 100));
      std::set<PeerId> once;
      for (const auto& claim : claims) EXPECT_TRUE(once.insert(claim.entry.id).second);
      for (const auto& claim : claims) ++sent[claim.entry.id];
      total += claims.size();
    }
    const auto [least, most] = std::ranges::minmax(sent | std::views::values);
    EXPECT_LE(most - least, 1u) << count;
    EXPECT_EQ(sent.size(), 100u);
    suspicions.add(brief(777), 5, 0);
    EXPECT_EQ(take(suspicions, 1).front().entry.id, peer_id(777)) << "new suspicions go before those that were sent already";
  }
}

TEST(RosterSuspicions, the_age_of_a_death_grows_while_it_waits) {
  RosterSuspicions suspicions;
  auto claim = brief(1, PeerStatus::dead);
  claim.gone_ms = 250;
  claim.proven = true;
  suspicions.add(claim, 2, 10 * second);
  EXPECT_EQ(take(suspicions, 1, 10 * second).front(), claim);
  claim.gone_ms = 1250;
  EXPECT_EQ(take(suspicions, 1, 11 * second).front(), claim);
}

TEST(RosterSuspicions, covers_claims_about_live_peers_that_are_not_newer) {
  RosterSuspicions suspicions;
  suspicions.add(brief(5, PeerStatus::suspect, 3), 4, 0);
  EXPECT_TRUE(suspicions.covers(brief(5, PeerStatus::suspect, 3)));
  EXPECT_TRUE(suspicions.covers(brief(5, PeerStatus::alive, 3)));
  EXPECT_TRUE(suspicions.covers(brief(5, PeerStatus::suspect, 2)));
  EXPECT_FALSE(suspicions.covers(brief(5, PeerStatus::alive, 4)));
  EXPECT_FALSE(suspicions.covers(brief(5, PeerStatus::dead, 1))) << "when it went, and whether that is proven, may be new here";
  EXPECT_FALSE(suspicions.covers(brief(6, PeerStatus::alive, 1)));
  auto whole = peer_claim(5, PeerStatus::alive, 1);
  EXPECT_FALSE(suspicions.covers(whole)) << "its facts may be new here";
  for (int i = 0; i < 4; ++i) (void)take(suspicions, 1);
  EXPECT_FALSE(suspicions.covers(brief(5, PeerStatus::suspect, 3))) << "this suspicion is not sent any more";
}

}  // namespace
}  // namespace unisono
