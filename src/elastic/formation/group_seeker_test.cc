#include "elastic/formation/group_seeker.h"

#include <gtest/gtest.h>

#include "elastic/formation/line_slot.h"
#include "elastic/layout/formation_view_test_support.h"

namespace unisono {
namespace {

using namespace formation;

// One seeker among eight peers, and its messages by kind.
struct Quest {
  Quest()
      : ids(test::peer_ids(8)),
        layout(test::layout_of({ids.begin(), ids.begin() + 6}, 1, {2, 3})),
        seeker({.self = ids[0], .run = "run", .times = times}, view) {
    view.hold(layout);
    view.reachable = ids;
    request = seek_request(layout, ids[0], 4, 1);
    request.weighted = true;
    request.schema = 5;
    request.missing = {ids[3]};
    holders = view.coordinators(slot_key("run", request.slot), request.slot);
  }

  template <typename Body>
  std::vector<std::pair<PeerId, Body>> sent() {
    std::vector<std::pair<PeerId, Body>> found;
    for (auto& send : seeker.take_sends()) {
      if (auto* body = std::get_if<Body>(&send.message)) found.emplace_back(send.to, std::move(*body));
    }
    return found;
  }
  void hear(const PeerId& from, const FormationMessage& message) { seeker.message(from, message, now); }
  void pass(Nanos time) {
    const auto until = now + time;
    while (seeker.next_deadline() <= until) {
      now = std::max(now, seeker.next_deadline());
      seeker.woke(now);
    }
    now = until;
  }
  template <typename Kind>
  std::optional<Kind> ended() {
    auto outcome = seeker.take_outcome();
    if (!outcome || !std::holds_alternative<Kind>(*outcome)) return std::nullopt;
    return std::get<Kind>(*outcome);
  }
  GroupDescriptor group(uint64_t number = 1) const {
    GroupDescriptor group;
    group.id = {number, 0};
    group.slot = request.slot;
    group.chunk_counts = {1, 1, 1};
    group.schema = 5;
    group.highest_opened = 5;
    for (uint32_t i = 0; i < 3; ++i) group.members.push_back({ids[i], i, true, true, ElasticRole::peer, -1});
    return group;
  }

  ElasticTimes times;
  std::vector<PeerId> ids;
  Layout layout;
  test::ViewOfTest view;
  GroupSeeker seeker;
  SeekRequest request;
  std::vector<PeerId> holders;
  Nanos now = 1000 * second;
};

TEST(GroupSeeker, registers_at_the_first_holder) {
  Quest quest;
  quest.seeker.seek(quest.request, quest.now);
  const auto sent = quest.sent<Register>();
  ASSERT_EQ(sent.size(), 1u);
  EXPECT_EQ(sent[0].first, quest.holders[0]);
  const auto& one = sent[0].second;
  EXPECT_EQ(one.slot, quest.request.slot);
  EXPECT_EQ(one.missing, quest.request.missing);
  EXPECT_EQ(one.schema, 5u);
  EXPECT_TRUE(one.weighted && one.in_layout && !one.pre);
}

TEST(GroupSeeker, repeats_until_acknowledged) {
  Quest quest;
  quest.seeker.seek(quest.request, quest.now);
  const auto attempt = quest.sent<Register>()[0].second.attempt;
  quest.pass(quest.times.coordinator_timeout / 2);
  EXPECT_EQ(quest.sent<Register>().size(), 2u);
  quest.hear(quest.holders[0], Pending{quest.request.slot, attempt, 5, 0});
  quest.pass(quest.times.coordinator_timeout / 2 - 1);
  EXPECT_TRUE(quest.sent<Register>().empty());
  quest.pass(1);
  EXPECT_EQ(quest.sent<Register>().size(), 1u) << "and again when the coordinator has missed its signs";
}

TEST(GroupSeeker, goes_on_to_the_next_holder_after_coordinator_timeout_of_silence) {
  Quest quest;
  quest.seeker.seek(quest.request, quest.now);
  quest.pass(quest.times.coordinator_timeout - 1);
  const auto first = quest.sent<Register>().back();
  quest.pass(1);
  const auto sends = quest.seeker.take_sends();
  ASSERT_EQ(sends.size(), 2u);
  EXPECT_EQ(sends[0].to, quest.holders[0]);
  EXPECT_EQ(std::get<Withdraw>(sends[0].message).attempt, first.second.attempt);
  EXPECT_EQ(sends[1].to, quest.holders[1]);
  EXPECT_GT(std::get<Register>(sends[1].message).attempt, first.second.attempt);
}

TEST(GroupSeeker, a_sign_of_an_earlier_attempt_or_of_another_peer_is_none) {
  Quest quest;
  quest.seeker.seek(quest.request, quest.now);
  const auto attempt = quest.sent<Register>()[0].second.attempt;
  quest.pass(quest.times.coordinator_timeout / 2);
  quest.hear(quest.holders[0], Pending{quest.request.slot, attempt - 1, 5, 0});
  quest.hear(quest.holders[1], Pending{quest.request.slot, attempt, 5, 0});
  auto other = quest.request.slot;
  ++other.round;
  quest.hear(quest.holders[0], Pending{other, attempt, 5, 0});
  quest.pass(quest.times.coordinator_timeout / 2);
  EXPECT_EQ(quest.sent<Register>().back().first, quest.holders[1]);
  EXPECT_EQ(quest.seeker.counters().ignored, 3u);
}

TEST(GroupSeeker, ends_without_a_coordinator_after_the_third) {
  Quest quest;
  quest.seeker.seek(quest.request, quest.now);
  quest.pass(3 * quest.times.coordinator_timeout - 1);
  EXPECT_TRUE(quest.seeker.seeking());
  quest.pass(1);
  EXPECT_FALSE(quest.seeker.seeking());
  const auto none = quest.ended<SeekNoCoordinator>();
  ASSERT_TRUE(none.has_value());
  EXPECT_EQ(none->text.find("NO_COORDINATOR: averaging step 4, round 1"), 0u) << none->text;
  EXPECT_EQ(quest.seeker.next_deadline(), never);
}

TEST(GroupSeeker, ends_at_once_where_nobody_keeps_the_slot) {
  Quest quest;
  quest.view.reachable.clear();
  quest.seeker.seek(quest.request, quest.now);
  EXPECT_TRUE(quest.ended<SeekNoCoordinator>().has_value());
}

TEST(GroupSeeker, goes_on_at_once_when_its_coordinator_is_gone) {
  Quest quest;
  quest.seeker.seek(quest.request, quest.now);
  quest.sent<Register>();
  quest.seeker.peer_gone(quest.holders[1], quest.now);
  EXPECT_TRUE(quest.seeker.take_sends().empty()) << "another one's death changes nothing";
  quest.view.dead = {quest.holders[0], quest.holders[1]};
  quest.seeker.peer_gone(quest.holders[0], quest.now);
  const auto sends = quest.seeker.take_sends();
  ASSERT_EQ(sends.size(), 1u) << "nothing is said to the dead";
  EXPECT_EQ(sends[0].to, quest.holders[2]);
}

TEST(GroupSeeker, a_coordinator_that_gives_signs_for_ever_is_left_in_the_end) {
  Quest quest;
  quest.seeker.seek(quest.request, quest.now);
  const auto begun = quest.now;
  uint64_t attempt = quest.sent<Register>()[0].second.attempt;
  while (quest.seeker.seeking() && quest.now < begun + 1000 * second) {
    for (const auto& [to, request] : quest.sent<Register>()) attempt = request.attempt;
    for (const auto& holder : quest.holders) quest.hear(holder, Pending{quest.request.slot, attempt, 5, 0});
    quest.pass(100 * millisecond);
  }
  const auto& times = quest.times;
  EXPECT_LE(quest.now,
            begun + 3 * (times.coordinator_timeout + times.gather_timeout + times.round_timeout) + 100 * millisecond);
  EXPECT_TRUE(quest.ended<SeekNoCoordinator>().has_value());
}

TEST(GroupSeeker, a_process_that_was_stopped_asks_before_it_gives_its_coordinator_up) {
  Quest quest;
  quest.seeker.seek(quest.request, quest.now);
  quest.now += 60 * second;
  quest.sent<Register>();
  quest.seeker.woke(quest.now);
  const auto sent = quest.sent<Register>();
  ASSERT_EQ(sent.size(), 1u);
  EXPECT_EQ(sent[0].first, quest.holders[0]);
  quest.pass(quest.times.coordinator_timeout);
  EXPECT_EQ(quest.sent<Register>().back().first, quest.holders[1]);
}

TEST(GroupSeeker, takes_its_group_and_acknowledges_it) {
  Quest quest;
  quest.seeker.seek(quest.request, quest.now);
  quest.sent<Register>();
  quest.hear(quest.holders[0], Descriptor{quest.group()});
  const auto sends = quest.seeker.take_sends();
  ASSERT_EQ(sends.size(), 1u);
  EXPECT_EQ(sends[0].to, quest.holders[0]);
  EXPECT_EQ(std::get<DescriptorAck>(sends[0].message).id, quest.group().id);
  EXPECT_EQ(quest.ended<GroupDescriptor>(), quest.group());
  EXPECT_EQ(quest.seeker.take_opened(), 4u);
  quest.hear(quest.holders[0], Descriptor{quest.group()});
  EXPECT_EQ(quest.sent<DescriptorAck>().size(), 1u) << "a repeated one is acknowledged and nothing else";
  EXPECT_EQ(quest.seeker.take_outcome(), std::nullopt);
  EXPECT_EQ(quest.seeker.counters().declined, 0u);
}

TEST(GroupSeeker, takes_a_group_from_a_coordinator_that_it_has_left_and_withdraws_at_the_other) {
  Quest quest;
  quest.seeker.seek(quest.request, quest.now);
  quest.pass(quest.times.coordinator_timeout);
  quest.seeker.take_sends();
  quest.hear(quest.holders[0], Descriptor{quest.group()});
  const auto withdrawn = quest.sent<Withdraw>();
  ASSERT_EQ(withdrawn.size(), 1u);
  EXPECT_EQ(withdrawn[0].first, quest.holders[1]);
  EXPECT_TRUE(quest.ended<GroupDescriptor>().has_value());
}

TEST(GroupSeeker, declines_a_second_group_to_its_members) {
  Quest quest;
  quest.seeker.seek(quest.request, quest.now);
  quest.hear(quest.holders[0], Descriptor{quest.group(1)});
  quest.seeker.take_sends();
  quest.hear(quest.holders[1], Descriptor{quest.group(2)});
  const auto declines = quest.sent<Decline>();
  ASSERT_EQ(declines.size(), 2u);
  EXPECT_EQ(declines[0].first, quest.ids[1]);
  EXPECT_EQ(declines[1].first, quest.ids[2]);
  EXPECT_EQ(declines[0].second, (Decline{{2, 0}, quest.request.slot}));
  quest.seeker.unknown_group({2, 0}, quest.ids[1], quest.now);
  EXPECT_EQ(quest.sent<Decline>().size(), 1u) << "and again to one that speaks of it all the same";
}

TEST(GroupSeeker, declines_a_group_when_it_does_not_wait_any_more) {
  for (const bool alone : {false, true}) {
    Quest quest;
    quest.seeker.seek(quest.request, quest.now);
    if (alone) quest.hear(quest.holders[0], Alone{quest.request.slot, false, {}, 5});
    if (!alone) quest.pass(3 * quest.times.coordinator_timeout);
    quest.seeker.take_sends();
    quest.hear(quest.holders[0], Descriptor{quest.group()});
    EXPECT_EQ(quest.sent<Decline>().size(), 2u);
    EXPECT_FALSE(quest.ended<GroupDescriptor>().has_value());
  }
}

TEST(GroupSeeker, declines_a_group_that_averages_something_else) {
  Quest quest;
  quest.seeker.seek(quest.request, quest.now);
  auto group = quest.group();
  group.schema = 6;
  quest.hear(quest.holders[0], Descriptor{group});
  EXPECT_EQ(quest.sent<Decline>().size(), 2u);
}

TEST(GroupSeeker, ignores_a_group_without_itself) {
  Quest quest;
  quest.seeker.seek(quest.request, quest.now);
  quest.seeker.take_sends();
  auto group = quest.group();
  group.members[0].id = quest.ids[5];
  quest.hear(quest.holders[0], Descriptor{group});
  EXPECT_TRUE(quest.seeker.take_sends().empty());
  EXPECT_TRUE(quest.seeker.seeking());
}

TEST(GroupSeeker, a_slot_whose_group_was_declined_here_is_closed) {
  Quest quest;
  quest.seeker.seek(quest.request, quest.now);
  quest.seeker.stop(quest.now);
  quest.hear(quest.holders[0], Descriptor{quest.group()});
  quest.seeker.seek(quest.request, quest.now);
  quest.hear(quest.holders[0], Descriptor{quest.group()});
  EXPECT_TRUE(quest.ended<SeekClosed>().has_value());
}

TEST(GroupSeeker, ends_as_its_coordinator_says) {
  const auto answers = [](const Quest& quest) {
    const auto& slot = quest.request.slot;
    return std::vector<FormationMessage>{Alone{slot, true, {quest.ids[3]}, 9}, Closed{slot, 9, 77}, Full{slot, true, 9},
                                         StaleLayout{slot, 9, quest.layout}};
  };
  for (size_t i = 0; i < 4; ++i) {
    Quest quest;
    quest.seeker.seek(quest.request, quest.now);
    const auto answer = answers(quest)[i];
    quest.hear(quest.holders[1], answer);
    EXPECT_TRUE(quest.seeker.seeking()) << "it has asked another one";
    quest.hear(quest.holders[0], answer);
    EXPECT_FALSE(quest.seeker.seeking());
    EXPECT_EQ(quest.seeker.take_opened(), 8u);
    const auto outcome = quest.seeker.take_outcome();
    ASSERT_TRUE(outcome.has_value());
    if (i == 0) {
      EXPECT_EQ(std::get<SeekAlone>(*outcome).missing, std::vector{quest.ids[3]});
    }
    if (i == 1) {
      EXPECT_EQ(std::get<SeekClosed>(*outcome).since_ms, 77u);
    }
    if (i == 2) {
      EXPECT_TRUE(std::get<SeekFull>(*outcome).other_schema);
    }
    if (i == 3) {
      EXPECT_EQ(std::get<SeekStale>(*outcome).newer, quest.layout);
    }
  }
}

TEST(GroupSeeker, one_that_came_too_late_says_so_to_the_holders_of_the_next_step) {
  Quest quest;
  quest.seeker.seek(quest.request, quest.now);
  quest.seeker.take_sends();
  quest.hear(quest.holders[0], Closed{quest.request.slot, 5, 10});
  auto next = quest.request.slot;
  ++next.step;
  const auto late = quest.sent<Late>();
  const auto holders = quest.view.coordinators(slot_key("run", next), next);
  ASSERT_EQ(late.size(), holders.size());
  for (size_t i = 0; i < late.size(); ++i) {
    EXPECT_EQ(late[i].first, holders[i]);
    EXPECT_EQ(late[i].second.slot, next);
  }
}

TEST(GroupSeeker, says_late_for_the_line_that_a_newer_layout_gives_it) {
  Quest quest;
  const auto newer = test::layout_of(quest.ids, 2, {8}, quest.request.slot.step + 1);
  quest.view.hold(newer);
  quest.seeker.seek(quest.request, quest.now);
  quest.hear(quest.holders[0], Closed{quest.request.slot, 5, 10});
  EXPECT_EQ(quest.sent<Late>()[0].second.slot, slot_in(newer, quest.ids[0], quest.request.slot.step + 1, 1));
}

TEST(GroupSeeker, says_nothing_of_being_late_where_nobody_is_expected_by_name) {
  Quest quest;
  const auto newer = make_layout(
      {.run = "run", .version = 2, .first_step = quest.request.slot.step + 1, .grid = GridKind::chunk_keys, .max_group = 4},
      quest.ids);
  ASSERT_TRUE(newer.ok());
  quest.view.hold(*newer);
  quest.seeker.seek(quest.request, quest.now);
  quest.hear(quest.holders[0], Closed{quest.request.slot, 5, 10});
  EXPECT_TRUE(quest.sent<Late>().empty());
  EXPECT_TRUE(quest.ended<SeekClosed>());
}

TEST(GroupSeeker, sends_a_layout_that_the_coordinator_lacks_and_registers_again_behind_it) {
  Quest quest;
  quest.seeker.seek(quest.request, quest.now);
  quest.seeker.take_sends();
  quest.hear(quest.holders[0], NeedLayout{quest.request.slot});
  const auto sends = quest.seeker.take_sends();
  ASSERT_EQ(sends.size(), 2u);
  EXPECT_EQ(std::get<LayoutReply>(sends[0].message).layout, quest.layout);
  EXPECT_TRUE(std::holds_alternative<Register>(sends[1].message));
  quest.hear(quest.holders[0], NeedLayout{quest.request.slot});
  EXPECT_TRUE(quest.seeker.take_sends().empty()) << "not as fast as the other one asks";
  quest.pass(quest.times.coordinator_timeout);
  EXPECT_EQ(quest.sent<Register>().back().first, quest.holders[1]) << "asking is no sign that it will slot us";
}

TEST(GroupSeeker, an_announcement_is_repeated_until_acknowledged_and_the_quest_goes_on_with_it) {
  Quest quest;
  quest.seeker.pre_register(quest.request, quest.now);
  auto sent = quest.sent<Register>();
  ASSERT_EQ(sent.size(), 1u);
  EXPECT_TRUE(sent[0].second.pre);
  quest.pass(quest.times.coordinator_timeout);
  sent = quest.sent<Register>();
  EXPECT_EQ(sent.back().first, quest.holders[1]) << "the first one is silent";
  quest.hear(quest.holders[1], Pending{quest.request.slot, sent.back().second.attempt, 5, 0});
  EXPECT_EQ(quest.seeker.next_deadline(), never);
  quest.pass(20 * second);
  quest.seeker.seek(quest.request, quest.now);
  const auto sends = quest.seeker.take_sends();
  ASSERT_EQ(sends.size(), 1u) << "nothing is withdrawn";
  EXPECT_EQ(sends[0].to, quest.holders[1]);
  EXPECT_FALSE(std::get<Register>(sends[0].message).pre);
}

TEST(GroupSeeker, an_announcement_that_nobody_heard_leaves_the_quest_all_three_holders) {
  Quest quest;
  quest.seeker.pre_register(quest.request, quest.now);
  quest.pass(10 * second);
  EXPECT_EQ(quest.seeker.next_deadline(), never);
  EXPECT_EQ(quest.seeker.take_outcome(), std::nullopt);
  quest.seeker.take_sends();
  quest.seeker.seek(quest.request, quest.now);
  EXPECT_EQ(quest.sent<Register>()[0].first, quest.holders[0]);
}

TEST(GroupSeeker, an_announcement_for_another_slot_is_withdrawn) {
  Quest quest;
  quest.seeker.pre_register(quest.request, quest.now);
  quest.seeker.take_sends();
  quest.seeker.seek(seek_request(quest.layout, quest.ids[0], 9, 0), quest.now);
  const auto withdrawn = quest.sent<Withdraw>();
  ASSERT_EQ(withdrawn.size(), 1u);
  EXPECT_EQ(withdrawn[0].second.slot, quest.request.slot);
}

TEST(GroupSeeker, an_announcement_follows_when_its_coordinator_is_gone) {
  Quest quest;
  quest.seeker.pre_register(quest.request, quest.now);
  const auto sent = quest.sent<Register>();
  quest.hear(quest.holders[0], Pending{quest.request.slot, sent[0].second.attempt, 5, 0});
  quest.view.dead.insert(quest.holders[0]);
  quest.seeker.peer_gone(quest.holders[0], quest.now);
  const auto again = quest.sent<Register>();
  ASSERT_EQ(again.size(), 1u);
  EXPECT_EQ(again[0].first, quest.holders[1]);
  EXPECT_TRUE(again[0].second.pre);
}

TEST(GroupSeeker, stopping_withdraws) {
  Quest quest;
  quest.seeker.seek(quest.request, quest.now);
  quest.seeker.take_sends();
  quest.seeker.stop(quest.now);
  EXPECT_EQ(quest.sent<Withdraw>().size(), 1u);
  EXPECT_EQ(quest.seeker.next_deadline(), never);
  EXPECT_EQ(quest.seeker.take_outcome(), std::nullopt);
  quest.seeker.stop(quest.now);
  EXPECT_TRUE(quest.seeker.take_sends().empty());
}

}  // namespace
}  // namespace unisono
