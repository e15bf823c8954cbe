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

TEST(OptionValues, an_unknown_word_suggests_a_similar_one) {
  EXPECT_EQ(parse_word("--rule", "after", {"before", "after"}).value(), 1u);
  EXPECT_EQ(check_word("--rule", "aftr", {"before", "after"}).message(),
            "--rule 'aftr' is none of before, after; did you mean 'after'?");
  EXPECT_EQ(check_progress("loud").message(), "--progress 'loud' is none of auto, bar, lines, off");
}

TEST(OptionValues, seeds_are_a_count_or_a_range) {
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

TEST(OptionValues, an_error_has_the_name_of_its_option) {
  EXPECT_EQ(of_option("--timeout", parse_duration("soon")).status().message(),
            "--timeout: 'soon' is not a time such as 5s or 200ms");
  EXPECT_EQ(of_option("--timeout", parse_duration("5s")).value(), 5 * second);
  EXPECT_EQ(of_option("--output", Status(Code::unavailable, "is full")).code(), Code::unavailable);
  EXPECT_TRUE(of_option("--output", Status()).ok());
}

TEST(OptionValues, sizes_have_a_limit) {
  EXPECT_EQ(parse_bytes_up_to("--bytes", "64K", 1u << 20).value(), 65536u);
  EXPECT_EQ(parse_bytes_up_to("--bytes", "2M", 1u << 20).status().message(), "--bytes '2M': expected a size of at most 1 MiB");
  EXPECT_EQ(parse_bytes_up_to("--bytes", "x", 1u << 20).status().message(), "--bytes: 'x' is not a size such as 64M");
}

TEST(OptionValues, the_first_invalid_option_is_reported) {
  EXPECT_TRUE(first_wrong({Status(), Status()}).ok());
  EXPECT_EQ(first_wrong({Status(), invalid("one"), invalid("two")}).message(), "one");
}

}  // namespace
}  // namespace unisono::cli
