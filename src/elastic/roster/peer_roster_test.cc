#include "elastic/roster/peer_roster.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <limits>
#include <numeric>

#include "base/concat.h"
#include "base/random.h"
#include "elastic/roster/elastic_test_support.h"

namespace unisono {
namespace {

using test::peer_claim;
using test::peer_id;

constexpr Nanos forget_dead = 3600 * second;
using Effect = MergeOutcome::Effect;

TEST(PeerRoster, higher_incarnation_wins_whatever_the_status) {
  PeerRoster roster(8, forget_dead);
  EXPECT_EQ(roster.merge(peer_claim(1, PeerStatus::dead, 3), 0).effect, Effect::added);
  EXPECT_EQ(roster.merge(peer_claim(1, PeerStatus::alive, 4), 0).effect, Effect::status);
  EXPECT_EQ(roster.find(peer_id(1))->status, PeerStatus::alive);
  EXPECT_EQ(roster.merge(peer_claim(1, PeerStatus::dead, 3), 0).effect, Effect::none);
  EXPECT_FALSE(roster.gone(peer_id(1)));
}

TEST(PeerRoster, at_equal_incarnation_the_later_status_wins) {
  const PeerStatus order[] = {PeerStatus::joining, PeerStatus::alive, PeerStatus::suspect, PeerStatus::left, PeerStatus::dead};
  for (const auto first : order) {
    for (const auto then : order) {
      PeerRoster roster(8, forget_dead);
      (void)roster.merge(peer_claim(1, first), 0);
      (void)roster.merge(peer_claim(1, then), 0);
      EXPECT_EQ(roster.find(peer_id(1))->status, std::max(first, then)) << name(first) << " and " << name(then);
    }
  }
}

TEST(PeerRoster, facts_follow_their_owners_counter_and_not_the_incarnation) {
  PeerRoster roster(8, forget_dead);
  auto newer = peer_claim(1, PeerStatus::alive, 1);
  newer.entry.facts.counter = 5;
  newer.entry.facts.finished_step = 7;
  auto older = peer_claim(1, PeerStatus::suspect, 2);
  older.entry.facts.counter = 4;
  (void)roster.merge(newer, 0);
  EXPECT_EQ(roster.merge(older, 0).effect, Effect::status);
  EXPECT_EQ(roster.find(peer_id(1))->facts.finished_step, 7);
  EXPECT_EQ(roster.find(peer_id(1))->status, PeerStatus::suspect);
}

PeerClaim random_claim(Random& random) {
  auto claim =
      peer_claim(1 + random.below(6), static_cast<PeerStatus>(random.below(5)), static_cast<uint32_t>(random.below(4)));
  claim.entry.facts.counter = random.below(4);
  // Claims with equal counters may differ in bandwidth. Merging then takes the larger facts.
  claim.entry.facts.bandwidth = static_cast<double>(random.below(3));
  claim.entry.facts.role = static_cast<ElasticRole>(random.below(3));
  if (is_gone(claim.entry.status)) claim.gone_ms = static_cast<uint32_t>(random.below(5));
  claim.proven = claim.entry.status == PeerStatus::dead && random.chance(0.5);
  return claim;
}

TEST(PeerRoster, merging_is_commutative_associative_and_idempotent) {
  for (uint64_t seed = 0; seed < 300; ++seed) {
    SCOPED_TRACE(concat("seed ", seed));
    Random random(seed);
    std::vector<PeerClaim> claims;
    for (uint64_t i = 2 + random.below(20); i > 0; --i) claims.push_back(random_claim(random));
    PeerRoster first(64, forget_dead), second(64, forget_dead), part(64, forget_dead);
    for (const auto& claim : claims) (void)first.merge(claim, 0);
    // Merges the claims again, in another order and with repetitions. Some claims go through a third roster.
    for (size_t i = claims.size(); i > 1; --i) std::swap(claims[i - 1], claims[random.below(i)]);
    const size_t cut = random.below(claims.size());
    for (size_t i = 0; i < claims.size(); ++i) (void)(i < cut ? part : second).merge(claims[i], 0);
    for (const auto& claim : part.claims(0)) (void)second.merge(claim, 0);
    for (const auto& claim : claims) EXPECT_EQ(second.merge(claim, 0).effect, Effect::none);
    EXPECT_EQ(first.claims(0), second.claims(0));
    EXPECT_EQ(first.sum(), second.sum());
    for (auto lists : {&PeerRoster::present, &PeerRoster::reachable, &PeerRoster::keepers, &PeerRoster::dead}) {
      auto a = (first.*lists)(), b = (second.*lists)();
      std::sort(a.begin(), a.end());
      std::sort(b.begin(), b.end());
      EXPECT_EQ(a, b);
    }
  }
}

TEST(PeerRoster, a_brief_claim_changes_only_the_status_of_a_known_peer) {
  PeerRoster roster(8, forget_dead);
  auto brief = peer_claim(1, PeerStatus::suspect, 2);
  brief.entry.facts = {};
  brief.entry.facts.counter = 9;
  brief.brief = true;
  EXPECT_EQ(roster.merge(brief, 0).effect, Effect::none) << "a brief claim about an unknown peer has no addresses";
  EXPECT_EQ(roster.find(peer_id(1)), nullptr);
  (void)roster.merge(peer_claim(1, PeerStatus::alive, 2), 0);
  const auto outcome = roster.merge(brief, 0);
  EXPECT_EQ(outcome.effect, Effect::status);
  EXPECT_FALSE(outcome.newer_facts);
  EXPECT_EQ(roster.find(peer_id(1))->status, PeerStatus::suspect);
  EXPECT_EQ(roster.find(peer_id(1))->facts, peer_claim(1).entry.facts);
  EXPECT_EQ(roster.merge(brief, 0).effect, Effect::none);
  const auto again = roster.brief_claim_of(peer_id(1), 0);
  EXPECT_TRUE(again.brief);
  EXPECT_EQ(again.entry.facts, PeerFacts());
  EXPECT_EQ(again.entry.status, PeerStatus::suspect);
  auto newer = peer_claim(1, PeerStatus::alive, 3);
  newer.entry.facts.counter = 5;
  EXPECT_TRUE(roster.merge(newer, 0).newer_facts);
}

TEST(PeerRoster, claims_beside_returns_the_claims_that_may_differ) {
  PeerRoster mine(2000, forget_dead), other(2000, forget_dead);
  for (uint64_t number = 1; number <= 600; ++number) {
    if (number != 77) (void)mine.merge(peer_claim(number), 0);
    (void)other.merge(peer_claim(number, number == 500 ? PeerStatus::suspect : PeerStatus::alive), 0);
  }
  const auto parts = mine.parts();
  ASSERT_EQ(parts.size(), 128u);
  EXPECT_EQ(std::accumulate(parts.begin(), parts.end(), uint64_t{0}), mine.sum());
  const auto claims = other.claims_beside(parts, 0);
  EXPECT_LT(claims.size(), 40u);
  const auto has = [&](uint64_t number) {
    return std::ranges::any_of(claims, [&](const PeerClaim& claim) { return claim.entry.id == peer_id(number); });
  };
  EXPECT_TRUE(has(77));
  EXPECT_TRUE(has(500));
  for (const auto& claim : claims) (void)mine.merge(claim, 0);
  EXPECT_EQ(mine.sum(), other.sum());
  EXPECT_TRUE(mine.claims_beside(other.parts(), 0).empty());
  EXPECT_EQ(mine.claims_beside({}, 0).size(), 600u);
  // An empty roster, whatever its number of parts, must get all claims.
  for (size_t count = 1; count <= roster_parts_max; count *= 2) {
    EXPECT_EQ(mine.claims_beside(std::vector<uint64_t>(count), 0).size(), 600u) << "the sum of an empty roster";
  }
  EXPECT_TRUE(PeerRoster(8, forget_dead).parts().empty());
}

TEST(PeerRoster, lists_contain_exactly_the_peers_with_their_status) {
  PeerRoster roster(64, forget_dead);
  Random random(7);
  for (int step = 0; step < 3000; ++step) {
    (void)roster.merge(random_claim(random), 0);
    if (step % 50 == 0) roster = PeerRoster(64, forget_dead);
    size_t present = 0, reachable = 0, keepers = 0, dead = 0;
    for (const auto& claim : roster.claims(0)) {
      const auto& entry = claim.entry;
      const bool client = entry.facts.role == ElasticRole::client;
      present += !is_gone(entry.status);
      reachable += !is_gone(entry.status) && !client;
      keepers += !is_gone(entry.status) && !client && entry.status != PeerStatus::joining;
      dead += entry.status == PeerStatus::dead;
    }
    EXPECT_EQ(roster.present().size(), present);
    EXPECT_EQ(roster.reachable().size(), reachable);
    EXPECT_EQ(roster.keepers().size(), keepers);
    EXPECT_EQ(roster.dead().size(), dead);
    for (const auto& id : roster.keepers()) EXPECT_NE(roster.find(id)->facts.role, ElasticRole::client);
  }
}

TEST(PeerRoster, dead_peers_are_forgotten_after_forget_dead_and_older_claims_are_refused) {
  PeerRoster roster(8, forget_dead);
  auto dead = peer_claim(1, PeerStatus::dead);
  dead.gone_ms = 1000;
  (void)roster.merge(dead, 0);
  EXPECT_EQ(roster.next_forget(), forget_dead - 1 * second);
  EXPECT_EQ(roster.claim_of(peer_id(1), 5 * second).gone_ms, 6000u);
  roster.forget(forget_dead - 1 * second - 1);
  EXPECT_NE(roster.find(peer_id(1)), nullptr);
  roster.forget(forget_dead - 1 * second);
  EXPECT_EQ(roster.find(peer_id(1)), nullptr);
  dead.gone_ms = 3600 * 1000;
  EXPECT_EQ(roster.merge(dead, 0).effect, Effect::late);
  EXPECT_EQ(roster.size(), 0u);
}

TEST(PeerRoster, a_death_older_than_forget_dead_does_not_replace_a_live_peer) {
  PeerRoster roster(8, forget_dead);
  (void)roster.merge(peer_claim(1, PeerStatus::alive), 0);
  auto dead = peer_claim(1, PeerStatus::dead, 9);
  dead.gone_ms = 3600 * 1000;
  EXPECT_EQ(roster.merge(dead, 0).effect, Effect::late);
  EXPECT_EQ(roster.find(peer_id(1))->incarnation, 1u);
}

TEST(PeerRoster, accepts_max_peers_peers_and_does_not_count_dead_ones) {
  PeerRoster roster(4096, forget_dead);
  for (uint64_t i = 1; i <= 4096; ++i) EXPECT_EQ(roster.merge(peer_claim(i, PeerStatus::alive), 0).effect, Effect::added);
  EXPECT_TRUE(roster.full());
  EXPECT_EQ(roster.merge(peer_claim(5000, PeerStatus::alive), 0).effect, Effect::full);
  EXPECT_EQ(roster.find(peer_id(5000)), nullptr);
  (void)roster.merge(peer_claim(17, PeerStatus::dead), 0);
  EXPECT_EQ(roster.merge(peer_claim(5000, PeerStatus::alive), 0).effect, Effect::added);
  EXPECT_EQ(roster.merge(peer_claim(17, PeerStatus::alive, 2), 0).effect, Effect::full);
  EXPECT_TRUE(roster.gone(peer_id(17)));
}

TEST(PeerRoster, remembers_at_most_max_peers_dead_peers_and_drops_the_longest_dead_first) {
  PeerRoster roster(4, forget_dead);
  for (uint64_t i = 1; i <= 6; ++i) (void)roster.merge(peer_claim(i, PeerStatus::dead), static_cast<Nanos>(i) * second);
  EXPECT_EQ(roster.size(), 4u);
  EXPECT_EQ(roster.find(peer_id(2)), nullptr);
  EXPECT_NE(roster.find(peer_id(3)), nullptr);
}

TEST(PeerRoster, an_impossible_entry_is_refused) {
  const auto entry = peer_claim(1).entry;
  EXPECT_TRUE(check_entry(entry).ok());
  auto bad = entry;
  bad.facts.name.assign(256, 'x');
  EXPECT_EQ(check_entry(bad).code(), Code::invalid);
  bad = entry;
  bad.facts.addresses.assign(17, "tcp://a:1");
  EXPECT_EQ(check_entry(bad).code(), Code::invalid);
  bad = entry;
  bad.facts.addresses = {std::string(256, 'x')};
  EXPECT_EQ(check_entry(bad).code(), Code::invalid);
  bad = entry;
  bad.facts.bandwidth = std::numeric_limits<double>::quiet_NaN();
  EXPECT_EQ(check_entry(bad).code(), Code::invalid);
  bad = entry;
  bad.id = {};
  EXPECT_EQ(check_entry(bad).code(), Code::invalid);
}

}  // namespace
}  // namespace unisono
