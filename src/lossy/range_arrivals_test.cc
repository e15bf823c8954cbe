#include "lossy/range_arrivals.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <string>
#include <vector>

#include "base/concat.h"
#include "base/random.h"

namespace unisono {
namespace {

TEST(RangeArrivals, a_repeated_datagram_counts_once) {
  RangeArrivals arrivals;
  arrivals.reset(70);
  EXPECT_TRUE(arrivals.mark(69));
  EXPECT_FALSE(arrivals.mark(69));
  EXPECT_EQ(arrivals.arrived_count(), 1u);
  EXPECT_EQ(arrivals.missing_count(), 69u);
  EXPECT_TRUE(arrivals.arrived(69));
  EXPECT_FALSE(arrivals.arrived(68));
}

TEST(RangeArrivals, a_stream_without_ranges_is_complete) {
  RangeArrivals arrivals;
  arrivals.reset(0);
  EXPECT_TRUE(arrivals.complete());
  EXPECT_EQ(arrivals.missing_fraction(), 0);
  EXPECT_EQ(arrivals.next_missing(0), 0u);
}

TEST(RangeArrivals, reset_marks_all_ranges_as_missing) {
  RangeArrivals arrivals;
  arrivals.reset(65);
  for (uint32_t i = 0; i < 65; ++i) arrivals.mark(i);
  EXPECT_TRUE(arrivals.complete());
  arrivals.reset(200);
  EXPECT_EQ(arrivals.missing_count(), 200u);
  for (uint32_t i = 0; i < 200; ++i) EXPECT_FALSE(arrivals.arrived(i));
}

TEST(RangeArrivals, writes_missing_ranges_lowest_bit_first) {
  RangeArrivals arrivals;
  arrivals.reset(20);
  for (uint32_t i = 0; i < 20; ++i) {
    if (i != 4 && i != 12 && i != 19) arrivals.mark(i);
  }
  std::byte bitmap[2] = {std::byte{0xFF}, std::byte{0xFF}};
  EXPECT_EQ(arrivals.missing_bitmap(4, 20, bitmap), 3u);
  EXPECT_EQ(bitmap[0], std::byte{0x01});
  EXPECT_EQ(bitmap[1], std::byte{0x81});
  EXPECT_EQ(arrivals.missing_bitmap(4, 19, bitmap), 2u);
  EXPECT_EQ(bitmap[1], std::byte{0x01});
  EXPECT_EQ(arrivals.missing_bitmap(5, 1000, bitmap), 2u);
  EXPECT_EQ(arrivals.missing_bitmap(20, 1000, bitmap), 0u);
  EXPECT_EQ(arrivals.missing_bitmap(0, 20, {}), 0u);
}

TEST(RangeArrivals, random_arrivals_agree_with_a_plain_list) {
  constexpr uint64_t seed = 21;
  Random random(seed);
  SCOPED_TRACE(concat("seed ", seed));
  RangeArrivals arrivals;
  for (int i = 0; i < 300; ++i) {
    const auto ranges = static_cast<uint32_t>(1 + random.below(300));
    arrivals.reset(ranges);
    std::vector<bool> expected(ranges);
    for (uint64_t marks = random.below(2 * ranges); marks > 0; --marks) {
      const auto range = static_cast<uint32_t>(random.below(ranges));
      EXPECT_EQ(arrivals.mark(range), !expected[range]);
      expected[range] = true;
    }
    const auto arrived = static_cast<uint32_t>(std::count(expected.begin(), expected.end(), true));
    ASSERT_EQ(arrivals.arrived_count(), arrived);
    ASSERT_EQ(arrivals.complete(), arrived == ranges);
    ASSERT_DOUBLE_EQ(arrivals.missing_fraction(), 1 - static_cast<double>(arrived) / ranges);
    for (uint32_t from = 0; from <= ranges; ++from) {
      const auto next = std::find(expected.begin() + from, expected.end(), false);
      ASSERT_EQ(arrivals.next_missing(from), static_cast<uint32_t>(next - expected.begin()));
    }
    const auto first = static_cast<uint32_t>(random.below(ranges)), end = static_cast<uint32_t>(random.below(ranges + 50));
    std::vector<std::byte> bitmap(random.below(40), std::byte{0xFF});
    uint32_t count = 0;
    const auto set = arrivals.missing_bitmap(first, end, bitmap);
    for (uint32_t bit = 0; bit < 8 * bitmap.size(); ++bit) {
      const auto range = first + bit;
      const bool missing = range < ranges && range < end && !expected[range];
      ASSERT_EQ((bitmap[bit / 8] >> (bit % 8) & std::byte{1}) != std::byte{0}, missing);
      count += missing;
    }
    ASSERT_EQ(set, count);
  }
}

}  // namespace
}  // namespace unisono
