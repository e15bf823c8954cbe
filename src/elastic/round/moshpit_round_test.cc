#include "elastic/round/moshpit_round.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <optional>

#include "elastic/round/round_test_support.h"
#include "wire/digest.h"

namespace unisono {
namespace {

using test::Fate;
using test::line_of;
using test::RoundGroup;
using test::RoundGroupOptions;

constexpr float nan = std::numeric_limits<float>::quiet_NaN();

// Returns a group with one element, hence one chunk, which rank 0 owns.
RoundGroupOptions single(std::vector<RoundMember> members, const std::vector<float>& x,
                         const std::vector<double>& weights = {}) {
  RoundGroupOptions options{.members = std::move(members), .chunk_counts = {}, .table = ChunkTable(1, 32), .x = {}};
  options.chunk_counts.assign(x.size(), 0);
  options.chunk_counts[0] = 1;
  for (const float value : x) options.x.push_back({value});
  for (const double weight : weights) options.states.push_back({{.weight = weight}});
  return options;
}

// Returns a group whose chunks are spread evenly over the owners. Element i at member r is 10·r + (i mod 1000).
RoundGroupOptions spread(uint32_t members, size_t elements, uint32_t max_group = 4) {
  RoundGroupOptions options{.members = line_of(members), .chunk_counts = {}, .table = ChunkTable(elements, max_group), .x = {}};
  for (uint32_t rank = 0; rank < members; ++rank) {
    options.chunk_counts.push_back(options.table.chunks() * (rank + 1) / members - options.table.chunks() * rank / members);
    std::vector<float> x(elements);
    for (size_t i = 0; i < elements; ++i) x[i] = static_cast<float>(10 * rank) + static_cast<float>(i % 1000);
    options.x.push_back(std::move(x));
  }
  return options;
}

// Five peers of a 2×2 grid, whose values go through the two rounds of an averaging step. Peers 0 and 4 are in the same cell.
struct Step {
  std::vector<float> x{1, 2, 3, 4, 10};
  std::vector<ChunkState> states = std::vector<ChunkState>(5);

  void average(const std::vector<uint32_t>& peers, const std::vector<uint32_t>& positions, bool complete = true) {
    std::vector<RoundMember> members;
    std::vector<float> values;
    for (size_t i = 0; i < peers.size(); ++i) {
      members.push_back({.position = positions[i], .in_layout = true});
      values.push_back(x[peers[i]]);
    }
    auto options = single(members, values);
    options.line_complete = complete;
    for (const auto peer : peers) options.states.push_back({states[peer]});
    RoundGroup group(std::move(options));
    group.run();
    for (uint32_t i = 0; i < peers.size(); ++i) {
      x[peers[i]] = group.x(i)[0];
      states[peers[i]] = group.states(i)[0];
    }
  }
  void expect(const std::vector<double>& values, const std::vector<double>& weights) const {
    for (size_t i = 0; i < 5; ++i) {
      EXPECT_NEAR(x[i], values[i], 1e-6) << "peer " << i;
      if (!weights.empty()) {
        EXPECT_NEAR(states[i].weight, weights[i], 1e-12) << "peer " << i;
      }
    }
  }
  double mass() const {
    double sum = 0;
    for (size_t i = 0; i < 5; ++i) sum += states[i].weight * x[i];
    return sum;
  }
};

// The values specified by checks A12 and A25 of docs/design/methods/moshpit.md.
TEST(MoshpitRoundA12, two_rounds_give_every_member_the_mean) {
  Step step;
  step.average({0, 2, 4}, {0, 1, 0});
  step.average({1, 3}, {0, 1});
  step.expect({14. / 3, 3, 14. / 3, 3, 14. / 3}, {.75, 1, 1.5, 1, .75});
  EXPECT_NEAR(step.mass(), 20, 1e-5);
  step.average({0, 1, 4}, {0, 1, 0});
  step.average({2, 3}, {0, 1});
  step.expect({4, 4, 4, 4, 4}, {.625, 1.25, 1.25, 1.25, .625});
  for (const auto& state : step.states) EXPECT_TRUE(state.full);
}

TEST(MoshpitRoundA12, an_absent_peer_keeps_its_mass) {
  Step step;
  step.average({0, 2, 4}, {0, 1, 0});
  // Peer 1 missed the first round, so its partner, peer 3, was alone.
  for (const uint32_t peer : {1, 3}) step.states[peer].full = false;
  step.expect({14. / 3, 2, 14. / 3, 4, 14. / 3}, {});
  step.average({0, 1, 4}, {0, 1, 0});
  step.average({2, 3}, {0, 1});
  step.expect({3.6, 3.6, 4.4, 4.4, 3.6}, {});
  EXPECT_NEAR(step.mass(), 20, 1e-5);
  for (const auto& state : step.states) EXPECT_FALSE(state.full);
}

// Four members; rank c owns chunk c. All elements of chunk c at member i are 10 i + c.
struct FourOwners {
  static constexpr size_t chunk = 256;
  explicit FourOwners(RoundGroup::Filter filter) {
    RoundGroupOptions options{.members = line_of(4), .chunk_counts = {1, 1, 1, 1}, .table = ChunkTable(4 * chunk, 4), .x = {}};
    for (uint32_t rank = 0; rank < 4; ++rank) {
      std::vector<float> x(4 * chunk);
      for (size_t i = 0; i < x.size(); ++i) x[i] = static_cast<float>(10 * rank + i / chunk);
      options.x.push_back(std::move(x));
    }
    group.emplace(std::move(options));
    group->filter(std::move(filter));
    group->run();
  }
  void expect(uint32_t rank, const std::vector<double>& values) const {
    for (size_t i = 0; i < 4 * chunk; ++i)
      ASSERT_NEAR(group->x(rank)[i], values[i / chunk], 1e-6) << "rank " << rank << ", chunk " << i / chunk;
  }
  std::optional<RoundGroup> group;
};

template <typename Message>
const Message* from_rank_2(uint32_t from, const RoundMessage& message) {
  return from == 2 ? std::get_if<Message>(&message) : nullptr;
}

TEST(MoshpitRoundA25, a_dies_before_contributing) {
  FourOwners four([](uint32_t from, uint32_t, const RoundMessage&) { return from == 2 ? Fate::sender_dies : Fate::arrives; });
  for (const uint32_t rank : {0, 1, 3}) {
    four.expect(rank, {40. / 3, 40. / 3 + 1, 10. * rank + 2, 40. / 3 + 3});
    const auto& report = four.group->report(rank);
    EXPECT_EQ(report.committed, 3u);
    EXPECT_EQ(report.voided, 1u);
    EXPECT_EQ(report.problem, "");
    EXPECT_EQ(report.absent, (std::vector<AbsentMember>{{2, "dead, contributed to 0 of 3 chunks"}}));
    EXPECT_EQ(report.contributors_max, 3u);
    EXPECT_FALSE(four.group->states(rank)[0].full);
    EXPECT_EQ(four.group->states(rank)[2], (ChunkState{.weight = 1, .full = false, .sharers = 1}));
  }
}

TEST(MoshpitRoundA25, b_dies_after_contributing_without_a_result) {
  FourOwners four([](uint32_t from, uint32_t, const RoundMessage& message) {
    return from == 2 && !std::holds_alternative<Contribution>(message) ? Fate::sender_dies : Fate::arrives;
  });
  for (const uint32_t rank : {0, 1, 3}) {
    four.expect(rank, {15, 16, 10. * rank + 2, 18});
    EXPECT_TRUE(four.group->states(rank)[0].full);
  }
}

TEST(MoshpitRoundA25, c_dies_after_giving_its_result_to_one) {
  FourOwners four([](uint32_t from, uint32_t to, const RoundMessage& message) {
    if (from_rank_2<Contribution>(from, message) != nullptr || from != 2) return Fate::arrives;
    if (from_rank_2<ChunkResult>(from, message) == nullptr) return Fate::sender_dies;
    return to == 0 ? Fate::arrives : Fate::lost;
  });
  for (const uint32_t rank : {0, 1, 3}) {
    four.expect(rank, {15, 16, 17, 18});
    EXPECT_EQ(four.group->report(rank).committed, 4u);
  }
}

TEST(MoshpitRoundA25, d_dies_after_one_contribution) {
  FourOwners four([](uint32_t from, uint32_t to, const RoundMessage& message) {
    if (from != 2) return Fate::arrives;
    if (from_rank_2<Contribution>(from, message) == nullptr) return Fate::sender_dies;
    return to == 0 ? Fate::arrives : Fate::lost;
  });
  for (const uint32_t rank : {0, 1, 3}) {
    four.expect(rank, {15, 40. / 3 + 1, 10. * rank + 2, 40. / 3 + 3});
    EXPECT_EQ(four.group->report(rank).absent, (std::vector<AbsentMember>{{2, "dead, contributed to 1 of 3 chunks"}}));
  }
}

TEST(MoshpitRound, every_group_size_ends_with_the_mean_everywhere) {
  for (uint32_t members = 2; members <= 7; ++members) {
    RoundGroup group(spread(members, 5000));
    group.run();
    for (uint32_t rank = 0; rank < members; ++rank) {
      const auto& report = group.report(rank);
      EXPECT_EQ(report.committed, 16u);
      EXPECT_EQ(report.contributors_min, members);
      EXPECT_DOUBLE_EQ(report.total_weight, members);
      EXPECT_DOUBLE_EQ(report.contributors_mean, members);
      EXPECT_EQ(report.absent, std::vector<AbsentMember>{});
      EXPECT_EQ(report.ignored, 0u);
      EXPECT_NEAR(report.variance, 100. * (members * members - 1) / 12, 1e-3);
      for (size_t i = 0; i < 5000; ++i)
        ASSERT_FLOAT_EQ(group.x(rank)[i], static_cast<float>(5. * (members - 1) + static_cast<double>(i % 1000)));
      EXPECT_EQ(group.x(rank), group.x(0));
      for (const auto& state : group.states(rank)) EXPECT_EQ(state, (ChunkState{.weight = 1, .full = true, .sharers = 1}));
    }
  }
}

TEST(MoshpitRound, a_vector_without_elements_is_done_at_once) {
  RoundGroup group(spread(3, 0));
  group.run();
  EXPECT_EQ(group.messages(), 0u);
  EXPECT_EQ(group.report(0).problem, "");
}

TEST(MoshpitRound, one_chunk_is_averaged_by_its_owner) {
  RoundGroup group(single(line_of(3), {1, 2, 6}));
  group.run();
  for (uint32_t rank = 0; rank < 3; ++rank) EXPECT_EQ(group.x(rank)[0], 3);
}

TEST(MoshpitRound, two_at_one_position_share_its_part_of_the_weight) {
  RoundGroup group(
      single({{.position = 0, .in_layout = true}, {.position = 1, .in_layout = true}, {.position = 0, .in_layout = true}},
             {1, 2, 3}, {1, 2, 3}));
  group.run();
  EXPECT_EQ(group.states(0)[0], (ChunkState{.weight = 1.5, .full = true, .sharers = 2}));
  EXPECT_EQ(group.states(1)[0], (ChunkState{.weight = 3, .full = true, .sharers = 1}));
  EXPECT_EQ(group.states(2)[0], (ChunkState{.weight = 1.5, .full = true, .sharers = 2}));
}

TEST(MoshpitRound, a_member_without_weight_takes_the_mean_whatever_it_held) {
  RoundGroup group(single(line_of(3), {1, nan, 3}, {1, 0, 1}));
  group.run();
  for (uint32_t rank = 0; rank < 3; ++rank) {
    EXPECT_EQ(group.x(rank)[0], 2);
    EXPECT_DOUBLE_EQ(group.states(rank)[0].weight, 2. / 3);
  }
}

TEST(MoshpitRound, an_owner_without_weight_takes_the_mean_too) {
  RoundGroup group(single(line_of(3), {nan, 1, 3}, {0, 1, 1}));
  group.run();
  EXPECT_EQ(group.x(0)[0], 2);
}

TEST(MoshpitRound, nothing_changes_if_no_member_has_weight) {
  RoundGroup group(single(line_of(2), {1, 2}, {0, 0}));
  group.run();
  EXPECT_EQ(group.x(0)[0], 1);
  EXPECT_EQ(group.x(1)[0], 2);
  EXPECT_EQ(group.states(0)[0], (ChunkState{.weight = 0, .full = false, .sharers = 1}));
  EXPECT_EQ(group.report(0).voided, 1u);
}

TEST(MoshpitRound, weights_of_any_size_leave_finite_values_and_weights) {
  constexpr auto largest = std::numeric_limits<float>::max();
  const double weights[] = {0, std::numeric_limits<double>::denorm_min(), 1e-308, 1e-100, 1, contribution_weight_max};
  const float values[] = {0, std::numeric_limits<float>::denorm_min(), 1, largest, -largest};
  Random random(1);
  for (int trial = 0; trial < 200; ++trial) {
    std::vector<RoundMember> members;
    std::vector<float> x;
    std::vector<double> w;
    for (uint32_t rank = 0; rank < 6; ++rank) {
      members.push_back({.position = static_cast<uint32_t>(random.below(3)), .in_layout = true});
      x.push_back(values[random.below(std::size(values))]);
      w.push_back(weights[random.below(std::size(weights))]);
    }
    RoundGroup group(single(members, x, w));
    group.run();
    for (uint32_t rank = 0; rank < 6; ++rank) {
      ASSERT_TRUE(std::isfinite(group.x(rank)[0])) << "trial " << trial;
      ASSERT_TRUE(std::isfinite(group.states(rank)[0].weight) && group.states(rank)[0].weight >= 0) << "trial " << trial;
    }
  }
}

TEST(MoshpitRound, impossible_weights_are_ignored) {
  for (const double weight : {contribution_weight_max * 1.1, 1e308, std::numeric_limits<double>::infinity()}) {
    RoundGroup group(single(line_of(3), {1, 2, 6}));
    group.start();
    group.inject(1, 0, contribution_message(group.format(), {.chunk = 0, .author = 1, .weight = weight, .full = true}));
    ChunkResult forged;
    forged.author = 0;
    forged.contributors = 7;
    forged.total = weight * round_members_max;
    auto result = result_message(group.format(), forged);
    forged.digest = digest64(result_elements(result));
    write_result_head(group.format(), forged, result);
    group.inject(0, 2, result);
    EXPECT_EQ(group.report(0).ignored, 1u);
    EXPECT_EQ(group.report(2).ignored, 1u);
    group.run_until(second);
    for (uint32_t rank = 0; rank < 3; ++rank) {
      EXPECT_EQ(group.x(rank)[0], 3);
      EXPECT_EQ(group.states(rank)[0].weight, 1);
    }
  }
}

TEST(MoshpitRound, with_encoded_elements_all_end_with_the_same_bits) {
  auto options = spread(5, 70000);
  options.contribute = options.result =
      wire_codec({.kind = StepCodec::Kind::quantize, .bits = 8}, DType::f32, DType::f32, false);
  RoundGroup group(std::move(options));
  group.run();
  for (uint32_t rank = 0; rank < 5; ++rank) {
    EXPECT_EQ(group.x(rank), group.x(0));
    EXPECT_EQ(group.report(rank).committed, 16u);
    EXPECT_LT(group.report(rank).sent_bytes, 70000u * 2 * 2);
  }
  for (size_t i = 0; i < 70000; ++i) ASSERT_NEAR(group.x(0)[i], 20 + static_cast<double>(i % 1000), 5);
}

// The codec rounds 1.001 to 1. If the owner left its own values unencoded, the mean would not be 1.
TEST(MoshpitRound, an_owners_own_values_pass_the_codec_as_well) {
  auto options = single(line_of(2), {1.001f, 1.001f});
  options.contribute = wire_codec({.kind = StepCodec::Kind::bf16}, DType::f32, DType::f32, false);
  RoundGroup group(std::move(options));
  group.run();
  EXPECT_EQ(group.x(0)[0], 1);
  EXPECT_EQ(group.x(1)[0], 1);
}

TEST(MoshpitRound, results_alone_may_be_encoded) {
  auto options = spread(3, 3000);
  options.result = wire_codec({.kind = StepCodec::Kind::f16}, DType::f32, DType::f32, false);
  RoundGroup group(std::move(options));
  group.run();
  for (uint32_t rank = 0; rank < 3; ++rank) EXPECT_EQ(group.x(rank), group.x(0));
  EXPECT_EQ(group.x(0)[5], 15);
}

TEST(MoshpitRound, clients_own_nothing_and_all_decide) {
  auto options = spread(5, 5000);
  options.members[1].role = options.members[4].role = ElasticRole::client;
  options.chunk_counts = {6, 0, 5, 5, 0};
  RoundGroup group(std::move(options));
  group.filter([](uint32_t from, uint32_t to, const RoundMessage&) {
    EXPECT_FALSE((from == 1 && to == 4) || (from == 4 && to == 1)) << "clients cannot reach each other";
    return Fate::arrives;
  });
  group.run();
  for (uint32_t rank = 0; rank < 5; ++rank) {
    EXPECT_EQ(group.report(rank).committed, 16u);
    EXPECT_EQ(group.x(rank), group.x(0));
  }
}

TEST(MoshpitRound, a_reducer_adds_up_but_contributes_nothing) {
  auto options = spread(4, 5000);
  options.members[2] = {.position = 2, .role = ElasticRole::reducer, .in_layout = false};
  options.chunk_counts = {2, 2, 10, 2};
  options.x[2].clear();
  RoundGroup group(std::move(options));
  group.run();
  for (const uint32_t rank : {0, 1, 3}) {
    EXPECT_EQ(group.report(rank).contributors_max, 3u);
    EXPECT_FLOAT_EQ(group.x(rank)[7], 7 + 40.f / 3);
    EXPECT_TRUE(group.states(rank)[3].full);
  }
  EXPECT_EQ(group.report(2).committed, 16u);
}

TEST(MoshpitRound, without_a_verdict_it_ends_two_delays_after_the_last_contribution) {
  auto options = spread(4, 5000);
  options.commit = CommitRule::per_result;
  options.delay_min = options.delay_max = 40 * millisecond;
  RoundGroup group(std::move(options));
  group.run();
  for (uint32_t rank = 0; rank < 4; ++rank) {
    EXPECT_EQ(group.report(rank).committed, 16u);
    EXPECT_EQ(group.ended_at(rank), 80 * millisecond);
    EXPECT_EQ(group.x(rank), group.x(0));
  }
}

TEST(MoshpitRound, a_verdict_takes_three_delays_more) {
  auto options = spread(4, 5000);
  options.delay_min = options.delay_max = 40 * millisecond;
  RoundGroup group(std::move(options));
  group.run();
  for (uint32_t rank = 0; rank < 4; ++rank) {
    EXPECT_EQ(group.ended_at(rank), 200 * millisecond);
    EXPECT_EQ(group.report(rank).verdict, 120 * millisecond);
    EXPECT_EQ(group.report(rank).contribute + group.report(rank).result, 80 * millisecond);
  }
}

TEST(MoshpitRound, a_value_lacks_a_peer_if_the_line_is_not_complete) {
  auto options = single(line_of(2), {1, 3});
  options.line_complete = false;
  RoundGroup group(std::move(options));
  group.run();
  EXPECT_EQ(group.x(0)[0], 2);
  EXPECT_FALSE(group.states(0)[0].full);
}

TEST(MoshpitRound, a_value_lacks_a_peer_if_a_contribution_did) {
  auto options = single(line_of(2), {1, 3});
  options.states = {{{}}, {{.full = false}}};
  RoundGroup group(std::move(options));
  group.run();
  EXPECT_FALSE(group.states(0)[0].full);
}

TEST(MoshpitRound, a_value_lacks_a_peer_if_a_sharer_of_its_cell_is_missing) {
  auto options = single(line_of(2), {1, 3});
  options.states = {{{.sharers = 2}}, {{}}};
  RoundGroup group(std::move(options));
  group.run();
  EXPECT_FALSE(group.states(0)[0].full);
}

}  // namespace
}  // namespace unisono
