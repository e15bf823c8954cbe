// The digest must be XXH3-64 in every version of the library. The expected values come from XXH3's public test vectors and from
// xxhsum.
#include "wire/digest.h"

#include <gtest/gtest.h>

#define XXH_INLINE_ALL
#include <xxhash.h>

#include <vector>

#include "base/random.h"

namespace unisono {

TEST(Digest, is_xxh3_of_64_bits) {
  EXPECT_EQ(digest64({}), 0x2D06800538D394C2ull);  // XXH3 of no bytes, seed 0
  const char text[] = "unisono";
  const auto once = digest64(std::as_bytes(std::span(text, 7)));
  EXPECT_NE(once, digest64(std::as_bytes(std::span(text, 6))));
}

TEST(Digest, every_byte_and_the_length_count) {
  std::vector<std::byte> bytes(1000);
  const auto all_zero = digest64(bytes);
  for (size_t at : {0u, 1u, 499u, 999u}) {
    auto changed = bytes;
    changed[at] = std::byte{1};
    EXPECT_NE(digest64(changed), all_zero) << at;
  }
  EXPECT_NE(digest64(std::span(bytes).first(999)), all_zero);
}

TEST(Digest, is_equal_on_every_instruction_set) {
  Random random(1);
  std::vector<std::byte> bytes(300'000);
  for (auto& byte : bytes) byte = static_cast<std::byte>(random.below(256));
  for (size_t size = 0; size < 4000; ++size)
    ASSERT_EQ(digest64(std::span(bytes).first(size)), XXH3_64bits(bytes.data(), size)) << size;
  for (const size_t size : {65536u, 262144u, 299'999u})
    ASSERT_EQ(digest64(std::span(bytes).subspan(1).first(size)), XXH3_64bits(bytes.data() + 1, size)) << size;
}

}  // namespace unisono
