// Descriptors and declines that a seeker keeps for other members of its groups.

#include <gtest/gtest.h>

#include "elastic/formation/group_seeker.h"
#include "elastic/formation/line_slot.h"
#include "elastic/layout/formation_view_test_support.h"

namespace unisono {
namespace {

using namespace formation;

struct Member {
  Member() : ids(test::peer_ids(6)), layout(test::layout_of(ids)), seeker({.self = ids[0], .run = "run", .times = {}}, view) {
    view.hold(layout);
    view.reachable = ids;
  }
  SlotName slot(uint64_t step) const { return seek_request(layout, ids[0], step, 0).slot; }
  GroupDescriptor group(uint64_t step) const {
    GroupDescriptor group;
    group.id = {step + 1, 7};
    group.slot = slot(step);
    group.chunk_counts = {1, 1, 1};
    for (uint32_t i = 0; i < 3; ++i) group.members.push_back({ids[i], i, true, true, ElasticRole::peer, -1});
    return group;
  }
  void accept(uint64_t step) {
    seeker.seek(seek_request(layout, ids[0], step, 0), 0);
    seeker.message(ids[4], Descriptor{group(step)}, 0);
    EXPECT_FALSE(seeker.seeking());
    seeker.take_sends();
  }

  std::vector<PeerId> ids;
  Layout layout;
  test::FakeFormationView view;
  GroupSeeker seeker;
};

TEST(GroupSeekerGroups, forwards_a_descriptor_to_a_member_that_lacks_it) {
  Member member;
  member.accept(0);
  member.seeker.message(member.ids[2], GetDescriptor{member.group(0).id}, 0);
  const auto sends = member.seeker.take_sends();
  ASSERT_EQ(sends.size(), 1u);
  EXPECT_EQ(sends[0].to, member.ids[2]);
  EXPECT_EQ(std::get<Descriptor>(sends[0].message).group, member.group(0));
}

TEST(GroupSeekerGroups, forwards_no_descriptor_to_other_peers_and_no_unknown_one) {
  Member member;
  member.accept(0);
  member.seeker.message(member.ids[5], GetDescriptor{member.group(0).id}, 0);
  member.seeker.message(member.ids[2], GetDescriptor{{99, 99}}, 0);
  EXPECT_TRUE(member.seeker.take_sends().empty());
  EXPECT_EQ(member.seeker.counters().ignored, 2u);
}

TEST(GroupSeekerGroups, keeps_the_last_descriptors_only) {
  Member member;
  for (uint64_t step = 0; step < 100; ++step) member.accept(step);
  uint64_t known = 0;
  for (uint64_t step = 0; step < 100; ++step) {
    member.seeker.message(member.ids[2], GetDescriptor{member.group(step).id}, 0);
    known += member.seeker.take_sends().size();
  }
  EXPECT_EQ(known, 32u);
}

TEST(GroupSeekerGroups, requests_an_unknown_groups_descriptor_but_not_with_each_message) {
  Member member;
  const GroupId id{9, 9};
  member.seeker.unknown_group(id, member.ids[1], 0);
  member.seeker.unknown_group(id, member.ids[2], 249 * millisecond);
  auto sends = member.seeker.take_sends();
  ASSERT_EQ(sends.size(), 1u);
  EXPECT_EQ(sends[0].to, member.ids[1]);
  EXPECT_EQ(std::get<GetDescriptor>(sends[0].message).id, id);
  member.seeker.unknown_group(id, member.ids[2], 250 * millisecond);
  EXPECT_EQ(member.seeker.take_sends().size(), 1u);
}

TEST(GroupSeekerGroups, requests_a_bounded_number_of_descriptors_at_once) {
  Member member;
  for (uint64_t i = 0; i < 1000; ++i) member.seeker.unknown_group({i, i}, member.ids[1], 0);
  EXPECT_EQ(member.seeker.take_sends().size(), 64u);
  member.seeker.unknown_group({2000, 1}, member.ids[1], second);
  EXPECT_EQ(member.seeker.take_sends().size(), 1u);
}

TEST(GroupSeekerGroups, reports_the_members_that_declined_an_accepted_group) {
  Member member;
  member.accept(0);
  member.seeker.message(member.ids[1], Decline{member.group(0).id, member.slot(0)}, 0);
  member.seeker.message(member.ids[5], Decline{member.group(0).id, member.slot(0)}, 0);
  const auto declines = member.seeker.take_declines();
  ASSERT_EQ(declines.size(), 1u) << "only members can decline";
  EXPECT_EQ(declines[0].peer, member.ids[1]);
  EXPECT_EQ(declines[0].id, member.group(0).id);
}

TEST(GroupSeekerGroups, keeps_declines_that_arrive_before_their_descriptor) {
  Member member;
  member.seeker.message(member.ids[2], Decline{member.group(0).id, member.slot(0)}, 0);
  EXPECT_TRUE(member.seeker.take_declines().empty());
  member.accept(0);
  const auto declines = member.seeker.take_declines();
  ASSERT_EQ(declines.size(), 1u);
  EXPECT_EQ(declines[0].peer, member.ids[2]);
}

TEST(GroupSeekerGroups, declines_of_unknown_groups_are_kept_in_bounded_number) {
  Member member;
  member.seeker.message(member.ids[2], Decline{member.group(0).id, member.slot(0)}, 0);
  for (uint64_t i = 0; i < 256; ++i) member.seeker.message(member.ids[1], Decline{{i, 1}, member.slot(0)}, 0);
  member.accept(0);
  EXPECT_TRUE(member.seeker.take_declines().empty()) << "the oldest went";
}

TEST(GroupSeekerGroups, messages_for_a_coordinator_are_ignored) {
  Member member;
  member.seeker.message(member.ids[1], Withdraw{member.slot(0), 1}, 0);
  member.seeker.message(member.ids[1], Late{member.slot(0)}, 0);
  EXPECT_EQ(member.seeker.counters().ignored, 2u);
}

TEST(LinePosition, follows_from_the_layout_in_each_round) {
  const auto ids = test::peer_ids(7);
  const auto layout = test::layout_of({ids.begin(), ids.begin() + 6}, 1, {2, 3});
  for (uint32_t round = 0; round < 4; ++round) {
    for (uint32_t rank = 0; rank < 6; ++rank) {
      const auto line_position = position_in(layout, layout.peers[rank], round);
      const bool along_first = round % 2 == 0;
      EXPECT_EQ(line_position,
                (LinePosition{rank, along_first ? rank / 3 : rank % 3, along_first ? rank % 3 : rank / 3, true}));
      const auto line = line_of(layout, round, line_position.line);
      EXPECT_EQ(line.size(), along_first ? 2u : 3u);
      EXPECT_EQ(line[line_position.position], layout.peers[rank]);
    }
    const auto unlisted = position_in(layout, ids[6], round);
    EXPECT_FALSE(unlisted.in_layout);
    EXPECT_EQ(unlisted.cell, mix64(pid64(ids[6])) % 6);
    EXPECT_TRUE(line_of(layout, round, 3).empty());
  }
}

}  // namespace
}  // namespace unisono
