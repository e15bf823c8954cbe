#include "compressors/row_selection.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <limits>
#include <set>

#include "compressors/compressor_test_support.h"

namespace unisono {
namespace {

using Rows = std::vector<uint32_t>;

Rows selected(const std::vector<double>& scores, uint32_t kept, Refresh refresh = {}) {
  Rows rows;
  select_rows(scores, kept, refresh, rows);
  return rows;
}

TEST(RowSelection, takes_the_highest_scores_and_the_lower_row_of_equal_scores) {
  EXPECT_EQ(selected({1, 5, 3, 5, 5, 0}, 2), (Rows{1, 3}));
  EXPECT_EQ(selected({1, 5, 3, 5, 5, 0}, 4), (Rows{1, 2, 3, 4}));
  EXPECT_EQ(selected({0, 0, 0, 0}, 3), (Rows{0, 1, 2}));
  EXPECT_EQ(selected({2, 1}, 0), Rows{});
  EXPECT_EQ(selected({2, 1}, 2), (Rows{0, 1}));
  EXPECT_EQ(selected({}, 0), Rows{});
  EXPECT_EQ(selected({1, std::numeric_limits<double>::infinity()}, 1), Rows{1});
}

TEST(RowSelection, scores_are_squared_lengths_in_double) {
  const float rows[] = {3, 4, 1e-3f, 0x1p-127f, 1e30f, 1e30f};
  double scores[3];
  score_rows(rows, 2, scores);
  EXPECT_EQ(scores[0], 25);
  EXPECT_EQ(scores[1], double{1e-3f} * double{1e-3f});  // the subnormal 0x1p-127f is taken as 0
  EXPECT_EQ(scores[2], 2 * (double{1e30f} * double{1e30f}));
}

// Rows with the lowest scores are sent too, in turn.
TEST(RowSelection, refresh_sends_each_row_within_its_period) {
  for (const auto& [count, kept, every] :
       {std::array<uint32_t, 3>{64, 7, 32}, {10, 4, 3}, {7, 2, 100}, {5, 5, 1}, {1000, 3, 1}}) {
    std::vector<double> scores(count);
    for (uint32_t i = 0; i < count; ++i) scores[i] = count - i;
    const uint32_t due = std::min((count + every - 1) / every, kept / 2), steps = (count + due - 1) / due;
    for (const uint64_t from : {uint64_t{0}, uint64_t{1} << 60}) {
      std::set<uint32_t> seen;
      for (uint64_t step = from; step < from + steps; ++step) {
        const auto rows = selected(scores, kept, {.every = every, .step = step});
        ASSERT_EQ(rows.size(), kept);
        ASSERT_TRUE(std::is_sorted(rows.begin(), rows.end()) && std::adjacent_find(rows.begin(), rows.end()) == rows.end());
        for (uint32_t i = 0; i < kept - due; ++i) EXPECT_TRUE(std::count(rows.begin(), rows.end(), i) == 1 || due > i);
        seen.insert(rows.begin(), rows.end());
      }
      EXPECT_EQ(seen.size(), count) << count << " rows, from step " << from;
    }
  }
  // At most half of the kept rows are sent in turn. So if only one row is kept, it is the one with the highest score.
  EXPECT_EQ(selected({0, 0, 9}, 1, {.every = 2, .step = 0}), Rows{2});
}

// Last part of check 4 of docs/design/methods/arc_top_k.md: the rows that Random-K chooses.
TEST(RowSelection, random_rows_are_the_documented_ones) {
  Rows rows;
  random_rows({.seed = 42, .step = 3, .tensor = 5, .purpose = RandomStream::Purpose::random_k}, 12, 3, rows);
  EXPECT_EQ(rows, (Rows{0, 2, 11}));
}

TEST(RowSelection, largest_entries_by_magnitude) {
  Rows entries;
  select_entries(std::array{1.0f, -3.0f, 3.0f, 0.0f, -2.0f}, 2, entries);
  EXPECT_EQ(entries, (Rows{1, 2}));
  select_entries(std::array{1.0f, -3.0f, 3.0f, 0.0f, -2.0f}, 1, entries);
  EXPECT_EQ(entries, Rows{1});
}

// Last part of check 5 of docs/design/methods/arc_top_k.md: the initial value of FNV-1a.
TEST(RowSelection, fingerprint_of_nothing) { EXPECT_EQ(Fingerprint().value(), 0xCBF29CE484222325); }

}  // namespace
}  // namespace unisono
