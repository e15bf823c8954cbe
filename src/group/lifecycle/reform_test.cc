#include "group/lifecycle/reform.h"

#include <gtest/gtest.h>

#include <algorithm>

#include "testing/peer_ids.h"

namespace unisono {
namespace {

using test::make_roster;
using test::member;
using test::reform_timeout;

constexpr Nanos start_time = 10 * second;

// Members in one room: bytes are carried by hand.
struct Credit {
  explicit Credit(uint32_t world) : roster(make_roster(world)) {
    for (const auto& each : roster.members) members.emplace_back(roster, each.id);
  }
  void start(Rank rank, std::vector<Rank> dead, ReformRequest request = {}) {
    for (const Rank d : dead) request.dead.push_back(roster.members[d].id);
    ASSERT_TRUE(members[rank].start(request, now).ok());
  }
  // Carries messages until nobody says anything; those to and from `deaf` are kept back or lost.
  void deliver(std::vector<Rank> deaf = {}) {
    const auto cut_off = [&](Rank rank) { return std::find(deaf.begin(), deaf.end(), rank) != deaf.end(); };
    for (bool any = true; any;) {
      any = false;
      for (Rank from = 0; from < members.size(); ++from) {
        for (auto& send : members[from].take_sends()) {
          const auto to = roster.rank_of(send.to);
          if (!to || cut_off(from) || cut_off(*to)) continue;
          EXPECT_TRUE(members[*to].message(roster.members[from].id, send.bytes, now).ok());
          any = true;
        }
      }
    }
  }
  void pass(Nanos time, std::vector<Rank> asleep = {}) {
    now += time;
    for (Rank rank = 0; rank < members.size(); ++rank) {
      const bool awake = std::find(asleep.begin(), asleep.end(), rank) == asleep.end();
      if (awake && members[rank].next_deadline() <= now) members[rank].woke(now);
    }
    deliver(asleep);
  }
  ReformResult result(Rank rank) {
    auto taken = members[rank].take_result();
    EXPECT_TRUE(taken.has_value()) << "rank " << rank << " has not finished";
    if (!taken) return {};
    EXPECT_TRUE(taken->ok()) << taken->status().to_string();
    return taken->ok() ? taken->value() : ReformResult{};
  }
  Status failure(Rank rank) {
    auto taken = members[rank].take_result();
    return taken ? taken->status() : Status();
  }

  Roster roster;
  std::vector<Reform> members;
  Nanos now = start_time;
};

TEST(Reform, living_members_agree_at_once_when_all_know_the_dead) {
  Credit credit(4);
  for (const Rank rank : {0u, 1u, 3u}) credit.start(rank, {2});
  credit.deliver({2});
  const auto expected = credit.result(0);
  EXPECT_EQ(expected.roster.epoch, 2u);
  ASSERT_EQ(expected.roster.members.size(), 3u);
  EXPECT_EQ(expected.roster.members[2].id, credit.roster.members[3].id);
  EXPECT_EQ(expected.roster.members[2].rank, 2u);
  EXPECT_EQ(expected.roster.key, credit.roster.key);
  for (const Rank rank : {1u, 3u}) {
    const auto result = credit.result(rank);
    EXPECT_EQ(result.roster, expected.roster);
    EXPECT_EQ(result.digest, digest(expected.roster));
    EXPECT_EQ(result.self, rank == 3 ? 2u : rank);
    ASSERT_EQ(result.lost.size(), 1u);
    EXPECT_EQ(result.lost[0], credit.roster.members[2]);
  }
}

TEST(Reform, nobody_lost_gives_the_same_members_under_the_next_epoch) {
  Credit credit(3);
  for (const Rank rank : {0u, 1u, 2u}) credit.start(rank, {});
  credit.deliver();
  EXPECT_EQ(credit.result(1).roster.members, credit.roster.members);
  EXPECT_EQ(credit.result(2).roster.epoch, 2u);
}

TEST(Reform, one_is_enough_to_know_who_died) {
  Credit credit(4);
  credit.start(0, {});
  credit.start(1, {});
  credit.start(2, {3});
  credit.deliver({3});
  EXPECT_EQ(credit.result(0).roster.members.size(), 3u);
}

TEST(Reform, the_last_one_left_goes_on_alone) {
  Credit credit(3);
  credit.start(1, {0, 2});
  EXPECT_EQ(credit.result(1).self, 0u);
}

TEST(Reform, who_stays_silent_is_left_out_after_the_timeout_and_not_before) {
  Credit credit(3);
  credit.start(0, {});
  credit.start(1, {});
  credit.deliver({2});
  credit.pass(reform_timeout - millisecond, {2});
  EXPECT_TRUE(credit.members[0].running());
  credit.pass(millisecond, {2});
  const auto result = credit.result(0);
  EXPECT_EQ(result.roster.members.size(), 2u);
  ASSERT_EQ(result.lost_why.size(), 1u);
  EXPECT_NE(result.lost_why[0].find("did not answer rank 0 for 200 ms"), std::string::npos) << result.lost_why[0];
}

TEST(Reform, who_was_left_out_is_told_when_it_wakes) {
  Credit credit(3);
  credit.start(0, {});
  credit.start(1, {});
  credit.deliver({2});
  credit.pass(reform_timeout, {2});
  ASSERT_FALSE(credit.members[0].running());
  credit.now += 10 * second;
  credit.start(2, {});  // its own turn at last
  credit.deliver();
  const auto status = credit.failure(2);
  EXPECT_EQ(status.code(), Code::peer_lost);
  EXPECT_NE(status.message().find("rank 2 (host h2, pid 102), was removed from the group at epoch 2 by ranks 0, 1: it did not "
                                  "answer rank 0 for 200 ms"),
            std::string::npos)
      << status.message();
  EXPECT_EQ(credit.members[2].start({}, credit.now), status);
}

TEST(Reform, who_never_started_is_told_that_it_was_left_out) {
  Credit credit(3);
  credit.start(0, {});
  credit.start(1, {});
  credit.deliver();
  EXPECT_TRUE(credit.members[2].wanted());
  credit.pass(reform_timeout);
  EXPECT_EQ(credit.failure(2).code(), Code::peer_lost);
}

TEST(Reform, a_stopped_member_asks_again_before_it_judges_others) {
  Credit credit(3);
  for (const Rank rank : {0u, 1u, 2u}) credit.start(rank, {});
  credit.members[2].take_sends();  // stopped before a byte left it
  credit.deliver({2});
  credit.pass(reform_timeout, {2});
  ASSERT_FALSE(credit.members[0].running());
  credit.pass(10 * second);  // now it wakes, and its timers come first
  EXPECT_EQ(credit.failure(2).code(), Code::peer_lost) << "it must not go on alone";
}

TEST(Reform, those_who_start_late_are_waited_for) {
  Credit credit(3);
  credit.start(0, {});
  credit.deliver();
  credit.now += reform_timeout - 10 * millisecond;
  credit.start(1, {});
  credit.start(2, {});
  credit.deliver();
  EXPECT_EQ(credit.result(0).roster.members.size(), 3u);
  EXPECT_EQ(credit.result(2).roster.members.size(), 3u);
}

TEST(Reform, a_member_lost_before_the_start_is_remembered) {
  Credit credit(2);
  credit.members[0].peer_lost(credit.roster.members[1].id, credit.now);
  credit.start(0, {});
  EXPECT_EQ(credit.result(0).roster.members.size(), 1u);
}

TEST(Reform, a_member_lost_meanwhile_is_left_out) {
  Credit credit(3);
  credit.start(0, {});
  credit.start(1, {});
  credit.deliver();
  credit.members[1].peer_lost(credit.roster.members[2].id, credit.now);
  credit.deliver();
  EXPECT_EQ(credit.result(0).roster.members.size(), 2u);
}

TEST(Reform, goes_on_without_its_lowest_rank) {
  Credit credit(3);
  for (const Rank rank : {0u, 1u, 2u}) credit.start(rank, {});
  credit.deliver({0});
  for (const Rank rank : {1u, 2u}) credit.members[rank].peer_lost(credit.roster.members[0].id, credit.now);
  credit.deliver({0});
  EXPECT_EQ(credit.result(1).roster.members.size(), 2u);
  EXPECT_EQ(credit.result(2).self, 1u);
}

TEST(Reform, a_roster_that_reached_one_member_reaches_all) {
  Credit credit(3);
  for (const Rank rank : {0u, 1u, 2u}) credit.start(rank, {});
  // Rank 0 hears all, makes the roster, tells rank 1 and dies.
  for (const Rank from : {1u, 2u}) {
    for (auto& send : credit.members[from].take_sends()) {
      const auto to = *credit.roster.rank_of(send.to);
      ASSERT_TRUE(credit.members[to].message(credit.roster.members[from].id, send.bytes, credit.now).ok());
    }
  }
  for (auto& send : credit.members[0].take_sends()) {
    if (*credit.roster.rank_of(send.to) != 1) continue;
    ASSERT_TRUE(credit.members[1].message(credit.roster.members[0].id, send.bytes, credit.now).ok());
  }
  ASSERT_EQ(credit.result(1).roster.members.size(), 3u);
  credit.members[2].peer_lost(credit.roster.members[0].id, credit.now);
  credit.deliver({0});
  const auto result = credit.result(2);
  EXPECT_EQ(result.roster.members.size(), 3u) << "rank 2 must take the roster that rank 1 has";
  EXPECT_EQ(result.digest, digest(credit.members[1].roster()));
}

TEST(Reform, joiners_known_anywhere_come_last) {
  Credit credit(3);
  ReformRequest knows;
  knows.joiners = {member(7, 2), member(8, 2)};
  knows.joiners[0].rank = 4000;  // says nothing
  credit.start(0, {});
  credit.start(1, {});
  credit.start(2, {}, knows);
  credit.deliver();
  const auto result = credit.result(1);
  ASSERT_EQ(result.roster.members.size(), 5u);
  EXPECT_EQ(result.roster.members[3].id, knows.joiners[0].id);
  EXPECT_EQ(result.roster.members[4].rank, 4u);
  ASSERT_EQ(result.joined.size(), 2u);
  EXPECT_EQ(result.joined[1], result.roster.members[4]);
}

TEST(Reform, a_joiner_that_two_know_joins_once_and_a_member_never_again) {
  Credit credit(2);
  ReformRequest knows;
  knows.joiners = {member(7, 2), credit.roster.members[0]};
  credit.start(0, {}, knows);
  credit.start(1, {}, knows);
  credit.deliver();
  EXPECT_EQ(credit.result(0).roster.members.size(), 3u);
}

TEST(Reform, several_in_a_row_shrink_the_group_to_one) {
  Credit credit(4);
  std::vector<Rank> gone;
  for (Rank victim = 0; victim < 3; ++victim) {
    gone.push_back(victim);
    for (Rank rank = victim + 1; rank < 4; ++rank) credit.start(rank, {victim});
    credit.deliver(gone);
    for (Rank rank = victim + 1; rank < 4; ++rank) {
      const auto result = credit.result(rank);
      EXPECT_EQ(result.roster.epoch, victim + 2);
      EXPECT_EQ(result.self, rank - victim - 1);
      EXPECT_EQ(result.roster.members.size(), 3 - victim);
    }
  }
}

TEST(Reform, min_world_refuses_a_group_too_small_and_names_the_lost) {
  Credit credit(3);
  ReformRequest request;
  request.min_world = 2;
  credit.start(0, {1, 2}, request);
  const auto status = credit.failure(0);
  EXPECT_EQ(status.code(), Code::unavailable);
  EXPECT_NE(status.message().find(
                "1 of 3 ranks left, at least 2 are required; rank 1 (host h1, pid 101): rank 0 lost the link to it"),
            std::string::npos)
      << status.message();
}

TEST(Reform, a_majority_goes_on_and_a_minority_does_not) {
  Credit credit(5);
  ReformRequest request;
  request.require_majority = true;
  for (const Rank rank : {0u, 1u, 2u}) credit.start(rank, {3, 4}, request);
  for (const Rank rank : {3u, 4u}) credit.start(rank, {0, 1, 2}, request);
  credit.deliver({3, 4});
  EXPECT_EQ(credit.result(0).roster.members.size(), 3u);
  EXPECT_EQ(credit.failure(3).code(), Code::unavailable);
}

TEST(Reform, of_two_equal_halves_the_one_with_rank_0_goes_on) {
  Credit credit(2);
  ReformRequest request;
  request.require_majority = true;
  credit.start(0, {1}, request);
  credit.start(1, {0}, request);
  EXPECT_EQ(credit.result(0).roster.members.size(), 1u);
  EXPECT_EQ(credit.failure(1).code(), Code::unavailable);
}

TEST(Reform, two_halves_never_share_an_epoch) {
  Credit credit(4);
  for (const Rank rank : {0u, 1u}) credit.start(rank, {2, 3});
  credit.deliver({2, 3});
  for (const Rank rank : {2u, 3u}) credit.start(rank, {0, 1});
  credit.deliver({0, 1});
  const auto left = credit.result(0);
  const auto right = credit.result(2);
  EXPECT_EQ(left.roster.epoch, right.roster.epoch);
  EXPECT_NE(left.digest, right.digest);
  EXPECT_NE(wire_epoch(left.roster), wire_epoch(right.roster));
}

TEST(Reform, of_two_halves_that_hear_of_each_other_at_once_one_gives_way) {
  Credit credit(4);
  for (const Rank rank : {0u, 1u}) credit.start(rank, {2, 3});
  for (const Rank rank : {2u, 3u}) credit.start(rank, {0, 1});
  credit.deliver();
  EXPECT_EQ(credit.result(0).roster, credit.result(1).roster);
  EXPECT_EQ(credit.failure(2).code(), Code::peer_lost);
  EXPECT_EQ(credit.failure(3).code(), Code::peer_lost);
}

TEST(Reform, many_that_were_awake_do_not_end_because_of_one_that_judged_too_early) {
  Credit credit(4);
  for (const Rank rank : {0u, 1u, 2u, 3u}) credit.start(rank, {});
  credit.deliver({0});
  credit.now +=
      reform_timeout - microsecond;  // they wait for rank 0, which waits for nobody: it was stopped, and takes all for dead
  ASSERT_TRUE(credit.members[1].running());
  credit.now += microsecond;
  for (const Rank rank : {1u, 2u, 3u}) {
    const Removed removed{2, {rank, Departure::Cause::silent, 0, 200}, {0}, 1, 0};
    const Bytes bytes = encode(ReformMessage{name_of(credit.roster), removed});
    ASSERT_TRUE(credit.members[rank].message(credit.roster.members[0].id, bytes, credit.now).ok());
  }
  credit.deliver({0});
  EXPECT_EQ(credit.result(1).roster.members.size(), 3u);
  EXPECT_EQ(credit.result(3).lost_why.at(0), "it had gone on without rank 1");
}

TEST(Reform, a_lowest_rank_that_says_nothing_after_all_agreed_is_waited_for_and_then_left_out) {
  Credit credit(3);
  for (const Rank rank : {0u, 1u, 2u}) credit.start(rank, {});
  for (auto& send : credit.members[0].take_sends()) {  // the last that is heard of rank 0
    const auto to = *credit.roster.rank_of(send.to);
    ASSERT_TRUE(credit.members[to].message(credit.roster.members[0].id, send.bytes, credit.now).ok());
  }
  credit.deliver({0});
  credit.pass(reform_timeout, {0});
  EXPECT_TRUE(credit.members[1].running()) << "it may be waiting for somebody whom we have heard";
  credit.pass(reform_timeout / 4, {0});
  EXPECT_EQ(credit.result(1).roster.members.size(), 2u);
  EXPECT_EQ(credit.result(2).roster.members.size(), 2u);
}

TEST(Reform, a_proposal_overtaken_by_a_later_one_says_nothing) {
  Credit credit(3);
  credit.start(1, {});
  const auto from = credit.roster.members[0].id;
  const EpochName base = name_of(credit.roster);
  ASSERT_TRUE(credit.members[1].message(from, encode(ReformMessage{base, Propose{2, {}, {}}}), credit.now).ok());
  credit.members[1].take_sends();
  const Propose older{1, {{2, Departure::Cause::lost, 0, 0}}, {}};
  ASSERT_TRUE(credit.members[1].message(from, encode(ReformMessage{base, older}), credit.now).ok());
  EXPECT_TRUE(credit.members[1].take_sends().empty()) << "nothing changed, so there is nothing to say";
}

TEST(Reform, a_message_about_the_next_epoch_is_kept_until_its_roster_has_come) {
  Credit credit(2);
  credit.start(0, {});
  credit.start(1, {});
  for (auto& send : credit.members[1].take_sends())
    ASSERT_TRUE(credit.members[0].message(credit.roster.members[1].id, send.bytes, credit.now).ok());
  const auto first = credit.members[0].take_sends();  // a proposal, and the next roster
  ASSERT_TRUE(credit.members[0].take_result()->ok());
  credit.start(0, {});
  const auto next = credit.members[0].take_sends();
  for (const auto* sends : {&next, &first}) {  // overtaking
    for (const auto& send : *sends)
      ASSERT_TRUE(credit.members[1].message(credit.roster.members[0].id, send.bytes, credit.now).ok());
  }
  EXPECT_EQ(credit.result(1).roster.epoch, 2u);
  EXPECT_TRUE(credit.members[1].wanted()) << "rank 0 waits for it already";
  credit.start(1, {});
  credit.deliver();
  EXPECT_EQ(credit.result(0).roster.epoch, 3u);
  EXPECT_EQ(credit.result(1).roster.epoch, 3u);
}

TEST(Reform, a_smaller_half_that_speaks_to_a_larger_one_at_once_is_told_to_give_way) {
  Credit credit(3);
  for (const Rank rank : {0u, 1u}) credit.start(rank, {2});
  credit.deliver({2});
  credit.start(2, {0, 1});
  const auto said = credit.members[2].take_sends();
  ASSERT_TRUE(credit.members[2].take_result()->ok());
  for (const auto& send : said)
    ASSERT_TRUE(
        credit.members[*credit.roster.rank_of(send.to)].message(credit.roster.members[2].id, send.bytes, credit.now).ok());
  credit.deliver();
  EXPECT_EQ(credit.failure(2).code(), Code::peer_lost);
  EXPECT_EQ(credit.members[0].roster().members.size(), 2u);
}

TEST(Reform, cannot_start_twice) {
  Credit credit(2);
  credit.start(0, {});
  EXPECT_EQ(credit.members[0].start({}, credit.now).code(), Code::invalid);
}

TEST(Reform, malformed_messages_change_nothing_and_are_counted) {
  Credit credit(3);
  credit.start(0, {});
  const auto from = credit.roster.members[1].id;
  const EpochName base = name_of(credit.roster);
  const auto deadline = credit.members[0].next_deadline();
  Commit foreign{make_roster(3, 9), {}};
  Commit smaller{make_roster(3, 2), {{2, Departure::Cause::lost, 1, 0}}};
  smaller.roster.members[1].host = "forged";
  Commit too_small{make_roster(1, 2), {}};
  Commit other_key{make_roster(3, 2), {}};
  other_key.roster.key[0] = std::byte{0};
  const Bytes cases[] = {
      Bytes(),
      Bytes(30, std::byte{0xFF}),
      encode(ReformMessage{base, Propose{1, {{3, Departure::Cause::lost, 1, 0}}, {}}}),  // there is no rank 3
      encode(ReformMessage{base, Propose{1, {{1, Departure::Cause::lost, 1, 0}}, {}}}),  // of its sender
      encode(ReformMessage{base, foreign}),
      encode(ReformMessage{base, smaller}),
      encode(ReformMessage{base, too_small}),
      encode(ReformMessage{base, other_key}),
  };
  uint64_t count = 0;
  credit.members[0].take_sends();
  for (const auto& bytes : cases) {
    EXPECT_EQ(credit.members[0].message(from, bytes, credit.now).code(), Code::corrupt) << "case " << count;
    EXPECT_EQ(credit.members[0].counters().malformed, ++count);
    EXPECT_TRUE(credit.members[0].running());
    EXPECT_TRUE(credit.members[0].take_sends().empty());
    EXPECT_EQ(credit.members[0].next_deadline(), deadline);
  }
}

TEST(Reform, unauthenticated_are_counted_and_not_answered) {
  Credit credit(2);
  credit.start(0, {});
  credit.members[0].take_sends();
  const Bytes bytes = encode(ReformMessage{name_of(credit.roster), Propose{1, {}, {}}});
  EXPECT_TRUE(credit.members[0].message({99, 99}, bytes, credit.now).ok());
  const Bytes old = encode(ReformMessage{{0, 5}, Propose{1, {}, {}}});
  EXPECT_TRUE(credit.members[0].message({99, 99}, old, credit.now).ok());
  EXPECT_EQ(credit.members[0].counters().unauthenticated, 2u);
  EXPECT_TRUE(credit.members[0].take_sends().empty());
}

}  // namespace
}  // namespace unisono
