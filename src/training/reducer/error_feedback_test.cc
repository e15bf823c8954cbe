// Tests of error feedback that need no engine. Numbers of checks refer to docs/design/methods/arc_top_k.md, "Checked values".
#include "training/reducer/error_feedback.h"

#include <algorithm>
#include <cmath>
#include <numeric>

#include "base/concat.h"
#include "training/reducer/training_test_support.h"

namespace unisono {
namespace {

using namespace test;
constexpr FeedbackOptions ef14{.kind = Feedback::ef14}, none{.kind = Feedback::none};

// Check 7 of docs/design/methods/arc_top_k.md: chosen rows, sums of the outputs, and residuals.
TEST(ErrorFeedback, ef14_sends_the_rows_of_the_documented_table) {
  for (const uint32_t rank : {1u, 4u}) {
    Trainers ranks(3, arc_options(250'000, rank, 1), ef14, 0, 4, 1);
    const uint32_t chosen[] = {0, 1, 0, 1, 2, 0, 1, 0, 3, 1, 0, 2};
    Values delivered(4);
    for (uint64_t step = 0; step < 12; ++step) {
      for (auto& gradient : ranks.gradients) gradient = {4, -4, 2, 1};
      const auto& out = ranks.step(step);
      for (size_t i = 0; i < 4; ++i) delivered[i] += out[i];
      ASSERT_EQ(ranks[0].compressor().rows(0).size(), 1u);
      EXPECT_EQ(ranks[0].compressor().rows(0)[0], chosen[step]) << step;
    }
    EXPECT_EQ(delivered, (Values{44, -40, 24, 9}));
    EXPECT_EQ(ranks.state(2).residual, (Values{4, -8, 0, 3}));
  }
}

// Check 8 of docs/design/methods/arc_top_k.md: chosen rows and outputs.
TEST(ErrorFeedback, ef21m_reproduces_the_documented_table) {
  Trainers ranks(2, arc_options(333'333, 4, 1), {.kind = Feedback::ef21m, .eta = .5f}, 0, 3, 1);
  for (auto& gradient : ranks.gradients) gradient = {8, 4, 2};
  EXPECT_EQ(ranks.step(0), (Values{8, 4, 2}));
  const uint32_t chosen[] = {0, 2, 1, 0, 2, 1, 0, 2};
  for (uint64_t step = 1; step <= 8; ++step) {
    for (auto& gradient : ranks.gradients) gradient = {0, 0, 8};
    const auto out = ranks.step(step);
    EXPECT_EQ(ranks[0].compressor().rows(0)[0], chosen[step - 1]) << step;
    if (step == 3) {
      EXPECT_EQ(out, (Values{4, .5f, 6.5f}));
    } else if (step == 8) {
      EXPECT_EQ(out, (Values{1.0f / 16, 1.0f / 16, 1021.0f / 128}));
    }
  }
}

// Second part of check 9 of docs/design/methods/arc_top_k.md: all rows are kept, and eta = 1. The output is then the plain mean
// of the gradients.
TEST(ErrorFeedback, ef21_with_all_rows_equals_plain_data_parallel) {
  Trainers ranks(2, arc_options(1'000'000, 4, 1), {.kind = Feedback::ef21m, .eta = 1}, 0, 8, 8);
  for (uint64_t step = 0; step < 5; ++step) {
    for (size_t r = 0; r < 2; ++r) ranks.gradients[r] = normals(9, step, static_cast<uint32_t>(r), 64);
    const auto a = ranks.gradients[0], b = ranks.gradients[1];
    const auto& out = ranks.step(step);
    for (size_t i = 0; i < 64; ++i) EXPECT_NEAR(out[i], (a[i] + b[i]) / 2, 1e-6);
  }
}

// Check 16 of docs/design/methods/arc_top_k.md, for values that no codec encodes.
TEST(ErrorFeedback, ef14_keeps_exactly_the_values_not_sent) {
  Trainers ranks(4, arc_options(200'000, 4, 3), ef14, 2, 20, 9);
  for (uint64_t step = 0; step < 200; ++step) {
    std::vector<Values> p;
    for (size_t r = 0; r < 4; ++r) {
      ranks.gradients[r] = normals(16, step, static_cast<uint32_t>(r), 180);
      p.push_back(ranks.gradients[r]);
      const auto& left = ranks.state(r).residual;
      for (size_t k = 0; k < left.size(); ++k) p[r][k] += left[k];
    }
    const auto out = ranks.step(step);
    const auto rows = ranks[0].compressor().rows(0);
    for (size_t k = 0; k < 180; ++k) {
      const bool sent = std::binary_search(rows.begin(), rows.end(), static_cast<uint32_t>(k / 9));
      for (size_t r = 0; r < 4; ++r) ASSERT_EQ(ranks.state(r).residual[k], sent ? 0 : p[r][k]);
      ASSERT_EQ(out[k], sent ? (p[0][k] + p[1][k] + p[2][k] + p[3][k]) / 4 : 0);
    }
  }
}

TEST(ErrorFeedback, ef21m_tracks_the_mean_of_all_ranks_copies) {
  Trainers ranks(4, arc_options(200'000, 4, 3), {.kind = Feedback::ef21m}, 2, 20, 9);
  for (uint64_t step = 0; step < 1000; ++step) {
    for (size_t r = 0; r < 4; ++r) ranks.gradients[r] = normals(16, step, static_cast<uint32_t>(r), 180);
    const auto& out = ranks.step(step);
    EXPECT_EQ(out, ranks.state(3).mean);
    if (step == 0) continue;
    for (const uint32_t row : ranks[0].compressor().rows(0)) {
      for (size_t k = row * 9; k < (row + 1) * 9; ++k) ASSERT_EQ(ranks.state(1).known[k], ranks.state(1).momentum[k]);
    }
  }
  for (size_t k = 0; k < 180; ++k) {
    double mean = 0;
    for (size_t r = 0; r < 4; ++r) mean += ranks.state(r).known[k] / 4.0;
    EXPECT_NEAR(ranks.state(0).mean[k], mean, 1e-5);
  }
}

// Check 17 of docs/design/methods/arc_top_k.md: EF21M of 8 ranks equals EF21M of one rank that has the mean gradient.
TEST(ErrorFeedback, ef21m_on_many_ranks_equals_one_rank_with_the_mean_gradient) {
  const FeedbackOptions ef21m{.kind = Feedback::ef21m};
  Trainers ranks(8, arc_options(200'000, 4, 5), ef21m, 1, 30, 10), one(1, arc_options(200'000, 4, 5), ef21m, 1, 30, 10);
  for (uint64_t step = 0; step < 200; ++step) {
    one.gradients[0].assign(300, 0);
    for (size_t r = 0; r < 8; ++r) {
      ranks.gradients[r] = normals(17, step, static_cast<uint32_t>(r), 300);
      for (size_t k = 0; k < 300; ++k) one.gradients[0][k] += ranks.gradients[r][k] / 8;
    }
    const auto &a = ranks.step(step), &b = one.step(step);
    Values difference(a);
    for (size_t k = 0; k < 300; ++k) difference[k] -= b[k];
    ASSERT_LT(std::sqrt(squared(difference) / squared(b)), 1e-5) << step;
  }
}

// Check 19 of docs/design/methods/arc_top_k.md. A row whose mean over the ranks is zero is never chosen. So each rank's
// residual of this row grows.
TEST(ErrorFeedback, residual_of_a_cancelling_row_grows_without_refresh) {
  for (const uint32_t every : {0u, 32u}) {
    auto options = arc_options(100'000, 4, 1);
    options.refresh_every = every;
    Trainers ranks(2, options, ef14, 0, 64, 1);
    float largest = 0;
    for (uint64_t step = 0; step < 1000; ++step) {
      for (auto& gradient : ranks.gradients) gradient.assign(64, 1);
      ranks.gradients[1][63] = -1;
      const auto& left = ranks.state(0).residual;
      largest = std::max(largest, std::fabs((left.empty() ? 0 : left[63]) + 1));
      ranks.step(step);
    }
    EXPECT_EQ(every == 0 ? ranks.state(0).residual[63] : largest, every == 0 ? 1000 : 32);
  }
}

// docs/design/methods/arc_top_k.md, "Outcomes": a step with a value that is not finite leaves the state unchanged.
TEST(ErrorFeedback, a_step_with_nonfinite_values_changes_nothing) {
  for (const auto& feedback : {ef14, FeedbackOptions{.kind = Feedback::ef21m}}) {
    for (const bool whole : {false, true}) {
      Trainers ranks(3, arc_options(200'000, 4, 3), feedback, 2, 20, 9);
      const auto fill = [&](uint64_t step) {
        for (size_t r = 0; r < 3; ++r) ranks.gradients[r] = normals(1, step, static_cast<uint32_t>(r), 180);
      };
      for (uint64_t step = 0; step < 5; ++step) fill(step), ranks.step(step);
      ranks.settle();
      const auto before = ranks.stores;
      fill(5);
      ranks.gradients[1][77] = INFINITY;
      ranks.begin(5, whole);
      EXPECT_FALSE(ranks.next() && ranks.finish());
      ranks.settle();
      for (size_t r = 0; r < 3; ++r) {
        EXPECT_EQ(ranks.stores[r].at("w").residual, before[r].at("w").residual);
        EXPECT_EQ(ranks.stores[r].at("w").momentum, before[r].at("w").momentum);
        EXPECT_EQ(ranks.stores[r].at("w").known, before[r].at("w").known);
        EXPECT_EQ(ranks.stores[r].at("w").mean, before[r].at("w").mean);
      }
      fill(6);
      ranks.step(6);
    }
  }
}

// Checks that no value is lost: (sum of all ranks' gradients) - N (sum of the averages) must equal the sum of the residuals.
class Conserved {
 public:
  Conserved() : ranks(4, arc_options(200'000, 4, 3), ef14, 2, 20, 9), given_(180), delivered_(180) {}
  void fill(uint64_t step) {
    for (size_t r = 0; r < ranks.size(); ++r) {
      ranks.gradients[r] = normals(16, step, static_cast<uint32_t>(r), 180);
      for (size_t k = 0; k < 180; ++k) given_[k] += ranks.gradients[r][k];
    }
  }
  void deliver_averages() {
    for (size_t k = 0; k < 180; ++k) delivered_[k] += 4.0 * ranks.gradients[0][k];
  }
  void expect_nothing_lost() {
    double off = 0, all = 0;
    for (size_t k = 0; k < 180; ++k) {
      double left = 0;
      for (size_t r = 0; r < 4; ++r) left += ranks.state(r).residual.empty() ? 0 : ranks.state(r).residual[k];
      off += (given_[k] - delivered_[k] - left) * (given_[k] - delivered_[k] - left);
      all += given_[k] * given_[k];
    }
    EXPECT_LT(std::sqrt(off / all), 1e-5);
  }
  Trainers ranks;

 private:
  std::vector<double> given_, delivered_;
};

// Outcome `behind`: ranks 0 and 1 use the averages. Rank 2 fails before finish(). Rank 3 finishes, but then skips the step, as
// if another group of tensors had failed.
TEST(ErrorFeedback, no_value_is_lost_whatever_the_outcome_of_a_step) {
  enum class Outcome { used, abandoned, skipped, behind };
  using enum Outcome;
  Conserved all;
  auto& ranks = all.ranks;
  uint64_t step = 0;
  const auto check = [&](Outcome outcome, bool whole) {
    SCOPED_TRACE(concat(step, " ", static_cast<int>(outcome), whole ? " whole" : ""));
    all.fill(step);
    ranks.begin(step++, whole);
    ASSERT_TRUE(outcome == abandoned || ranks.next());
    for (uint32_t r = 0; r < 4; ++r) {
      const bool finishes = outcome != abandoned && (outcome != behind || r != 2);
      ASSERT_TRUE(!finishes || ranks[r].finish().ok());
      if (!finishes) ranks[r].abandon();
      if (outcome == skipped || (outcome == behind && r == 3)) ranks[r].step_skipped();
      if (outcome == behind && r >= 2) ranks[r].used_by_others();
    }
    if (outcome == used || outcome == behind) all.deliver_averages();
    all.expect_nothing_lost();
    for (uint32_t r = 0; r < 4 && whole && outcome != skipped && outcome != abandoned; ++r) {
      for (const float left : ranks.state(r).residual) EXPECT_EQ(left, 0);
    }
  };
  for (const auto outcome :
       {used, used, abandoned, used, behind, behind, used, skipped, behind, skipped, used, abandoned, abandoned, behind, used})
    check(outcome, false);
  for (const auto outcome : {used, abandoned, skipped, behind}) {
    check(used, false);
    check(outcome, true);
  }
}

TEST(ErrorFeedback, ef21m_state_equals_the_values_of_an_uncompressed_step) {
  Trainers ranks(2, arc_options(200'000, 4, 3), {.kind = Feedback::ef21m}, 2, 20, 9);
  const auto fill = [&](uint64_t step) {
    for (size_t r = 0; r < 2; ++r) ranks.gradients[r] = normals(1, step, static_cast<uint32_t>(r), 180);
  };
  for (uint64_t step = 0; step < 3; ++step) fill(step), ranks.step(step);
  fill(3);
  ranks.step(3, true);
  for (size_t r = 0; r < 2; ++r) EXPECT_EQ(ranks.state(r).known, ranks.state(r).momentum);
  for (size_t k = 0; k < 180; ++k) EXPECT_EQ(ranks.state(0).mean[k], (ranks.state(0).known[k] + ranks.state(1).known[k]) / 2);
  fill(4);
  const auto before = ranks.state(0);
  ranks.begin(4);
  const auto made = ranks.gradients[0];
  for (size_t r = 0; r < 2; ++r) ranks[r].abandon();
  EXPECT_EQ(ranks.state(0).momentum, made);
  EXPECT_EQ(ranks.state(0).known, before.known);
  EXPECT_EQ(ranks.state(0).mean, before.mean);
}

// Part of check 28 of docs/design/methods/arc_top_k.md: tensors may move to another group, and keep their residuals.
TEST(ErrorFeedback, finds_stored_state_by_tensor_name) {
  FeedbackStore store;
  const auto group = [&](std::vector<GroupTensor> tensors, std::vector<std::string> names) {
    return ErrorFeedback::make(ef14, *make_arc_top_k(arc_options(500'000, 2, 1), 0, std::move(tensors)), std::move(names),
                               store);
  };
  auto first = group({{.number = 0, .shape = {4, 2}}, {.number = 1, .shape = {6, 1}}}, {"a", "b"});
  ASSERT_TRUE(first.ok());
  Values a(8, 1), b{1, 2, 3, 4, 5, 6};
  float* const gradients[] = {a.data(), b.data()};
  (*first)->begin(0, gradients);
  ASSERT_TRUE((*first)->next().ok() && (*first)->finish().ok());
  EXPECT_EQ(b, (Values{0, 0, 0, 4, 5, 6}));
  first->reset();
  auto second = group({{.number = 1, .shape = {6, 1}}}, {"b"});
  ASSERT_TRUE(second.ok());
  b.assign(6, 0);
  float* const again[] = {b.data()};
  (*second)->begin(1, again);
  ASSERT_TRUE((*second)->next().ok() && (*second)->finish().ok());
  EXPECT_EQ(b, (Values{1, 2, 3, 0, 0, 0}));
  const auto other = group({{.number = 1, .shape = {5, 1}}}, {"b"});
  ASSERT_FALSE(other.ok());
  EXPECT_NE(other.status().message().find("state_shape_mismatch: b has 5 elements, but its error feedback state has 6"),
            std::string::npos)
      << other.status().message();
}

TEST(ErrorFeedback, refuses_an_eta_outside_its_range) {
  for (const float eta : {0.0f, -1.0f, 1.5f, NAN}) {
    FeedbackStore store;
    const auto made = ErrorFeedback::make({.kind = Feedback::ef21m, .eta = eta}, *make_arc_top_k({}, 0, {}), {}, store);
    ASSERT_FALSE(made.ok());
    EXPECT_NE(made.status().message().find("bad_option"), std::string::npos);
  }
}

}  // namespace
}  // namespace unisono
