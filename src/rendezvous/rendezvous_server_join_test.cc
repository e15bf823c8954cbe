// Tests of processes that join a running group, and of the member that answers them.
#include "rendezvous/rendezvous_test_support.h"

namespace unisono::rendezvous {
namespace {

TEST(Rendezvous, joiners_are_announced_to_the_attending_rank_and_answered) {
  ServerFixture fixture;
  fixture.dial(make_hello(0, 1));
  const auto c = fixture.dial(make_joiner(5));
  EXPECT_EQ(fixture.phase(c), Phase::waiting);
  auto joiners = fixture.client(1).joiners();
  ASSERT_EQ(joiners.size(), 1u);
  Roster roster = test::make_roster(1, 2);
  roster.members.push_back(joiners[0]);
  roster.members[1].rank = 1;
  const auto answer = fixture.client(1).answer(joiners[0].id, roster);
  ASSERT_TRUE(answer);
  fixture.send_bytes(1, *answer);
  EXPECT_EQ(fixture.phase(c), Phase::met);
  EXPECT_EQ(fixture.client(c).take_roster(), roster);
  EXPECT_TRUE(fixture.client(1).joiners().empty());
}

TEST(Rendezvous, a_joiner_can_be_refused_with_a_reason) {
  ServerFixture fixture;
  fixture.dial(make_hello(0, 1));
  const auto c = fixture.dial(make_joiner(5));
  fixture.send_bytes(1, *fixture.client(1).answer(make_joiner(5).member.id, Status(Code::unavailable, "the group is full")));
  EXPECT_EQ(fixture.phase(c), Phase::refused);
  EXPECT_EQ(fixture.error(c), "the group is full");
}

TEST(Rendezvous, a_joiner_may_come_before_the_group) {
  ServerFixture fixture;
  fixture.dial(make_joiner(5));
  fixture.dial(make_hello(0, 1));
  EXPECT_EQ(fixture.client(2).joiners().size(), 1u);
}

TEST(Rendezvous, a_joiner_that_leaves_is_withdrawn) {
  ServerFixture fixture;
  fixture.dial(make_hello(0, 1));
  const auto c = fixture.dial(make_joiner(5));
  fixture.hang_up(c);
  EXPECT_TRUE(fixture.client(1).joiners().empty());
}

TEST(Rendezvous, a_joiner_that_sends_anything_else_is_withdrawn_before_it_can_be_answered) {
  ServerFixture fixture;
  fixture.dial(make_hello(0, 1));
  const auto garbage = fixture.dial(make_joiner(5)), again = fixture.dial(make_joiner(6));
  const auto joiners = fixture.client(1).joiners();
  ASSERT_EQ(joiners.size(), 2u);
  Roster roster = test::make_roster(1, 2);
  roster.members.push_back(joiners[0]);
  roster.members[1].rank = 1;
  const auto answer = fixture.client(1).answer(joiners[0].id, roster);  // the answer is made before the joiner goes away
  ASSERT_TRUE(answer);
  fixture.send_bytes(garbage, Bytes(100, std::byte{7}));
  fixture.send_bytes(again, Client(make_joiner(6), never).connected(fixture.now));
  EXPECT_TRUE(fixture.client(1).joiners().empty());
  for (const auto c : {garbage, again}) EXPECT_EQ(fixture.phase(c), Phase::refused);
  fixture.hang_up(garbage);
  fixture.send_bytes(1, *answer);
  EXPECT_EQ(fixture.phase(fixture.dial(make_joiner(7))), Phase::waiting);
}

TEST(Rendezvous, a_joiner_that_waits_too_long_learns_the_state_of_the_group) {
  ServerFixture fixture;
  fixture.dial(make_hello(0, 1));
  const auto c = fixture.dial(make_joiner(5), 10 * second);
  fixture.pass(10 * second);
  EXPECT_EQ(fixture.client(c).error().code(), Code::late);
  expect_has(fixture.error(c), {"attended by rank 0 (host h0, pid 100)", "was not re-formed", "10.0 s"});
  EXPECT_TRUE(fixture.client(1).joiners().empty());
  const auto nobody = fixture.dial(make_joiner(6, "elsewhere"), 10 * second);
  fixture.pass(10 * second);
  expect_has(fixture.error(nobody), {"has no running group"});
}

TEST(Rendezvous, a_joiner_of_another_version_is_refused) {
  ServerFixture fixture;
  fixture.dial(make_hello(0, 1));
  Hello other = make_joiner(5);
  other.version = "9.9.9";
  expect_has(fixture.error(fixture.dial(other)), {"runs unisono 9.9.9", "runs unisono " UNISONO_VERSION});
  EXPECT_TRUE(fixture.client(1).joiners().empty());
}

TEST(Rendezvous, too_many_joiners_are_refused) {
  ServerFixture fixture({.joiners_max = 2});
  fixture.dial(make_hello(0, 1));
  for (uint32_t i = 0; i < 2; ++i) EXPECT_EQ(fixture.phase(fixture.dial(make_joiner(i + 5))), Phase::waiting);
  EXPECT_EQ(fixture.phase(fixture.dial(make_joiner(9))), Phase::refused);
}

// Dials as a member of a running group that wants to receive announcements of joiners.
size_t attend(ServerFixture& fixture, uint32_t rank, uint32_t epoch) {
  Client client(make_hello(rank, 2), never);
  Roster roster = test::make_roster(2, epoch);
  roster.key.fill(std::byte{9});
  (void)client.attend(roster, rank);
  fixture.clients.emplace_back(std::make_unique<Client>(client));
  const auto connection = fixture.clients.size();
  fixture.server.connected(connection, "10.0.0.7:1", fixture.now);
  fixture.send_bytes(connection, fixture.client(connection).connected(fixture.now));
  return connection;
}

TEST(Rendezvous, a_new_attending_rank_takes_over_with_the_joiners_that_wait) {
  ServerFixture fixture;
  fixture.dial(make_hello(0, 1));
  fixture.dial(make_joiner(5));
  fixture.hang_up(1);  // connection 1 belongs to rank 0, which dies
  const auto c = attend(fixture, 1, 2);
  EXPECT_EQ(fixture.phase(c), Phase::attending);
  EXPECT_EQ(fixture.client(c).joiners().size(), 1u);
}

TEST(Rendezvous, an_attending_rank_of_a_later_epoch_replaces_a_stopped_one) {
  ServerFixture fixture;
  fixture.dial(make_hello(0, 1));
  const auto c = attend(fixture, 1, 2);
  EXPECT_EQ(fixture.phase(c), Phase::attending);
  EXPECT_EQ(fixture.client(1).error().code(), Code::peer_lost);
}

TEST(Rendezvous, an_attending_rank_of_the_same_epoch_does_not_replace_another) {
  ServerFixture fixture;
  fixture.dial(make_hello(0, 1));
  EXPECT_EQ(fixture.phase(attend(fixture, 1, 1)), Phase::refused);
  EXPECT_EQ(fixture.phase(1), Phase::attending);
}

}  // namespace
}  // namespace unisono::rendezvous
