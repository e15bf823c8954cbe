// Members whose links are made anew while the group re-forms.
#include "group/lifecycle/reform_test_support.h"

namespace unisono {
namespace {

using test::MemberGroup;
using test::reform_timeout;
using test::start_time;

TEST(Reform, a_member_whose_link_is_made_anew_is_waited_for) {
  MemberGroup group(3);
  ReformRequest relinks;
  relinks.relinking = {{group.roster.members[2].id, group.now + 2 * second}};
  group.start(0, {}, relinks);
  group.start(1, {});
  group.start(2, {});
  group.deliver();
  for (int i = 0; i < 9; ++i) group.pass(reform_timeout);
  EXPECT_TRUE(group.members[0].running());
  for (const Rank rank : {1u, 2u})
    EXPECT_TRUE(group.members[rank].running()) << "rank 0 has told rank " << rank << " that it waits";
  group.members[0].link_up(group.roster.members[2].id, group.now);
  group.deliver();
  for (const Rank rank : {0u, 1u, 2u}) EXPECT_EQ(group.result(rank).roster.members.size(), 3u);
}

TEST(Reform, nobody_agrees_while_a_link_is_made_anew) {
  MemberGroup group(3);
  ReformRequest relinks;
  relinks.relinking = {{group.roster.members[2].id, group.now + second}};
  group.start(0, {});
  group.start(1, {}, relinks);
  group.start(2, {});
  group.deliver();
  EXPECT_TRUE(group.members[0].running()) << "ranks 1 and 2 have no link yet";
  group.members[1].link_up(group.roster.members[2].id, group.now);
  group.deliver();
  EXPECT_EQ(group.result(0).roster.members.size(), 3u);
}

TEST(Reform, a_link_that_breaks_while_re_forming_is_waited_for) {
  MemberGroup group(3);
  for (const Rank rank : {0u, 1u, 2u}) group.start(rank, {});
  group.deliver({2});
  group.now += reform_timeout - millisecond;
  for (const Rank rank : {0u, 1u}) group.members[rank].link_down(group.roster.members[2].id, never, group.now);
  group.deliver({2});
  for (int i = 0; i < 10; ++i) group.pass(reform_timeout, {2});
  for (const Rank rank : {0u, 1u}) {
    ASSERT_TRUE(group.members[rank].running());
    group.members[rank].link_up(group.roster.members[2].id, group.now);
  }
  group.pass(reform_timeout - millisecond, {2});
  EXPECT_TRUE(group.members[0].running()) << "its silence counts from when its link was up";
  group.pass(millisecond, {2});
  EXPECT_EQ(group.result(0).roster.members.size(), 2u);
}

TEST(Reform, a_link_that_is_not_made_anew_in_time_removes_the_member) {
  MemberGroup group(3);
  ReformRequest relinks;
  relinks.relinking = {{group.roster.members[2].id, group.now + 2 * second}};
  for (const Rank rank : {0u, 1u}) group.start(rank, {}, relinks);
  group.deliver({2});
  group.pass(2 * second - millisecond, {2});
  EXPECT_TRUE(group.members[0].running());
  group.pass(millisecond, {2});
  const auto result = group.result(0);
  ASSERT_EQ(result.lost_reasons.size(), 1u);
  EXPECT_EQ(result.lost_reasons[0], "rank 0 could not reach it for 2000 ms");
}

TEST(Reform, links_that_break_again_and_again_are_waited_for_no_longer_than_the_link_timeout) {
  MemberGroup group(3);
  for (const Rank rank : {0u, 1u}) group.start(rank, {});
  group.deliver({2});
  const auto id = group.roster.members[2].id;
  for (int i = 0; i < 200 && group.members[0].running(); ++i) {
    group.members[0].link_down(id, never, group.now);
    group.pass(100 * millisecond, {2});
    group.members[0].link_up(id, group.now);
    group.members[1].link_down(id, never, group.now);
    group.deliver({2});
  }
  EXPECT_LE(group.now - start_time, ReformRequest().link_timeout + second);
  EXPECT_EQ(group.result(0).roster.members.size(), 2u);
}

}  // namespace
}  // namespace unisono
