#include "sim/loss_pattern.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <set>
#include <string>

#include "base/random.h"

namespace unisono::sim {
namespace {

LossModel model_of(const std::string& text) {
  const auto model = LossModel::parse(text);
  EXPECT_TRUE(model.ok()) << text << ": " << model.status().to_string();
  return model.ok() ? *model : LossModel{};
}

constexpr const char* all_kinds[] = {"iid:0.3",
                                     "gilbert_elliott:p=0.3,burst=8",
                                     "gilbert_elliott:p=0.3,burst=8,good=0.1,bad=0.9",
                                     "chain:p=0.3,recovery=0.25",
                                     "joint:p=0.3,both=0.2",
                                     "links:p=0.3,0>1=0.5",
                                     "iid:0.3,granularity=shard",
                                     "iid:0.3,slow=1x0.5"};

std::vector<DatagramPosition> positions(uint32_t world, uint64_t steps, uint32_t ranges) {
  std::vector<DatagramPosition> all;
  for (uint64_t step = 0; step < steps; ++step) {
    for (uint32_t phase = 0; phase < 2; ++phase) {
      for (Rank sender = 0; sender < world; ++sender) {
        for (Rank receiver = 0; receiver < world; ++receiver) {
          for (uint32_t range = 0; range < ranges; ++range) all.push_back({sender, receiver, step, phase, range});
        }
      }
    }
  }
  return all;
}

TEST(LossPattern, a_pattern_depends_on_its_seed_and_not_on_the_order_of_queries) {
  const auto in_order = positions(3, 12, 4);
  std::vector<size_t> shuffled(in_order.size());
  for (size_t i = 0; i < shuffled.size(); ++i) shuffled[i] = i;
  Random random(5);
  for (size_t i = shuffled.size(); i > 1; --i) std::swap(shuffled[i - 1], shuffled[random.below(i)]);
  for (const char* text : all_kinds) {
    SCOPED_TRACE(text);
    LossPattern first(model_of(text), 7, {.world = 3, .ranges = 4}), second(model_of(text), 7, {.world = 3, .ranges = 4}),
        other(model_of(text), 8, {.world = 3, .ranges = 4});
    std::vector<bool> fates;
    size_t differ = 0;
    for (const auto& position : in_order) {
      fates.push_back(first.lost(position));
      differ += other.lost(position) != fates.back();
    }
    for (const size_t i : shuffled) ASSERT_EQ(second.lost(in_order[i]), fates[i]) << i;
    EXPECT_GT(differ, 0u) << "another seed";
    EXPECT_GT(std::count(fates.begin(), fates.end(), true), 0);
    EXPECT_GT(std::count(fates.begin(), fates.end(), false), 0);
  }
}

TEST(LossPattern, each_link_loses_as_much_as_its_model_says) {
  constexpr uint64_t steps = 20000;
  for (const char* text : all_kinds) {
    SCOPED_TRACE(text);
    const auto model = model_of(text);
    if (!model.slow.empty()) continue;
    LossPattern pattern(model, 11, {.world = 2, .ranges = 4});
    for (uint32_t phase = 0; phase < 2; ++phase) {
      double lost = 0;
      for (uint64_t step = 0; step < steps; ++step) {
        for (uint32_t range = 0; range < 4; ++range)
          lost += pattern.lost({.sender = 0, .receiver = 1, .step = step, .phase = phase, .range = range});
      }
      EXPECT_NEAR(lost / (4 * steps), model.link_loss(0, 1), .015);
    }
  }
}

TEST(LossPattern, losses_of_zero_and_one_are_certain) {
  LossPattern none(model_of("none"), 3, {}), zero(model_of("0"), 3, {}), all(model_of("1"), 3, {});
  for (const auto& position : positions(2, 500, 1)) {
    EXPECT_FALSE(none.lost(position));
    EXPECT_FALSE(zero.lost(position));
    EXPECT_TRUE(all.lost(position));
  }
}

TEST(LossPattern, a_shard_is_lost_whole_or_not_at_all) {
  LossPattern pattern(model_of("iid:0.5,granularity=shard"), 3, {.world = 2, .ranges = 8});
  std::set<bool> seen;
  for (uint64_t step = 0; step < 50; ++step) {
    const bool first = pattern.lost({.sender = 0, .receiver = 1, .step = step});
    for (uint32_t range = 1; range < 8; ++range)
      EXPECT_EQ(pattern.lost({.sender = 0, .receiver = 1, .step = step, .range = range}), first);
    seen.insert(first);
  }
  EXPECT_EQ(seen.size(), 2u);
}

TEST(LossPattern, two_receivers_lose_together_as_often_as_the_model_says) {
  LossPattern pattern(model_of("joint:p=0.1,both=0.05"), 3, {.world = 3, .ranges = 1});
  constexpr uint64_t steps = 100000;
  double both = 0, first = 0;
  for (uint64_t step = 0; step < steps; ++step) {
    const bool one = pattern.lost({.sender = 0, .receiver = 1, .step = step, .phase = 1}),
               two = pattern.lost({.sender = 0, .receiver = 2, .step = step, .phase = 1});
    both += one && two;
    first += one;
  }
  EXPECT_NEAR(both / steps, .05, 5 * std::sqrt(.05 / steps));
  EXPECT_NEAR(first / steps, .1, 5 * std::sqrt(.1 / steps));
}

TEST(LossPattern, a_range_lost_by_a_chain_arrives_in_the_next_step_with_probability_recovery) {
  LossPattern pattern(model_of("chain:p=0.1,recovery=0.25"), 3, {.world = 2, .ranges = 2});
  double lost = 0, recovered = 0;
  bool before = false;
  for (uint64_t step = 0; step < 200000; ++step) {
    const bool now = pattern.lost({.sender = 0, .receiver = 1, .step = step, .phase = 1, .range = 1});
    if (before) ++lost, recovered += !now;
    before = now;
  }
  EXPECT_NEAR(recovered / lost, .25, 5 * std::sqrt(.19 / lost));
}

TEST(LossPattern, nothing_from_or_to_a_dead_peer_arrives) {
  LossPattern pattern(model_of("none:dead=1@10-19,dead=2@15"), 3, {.world = 4, .ranges = 2});
  for (const auto& position : positions(4, 30, 2)) {
    const auto dead = [&](Rank rank) {
      return (rank == 1 && position.step >= 10 && position.step <= 19) || (rank == 2 && position.step >= 15);
    };
    EXPECT_EQ(pattern.lost(position), dead(position.sender) || dead(position.receiver));
  }
}

TEST(LossPattern, a_fraction_of_a_slow_peers_streams_is_late_at_all_receivers) {
  LossPattern pattern(model_of("none:slow=1x0.25"), 3, {.world = 3, .ranges = 2});
  double late = 0;
  for (uint64_t step = 0; step < 20000; ++step) {
    const bool first = pattern.lost({.sender = 1, .receiver = 0, .step = step});
    EXPECT_EQ(pattern.lost({.sender = 1, .receiver = 2, .step = step, .range = 1}), first);
    EXPECT_FALSE(pattern.lost({.sender = 0, .receiver = 1, .step = step}));
    late += first;
  }
  EXPECT_NEAR(late / 20000, .25, .016);
}

struct Spread {
  double mean = 0, deviation = 0;
};
// Returns mean and standard deviation of the number of datagrams that a stream loses. Each stream is on a separate link.
Spread losses_in_streams(const LossModel& model, uint32_t datagrams, size_t streams) {
  const uint32_t world = 128;
  LossPattern pattern(model, 17, {.world = world, .ranges = datagrams});
  double sum = 0, squares = 0;
  for (size_t stream = 0; stream < streams; ++stream) {
    double lost = 0;
    for (uint32_t range = 0; range < datagrams; ++range)
      lost += pattern.lost(
          {.sender = static_cast<Rank>(stream / world), .receiver = static_cast<Rank>(stream % world), .range = range});
    sum += lost;
    squares += lost * lost;
  }
  const auto count = static_cast<double>(streams);
  return {sum / count, std::sqrt(squares / count - sum / count * sum / count)};
}

// The mean is n p = 725 * 0.1. Without bursts, the variance is n p (1 - p).
// With bursts, it is n p (1 - p) (1 + l) / (1 - l) - 2 p (1 - p) l / (1 - l)^2.
// Here l = 1 - a - r = 0.8611 is the correlation of the chain.
TEST(LossPattern, bursts_have_the_specified_mean_and_deviation) {
  const auto bursts = losses_in_streams(model_of("gilbert_elliott:p=0.1,burst=8"), 725, 16000);
  EXPECT_NEAR(bursts.mean, 72.5, .03 * 72.5);
  EXPECT_NEAR(bursts.deviation, 29.43, .03 * 29.43);
  const auto independent = losses_in_streams(model_of("iid:0.1"), 725, 16000);
  EXPECT_NEAR(independent.mean, 72.5, .03 * 72.5);
  EXPECT_NEAR(independent.deviation, 8.08, .03 * 8.08);
}

TEST(LossPattern, chains_start_in_their_stationary_state) {
  for (const char* text : {"gilbert_elliott:p=0.3,burst=8", "chain:p=0.3,recovery=0.1"}) {
    LossPattern pattern(model_of(text), 29, {.world = 128, .ranges = 1});
    double lost = 0;
    for (Rank sender = 0; sender < 128; ++sender) {
      for (Rank receiver = 0; receiver < 128; ++receiver) lost += pattern.lost({.sender = sender, .receiver = receiver});
    }
    EXPECT_NEAR(lost / (128 * 128), .3, 5 * std::sqrt(.21) / 128) << text;
  }
}

// A stream loses its last k datagrams with probability p (1 - r)^(k - 1), not p^k. See docs/design/methods/packet_loss.md,
// "Bursts".
TEST(LossPattern, the_last_ranges_are_all_lost_as_often_as_bursts_last) {
  constexpr uint32_t datagrams = 64, last = 8;
  constexpr size_t streams = 128 * 128;
  LossPattern pattern(model_of("gilbert_elliott:p=0.1,burst=8"), 23, {.world = 128, .ranges = datagrams});
  double all_lost = 0;
  for (size_t stream = 0; stream < streams; ++stream) {
    bool lost = true;
    for (uint32_t range = datagrams - last; range < datagrams; ++range)
      lost &= pattern.lost(
          {.sender = static_cast<Rank>(stream / 128), .receiver = static_cast<Rank>(stream % 128), .range = range});
    all_lost += lost;
  }
  const double expected = .1 * std::pow(1 - .125, last - 1);
  EXPECT_NEAR(expected, .039, .0005);
  EXPECT_NEAR(all_lost / streams, expected, 5 * std::sqrt(expected / streams));
}

}  // namespace
}  // namespace unisono::sim
