// Tests refused requests for averaging steps, cancelled averaging steps, and peers that leave in each phase. A cancelled step
// and a leaving peer must end soon. No other peer may wait for them.
#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "sim/elastic/steered_peers_test_support.h"

namespace unisono::sim {

namespace {

void expect_cancelled_without_a_round(SteeredPeers& peers, uint32_t index) {
  const auto done = peers.take(index);
  EXPECT_TRUE(done.report.rounds.empty());
  EXPECT_EQ(done.report.note, "cancelled");
  EXPECT_FALSE(done.report.exact);
  EXPECT_EQ(done.values.all(), values_of(index, few_elements));
}

}  // namespace

TEST(MoshpitPeerBegin, invalid_input_is_refused_and_begins_no_step) {
  SteeredPeers peers(options_for(2, 4));
  peers.add();
  const auto joiner = peers.add();
  EXPECT_EQ(peers.begin(joiner).code(), Code::unavailable) << "it has not joined";
  ASSERT_TRUE(peers.run(10 * second, [&] { return peers.peer(0).ready() && peers.peer(joiner).ready(); }));
  EXPECT_EQ(peers.begin(0, std::vector<float>(few_elements - 1)).code(), Code::invalid);
  EXPECT_EQ(peers.begin(0, {}).code(), Code::invalid);
  EXPECT_FALSE(peers.peer(0).averaging());
  ASSERT_TRUE(peers.begin(0).ok());
  EXPECT_EQ(peers.begin(0).code(), Code::invalid) << "another one is under way";
  peers.cancel(0);
  EXPECT_EQ(peers.begin(0).code(), Code::invalid) << "its end has not been taken";
  (void)peers.take(0);
  EXPECT_TRUE(peers.begin(0).ok());
  peers.leave(joiner);
  const auto leaving = peers.begin(joiner);
  EXPECT_EQ(leaving.code(), Code::unavailable);
  EXPECT_TRUE(leaving.message().starts_with("SHUTTING_DOWN")) << leaving.message();
}

TEST(MoshpitPeerBegin, a_weight_out_of_range_is_refused) {
  constexpr auto infinity = std::numeric_limits<double>::infinity();
  SteeredPeers peers(2);
  for (const double weight :
       {-1.0, std::nan(""), infinity, 1e308, 1.1e96, 0.9e-96, std::numeric_limits<double>::denorm_min()}) {
    EXPECT_EQ(peers.begin(0, values_of(0, few_elements), weight).code(), Code::invalid) << weight;
  }
  for (const double weight : {1e96, 1e-96}) {
    ASSERT_TRUE(peers.begin(0, std::vector<float>(few_elements, std::numeric_limits<float>::max()), weight).ok());
    ASSERT_TRUE(peers.begin(1, std::vector<float>(few_elements, std::numeric_limits<float>::denorm_min()), weight).ok());
    ASSERT_NE(peers.run_to_end({0, 1}), never);
    for (const uint32_t index : {0u, 1u})
      EXPECT_EQ(peers.take(index).values.all()[7], std::numeric_limits<float>::max() / 2) << weight;
    ASSERT_TRUE(peers.begin(0, std::vector<float>(few_elements, 3 * std::numeric_limits<float>::denorm_min()), weight).ok());
    ASSERT_TRUE(peers.begin(1, std::vector<float>(few_elements, std::numeric_limits<float>::denorm_min()), weight).ok());
    ASSERT_NE(peers.run_to_end({0, 1}), never);
    for (const uint32_t index : {0u, 1u})
      EXPECT_EQ(peers.take(index).values.all()[7], 2 * std::numeric_limits<float>::denorm_min()) << weight;
  }
}

TEST(MoshpitPeerCancel, without_a_layout_the_step_ends_at_once) {
  SteeredPeers peers(options_for(2, 4));
  peers.add();
  peers.run(second);
  ASSERT_TRUE(peers.begin(0).ok());
  peers.run(millisecond);
  ASSERT_TRUE(peers.peer(0).averaging());
  peers.cancel(0);
  EXPECT_FALSE(peers.peer(0).averaging());
  expect_cancelled_without_a_round(peers, 0);
  peers.cancel(0);
  EXPECT_FALSE(peers.peer(0).take_step().has_value()) << "there was none";
}

TEST(MoshpitPeerCancel, no_peer_waits_for_a_cancelled_peer_that_awaits_the_next_step) {
  SteeredPeers peers(3);
  peers.average({0, 1, 2});
  peers.average({0, 1});
  ASSERT_TRUE(peers.begin(2).ok());
  peers.run(second);
  ASSERT_TRUE(peers.peer(2).averaging());
  peers.cancel(2);
  expect_cancelled_without_a_round(peers, 2);
  peers.run(millisecond);
  ASSERT_TRUE(peers.begin(0).ok() && peers.begin(1).ok());
  EXPECT_LE(peers.run_to_end({0, 1}), soon);
}

TEST(MoshpitPeerCancel, a_peer_that_seeks_a_group_ends_at_once_and_withdraws) {
  SteeredPeers peers(2);
  peers.average({0, 1});
  ASSERT_TRUE(peers.begin(0).ok());
  peers.run(soon);
  ASSERT_TRUE(peers.peer(0).averaging());
  peers.cancel(0);
  expect_cancelled_without_a_round(peers, 0);
  peers.run(millisecond);
  ASSERT_TRUE(peers.begin(1).ok());
  EXPECT_LE(peers.run_to_end({1}), soon) << "the other peers are known not to come";
  const auto done = peers.take(1);
  EXPECT_EQ(done.report.step, 1u);
  EXPECT_EQ(done.report.rounds.at(0).outcome, "alone");
}

TEST(MoshpitPeerCancel, a_peer_in_a_round_ends_after_it_and_the_others_do_not_wait_in_the_next) {
  SteeredPeers peers(4, 4, {2, 2});
  for (uint32_t index = 0; index < 4; ++index) ASSERT_TRUE(peers.begin(index).ok());
  ASSERT_TRUE(peers.run(second, [&] { return peers.in_round(0); }));
  peers.cancel(0);
  EXPECT_TRUE(peers.peer(0).averaging());
  EXPECT_LE(peers.run_to_end({0, 1, 2, 3}), soon);
  const auto cancelled = peers.take(0);
  ASSERT_EQ(cancelled.report.rounds.size(), 1u);
  EXPECT_EQ(cancelled.report.rounds[0].outcome, "averaged");
  EXPECT_EQ(cancelled.report.rounds[0].group, 2u);
  EXPECT_EQ(cancelled.report.note, "cancelled");
  EXPECT_FALSE(cancelled.report.exact);
  for (uint32_t index = 1; index < 4; ++index) EXPECT_EQ(peers.take(index).report.rounds.size(), 2u);
}

TEST(MoshpitPeerLeave, a_peer_without_a_step_leaves_at_once_and_the_others_know) {
  SteeredPeers peers(3);
  peers.average({0, 1, 2});
  peers.leave(2);
  EXPECT_TRUE(peers.peer(2).left());
  EXPECT_EQ(peers.peer(2).next_deadline(), never);
  peers.leave(2);
  peers.run(millisecond);
  for (const uint32_t index : {0u, 1u})
    EXPECT_EQ(peers.peer(index).keeper().roster().find(peers.id(2))->status, PeerStatus::left);
  ASSERT_TRUE(peers.begin(0).ok() && peers.begin(1).ok());
  EXPECT_LE(peers.run_to_end({0, 1}), soon);
}

TEST(MoshpitPeerLeave, a_peer_that_has_not_joined_leaves_at_once) {
  SteeredPeers peers(1);
  const auto joiner = peers.add();
  peers.run(50 * microsecond);
  ASSERT_FALSE(peers.peer(joiner).joined());
  peers.leave(joiner);
  EXPECT_TRUE(peers.peer(joiner).left());
  peers.run(5 * second);
  EXPECT_FALSE(peers.peer(joiner).joined());
}

TEST(MoshpitPeerLeave, a_loading_peer_leaves_at_once_and_no_donor_serves_it) {
  auto options = options_for(1, 4);
  options.settings.elements = 1 << 20;
  options.links.bytes_per_second = 1e6;
  SteeredPeers peers(options);
  peers.add();
  ASSERT_TRUE(peers.run(5 * second, [&] { return peers.peer(0).ready(); }));
  peers.average({0});
  const auto joiner = peers.add();
  ASSERT_TRUE(peers.run(5 * second, [&] { return peers.peer(0).status(peers.network.now()).serving == 1; }));
  EXPECT_EQ(peers.peer(joiner).status(peers.network.now()).phase, "loading");
  peers.leave(joiner);
  EXPECT_TRUE(peers.peer(joiner).left());
  peers.run(10 * second);
  EXPECT_EQ(peers.peer(0).status(peers.network.now()).serving, 0u);
}

TEST(MoshpitPeerLeave, a_peer_whose_round_has_not_begun_leaves_at_once_and_the_others_do_not_wait) {
  for (const bool seeking : {false, true}) {
    SteeredPeers peers(3);
    peers.average({0, 1, 2});
    if (!seeking) peers.average({0, 1});
    ASSERT_TRUE(peers.begin(2).ok());
    peers.run(soon);
    ASSERT_TRUE(peers.peer(2).averaging());
    peers.leave(2);
    EXPECT_TRUE(peers.peer(2).left());
    expect_cancelled_without_a_round(peers, 2);
    peers.run(millisecond);
    ASSERT_TRUE(peers.begin(0).ok() && peers.begin(1).ok());
    EXPECT_LE(peers.run_to_end({0, 1}), soon) << seeking;
    EXPECT_EQ(peers.take(0).report.rounds.at(0).outcome, "averaged");
  }
}

TEST(MoshpitPeerLeave, a_peer_in_a_round_leaves_when_the_round_has_ended) {
  SteeredPeers peers(3);
  for (uint32_t index = 0; index < 3; ++index) ASSERT_TRUE(peers.begin(index).ok());
  ASSERT_TRUE(peers.run(second, [&] { return peers.in_round(2); }));
  peers.leave(2);
  EXPECT_FALSE(peers.peer(2).left());
  EXPECT_EQ(peers.peer(2).status(peers.network.now()).phase, "leaving");
  EXPECT_LE(peers.run_to_end({0, 1, 2}), soon);
  EXPECT_TRUE(peers.peer(2).left());
  for (uint32_t index = 0; index < 3; ++index) EXPECT_EQ(peers.take(index).report.rounds.at(0).contributors_min, 3u);
}

TEST(MoshpitPeerLeave, a_round_that_outlasts_leave_grace_continues_without_the_leaver) {
  auto options = options_for(4, 4);
  options.settings.times.leave_grace = 500 * millisecond;
  SteeredPeers peers(options);
  for (uint32_t index = 0; index < 4; ++index) peers.add();
  ASSERT_TRUE(peers.run(10 * second, [&] {
    return peers.peer(0).ready() && peers.peer(1).ready() && peers.peer(2).ready() && peers.peer(3).ready();
  }));
  for (uint32_t index = 0; index < 4; ++index) ASSERT_TRUE(peers.begin(index).ok());
  ASSERT_TRUE(
      peers.run(second, [&] { return peers.in_round(0) && peers.in_round(1) && peers.in_round(2) && peers.in_round(3); }));
  peers.network.stop(3);
  const auto left_at = peers.network.now();
  peers.leave(0);
  ASSERT_TRUE(peers.run(second, [&] { return peers.peer(0).left(); }));
  EXPECT_EQ(peers.network.now(), left_at + 500 * millisecond);
  const auto done = peers.take(0);
  EXPECT_EQ(done.report.rounds.at(0).outcome, "this process left");
  EXPECT_EQ(done.values.all(), values_of(0, few_elements));
  peers.run(second);
  peers.network.go_on(3);
  EXPECT_LE(peers.run_to_end({1, 2, 3}), soon) << "it said so";
  for (uint32_t index = 1; index < 4; ++index) EXPECT_EQ(peers.take(index).report.rounds.at(0).outcome, "averaged") << index;
}

}  // namespace unisono::sim
