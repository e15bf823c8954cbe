#include "training/reducer/auto_off.h"

#include <gtest/gtest.h>

#include "training/reducer/time_model.h"

namespace unisono {
namespace {

// Runs steps up to `until`, or until record_step() returns medians. Compressed steps take compressed_us, all others whole_us.
std::optional<AutoOff::Medians> run(AutoOff& auto_off, uint64_t& step, uint64_t until, double whole_us, double compressed_us,
                                    std::vector<Sending>* sent = nullptr) {
  for (; step < until;) {
    const auto sending = auto_off.next(step);
    if (sent != nullptr) sent->push_back(sending);
    if (auto medians = auto_off.record_step(step++, sending, sending == Sending::compressed ? compressed_us : whole_us))
      return medians;
  }
  return {};
}

TEST(AutoOff, switches_off_after_twenty_compressed_steps_if_the_gain_is_below_three_percent) {
  for (const double compressed_us : {96.0, 98.0}) {
    AutoOff auto_off({.start_step = 100});
    uint64_t step = 0;
    const auto medians = run(auto_off, step, 1000, 100, compressed_us);
    ASSERT_TRUE(medians);
    EXPECT_EQ(step, 120u);
    EXPECT_EQ(medians->whole_us, 100);
    EXPECT_EQ(medians->compressed_us, compressed_us);
    auto_off.decide(*medians);
    EXPECT_EQ(auto_off.off(), compressed_us > 97);
    EXPECT_EQ(auto_off.next(step), compressed_us > 97 ? Sending::plain : Sending::compressed);
    EXPECT_EQ(auto_off.reason().empty(), compressed_us < 97);
  }
}

TEST(AutoOff, retests_uncompressed_steps_after_two_thousand_and_first_sends_the_residual) {
  AutoOff auto_off({.start_step = 0});
  uint64_t step = 0;
  std::vector<Sending> sent;
  auto medians = run(auto_off, step, 5000, 100, 50, &sent);
  ASSERT_TRUE(medians) << "without whole steps before there is nothing to compare with until then";
  EXPECT_EQ(step, 2020u);
  EXPECT_EQ(sent[1999], Sending::compressed);
  EXPECT_EQ(sent[2000], Sending::whole);
  for (size_t i = 2001; i < 2020; ++i) EXPECT_EQ(sent[i], Sending::plain);
  auto_off.decide(*medians);
  EXPECT_FALSE(auto_off.off());
  medians = run(auto_off, step, 9000, 100, 99);
  ASSERT_TRUE(medians);
  EXPECT_EQ(step, 4040u);
  auto_off.decide(*medians);
  EXPECT_TRUE(auto_off.off());
  EXPECT_FALSE(run(auto_off, step, 9000, 100, 50));
}

TEST(AutoOff, ignores_the_first_steps_of_each_kind_and_single_slow_steps) {
  AutoOff auto_off({.start_step = 20});
  std::optional<AutoOff::Medians> medians;
  for (uint64_t step = 0; step < 40; ++step) {
    const uint64_t position = step % 20;
    const double us = position < 5 ? 1000 : position == 12 ? 5000 : step < 20 ? 10 : 5;
    medians = auto_off.record_step(step, auto_off.next(step), us);
  }
  ASSERT_TRUE(medians);
  EXPECT_EQ(medians->whole_us, 10);
  EXPECT_EQ(medians->compressed_us, 5);
}

TEST(AutoOff, returns_no_medians_when_disabled) {
  AutoOff auto_off({.enabled = false, .start_step = 30});
  uint64_t step = 0;
  EXPECT_FALSE(run(auto_off, step, 3000, 1, 100));
  EXPECT_EQ(auto_off.next(step), Sending::compressed);
}

// Check 23 of docs/design/methods/arc_top_k.md: predicted times of a 4096 x 4096 tensor on 8 ranks.
TEST(TimeModel, gives_the_documented_times) {
  const RowRule rule{.ratio_ppm = 100'000};
  const Decision group[] = {decide(rule, std::vector<uint64_t>{4096, 4096})};
  const auto at = [&](double bytes_per_s) {
    return predict({.ranks = 8, .latency_s = 25e-6, .link_bytes_per_s = bytes_per_s, .memory_bytes_per_s = 30e9}, rule, group,
                   true, 4);
  };
  const auto slow = at(1.25e9), fast = at(12.5e9);
  EXPECT_NEAR(slow.dense_s, 94.302e-3, 1e-4 * slow.dense_s);
  EXPECT_NEAR(slow.compressed_s - slow.local_s, 10.196e-3, 1e-4 * 10.196e-3);
  EXPECT_NEAR(slow.local_s, 14.317e-3, 1e-4 * slow.local_s);
  EXPECT_TRUE(slow.pays());
  EXPECT_NEAR(fast.dense_s, 9.745e-3, 1e-4 * fast.dense_s);
  EXPECT_NEAR(fast.compressed_s - fast.local_s, 1.6496e-3, 1e-4 * 1.6496e-3);
  EXPECT_FALSE(fast.pays());
}

}  // namespace
}  // namespace unisono
