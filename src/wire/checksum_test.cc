#include "wire/checksum.h"

#include <gtest/gtest.h>

#include <cstddef>
#include <string_view>
#include <vector>

#include "base/random.h"

namespace unisono {
namespace {

TEST(Checksum, has_the_value_that_is_known) {
  const std::string_view digits = "123456789";
  EXPECT_EQ(crc32c(digits.data(), digits.size()), 0xE3069283u);
  EXPECT_EQ(crc32c_reference(digits.data(), digits.size()), 0xE3069283u);
  EXPECT_EQ(crc32c(nullptr, 0), 0u);
}

// However long it is and wherever it lies: parts of a block go side by side, and what is left over does not.
TEST(Checksum, is_that_of_the_definition_for_all_lengths) {
  Random random(7);
  std::vector<std::byte> bytes(5000);
  for (auto& byte : bytes) byte = static_cast<std::byte>(random.next());
  for (size_t length = 0; length + 8 <= bytes.size(); length += length < 100 || length % 1344 < 40 || length % 1344 > 1300 ? 1 : 13) {
    const auto* data = bytes.data() + length % 8;
    ASSERT_EQ(crc32c(data, length), crc32c_reference(data, length)) << length;
  }
}

TEST(Checksum, of_two_pieces_is_that_of_the_whole) {
  Random random(8);
  std::vector<std::byte> bytes(3000);
  for (auto& byte : bytes) byte = static_cast<std::byte>(random.next());
  const auto whole = crc32c(bytes.data(), bytes.size());
  for (const size_t first : {size_t{0}, size_t{1}, size_t{8}, size_t{1343}, size_t{1344}, size_t{1345}, size_t{2688}, size_t{3000}}) {
    EXPECT_EQ(crc32c(bytes.data() + first, bytes.size() - first, crc32c(bytes.data(), first)), whole) << first;
  }
}

}  // namespace
}  // namespace unisono
