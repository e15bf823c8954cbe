#include "elastic/roster/flat_advice.h"

#include <gtest/gtest.h>

#include <cmath>
#include <vector>

namespace unisono {
namespace {

const std::vector<uint32_t> square{4, 4};

std::string after_sweeps(FlatAdvice& advice, size_t sweeps, uint64_t absent) {
  std::string said;
  for (size_t i = 0; i < sweeps; ++i) said += advice.after(16, square, 8, absent);
  return said;
}

// Check A32 of docs/design/methods/moshpit.md.
TEST(FlatAdviceA32, one_flat_group_sends_fewer_bytes_below_the_specified_absence) {
  const std::vector<uint32_t> dims{32, 32};
  EXPECT_NEAR(flat_break_even(1024, dims), 6.4664e-4, 1e-8);
  EXPECT_EQ(flat_break_even(32, std::vector<uint32_t>{32}), 0);
}

// By what the formula says itself: expected bytes of the one below those of the other on one side, above on the other.
TEST(FlatAdviceA32, expected_bytes_cross_there) {
  const std::vector<uint32_t> dims{32, 32};
  const double at = flat_break_even(1024, dims), sweep = 2 * 2 * (1 - 1. / 32);
  for (const double side : {.99, 1.01}) {
    const double flat = 2 * (1 - 1. / 1024) / std::pow(1 - at * side, 1024);
    EXPECT_EQ(flat < sweep, side < 1);
  }
}

TEST(FlatAdvice, is_given_once_after_a_hundred_sweeps) {
  FlatAdvice advice;
  EXPECT_EQ(after_sweeps(advice, FlatAdvice::sweeps - 1, 0), "");
  const auto said = after_sweeps(advice, 1, 0);
  EXPECT_NE(said.find("in the last 100 sweeps 0 % of the members of groups were absent; below 2.89 % one flat all-reduce of all 16 sends fewer bytes"), std::string::npos) << said;
  EXPECT_EQ(after_sweeps(advice, 2 * FlatAdvice::sweeps, 0), "");
}

TEST(FlatAdvice, is_not_given_where_absences_make_the_grid_cheaper) {
  FlatAdvice advice;
  EXPECT_EQ(after_sweeps(advice, 3 * FlatAdvice::sweeps, 1), "");
}

TEST(FlatAdvice, is_about_the_last_hundred_sweeps) {
  FlatAdvice advice;
  after_sweeps(advice, 1000, 4);
  const auto still = static_cast<size_t>(FlatAdvice::sweeps * (1 - 2 * flat_break_even(16, square)));  // 4 of 8 are absent in each that is left
  EXPECT_EQ(after_sweeps(advice, still, 0), "");
  EXPECT_NE(after_sweeps(advice, FlatAdvice::sweeps - still, 0), "");
}

TEST(FlatAdvice, one_group_of_all_is_flat_already) {
  FlatAdvice advice;
  for (size_t i = 0; i < 2 * FlatAdvice::sweeps; ++i) EXPECT_EQ(advice.after(4, std::vector<uint32_t>{4}, 4, 0), "");
}

}  // namespace
}  // namespace unisono
