// A coordinator's slots of an averaging step, when other peers are in a later one already.
#include "elastic/formation/group_coordinator.h"

#include <gtest/gtest.h>

#include "elastic/formation/group_coordinator_test_support.h"

namespace unisono {
namespace {

using namespace formation;
using test::Desk;

constexpr uint64_t step = 5;

void expect_two_wait(Desk& desk, Nanos time) {
  desk.enter(0, step);
  desk.enter(1, step);
  desk.pass(time - 1);
  EXPECT_TRUE(desk.got<Descriptor>().empty());
  desk.pass(1);
  EXPECT_EQ(desk.formed().members.size(), 2u);
}

TEST(GroupCoordinatorSuperseded, those_who_are_there_wait_a_quarter_of_a_coordinator_timeout_only) {
  Desk desk;
  desk.view.opened = step + 2;
  expect_two_wait(desk, desk.times.coordinator_timeout / 4);
}

TEST(GroupCoordinatorSuperseded, the_newest_step_is_not) {
  Desk desk;
  desk.view.opened = step + 1;
  expect_two_wait(desk, desk.times.gather_timeout);
}

TEST(GroupCoordinatorSuperseded, one_that_is_alone_is_sent_after_the_others) {
  Desk desk;
  desk.view.opened = step + 2;
  desk.enter(0, step);
  desk.pass(desk.times.coordinator_timeout / 4);
  const auto closed = desk.got<Closed>();
  ASSERT_EQ(closed.size(), 1u);
  EXPECT_EQ(closed[0].first, desk.ids[0]);
  EXPECT_EQ(closed[0].second, (Closed{desk.request(0, step).slot, step + 2, 0}));
  EXPECT_EQ(desk.coordinator.counters().alone, 0u);
  desk.enter(1, step);
  EXPECT_EQ(desk.got<Closed>().size(), 1u) << "whoever comes after it is told at once";
}

TEST(GroupCoordinatorSuperseded, what_begins_while_a_slot_is_open_counts_from_the_next_sign_on) {
  Desk desk;
  desk.enter(0, step);
  desk.enter(1, step);
  desk.pass(desk.times.coordinator_timeout);
  EXPECT_TRUE(desk.got<Descriptor>().empty());
  desk.view.opened = step + 2;
  desk.pass(desk.times.coordinator_timeout / 4);
  EXPECT_EQ(desk.formed().members.size(), 2u);
}

TEST(GroupCoordinatorSuperseded, in_later_rounds_those_who_were_held_up_in_the_one_before_have_longer) {
  Desk desk({2, 2});
  desk.view.opened = step + 2;
  const auto request = desk.request(0, step, 1);
  desk.say(0, request);
  desk.pass(desk.times.coordinator_timeout * 3 / 4 - 1);
  EXPECT_TRUE(desk.got<Alone>().empty());
  desk.pass(1);
  const auto alone = desk.got<Alone>();
  ASSERT_EQ(alone.size(), 1u) << "its round is done: nothing was lost by the one before";
  EXPECT_EQ(alone[0].second.slot, request.slot);
}

TEST(GroupCoordinatorSuperseded, the_announced_are_waited_for_in_later_rounds) {
  Desk desk({2, 2});
  desk.view.opened = step + 2;
  auto other = desk.request(0, step, 1);
  uint32_t partner = 1;
  while (desk.request(partner, step, 1).slot != other.slot) ++partner;
  auto announced = desk.request(partner, step, 1);
  announced.pre = true;
  desk.say(partner, announced);
  desk.say(0, other);
  desk.pass(desk.times.gather_timeout);
  EXPECT_TRUE(desk.got<Alone>().empty());
  desk.say(partner, desk.request(partner, step, 1));
  EXPECT_EQ(desk.formed().members.size(), 2u);
}

}  // namespace
}  // namespace unisono
