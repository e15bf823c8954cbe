// Processes that want to join a running group, and the member that answers them.
#include "rendezvous/rendezvous_test_support.h"

namespace unisono::rendezvous {
namespace {

TEST(Rendezvous, joiners_are_announced_to_the_attending_rank_and_answered) {
  Place place;
  place.dial(make_hello(0, 1));
  const auto c = place.dial(make_joiner(5));
  EXPECT_EQ(place.phase(c), Phase::waiting);
  auto joiners = place.client(1).joiners();
  ASSERT_EQ(joiners.size(), 1u);
  Roster roster = test::make_roster(1, 2);
  roster.members.push_back(joiners[0]);
  roster.members[1].rank = 1;
  const auto answer = place.client(1).answer(joiners[0].id, roster);
  ASSERT_TRUE(answer);
  place.say(1, *answer);
  EXPECT_EQ(place.phase(c), Phase::met);
  EXPECT_EQ(place.client(c).take_roster(), roster);
  EXPECT_TRUE(place.client(1).joiners().empty());
}

TEST(Rendezvous, a_joiner_can_be_refused_with_a_reason) {
  Place place;
  place.dial(make_hello(0, 1));
  const auto c = place.dial(make_joiner(5));
  place.say(1, *place.client(1).answer(make_joiner(5).member.id, Status(Code::unavailable, "the group is full")));
  EXPECT_EQ(place.phase(c), Phase::refused);
  EXPECT_EQ(place.error(c), "the group is full");
}

TEST(Rendezvous, a_joiner_may_come_before_the_group) {
  Place place;
  place.dial(make_joiner(5));
  place.dial(make_hello(0, 1));
  EXPECT_EQ(place.client(2).joiners().size(), 1u);
}

TEST(Rendezvous, a_joiner_that_leaves_is_taken_back) {
  Place place;
  place.dial(make_hello(0, 1));
  const auto c = place.dial(make_joiner(5));
  place.hang_up(c);
  EXPECT_TRUE(place.client(1).joiners().empty());
}

TEST(Rendezvous, a_joiner_that_says_something_else_is_taken_back_before_it_can_be_answered) {
  Place place;
  place.dial(make_hello(0, 1));
  const auto garbage = place.dial(make_joiner(5)), again = place.dial(make_joiner(6));
  const auto joiners = place.client(1).joiners();
  ASSERT_EQ(joiners.size(), 2u);
  Roster roster = test::make_roster(1, 2);
  roster.members.push_back(joiners[0]);
  roster.members[1].rank = 1;
  const auto answer = place.client(1).answer(joiners[0].id, roster);  // on its way while the joiner goes
  ASSERT_TRUE(answer);
  place.say(garbage, Bytes(100, std::byte{7}));
  place.say(again, Client(make_joiner(6), never).connected(place.now));
  EXPECT_TRUE(place.client(1).joiners().empty());
  for (const auto c : {garbage, again}) EXPECT_EQ(place.phase(c), Phase::refused);
  place.hang_up(garbage);
  place.say(1, *answer);
  EXPECT_EQ(place.phase(place.dial(make_joiner(7))), Phase::waiting);
}

TEST(Rendezvous, a_joiner_that_waits_too_long_is_told_what_the_group_does) {
  Place place;
  place.dial(make_hello(0, 1));
  const auto c = place.dial(make_joiner(5), 10 * second);
  place.pass(10 * second);
  EXPECT_EQ(place.client(c).error().code(), Code::late);
  expect_has(place.error(c), {"attended by rank 0 (host h0, pid 100)", "was not re-formed", "10.0 s"});
  EXPECT_TRUE(place.client(1).joiners().empty());
  const auto nobody = place.dial(make_joiner(6, "elsewhere"), 10 * second);
  place.pass(10 * second);
  expect_has(place.error(nobody), {"has no running group"});
}

TEST(Rendezvous, a_joiner_of_another_version_is_refused) {
  Place place;
  place.dial(make_hello(0, 1));
  Hello other = make_joiner(5);
  other.version = "9.9.9";
  expect_has(place.error(place.dial(other)), {"runs unisono 9.9.9", "runs unisono " UNISONO_VERSION});
  EXPECT_TRUE(place.client(1).joiners().empty());
}

TEST(Rendezvous, too_many_joiners_are_refused) {
  Place place({.joiners_max = 2});
  place.dial(make_hello(0, 1));
  for (uint32_t i = 0; i < 2; ++i) EXPECT_EQ(place.phase(place.dial(make_joiner(i + 5))), Phase::waiting);
  EXPECT_EQ(place.phase(place.dial(make_joiner(9))), Phase::refused);
}

// The hello of a member of a running group that wants announcements of joiners.
size_t attend(Place& place, uint32_t rank, uint32_t epoch) {
  Client client(make_hello(rank, 2), never);
  Roster roster = test::make_roster(2, epoch);
  roster.key.fill(std::byte{9});
  (void)client.attend(roster, rank);
  place.clients.emplace_back(std::make_unique<Client>(client));
  const auto connection = place.clients.size();
  place.server.connected(connection, "10.0.0.7:1", place.now);
  place.say(connection, place.client(connection).connected(place.now));
  return connection;
}

TEST(Rendezvous, a_new_attending_rank_takes_over_with_the_joiners_that_wait) {
  Place place;
  place.dial(make_hello(0, 1));
  place.dial(make_joiner(5));
  place.hang_up(1);  // rank 0 died
  const auto c = attend(place, 1, 2);
  EXPECT_EQ(place.phase(c), Phase::attending);
  EXPECT_EQ(place.client(c).joiners().size(), 1u);
}

TEST(Rendezvous, an_attending_rank_of_a_later_epoch_replaces_a_stopped_one) {
  Place place;
  place.dial(make_hello(0, 1));
  const auto c = attend(place, 1, 2);
  EXPECT_EQ(place.phase(c), Phase::attending);
  EXPECT_EQ(place.client(1).error().code(), Code::peer_lost);
}

TEST(Rendezvous, an_attending_rank_of_the_same_epoch_does_not_replace_another) {
  Place place;
  place.dial(make_hello(0, 1));
  EXPECT_EQ(place.phase(attend(place, 1, 1)), Phase::refused);
  EXPECT_EQ(place.phase(1), Phase::attending);
}

}  // namespace
}  // namespace unisono::rendezvous
