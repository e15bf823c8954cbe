#include "elastic/formation/group_seeker.h"

#include <gtest/gtest.h>

#include "elastic/formation/line_slot.h"
#include "elastic/layout/formation_view_test_support.h"

namespace unisono {
namespace {

using namespace formation;

// One seeker among eight peers, and the messages that it sends, sorted by kind.
struct SeekerFixture {
  SeekerFixture()
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
  void deliver(const PeerId& from, const FormationMessage& message) { seeker.message(from, message, now); }
  void advance(Nanos time) {
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
  test::FakeFormationView view;
  GroupSeeker seeker;
  SeekRequest request;
  std::vector<PeerId> holders;
  Nanos now = 1000 * second;
};

TEST(GroupSeeker, registers_at_the_first_holder) {
  SeekerFixture fixture;
  fixture.seeker.seek(fixture.request, fixture.now);
  const auto sent = fixture.sent<Register>();
  ASSERT_EQ(sent.size(), 1u);
  EXPECT_EQ(sent[0].first, fixture.holders[0]);
  const auto& one = sent[0].second;
  EXPECT_EQ(one.slot, fixture.request.slot);
  EXPECT_EQ(one.missing, fixture.request.missing);
  EXPECT_EQ(one.schema, 5u);
  EXPECT_TRUE(one.weighted && one.in_layout && !one.pre);
}

TEST(GroupSeeker, repeats_until_acknowledged) {
  SeekerFixture fixture;
  fixture.seeker.seek(fixture.request, fixture.now);
  const auto attempt = fixture.sent<Register>()[0].second.attempt;
  fixture.advance(fixture.times.coordinator_timeout / 2);
  EXPECT_EQ(fixture.sent<Register>().size(), 2u);
  fixture.deliver(fixture.holders[0], Pending{fixture.request.slot, attempt, 5, 0});
  fixture.advance(fixture.times.coordinator_timeout / 2 - 1);
  EXPECT_TRUE(fixture.sent<Register>().empty());
  fixture.advance(1);
  EXPECT_EQ(fixture.sent<Register>().size(), 1u) << "and again when the coordinator has missed its signs";
}

TEST(GroupSeeker, tries_the_next_holder_after_coordinator_timeout_of_silence) {
  SeekerFixture fixture;
  fixture.seeker.seek(fixture.request, fixture.now);
  fixture.advance(fixture.times.coordinator_timeout - 1);
  const auto first = fixture.sent<Register>().back();
  fixture.advance(1);
  const auto sends = fixture.seeker.take_sends();
  ASSERT_EQ(sends.size(), 2u);
  EXPECT_EQ(sends[0].to, fixture.holders[0]);
  EXPECT_EQ(std::get<Withdraw>(sends[0].message).attempt, first.second.attempt);
  EXPECT_EQ(sends[1].to, fixture.holders[1]);
  EXPECT_GT(std::get<Register>(sends[1].message).attempt, first.second.attempt);
}

TEST(GroupSeeker, waits_for_a_silent_coordinator_whose_link_is_out) {
  SeekerFixture fixture;
  fixture.seeker.seek(fixture.request, fixture.now);
  const auto timeout = fixture.times.coordinator_timeout;
  fixture.advance(timeout - 1);
  EXPECT_EQ(fixture.seeker.silent_coordinator(fixture.now), nullptr);
  fixture.now += 1;
  for (int i = 0; i < 3; ++i) {
    const auto* silent = fixture.seeker.silent_coordinator(fixture.now);
    ASSERT_NE(silent, nullptr);
    EXPECT_EQ(*silent, fixture.holders[0]);
    (void)fixture.seeker.take_sends();
    fixture.seeker.excuse_silence(fixture.now);
    EXPECT_EQ(fixture.sent<Register>().back().first, fixture.holders[0]) << "it is asked again";
    fixture.advance(timeout / 4 - 1);
    fixture.now += 1;
  }
  fixture.seeker.woke(fixture.now);
  EXPECT_EQ(fixture.sent<Register>().back().first, fixture.holders[1]) << "the link is no longer out";
}

TEST(GroupSeeker, ignores_signs_of_life_of_an_earlier_attempt_or_another_peer) {
  SeekerFixture fixture;
  fixture.seeker.seek(fixture.request, fixture.now);
  const auto attempt = fixture.sent<Register>()[0].second.attempt;
  fixture.advance(fixture.times.coordinator_timeout / 2);
  fixture.deliver(fixture.holders[0], Pending{fixture.request.slot, attempt - 1, 5, 0});
  fixture.deliver(fixture.holders[1], Pending{fixture.request.slot, attempt, 5, 0});
  auto other = fixture.request.slot;
  ++other.round;
  fixture.deliver(fixture.holders[0], Pending{other, attempt, 5, 0});
  fixture.advance(fixture.times.coordinator_timeout / 2);
  EXPECT_EQ(fixture.sent<Register>().back().first, fixture.holders[1]);
  EXPECT_EQ(fixture.seeker.counters().ignored, 3u);
}

TEST(GroupSeeker, ends_without_a_coordinator_after_the_third) {
  SeekerFixture fixture;
  fixture.seeker.seek(fixture.request, fixture.now);
  fixture.advance(3 * fixture.times.coordinator_timeout - 1);
  EXPECT_TRUE(fixture.seeker.seeking());
  fixture.advance(1);
  EXPECT_FALSE(fixture.seeker.seeking());
  const auto none = fixture.ended<SeekNoCoordinator>();
  ASSERT_TRUE(none.has_value());
  EXPECT_EQ(none->text.find("NO_COORDINATOR: averaging step 4, round 1"), 0u) << none->text;
  EXPECT_EQ(fixture.seeker.next_deadline(), never);
}

TEST(GroupSeeker, ends_at_once_if_the_slot_has_no_holder) {
  SeekerFixture fixture;
  fixture.view.reachable.clear();
  fixture.seeker.seek(fixture.request, fixture.now);
  EXPECT_TRUE(fixture.ended<SeekNoCoordinator>().has_value());
}

TEST(GroupSeeker, tries_the_next_holder_at_once_if_its_coordinator_is_gone) {
  SeekerFixture fixture;
  fixture.seeker.seek(fixture.request, fixture.now);
  fixture.sent<Register>();
  fixture.seeker.peer_gone(fixture.holders[1], fixture.now);
  EXPECT_TRUE(fixture.seeker.take_sends().empty()) << "another one's death changes nothing";
  fixture.view.dead = {fixture.holders[0], fixture.holders[1]};
  fixture.seeker.peer_gone(fixture.holders[0], fixture.now);
  const auto sends = fixture.seeker.take_sends();
  ASSERT_EQ(sends.size(), 1u) << "nothing is said to the dead";
  EXPECT_EQ(sends[0].to, fixture.holders[2]);
}

TEST(GroupSeeker, a_coordinator_that_only_sends_signs_of_life_is_abandoned_in_the_end) {
  SeekerFixture fixture;
  fixture.seeker.seek(fixture.request, fixture.now);
  const auto begun = fixture.now;
  uint64_t attempt = fixture.sent<Register>()[0].second.attempt;
  while (fixture.seeker.seeking() && fixture.now < begun + 1000 * second) {
    for (const auto& [to, request] : fixture.sent<Register>()) attempt = request.attempt;
    for (const auto& holder : fixture.holders) fixture.deliver(holder, Pending{fixture.request.slot, attempt, 5, 0});
    fixture.advance(100 * millisecond);
  }
  const auto& times = fixture.times;
  EXPECT_LE(fixture.now,
            begun + 3 * (times.coordinator_timeout + times.gather_timeout + times.round_timeout) + 100 * millisecond);
  EXPECT_TRUE(fixture.ended<SeekNoCoordinator>().has_value());
}

TEST(GroupSeeker, a_resumed_process_asks_again_before_it_abandons_its_coordinator) {
  SeekerFixture fixture;
  fixture.seeker.seek(fixture.request, fixture.now);
  fixture.now += 60 * second;
  fixture.sent<Register>();
  fixture.seeker.woke(fixture.now);
  const auto sent = fixture.sent<Register>();
  ASSERT_EQ(sent.size(), 1u);
  EXPECT_EQ(sent[0].first, fixture.holders[0]);
  fixture.advance(fixture.times.coordinator_timeout);
  EXPECT_EQ(fixture.sent<Register>().back().first, fixture.holders[1]);
}

TEST(GroupSeeker, takes_its_group_and_acknowledges_it) {
  SeekerFixture fixture;
  fixture.seeker.seek(fixture.request, fixture.now);
  fixture.sent<Register>();
  fixture.deliver(fixture.holders[0], Descriptor{fixture.group()});
  const auto sends = fixture.seeker.take_sends();
  ASSERT_EQ(sends.size(), 1u);
  EXPECT_EQ(sends[0].to, fixture.holders[0]);
  EXPECT_EQ(std::get<DescriptorAck>(sends[0].message).id, fixture.group().id);
  EXPECT_EQ(fixture.ended<GroupDescriptor>(), fixture.group());
  EXPECT_EQ(fixture.seeker.take_opened(), 4u);
  fixture.deliver(fixture.holders[0], Descriptor{fixture.group()});
  EXPECT_EQ(fixture.sent<DescriptorAck>().size(), 1u) << "a repeated one is acknowledged and nothing else";
  EXPECT_EQ(fixture.seeker.take_outcome(), std::nullopt);
  EXPECT_EQ(fixture.seeker.counters().declined, 0u);
}

TEST(GroupSeeker, takes_a_group_from_a_coordinator_that_it_has_left_and_withdraws_at_the_other) {
  SeekerFixture fixture;
  fixture.seeker.seek(fixture.request, fixture.now);
  fixture.advance(fixture.times.coordinator_timeout);
  fixture.seeker.take_sends();
  fixture.deliver(fixture.holders[0], Descriptor{fixture.group()});
  const auto withdrawn = fixture.sent<Withdraw>();
  ASSERT_EQ(withdrawn.size(), 1u);
  EXPECT_EQ(withdrawn[0].first, fixture.holders[1]);
  EXPECT_TRUE(fixture.ended<GroupDescriptor>().has_value());
}

TEST(GroupSeeker, declines_a_second_group_to_its_members) {
  SeekerFixture fixture;
  fixture.seeker.seek(fixture.request, fixture.now);
  fixture.deliver(fixture.holders[0], Descriptor{fixture.group(1)});
  fixture.seeker.take_sends();
  fixture.deliver(fixture.holders[1], Descriptor{fixture.group(2)});
  const auto declines = fixture.sent<Decline>();
  ASSERT_EQ(declines.size(), 2u);
  EXPECT_EQ(declines[0].first, fixture.ids[1]);
  EXPECT_EQ(declines[1].first, fixture.ids[2]);
  EXPECT_EQ(declines[0].second, (Decline{{2, 0}, fixture.request.slot}));
  fixture.seeker.unknown_group({2, 0}, fixture.ids[1], fixture.now);
  EXPECT_EQ(fixture.sent<Decline>().size(), 1u) << "and again to one that speaks of it all the same";
}

TEST(GroupSeeker, declines_a_group_after_its_request_has_ended) {
  for (const bool alone : {false, true}) {
    SeekerFixture fixture;
    fixture.seeker.seek(fixture.request, fixture.now);
    if (alone) fixture.deliver(fixture.holders[0], Alone{fixture.request.slot, false, {}, 5});
    if (!alone) fixture.advance(3 * fixture.times.coordinator_timeout);
    fixture.seeker.take_sends();
    fixture.deliver(fixture.holders[0], Descriptor{fixture.group()});
    EXPECT_EQ(fixture.sent<Decline>().size(), 2u);
    EXPECT_FALSE(fixture.ended<GroupDescriptor>().has_value());
  }
}

TEST(GroupSeeker, declines_a_group_of_another_schema) {
  SeekerFixture fixture;
  fixture.seeker.seek(fixture.request, fixture.now);
  auto group = fixture.group();
  group.schema = 6;
  fixture.deliver(fixture.holders[0], Descriptor{group});
  EXPECT_EQ(fixture.sent<Decline>().size(), 2u);
}

TEST(GroupSeeker, ignores_a_group_without_itself) {
  SeekerFixture fixture;
  fixture.seeker.seek(fixture.request, fixture.now);
  fixture.seeker.take_sends();
  auto group = fixture.group();
  group.members[0].id = fixture.ids[5];
  fixture.deliver(fixture.holders[0], Descriptor{group});
  EXPECT_TRUE(fixture.seeker.take_sends().empty());
  EXPECT_TRUE(fixture.seeker.seeking());
}

TEST(GroupSeeker, a_slot_whose_group_was_declined_here_is_closed) {
  SeekerFixture fixture;
  fixture.seeker.seek(fixture.request, fixture.now);
  fixture.seeker.stop(fixture.now);
  fixture.deliver(fixture.holders[0], Descriptor{fixture.group()});
  fixture.seeker.seek(fixture.request, fixture.now);
  fixture.deliver(fixture.holders[0], Descriptor{fixture.group()});
  EXPECT_TRUE(fixture.ended<SeekClosed>().has_value());
}

TEST(GroupSeeker, ends_with_the_answer_of_its_coordinator) {
  const auto answers = [](const SeekerFixture& fixture) {
    const auto& slot = fixture.request.slot;
    return std::vector<FormationMessage>{Alone{slot, true, {fixture.ids[3]}, 9}, Closed{slot, 9, 77}, Full{slot, true, 9},
                                         StaleLayout{slot, 9, fixture.layout}};
  };
  for (size_t i = 0; i < 4; ++i) {
    SeekerFixture fixture;
    fixture.seeker.seek(fixture.request, fixture.now);
    const auto answer = answers(fixture)[i];
    fixture.deliver(fixture.holders[1], answer);
    EXPECT_TRUE(fixture.seeker.seeking()) << "it has asked another one";
    fixture.deliver(fixture.holders[0], answer);
    EXPECT_FALSE(fixture.seeker.seeking());
    EXPECT_EQ(fixture.seeker.take_opened(), 8u);
    const auto outcome = fixture.seeker.take_outcome();
    ASSERT_TRUE(outcome.has_value());
    if (i == 0) {
      EXPECT_EQ(std::get<SeekAlone>(*outcome).missing, std::vector{fixture.ids[3]});
    }
    if (i == 1) {
      EXPECT_EQ(std::get<SeekClosed>(*outcome).since_ms, 77u);
    }
    if (i == 2) {
      EXPECT_TRUE(std::get<SeekFull>(*outcome).other_schema);
    }
    if (i == 3) {
      EXPECT_EQ(std::get<SeekStale>(*outcome).newer, fixture.layout);
    }
  }
}

TEST(GroupSeeker, sends_late_to_the_holders_of_the_next_step_if_it_came_too_late) {
  SeekerFixture fixture;
  fixture.seeker.seek(fixture.request, fixture.now);
  fixture.seeker.take_sends();
  fixture.deliver(fixture.holders[0], Closed{fixture.request.slot, 5, 10});
  auto next = fixture.request.slot;
  ++next.step;
  const auto late = fixture.sent<Late>();
  const auto holders = fixture.view.coordinators(slot_key("run", next), next);
  ASSERT_EQ(late.size(), holders.size());
  for (size_t i = 0; i < late.size(); ++i) {
    EXPECT_EQ(late[i].first, holders[i]);
    EXPECT_EQ(late[i].second.slot, next);
  }
}

TEST(GroupSeeker, sends_late_for_its_line_in_a_newer_layout) {
  SeekerFixture fixture;
  const auto newer = test::layout_of(fixture.ids, 2, {8}, fixture.request.slot.step + 1);
  fixture.view.hold(newer);
  fixture.seeker.seek(fixture.request, fixture.now);
  fixture.deliver(fixture.holders[0], Closed{fixture.request.slot, 5, 10});
  EXPECT_EQ(fixture.sent<Late>()[0].second.slot, slot_in(newer, fixture.ids[0], fixture.request.slot.step + 1, 1));
}

TEST(GroupSeeker, sends_no_late_under_a_layout_with_keys) {
  SeekerFixture fixture;
  const auto newer = make_layout(
      {.run = "run", .version = 2, .first_step = fixture.request.slot.step + 1, .grid = GridKind::chunk_keys, .max_group = 4},
      fixture.ids);
  ASSERT_TRUE(newer.ok());
  fixture.view.hold(*newer);
  fixture.seeker.seek(fixture.request, fixture.now);
  fixture.deliver(fixture.holders[0], Closed{fixture.request.slot, 5, 10});
  EXPECT_TRUE(fixture.sent<Late>().empty());
  EXPECT_TRUE(fixture.ended<SeekClosed>());
}

TEST(GroupSeeker, sends_a_layout_that_the_coordinator_lacks_and_registers_again_behind_it) {
  SeekerFixture fixture;
  fixture.seeker.seek(fixture.request, fixture.now);
  fixture.seeker.take_sends();
  fixture.deliver(fixture.holders[0], NeedLayout{fixture.request.slot});
  const auto sends = fixture.seeker.take_sends();
  ASSERT_EQ(sends.size(), 2u);
  EXPECT_EQ(std::get<LayoutReply>(sends[0].message).layout, fixture.layout);
  EXPECT_TRUE(std::holds_alternative<Register>(sends[1].message));
  fixture.deliver(fixture.holders[0], NeedLayout{fixture.request.slot});
  EXPECT_TRUE(fixture.seeker.take_sends().empty()) << "not as fast as the other one asks";
  fixture.advance(fixture.times.coordinator_timeout);
  EXPECT_EQ(fixture.sent<Register>().back().first, fixture.holders[1]) << "asking is no sign that it will slot us";
}

TEST(GroupSeeker, a_pre_registration_is_repeated_until_acknowledged_and_seek_continues_with_it) {
  SeekerFixture fixture;
  fixture.seeker.pre_register(fixture.request, fixture.now);
  auto sent = fixture.sent<Register>();
  ASSERT_EQ(sent.size(), 1u);
  EXPECT_TRUE(sent[0].second.pre);
  fixture.advance(fixture.times.coordinator_timeout);
  sent = fixture.sent<Register>();
  EXPECT_EQ(sent.back().first, fixture.holders[1]) << "the first one is silent";
  fixture.deliver(fixture.holders[1], Pending{fixture.request.slot, sent.back().second.attempt, 5, 0});
  EXPECT_EQ(fixture.seeker.next_deadline(), never);
  fixture.advance(20 * second);
  fixture.seeker.seek(fixture.request, fixture.now);
  const auto sends = fixture.seeker.take_sends();
  ASSERT_EQ(sends.size(), 1u) << "nothing is withdrawn";
  EXPECT_EQ(sends[0].to, fixture.holders[1]);
  EXPECT_FALSE(std::get<Register>(sends[0].message).pre);
}

TEST(GroupSeeker, an_unanswered_pre_registration_leaves_seek_all_three_holders) {
  SeekerFixture fixture;
  fixture.seeker.pre_register(fixture.request, fixture.now);
  fixture.advance(10 * second);
  EXPECT_EQ(fixture.seeker.next_deadline(), never);
  EXPECT_EQ(fixture.seeker.take_outcome(), std::nullopt);
  fixture.seeker.take_sends();
  fixture.seeker.seek(fixture.request, fixture.now);
  EXPECT_EQ(fixture.sent<Register>()[0].first, fixture.holders[0]);
}

TEST(GroupSeeker, a_pre_registration_for_another_slot_is_withdrawn) {
  SeekerFixture fixture;
  fixture.seeker.pre_register(fixture.request, fixture.now);
  fixture.seeker.take_sends();
  fixture.seeker.seek(seek_request(fixture.layout, fixture.ids[0], 9, 0), fixture.now);
  const auto withdrawn = fixture.sent<Withdraw>();
  ASSERT_EQ(withdrawn.size(), 1u);
  EXPECT_EQ(withdrawn[0].second.slot, fixture.request.slot);
}

TEST(GroupSeeker, a_pre_registration_moves_to_the_next_holder_if_its_coordinator_is_gone) {
  SeekerFixture fixture;
  fixture.seeker.pre_register(fixture.request, fixture.now);
  const auto sent = fixture.sent<Register>();
  fixture.deliver(fixture.holders[0], Pending{fixture.request.slot, sent[0].second.attempt, 5, 0});
  fixture.view.dead.insert(fixture.holders[0]);
  fixture.seeker.peer_gone(fixture.holders[0], fixture.now);
  const auto again = fixture.sent<Register>();
  ASSERT_EQ(again.size(), 1u);
  EXPECT_EQ(again[0].first, fixture.holders[1]);
  EXPECT_TRUE(again[0].second.pre);
}

TEST(GroupSeeker, stopping_withdraws) {
  SeekerFixture fixture;
  fixture.seeker.seek(fixture.request, fixture.now);
  fixture.seeker.take_sends();
  fixture.seeker.stop(fixture.now);
  EXPECT_EQ(fixture.sent<Withdraw>().size(), 1u);
  EXPECT_EQ(fixture.seeker.next_deadline(), never);
  EXPECT_EQ(fixture.seeker.take_outcome(), std::nullopt);
  fixture.seeker.stop(fixture.now);
  EXPECT_TRUE(fixture.seeker.take_sends().empty());
}

}  // namespace
}  // namespace unisono
