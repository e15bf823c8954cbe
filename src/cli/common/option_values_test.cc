#include "cli/common/option_values.h"

#include <gtest/gtest.h>

namespace unisono::cli {
namespace {

TEST(OptionValues, numbers_are_within_bounds_and_alone) {
  EXPECT_EQ(parse_number("--slack", "0.002", 0, 1).value(), .002);
  for (const char* wrong : {"-0.1", "1.1", "nan", "x", "", "0.1 "}) {
    EXPECT_EQ(parse_number("--slack", wrong, 0, 1).status().message(),
              "--slack '" + std::string(wrong) + "': expected a number from 0 to 1");
  }
}

TEST(OptionValues, a_word_that_is_not_known_may_mean_another) {
  EXPECT_EQ(parse_word("--rule", "after", {"before", "after"}).value(), 1u);
  EXPECT_EQ(check_word("--rule", "aftr", {"before", "after"}).message(),
            "--rule 'aftr' is none of before, after; did you mean 'after'?");
  EXPECT_EQ(check_progress("loud").message(), "--progress 'loud' is none of auto, bar, lines, off");
}

TEST(OptionValues, seeds_are_how_many_or_which) {
  EXPECT_EQ(parse_seed_list("3", 7, 10).value(), (std::vector<uint64_t>{7, 8, 9}));
  EXPECT_EQ(parse_seed_list("4-5", 7, 10).value(), (std::vector<uint64_t>{4, 5}));
  for (const char* wrong : {"", "0", "11", "5-4", "0-10", "x"}) {
    EXPECT_EQ(parse_seed_list(wrong, 0, 10).status().message(),
              "--seeds '" + std::string(wrong) + "': expected how many, 1 to 10, or which of them, as in 3-7");
  }
}

TEST(OptionValues, times_are_within_bounds) {
  Nanos time = 0;
  EXPECT_TRUE(set_time(time, "--delay", "5ms", 0, second).ok());
  EXPECT_EQ(time, 5 * millisecond);
  EXPECT_EQ(set_time(time, "--delay", "2s", 0, second).message(), "--delay '2s': expected a time from 0 us to 1 s");
  EXPECT_EQ(time, 5 * millisecond);
}

TEST(OptionValues, the_first_that_is_wrong_is_told) {
  EXPECT_TRUE(first_wrong({Status(), Status()}).ok());
  EXPECT_EQ(first_wrong({Status(), invalid("one"), invalid("two")}).message(), "one");
}

}  // namespace
}  // namespace unisono::cli
