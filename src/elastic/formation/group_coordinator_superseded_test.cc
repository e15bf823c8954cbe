// Tests a coordinator's slots of one averaging step while other peers are already in a later averaging step.
#include "elastic/formation/group_coordinator.h"

#include <gtest/gtest.h>

#include "elastic/formation/group_coordinator_test_support.h"

namespace unisono {
namespace {

using namespace formation;
using test::CoordinatorFixture;

constexpr uint64_t step = 5;

void expect_two_wait(CoordinatorFixture& fixture, Nanos time) {
  fixture.register_peer(0, step);
  fixture.register_peer(1, step);
  fixture.advance(time - 1);
  EXPECT_TRUE(fixture.take_answers<Descriptor>().empty());
  fixture.advance(1);
  EXPECT_EQ(fixture.formed().members.size(), 2u);
}

TEST(GroupCoordinatorSuperseded, registered_peers_wait_only_a_quarter_of_a_coordinator_timeout) {
  CoordinatorFixture fixture;
  fixture.view.opened = step + 2;
  expect_two_wait(fixture, fixture.times.coordinator_timeout / 4);
}

TEST(GroupCoordinatorSuperseded, the_newest_step_is_not_superseded) {
  CoordinatorFixture fixture;
  fixture.view.opened = step + 1;
  expect_two_wait(fixture, fixture.times.gather_timeout);
}

TEST(GroupCoordinatorSuperseded, a_lone_peer_is_sent_on_to_the_newer_step) {
  CoordinatorFixture fixture;
  fixture.view.opened = step + 2;
  fixture.register_peer(0, step);
  fixture.advance(fixture.times.coordinator_timeout / 4);
  const auto closed = fixture.take_answers<Closed>();
  ASSERT_EQ(closed.size(), 1u);
  EXPECT_EQ(closed[0].first, fixture.ids[0]);
  EXPECT_EQ(closed[0].second, (Closed{fixture.request(0, step).slot, step + 2, 0}));
  EXPECT_EQ(fixture.coordinator.counters().alone, 0u);
  fixture.register_peer(1, step);
  EXPECT_EQ(fixture.take_answers<Closed>().size(), 1u) << "a later registration gets CLOSED at once";
}

TEST(GroupCoordinatorSuperseded, a_step_that_begins_while_a_slot_is_open_counts_from_the_next_sign_of_life) {
  CoordinatorFixture fixture;
  fixture.register_peer(0, step);
  fixture.register_peer(1, step);
  fixture.advance(fixture.times.coordinator_timeout);
  EXPECT_TRUE(fixture.take_answers<Descriptor>().empty());
  fixture.view.opened = step + 2;
  fixture.advance(fixture.times.coordinator_timeout / 4);
  EXPECT_EQ(fixture.formed().members.size(), 2u);
}

TEST(GroupCoordinatorSuperseded, in_later_rounds_peers_that_the_previous_round_delayed_have_more_time) {
  CoordinatorFixture fixture({2, 2});
  fixture.view.opened = step + 2;
  const auto request = fixture.request(0, step, 1);
  fixture.deliver(0, request);
  fixture.advance(fixture.times.coordinator_timeout * 3 / 4 - 1);
  EXPECT_TRUE(fixture.take_answers<Alone>().empty());
  fixture.advance(1);
  const auto alone = fixture.take_answers<Alone>();
  ASSERT_EQ(alone.size(), 1u) << "its round is done: nothing was lost by the one before";
  EXPECT_EQ(alone[0].second.slot, request.slot);
}

TEST(GroupCoordinatorSuperseded, pre_registered_peers_are_waited_for_in_later_rounds) {
  CoordinatorFixture fixture({2, 2});
  fixture.view.opened = step + 2;
  auto other = fixture.request(0, step, 1);
  uint32_t partner = 1;
  while (fixture.request(partner, step, 1).slot != other.slot) ++partner;
  auto announced = fixture.request(partner, step, 1);
  announced.pre = true;
  fixture.deliver(partner, announced);
  fixture.deliver(0, other);
  fixture.advance(fixture.times.gather_timeout);
  EXPECT_TRUE(fixture.take_answers<Alone>().empty());
  fixture.deliver(partner, fixture.request(partner, step, 1));
  EXPECT_EQ(fixture.formed().members.size(), 2u);
}

}  // namespace
}  // namespace unisono
