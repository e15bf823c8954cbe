#include "wire/checksum.h"

#include <gtest/gtest.h>

#include <cstddef>
#include <string_view>
#include <vector>

#include "base/random.h"

namespace unisono {
namespace {

uint32_t crc32c_by(const ChecksumKernel& kernel, const void* data, size_t bytes) { return ~kernel.update(data, bytes, ~0u); }

TEST(Checksum, has_the_published_value) {
  const std::string_view digits = "123456789";
  EXPECT_EQ(crc32c(digits.data(), digits.size()), 0xE3069283u);
  for (const auto& kernel : runnable_checksums())
    EXPECT_EQ(crc32c_by(kernel, digits.data(), digits.size()), 0xE3069283u) << kernel.name;
  EXPECT_EQ(crc32c(nullptr, 0), 0u);
}

// Tries all lengths and alignments: kernels compute the full blocks of a message differently from the rest.
TEST(Checksum, equals_the_table_checksum_for_all_lengths) {
  Random random(7);
  std::vector<std::byte> bytes(5000);
  for (auto& byte : bytes) byte = static_cast<std::byte>(random.next());
  const auto& table = runnable_checksums().back();
  for (size_t length = 0; length + 8 <= bytes.size();
       length += length < 1600 || length % 1344 < 40 || length % 1344 > 1300 ? 1 : 13) {
    const auto* data = bytes.data() + length % 8;
    const auto expected = crc32c_by(table, data, length);
    for (const auto& kernel : runnable_checksums())
      ASSERT_EQ(crc32c_by(kernel, data, length), expected) << kernel.name << ", " << length;
    ASSERT_EQ(crc32c(data, length), expected) << length;
  }
}

TEST(Checksum, reads_only_the_given_bytes) {
  for (const size_t length : {1u, 63u, 255u, 256u, 257u, 320u, 511u, 1344u, 1416u}) {
    const std::vector<std::byte> exact(length, std::byte{7});  // allocated exactly: a sanitizer reports a read past the end
    const auto expected = crc32c_by(runnable_checksums().back(), exact.data(), length);
    for (const auto& kernel : runnable_checksums())
      EXPECT_EQ(crc32c_by(kernel, exact.data(), length), expected) << kernel.name << ", " << length;
  }
}

TEST(Checksum, two_pieces_give_the_checksum_of_the_whole) {
  Random random(8);
  std::vector<std::byte> bytes(3000);
  for (auto& byte : bytes) byte = static_cast<std::byte>(random.next());
  const auto whole = crc32c(bytes.data(), bytes.size());
  for (const size_t first : {size_t{0}, size_t{1}, size_t{8}, size_t{256}, size_t{1000}, size_t{1343}, size_t{1344},
                             size_t{1345}, size_t{2688}, size_t{3000}}) {
    EXPECT_EQ(crc32c(bytes.data() + first, bytes.size() - first, crc32c(bytes.data(), first)), whole) << first;
    for (const auto& kernel : runnable_checksums()) {
      EXPECT_EQ(~kernel.update(bytes.data() + first, bytes.size() - first, kernel.update(bytes.data(), first, ~0u)), whole)
          << kernel.name << ", " << first;
    }
  }
}

}  // namespace
}  // namespace unisono
