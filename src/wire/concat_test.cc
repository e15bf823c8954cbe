// base/concat.h. The module base has no test program; wire is the first module above it.
#include "base/concat.h"

#include <gtest/gtest.h>

#include <cstdint>
#include <limits>

namespace unisono {
namespace {

TEST(Concat, joins_texts_characters_and_integers) {
  const std::string host = "a";
  EXPECT_EQ(concat("rank ", 3u, " on ", host, ':', std::string_view("xyz").substr(1), ""), "rank 3 on a:yz");
  EXPECT_EQ(concat(uint8_t{65}, int8_t{-1}), "65-1");
  EXPECT_EQ(concat(""), "");
}

TEST(Concat, holds_the_longest_numbers) {
  EXPECT_EQ(concat(std::numeric_limits<uint64_t>::max()), "18446744073709551615");
  EXPECT_EQ(concat(std::numeric_limits<int64_t>::min()), "-9223372036854775808");
  EXPECT_EQ(concat(-std::numeric_limits<double>::min()), "-2.2250738585072014e-308");
}

TEST(Concat, writes_the_shortest_text_of_a_floating_point_number) {
  EXPECT_EQ(concat(0.1, ' ', 0.1f, ' ', 1.0, ' ', 1e-97), "0.1 0.1 1 1e-97");
  EXPECT_EQ(concat(std::numeric_limits<double>::infinity(), ' ', -std::numeric_limits<double>::quiet_NaN()), "inf -nan");
}

}  // namespace
}  // namespace unisono
