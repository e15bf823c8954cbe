// Tests peers that are late, skip averaging steps, are alone, or have just joined. Checks their averaging steps, the peers that
// wait for them, and the weight of their values.
#include <gtest/gtest.h>

#include <limits>

#include "elastic/roster/roster_messages.h"
#include "sim/elastic/steered_peers_test_support.h"

namespace unisono::sim {

namespace {

const ElasticTimes times;

float mean_of(const std::vector<uint32_t>& who, size_t element) {
  double sum = 0;
  for (const auto index : who) sum += values_of(index, few_elements)[element];
  return static_cast<float>(sum / static_cast<double>(who.size()));
}

bool all_replaced(const FinishedStep& step) {
  return std::ranges::all_of(step.replaced, [](bool one) { return one; });
}

}  // namespace

TEST(MoshpitPeerLate, a_late_peer_pre_registers_for_the_next_step_and_does_not_open_it) {
  SteeredPeers peers(3);
  peers.average({0, 1, 2});
  // Repeated because each averaging step has a different coordinator.
  for (uint64_t missed = 1; missed < 16; missed += 2) {
    peers.average({0, 1});
    ASSERT_TRUE(peers.begin(2).ok());
    peers.run(5 * second);
    EXPECT_TRUE(peers.peer(2).averaging());
    for (uint32_t index = 0; index < 3; ++index) EXPECT_EQ(peers.peer(index).keeper().steps_opened(), missed + 1);
    ASSERT_TRUE(peers.begin(0).ok() && peers.begin(1).ok());
    EXPECT_LE(peers.run_to_end({0, 1, 2}), soon);
    for (uint32_t index = 0; index < 3; ++index) {
      const auto done = peers.take(index);
      EXPECT_EQ(done.report.step, missed + 1);
      EXPECT_TRUE(done.report.exact) << done.report.to_string();
      EXPECT_NEAR(done.values.all()[7], mean_of({0, 1, 2}, 7), 1e-6);
    }
  }
}

// Each averaging step has another coordinator. The peer that is cut off either is the coordinator, or cannot reach it.
TEST(MoshpitPeerLate, a_coordinator_whose_link_is_out_is_waited_for) {
  for (const bool known : {true, false}) {
    SCOPED_TRACE(known ? "the links are known to be out" : "nobody knows that the links are out");
    SteeredPeers peers(3);
    bool cut = false;
    peers.is_out = [&](uint32_t one, uint32_t other) { return known && cut && (one == 0) != (other == 0); };
    int exact = 0;
    constexpr int steps = 12;
    for (int step = 0; step < steps; ++step) {
      cut = true;
      peers.network.cut({0});
      for (const uint32_t index : {0, 1, 2}) ASSERT_TRUE(peers.begin(index).ok());
      peers.run(times.coordinator_timeout + 500 * millisecond);
      cut = false;
      peers.network.heal();
      EXPECT_NE(peers.run_to_end({0, 1, 2}), never);
      bool all = true;
      for (const uint32_t index : {0, 1, 2}) all &= peers.take(index).report.exact;
      exact += all ? 1 : 0;
      peers.run(5 * second);  // nobody is suspected any more
    }
    if (known) EXPECT_EQ(exact, steps);
    else EXPECT_LT(exact, steps) << "this test would not notice if nobody asked whether a link is out";
  }
}

TEST(MoshpitPeerLate, a_late_peer_begins_the_next_step_itself_after_round_timeout) {
  SteeredPeers peers(3);
  peers.average({0, 1, 2});
  peers.average({0, 1});
  ASSERT_TRUE(peers.begin(2).ok());
  const auto took = peers.run_to_end({2}, 60 * second);
  EXPECT_GE(took, times.round_timeout);
  EXPECT_LE(took, times.round_timeout + times.gather_timeout + second);
  const auto done = peers.take(2);
  EXPECT_EQ(done.report.step, 2u);
  ASSERT_EQ(done.report.rounds.size(), 1u);
  EXPECT_EQ(done.report.rounds[0].outcome, "alone");
}

TEST(MoshpitPeerLate, no_peer_waits_for_a_late_peer_in_a_step_that_it_skips) {
  SteeredPeers peers(3);
  peers.average({0, 1, 2});
  ASSERT_TRUE(peers.begin(0).ok() && peers.begin(1).ok());
  peers.run(soon);
  ASSERT_TRUE(peers.peer(0).averaging());
  // A forged message tells peer 2 that some peers are two averaging steps ahead. Peers 0 and 1 do not get it. So only peer 2
  // skips the current step.
  RosterMessage news{
      .run = fnv1a64(peers.settings.run_id), .steps_opened = 4, .body = RosterGossip{.answer = true}, .claims = {}};
  peers.network.send(0, 2, SharedBuffer::copy(encode(news)));
  peers.run(millisecond);
  ASSERT_TRUE(peers.begin(2).ok());
  EXPECT_LE(peers.run_to_end({0, 1}), soon);
  for (const uint32_t index : {0u, 1u}) {
    const auto done = peers.take(index);
    EXPECT_EQ(done.report.step, 1u);
    ASSERT_EQ(done.report.rounds.size(), 1u);
    EXPECT_EQ(done.report.rounds[0].outcome, "averaged");
    EXPECT_EQ(done.report.rounds[0].absent, std::vector<std::string>{"peer 2 (did not take part)"}) << "by its own wish";
    EXPECT_NEAR(done.values.all()[7], mean_of({0, 1}, 7), 1e-6);
  }
}

TEST(MoshpitPeerLate, a_lone_peer_waits_for_lagging_ones_and_does_not_run_ahead) {
  SteeredPeers peers(2);
  peers.average({0, 1});
  for (uint64_t step = 1; step < 4; ++step) {
    ASSERT_TRUE(peers.begin(0).ok());
    EXPECT_GE(peers.run_to_end({0}), times.gather_timeout);
    const auto done = peers.take(0);
    EXPECT_EQ(done.report.step, step);
    EXPECT_EQ(done.report.rounds.at(0).outcome, "alone");
  }
  ASSERT_TRUE(peers.begin(0).ok());
  peers.run(soon);
  ASSERT_TRUE(peers.begin(1).ok());
  EXPECT_LE(peers.run_to_end({0, 1}), soon);
  for (const uint32_t index : {0u, 1u}) {
    const auto done = peers.take(index);
    EXPECT_EQ(done.report.step, 4u);
    EXPECT_TRUE(done.report.exact) << done.report.to_string();
  }
}

TEST(MoshpitPeerNewcomer, takes_the_mean_in_its_first_step_and_contributes_from_the_next_on) {
  SteeredPeers peers(3);
  peers.average({0, 1, 2});
  peers.average({0, 1, 2});
  const auto late = peers.add();
  ASSERT_TRUE(peers.run(5 * second, [&] { return peers.peer(late).ready(); }));
  ASSERT_TRUE(peers.begin(late, std::vector<float>(few_elements, std::numeric_limits<float>::quiet_NaN()), 5).ok());
  peers.run(second);
  EXPECT_TRUE(peers.peer(late).averaging()) << "it opens no averaging step";
  EXPECT_EQ(peers.peer(0).keeper().steps_opened(), 2u);
  for (uint32_t index = 0; index < 3; ++index) ASSERT_TRUE(peers.begin(index).ok());
  EXPECT_LE(peers.run_to_end({0, 1, 2, late}), soon);
  const auto first = peers.take(late), of_others = peers.take(0);
  EXPECT_EQ(first.report.step, 2u);
  EXPECT_FALSE(first.report.exact) << "what it wanted to give is not in";
  EXPECT_TRUE(all_replaced(first));
  EXPECT_EQ(first.values.all(), of_others.values.all());
  EXPECT_EQ(of_others.report.rounds.at(0).total_weight, 3);
  (void)peers.take(1), (void)peers.take(2);

  ASSERT_TRUE(peers.begin(late, std::vector<float>(few_elements, 1), 5).ok());
  for (uint32_t index = 0; index < 3; ++index) ASSERT_TRUE(peers.begin(index, std::vector<float>(few_elements, 0)).ok());
  ASSERT_NE(peers.run_to_end({0, 1, 2, late}), never);
  const auto second_one = peers.take(late);
  EXPECT_FALSE(all_replaced(second_one));
  EXPECT_EQ(second_one.report.rounds.at(0).total_weight, 8);
  EXPECT_EQ(second_one.values.all()[7], 5.0f / 8);
}

TEST(MoshpitPeerNewcomer, values_of_newcomers_count_after_a_round_of_newcomers_only) {
  SteeredPeers peers(2);
  peers.average({0, 1});
  const auto third = peers.add(), fourth = peers.add();
  ASSERT_TRUE(peers.run(5 * second, [&] { return peers.peer(third).ready() && peers.peer(fourth).ready(); }));
  peers.network.kill(0);
  peers.network.kill(1);
  peers.run(second);
  peers.average({third, fourth});  // the layout still contains the dead peers, and each of these two averages alone
  for (const auto& done : peers.average({third, fourth})) {
    EXPECT_EQ(done.report.rounds.at(0).outcome, "void");
    EXPECT_FALSE(done.report.exact);
  }
  for (const auto& done : peers.average({third, fourth})) {
    EXPECT_TRUE(done.report.exact) << done.report.to_string();
    EXPECT_NEAR(done.values.all()[7], mean_of({third, fourth}, 7), 1e-6);
  }
}

}  // namespace unisono::sim
