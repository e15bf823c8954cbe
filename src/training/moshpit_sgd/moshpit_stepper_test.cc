#include "training/moshpit_sgd/moshpit_stepper.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <memory>
#include <vector>

#include "base/random.h"
#include "training/moshpit_sgd/averager_test_support.h"

namespace unisono {
namespace {

using internal::MoshpitStart;
using internal::MoshpitStepper;
using test::SharedAverager;
using test::SharedAveragingSteps;

constexpr float rate = 0.1f;

// Each peer minimises a different parabola; the test decides the order of their steps. The model has a tensor of two elements
// and a tensor of one.
class Training {
 public:
  struct Peer {
    std::vector<float> first{1.0f, -1.0f}, second{0.5f};
    std::unique_ptr<MoshpitStepper> stepper;
    std::vector<std::span<float>> parameters() { return {first, second}; }
  };

  explicit Training(uint32_t count, const MoshpitSgdOptions& options = {}) : options_(options) {
    for (uint32_t p = 0; p < count; ++p) add({.peers = count});
  }
  Peer& add(const MoshpitStart& start) {
    auto& peer = *peers_.emplace_back(std::make_unique<Peer>());
    auto made =
        MoshpitStepper::make(std::make_unique<SharedAverager>(averaging_steps, static_cast<uint32_t>(peers_.size() - 1)), start,
                             peer.parameters(), options_);
    EXPECT_TRUE(made.ok()) << made.status().to_string();
    if (made.ok()) peer.stepper = std::move(*made);
    return peer;
  }
  // One local step of gradient descent: the optimum of peer p is (p, 2p, -p).
  static void descend(Peer& peer, size_t p) {
    const float target = static_cast<float>(p);
    peer.first[0] -= rate * (peer.first[0] - target);
    peer.first[1] -= rate * (peer.first[1] - 2 * target);
    peer.second[0] -= rate * (peer.second[0] + target);
  }
  MoshpitStep step(size_t p, uint64_t samples = 1) {
    descend(*peers_[p], p);
    auto done = peers_[p]->stepper->after_step(peers_[p]->parameters(), samples);
    EXPECT_TRUE(done.ok()) << done.status().to_string();
    return done.ok() ? *done : MoshpitStep();
  }
  Peer& operator[](size_t p) { return *peers_[p]; }
  size_t size() const { return peers_.size(); }

  SharedAveragingSteps averaging_steps;

 private:
  MoshpitSgdOptions options_;
  std::vector<std::unique_ptr<Peer>> peers_;
};

MoshpitSgdOptions every(uint32_t steps) { return {.local_steps = steps}; }

TEST(MoshpitSgd, one_peer_alone_is_plain_sgd) {
  auto options = every(3);
  options.overlap = false;
  Training training(1, options);
  Training::Peer plain;
  for (int k = 0; k < 20; ++k) {
    training.step(0, 7);
    Training::descend(plain, 0);
    ASSERT_EQ(training[0].first, plain.first);
    ASSERT_EQ(training[0].second, plain.second);
  }
  const auto report = training[0].stepper->report();
  EXPECT_EQ(report.averaging_steps, 6u);
  EXPECT_EQ(report.alone, 6u);
  EXPECT_EQ(report.samples, 140u);
}

TEST(MoshpitSgd, an_averaging_step_after_every_local_step_is_exact_data_parallel_training) {
  Training training(3, every(1));
  const std::vector<uint64_t> samples{2, 3, 5};
  double x[3] = {1, -1, 0.5};
  for (int k = 0; k < 30; ++k) {
    for (size_t p = 0; p < 3; ++p) EXPECT_TRUE(training.step(p, samples[p]).began);
    training.averaging_steps.close(3);
    double gradient[3] = {0, 0, 0};
    for (size_t p = 0; p < 3; ++p) {
      const auto target = static_cast<double>(p), weight = static_cast<double>(samples[p]) / 10;
      gradient[0] += weight * (x[0] - target), gradient[1] += weight * (x[1] - 2 * target),
          gradient[2] += weight * (x[2] + target);
      ASSERT_TRUE(training[p].stepper->drain(training[p].parameters(), Milliseconds{0}).ok());
      ASSERT_EQ(training[p].first, training[0].first);
    }
    for (size_t i = 0; i < 3; ++i) x[i] -= static_cast<double>(rate) * gradient[i];
    ASSERT_NEAR(training[2].first[0], x[0], 1e-5);
    ASSERT_NEAR(training[2].first[1], x[1], 1e-5);
    ASSERT_NEAR(training[2].second[0], x[2], 1e-5);
  }
  EXPECT_EQ(training[1].stepper->report().exact, 30u);
  EXPECT_DOUBLE_EQ(training[1].stepper->report().spread, 0.5);
}

TEST(MoshpitSgd, peers_that_finish_within_one_averaging_step_end_with_the_same_parameters) {
  Training training(2, every(1));
  const auto finish = [&](size_t p) {
    const auto done = training[p].stepper->finish(training[p].parameters());
    EXPECT_TRUE(done.ok() && done->began);
  };
  training.step(0), training.step(1);
  int waits = 0;
  training.averaging_steps.meanwhile = [&] {
    // peer 1 applies the result of the first averaging step, and contributes to the next
    if (++waits == 2) training.step(1), training.step(1);
    if (waits < 3) return;
    training.averaging_steps.meanwhile = nullptr;
    finish(1);
  };
  finish(0);
  EXPECT_EQ(waits, 3);
  EXPECT_EQ(training[0].first, training[1].first);
  EXPECT_EQ(training[0].second, training[1].second);
  EXPECT_EQ(training[0].stepper->report().alone, 1u) << "in the last one nobody gave anything";
}

TEST(MoshpitSgd, finish_makes_at_most_three_averaging_steps_while_others_continue) {
  Training training(2, every(1));
  training.step(0);
  training.averaging_steps.meanwhile = [&] { training.step(1), training.step(1); };
  ASSERT_TRUE(training[0].stepper->finish(training[0].parameters()).ok());
  EXPECT_EQ(training[0].stepper->report().averaging_steps, 4u) << "with the one that went on";
}

TEST(MoshpitSgd, local_steps_during_an_averaging_step_are_kept) {
  Training training(2, every(2));
  for (size_t p = 0; p < 2; ++p) training.step(p), training.step(p);
  const float given[2] = {training[0].first[0], training[1].first[0]};
  for (int k = 0; k < 3; ++k) EXPECT_EQ(training.step(0).averaging, nullptr);
  const float moved = training[0].first[0] - given[0];
  training.averaging_steps.close(2);
  Training::Peer expected = {.first = training[0].first, .second = training[0].second, .stepper = nullptr};
  Training::descend(expected, 0);
  const auto done = training.step(0);
  ASSERT_NE(done.averaging, nullptr);
  EXPECT_FALSE(done.began) << "the next one is two steps away";
  EXPECT_FLOAT_EQ(training[0].first[0], (given[0] + given[1]) / 2 + moved + (expected.first[0] - given[0] - moved));
  EXPECT_EQ(training[0].stepper->report().overlapped_steps, 4u);
  training.step(1);
  EXPECT_FALSE(training.step(0).began);
  EXPECT_TRUE(training.step(0).began);
}

TEST(MoshpitSgd, the_weight_is_samples_since_the_last_averaging_step_that_had_this_peer) {
  Training training(2, every(2));
  const auto weight = [&](uint32_t p) { return training.averaging_steps.entries.at(p).weight; };
  training.step(0, 3), training.step(0, 4), training.step(1, 1), training.step(1, 0);
  EXPECT_EQ(weight(0), 7);
  EXPECT_EQ(weight(1), 1);
  training.step(0, 100);  // the averaging step has begun, so these samples count for the next one
  training.averaging_steps.close(2);
  for (int k = 0; k < 3; ++k) training.step(0, 10);
  EXPECT_EQ(weight(0), 130);
  training.averaging_steps.close(2, {0});  // peer 0 is left out of this averaging step
  for (int k = 0; k < 3; ++k) training.step(0, 1);
  EXPECT_EQ(weight(0), 133);
}

TEST(MoshpitSgd, an_absent_peer_keeps_its_values_and_agrees_again_after_the_next_averaging_step) {
  Training training(3, every(1));
  for (size_t p = 0; p < 3; ++p) training.step(p);
  const auto own = training[2].first;
  training.averaging_steps.close(3, {2});
  for (size_t p = 0; p < 3; ++p) {
    const auto done = training[p].stepper->drain(training[p].parameters(), Milliseconds{0});
    ASSERT_TRUE(done.ok() && done->averaging != nullptr);
    EXPECT_FALSE(done->averaging->exact);
  }
  EXPECT_EQ(training[2].first, own);
  EXPECT_EQ(training[2].stepper->report().alone, 1u);
  EXPECT_EQ(training[0].first, training[1].first);
  for (size_t p = 0; p < 3; ++p) training.step(p);
  EXPECT_EQ(training.averaging_steps.entries.at(2).weight, 2) << "what the first averaging step lacked";
  training.averaging_steps.close(3);
  for (size_t p = 0; p < 3; ++p) ASSERT_TRUE(training[p].stepper->drain(training[p].parameters(), Milliseconds{0}).ok());
  EXPECT_EQ(training[2].first, training[0].first);
}

TEST(MoshpitSgd, a_joiner_starts_with_the_runs_values_and_weight_0_until_all_are_averaged) {
  Training training(2, every(1));
  auto& joiner = training.add({.late = true, .loaded = true, .averaging = 4, .peers = 3, .values = {8, 9, 10}});
  EXPECT_EQ(joiner.first, (std::vector<float>{8, 9}));
  EXPECT_EQ(joiner.second, (std::vector<float>{10}));
  for (int averaging = 0; averaging < 3; ++averaging) {
    training.averaging_steps.next_averaging = 7 + static_cast<uint64_t>(averaging);
    for (size_t p = 0; p < 3; ++p) training.step(p, 5);
    EXPECT_EQ(training.averaging_steps.entries.at(2).weight, averaging < 2 ? 0 : 5) << "averaging step " << averaging;
    training.averaging_steps.close(3);
    // In the first averaging step the joiner did not receive one chunk, so some of its values may still be old.
    if (averaging == 0) training.averaging_steps.entries.at(2).report.rounds[0].lost = 1;
    for (size_t p = 0; p < 3; ++p) ASSERT_TRUE(training[p].stepper->drain(training[p].parameters(), Milliseconds{0}).ok());
    EXPECT_EQ(joiner.first, training[0].first);
  }
  EXPECT_EQ(joiner.stepper->report().without_weight, 2u);
}

TEST(MoshpitSgd, a_joiner_with_nonfinite_values_receives_the_mean_in_its_first_averaging_step) {
  Training training(2, every(1));
  auto& joiner = training.add({.late = true});
  joiner.first = {std::nanf(""), std::numeric_limits<float>::infinity()};
  for (size_t p = 0; p < 3; ++p) training.step(p);
  training.step(2);  // a local step during the averaging step
  training.averaging_steps.close(3);
  for (size_t p = 0; p < 3; ++p) ASSERT_TRUE(training[p].stepper->drain(training[p].parameters(), Milliseconds{0}).ok());
  EXPECT_EQ(joiner.first, training[0].first);
}

TEST(MoshpitSgd, nonfinite_values_reach_no_peer_and_are_replaced_by_the_mean) {
  Training training(3, every(1));
  training[1].first[0] = std::numeric_limits<float>::infinity();
  for (size_t p = 0; p < 3; ++p) training.step(p);
  EXPECT_EQ(training.averaging_steps.entries.at(1).weight, 0);
  training.averaging_steps.close(3);
  for (size_t p = 0; p < 3; ++p) {
    ASSERT_TRUE(training[p].stepper->drain(training[p].parameters(), Milliseconds{0}).ok());
    EXPECT_TRUE(std::isfinite(training[p].first[0]));
    EXPECT_EQ(training[p].first, training[0].first);
  }
  EXPECT_EQ(training[1].stepper->report().not_finite, 1u);
  for (size_t p = 0; p < 3; ++p) training.step(p);
  EXPECT_EQ(training.averaging_steps.entries.at(1).weight, 1);
}

TEST(MoshpitSgd, an_averaging_step_begins_when_the_peers_together_have_enough_samples) {
  Training training(4, {.local_steps = 0, .target_samples = 100});
  EXPECT_FALSE(training.step(0, 24).began);
  EXPECT_TRUE(training.step(0, 1).began);
  EXPECT_FALSE(training.step(1, 0).began);
  EXPECT_TRUE(training.step(1, 99).began);
  training.averaging_steps.close(2);
  EXPECT_FALSE(training.step(0, 50).began) << "brings in; two peers are there now";
  EXPECT_FALSE(training.step(0, 49).began);
  EXPECT_TRUE(training.step(0, 1).began);
}

TEST(MoshpitSgd, pseudo_gradients_with_sgd_of_rate_one_equal_averages_of_parameters) {
  Training plain(3, every(2)), outer(3, {.local_steps = 2,
                                         .average = MoshpitSgdOptions::Average::pseudo_gradients,
                                         .outer = MoshpitSgdOptions::Outer::sgd});
  for (int k = 0; k < 12; ++k) {
    for (auto* training : {&plain, &outer}) {
      for (size_t p = 0; p < 3; ++p) training->step(p);
      if (k % 4 == 2) training->averaging_steps.close(3);
    }
    for (size_t p = 0; p < 3; ++p) ASSERT_EQ(plain[p].first, outer[p].first) << k;
  }
}

TEST(MoshpitSgd, nesterov_steps_the_reference_and_keeps_local_steps_meanwhile) {
  Training training(2, {.local_steps = 1, .average = MoshpitSgdOptions::Average::pseudo_gradients});
  double reference = 1, momentum = 0, offset[2] = {0, 0};
  for (int k = 0; k < 20; ++k) {
    double x[2], gradient = 0;
    for (size_t p = 0; p < 2; ++p) {
      x[p] = reference + offset[p];
      x[p] -= static_cast<double>(rate) * (x[p] - static_cast<double>(p));
      gradient += (reference - x[p]) / 2;
      training.step(p);
    }
    training.averaging_steps.close(2);
    momentum = 0.9 * momentum + gradient;
    reference -= 0.7 * (gradient + 0.9 * momentum);
    for (size_t p = 0; p < 2; ++p) {
      offset[p] = -static_cast<double>(rate) * (x[p] - static_cast<double>(p));
      ASSERT_NE(training.step(p).averaging, nullptr);
      ASSERT_NEAR(training[p].first[0], reference + offset[p], 1e-4) << "averaging step " << k << ", peer " << p;
    }
  }
}

TEST(MoshpitSgd, a_peer_absent_for_many_averaging_steps_applies_no_old_momentum) {
  Training training(3, {.local_steps = 1, .average = MoshpitSgdOptions::Average::pseudo_gradients});
  const auto averaging = [&](std::vector<size_t> who) {
    for (const auto p : who) training.step(p);
    training.averaging_steps.close(static_cast<uint32_t>(who.size()));
    for (const auto p : who) ASSERT_TRUE(training[p].stepper->drain(training[p].parameters(), Milliseconds{0}).ok());
  };
  for (int k = 0; k < 2; ++k) averaging({0, 1, 2});
  for (int k = 0; k < 30; ++k) averaging({0, 1});
  averaging({0, 1, 2});
  EXPECT_LT(std::abs(training[2].first[0] - training[0].first[0]), 0.2f);
  averaging({0, 1, 2});
  averaging({0, 1, 2});
  EXPECT_EQ(training[2].first, training[0].first);
  EXPECT_EQ(training[2].second, training[0].second);
}

TEST(MoshpitSgd, a_joiner_with_the_blob_of_the_last_averaging_step_has_the_others_reference_and_momentum) {
  const MoshpitSgdOptions options{.local_steps = 1, .average = MoshpitSgdOptions::Average::pseudo_gradients};
  Training training(2, options);
  MoshpitStart start{.late = true, .loaded = true, .peers = 3};
  for (int k = 0; k < 3; ++k) {
    for (size_t p = 0; p < 2; ++p) training.step(p, 4);
    training.averaging_steps.close(2);
    const auto& entry = training.averaging_steps.entries.at(1);
    start.averaging = k, start.values.clear(), start.blobs = entry.blobs;
    for (const auto& tensor : entry.values) start.values.insert(start.values.end(), tensor.begin(), tensor.end());
    for (size_t p = 0; p < 2; ++p) ASSERT_TRUE(training[p].stepper->drain(training[p].parameters(), Milliseconds{0}).ok());
  }
  auto& joiner = training.add(start);
  EXPECT_EQ(joiner.first, training[0].first);
  EXPECT_EQ(joiner.stepper->steps(), 3u);
  for (size_t p = 0; p < 3; ++p) training.step(p);
  training.averaging_steps.close(3);
  for (size_t p = 0; p < 3; ++p) ASSERT_TRUE(training[p].stepper->drain(training[p].parameters(), Milliseconds{0}).ok());
  EXPECT_EQ(joiner.first, training[0].first);
  EXPECT_EQ(joiner.second, training[0].second);
  EXPECT_EQ(joiner.stepper->steps(), 4u);
}

TEST(MoshpitSgd, a_joiner_whose_blob_is_damaged_begins_without_it) {
  const MoshpitSgdOptions options{.average = MoshpitSgdOptions::Average::pseudo_gradients};
  Training training(1, options);
  Random random(17);
  const auto blob = training[0].stepper->save();
  for (int trial = 0; trial < 200; ++trial) {
    auto damaged = blob;
    if (trial % 2 == 0) damaged[random.below(damaged.size())] ^= std::byte{1};
    else damaged.resize(random.below(damaged.size()));
    const auto& joiner = training.add(
        {.late = true, .loaded = true, .averaging = 3, .values = {1, 2, 3}, .blobs = {{MoshpitStepper::blob_name, damaged}}});
    ASSERT_EQ(joiner.first, (std::vector<float>{1, 2}));
    ASSERT_EQ(joiner.stepper->steps(), 0u);
  }
}

}  // namespace
}  // namespace unisono
