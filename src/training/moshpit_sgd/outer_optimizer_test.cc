#include "training/moshpit_sgd/outer_optimizer.h"

#include <gtest/gtest.h>

#include <cmath>
#include <vector>

namespace unisono {
namespace {

using internal::OuterOptimizer;

MoshpitSgdOptions nesterov(double rate = 0.7, double momentum = 0.9) {
  return {.average = MoshpitSgdOptions::Average::pseudo_gradients,
          .outer = MoshpitSgdOptions::Outer::nesterov,
          .outer_rate = rate,
          .outer_momentum = momentum};
}

// Runs one averaging step: each peer proposes x[p] and accepts the mean of all proposals. Exception: peer `cut` accepts its own
// proposal, which is not part of the mean.
std::vector<std::vector<float>> averaging(std::vector<OuterOptimizer>& peers, const std::vector<std::vector<float>>& x,
                                          size_t cut = SIZE_MAX) {
  std::vector<std::vector<float>> bases(peers.size(), std::vector<float>(x[0].size()));
  for (size_t p = 0; p < peers.size(); ++p) peers[p].propose(x[p], bases[p]);
  std::vector<float> mean(x[0].size());
  for (size_t i = 0; i < mean.size(); ++i) {
    double sum = 0;
    for (size_t p = 0; p < peers.size(); ++p) sum += p == cut ? 0 : static_cast<double>(bases[p][i]);
    mean[i] = static_cast<float>(sum / static_cast<double>(peers.size() - (cut < peers.size())));
  }
  for (size_t p = 0; p < peers.size(); ++p) {
    if (p != cut) bases[p] = mean;
    peers[p].accept(bases[p], true);
  }
  return bases;
}

std::vector<OuterOptimizer> peers_at(size_t count, const MoshpitSgdOptions& options, const std::vector<float>& reference) {
  std::vector<OuterOptimizer> peers;
  for (size_t p = 0; p < count; ++p) peers.emplace_back(options, reference.size()), peers.back().begin(reference);
  return peers;
}

// Returns how much peer p changes element i in step k.
float drift(size_t p, size_t k, size_t i) { return 0.1f * std::sin(static_cast<float>(1 + 3 * p + 7 * k + 11 * i)); }

TEST(OuterOptimizer, nesterov_equals_a_scalar_reference) {
  for (const auto& [rate, momentum] : {std::pair{0.7, 0.9}, {1.0, 0.5}, {0.3, 0.0}, {1.5, 0.99}}) {
    auto peers = peers_at(3, nesterov(rate, momentum), {1.0f, -2.0f});
    double reference[2] = {1, -2}, m[2] = {0, 0};
    std::vector<float> at{1.0f, -2.0f};
    for (size_t k = 0; k < 30; ++k) {
      std::vector<std::vector<float>> x(3, at);
      double gradient[2] = {0, 0};
      for (size_t p = 0; p < 3; ++p) {
        for (size_t i = 0; i < 2; ++i)
          x[p][i] += drift(p, k, i), gradient[i] += (reference[i] - (reference[i] + static_cast<double>(drift(p, k, i)))) / 3;
      }
      at = averaging(peers, x)[0];
      for (size_t i = 0; i < 2; ++i) {
        m[i] = momentum * m[i] + gradient[i];
        reference[i] -= rate * (gradient[i] + momentum * m[i]);
        ASSERT_NEAR(at[i], reference[i], 2e-5) << "rate " << rate << ", momentum " << momentum << ", averaging step " << k;
      }
    }
  }
}

TEST(OuterOptimizer, sgd_with_rate_one_equals_the_mean) {
  auto options = nesterov();
  options.outer = MoshpitSgdOptions::Outer::sgd;
  options.outer_rate = options.outer_momentum = -1;
  OuterOptimizer outer(options, 2);
  outer.begin(std::vector<float>{1e8f, 3.0f});
  const std::vector<float> values{0.1f, 1e-7f};
  std::vector<float> base(2);
  outer.propose(values, base);
  EXPECT_EQ(base, values);
  outer.accept(base, true);
  EXPECT_EQ(base, values);
}

TEST(OuterOptimizer, default_rate_and_momentum_of_nesterov_are_seven_and_nine_tenths) {
  OuterOptimizer usual(nesterov(-1, -1), 1), named(nesterov(), 1);
  std::vector<float> a{1.0f}, b{1.0f}, x{2.0f};
  for (auto [outer, base] : {std::pair{&usual, &a}, {&named, &b}}) {
    outer->begin(*base);
    outer->propose(x, *base);
    EXPECT_FLOAT_EQ((*base)[0], 1.7f);
    outer->accept(*base, true);
    EXPECT_FLOAT_EQ((*base)[0], 1.7f + 0.9f * 0.7f);
  }
}

TEST(OuterOptimizer, diverged_peers_agree_bit_for_bit_after_two_exact_averaging_steps) {
  auto peers = peers_at(4, nesterov(), {0.5f});
  std::vector<std::vector<float>> at(4, {0.5f});
  const auto step = [&](size_t k, size_t cut = SIZE_MAX) {
    for (size_t p = 0; p < 4; ++p) at[p][0] += drift(p, k, 0);
    at = averaging(peers, at, cut);
  };
  for (size_t k = 0; k < 5; ++k) step(k);
  step(5, 2);
  EXPECT_NE(at[2], at[0]);
  step(6);
  EXPECT_NE(at[2], at[0]);
  for (size_t k = 7; k < 20; ++k) {
    step(k);
    for (size_t p = 1; p < 4; ++p) ASSERT_EQ(at[p], at[0]);
  }
}

TEST(OuterOptimizer, without_a_previous_base_it_takes_the_mean_and_agrees_one_averaging_step_later) {
  auto peers = peers_at(2, nesterov(), {0.0f});
  OuterOptimizer late(nesterov(), 1);
  late.begin(std::vector<float>{100.0f});
  std::vector<float> base(1), other(1), mean(1);
  for (float value : {1.0f, 2.0f, 3.0f}) {
    peers[0].propose(std::vector<float>{value}, base);
    other = mean = base;
    peers[0].accept(base, true);
    late.accept(other, value > 1);
    if (value == 1) {
      EXPECT_EQ(other, mean);
    } else {
      EXPECT_EQ(other, base);
    }
  }
}

TEST(OuterOptimizer, continues_bit_for_bit_from_written_state) {
  auto peers = peers_at(1, nesterov(), {0.0f, 1.0f});
  std::vector<float> base(2);
  for (float value : {1.0f, 2.0f}) peers[0].propose(std::vector<float>{value, -value}, base), peers[0].accept(base, true);
  ByteWriter writer;
  peers[0].write(writer, true);
  OuterOptimizer other(nesterov(), 2);
  ByteReader reader(writer.view());
  ASSERT_TRUE(other.read(reader, true));
  EXPECT_TRUE(reader.done());
  std::vector<float> a(2), b(2);
  const std::vector<float> values{5.0f, 6.0f};
  peers[0].propose(values, a), other.propose(values, b);
  EXPECT_EQ(a, b);
  peers[0].accept(a, true), other.accept(b, true);
  EXPECT_EQ(a, b);
}

TEST(OuterOptimizer, a_joiner_computes_the_others_reference_from_their_state_and_the_mean) {
  auto peers = peers_at(1, nesterov(), {0.0f});
  std::vector<float> base(1), mean(1);
  for (float value : {1.0f, 2.0f, 4.0f}) {
    ByteWriter writer;
    peers[0].write(writer, false);
    peers[0].propose(std::vector<float>{value}, base);
    mean = base;
    peers[0].accept(base, true);
    OuterOptimizer joiner(nesterov(), 1);
    joiner.begin(mean);
    ByteReader reader(writer.view());
    ASSERT_TRUE(joiner.read(reader, false));
    joiner.accept(mean, true);
    EXPECT_EQ(mean, base);
  }
}

TEST(OuterOptimizer, refuses_truncated_state_and_other_options_and_changes_nothing) {
  OuterOptimizer outer(nesterov(), 2);
  outer.begin(std::vector<float>{1.0f, 2.0f});
  ByteWriter writer;
  outer.write(writer, true);
  const auto read = [&](const MoshpitSgdOptions& options, size_t elements, size_t cut, bool whole) {
    OuterOptimizer other(options, elements);
    const std::vector<float> zeros(elements);
    other.begin(zeros);
    ByteReader reader(writer.view().first(writer.view().size() - cut));
    const bool taken = other.read(reader, whole);
    std::vector<float> base(elements);
    other.propose(zeros, base);
    EXPECT_TRUE(taken || base == zeros);
    return taken;
  };
  EXPECT_TRUE(read(nesterov(), 2, 0, true));
  EXPECT_FALSE(read(nesterov(), 3, 0, true));
  EXPECT_FALSE(read(nesterov(0.7, 0.8), 2, 0, true));
  EXPECT_FALSE(read(nesterov(0.6), 2, 0, true));
  EXPECT_FALSE(read(nesterov(), 2, 0, false)) << "of a whole one, where a joiner's is wanted";
  for (size_t cut = 1; cut <= writer.view().size(); ++cut) EXPECT_FALSE(read(nesterov(), 2, cut, true)) << cut;
}

}  // namespace
}  // namespace unisono
