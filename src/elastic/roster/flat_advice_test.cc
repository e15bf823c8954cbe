#include "elastic/roster/flat_advice.h"

#include <gtest/gtest.h>

#include <cmath>
#include <vector>

namespace unisono {
namespace {

const std::vector<uint32_t> square{4, 4};

std::string after_steps(FlatAdvice& advice, size_t steps, uint64_t absent) {
  std::string said;
  for (size_t i = 0; i < steps; ++i) said += advice.after(16, square, 8, absent);
  return said;
}

// The break-even absences specified by check A32 of docs/design/methods/moshpit.md.
TEST(FlatAdviceA32, one_flat_group_sends_fewer_bytes_below_the_specified_absence) {
  const std::vector<uint32_t> dims{32, 32};
  EXPECT_NEAR(flat_break_even(1024, dims), 6.4664e-4, 1e-8);
  EXPECT_EQ(flat_break_even(32, std::vector<uint32_t>{32}), 0);
}

// Computes the expected bytes of both methods at 0.99 and 1.01 of the break-even. At 0.99 the flat all-reduce must send fewer
// bytes, at 1.01 the averaging step.
TEST(FlatAdviceA32, expected_bytes_cross_there) {
  const std::vector<uint32_t> dims{32, 32};
  const double at = flat_break_even(1024, dims), step = 2 * 2 * (1 - 1. / 32);
  for (const double side : {.99, 1.01}) {
    const double flat = 2 * (1 - 1. / 1024) / std::pow(1 - at * side, 1024);
    EXPECT_EQ(flat < step, side < 1);
  }
}

TEST(FlatAdvice, is_given_once_after_a_hundred_steps) {
  FlatAdvice advice;
  EXPECT_EQ(after_steps(advice, FlatAdvice::steps - 1, 0), "");
  const auto said = after_steps(advice, 1, 0);
  EXPECT_NE(said.find("in the last 100 averaging steps 0 % of the members of groups were absent; below 2.89 % one flat "
                      "all-reduce of all 16 peers sends fewer bytes"),
            std::string::npos)
      << said;
  EXPECT_EQ(after_steps(advice, 2 * FlatAdvice::steps, 0), "");
}

TEST(FlatAdvice, is_not_given_where_absences_make_the_grid_cheaper) {
  FlatAdvice advice;
  EXPECT_EQ(after_steps(advice, 3 * FlatAdvice::steps, 1), "");
}

TEST(FlatAdvice, is_about_the_last_hundred_steps) {
  FlatAdvice advice;
  after_steps(advice, 1000, 4);
  // At first, 4 of 8 members are absent in each averaging step. Then no member is absent for `still` steps. The mean
  // absence over the last hundred steps is still above the break-even.
  const auto still = static_cast<size_t>(FlatAdvice::steps * (1 - 2 * flat_break_even(16, square)));
  EXPECT_EQ(after_steps(advice, still, 0), "");
  EXPECT_NE(after_steps(advice, FlatAdvice::steps - still, 0), "");
}

TEST(FlatAdvice, one_group_of_all_is_flat_already) {
  FlatAdvice advice;
  for (size_t i = 0; i < 2 * FlatAdvice::steps; ++i) EXPECT_EQ(advice.after(4, std::vector<uint32_t>{4}, 4, 0), "");
}

}  // namespace
}  // namespace unisono
