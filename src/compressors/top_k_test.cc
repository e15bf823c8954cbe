#include "compressors/top_k.h"

#include <gtest/gtest.h>

namespace unisono {
namespace {

using Entries = std::vector<TopKEntry>;

TEST(TopK, takes_the_largest_entries_and_leaves_the_others) {
  std::vector<float> values{1, -3, 3, 0, -4};
  Entries taken;
  take_largest(values, 2, taken);
  EXPECT_EQ(taken, (Entries{{1, -3}, {4, -4}}));
  EXPECT_EQ(values, (std::vector<float>{1, 0, 3, 0, 0}));
}

TEST(TopK, every_entry_is_taken_or_left_once) {
  std::vector<float> values{1, -3, 3, 0, -4};
  Entries taken;
  for (const float expected : {-4.0f, -3.0f, 3.0f, 1.0f, 0.0f}) {
    take_largest(values, 1, taken);
    ASSERT_EQ(taken.size(), 1u);
    EXPECT_EQ(taken[0].value, expected);
  }
  EXPECT_EQ(values, std::vector<float>(5));
}

TEST(TopK, all_or_none_can_be_taken) {
  std::vector<float> values{2, 1};
  Entries taken{{7, 7}};
  take_largest(values, 0, taken);
  EXPECT_TRUE(taken.empty());
  take_largest(values, 2, taken);
  EXPECT_EQ(taken, (Entries{{0, 2}, {1, 1}}));
}

TEST(TopK, takes_as_many_entries_as_the_kept_rows_have) {
  EXPECT_EQ(kept_entries({.ratio_ppm = 100'000}, {.rows = 64, .columns = 16}), 7u * 16);
  EXPECT_EQ(kept_entries({.ratio_ppm = 1}, {.rows = 64, .columns = 16}), 16u);
}

}  // namespace
}  // namespace unisono
